"""Windows by state, against an oracle made of the words of the documentation: from which iteration on units count."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fixtures.ascend import standins
from tests.matrix import thinned_rows
from tests.patches.conditions import sglang
from tests.patches.rollout_workers import V1Worker, batch, recorded
from tests.patches.schedules import RELEASES, Seen, schedule
from tests.patches.sglang_schedulers import Scheduler
from tests.patches.standin import Console

pytestmark = pytest.mark.usefixtures("stand_in_torch")


class Asked(NamedTuple):
    """The conditions, 0 for one that was not asked for."""

    load: int = 0
    tail: int = 0
    context: int = 0

    @property
    def constants(self) -> dict[str, Any]:
        return {
            "RELATIVE": True,
            "AT": {name: str(value) for name, value in self._asdict().items() if value},
            **{f"BY_{name.upper()}": bool(value) for name, value in self._asdict().items()},
        }

    def __str__(self) -> str:
        return ",".join(f"{name} {value}" for name, value in self._asdict().items() if value)


class Oracle(Seen):
    """Rollouts in which units count from behind the first iteration that holds all that was asked for."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.asked = asked
        self.begin()

    def begin(self) -> None:
        self.most, self.behind, self.unit = 0, False, 0

    def end(self) -> None:
        super().end()
        self.begin()

    def relative(self, batch: standins.Iteration, unit: str) -> tuple[int, int]:
        """The number of the batch from where units count, and in its rollout; -1 where it does not count."""
        number = self.number(batch, unit)
        if not batch.kind:
            return -1, -1
        if self.behind:
            self.unit += number >= 0
            return (self.unit - 1, number) if number >= 0 else (-1, -1)
        requests = [*batch.new, *batch.running, *batch.resumed]
        self.most = max(self.most, len(requests))
        longest = max(request.computed + batch.counts[request.id] for request in requests)
        self.behind = (
            len(requests) >= self.asked.load
            and (not self.asked.tail or len(requests) <= self.asked.tail < self.most)
            and longest >= self.asked.context
        )
        return -1, -1


ASKED = [
    Asked(load=3),
    Asked(tail=2),
    Asked(context=12),
    Asked(context=30),
    Asked(2, 3),
    Asked(2, 0, 9),
    Asked(1, 2, 20),
]
WINDOWS = [("decode", "0:3"), ("decode", "2:5,7:9"), ("prefill", "0:2"), ("iterations", "1:4")]


@pytest.mark.parametrize(("unit", "window"), WINDOWS)
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize(("release", "shape"), thinned_rows(RELEASES, RELEASES[3:4]))
def test_units_count_from_behind_the_condition(release: str, shape: str, asked: Asked, unit: str, window: str) -> None:
    opened = 0
    spans = [tuple(map(int, span.split(":"))) for span in window.split(",")]
    for seed in range(12):
        constants: dict[str, Any] = {
            "UNIT": unit,
            "FIRST": int(unit == "decode"),
            "WINDOW": window,
            "SEVERAL": "," in window,
        }
        worker = V1Worker(release=release, REPEAT=99, drafts=2, **constants, **asked.constants)
        oracle, wanted = Oracle(asked), dict[tuple[int, int], list[str]]()
        for one in schedule(seed):
            if one is None:
                worker._rlpatch_stage("end_rollout", "sleep()")
                oracle.end()
                continue
            number, in_rollout = oracle.relative(one, unit)
            worker.iterate(standins.SHAPES[shape](one), one.label)
            for first, end in spans:
                if first <= number < end:
                    wanted.setdefault((oracle.rollout, first), []).append(f"{in_rollout}: {one.label}")
        if worker._rlpatch_stage_probe:
            worker._rlpatch_stage("close", "the process ends")
        found = [
            [f"{number}: {labels[0]}" for number, labels in sorted(profiler.recorded.items())]
            for profiler in worker.made
        ]
        assert [units for units in found if units] == list(wanted.values()), seed
        opened += len(wanted)
    assert opened


def ramp(worker: V1Worker, requests: int, tokens: int) -> None:
    """Requests ``r0``, ``r1``, ... that come one by one and then end one by one."""
    for number in range(requests):
        here = {f"r{n}": 1 for n in range(number)}
        worker.iterate(batch({**here, f"r{number}": 4}, {f"r{number}": 4}), f"prefill {number}")
    for _ in range(tokens):
        worker.iterate(batch({f"r{n}": 1 for n in range(requests)}), "full")
    for number in range(1, requests):
        left = {f"r{n}": 1 for n in range(number, requests)}
        worker.iterate(batch(left, done=(f"r{number - 1}",)), f"{len(left)} left")
    worker.iterate(batch({}, done=(f"r{requests - 1}",)), "empty")


@pytest.mark.parametrize(
    ("asked", "window", "labels"),
    [
        # The last prefill is the first iteration with all four, and the warm-up.
        (Asked(load=4), "0:2", ["full", "full"]),
        (Asked(load=4), "1:3", ["full", "full"]),
        # "2 left" is the first with at most two, and the warm-up.
        (Asked(tail=2), "0:1", ["1 left"]),
        (Asked(tail=3), "0:9", ["2 left", "1 left"]),
    ],
)
def test_the_iteration_in_which_it_holds_is_the_warm_up(asked: Asked, window: str, labels: list[str]) -> None:
    worker = V1Worker(WINDOW=window, **asked.constants)
    ramp(worker, 4, 5)
    assert [label for group in recorded(worker)[0].values() for label in group] == labels
    assert worker.made[0].schedule[1] == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(load=9), "1 to 4 requests were scheduled"),
        (Asked(tail=9), "1 to 4 requests were scheduled"),
    ],
)
def test_what_never_held_says_how_near_it_came(asked: Asked, said: str, console: Console) -> None:
    worker = V1Worker(WINDOW="0:9", **asked.constants)
    ramp(worker, 4, 5)
    assert not worker.made
    assert (
        f"decode 0:9 of rollout 0: not recorded: all requests have finished after 8 decode steps; the start condition did not hold: {said}"
        in console.text
    )


