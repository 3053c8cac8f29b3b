"""Both exports of torch_npu.profiler: the folder of a rank, the vendor's own tables, and the types of tasks."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages import Text
from patcher.store.filesystem.opened import reading
from patcher.traces.formats.chrome import nanoseconds
from patcher.traces.formats.csv_tables import rows
from patcher.traces.messages import CollectiveMessage, LinkPiece
from patcher.traces.model import COMMUNICATION, COMPUTE, COPY
from patcher.traces.names import OUTPUT
from patcher.traces.rank_trace import RankTrace, several_problem

COLUMNS = {
    "Computing": "computing_ns",
    "Communication(Not Overlapped)": "communication_not_overlapped_ns",
    "Overlapped": "overlapped_ns",
    "Communication": "communication_ns",
    "Free": "free_ns",
    "Stage": "stage_ns",
    "Bubble": "bubble_ns",
    "Communication(Not Overlapped and Exclude Receive)": "communication_not_overlapped_and_exclude_receive_ns",
    "Preparing": "preparing_ns",
}
"""Column of the vendor's step file, in text → its name in the promised JSON; db has this one without its unit."""

LINKS = ("SDMA", "RDMA")
"""Transports of a collective between chips; the vendor's sum for those within a node is called SDMA."""

WITHIN = ("HCCS", "PCIE", "SIO")
"""The transports within a node: the vendor tells in pieces of which sizes they moved what they did."""

_SILENT = re.compile(
    r"EVENT|NOTIFY|WRITE.?VALUE|PLACE_HOLDER|PROFILING|MODEL|LABEL|SWITCH|GOTO|SET_|GET_|STREAM|CMO|CAPTURE|NOP|BARRIER"
    r"|CONDITION|RDMA|FLIP|MAINTENANCE|LOADRECORD|^SDMA$|^HCCL$|^FFTS.*SDMA",
    re.IGNORECASE,
)
_UNTYPED = re.compile(r"(?:OTHER|UNKNOWN|INVALID|N/?A)?", re.IGNORECASE)
"""Types that say nothing of a task: some releases of CANN give them to kernels, others to what only orders them."""

_ORDER = re.compile(r"[A-Z][A-Z0-9_ ]*|[A-Z][a-z]+ [A-Z][a-z]+")
"""Names of tasks that are no kernels, ``EVENT_WAIT`` and ``Notify Wait``; those of kernels have lower case, too."""

_COPIES = re.compile(r"MEMCPY|MEMSET_ASYNC|PCIE_DMA|SDMA_SQE|^D2D|^H2D|^D2H|P2P_DMA", re.IGNORECASE)
_WORKING = re.compile(r"AI_?C|AI_?V|MIX|DSA|DVPP|JPEG|VPC|KERNEL|FFTS|FUSION|VECTOR|CUBE|DPU", re.IGNORECASE)


@functools.cache
def kind_of(task_type: str) -> str | None:
    """Return COPY or COMPUTE for CANN's type of a task; None for a type that only orders tasks, such as events.

    None, too, for ``SDMA`` alone: its collective has a row of its own. An unknown type counts as COMPUTE.
    """
    if _COPIES.search(task_type):
        return COPY
    return None if _SILENT.search(task_type) else COMPUTE


@functools.lru_cache(maxsize=1 << 16)
def kind_of_task(task_type: str, name: str) -> str | None:
    """Return COPY or COMPUTE for a task, by its type; by its name where the type is ``Other`` or missing.

    None if the task only orders others, or has neither type nor name.
    """
    if not _UNTYPED.fullmatch(task_type):
        return kind_of(task_type)
    if _UNTYPED.fullmatch(name):
        return None
    return kind_of(name) if _ORDER.fullmatch(name) else COMPUTE


@functools.cache
def is_known(task_type: str) -> bool:
    """Tell whether rlpatch has a rule for CANN's type of a task; True for "" and ``Other``, where its name decides."""
    return bool(_UNTYPED.fullmatch(task_type)) or any(
        pattern.search(task_type) for pattern in (_SILENT, _COPIES, _WORKING)
    )


class CollectiveTimes(NamedTuple):
    """The vendor's measures of a collective: its transit, waiting and idle time in nanoseconds.

    ``sent`` is the number of bytes moved over links, None if unknown; ``pieces`` are those moved within the node.
    """

    parts: tuple[int, int, int]
    sent: int | None = None
    pieces: tuple[LinkPiece, ...] = ()


