"""The stages of a pipeline, what is between two ranks, and what one rank or stage has more of than another.

The vendor's own Bubble counts ``hcom_receive`` alone, and is 0 where a stage sends and receives at once. A kernel of
NCCL does not say whether its SendRecv is one of two ranks or an all-to-all: there the name that kineto writes decides.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from patcher.messages import Text
from patcher.traces import model
from patcher.traces.model import Collective, RankProfile
from patcher.traces.words import in_ms, listed, short

UNEQUAL = 1.1
"""Stages are unequal where one computes so many times as long as another."""

_EQUALLY = 0.8
"""Share of the largest excess of a kernel that the least has to have, both as factors, if all are equally longer."""

_STEADY = 0.25
"""Sends and receives are steady if they exceed the shortest ones of their sizes by at most this share of their time."""

_REPEATED = 4
"""Number of sends and receives of one size from which on their times are compared."""

_TRANSFER_GB_PER_S = 4
"""Rate in GB/s from which on steady sends and receives are transfer: slower ones may all wait equally long."""

_KINDS = re.compile(r"send|recv|hcom_(?:send|receive|batchSendRecv)", re.ASCII)


class Excess(NamedTuple):
    """Part of a step of which profiles have ``ns`` more than others: a key of `model.PARTS`, or `model.LEAD_IN`."""

    part: str
    ns: int


class PipelineStage(NamedTuple):
    """One stage of a pipeline: its number from 0, and its profiles."""

    number: int
    profiles: tuple[RankProfile, ...]

    @property
    def name(self) -> str:
        """Number and ranks of the stage in words."""
        ranks = listed([profile.rank for profile in self.profiles if profile.rank is not None])
        if len(self.profiles) == 1:
            return Text("stage {number} (rank {rank})", number=self.number, rank=ranks)
        return Text("stage {number} (ranks {ranks})", number=self.number, ranks=ranks)

    @property
    def computing_ns(self) -> int:
        """Mean time in ns in which a rank of the stage computes in a step."""
        return round(statistics.fmean(per_unit(profile, "compute_ns", "overlap_ns") for profile in self.profiles))


def between_two(collective: Collective) -> bool:
    """Tell whether a collective is a send or a receive between two ranks."""
    return bool(_KINDS.fullmatch(collective.kind or collective.name))


def transfer_rate(profile: RankProfile) -> float | None:
    """Return the mean rate in GB/s of sends and receives that are steady, and so fast that they hardly wait; else None.

    A ring of context-parallel ranks has such ones. Each size has to occur several times.
    """
    by_size = _by_size(profile)
    whole = sum(map(sum, by_size.values()))
    if not whole or None in by_size or any(len(times) < _REPEATED for times in by_size.values()):
        return None
    rate = sum((size or 0) * len(times) for size, times in by_size.items()) / whole
    return rate if _longer_than_shortest(by_size) <= _STEADY * whole and rate >= _TRANSFER_GB_PER_S else None


def waits_for_stages(profile: RankProfile) -> bool:
    """Tell whether over half of the time of sends and receives is waiting, by the vendor or the shortest of a size."""
    by_size = _by_size(profile)
    by_vendor = sum(collective.wait_ns or 0 for collective in profile.collectives if between_two(collective))
    return 2 * max(by_vendor, _longer_than_shortest(by_size)) > sum(map(sum, by_size.values()))


def _by_size(profile: RankProfile) -> Mapping[int | None, Sequence[int]]:
    """Return size in bytes → ns of each send or receive of it."""
    by_size: dict[int | None, list[int]] = defaultdict(list)
    for collective in profile.collectives:
        if between_two(collective):
            by_size[collective.size].append(collective.ns)
    return by_size


def _longer_than_shortest(by_size: Mapping[int | None, Sequence[int]]) -> int:
    """Return by how many ns sends and receives of known size exceed the shortest ones of their sizes."""
    return sum(sum(times) - len(times) * min(times) for size, times in by_size.items() if size is not None)


def per_unit(profile: RankProfile, *parts: str) -> int:
    """Return the ns of ``parts`` in the mean step of a profile; 0 without steps."""
    return profile.sum_ns(*parts) // (len(profile.units) or 1)


def stages(profiles: Sequence[RankProfile]) -> tuple[PipelineStage, ...]:
    """Return the stages of the pipelines that ``profiles`` form, in order; empty if sends and receives don't tell them.

    Ranks that send in one group are one pipeline, and the n-th of them by rank is stage n, as Megatron and torch number
    ranks. A stage has the ranks of all pipelines. Empty, too, if these are not equally long, if a profile is in none of
    them, or if a profile has no rank.
    """
    pipelines = _sources_by_pipeline(profiles)
    lengths = {len(pipeline) for pipeline in pipelines}
    if len(lengths) != 1 or lengths == {1} or sum(map(len, pipelines)) != len(profiles):
        return ()
    if any(profile.rank is None for profile in profiles):
        return ()
    columns = ([profile for profile in _sort_by_rank(profiles) if profile.source in pipeline] for pipeline in pipelines)
    return tuple(
        PipelineStage(number, tuple(_sort_by_rank(ranks))) for number, ranks in enumerate(zip(*columns, strict=True))
    )


def _sources_by_pipeline(profiles: Sequence[RankProfile]) -> list[set[str]]:
    """Return the pipelines of a run, each as the set of the sources of its profiles.

    Profiles that send or receive in the same group belong together; groups with a common profile are merged.
    A profile without sends and receives in a named group is in no pipeline, nor is one whose sends are all transfer.
    """
    linked: dict[str, set[str]] = defaultdict(set)
    for profile in profiles:
        if transfer_rate(profile) is not None:
            continue
        for collective in profile.collectives:
            if between_two(collective) and collective.group:
                linked[collective.group].add(profile.source)
    pipelines: list[set[str]] = []
    for members in linked.values():
        touching = [pipeline for pipeline in pipelines if pipeline & members]
        pipelines = [pipeline for pipeline in pipelines if pipeline not in touching] + [members.union(*touching)]
    return pipelines


def _sort_by_rank(profiles: Iterable[RankProfile]) -> list[RankProfile]:
    return sorted(profiles, key=lambda profile: profile.rank or 0)


def stage_of(pipeline: Sequence[PipelineStage]) -> Mapping[str, int]:
    """Return the source of a profile → the number of its stage."""
    return {profile.source: stage.number for stage in pipeline for profile in stage.profiles}


def excess(profiles: Collection[RankProfile], peers: Collection[RankProfile]) -> Excess | None:
    """Return the part of a step in which ``profiles`` exceed ``peers`` the most, and by how much; None if in none.

    Compared are the mean of ``profiles`` and the median of ``peers``, in ns per step. Communication does not count,
    because ranks wait in it; the time before the first kernel does. Overlap counts as computing, and launch latency as
    host-bound time if more of the excess is host-bound.
    """
    more = dict[str, int]()
    for part in (part for part in (*model.PARTS, model.LEAD_IN) if part not in ("communication_ns", "overlap_ns")):
        names = ("compute_ns", "overlap_ns") if part == "compute_ns" else (part,)
        mean = statistics.fmean(per_unit(profile, *names) for profile in profiles)
        more[part] = round(mean - statistics.median(per_unit(profile, *names) for profile in peers))
    if more["free_host_late_ns"] >= more["free_latency_ns"] > 0:
        more["free_host_late_ns"] += more["free_latency_ns"]
    best = Excess(*max(more.items(), key=itemgetter(1)))
    return best if best.ns > 0 else None


def excess_words(more: Excess) -> str:
    """Return the label of the part of an excess."""
    return model.FREE.get(more.part) or model.PARTS.get(more.part) or Text("time before the first kernel")


def longer_computing(profile: RankProfile, peers: Collection[RankProfile], ns: int) -> str:
    """Return why a profile computes ``ns`` longer per step than the median of the ``peers``, in words.

    All its large kernels take longer by about the same factor, or one kernel takes over half of the additional time.
    If the kernels run at different numbers of times, it may be that more kernels take over half of it. The words tell
    only the time if nothing of this holds.
    """
    alike, slow_ns, usual_ns = True, dict[str, float](), dict[str, float]()
    for kernel in profile.kernels:
        if kernel.kind == model.COMPUTE and kernel.ns >= model.LARGE_KERNEL * profile.computing_ns:
            calls, usual_ns[kernel.name] = model.lower_median([_calls_and_ns(other, kernel.name) for other in peers])
            slow_ns[kernel.name] = kernel.ns / len(profile.units)
            alike = alike and calls == kernel.calls / len(profile.units)
    time = Text("it computes {time} longer per step", in_ms(ns))
    if not alike:
        return _more_kernels(profile, peers, ns) or time
    if not any(usual_ns.values()):
        return time
    times = times_as_long(slow_ns, usual_ns)
    if times is not None:
        return Text("{excess}, and all its large kernels take {times:.2f} times as long", excess=time, times=times)
    name = max(slow_ns, key=lambda kernel: slow_ns[kernel] - usual_ns[kernel])
    if 2 * (slow_ns[name] - usual_ns[name]) <= ns:
        return time
    return Text("{excess}, mostly in the kernel {kernel}", excess=time, kernel=short(name))


def _more_kernels(profile: RankProfile, peers: Collection[RankProfile], ns: int) -> str:
    """Return in words that a profile runs more kernels than the ``peers``; "" if these take at most half of ``ns``.

    They count with the time that a call of the kernel takes in the others' median, else with its own.
    """
    count = usual_count = more_ns = 0.0
    for kernel in profile.kernels:
        if kernel.kind == model.COMPUTE:
            calls, own_ns = _calls_and_ns(profile, kernel.name)
            usual_calls, usual_ns = model.lower_median([_calls_and_ns(other, kernel.name) for other in peers])
            count += calls
            usual_count += usual_calls
            more_ns += (calls - usual_calls) * (usual_ns / usual_calls if usual_calls else own_ns / calls)
    if 2 * more_ns <= ns or count <= usual_count:
        return ""
    return Text(
        "it computes {time} longer per step, mostly because it runs more kernels ({count:,.0f} per step, the others"
        " {usual:,.0f})",
        time=in_ms(ns),
        count=count,
        usual=usual_count,
    )


def times_as_long(slow_ns: Mapping[str, float], usual_ns: Mapping[str, float]) -> float | None:
    """Return how many times as long all kernels take, if each takes longer by about the same factor; else None.

    Both map the name of a kernel to its ns. None for a single kernel, too.
    """
    factors = [slow_ns[name] / usual_ns[name] for name in slow_ns if usual_ns[name]]
    if len(factors) < 2 or not min(factors) - 1 >= _EQUALLY * (max(factors) - 1) > 0:
        return None
    return sum(slow_ns.values()) / sum(usual_ns.values())


def _calls_and_ns(profile: RankProfile, name: str) -> tuple[float, float]:
    """Return the calls of a kernel that computes, and its ns, both per step; 0 if it does not run."""
    kernels = (kernel for kernel in profile.kernels if (kernel.name, kernel.kind) == (name, model.COMPUTE))
    kernel = next(kernels, model.Kernel(name, model.COMPUTE, 0, 0))
    return kernel.calls / len(profile.units), kernel.ns / len(profile.units)
