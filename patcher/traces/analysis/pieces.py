"""One profile of the pieces in which a window was saved: while the engine saved between them, no step was running."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from patcher.messages import Text
from patcher.traces import model, sidecar
from patcher.traces.analysis import allocations
from patcher.traces.measured import KernelUse, bound_of
from patcher.traces.model import Check, FreeGap, Lanes, RankProfile, RecordedUnit, ReplayJoin
from patcher.traces.sidecar import Metadata, uncounted_total


def join_windows(profiles: Iterable[RankProfile]) -> list[RankProfile]:
    """Return one profile for each recorded window, also for those that were saved in several traces (pieces).

    Only pieces whose numbers follow each other are joined. Profiles that are no pieces come first, as they are.
    """
    windows: list[list[RankProfile]] = []
    open_windows: dict[Hashable, list[RankProfile]] = {}
    for profile in sorted(profiles, key=_number):
        key = _window_key(profile)
        pieces = open_windows.get(key, [])
        if pieces and _number(profile) == _number(pieces[-1]) + 1:
            pieces.append(profile)
            continue
        windows.append([profile])
        if key is not None:
            open_windows[key] = windows[-1]
    return [_join_window(pieces) if len(pieces) > 1 else pieces[0] for pieces in windows]


def _number(profile: RankProfile) -> int:
    """Return the number of a piece, from 1; 0 for a trace that is no piece."""
    return (profile.metadata.piece if profile.metadata else None) or 0


def _window_key(profile: RankProfile) -> Hashable:
    """Return a key that the pieces of one window of one process share; None for a trace that is no piece."""
    metadata = profile.metadata
    if metadata is None or metadata.piece is None:
        return None
    return (
        *(profile.form, metadata.target, metadata.stage, metadata.role, metadata.window),
        *(metadata.rollout, metadata.step, metadata.sync),
        *(metadata.host, metadata.replica, metadata.rank, metadata.pid),
    )


def _join_window(pieces: Sequence[RankProfile]) -> RankProfile:
    """Return one profile for the pieces of one window, given in order.

    Steps are concatenated, calls and times summed, checks and gaps merged. All else, such as rank and device, is that
    of the first piece. Each piece has at least one step.
    """
    units = tuple(_joined_units(pieces))
    sums = {"calls": sum, "kernels": sum, "ns": sum, "host_ns": sum}
    return dataclasses.replace(
        pieces[0],
        units=units,
        kernels=_sum_rows(pieces, "kernels", ("name", "kind"), {"calls": sum, "ns": sum, "longest_ns": max}),
        operators=_sum_rows(pieces, "operators", ("name",), sums),
        modules=_sum_rows(pieces, "modules", ("name",), sums),
        rates=_sum_rows(
            pieces, "rates", ("operator", "shapes", "types", "bound", "flops", "bytes"),
            {"calls": sum, "kernels": sum, "ns": sum, "least_ns": _known_sum},
        ),
        kernel_uses=tuple(_joined_kernel_uses(pieces)),
        gaps=tuple(_joined_gaps(pieces)),
        memory=tuple(allocations.join_pieces(piece.memory for piece in pieces)),
        checks=tuple(_joined_checks(pieces)),
        collectives=tuple(collective for piece in pieces for collective in piece.collectives),
        vendor={step: row for piece in pieces for step, row in (piece.vendor or {}).items()} or None,
        prompt_share=_prompt_share(pieces),
        replays=_joined_replays([piece.replays for piece in pieces if piece.replays]),
        lanes=tuple(_joined_lanes(pieces, units)),
        metadata=_metadata([piece.metadata for piece in pieces if piece.metadata]),
        pieces=tuple(piece.source for piece in pieces),
        host_steps=tuple(step for piece in pieces for step in piece.host_steps),
        kernels_of_steps=_join_by_step(piece.kernels_of_steps for piece in pieces),
        copy_launches=_join_by_step(piece.copy_launches for piece in pieces),
        inputs_of_steps=_join_by_step(piece.inputs_of_steps for piece in pieces),
    )  # fmt: skip


def _join_by_step(pieces: Iterable[Mapping[int, model.Value]]) -> dict[int, model.Value]:
    """Return one mapping from step to value for those of all pieces; a later piece takes precedence."""
    return {step: value for values in pieces for step, value in values.items()}


def _joined_units(pieces: Sequence[RankProfile]) -> Iterator[RecordedUnit]:
    """Yield the steps of all pieces in order, each with the number of uncounted iterations since the step before.

    Only the first step of each later piece changes. Its iterations were counted from the begin of the window, so those
    up to the last step of the previous piece are subtracted.
    """
    before: int | None = None  # in the window, up to the last unit of the piece before
    for piece in pieces:
        assert piece.metadata is not None  # noqa: S101  (`_window_key` looked)
        first, *later = piece.units
        if before is None:
            yield first
        else:
            yield dataclasses.replace(first, uncounted=max(uncounted_total(piece.metadata, first.number) - before, 0))
        yield from later
        before = uncounted_total(piece.metadata, piece.units[-1].number)


def _group_rows(pieces: Sequence[RankProfile], field: str, key: Sequence[str]) -> list[list[Any]]:
    """Return groups of the rows that the pieces have in the attribute ``field``; rows of a group agree in ``key``.

    ``key`` has names of attributes of a row.
    """
    groups: dict[Hashable, list[Any]] = {}
    for piece in pieces:
        for row in getattr(piece, field):
            groups.setdefault(tuple(getattr(row, name) for name in key), []).append(row)
    return list(groups.values())


def _sum_rows(
    pieces: Sequence[RankProfile],
    field: str,
    key: Sequence[str],
    merge_functions: Mapping[str, Callable[[list[Any]], Any]],
) -> tuple[Any, ...]:
    """Merge those rows in the attribute ``field`` of all pieces that have the same values of ``key``; longest ns first.

    ``merge_functions`` maps each other attribute of a row to the function that merges its values, such as sum.
    """
    rows = [
        dataclasses.replace(
            group[0], **{name: merge([getattr(row, name) for row in group]) for name, merge in merge_functions.items()}
        )
        for group in _group_rows(pieces, field, key)
    ]
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _known_sum(values: list[int | None]) -> int | None:
    """Return the sum, None if a value is unknown."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None


