"""What SGLang's batches and requests say of an iteration, as tables."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes import sglang
from patches.probes.rollout import RolloutUnits


def probe(kind: Any, **fields: Any) -> Any:
    """Return a recorder that was not set up, and what it hands over in ``told``."""
    made = kind.__new__(kind)
    told: list[tuple[Any, ...]] = []
    defaults = {
        "done": False,
        "put": None,
        "prof": None,
        "open_at": None,
        "unit": 0,
        "hand_over": lambda *words: told.append(words),
    }
    for name, value in {**defaults, **fields}.items():
        setattr(made, name, value)
    made.told = told
    return made


def batch(mode: str, *requests: str, tokens: int = 4, **fields: Any) -> Any:
    return Some(
        forward_mode=Some(name=mode), reqs=[Some(rid=name) for name in requests], extend_num_tokens=tokens, **fields
    )


KINDS = [
    (batch("DECODE", "a", "b"), "decode"), (batch("TARGET_VERIFY", "a"), "decode"), (batch("EXTEND", "a"), "prefill"), (batch("MIXED", "a"), "prefill"),
    (batch("EXTEND", "a", tokens=0), None), (batch("PREBUILT", "a"), None), (batch("IDLE"), "idle"), (batch("DECODE", "a", tokens=0), "decode"),
    (batch("EXTEND", "HEALTH_CHECK_1"), "health check"), (batch("DECODE", "HEALTH_CHECK_1"), "health check"),
    (batch("DECODE", "HEALTH_CHECK_1", "b"), "decode"),
]  # fmt: skip


@pytest.mark.parametrize(("of_batch", "kind"), KINDS)
def test_the_kind_of_a_batch(of_batch: Any, kind: str | None) -> None:
    assert probe(sglang.SglangRollout).kind_of(of_batch) == kind


SCHEDULED: dict[str, tuple[type[Any], str, dict[str, Any], list[str], bool]] = {
    "a rollout begins": (sglang.SglangRollout, "EXTEND", {}, ["begin_rollout", "step prefill"], True),
    "it goes on": (sglang.SglangRollout, "DECODE", {"running": True}, ["step decode"], True),
    "nothing more is recorded": (sglang.SglangRollout, "DECODE", {"done": True}, ["step decode"], False),
    "an idle batch begins none": (sglang.SglangRollout, "IDLE", {}, ["step idle"], False),
    "but where ranks run in step": (sglang.AlignedBatches, "IDLE", {}, ["begin_rollout", "step idle"], True),
    "without a forward": (sglang.SglangRollout, "PREBUILT", {}, [], False),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_the_first_batch_begins_a_rollout(name: str) -> None:
    kind, mode, fields, told, running = SCHEDULED[name]
    made = probe(kind, **fields)
    made.schedule(batch(mode, "a"))
    assert [" ".join([event, *(words[0][0] for words in [more] if words)]) for event, *more in made.told] == told
    assert made.running == running


@pytest.mark.parametrize(
    ("kind", "prof", "seen"),
    [("decode", None, "decode"), ("prefill", None, "prefill"), ("idle", None, None), ("idle", 1, "idle"), ("health check", None, None), ("health check", 1, "health check")],
)  # fmt: skip
def test_what_is_not_counted_is_nothing_outside_of_a_window(kind: str, prof: object, seen: str | None) -> None:
    assert probe(sglang.SglangRollout, prof=prof).observe((kind, {})) == seen
    assert probe(sglang.AlignedBatches).observe((kind, {})) == kind


@pytest.mark.parametrize(("running", "waiting", "ends"), [(True, [], True), (True, ["a"], False), (False, [], False)])
def test_an_idle_engine_ends_the_rollout_if_nobody_waits(running: bool, waiting: list[str], ends: bool) -> None:
    made = probe(sglang.SglangRollout, running=running, scheduler=Some(waiting_queue=waiting))
    made.idle()
    assert ([event for event, *_ in made.told], made.running) == (["end_rollout"] * ends, running and not ends)


class ReleaseMemoryOccupationReqInput: ...


class ProfileReq:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"ProfileReq({self.kind})"


def test_requests_that_release_memory_or_profile_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(sglang.SglangRollout, "wait", lambda _: waits.append(1))
    made = probe(sglang.SglangRollout, running=True)
    made.receive([Some(), ProfileReq("START_PROFILE"), ProfileReq("STOP_PROFILE"), ReleaseMemoryOccupationReqInput()])
    assert [words[:2] for words in made.told] == [
        ("yield_to", True),
        ("yield_to", False),
        ("end_rollout", "release_memory_occupation()"),
    ]
    assert (len(waits), made.running) == (2, False)


def test_a_window_gives_way_to_sglangs_own_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("open", "close", "finish"):
        monkeypatch.setattr(RolloutUnits, name, lambda _self, *_words, name=name: calls.append(name))
    made = probe(sglang.SglangRollout)
    made.yield_to(True)
    made.open(3)
    made.yield_to(False)
    made.open(3)
    assert (calls, made.will_start) == (["close", "finish", "open"], False)


@pytest.mark.parametrize(
    ("thread", "near", "open_at", "unit", "handed"),
    [
        (False, False, 3, 5, False), (True, False, None, 5, False), (True, False, 3, 2, False), (True, False, 3, 3, True), (True, False, 3, 5, True),
        (True, True, None, 0, True),
    ],
)  # fmt: skip
def test_the_forwards_thread_records_once_the_window_is_near(
    thread: bool, near: bool, open_at: int | None, unit: int, handed: bool
) -> None:
    queue: list[Any] = []
    here: list[str] = []
    made = probe(sglang.SglangRollout, near=near, open_at=open_at, unit=unit, put=queue.append if thread else None)
    made.scheduler = Some(_rlpatch_stage=lambda event, *words: here.append(f"thread {event} {words[0]}"))
    made.began = lambda word: here.append(f"here {word}")
    del made.hand_over
    made.hand_over("began", 7)
    for call in queue:
        call()
    assert here == ["thread began 7" if handed else "here 7"]
    assert made.near == handed


class Lengths:
    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def tolist(self) -> list[int]:
        return [*self.numbers]


def decoding(*lengths: tuple[int, int], total: int | None, mode: str = "DECODE") -> Any:
    made = batch(mode, seq_lens_sum=total)
    made.reqs = [Some(origin_input_ids=[0] * prompt, output_ids=[0] * output) for prompt, output in lengths]
    return made


CONTEXTS: dict[str, tuple[Any, list[int], int]] = {
    "lengths on the host": (batch("DECODE", seq_lens_cpu=Lengths(5, 9)), [5, 9], 2),
    "of a prefill": (batch("EXTEND", seq_lens_cpu=Lengths(5, 9), tokens=6), [5, 9], 6),
    "parts of prompts": (batch("EXTEND", prefix_lens=[3, 0], extend_lens=[2, 7], tokens=9), [5, 7], 9),
    "of requests": (decoding((3, 2), (4, 1), total=10), [5, 5], 2), "one output late": (decoding((3, 2), (4, 1), total=12), [6, 6], 2),
    "without a sum": (decoding((3, 2), (4, 1), total=None), [5, 5], 2), "drafts": (decoding((3, 2), total=5, mode="TARGET_VERIFY"), [5], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_batch_has_the_context_of_each_request(name: str) -> None:
    of_batch, contexts, tokens = CONTEXTS[name]
    made = probe(sglang.BatchMetadata)
    assert made.context_lengths(of_batch) == contexts
    expected = {"requests": len(contexts), "tokens": tokens, "longest": max(contexts), "context": sum(contexts)}
    assert made.contents_of(of_batch) == made.contents(("decode", expected)) == expected
    assert made.contents_of(batch("DECODE", "a", seq_lens_cpu=Lengths())) == {}


@pytest.mark.parametrize(("open_at", "unit", "held"), [(None, 5, False), (5, 4, False), (5, 5, True), (5, 6, True)])
def test_contents_are_kept_once_the_window_is_near(open_at: int | None, unit: int, held: bool) -> None:
    made = probe(sglang.BatchMetadata, open_at=open_at, unit=unit, contents_of_batch={})
    made.keep_contents(batch("DECODE", seq_lens_cpu=Lengths(5)))
    assert bool(made.contents_of_batch) == held


BOUNDS: dict[str, tuple[dict[str, Any], str, bool, int, tuple[int, bool]]] = {
    "short": ({"longest_bound": 10, "bound_known": True}, "DECODE", True, 12, (12, True)),
    "just short": ({"longest_bound": 96, "bound_known": True}, "DECODE", True, 98, (98, True)),
    "it may decide": ({"longest_bound": 97, "bound_known": True}, "DECODE", True, 50, (50, True)),
    "it decides nothing": ({"longest_bound": 97, "bound_known": True}, "DECODE", False, 99, (99, True)),
    "unknown": ({"longest_bound": 10}, "DECODE", True, 50, (50, True)),
    "a prefill": ({"longest_bound": 10, "bound_known": True}, "EXTEND", True, 50, (50, True)),
    "a longer one decodes": ({"longest_bound": 60, "bound_known": True}, "EXTEND", True, 50, (62, True)),
    "a prefill before": ({"longest_bound": 0}, "EXTEND", True, 50, (50, False)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_longest_context_of_a_batch_is_looked_up_where_it_may_decide(name: str) -> None:
    fields, mode, decisive, longest, after = BOUNDS[name]
    made = probe(sglang.BatchContexts, **{"growth": 2, "bound_known": False, **fields})
    assert made.longest_context(batch(mode, seq_lens_cpu=Lengths(50, 7)), 99, decisive) == longest
    assert (made.longest_bound, made.bound_known) == after
    made.forget()
    assert (made.longest_bound, made.bound_known) == (0, False)


def test_the_forwards_thread_runs_what_is_put_before_a_batch() -> None:
    calls: list[str] = []
    items: list[Any] = [lambda: calls.append("first"), lambda: calls.append("second"), ("batch", 1), ("batch", 2)]
    worker: Any = sglang.ForwardThread()
    worker.input_queue = Some(get=lambda: items.pop(0), put=items.append)
    worker._rlpatch_stage_listen(5)
    assert [worker.input_queue.get(), worker.input_queue.get()] == [("batch", 1), ("batch", 2)]
    assert (calls, worker._rlpatch_stage_replica) == (["first", "second"], 5)
    worker._rlpatch_stage_put("x")
    assert items == ["x"]
