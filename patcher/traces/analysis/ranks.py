"""The meetings of ranks in their collectives, and what tells the profiles of one report apart."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from patcher.messages import Text
from patcher.traces.model import Collective, Rank, RankProfile

Key = tuple[str, int, str, int]
"""Identity of a collective in a report: the source of its profile, unit, group, and number within the group."""


def met(profiles: Sequence[RankProfile]) -> tuple[tuple[Rank, ...], bool, dict[Key, int]]:
    """Match the collectives of ranks; return the sums of each rank, whether all groups are named, and the waits in ns.

    The n-th collective of each group and unit is one meeting of all ranks. All end together, so a rank waited by as
    much as its collective took longer than the shortest one. A unit in which the ranks differ in the collectives of a
    group is left out. Without a meeting there are no sums.
    """
    together = _together(profiles)
    waits: dict[Key, int] = {}
    sums = count, waited, awaited, last = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for members in filter(_alike, together.values()):
        for meeting in zip(*members.values(), strict=True):
            shortest = min(collective.ns for collective in meeting)
            more = {source: collective.ns - shortest for source, collective in zip(members, meeting, strict=True)}
            came_last = [source for source, ns in more.items() if not ns]
            for (source, ns), of_rank in zip(more.items(), meeting, strict=True):
                waits[source, of_rank.unit, of_rank.group, of_rank.index] = ns
            count.update(more.keys())
            waited.update(more)
            if len(came_last) == 1:  # where several do, the others wait for none of them more than for another
                last[came_last[0]] += 1
                awaited[came_last[0]] += sum(more.values())
    if not count:
        return (), True, waits
    rows = (
        Rank(
            profile.rank,
            profile.source,
            len(profile.units),
            profile.median_ns,
            *(column[profile.source] for column in sums),
        )
        for profile in profiles
    )
    ordered = sorted(rows, key=lambda row: (row.rank is None, row.rank or 0, row.source))
    return tuple(ordered), all(group for _, group in together), waits


def _together(profiles: Sequence[RankProfile]) -> Mapping[tuple[int, str], Mapping[str, Sequence[Collective]]]:
    """Return (unit, group) → source of a profile → its collectives; empty for one profile, or several of one rank."""
    together: dict[tuple[int, str], dict[str, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    ranks = [profile.rank for profile in profiles]
    if len(profiles) > 1 and len(set(ranks)) == len(ranks):  # several profiles of one rank did not meet
        for profile in profiles:
            for collective in profile.collectives:
                together[collective.unit, collective.group][profile.source].append(collective)
    return together


def missing(profiles: Sequence[RankProfile]) -> list[int]:
    """Return the ranks of the run that are in none of ``profiles``; empty if their number, or a rank, is unknown."""
    reported, worlds = [profile.rank for profile in profiles], {profile.world for profile in profiles}
    world = worlds.pop() if len(worlds) == 1 else None
    return sorted(set(range(world or 0)).difference(reported)) if None not in reported else []


def _alike(members: Mapping[str, Sequence[Collective]]) -> bool:
    """Tell whether there are several ranks with the same collectives in the same order."""
    return (
        len(members) > 1 and len({tuple(collective.name for collective in member) for member in members.values()}) == 1
    )


def labelled(profiles: Iterable[RankProfile]) -> list[RankProfile]:
    """Label several profiles so that they differ: by rank, with stage or units, or by the last parts of their paths."""
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
            Text("{rank}, {units}", rank, profile.span) for rank, profile in zip(ranks, every, strict=True)
        ]
        stages = [f"{profile.part} {rank}".strip() for rank, profile in zip(ranks, every, strict=True)]
        candidates = [ranks, stages, spans, *candidates]
    labels = next((labels for labels in candidates if len(set(labels)) == len(labels)), candidates[-1])
    return [dataclasses.replace(profile, label=label) for profile, label in zip(every, labels, strict=True)]
