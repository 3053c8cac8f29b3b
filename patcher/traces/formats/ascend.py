"""Both exports of torch_npu.profiler: the folder of a rank, the vendor's own tables, and the types of tasks."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patcher.store.filesystem.opened import reading
from patcher.traces.formats.chrome import nanoseconds
from patcher.traces.messages import CollectiveMessage, LinkPiece
from patcher.traces.model import COMMUNICATION, COMPUTE, COPY
from patcher.traces.timeline import Timeline, several

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

DETAILS = "kernel_details.csv"
"""The table of all kernels."""

COMMUNICATING = ("HCCL", "COMMUNICATION")
"""How tables of kernels call what is a collective, by release of CANN."""

_NOTHING = CollectiveMessage()
LINKS = ("SDMA", "RDMA")
"""Of the transports of a collective: the vendor sums those within a node up under SDMA."""

WITHIN = ("HCCS", "PCIE", "SIO")
"""The transports within a node: the vendor tells in pieces of which sizes they moved what they did."""

_SILENT = re.compile(
    r"EVENT|NOTIFY|WRITE.?VALUE|PLACE_HOLDER|PROFILING|MODEL|LABEL|SWITCH|GOTO|SET_|GET_|STREAM|CMO|CAPTURE|NOP|BARRIER"
    r"|CONDITION|RDMA|FLIP|MAINTENANCE|LOADRECORD|^SDMA$|^HCCL$|^FFTS.*SDMA|^OTHER$|^UNKNOWN$",
    re.IGNORECASE,
)
_COPIES = re.compile(r"MEMCPY|MEMSET_ASYNC|PCIE_DMA|SDMA_SQE|^D2D|^H2D|^D2H|P2P_DMA", re.IGNORECASE)
_WORKING = re.compile(r"AI_?C|AI_?V|MIX|DSA|DVPP|JPEG|VPC|KERNEL|FFTS|FUSION|VECTOR|CUBE|DPU", re.IGNORECASE)


@functools.cache
def kind_of(task_type: str) -> str | None:
    """Classify a type of tasks; None if it only orders others: an event, a notification, a placeholder.

    ``SDMA`` alone belongs to a collective, whose time stands in its own row. An unknown type computes.
    """
    if _COPIES.search(task_type):
        return COPY
    return None if _SILENT.search(task_type) else COMPUTE


@functools.cache
def is_known(task_type: str) -> bool:
    """Whether a type of tasks is in one of the tables."""
    return any(pattern.search(task_type) for pattern in (_SILENT, _COPIES, _WORKING))


Transits = dict[str, list[tuple[tuple[int, int, int], int | None, tuple[LinkPiece, ...]]]]
"""Collective → its transit, waiting and idle time in nanoseconds, with the bytes that went over links (None: none are
known) and the pieces of those within the node, in the order of their begin."""


def add_collective(
    found: Timeline, span: tuple[int, int], name: str, group: str, transits: Transits, key: int | None,
    carried: CollectiveMessage = _NOTHING,
) -> None:  # fmt: skip
    """Add a collective to a timeline: ``hcom_allReduce__586_0_1`` is allReduce of 586, short for its ``group``."""
    operator, short = parted(name)
    if known := transits.get(name):
        found.transits[len(found.tasks)], sent, pieces = known.pop(0)
        carried = carried._replace(sent_bytes=sent, pieces=pieces)
    found.messages[len(found.tasks)] = carried
    found.groups[len(found.tasks)] = group or short
    found.add_task(*span, COMMUNICATION, operator, f"group {short or group}", key)


def parted(name: str) -> tuple[str, str]:
    """The operator and the group in the name of a collective; the group is "" where it has none."""
    parts = re.fullmatch(r"(\w+?)__(\w+?)_\d+_\d+(?:@.*)?", name)
    return (parts[1], parts[2]) if parts else (name.partition("@")[0], "")


def rank_of(folder: Path) -> int | None:
    """The rank in the ``profiler_info`` of a folder; Problem (TRACE) where two ranks share it."""
    files = sorted(folder.glob("profiler_info*.json"))
    if len(files) > 1:
        raise several(folder, "ranks", [file.name for file in files])
    if not files:
        return None
    rank = mapping(loaded(files[0])).get("rank_id")
    named = re.search(r"_(\d+)$", files[0].stem)
    return rank if isinstance(rank, int) and rank >= 0 else int(named[1]) if named else None


_SETTINGS = {
    "_profiler_level": "level", "_aic_metrics": "AI Core metrics", "_l2_cache": "L2 cache", "activities": "activities",
    "record_shapes": "shapes", "profile_memory": "memory", "with_stack": "stacks", "with_modules": "modules",
    "torch_npu_version": "torch_npu", "cann_version": "CANN",
}  # fmt: skip
"""Name in ``profiler_info.json`` → what it sets."""


def settings_of(folder: Path) -> dict[str, str]:
    """With which settings the profiler recorded a folder, and in which releases; nothing where that was not left."""
    info = mapping(next((loaded(file) for file in sorted(folder.glob("profiler_info*.json"))), None))
    config = mapping(info.get("config"))
    known = {**mapping(config.get("common_config")), **mapping(config.get("experimental_config")), **info}
    return {word: _word(known[name]) for name, word in _SETTINGS.items() if known.get(name) not in (None, "")}


def _word(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def world_of(folder: Path) -> int | None:
    """How many ranks the run of a folder has, by its ``profiler_metadata.json``; None where that does not say so."""
    world = mapping(mapping(loaded(folder / "profiler_metadata.json")).get("distributed_args")).get("world_size")
    return world if isinstance(world, int) and world > 0 else None


def vendor_steps(output: Path) -> dict[str, dict[str, int]] | None:
    """The content of ``step_trace_time.csv``: step → column → whole nanoseconds; None without it."""
    steps: dict[str, dict[str, int]] = {}
    for row in rows(output / "step_trace_time.csv"):
        values = steps[str(row.get("Step") or "")] = {}
        for column, name in COLUMNS.items():
            with contextlib.suppress(ValueError):
                values[name] = nanoseconds(row.get(column) or "")
    return steps if steps or (output / "step_trace_time.csv").is_file() else None


def rows(file: Path) -> Iterator[Mapping[str, str]]:
    """The rows of a small table; none where there is no file."""
    found = cells(file)
    heads = next(found, [])
    for row in found:
        yield dict(zip(heads, row, strict=False))


def cells(file: Path) -> Iterator[list[str]]:
    """The cells of each row of a table, its heads first, up to what is no table; nothing where there is no file."""
    if file.is_file():
        with file.open(encoding="utf-8", errors="replace", newline="") as lines, contextlib.suppress(csv.Error):
            yield from filter(None, csv.reader(line.replace("\0", "") for line in lines))


_INFOS = ("Time", "Bandwidth")


class TimedStep(NamedTuple):
    """A collective of ``communication.json``, in nanoseconds; ``parts`` are its transit, waiting and idle time.

    ``sent`` are the bytes that it moved over links, None where none are known, ``pieces`` those within the node.
    """

    step: int
    name: str
    begin: int
    ns: int
    parts: tuple[int, int, int]
    sent: int | None = None
    pieces: tuple[LinkPiece, ...] = ()


def timed(output: Path) -> Iterator[TimedStep]:
    """The collectives of ``communication.json``, those whose step has no number as of step 0."""
    for step, kinds in mapping(loaded(output / "communication.json")).items():
        number = re.fullmatch(r"step(\d{1,18})", step)
        for kind in ("collective", "p2p"):
            for name, details in mapping(mapping(kinds).get(kind)).items():
                times, links = (mapping(mapping(details).get(f"Communication {what} Info")) for what in _INFOS)
                values = [_milliseconds(times.get(f"{column} Time(ms)")) for column in ("Transit", "Wait", "Idle")]
                begin, ns = (_milliseconds(times.get(key)) for key in ("Start Timestamp(us)", "Elapse Time(ms)"))
                if "@" in name and None not in values:
                    parts = tuple(values)
                    sent = sum(bytes_of(mapping(links.get(link)).get("Transit Size(MB)")) for link in LINKS)
                    at = int(number[1]) if number else 0
                    pieces = tuple(_pieces(links))
                    yield TimedStep(at, name, begin or 0, ns or 0, parts, sent or None, pieces)  # type: ignore[arg-type]


def _pieces(links: Mapping[str, Any]) -> Iterator[LinkPiece]:
    """The pieces of a collective; none of what the vendor writes otherwise."""
    for link in WITHIN:
        for size, values in mapping(mapping(links.get(link)).get("Size Distribution")).items():
            with contextlib.suppress(ValueError, TypeError):
                count, milliseconds = values
                yield piece(float(size), count, milliseconds)


def piece(megabytes: object, count: object, milliseconds: object) -> LinkPiece:
    """So many pieces of a size, and how long they took; ValueError if these are no numbers."""
    size, ns = bytes_of(megabytes), _milliseconds(milliseconds)
    if not size or ns is None or not isinstance(count, int) or count < 1:
        raise ValueError("no piece")
    return LinkPiece(size, count, ns)


def transits(output: Path) -> Transits:
    """The times of the collectives in ``communication.json``."""
    found: Transits = {}
    for one in sorted(timed(output), key=lambda one: (one.begin, one.parts)):
        found.setdefault(one.name.partition("@")[0], []).append((one.parts, one.sent, one.pieces))
    return found


def types(output: Path) -> dict[str, str]:
    """The type of each kernel of ``kernel_details.csv`` by its name: MatMulV2 for what aclnn calls by where it is."""
    found = dict(_pairs(output / DETAILS, "Name", "Type"))
    for file in output.glob("op_summary_*.csv"):  # what msprof exports by itself
        found |= _pairs(file, "Op Name", "OP Type")
    return found


def _pairs(file: Path, first: str, second: str) -> Iterator[tuple[str, str]]:
    """The cells of two columns, of rows that have both."""
    found = cells(file)
    heads = next(found, [])
    if {first, second} <= set(heads):
        one, other = heads.index(first), heads.index(second)
        for row in found:
            if len(row) > max(one, other) and row[one] and row[other]:
                yield row[one], row[other]


def loaded(file: Path) -> object:
    """The content of a small JSON file; None where it is not there, or no JSON."""
    try:
        with reading(file) as stream:
            return json.loads(stream.read().decode("utf-8", "replace"), strict=False)
    except (OSError, ValueError, RecursionError):
        return None


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _milliseconds(value: object) -> int | None:
    return round(value * 1_000_000) if isinstance(value, int | float) and abs(value) < 1e15 else None


def bytes_of(megabytes: object) -> int:
    """The bytes of a size of the vendor's, whose MB are millions; 0 for none."""
    return round(megabytes * 1_000_000) if isinstance(megabytes, int | float) and 0 <= megabytes < 1e9 else 0
