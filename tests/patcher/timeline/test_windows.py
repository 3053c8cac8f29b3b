from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from patcher.timeline import windows
from patcher.timeline.files import IterationColumns, KeptSpan, ProcessFile
from patcher.timeline.model import Cause, Imbalance, PathSegment, ProposedWindow, Tail, TrainingStep
from patcher.timeline.runs import Process
from patcher.timeline.step_records import StepRecords
from patcher.timeline.windows import Collector

MS = 1_000
DRIVER, FIRST, SECOND, SERVER, ENGINE = range(5)
REPLICAS = (None, None, None, 1, 1)
USUAL = TrainingStep(1, 0, 10, 10, "typical", "", None, None, (), (), 0, None, 0, (), 0, ())


def process(
    role: str, package: str, replica: int | None = None, rank: int | None = None, by_verl: bool = True
) -> Process:
    environ = {"VERL_REPLICA_RANK": str(replica)} if replica is not None and by_verl else {}
    head = ProcessFile(
        path=Path("x"), started=0, begin=0, first=None, last=None, kinds=frozenset(), rank=rank, ended=True, cut=False,
        package=package, environ=environ,
    )  # fmt: skip
    return Process((head,), (role,), replica, rank)


def processes(trainer: str = "verl 0.9.1", engine: str = "vllm 0.27.0", by_verl: bool = True) -> list[Process]:
    return [
        process("driver", trainer), process("trainer", trainer, rank=0), process("trainer", trainer, rank=1),
        process("server", trainer, 1, by_verl=by_verl), process("engine", engine, 1, by_verl=by_verl),
    ]  # fmt: skip


class Made:
    """Records of one step of 10 s, times in milliseconds."""

    def __init__(self) -> None:
        self.spans: list[KeptSpan] = []
        self.columns = IterationColumns()

    def add(
        self, at: int, kind: str, name: str, start: float, end: float | None, parent: int = 0,
        amount: int | None = None, waited: int | None = None,
    ) -> int:  # fmt: skip
        stop = None if end is None else round(end * MS)
        identity = len(self.spans) + 1
        self.spans.append(KeptSpan(round(start * MS), stop, kind, name, amount, identity, parent, at, waited))
        return len(self.spans)

    def decode(self, *rows: tuple[float, float, int, int]) -> Made:
        for start, end, requests, tokens in rows:
            self.columns.extend([round(start * MS)], [round(end * MS)], [requests], [tokens])
        return self

    def work(
        self,
        at: int,
        lengths: Sequence[float],
        name: str = "update_actor",
        begin: float = 8_000,
        amount: int | None = None,
        waited: int | None = None,
    ) -> Made:
        identity = self.add(at, "work", name, begin, begin + sum(lengths) + 1, amount=amount)
        for length in lengths:
            waits = None if waited is None else waited if length == max(lengths) else 0
            self.add(at, "unit", "micro-batch", begin, begin + length, identity, waited=waits)
            begin += length
        return self

    def records(self, start: float = 0) -> StepRecords:
        return StepRecords(
            round(start * MS), 10_000 * MS, DRIVER, self.spans, {ENGINE: self.columns},
            ("driver", "trainer", "trainer", "server", "engine"), REPLICAS,
        )  # fmt: skip


def proposed(
    made: Made, step: TrainingStep = USUAL, since: float = 0, which: Sequence[Process] | None = None
) -> Mapping[str, ProposedWindow]:
    collector = Collector(which or processes())
    collector.feed(made.records(), step.step, round(since * MS))
    return {window.what: window for window in collector.proposals([step])}


def decoding(count: int, *, length: float = 10, begin: float = 120) -> list[tuple[float, float, int, int]]:
    return [(begin + at * length, begin + (at + 1) * length, 4, 4) for at in range(count)]


def test_prefills_are_no_decode_steps() -> None:
    made = Made().decode((100, 120, 4, 400), *decoding(4), (160, 180, 5, 105), *decoding(4, begin=180))
    made.add(SERVER, "serve", "generate", 90, 300)
    found = proposed(made)["typical decode"]
    assert found.command == "rlpatch apply vllm --decode 5:9 --rollout 0 --replicas 1"
    assert found.trigger == "rlpatch trigger --decode 5:9"
    assert (found.start, found.end, found.step, found.replica) == (0.18, 0.22, 1, 1)