def _joined_kernel_uses(pieces: Sequence[RankProfile]) -> Iterator[KernelUse]:
    """Yield kernels by shape over all pieces, longest first.

    The shares of time in which a kernel uses each hardware pipeline are means weighted by calls. The resource that
    limits the kernel follows from these.
    """
    groups = _group_rows(pieces, "kernel_uses", ("name", "core", "shapes", "types", "block_dim", "state"))
    for group in sorted(groups, key=lambda group: -sum(use.ns for use in group)):
        names = dict.fromkeys(name for use in group for name in use.ratios)
        ratios = {name: _mean([(use.ratios.get(name, 0.0), use.calls) for use in group]) for name in names}
        cubes = [(use.cube_utilization, use.calls) for use in group if use.cube_utilization is not None]
        yield dataclasses.replace(
            group[0],
            calls=sum(use.calls for use in group),
            ns=sum(use.ns for use in group),
            ratios=ratios,
            cube_utilization=_mean(cubes) if cubes else None,
            bound=bound_of(ratios),
        )


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    """Return the mean of (value, weight) pairs."""
    return sum(value * weight for value, weight in weighted) / (sum(weight for _, weight in weighted) or 1)


def _joined_gaps(pieces: Sequence[RankProfile]) -> Iterator[FreeGap]:
    """Yield the places at which the device was free, with times and counts over all pieces; the most time comes first.

    A place's longest gap, and the step with most of its time (``unit``), are those of one piece. It is the piece in
    which a single step has most time at the place.
    """
    key = ("kind", "before", "after", "stream", "graph", "part", "call", "operator", "within", "module")
    groups = _group_rows(pieces, "gaps", key)
    for group in sorted(groups, key=lambda group: -sum(gap.ns for gap in group)):
        yield dataclasses.replace(
            max(group, key=lambda gap: gap.unit_ns),
            ns=sum(gap.ns for gap in group),
            count=sum(gap.count for gap in group),
            units=sum(gap.units for gap in group),
            call_ns=sum(gap.call_ns for gap in group),
            spots={number: spot for gap in group for number, spot in gap.spots.items()},
        )


def _joined_checks(pieces: Sequence[RankProfile]) -> Iterator[Check]:
    """Yield each check once, by its id: the first result that failed, else the first result.

    The evidence also says in how many pieces the check failed, or that it is that of the first piece.
    """
    for group in _group_rows(pieces, "checks", ("id",)):
        failed = next((check for check in group if not check.ok), group[0])
        count = sum(not check.ok for check in group)
        evidence = Text(
            "{check_result} (in the first of the {count} traces of this window)",
            check_result=failed.evidence,
            count=len(group),
        )
        if count:
            evidence = Text(
                "{check_result} (failed in {count} of the {total} traces of this window)",
                check_result=failed.evidence,
                count=count,
                total=len(group),
            )
        yield dataclasses.replace(failed, evidence=evidence)


def _prompt_share(pieces: Sequence[RankProfile]) -> float | None:
    """Return the share of kernels that follow their launch closely, over all pieces; None if unknown."""
    shares = [(piece.prompt_share, sum(unit.kernels for unit in piece.units)) for piece in pieces]
    return _mean([(share, count) for share, count in shares if share is not None]) if shares[0][0] is not None else None


def _joined_replays(replays: Sequence[ReplayJoin]) -> ReplayJoin | None:
    """Return the sums of the replays of all pieces, and each reason why some were not matched; None without any."""
    if not replays:
        return None
    why = tuple(dict.fromkeys(reason for join in replays for reason in join.why))
    return ReplayJoin(sum(join.count for join in replays), sum(join.joined for join in replays), why)


def _joined_lanes(pieces: Sequence[RankProfile], units: Sequence[RecordedUnit]) -> Iterator[Lanes]:
    """Yield the drawn rows (lanes) of the step nearest to the median of all steps, then those of the slowest step.

    Each piece has lanes of up to two steps. The slowest step is left out if no piece has its lanes; nothing is yielded
    if no piece has any.
    """
    drawn = [lanes for piece in pieces for lanes in piece.lanes]
    median, slowest = model.median_unit(units), max(units, key=model.duration_of, default=None)
    if not drawn or median is None or slowest is None:
        return
    usual = min(drawn, key=lambda lanes: abs(lanes.device_ns - median.device_ns))
    yield dataclasses.replace(usual, why="median" if usual.number == median.number else "typical")
    longest = max(drawn, key=lambda lanes: lanes.device_ns)
    if longest is not usual and longest.number == slowest.number:
        yield dataclasses.replace(longest, why="slowest")


def _metadata(pieces: Sequence[Metadata]) -> Metadata:
    """Return the metadata of the last piece, which has why the window was closed, with the steps of all pieces."""
    listed = [unit for piece in pieces for unit in sidecar.listed_units(piece.raw)]
    units = {number: unit for piece in pieces for number, unit in piece.units.items()}
    return dataclasses.replace(pieces[-1], units=units, raw={**pieces[-1].raw, "units": listed})
