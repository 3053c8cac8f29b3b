"""The times of collectives for what they carry: which one stands out among those of its kind, and why.

Of a kind and a group, a larger message takes no less time than a smaller one, and moves no fewer bytes in a
nanosecond. So each neighbour bounds from above how long a message needs: as long as itself, times how many times as
large that is. What is usual is the lower median of the bounds by those that are nearest in size.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from patcher.messages import Text, sentences
from patcher.traces.analysis.ranks import Key, lacks_ranks
from patcher.traces.messages import LinkPiece
from patcher.traces.model import EXACT, Collective, Diagnosis, RankProfile, lower_median
from patcher.traces.words import duration, in_ms, percent, short, size

SLOW = 2.0
"""A collective that takes so many times what is usual stands out."""

FEWEST, NEAREST = 3, 9
"""Collectives of a kind below which nothing is usual, and how many of them are compared with one, or more of a size."""

NOTABLE = 0.05
"""The share of the time from which on it is worth a finding."""

ALIGNED = 512
"""Bytes of which the size of a piece should be a multiple, by the limit of msprof-analyze's advisor."""

SLOWER = 0.8
"""The rate of unaligned pieces, by that of the others, below which they cost something."""


def with_usual_times(profiles: Sequence[RankProfile], waits: Mapping[Key, int]) -> list[RankProfile]:
    """Return the profiles with ``usual_ns`` and ``waits_ns``, the wait for the last rank, of each collective."""
    return [dataclasses.replace(profile, collectives=tuple(_with_usual_times(profile, waits))) for profile in profiles]


def _with_usual_times(profile: RankProfile, waits: Mapping[Key, int]) -> Iterator[Collective]:
    """Yield the collectives of a profile with ``waits_ns`` and ``usual_ns`` filled in, each None if unknown.

    ``waits`` maps a collective's key to the ns that its rank waited in it for other ranks. The usual time is estimated
    from collectives of the same kind, group and about the same size in this profile.
    """
    kinds: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    every = [
        dataclasses.replace(
            collective, waits_ns=waits.get((profile.source, collective.unit, collective.group, collective.index))
        )
        for collective in profile.collectives
    ]
    for collective in every:
        if collective.size and collective.moving_ns:
            kinds[_kind(collective)][collective.size].append(collective.moving_ns)
    usual = {kind: _usual_times(times) for kind, times in kinds.items()}
    for collective in every:
        yield dataclasses.replace(collective, usual_ns=usual.get(_kind(collective), {}).get(collective.size or 0))


def _kind(collective: Collective) -> tuple[str, str]:
    """Return the key of comparable collectives: the operation, else the name, and the group."""
    return collective.kind or collective.name, collective.group


def _usual_times(times: Mapping[int, list[int]]) -> dict[int, int]:
    """Return size → expected ns of the collectives of one kind; empty for fewer than three collectives.

    ``times`` maps a size in bytes to the measured times in ns.
    """
    if sum(map(len, times.values())) < FEWEST:
        return {}
    sizes = sorted(times)
    return {size: lower_median(list(_upper_bounds(sizes, at, times))) for at, size in enumerate(sizes)}