def test_twenty_decode_steps_from_the_middle_on_are_typical() -> None:
    made = Made().decode(*decoding(100))
    made.add(SERVER, "serve", "generate", 90, 2_000)
    assert "--decode 51:71 " in proposed(made)["typical decode"].command


def test_a_rollout_begins_where_the_engine_ran_empty() -> None:
    made = Made().decode(*decoding(6), *decoding(8, begin=600))
    made.add(SERVER, "serve", "generate", 90, 300)
    made.add(SERVER, "serve", "generate", 110, 350)
    made.add(SERVER, "serve", "generate", 590, 900)
    found = proposed(made)["typical decode"]
    assert found.command.startswith("rlpatch apply vllm --decode 5:9 --rollout 1 ")
    assert "run out of requests" in found.why
    once = Made().decode(*decoding(6))
    once.add(SERVER, "serve", "generate", 90, 300)
    assert "run out of requests" not in proposed(once)["typical decode"].why


@pytest.mark.parametrize(("begins", "decodes"), [(600, "5:9"), (600.001, "8:15")])
def test_a_rollout_begins_with_the_iteration_of_its_first_request(begins: float, decodes: str) -> None:
    made = Made().decode(*decoding(6), *decoding(8, begin=600))
    made.add(SERVER, "serve", "generate", 90, 300)
    made.add(SERVER, "serve", "generate", begins, 600.002)
    assert f"--decode {decodes} " in proposed(made)["typical decode"].command


def test_what_came_before_the_first_step_counts_but_is_not_proposed() -> None:
    made = Made().decode(*decoding(6), *decoding(8, begin=600))
    made.add(SERVER, "serve", "generate", 90, 300)
    made.add(SERVER, "serve", "generate", 590, 900)
    assert "--rollout 1 " in proposed(made, since=500)["typical decode"].command
    assert "--decode 11:15 " in proposed(Made().decode(*decoding(14)), since=180)["typical decode"].command


def test_iterations_are_counted_once_though_steps_overlap_them() -> None:
    made, collector = Made().decode(*decoding(14)), Collector(processes())
    for number in (1, 2):
        collector.feed(made.records(), number, 0)
    assert collector.engines[ENGINE].decoded == 14
    assert len(collector.rollouts) == 1


@pytest.mark.parametrize(("took", "window"), [(60, "4:9"), (21, "4:9"), (20, None)])
def test_a_decode_step_of_twice_the_median_is_slow(took: float, window: str | None) -> None:
    rows = [*decoding(5), (170, 170 + took, 4, 4), *decoding(6, begin=300)]
    found = proposed(Made().decode(*rows)).get("slowest decode")
    assert (found and found.command.split()[4]) == window


def test_decode_steps_of_no_time_count_as_a_microsecond() -> None:
    rows = [*decoding(5, length=0), (170, 170.007, 4, 4), *decoding(6, length=0, begin=300)]
    found = proposed(Made().decode(*rows))["slowest decode"]
    assert " 7 times the median" in found.why


def test_the_window_around_a_slow_step_begins_at_the_first_one() -> None:
    rows = [(100, 110, 4, 4), (110, 190, 4, 4), *decoding(6, begin=300)]
    assert "--decode 1:5 " in proposed(Made().decode(*rows))["slowest decode"].command


