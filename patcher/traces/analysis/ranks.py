"""How ranks met in their collectives, and what tells the profiles of one report apart."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from patcher.messages.text import Text
from patcher.traces.model import Collective, Rank, RankProfile

Key = tuple[str, int, str, int]
"""What names a collective within a report: the source of its profile, unit, group, and which one it is there."""


def met(profiles: Sequence[RankProfile]) -> tuple[tuple[Rank, ...], bool]:
    """Return who waited for whom, by the n-th collective of each group and unit; and whether the groups are known.

    All ranks of a collective end together, so how much longer it took one rank than the one that came last is what
    that rank waited. A unit in which the ranks differ in the collectives of a group is left out.
    """
    together = _together(profiles)
    sums = count, waits, awaited, last = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for meeting in _meetings(filter(_alike, together.values())):
        times = {source: collective.ns for source, collective in meeting.items()}
        shortest = min(times.values())
        came_last = [source for source, ns in times.items() if ns == shortest]
        count.update(times.keys())
        waits.update({source: ns - shortest for source, ns in times.items()})
        if len(came_last) == 1:  # where several do, the others wait for none of them more than for another
            last[came_last[0]] += 1
            awaited[came_last[0]] += sum(times.values()) - shortest * len(times)
    if not count:
        return (), True
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
    return tuple(ordered), all(group for _, group in together)


def waits(profiles: Sequence[RankProfile]) -> dict[Key, int]:
    """For how long each collective that several ranks have waited for the last of them."""
    times: dict[Key, int] = {}
    for meeting in _meetings(filter(_alike, _together(profiles).values())):
        shortest = min(collective.ns for collective in meeting.values())
        for source, collective in meeting.items():
            times[source, collective.unit, collective.group, collective.index] = collective.ns - shortest
    return times


def _together(profiles: Sequence[RankProfile]) -> Mapping[tuple[int, str], Mapping[str, Sequence[Collective]]]:
    """Unit and group → source of a profile → its collectives there; nothing where the profiles did not meet."""
    together: dict[tuple[int, str], dict[str, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    ranks = [profile.rank for profile in profiles]
    if len(profiles) > 1 and len(set(ranks)) == len(ranks):  # several profiles of one rank did not meet
        for profile in profiles:
            for collective in profile.collectives:
                together[collective.unit, collective.group][profile.source].append(collective)
    return together


def _meetings(groups: Iterable[Mapping[str, Sequence[Collective]]]) -> Iterator[dict[str, Collective]]:
    """Yield each collective as each profile has it, by source."""
    for members in groups:
        for turn in zip(*members.values(), strict=True):
            yield dict(zip(members, turn, strict=True))


def missing(profiles: Sequence[RankProfile]) -> list[int]:
    """Return the ranks of the run that are in none of ``profiles``; none where nobody wrote down how many there are."""
    reported, worlds = [profile.rank for profile in profiles], {profile.world for profile in profiles}
    world = worlds.pop() if len(worlds) == 1 else None
    return sorted(set(range(world or 0)).difference(reported)) if None not in reported else []


def _alike(members: Mapping[str, Sequence[Collective]]) -> bool:
    """Tell whether several ranks have the same collectives."""
    return (
        len(members) > 1 and len({tuple(collective.name for collective in member) for member in members.values()}) == 1
    )


def labelled(profiles: Iterable[RankProfile]) -> list[RankProfile]:
    """Label profiles so that they differ: by rank, with stage or units, or by the last names of their paths."""
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
