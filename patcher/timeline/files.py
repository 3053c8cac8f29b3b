"""The files of a timeline: which processes wrote some below a folder, and what stands in them, block by block.

Anything may stand in a file: it is bounded where it is read, and what is no record is counted and left out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from patcher.store.filesystem.opened import reading
from patcher.traces.words import short

FORMAT = 1
"""The number of the format in the header of a file."""

FOLDER = "timeline"
"""Below the folder that traces go to."""

NAME = re.compile(
    r"(?P<host>.+)_(?P<pid>\d{1,10})_(?P<started>\d{1,16})\.jsonl\.gz(?P<old>\.old)?", re.ASCII | re.DOTALL
)

KINDS = (
    "phase", "step", "call", "work", "unit", "wait", "sync", "sleep", "poll", "trajectory", "reward", "request",
    "serve",
)  # fmt: skip

SMALLEST = 200
"""Bytes of a file that may still be without its header."""

_CHUNK = 1 << 20
_LONGEST_LINE = 12 << 20
"""Bytes of a line: it holds at most the 131,072 records that a process keeps until it writes."""

_LEAST_BYTES, _MOST_PACKED = 1 << 20, 50
"""Bytes that any file may unpack to, and how many times its size it may be: iterations all alike come to 25 times."""

_LEAST_LINES, _SHORTEST_LINE = 1_000, 8
"""Lines that any file may have, and packed bytes of each more: a line is flushed by itself, which takes 14."""

_LATEST = 1 << 60
_LATE_US = 10_000_000
"""A block may hold what ended while it was put together: so much later than its clock says, if the machine is busy."""

_EARLY_US = 100 * 86_400_000_000
"""No record began so long before the block that has it: a hundred days."""

_ENVIRON = ("RANK", "WORLD_SIZE", "VERL_REPLICA_RANK")


class KeptSpan(NamedTuple):
    """A span as recorded, on the common clock in microseconds; ``end`` is None while it goes on.

    ``process`` is the place of the process in its run, ``amount`` a number (of prompt tokens, or of a step) or None.
    """

    start: int
    end: int | None
    kind: str
    name: str
    amount: int | None
    id: int
    parent: int
    process: int


class IterationColumns:
    """Iterations of an engine in columns, by their start: start, end, requests, tokens, sum of contexts."""

    def __init__(self) -> None:
        self.start, self.end = array("q"), array("q")
        self.requests, self.tokens, self.context = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.start)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """All columns, in the order in which `extend` takes them."""
        return self.start, self.end, self.requests, self.tokens, self.context

    def extend(self, *columns: Iterable[int]) -> None:
        """More iterations, in the same columns."""
        for column, values in zip(self.columns, columns, strict=True):
            column.extend(values)

    def forget(self, count: int) -> None:
        """Drop the first ``count``."""
        for column in self.columns:
            del column[:count]


@dataclass(frozen=True)
class ProcessFile:
    """One file: its header, and what a look at the whole of it shows.

    ``begin`` is when the first of its records began, by its monotonic clock.
    ``first`` and ``last`` are the pairs of clocks (monotonic, wall; microseconds) of its first and last block, None
    without any. ``kinds`` are the kinds of records in it, ``iteration`` among them. ``who`` is the last that it says of
    its rank, ``ended`` that its process ended by itself, ``lost`` counts lines that are no records, ``cut`` says that
    the compressed stream is damaged. Ids up to ``before`` are of the process from which this one was forked.
    """

    path: Path
    size: int
    host: str
    boot: str
    pid: int
    parent: int
    started: int
    command: str
    run: str
    tool: str
    package: str
    environ: Mapping[str, int]
    before: int = 0
    begin: int = 0
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    kinds: frozenset[str] = frozenset()
    who: Mapping[str, int] = field(default_factory=dict)
    ended: bool = False
    lost: int = 0
    cut: bool = False


@dataclass
class Losses:
    """What could not be read of a file so far: ``too_large`` is the name of one that unpacks to too much."""

    lines: int = 0
    cut: bool = False
    too_large: str = ""


def paths(folder: Path) -> list[Path]:
    """The files of timelines in ``folder``, in its folder ``timeline``, or in those of its folders that have one.

    Several machines may each have left a folder of their own there.
    """
    places = [
        folder,
        folder / FOLDER,
        *folder.glob(f"*/{FOLDER}"),
        *folder.glob(f"*/*/{FOLDER}"),
        *folder.glob(f"{FOLDER}/*"),
    ]
    found = {path for place in places if place.is_dir() for path in place.iterdir() if NAME.fullmatch(path.name)}
    return sorted(path for path in found if path.is_file())


def lines(path: Path, losses: Losses, read: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """The lines of a file up to the last whole one, also of one that is still written or whose end is missing.

    ``read`` is called with the number of compressed bytes that were read since. Reading ends where a file unpacks to
    more than the processes of a run pack. Raises OSError.
    """
    stream, rest = zlib.decompressobj(31), b""
    unpacked, count, allowed, most_lines = 0, 0, _LEAST_BYTES, _LEAST_LINES
    with reading(path) as file:
        while chunk := file.read(_CHUNK):
            read(len(chunk))
            allowed += len(chunk) * _MOST_PACKED
            most_lines += len(chunk) // _SHORTEST_LINE
            while chunk:
                try:
                    piece = stream.decompress(chunk, _CHUNK)
                except zlib.error:
                    losses.cut = True
                    return
                chunk = stream.unconsumed_tail
                unpacked, count = unpacked + len(piece), count + piece.count(b"\n")
                if unpacked > allowed or count > most_lines:
                    losses.cut, losses.too_large = True, path.name
                    return
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
                if len(rest) > _LONGEST_LINE:
                    losses.lines, rest = losses.lines + 1, b"\0"  # no JSON: what follows of it is lost with it
            if stream.eof:
                return


def blocks(path: Path, losses: Losses, read: Callable[[int], None] = lambda _: None) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file; what is none is counted in ``losses``. Raises OSError."""
    for line in lines(path, losses, read):
        block = _parsed(line)
        if block is None:
            losses.lines += 1
        else:
            yield block


