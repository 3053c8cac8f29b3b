"""Hand-overs of work between processes: a load balancer, the return of an agent loop, and the end of a weight sync."""

from __future__ import annotations

import pytest

from patcher.timeline.causes import ProcessRank, sum_step_times, verdicts
from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import TimeRange
from patcher.timeline.path import PathPiece, critical_path
from patcher.timeline.shares import sync_work
from patcher.timeline.step_records import StepRecords

MS = 1_000
DRIVER, AGENT, OTHER_AGENT, BALANCER, SERVER, OTHER_SERVER, ENGINE, OTHER_ENGINE, TRAINER, OTHER_TRAINER = range(10)
ROLES = ("driver", "agent", "agent", "balancer", "server", "server", "engine", "engine", "trainer", "trainer")
REPLICAS = (None, None, None, None, 0, 1, 0, 1, None, None)
RANKS = (None,) * 8 + (0, 1)


class Spans(list[KeptSpan]):
    """Spans in milliseconds, with ids as they come."""

    def put(
        self, process: int, kind: str, name: str, start: float, end: float, parent: int = 0, amount: int | None = None,
        key: str = "",
    ) -> int:  # fmt: skip
        identity = len(self) + 1
        times = round(start * MS), round(end * MS)
        self.append(KeptSpan(*times, kind, name, amount, identity, parent, process, key=key))
        return identity

    def records(self, end: float, stalls: dict[int, tuple[float, float]] | None = None) -> StepRecords:
        iterations = {ENGINE: IterationColumns(), OTHER_ENGINE: IterationColumns()}
        stopped = {
            process: [TimeRange(round(low * MS), round(high * MS))] for process, (low, high) in (stalls or {}).items()
        }
        return StepRecords(0, round(end * MS), DRIVER, self, iterations, ROLES, REPLICAS, stalls=stopped)


def short(pieces: list[PathPiece]) -> list[tuple[float, float, str, str, int | None]]:
    return [(piece.start / MS, piece.end / MS, piece.role, piece.what, piece.process) for piece in pieces]


BUSY = range(5, 290, 5)


def routed(
    asks: float, answers: float, serves: float, other_serves: float, other_answers: float = 7, key: str = "a"
) -> Spans:
    """A request from 2 ms on: the load balancer chooses a server from ``asks`` to ``answers``; it ``serves`` until 395 ms.

    For another request, it chooses the other replica at ``other_answers``, which begins at ``other_serves``.
    """
    spans = Spans()
    spans.put(DRIVER, "phase", "gen", 0, 400)
    trajectory = spans.put(AGENT, "trajectory", "", 1, 399)
    spans.put(AGENT, "request", "generate", 2, 398, trajectory, 50, "a")
    spans.put(AGENT, "request", "generate", 2.5, 390, trajectory, 51, "b")
    spans.put(BALANCER, "route", "acquire_server", asks, answers, key=key)
    spans.put(BALANCER, "route", "acquire_server", other_answers - 0.5, other_answers, key="b")
    spans.put(SERVER, "serve", "generate", serves, 395, amount=50)
    spans.put(OTHER_SERVER, "serve", "generate", other_serves, 380, amount=51)
    return spans


