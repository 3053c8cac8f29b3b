"""Files that a run lacks: those of ranks, replicas and roles that other files show to exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from patcher.messages import Text
from patcher.timeline.files import KeptSpan
from patcher.timeline.runs import Process, by_role
from patcher.timeline.step_records import StepRecords

MANY = 8
"""Numbers of ranks or replicas that a text lists."""

LOST = 0.1
"""Share of requests or rewards without a counterpart above which a process is missing: a killed one loses fewer."""


@dataclass
class Counterparts:
    """Numbers of requests, of serve spans, of rewards that wait for another process, and of those that it records."""

    counts: Counter[str] = field(default_factory=Counter)

    def feed(self, records: StepRecords) -> None:
        """Count requests, their handling by servers, and rewards of a step, to find those without a counterpart."""
        for kind in ("request", "serve", "reward"):
            for span in records.by_kind[kind]:
                if records.start <= span.start < records.end:
                    self.counts[_count_key(records, span)] += 1

    def count_unmatched(self, kind: str, counterpart: str) -> int:
        """Return how many spans of ``kind`` have no counterpart: the surplus over the spans of kind ``counterpart``.

        0 if the surplus is at most a tenth of all of ``kind``: the end of a process may have cut off that many.
        """
        unmatched = self.counts[kind] - self.counts[counterpart]
        return unmatched if unmatched > LOST * self.counts[kind] else 0


def _count_key(records: StepRecords, span: KeptSpan) -> str:
    """Return the key of a span in ``counts``: its kind, or for an agent loop's reward whether it waits for a worker."""
    if span.kind != "reward" or records.roles[span.process] == "reward":
        return span.kind
    inner = records.children_of(span)
    return "waiting reward" if any(child.kind == "phase" for child in inner) else "own reward"


def trainer_texts(missing_ranks: dict[int, list[int]]) -> Iterator[str]:
    """Yield a text on the trainer ranks that left no file, for each world size in ``missing_ranks`` (size → ranks)."""
    for size, ranks in missing_ranks.items():
        yield Text(
            "timeline files are missing for trainer ranks {ranks} (of {size}), so stragglers among them cannot be"
            " detected",
            ranks=_listed(ranks),
            size=size,
        )


def role_texts(processes: Sequence[Process], counterparts: Counterparts) -> Iterator[str]:
    """Yield texts on roles that must have run but left too few files or none, and on what is unknown therefore.

    A driver that calls workers shows that there are trainers and engines. A process with VERL_REPLICA_RANK shows that
    there are verl's servers, engines and agent loops. ``counterparts`` tells of requests and rewards that only one side
    recorded.
    """
    places = by_role(processes)
    if any("call" in part.kinds for at in places.get("driver", ()) for part in processes[at].parts):
        if "trainer" not in places:
            yield Text("no trainer wrote a timeline file, so it is unknown what the calls to trainers waited for")
        if "engine" not in places:
            yield Text("no engine wrote a timeline file, so it is unknown what requests waited for")
    if any(process.head.number("VERL_REPLICA_RANK") is not None for process in processes):
        yield from _rollout_texts(processes, places, counterparts)
    if counterparts.counts["waiting reward"] and not counterparts.counts["reward"]:
        yield Text("no reward worker wrote a timeline file, so slow or late rewards cannot be detected")
    elif count := counterparts.count_unmatched("waiting reward", "reward"):
        yield Text(
            "{count:,} rewards came from workers that wrote no timeline file, so slow rewards of these workers cannot"
            " be detected",
            count,
        )


def _rollout_texts(
    processes: Sequence[Process], places: Mapping[str, Sequence[int]], counterparts: Counterparts
) -> Iterator[str]:
    """Yield texts on verl's engines, servers and agent loops that left no file, and on what is unknown therefore."""
    run = {processes[at].replica for at in places.get("engine", ())}
    serving = (process for process in processes if any("serve" in part.kinds for part in process.parts))
    served = {process.replica for process in serving}
    if run and served - run:
        yield Text(
            "no engine of replicas {replicas} wrote a timeline file, so it is unknown what the requests to these"
            " replicas waited for",
            _listed(served - run),
        )
    if not served:
        yield Text(
            "no server wrote a timeline file, so it is unknown how long requests waited in the server or before it"
        )
    elif run - served:
        yield Text(
            "no server of replicas {replicas} wrote a timeline file, so it is unknown how long requests waited there",
            _listed(run - served),
        )
    elif count := counterparts.count_unmatched("request", "serve"):
        yield Text(
            "{count:,} requests went to servers that wrote no timeline file, so it is unknown what the requests"
            " waited for there",
            count,
        )
    if served and not counterparts.counts["request"]:
        yield Text("no agent loop wrote a timeline file, so it is unknown what trajectories did between requests")
    elif count := counterparts.count_unmatched("serve", "request"):
        yield Text(
            "{count:,} requests came from agent loops that wrote no timeline file, so it is unknown what those"
            " agent loops did",
            count,
        )


def _listed(numbers: Iterable[int | None]) -> str:
    ordered = sorted(number for number in numbers if number is not None)
    return ", ".join(map(str, ordered[:MANY])) + (" …" if len(ordered) > MANY else "")