Transits = dict[str, list[CollectiveTimes]]
"""Name of a collective → the measures of each, in the order of their begin."""


def add_collective(
    trace: RankTrace, span: tuple[int, int], name: str, group: str, transits: Transits, key: int | None,
    message: CollectiveMessage,
) -> None:  # fmt: skip
    """Add a collective to a trace, and move the next measured times and bytes under its name from ``transits`` to it.

    ``span`` is its begin and end in ns, ``key`` the connection id of its launch, ``message`` what it carried, to which
    the measured bytes and pieces are added. The name has the form ``hcom_allReduce__586_0_1``: an allReduce in the
    ``group`` whose id ends in 586. If ``group`` is "", these last digits stand for it.
    """
    operator, short = parted(name)
    task = len(trace.tasks)
    if times := transits.get(name):
        measured = times.pop(0)
        trace.transits[task] = measured.parts
        message = message._replace(sent_bytes=measured.sent, pieces=measured.pieces)
    trace.messages[task] = message
    trace.groups[task] = group or short
    trace.add_task(*span, COMMUNICATION, operator, f"group {short or group}", key)


def parted(name: str) -> tuple[str, str]:
    """Return the operator and the group in the name of a collective; the group is "" if the name has none."""
    parts = re.fullmatch(r"(\w+?)__(\w+?)_\d+_\d+(?:@.*)?", name)
    return (parts[1], parts[2]) if parts else (name.partition("@")[0], "")


_SETTINGS = {
    "_profiler_level": "level", "_aic_metrics": Text("AI Core metrics"), "_l2_cache": "L2"
    " cache", "activities": "activities",
    "record_shapes": "shapes", "profile_memory": "memory", "with_stack": "stacks", "with_modules": "modules",
    "torch_npu_version": "torch_npu", "cann_version": "CANN",
}  # fmt: skip
"""Name in ``profiler_info.json`` → what it sets."""


class RankFolder(NamedTuple):
    """The values that the profiler wrote into the folder of a rank; None and empty if it wrote none.

    ``world`` is the number of ranks in the run; ``settings`` has the profiler's settings and releases.
    """

    rank: int | None
    world: int | None
    settings: dict[str, str]


def rank_folder(folder: Path) -> RankFolder:
    """Return rank, world size and settings from profiler_info and profiler_metadata; None and empty if missing.

    A rank that is missing in profiler_info is read from its name, as ``profiler_info_3.json``. Raises Problem (TRACE)
    if two ranks share the folder.
    """
    files = sorted(folder.glob("profiler_info*.json"))
    if len(files) > 1:
        raise several_problem(folder, "ranks", [file.name for file in files])
    info = mapping(read_json(files[0])) if files else {}
    rank = info.get("rank_id")
    if files and not (isinstance(rank, int) and rank >= 0):
        digits = re.search(r"_(\d+)$", files[0].stem)
        rank = int(digits[1]) if digits else None
    metadata = mapping(read_json(folder / "profiler_metadata.json"))
    world = mapping(metadata.get("distributed_args")).get("world_size")
    if world is None:
        world = _size_of_default_group(metadata)
    config = mapping(info.get("config"))
    values = {**mapping(config.get("common_config")), **mapping(config.get("experimental_config")), **info}
    chosen = {word: values[name] for name, word in _SETTINGS.items() if values.get(name) not in (None, "")}
    settings = {
        word: ", ".join(map(str, value)) if isinstance(value, list) else str(value) for word, value in chosen.items()
    }
    return RankFolder(rank, world if isinstance(world, int) and world > 0 else None, settings)


def _size_of_default_group(metadata: Mapping[str, Any]) -> int | None:
    """Return the number of ranks of torch's default group, which is the whole run; None if it is not recorded."""
    for group in mapping(metadata.get("parallel_group_info")).values():
        ranks = mapping(group).get("global_ranks")
        if mapping(group).get("group_name") == "default_group" and isinstance(ranks, list):
            return len(ranks)
    return None


def set_rank(trace: RankTrace, output: Path) -> None:
    """Set rank, world and settings of a trace from its rank's folder, which was parsed into ``output``."""
    trace.rank, trace.world, trace.settings = rank_folder(output.parent if output.name == OUTPUT else output)