def test_the_tail_is_proposed_on_the_replica_that_finished_last() -> None:
    step = replace(
        USUAL, tail_seconds=2.0, tail=Tail(3.0, 5.0, 2.0, 40, 2.0),
        imbalance=(Imbalance("ranks", ((0, 9.0), (1, 5.0)), 2.0), Imbalance("replicas", ((0, 1.0), (1, 5.0)), 2.0)),
    )  # fmt: skip
    made = Made().decode(*[(start, end, 40, 40) for start, end, _, _ in decoding(6)])
    found = proposed(made, step)["tail"]
    assert found.command == "rlpatch apply vllm --decode 0:20 --at-tail 4 --rollout 0 --replicas 1"
    assert (found.start, found.end) == (3.0, 5.0)
    for requests, few in ((9, 1), (19, 1), (20, 2), (99, 9)):
        made = Made().decode(*[(start, end, requests, requests) for start, end, _, _ in decoding(6)])
        assert f" --at-tail {few} " in proposed(made, step)["tail"].command
    other = replace(step, imbalance=(Imbalance("replicas", ((0, 6.0), (1, 5.0)), 2.0),))
    assert "tail" not in proposed(made, other)
    assert "tail" not in proposed(made, replace(step, tail_seconds=0.5))


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (processes(), "rlpatch apply vllm --decode 4:7 --rollout 0 --replicas 1"),
        (processes(engine="sglang 0.5.4"), "rlpatch apply sglang --decode 4:7 --rollout 0 --replicas 1"),
        (processes("openrlhf 0.9.0", by_verl=False), "rlpatch apply vllm --decode 4:7 --rollout 0"),
        ([*processes(), process("engine", "vllm-ascend 0.20.0", 0)], "rlpatch apply vllm-ascend --decode 4:7 --rollout 0 --replicas 1"),
    ],
    ids=["vllm", "sglang", "without replicas of verl", "the plugin of vllm"],
)  # fmt: skip
def test_the_package_and_the_replica_are_those_of_the_run(which: Sequence[Process], words: str) -> None:
    assert proposed(Made().decode(*decoding(6)), which=which)["typical decode"].command == words


# ---------------------------------------------------------------- micro-batches


def test_the_slow_micro_batch_is_that_of_the_rank_that_took_longer() -> None:
    made = Made().work(FIRST, [100, 110, 100]).work(SECOND, [100, 400, 100])
    found = proposed(made)["slow micro-batch"]
    assert found.command == "rlpatch apply verl --micro-batch 1:2 --ranks 1 --training-steps 1"
    assert found.trigger == "rlpatch trigger --micro-batch 1:2 --ranks 1"
    assert (found.start, found.end, found.rank, found.step) == (8.1, 8.5, 1, 1)


@pytest.mark.parametrize(
    ("other", "ranks"), [(400, "all"), (395, "all"), (260, "all"), (251, "all"), (250, "0"), (100, "0")]
)
def test_ranks_that_took_it_alike_are_all_proposed(other: float, ranks: str) -> None:
    """Half of the excess over the usual 100 ms is what one rank must lead by."""
    made = Made().work(FIRST, [100, 400, 100]).work(SECOND, [100, other, 100])
    assert f"--ranks {ranks} " in proposed(made)["slow micro-batch"].command


def test_a_rank_with_fewer_micro_batches_is_no_peer_of_those_behind_its_last() -> None:
    made = Made().work(FIRST, [100, 100, 400]).work(SECOND, [100, 100])
    found = proposed(made)["slow micro-batch"]
    assert found.command == "rlpatch apply verl --micro-batch 2:3 --ranks 0 --training-steps 1"


@pytest.mark.parametrize(
    ("waits", "ranks"),
    [((0, 300), "0"), ((300, 0), "1"), ((150, 10), "all"), ((145, 150), "all"), ((0, None), "all")],
)
def test_of_ranks_that_wait_for_each_other_the_one_that_worked_longest_is_proposed(
    waits: tuple[int | None, int | None], ranks: str
) -> None:
    """Half of the excess over the usual 100 ms is what one rank must lead by, without its waits."""
    made = Made()
    for process, waited, length in ((FIRST, waits[0], 400), (SECOND, waits[1], 401)):
        made.work(process, [100, length, 100], waited=waited and waited * MS)
    assert f"--ranks {ranks} " in proposed(made)["slow micro-batch"].command


def test_the_rank_of_the_verdict_is_proposed() -> None:
    made = Made().work(FIRST, [100, 400, 100]).work(SECOND, [100, 399, 100])
    segment = PathSegment(8.0, 8.9, 0.9, "trainer", None, None, "unit", "micro-batch", "update", None)
    cause = Cause("trainer", None, 1, "micro-batch", "update", 1, 0.3, "unit")
    for step, ranks in (
        (replace(USUAL, critical_path=(segment,), limited_by=cause), "1"),
        (replace(USUAL, critical_path=(segment,), also=(cause,)), "1"),
        (replace(USUAL, critical_path=(segment,), limited_by=replace(cause, phase="ref")), "all"),
        (replace(USUAL, critical_path=(segment,), limited_by=replace(cause, rank=None)), "all"),
    ):  # fmt: skip
        assert f"--ranks {ranks} " in proposed(made, step)["slow micro-batch"].command