def test_of_contexts_nothing_is_said_that_was_not_measured(console: Console) -> None:
    worker = V1Worker(release="0.12.0rc1", WINDOW="0:9", **Asked(context=500).constants)
    scheduler = standins.Scheduler(64)
    scheduler.add(standins.Request("a", 30, 12))
    while scheduler.live:
        one = scheduler.schedule()
        worker.iterate(standins.sets(one), one.label)
        scheduler.done(one)
    one = scheduler.schedule()
    worker.iterate(standins.sets(one), one.label)
    assert re.findall(r"\d+ to \d+ (\w+)", console.messages[-1]) == ["requests"], "a bound is no length"


def test_several_windows_that_a_rollout_does_not_reach_are_named(console: Console) -> None:
    worker = V1Worker(WINDOW="2:4,6:9,20:30,40:50", SEVERAL=True)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 8):
        worker.iterate(batch({"a": 1}), f"decode {n}")
    worker.iterate(batch({}, done=("a",)), "empty")
    assert [[*profiler.recorded] for profiler in worker.made] == [[2, 3], [6, 7]]
    assert "decode 2:4 of rollout 0: complete, recorded 2 of 2" in console.text
    ended = "decode 6:9 of rollout 0: all requests have finished before 20:30,40:50, recorded 2 of 3"
    assert ended in console.text
    assert worker._rlpatch_stage_probe is None


@pytest.mark.parametrize("window", ["5:3", "0:4", "3:6,6:9", "3:6,5:9", "9:12,3:6", "3:,9:12", "3:6,"])
def test_windows_of_the_environment_are_checked_too(
    window: str, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setenv("RLPATCH_WINDOW", window)
    worker = V1Worker(WINDOW="2:4,6:9", SEVERAL=True)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    assert worker._rlpatch_stage_probe is None
    assert "recording failed, the run goes on" in console.text
    assert window.rstrip(",") in console.text


@pytest.mark.parametrize(("name", "value"), [("LOAD", "0"), ("TAIL", "-1"), ("CONTEXT", "many")])
def test_conditions_of_the_environment(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setenv(f"RLPATCH_AT_{name}", value)
    worker = V1Worker(WINDOW="0:4", drafts=0, **Asked(2, 2, 2).constants)
    ramp(worker, 3, 3)
    assert not worker.made
    assert f"RLPATCH_AT_{name}={value!r} is not valid" in console.text


def test_a_long_prefill_beside_many_that_decode_makes_nobody_look_at_each_of_them(
    monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    worker = V1Worker(WINDOW="0:4", **Asked(context=100_000).constants)
    looked: list[Any] = []
    recorder, names = worker._RlpatchStage, [f"r{n}" for n in range(64)]
    contents = recorder.contents

    def looking(self: Any, one: Any) -> Any:
        looked.append(one)
        return contents(self, one)

    monkeypatch.setattr(recorder, "contents", looking)
    one = batch(dict.fromkeys(names, 3), dict.fromkeys(names, 3))
    one.scheduled_cached_reqs = scheduled([], 0)
    worker.iterate(one, "prefill")
    for turn in range(100):
        one = batch({**dict.fromkeys(names, 1), "long": 20}, {"long": 8_000} if turn == 0 else None)
        one.scheduled_cached_reqs = scheduled(names if turn == 0 else [*names, "long"], 3 + turn)
        worker.iterate(one, f"prefill {turn}")
    assert len(looked) < 3
    one = batch({}, done=(*names, "long"))
    one.scheduled_cached_reqs = scheduled([], 0)
    worker.iterate(one, "empty")
    assert "after 0 decode steps; the start condition did not hold: 64 to 65 requests were scheduled" in console.text


def scheduled(names: list[str], computed: int) -> Any:
    """The cached requests of a batch."""
    lengths = [computed] * len(names)
    return SimpleNamespace(req_ids=names, num_computed_tokens=lengths, resumed_req_ids=set())


# --- SGLang ---


@pytest.mark.parametrize("how", [{}, {"late": 1}, {"tensor": True}], ids=["in order", "overlapped", "from 0.5.2x on"])
@pytest.mark.parametrize(
    ("asked", "first"),
    [(Asked(tail=2), 5), (Asked(load=4), 1), (Asked(context=9), 7), (Asked(1, 3, 8), 6), (Asked(context=20), None)],
    ids=str,
)
def test_sglang_opens_a_window_at_the_asked_state(how: dict[str, Any], asked: Asked, first: int | None) -> None:
    scheduler = Scheduler(WINDOW="0:2", **asked.constants)
    scheduler.server_args.speculative_num_draft_tokens = None
    turns = [
        ("EXTEND", 4, 3),
        *(("DECODE", 4, 3 + n) for n in (1, 2, 3)),
        *(("DECODE", 2, 3 + n) for n in range(4, 10)),
    ]
    for number, (mode, requests, context) in enumerate(turns):
        scheduler._rlpatch_stage("schedule", sglang([*range(requests)], context, mode, **how))
        for profiler in scheduler.made:
            profiler.run(f"decode {number}")
    expected = [] if first is None else [{n: [f"decode {n}"] for n in (first, first + 1)}]
    assert scheduler.recorded() == expected