@pytest.mark.parametrize(
    ("spans", "agent_goes_on", "stalls", "longest"),
    [
        (routed(290, 291, 300, 300, 292), True, {}, (2, 290, "balancer", "start of acquire_server", BALANCER)),
        (routed(290, 291, 300, 300, 292), False, {}, (2, 290, "balancer", "start of acquire_server", BALANCER)),
        (routed(5, 290, 300, 300, 292), True, {}, (5, 290, "balancer", "acquire_server", BALANCER)),
        (routed(5, 6, 300, 9), True, {}, (6, 300, "server", "start of generate", SERVER)),
        (routed(5, 6, 300, 299), True, {}, (6, 300, "unrecorded", "start of generate", None)),
        (routed(290, 291, 300, 300, 292), False, {AGENT: (10, 280)}, (2, 290, "agent", "request", AGENT)),
        (routed(5, 6, 300, 299, 298), True, {}, (6, 300, "server", "start of generate", SERVER)),
        (routed(290, 291, 300, 300, 7, "c"), True, {}, (2, 300, "unrecorded", "start of generate", None)),
    ],
    ids=[
        "it begins late", "it begins late, and nobody does anything", "it takes long", "one server begins late",
        "both servers begin late", "the agent loop stood still", "the other waits for the load balancer",
        "the routing of another request",
    ],
)  # fmt: skip
def test_until_it_has_chosen_a_server_the_load_balancer_is_waited_for(
    spans: Spans,
    agent_goes_on: bool,
    stalls: dict[int, tuple[float, float]],
    longest: tuple[float, float, str, str, int | None],
) -> None:
    for at in BUSY if agent_goes_on else ():
        spans.put(AGENT, "sleep", "tool", at, at + 1)
    path = short(critical_path(spans.records(400, stalls)))
    assert max((piece for piece in path if piece[1] <= 300), key=lambda piece: piece[1] - piece[0]) == longest


def batches(
    called: float = 2, begins: float = 3, ends: float = 60, returns: float = 62, other_returns: float = 52
) -> Spans:
    """A rollout of two agent loops: the first one's only trajectory ``begins`` after its call, and ``ends``.

    It then ``returns`` its batch. The other one's trajectory ends at 50 ms, and it returns at ``other_returns``.
    """
    spans = Spans()
    spans.put(DRIVER, "phase", "gen", 0, 400)
    for process, since, first, last, back in (
        (AGENT, called, begins, ends, returns), (OTHER_AGENT, 2, 3, 50, other_returns)
    ):  # fmt: skip
        batch = spans.put(process, "batch", "generate_sequences", since, back)
        spans.put(process, "trajectory", "", first, last, batch)
    return spans


@pytest.mark.parametrize(
    ("spans", "stalls", "tail"),
    [
        (
            batches(returns=390),
            {},
            [
                (3, 60, "agent", "trajectory", AGENT),
                (60, 390, "agent", "processing after the last trajectory", AGENT),
                (390, 400, "driver", "call generate_sequences", DRIVER),
            ],
        ),
        (
            batches(other_returns=390),
            {},
            [
                (3, 50, "agent", "trajectory", OTHER_AGENT),
                (50, 390, "agent", "processing after the last trajectory", OTHER_AGENT),
                (390, 400, "driver", "call generate_sequences", DRIVER),
            ],
        ),
        (
            batches(),
            {},
            [
                (3, 60, "agent", "trajectory", AGENT),
                (60, 62, "agent", "processing after the last trajectory", AGENT),
                (62, 400, "driver", "call generate_sequences", DRIVER),
            ],
        ),
        (batches(begins=380, ends=399, returns=400), {}, [(0, 380, "agent", "start of trajectory", AGENT)]),
        (
            batches(called=370, begins=380, ends=399, returns=400),
            {DRIVER: (10, 360)},
            [(50, 370, "driver", "gen", DRIVER), (370, 380, "agent", "start of trajectory", AGENT)],
        ),
    ],
    ids=["an agent loop", "the other agent loop", "the driver", "before a trajectory", "before the call"],
)
def test_an_agent_loop_has_its_time_before_and_after_its_trajectories(
    spans: Spans, stalls: dict[int, tuple[float, float]], tail: list[tuple[float, float, str, str, int | None]]
) -> None:
    path = short(critical_path(spans.records(400, stalls)))
    found = [piece for piece in path if piece in tail]
    assert found == tail, path