def vendor_steps(output: Path) -> dict[str, dict[str, int]] | None:
    """Return the content of ``step_trace_time.csv`` in a folder; None without the file.

    It maps a step, "" for a row without one, to names such as ``computing_ns`` (see `COLUMNS`), and these to whole
    nanoseconds; cells without a number are left out.
    """
    steps: dict[str, dict[str, int]] = {}
    for row in rows(output / "step_trace_time.csv"):
        values = steps[str(row.get("Step") or "")] = {}
        for column, name in COLUMNS.items():
            with contextlib.suppress(ValueError):
                values[name] = nanoseconds(row.get(column) or "")
    return steps if steps or (output / "step_trace_time.csv").is_file() else None


class TimedCollective(NamedTuple):
    """A collective of ``communication.json``: number of its step, begin and length in ns, the vendor's measures."""

    step: int
    name: str
    begin: int
    ns: int
    times: CollectiveTimes


def timed_collectives(output: Path) -> Iterator[TimedCollective]:
    """Yield the collectives, sends and receives of ``communication.json`` in a folder; nothing without the file.

    A step without a number counts as step 0, a missing begin or length as 0 ns. Totals, and entries without transit,
    wait or idle time, are skipped.
    """
    for step, kinds in mapping(read_json(output / "communication.json")).items():
        number = re.fullmatch(r"step(\d{1,18})", step)
        for kind in ("collective", "p2p"):
            for name, details in mapping(mapping(kinds).get(kind)).items():
                times = _times(mapping(details))
                if "@" in name and times is not None:
                    info = mapping(mapping(details).get("Communication Time Info"))
                    begin = _milliseconds(info.get("Start Timestamp(us)")) or 0
                    ns = _milliseconds(info.get("Elapse Time(ms)")) or 0
                    yield TimedCollective(int(number[1]) if number else 0, name, begin, ns, times)


def _times(details: Mapping[str, Any]) -> CollectiveTimes | None:
    """Return the vendor's measures from the entry of a collective; None if transit, wait or idle time is missing."""
    info = mapping(details.get("Communication Time Info"))
    links = mapping(details.get("Communication Bandwidth Info"))
    transit, wait, idle = (_milliseconds(info.get(f"{part} Time(ms)")) for part in ("Transit", "Wait", "Idle"))
    if transit is None or wait is None or idle is None:
        return None
    sent = sum(bytes_of(mapping(links.get(link)).get("Transit Size(MB)")) for link in LINKS)
    return CollectiveTimes((transit, wait, idle), sent or None, tuple(_pieces(links)))


def _pieces(links: Mapping[str, Any]) -> Iterator[LinkPiece]:
    """Yield what a collective moved over each link within the node, by message size; malformed entries are skipped."""
    for link in WITHIN:
        for size, values in mapping(mapping(links.get(link)).get("Size Distribution")).items():
            with contextlib.suppress(ValueError, TypeError):
                count, milliseconds = values
                yield piece(float(size), count, milliseconds)


def piece(megabytes: object, count: object, milliseconds: object) -> LinkPiece:
    """Build the `LinkPiece` of ``count`` messages of ``megabytes`` (10**6 bytes) each, sent in ``milliseconds`` in all.

    Raises ValueError if a value is no number, the size is 0, or ``count`` is no integer of at least 1.
    """
    size, ns = bytes_of(megabytes), _milliseconds(milliseconds)
    if not size or ns is None or not isinstance(count, int) or count < 1:
        raise ValueError("no piece")
    return LinkPiece(size, count, ns)


def measures_by_name(output: Path) -> Transits:
    """Return name of a collective, without ``@…`` → times and bytes of its executions, in order of their begins.

    They are read from ``communication.json`` in the profiler's folder ``output``; {} without this file.
    """
    by_name: Transits = {}
    for collective in sorted(
        timed_collectives(output), key=lambda collective: (collective.begin, collective.times.parts)
    ):
        by_name.setdefault(collective.name.partition("@")[0], []).append(collective.times)
    return by_name


def read_json(file: Path) -> object:
    """Return the content of a small JSON file; None if it is missing or no JSON."""
    try:
        with reading(file) as stream:
            return json.loads(stream.read().decode("utf-8", "replace"), strict=False)
    except (OSError, ValueError, RecursionError):
        return None


def mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _milliseconds(value: object) -> int | None:
    return round(value * 1_000_000) if isinstance(value, int | float) and abs(value) < 1e15 else None


def bytes_of(megabytes: object) -> int:
    """Return the bytes of a size in the vendor's MB, which are millions; 0 for what is no size."""
    return round(megabytes * 1_000_000) if isinstance(megabytes, int | float) and 0 <= megabytes < 1e9 else 0