def _upper_bounds(sizes: Sequence[int], index: int, times: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """Yield upper bounds in ns on the time of a message of ``sizes[index]``, derived from messages of similar size.

    A message of size s that took t gives the bound t * max(1, size / s). Its own size comes first, then the nearest
    ones, until these sizes hold 9 messages. ``sizes`` ascend, in bytes; ``times`` maps each to the measured ns.
    """
    size, count, low, high = sizes[index], 0, index, index + 1
    while count < NEAREST and (low >= 0 or high < len(sizes)):
        smaller = size / sizes[low] if low >= 0 else float("inf")
        larger = sizes[high] / size if high < len(sizes) else float("inf")
        near = sizes[low] if smaller <= larger else sizes[high]
        low, high = (low - 1, high) if smaller <= larger else (low, high + 1)
        count += len(times[near])
        yield from (round(ns * max(size / near, 1)) for ns in times[near])


def diagnose_slow_collectives(profile: RankProfile, profiles: Sequence[RankProfile]) -> Diagnosis | None:
    """Diagnose collectives that took over twice their usual time; None without any, or for a saving under 5 %.

    Waiting for other ranks does not count, as far as it is known. ``profiles`` are all reported ones. Headline and
    evidence describe the collective with the largest excess. The saving is the excess in ns per step, in each step at
    most its exposed communication; its 5 % are of the steps' time.
    """
    slow = [
        collective
        for collective in profile.collectives
        if collective.usual_ns and collective.moving_ns > SLOW * collective.usual_ns
    ]
    more: Counter[int] = Counter()
    for collective in slow:
        more[collective.unit] += collective.excess_ns
    exposed = {unit.number: unit.communication_ns for unit in profile.units}
    saving = sum(min(ns, exposed.get(unit, 0)) for unit, ns in more.items())
    if saving < NOTABLE * profile.total_ns or not slow:
        return None
    worst = max(slow, key=lambda collective: collective.excess_ns)
    less = Text(
        "At the rate of similar collectives, this collective would take {time} less.", duration(worst.excess_ns)
    )
    is_waiting_known = worst.transit_ns is not None or (
        worst.waits_ns is not None and lacks_ranks(worst, profiles) is False
    )
    evidence = sentences(
        _duration_sentence(worst, profile.collectives), _waiting_sentence(worst, is_known=is_waiting_known), less
    )
    if more_slow := len(slow) - 1:
        several = Text(
            "{count:,} other collectives are unusually slow, too ({total:,} in all).",
            count=more_slow,
            total=len(profile.collectives),
        )
        if more_slow == 1:
            several = Text("One other collective is unusually slow, too ({total:,} in all).", len(profile.collectives))
        evidence = sentences(evidence, several)
    return Diagnosis(
        "collective-outlier", "warning", evidence, saving // len(profile.units),
        Text("upper bound of the saving, estimated from similar collectives"),
        _advice(worst, is_waiting_known=is_waiting_known), profile.source,
        headline=_headline(worst, slow, profile, is_waiting_known=is_waiting_known),
    )  # fmt: skip


def _headline(worst: Collective, slow: Iterable[Collective], profile: RankProfile, *, is_waiting_known: bool) -> str:
    """Return the headline on the collective ``worst``: whether it is ``slow`` in each step, and may wait for others.

    The latter is said unless its wait for all ranks is known (``is_waiting_known``).
    """
    values = {"collective": short(worst.kind or worst.name), "time": duration(worst.ns)}
    headline = Text(
        "A collective takes much longer than similar ones: {collective} in step {step}, {time}",
        **values,
        step=worst.unit,
    )
    same_place = {collective.unit for collective in slow if _place(collective) == _place(worst)}
    if len(profile.units) > 1 and same_place.issuperset(unit.number for unit in profile.units):
        headline = Text(
            "In each step, one collective takes much longer than similar ones: {collective}, up to {time}", **values
        )
    if not is_waiting_known:
        headline = Text("{title}; it may wait for ranks that the report does not cover", headline)
    return headline


def _duration_sentence(worst: Collective, collectives: Iterable[Collective]) -> str:
    """Return a sentence on the time of the collective ``worst`` and, if there is one, of a faster one like it."""
    values = {
        "collective": short(worst.kind or worst.name),
        "size": size(worst.size or 0),
        "step": worst.unit,
        "time": duration(worst.ns),
    }
    neighbour = _faster_neighbour(collectives, worst)
    if neighbour is None:
        return Text("{collective} of {size} in step {step} took {time}.", **values)
    return Text(
        "{collective} of {size} in step {step} took {time}; another one, of {other_size}, took {other_time}.",
        **values,
        other_size=size(neighbour.size or 0),
        other_time=duration(neighbour.ns),
    )


def _place(collective: Collective) -> tuple[str, str, int]:
    """Return the place of a collective in its step: kind, group, and number within the group."""
    return *_kind(collective), collective.index


def _faster_neighbour(collectives: Iterable[Collective], worst: Collective) -> Collective | None:
    """Return the fastest collective like ``worst`` in kind and group, at least as large; None if it is ``worst``."""
    alike = [
        collective
        for collective in collectives
        if _kind(collective) == _kind(worst) and (collective.size or 0) >= (worst.size or 0)
    ]
    best = min(alike, key=lambda collective: (collective.ns, -(collective.size or 0)), default=worst)
    return None if best is worst else best


def _waiting_sentence(collective: Collective, *, is_known: bool) -> str:
    """Return a sentence on how much of a collective is waiting and how much transfer.

    torch_npu's own division comes first, then the waits that the other ranks show; with neither, the sentence says that
    one rank alone cannot tell. If the wait of all ranks is not known (``is_known``), it may be longer than they show.
    """
    if collective.transit_ns is not None:
        return Text(
            "According to torch_npu, {transit} of this time is transfer, {waiting} is waiting and {idle} is idle.",
            transit=in_ms(collective.transit_ns),
            waiting=in_ms(collective.wait_ns or 0),
            idle=in_ms(collective.idle_ns or 0),
        )
    if collective.waits_ns is not None:
        waited, moved = in_ms(collective.waits_ns), in_ms(collective.moving_ns)
        if not is_known:
            return Text(
                "Of this time, {waiting} is waiting for the last of the reported ranks, and {transfer} is transfer or"
                " waiting for ranks that the report does not cover.",
                waiting=waited,
                transfer=moved,
            )
        return Text(
            "Of this time, {waiting} is waiting for the straggler and {transfer} is transfer.",
            waiting=waited,
            transfer=moved,
        )
    return Text("The trace of this rank alone does not show how much of this time is waiting for other ranks.")


def _advice(collective: Collective, *, is_waiting_known: bool) -> str:
    """Return what to look at next: all ranks if the wait is unknown, the device if the collective is mostly idle.

    Otherwise it is the link and who else uses it.
    """
    if not is_waiting_known:
        return Text(
            "run the report on all ranks to see how much of this time is waiting and how much is transfer; then check"
            " what else uses the link between the ranks"
        )
    if 2 * (collective.idle_ns or 0) > collective.ns:
        return Text("the network is not the cause: check what the device and the other ranks do during this collective")
    return Text(
        "check what else uses the link between the ranks during this collective: another collective, a copy, another"
        " job"
    )


def is_unaligned(collective: Collective) -> bool:
    """Tell whether a piece of the collective is larger than 512 bytes, and no multiple of 512."""
    return any(map(_is_odd, collective.pieces))


def link_transfer(collective: Collective) -> tuple[int, int, int]:
    """Return three sums over a collective's pieces on links within the node: bytes, ns, and ns of unaligned pieces.

    A piece is unaligned if its messages have over 512 bytes, and no multiple of 512. Without pieces, all are 0.
    """
    odd = sum(piece.ns for piece in collective.pieces if _is_odd(piece))
    return (
        sum(piece.bytes * piece.count for piece in collective.pieces),
        sum(piece.ns for piece in collective.pieces),
        odd,
    )


def diagnose_unaligned_collectives(profile: RankProfile) -> Diagnosis | None:
    """Diagnose collectives that move pieces of over 512 bytes and no multiple of 512, as a note; None without any.

    There is no saving. Padding is advised unless unaligned pieces move at 80 % or more of the rate of the other pieces.
    """
    odd_collectives = [collective for collective in profile.collectives if is_unaligned(collective)]
    if not odd_collectives:
        return None
    pieces = [piece for collective in profile.collectives for piece in collective.pieces]
    odd, even = ([piece for piece in pieces if _is_odd(piece) is odd_ones] for odd_ones in (True, False))
    most = max(odd_collectives, key=lambda collective: link_transfer(collective)[2])
    largest = max(filter(_is_odd, most.pieces), key=lambda piece: piece.ns)
    whole = sum(piece.ns for piece in pieces) or 1
    share = sum(piece.ns for piece in odd) / whole
    example = Text(
        "a block of {bytes:,} bytes in {collective} of step {step}",
        bytes=largest.bytes,
        collective=short(most.kind or most.name),
        step=most.unit,
    )
    evidence = Text(
        "{count:,} of {total:,} collectives send blocks whose size is not a multiple of {aligned} bytes, such as"
        " {example}. Of the time on links within the node, {share} goes to these blocks.",
        count=len(odd_collectives),
        total=len(profile.collectives),
        aligned=ALIGNED,
        example=example,
        share=percent(share),
    )
    beside, slower = _compare_rates(_rate(odd), _rate(even))
    advice = Text(
        "pad the data that each rank sends (buckets, shards, vocabularies) to a multiple of {aligned} bytes", ALIGNED
    )
    return Diagnosis(
        "collective-unaligned", "note", sentences(evidence, beside), None, EXACT, advice if slower else "",
        profile.source,
    )  # fmt: skip


def _compare_rates(unaligned_rate: float, other_rate: float) -> tuple[str, bool]:
    """Return (sentence that compares the GB/s of unaligned and other pieces, whether unaligned ones may be slower).

    Slower is below 80 % of the other rate. If a rate is 0, it is unknown: then the sentence is "", and they may be.
    """
    if not (unaligned_rate and other_rate):
        return "", True
    slower = unaligned_rate < SLOWER * other_rate
    rates = Text(
        "Unaligned blocks moved at {rate:,.1f} GB/s, all other blocks at {other_rate:,.1f} GB/s",
        rate=unaligned_rate,
        other_rate=other_rate,
    )
    if slower:
        return Text("{rates}.", rates), True
    return Text("{rates}, so padding would gain nothing.", rates), False


def _is_odd(piece: LinkPiece) -> bool:
    return piece.bytes > ALIGNED and piece.bytes % ALIGNED > 0


def _rate(pieces: Sequence[LinkPiece]) -> float:
    """Return the rate of pieces in GB/s; 0 without pieces."""
    ns = sum(piece.ns for piece in pieces)
    return sum(piece.bytes * piece.count for piece in pieces) / ns if ns else 0.0