def test_a_single_trainer_needs_no_choice() -> None:
    found = proposed(Made().work(FIRST, [100, 400, 100]))["slow micro-batch"]
    assert "--ranks 0 " in found.command


@pytest.mark.parametrize(
    ("usual", "took", "slow"),
    [(100, 201, True), (100, 200, False), (0.001, 0.003, True), (0, 0.003, True), (0, 0.002, False)],
)
def test_a_micro_batch_of_twice_the_median_is_slow(usual: float, took: float, slow: bool) -> None:
    """A median below a microsecond counts as one."""
    assert ("slow micro-batch" in proposed(Made().work(FIRST, [usual, took, usual]))) == slow


@pytest.mark.parametrize(("most", "slow"), [(3, True), (4, False)])
def test_the_median_is_of_the_first_micro_batches(most: int, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_LENGTHS", most)
    made = Made().work(FIRST, [100] * 3, begin=1_000).work(FIRST, [300] * 4, begin=5_000)
    assert ("slow micro-batch" in proposed(made)) == slow


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("compute_ref_log_prob", "--stage compute-log-prob --role ref --micro-batch 2:3"),
        ("compute_log_prob", "--stage compute-log-prob --role actor --micro-batch 2:3"),
        ("update_critic", "--stage update-critic --micro-batch 2:3"), ("update_policy", "verl --micro-batch 2:3"),
    ],
)  # fmt: skip
def test_the_stage_is_that_of_the_method(method: str, words: str) -> None:
    assert words in proposed(Made().work(FIRST, [100, 100, 400], method))["slow micro-batch"].command


def test_methods_without_a_stage_and_works_with_one_unit_or_without_an_end_are_not_proposed() -> None:
    assert proposed(Made().work(FIRST, [100, 100, 400], "save_checkpoint")) == {}
    assert proposed(Made().work(FIRST, [400])) == {}
    going_on = Made().work(FIRST, [100, 100, 400])
    going_on.add(FIRST, "unit", "micro-batch", 9_000, None, 1)
    assert proposed(going_on) == {}


def test_the_number_of_the_call_is_what_the_probe_counts() -> None:
    collector = Collector(processes("my-trainer 1"))
    for number in (1, 2, 3):
        made = Made().work(FIRST, [100, 100]).work(FIRST, [100, 500 if number == 2 else 100], begin=9_000)
        collector.feed(made.records(), number, 0)
    (found,) = collector.proposals([replace(USUAL, step=number) for number in (1, 2, 3)])
    assert found.command == "rlpatch apply my-trainer --micro-batch 1:2 --ranks 0 --training-steps 4"
    numbered = proposed(Made().work(FIRST, [100, 100, 500], amount=17))["slow micro-batch"]
    assert numbered.command.endswith("--training-steps 17")


def test_the_warm_up_is_proposed_only_if_there_is_nothing_else() -> None:
    made, collector = Made().work(FIRST, [100, 400, 100]), Collector(processes())
    collector.feed(made.records(), 1, 0)
    warm_up = replace(USUAL, warm_up=True)
    assert len(collector.proposals([warm_up])) == 1
    assert collector.proposals([warm_up, replace(USUAL, step=2)]) == ()


def test_micro_batches_within_mini_batches_are_counted_through_the_call() -> None:
    made = Made()
    work = made.add(FIRST, "work", "update_actor", 8_000, 9_000)
    for begin, took in ((8_000, 100), (8_200, 400)):
        mini_batch = made.add(FIRST, "unit", "mini-batch", begin, begin + 500, work)
        made.add(FIRST, "unit", "micro-batch", begin, begin + took, mini_batch)
        made.add(FIRST, "unit", "micro-batch", begin + took, begin + took + 100, mini_batch)
    found = proposed(made)["slow micro-batch"]
    assert "--micro-batch 2:3 " in found.command
    assert "took 0.40 s, 4 times" in found.why