def sync(
    *,
    opens: float = 0,
    takes: float = 0,
    frees: float = 0,
    calls: float = 0,
    clears: float = 0,
    stalls: dict[int, tuple[float, float]] | None = None,
    waited: int | None = 20,
) -> StepRecords:
    """A step of one weight sync, in which the second rank, its engine or its server takes so many milliseconds more.

    Before its engine ``opens`` the buffer or ``takes`` the weights, until the rank ``frees`` its buffers, until its
    server ``calls`` the clearing of its cache, or while that ``clears`` it. ``stalls`` is when processes ran nothing,
    ``waited`` how long the first rank waits in collectives: with a wait, all have gathered at the end of its sync.
    """
    spans = Spans()
    end = 130 + opens + takes + frees + calls + clears
    spans.put(DRIVER, "call", "update_weights", 0, end)
    for rank, engine, server in ((TRAINER, ENGINE, SERVER), (OTHER_TRAINER, OTHER_ENGINE, OTHER_SERVER)):
        slow = rank == OTHER_TRAINER
        opened = 6 + slow * opens
        loads = 64 + opened + slow * takes
        sent = loads + 24 + slow * frees
        cleared = sent + 4 + slow * calls
        answered = cleared + 6 + slow * clears
        work = spans.put(rank, "work", "update_weights", 2, answered + 6)
        part = spans.put(rank, "sync", "update_weights", 3, answered + 4, work)
        sending = spans.put(rank, "send", "send_weights", 4, sent, part)
        spans.put(rank, "send", "init_buffer", 4.5, opened, sending)
        receives = spans.put(engine, "sync", "update_weights_from_ipc", 5, loads + 22)
        spans.put(engine, "sync", "_update_weights", loads, loads + 20, receives)
        spans.put(server, "sync", "clear_kv_cache", cleared, answered)
    for at, span in enumerate(spans):
        if (span.process, span.kind) == (TRAINER, "sync"):
            spans[at] = span._replace(waited=waited)
    return spans.records(end, stalls)


TRAINER_HAS_IT = ("trainer", "update_weights", ProcessRank(None, 1))


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (sync(calls=900), ("server", "start of clear_kv_cache", ProcessRank(1, None))),
        (sync(clears=900), ("server", "clear_kv_cache", ProcessRank(1, None))),
        (sync(frees=900), TRAINER_HAS_IT),
        (sync(calls=900, stalls={OTHER_TRAINER: (110, 990)}), TRAINER_HAS_IT),
        (sync(takes=900, waited=None), TRAINER_HAS_IT),
        (sync(takes=900), "end of update_weights"),
        (sync(opens=900, waited=None), "init_buffer"),
        (sync(opens=900, waited=None, stalls={OTHER_TRAINER: (10, 890)}), TRAINER_HAS_IT),
        (
            sync(opens=2900, waited=None, stalls={OTHER_ENGINE: (1600, 2900)}),
            ("engine", "start of _update_weights", ProcessRank(1, None)),
        ),
        (sync(opens=2900, waited=None, stalls={OTHER_ENGINE: (2500, 2900)}), "init_buffer"),
        (
            sync(opens=2900, waited=None, stalls={OTHER_ENGINE: (1600, 2900), OTHER_TRAINER: (1500, 2900)}),
            "init_buffer",
        ),
    ],
    ids=[
        "the server begins late", "the server", "the trainer's buffers", "a trainer that stood still",
        "no rank is known to wait", "all ranks have gathered", "the engine opens the buffer, or the trainer makes it",
        "a trainer that stood still before", "an engine that stood still", "an engine that stood still for a part",
        "both stood still",
    ],
)  # fmt: skip
def test_a_slow_weight_sync_is_of_the_process_that_recorded_it(
    slow: StepRecords, expected: str | tuple[str, str, ProcessRank]
) -> None:
    steps = [*[sync()] * 4, slow]
    amounts = [sum_step_times(critical_path(records), (None, 0), sync_work(records), "") for records in steps]
    *_, verdict = verdicts(amounts, [ProcessRank(*pair) for pair in zip(REPLICAS, RANKS, strict=True)])
    cause = verdict.limited_by
    if isinstance(expected, str):
        assert (verdict.verdict, cause, expected in verdict.why) == ("not known", None, True)
        return
    assert cause is not None
    assert (cause.role, cause.what, (cause.replica, cause.rank)) == expected
    assert cause.excess_seconds == pytest.approx(slow.end / 1e6 - 0.13, abs=0.08)
