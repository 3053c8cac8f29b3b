"""The meetings of ranks in their collectives, and what tells the profiles of one report apart."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import Text
from patcher.traces.analysis.pipelines import PipelineStage, between_two, stage_of, stages
from patcher.traces.model import Collective, Rank, RankProfile

Key = tuple[str, int, str, int]
"""Identity of a collective in a report: the source of its profile, step, group, and number within the group."""


class Meetings(NamedTuple):
    """The meetings of ranks in their collectives.

    ``ranks`` are the sums of each rank, empty without a meeting; ``exact`` tells whether all groups are named;
    ``waits`` maps a collective to the ns for which it waited. ``across`` are those that join stages of the
    ``pipeline``: they count for no rank.
    """

    ranks: tuple[Rank, ...]
    exact: bool
    waits: Mapping[Key, int]
    across: frozenset[Key]
    pipeline: tuple[PipelineStage, ...]


class _Meeting(NamedTuple):
    """One meeting: source of a profile → its collective; ``first`` if it is the first one of a rank in its step."""

    members: Mapping[str, Collective]
    first: bool

    @property
    def waits(self) -> dict[str, int]:
        """Source of a profile → ns for which it waited for the last one."""
        shortest = min(collective.ns for collective in self.members.values())
        return {source: collective.ns - shortest for source, collective in self.members.items()}


def match_collectives(profiles: Sequence[RankProfile]) -> Meetings:
    """Match the collectives of the ranks of a run, and return how long each rank waited in them.

    The n-th collective of each group and step is the same one on all ranks, except sends and receives. All ranks leave
    it together, so a rank waited by as much as its collective took longer than the shortest one. Left out are different
    collectives in a step of a group, and from the sums by rank those between pipeline stages. Nothing is matched for a
    single profile, or if several are of one rank.
    """
    by_group = _collectives_by_group(profiles)
    pipeline = () if unrelated(profiles) else stages(profiles)
    stage = stage_of(pipeline)
    waits: dict[Key, int] = {}
    across: set[Key] = set()
    within: list[_Meeting] = []
    for meeting in _meetings(by_group, profiles):
        keys = {source: (source, *_place(collective)) for source, collective in meeting.members.items()}
        waits.update((keys[source], ns) for source, ns in meeting.waits.items())
        if len({stage.get(source) for source in keys}) > 1:
            across.update(keys.values())
        else:
            within.append(meeting)
    exact = all(group for (_, group), members in by_group.items() if _same_order(members))
    ranks = _sum_by_rank(within, profiles) if within else ()
    return Meetings(ranks, exact, waits, frozenset(across), pipeline)


def _sum_by_rank(meetings: Sequence[_Meeting], profiles: Sequence[RankProfile]) -> tuple[Rank, ...]:
    """Return for each rank, summed over ``meetings``, how long it waited, and how long other ranks waited for it.

    A meeting is one collective with all its ranks; others wait for a rank only if it alone came last. The profilers
    start at different times, which lengthens the first meeting of the recording. So its waits count at most as much as
    those in the first meeting of any later step. The result is sorted by rank.
    """
    usual = _longest_first_waits(meetings, profiles)
    count, waited, awaited, last, at_first = tuple(Counter[str]() for _ in range(5))
    awaited_in: dict[str, Counter[int]] = {profile.source: Counter() for profile in profiles}
    alone_in: dict[str, Counter[int]] = {profile.source: Counter() for profile in profiles}
    for meeting in meetings:
        more = meeting.waits
        starts = meeting.first and any(_is_in_first_step(profiles, source, meeting.members[source]) for source in more)
        if starts and usual:
            more = {source: min(ns, usual.get(source, ns)) for source, ns in more.items()}
        count.update(more.keys())
        waited.update(more)
        came_last = [source for source, ns in meeting.waits.items() if not ns]
        if len(came_last) == 1:  # where several do, the others wait for none of them more than for another
            last[came_last[0]] += 1
            awaited[came_last[0]] += sum(more.values())
            unit = meeting.members[came_last[0]].unit
            awaited_in[came_last[0]][unit] += sum(more.values())
            second = min(ns for source, ns in more.items() if source != came_last[0])
            alone_in[came_last[0]][unit] += second * (len(more) - 1)
            at_first[came_last[0]] += sum(more.values()) if starts else 0
    rows = (
        Rank(
            profile.rank,
            profile.source,
            len(profile.units),
            profile.median_ns,
            count[profile.source],
            waited[profile.source],
            awaited[profile.source],
            last[profile.source],
            at_first[profile.source],
            awaited_in[profile.source],
            alone_in[profile.source],
        )
        for profile in profiles
    )
    return tuple(sorted(rows, key=lambda row: (row.rank is None, row.rank or 0, row.source)))


def _place(collective: Collective) -> tuple[int, str, int]:
    return collective.unit, collective.group, collective.index


def _meetings(
    by_group: Mapping[tuple[int, str], Mapping[str, Sequence[Collective]]], profiles: Sequence[RankProfile]
) -> Iterator[_Meeting]:
    """Yield each collective that several ranks share as a `_Meeting`, if the ranks' collectives match in that step.

    ``by_group`` maps (step, group of ranks) to source of a profile → its collectives in order.
    """
    firsts: dict[tuple[str, int], tuple[int, str, int]] = {}
    for profile in profiles:
        for collective in profile.collectives:
            if not between_two(collective):
                firsts.setdefault((profile.source, collective.unit), _place(collective))
    for members in itertools.chain(
        *(_matching_collectives(group, members) for (_, group), members in by_group.items())
    ):
        for row in zip(*members.values(), strict=True):
            meeting = dict(zip(members, row, strict=True))
            first = any(firsts[source, collective.unit] == _place(collective) for source, collective in meeting.items())
            yield _Meeting(meeting, first)


def _matching_collectives(
    group: str, members: Mapping[str, Sequence[Collective]]
) -> Iterator[Mapping[str, Sequence[Collective]]]:
    """Yield source → collectives of a group that all its ranks have in the same order, equally many of each.

    ``members`` maps the source of each rank to its collectives. If the group has no name, and its ranks don't agree,
    the collectives of each kernel name are compared separately. On each rank, kernels on parallel streams begin in
    another order. Nothing if none agree.
    """
    if _same_order(members):
        yield members
    elif not group:
        names = dict.fromkeys(collective.name for member in members.values() for collective in member)
        for name in names:
            chosen = {
                source: [collective for collective in member if collective.name == name]
                for source, member in members.items()
            }
            if _same_order(chosen):
                yield chosen


def _is_in_first_step(profiles: Sequence[RankProfile], source: str, collective: Collective) -> bool:
    """Tell whether a collective is in the first step of the profile with that source."""
    return any(profile.source == source and profile.units[0].number == collective.unit for profile in profiles)


def _longest_first_waits(meetings: Iterable[_Meeting], profiles: Sequence[RankProfile]) -> dict[str, int]:
    """Return source of a profile → its longest wait in ns in the first collective of a step.

    The first step is left out. Empty if there is only one step.
    """
    usual: dict[str, int] = {}
    for meeting in meetings:
        for source, ns in meeting.waits.items():
            if meeting.first and not _is_in_first_step(profiles, source, meeting.members[source]):
                usual[source] = max(usual.get(source, 0), ns)
    return usual


def _collectives_by_group(
    profiles: Sequence[RankProfile],
) -> Mapping[tuple[int, str], Mapping[str, Sequence[Collective]]]:
    """Return (step, group) → source of a profile → its collectives in order, without sends and receives.

    Empty for a single profile, or if several profiles are of one rank or of different runs: these did not meet.
    """
    by_group: dict[tuple[int, str], dict[str, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    ranks = [profile.rank for profile in profiles]
    if (
        len(profiles) > 1 and len(set(ranks)) == len(ranks) and not unrelated(profiles)
    ):  # several profiles of one rank did not meet
        for profile in profiles:
            for collective in profile.collectives:
                if not between_two(collective):
                    by_group[collective.unit, collective.group][profile.source].append(collective)
    return by_group


def unrelated(profiles: Sequence[RankProfile]) -> bool:
    """Tell whether ``profiles`` are of different runs: their runs have different numbers of ranks."""
    return len({profile.world for profile in profiles} - {None}) > 1


def lacks_common_step(profiles: Sequence[RankProfile]) -> bool:
    """Tell whether several profiles have no step in common; False if any of them has no marks of steps."""
    if len(profiles) < 2 or not all(profile.marks and profile.units for profile in profiles):
        return False
    return not set.intersection(*({unit.number for unit in profile.units} for profile in profiles))


def missing_ranks(profiles: Sequence[RankProfile]) -> list[int]:
    """Return the ranks of the run that are in none of ``profiles``; empty if their number, or a rank, is unknown."""
    reported, worlds = [profile.rank for profile in profiles], {profile.world for profile in profiles}
    world = worlds.pop() if len(worlds) == 1 else None
    return sorted(set(range(world or 0)).difference(reported)) if None not in reported else []


def lacks_ranks(collective: Collective, profiles: Sequence[RankProfile]) -> bool | None:
    """Tell whether ranks of the collective's group, or without its size ranks of the run, are not in ``profiles``.

    None if neither the size of the group nor that of the run is known.
    """
    sizes = [profile.world for profile in profiles] if collective.ranks is None else [collective.ranks]
    return None if None in sizes else max(size or 0 for size in sizes) > len(profiles)


def _same_order(members: Mapping[str, Sequence[Collective]]) -> bool:
    """Tell whether there are several ranks with the same collectives in the same order."""
    return (
        len(members) > 1 and len({tuple(collective.name for collective in member) for member in members.values()}) == 1
    )


def labelled(profiles: Iterable[RankProfile]) -> list[RankProfile]:
    """Return the profiles with labels that tell them apart, as short as possible; a single profile stays as it is.

    Candidates are the rank, stage and rank, rank and steps (if all have a rank), and ever longer ends of the paths.
    """
    every = list(profiles)
    if len(every) < 2:
        return every
    ranks = [profile.rank_name for profile in every]
    paths = [profile.source.rstrip("/").split("/") for profile in every]
    candidates: list[list[str]] = [
        ["/".join(path[-depth:]) for path in paths] for depth in range(1, max(map(len, paths)) + 1)
    ]
    if all(ranks):
        spans: list[str] = [
            Text("{rank}, {steps}", rank=rank, steps=profile.span) for rank, profile in zip(ranks, every, strict=True)
        ]
        stages = [f"{profile.part} {rank}".strip() for rank, profile in zip(ranks, every, strict=True)]
        candidates = [ranks, stages, spans, *candidates]
    labels = next((labels for labels in candidates if len(set(labels)) == len(labels)), candidates[-1])
    return [dataclasses.replace(profile, label=label) for profile, label in zip(every, labels, strict=True)]