def _parsed(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        block = json.loads(line)
        return block if isinstance(block, dict) else None
    return None


def number(value: object) -> int | None:
    """A whole number that a clock or a counter can have; None for anything else."""
    return value if type(value) is int and -_LATEST < value < _LATEST else None


def text(value: object, room: int = 80) -> str:
    """A text that may stand in a line; "" for anything else."""
    return _clean(value, room) if isinstance(value, str) else ""


_clean = functools.lru_cache(4096)(short)


def pair(block: Mapping[str, Any]) -> tuple[int, int] | None:
    """The clocks of a block, monotonic and wall; None where there are none."""
    at = block.get("at")
    if isinstance(at, list) and len(at) == 2:
        mono, wall = map(number, at)
        if mono is not None and wall is not None and mono >= 0:
            return mono, wall
    return None


class NewerVersion(Exception):  # noqa: N818  (not an error of the program: the file is left out)
    """A file of a newer rlpatch."""


def survey(path: Path, read: Callable[[int], None] = lambda _: None) -> ProcessFile | None:
    """What a file is of, from a look at the whole of it; None where it has no header yet, or is none of ours.

    Raises NewerVersion for one whose version this rlpatch does not read, and OSError.
    """
    losses = Losses()
    found = lines(path, losses, read)
    header = _header(path, next(found, b""))
    if header is None:
        return None
    first = last = b""
    who, unseen = dict[str, int](), {kind: f'"{kind}"'.encode() for kind in (*KINDS, "iterations")}
    for line in found:
        first, last = first or line, line or last
        unseen = {kind: quoted for kind, quoted in unseen.items() if quoted not in line}
        if b'"who"' in line:
            who = _numbers((_parsed(line) or {}).get("who")) or who
    begin, end = _parsed(first) or {}, _parsed(last) or {}
    kinds = frozenset({*KINDS, "iterations"} - {*unseen})
    return replace(
        _headed(path, header), begin=_earliest(begin), first=pair(begin), last=pair(end), kinds=kinds, who=who,
        ended=bool(end.get("end")), cut=losses.cut, lost=losses.lines,
    )  # fmt: skip


def _header(path: Path, line: bytes) -> dict[str, Any] | None:
    """The first line of a file; None where it is none of ours. Raises NewerVersion."""
    header = _parsed(line) or {}
    version = header.get("rlpatch timeline")
    if type(version) is not int:
        return None
    if version != FORMAT:
        raise NewerVersion(str(path))
    return header


def _earliest(block: Mapping[str, Any]) -> int:
    """When the first record of a block began, by its monotonic clock."""
    reader = Reader((), 0)
    reader.take(block)
    starts = [span.start for span in (*reader.spans, *reader.open.values())] + list(reader.iterations.start[:1])
    return min([*starts, (pair(block) or (0, 0))[0]])


def _headed(path: Path, header: Mapping[str, Any]) -> ProcessFile:
    name = NAME.fullmatch(path.name)
    environ = header.get("environ")
    known = environ if isinstance(environ, dict) else {}
    words = {key: known[key] for key in _ENVIRON if isinstance(known.get(key), str)}
    return ProcessFile(
        path=path, size=path.stat().st_size, host=text(header.get("host")), boot=text(header.get("boot")),
        pid=number(header.get("pid")) or 0, parent=number(header.get("parent")) or 0,
        started=int(name["started"]) if name else 0, command=text(header.get("command")),
        run=text(header.get("run"), 200), tool=text(header.get("tool"), 20),
        before=max(number(header.get("before")) or 0, 0),
        package=" ".join(filter(None, (text(header.get("package"), 40), text(header.get("release"), 40)))),
        environ={key: int(word) for key, word in words.items() if word.isascii() and word.isdigit() and len(word) < 10},
    )  # fmt: skip


def _numbers(value: object) -> dict[str, int]:
    known = value if isinstance(value, dict) else {}
    return {key: one for key in ("rank", "dp") if (one := number(known.get(key))) is not None and one >= 0}


class Reader:
    """The records of one process, read as far as they are needed and forgotten when they are not.

    ``offset`` is added to its clock to have the common one. ``upto`` is the time up to which all is read that had
    ended then; ``open`` are the spans that go on, by their id, ``marks`` those that end a step, ``stale`` how many
    steps older the weights of its trajectories were, by the id of the mark. ``highest`` and ``count`` tell of ids that
    are missing.
    """

    def __init__(
        self, files: Sequence[Path], process: int, offset: int = 0, read: Callable[[int], None] = lambda _: None
    ) -> None:
        self.process, self.offset = process, offset
        self.spans: list[KeptSpan] = []
        self.open: dict[int, KeptSpan] = {}
        self.marks: list[KeptSpan] = []
        self.stale: dict[int, float] = {}
        self.iterations = IterationColumns()
        self.upto, self.done = -_LATEST, False
        self.losses = Losses()
        self.highest = self.count = 0
        self._blocks = (block for path in files for block in blocks(path, self.losses, read))

    def advance(self, until: int) -> None:
        """Read until all is known that has ended before ``until``, or the file ends."""
        while self.upto < until and self.step():
            pass

    def step(self) -> bool:
        """Read one more block; False at the end of the file."""
        block: Mapping[str, Any] | None = None
        with contextlib.suppress(OSError):  # replaced or taken away since: what was read stays
            block = next(self._blocks, None)
        if block is None:
            self.done = True
            return False
        self.take(block)
        return True

    def take(self, block: Mapping[str, Any]) -> None:
        """Take the records of a block."""
        if at := pair(block):
            now = at[0] + self.offset
            self._take_spans(block.get("spans"), now)
            self._take_iterations(block.get("iterations"), now)
            self.upto = max(self.upto, now)

    def _take_spans(self, rows: object, now: int) -> None:
        for row in rows if isinstance(rows, list) else ():
            span = _span(row, now, self.process)
            if span is None:
                self.losses.lines += 1
                continue
            self._count(span.id)
            if span.end is None:
                self.open[span.id] = span
            else:
                self.open.pop(span.id, None)
                self.spans.append(span)
                if span.kind == "step" or (span.kind, span.name) == ("phase", "step"):
                    self.marks.append(span)
                    self.stale |= _stale(span, row)

    def _take_iterations(self, columns: object, now: int) -> None:
        if not isinstance(columns, list) or len(columns) < 3 or not all(map(_is_column, columns[:6])):
            self.losses.lines += columns is not None
            return
        count = min(map(len, columns[:3]))
        ids, starts, lengths = (one[:count] for one in columns[:3])
        amounts = [one if len(one) == count else [0] * count for one in (columns[3:] + [[]] * 3)[:3]]
        # Each value is the difference to the one before it; the first start is one to the time of the block.
        ids, starts = list(accumulate(ids)), list(accumulate(starts, initial=now))[1:]
        amounts = [list(accumulate(one)) for one in amounts]
        least, most = min(min(one, default=0) for one in (ids, lengths, *amounts)), now + _LATE_US
        largest = max(max(one, default=0) for one in (ids, *amounts))
        outside = not now - _EARLY_US < min(starts, default=now) <= max(starts, default=now) <= most
        if least < 0 or largest >= _LATEST or outside:
            self.losses.lines += 1
            return
        ends = [min(start + length, most) for start, length in zip(starts, lengths, strict=True)]
        self.iterations.extend(starts, ends, *amounts)
        self.highest, self.count = max(self.highest, *ids, 0), self.count + count

    def _count(self, identity: int) -> None:
        self.highest, self.count = max(self.highest, identity), self.count + 1

    def forget(self, before: int) -> list[KeptSpan]:
        """Drop what ended before ``before``, and give its spans back; iterations are dropped, too."""
        gone = [span for span in self.spans if span.end is not None and span.end <= before]
        if gone:
            self.spans = [span for span in self.spans if span.end is None or span.end > before]
        count = 0
        while count < len(self.iterations) and self.iterations.end[count] <= before:
            count += 1
        self.iterations.forget(count)
        return gone


def _is_column(values: object) -> bool:
    """Whether it is a list of whole numbers that a clock or a counter can have."""
    if not isinstance(values, list) or not all(type(one) is int for one in values):
        return False
    return min(values, default=0) > -_LATEST and max(values, default=0) < _LATEST


def _stale(mark: KeptSpan, row: Sequence[object]) -> dict[int, float]:
    """What a mark says of how old the weights were, by its id."""
    amount = row[7] if len(row) > 7 else None
    age = amount[1] if isinstance(amount, list) and len(amount) > 1 else None
    return {mark.id: float(age)} if isinstance(age, (int, float)) and 0 <= age < _LATEST else {}


def _span(row: object, now: int, process: int) -> KeptSpan | None:
    """A row of spans; None where it is none."""
    if not isinstance(row, list) or len(row) < 5:
        return None
    identity, parent, kind, name, start, length, _, amount = [*row, None, None, None][:8]
    begin = number(start)
    if number(identity) is None or begin is None or not -_EARLY_US < begin < _LATE_US or kind not in KINDS:
        return None
    if length is not None and (number(length) is None or length < 0 or begin + length > _LATE_US):
        return None
    return KeptSpan(
        now + begin, None if length is None else now + begin + length, kind, text(name, 60),
        number(amount[0] if isinstance(amount, list) and amount else amount), identity, number(parent) or 0, process,
    )  # fmt: skip
