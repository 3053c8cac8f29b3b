"""The tables and sentences on the memory of a run, in bytes; the terminal, the page and CSV files show them."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.messages import COMMA, Text, joined
from patcher.table import COUNT, Column, Table, Unit
from patcher.timeline.lengths import seconds, share
from patcher.timeline.model import (
    ROLES,
    CacheUse,
    MemoryChange,
    MemoryExcess,
    MemoryGrowth,
    MemoryHolder,
    MemoryPeak,
    RunTimeline,
)
from patcher.traces.words import size

BYTES = Unit(size, missing="?")
_PLACES: dict[str, Text] = {
    "device": Text("device"),
    "cached": Text("reserved but unused device memory"),
    "host": Text("host"),
}
_GROWTH: dict[str, Text] = {
    "device": Text("{process}: device memory grows by {rate} per step, from {first} to {last} in {count} steps"),
    "cached": Text(
        "{process}: reserved but unused device memory grows by {rate} per step, from {first} to {last} in {count} steps"
    ),
    "host": Text("{process}: host memory grows by {rate} per step, from {first} to {last} in {count} steps"),
}
_CHANGES: dict[str, Text] = {
    "sleep": Text("memory change when an engine sleeps or wakes"),
    "offload": Text("memory freed when a worker's call ends"),
    "sync": Text("extra memory for a weight sync"),
}
_CHANGE_LINES: dict[str, Text] = {
    "sync": Text(
        "{activity} needs {size} of additional device memory (median of {count} measurements; maximum {maximum})"
    ),
    "taken": Text("{role}: {activity} takes {size} of device memory (median of {count} times; maximum {maximum})"),
    "offload": Text(
        "{role}: the end of {activity} frees {size} of device memory (median of {count} times; maximum {maximum})"
    ),
    "sleep": Text("{role}: {activity} frees {size} of device memory (median of {count} times; maximum {maximum})"),
}
LISTED = 4
"""Holders that a sentence names."""


def tables(run: RunTimeline) -> Iterator[Table]:
    """Yield the four tables on memory: peaks, changes of device memory, KV cache, and growth."""
    yield peaks(run)
    yield changes(run)
    yield cache(run)
    yield growth(run)


def step_text(step: int | None) -> Text:
    """Return the number of a step as a text; after the last step that ended for None."""
    return Text("after the last step") if step is None else Text("step {step}", step)


def moment(step: int | None, doing: str) -> Text:
    """Return a step and what was going on in it."""
    return Text("{step}, {phase}", step=step_text(step), phase=doing) if doing else step_text(step)


def holder(held: MemoryHolder) -> Text:
    """Return a process with the memory that it holds; the text also says if it holds it while asleep."""
    if held.asleep:
        return Text("{process} (holds {size} while asleep)", process=held.who, size=size(held.bytes))
    return Text("{process} ({size})", process=held.who, size=size(held.bytes))


def holders(peak: MemoryPeak, most: int = LISTED) -> Text:
    """Return a text with the holders of memory at a peak, the largest first; two or more beyond ``most`` are summed."""
    most += len(peak.holders) == most + 1  # a single one is named
    texts = [holder(held) for held in peak.holders[:most]]
    if beyond := peak.holders[most:]:
        texts.append(
            Text("{count} more processes ({size})", count=len(beyond), size=size(sum(held.bytes for held in beyond)))
        )
    if peak.other:
        texts.append(Text("other memory holders ({size})", size(peak.other)))
    return joined(COMMA, texts)


def peak_line(peak: MemoryPeak) -> Text:
    """Return a line on a peak: host or device, step, phase, memory in use and in total, and what holds it."""
    values = {
        "step": moment(peak.step, peak.phase),
        "used": size(peak.used),
        "total": size(peak.total),
        "holders": holders(peak),
    }
    if peak.of == "host":
        return Text(
            "host {host}, {step}: {used} of {total} memory in use, held by {holders}", host=peak.place, **values
        )
    return Text(
        "device {device}, {step}: {used} of {total} memory in use, held by {holders}", device=peak.place, **values
    )


def change_line(change: MemoryChange) -> Text:
    """Return a line on device memory that was given back, taken or needed: median and maximum over all times."""
    values = {
        "activity": change.what,
        "size": size(abs(change.median)),
        "count": change.times,
        "maximum": size(abs(change.most)),
    }
    if change.kind != "sync":
        values["role"] = ROLES.get(change.role, change.role)
    takes = change.kind != "sync" and change.median < 0
    return _CHANGE_LINES["taken" if takes else change.kind].filled(**values)


def growth_line(growth: MemoryGrowth) -> Text:
    """Return a line on memory that grows: process, bytes per step, first and last size, and steps until it is full."""
    line = _GROWTH[growth.of].filled(
        process=growth.who,
        rate=size(growth.per_step),
        first=size(growth.first),
        last=size(growth.last),
        count=growth.steps,
    )
    return (
        line
        if growth.full_in is None
        else Text("{growth}; steps until the free memory is used up: {count}", growth=line, count=growth.full_in)
    )


def excess_line(excess: MemoryExcess) -> Text:
    """Return a line on a process that had more host memory than usual: step, additional and usual bytes, how long."""
    return Text(
        "{step}: for {time}, {process} used {size} more host memory than usual ({usual})",
        step=moment(excess.step, excess.doing),
        process=excess.who,
        size=size(excess.bytes),
        usual=size(excess.usual),
        time=seconds(excess.seconds),
    )


def cache_line(cache: CacheUse) -> Text:
    """Return a line on the KV cache of an engine."""
    return Text(
        "{engine}, {step}: peak KV cache use {share} ({used:,} of {total:,} blocks)",
        engine=cache.who,
        step=step_text(cache.step),
        share=share(cache.used / max(cache.total, 1)),
        used=cache.used,
        total=cache.total,
    )


def peaks(run: RunTimeline) -> Table:
    """Return the table of the peak of each device and host in each step, with its holders."""
    columns = (
        Column("of", Text("kind of memory")),
        Column("place", Text("place")),
        Column("step", Text("step"), Unit(str, missing="-")),
        Column("phase", Text("phase")),
        Column("at_seconds", Text("time of the peak"), Unit(seconds)),
        Column("used_bytes", Text("memory in use"), BYTES, bar=True),
        Column("total_bytes", Text("total memory"), BYTES),
        Column("holders", Text("memory by process")),
        Column("other_bytes", Text("other memory"), BYTES),
    )
    rows = [
        (
            _PLACES.get(peak.of, peak.of), peak.place, peak.step, peak.phase, peak.at, peak.used, peak.total,
            joined(COMMA, map(holder, peak.holders)), peak.other,
        )
        for peak in run.memory.peaks
    ]  # fmt: skip
    about = Text(
        "Peak of the memory in use in each step. “Other memory” is used by device contexts, libraries, shared memory,"
        " and processes without a timeline file."
    )
    return Table("memory_peaks", Text("Memory at its peak"), columns, rows, about)


def changes(run: RunTimeline) -> Table:
    """Return the table of how much device memory sleep and offload freed or took, and a weight sync needed."""
    columns = (
        Column("kind", Text("kind of change")),
        Column("role", Text("role")),
        Column("name", Text("activity")),
        Column("times", Text("count"), COUNT),
        Column("median_bytes", Text("median"), Unit(_signed)),
        Column("most_bytes", Text("largest"), Unit(_signed)),
    )
    rows = [
        (
            _CHANGES.get(change.kind, change.kind), ROLES.get(change.role, change.role), change.what, change.times,
            change.median, change.most,
        )
        for change in run.memory.changes
    ]  # fmt: skip
    about = Text(
        "Freed memory is the increase of the free device memory; a negative size means that memory was taken. The"
        " memory that a weight sync needs is the peak of the memory in use during the sync, minus the larger of the"
        " memory in use at its start and at its end."
    )
    return Table("memory_changes", Text("Changes in free device memory"), columns, rows, about)


def _signed(number: int) -> str:
    return size(number) if number >= 0 else f"\N{MINUS SIGN}{size(-number)}"


def cache(run: RunTimeline) -> Table:
    """Return the table of the most KV-cache blocks that each engine had in use at once, and in which step."""
    columns = (
        Column("engine", Text("engine")),
        Column("step", Text("step"), Unit(str, missing="-")),
        Column("used_blocks", Text("blocks in use"), COUNT),
        Column("total_blocks", Text("total blocks"), COUNT),
        Column("share", Text("share in use"), Unit(share, whole=1)),
    )
    rows = [(use.who, use.step, use.used, use.total, use.used / max(use.total, 1)) for use in run.memory.cache]
    about = Text("Peak use of each engine's KV cache in the run. For SGLang, a block is one token.")
    return Table("kv_cache", Text("KV cache"), columns, rows, about)


def growth(run: RunTimeline) -> Table:
    """Return the table of processes whose memory grows over the steps, and of steps with more memory than usual."""
    columns = (
        Column("who", Text("process")),
        Column("of", Text("kind of memory")),
        Column("step", Text("step"), Unit(str, missing="-"), optional=True),
        Column("per_step_bytes", Text("growth per step"), BYTES, optional=True),
        Column("first_bytes", Text("size to compare with: the initial or the usual one"), BYTES),
        Column("last_bytes", Text("final or peak size"), BYTES),
        Column("seconds", Text("duration"), Unit(seconds), optional=True),
        Column("doing", Text("activity"), optional=True),
    )
    rows: list[tuple[object, ...]] = [
        (row.who, _PLACES[row.of], None, row.per_step, row.first, row.last, None, "") for row in run.memory.growth
    ]
    rows += [
        (
            row.who, _PLACES["host"], row.step, None, row.usual, row.usual + row.bytes, row.seconds, row.doing,
        )
        for row in run.memory.excesses
    ]  # fmt: skip
    about = Text(
        "Memory that grows from step to step (first and last size), and steps in which a process used more memory than"
        " usual (usual and largest size)."
    )
    return Table("memory_growth", Text("Growing memory, and unusually high memory use"), columns, rows, about)