@pytest.mark.parametrize(("levels", "found"), [(7, 1), (8, 0)])
def test_micro_batches_are_looked_for_eight_levels_deep(levels: int, found: int) -> None:
    made = Made()
    work = parent = made.add(FIRST, "work", "update_actor", 8_000, 9_000)
    for _ in range(levels):
        parent = made.add(FIRST, "phase", "inner", 8_000, 9_000, parent)
    made.add(FIRST, "unit", "micro-batch", 8_000, 9_000, parent)
    assert len([*windows._micro_batches_within(made.records(), made.spans[work - 1], 0)]) == found


def test_spans_that_are_parents_of_each_other_have_no_micro_batches() -> None:
    made = Made()
    made.add(FIRST, "work", "update_actor", 8_000, 9_000, parent=2)
    made.add(FIRST, "phase", "fit", 8_000, 9_000, parent=1)
    assert proposed(made) == {}


def test_a_micro_batch_of_trl_that_generates_begins_with_its_loss() -> None:
    made = Made()
    work = made.add(FIRST, "work", "train", 8_000, 9_000, amount=3)
    for begin, loss in ((8_000, 8_500), (8_600, 8_610), (8_700, 8_700)):
        unit = made.add(FIRST, "phase", "training_step", begin, loss + 90 + (300 if begin == 8_600 else 0), work)
        made.add(FIRST, "phase", "generate", begin, loss, unit)
        made.add(FIRST, "phase", "compute_loss", loss, loss + 50, unit)
    found = proposed(made)["slow micro-batch"]
    assert (found.start, found.end) == (8.61, 9.0)
    assert "--micro-batch 1:2 " in found.command


def test_the_slowest_decode_step_is_that_of_the_rollout_in_which_it_stands_out_most() -> None:
    made, collector = Made(), Collector(processes())
    slow = [*decoding(5), (170, 230, 4, 4), *decoding(5, begin=240)]
    made.decode(*slow, *[(4_000 + 10 * start, 4_000 + 10 * end, 4, 4) for start, end, _, _ in slow[:5]])
    made.decode((6_000, 6_300, 4, 4))
    made.add(SERVER, "serve", "generate", 90, 400)
    made.add(SERVER, "serve", "generate", 5_000, 7_000)
    collector.feed(made.records(), 1, 0)
    found = {window.what: window for window in collector.proposals([USUAL])}["slowest decode"]
    assert "--decode 4:9 --rollout 0" in found.command
    assert "took 60.0 ms, 6 times" in found.why
    assert (found.start, found.end) == (0.17, 0.23)


def test_calls_of_the_step_are_those_that_begin_in_it() -> None:
    for begin, slow in ((7_999, False), (8_000, True), (9_999, True), (10_000, False)):
        collector = Collector(processes())
        collector.feed(Made().work(FIRST, [1, 4, 1], begin=begin).records(8_000), 1, 0)
        assert bool(collector.proposals([USUAL])) == slow
    for since, slow in ((8_000, True), (8_000.001, False)):
        collector = Collector(processes())
        collector.feed(Made().work(FIRST, [1, 4, 1], begin=8_000).records(), 1, round(since * MS))
        assert bool(collector.proposals([USUAL])) == slow


def test_the_phase_of_a_micro_batch_is_that_of_the_path_meanwhile() -> None:
    made = Made().work(FIRST, [100, 400, 100]).work(SECOND, [100, 399, 100])
    cause = Cause("trainer", None, 1, "micro-batch", "update", 1, 0.3, "unit")
    for low, high, ranks in ((7.0, 8.1, "all"), (8.5, 9.0, "all"), (7.0, 8.2, "1"), (8.4, 9.0, "1")):
        segment = PathSegment(low, high, high - low, "trainer", None, None, "unit", "micro-batch", "update", None)
        step = replace(USUAL, critical_path=(segment,), limited_by=cause)
        assert f"--ranks {ranks} " in proposed(made, step)["slow micro-batch"].command
    driver = replace(cause, role="driver")
    segment = PathSegment(8.0, 9.0, 1.0, "trainer", None, None, "unit", "micro-batch", "update", None)
    step = replace(USUAL, critical_path=(segment,), limited_by=driver)
    assert "--ranks all " in proposed(made, step)["slow micro-batch"].command
