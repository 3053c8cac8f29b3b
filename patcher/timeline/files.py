"""The files of a timeline: where they are below a folder, and the records in them, block by block.

A file may hold anything: reading it takes bounded memory, and lines that are no records are counted and left out.
"""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, repeat, takewhile
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from patcher.progress import Progress, ignore
from patcher.store.filesystem.opened import reading
from patcher.timeline import stalls
from patcher.timeline.intervals import TimeRange, end_of
from patcher.traces.words import short

FORMAT = 1
"""The number of the format in the header of a file."""

FOLDER = "timeline"
"""Name of the folder with timeline files, below the folder of the traces."""

NAME = re.compile(r".+_\d{1,10}_(?P<started>\d{1,16})\.jsonl\.gz(\.old)?")

KINDS = (
    "phase", "step", "call", "work", "unit", "wait", "sync", "sleep", "poll", "trajectory", "reward", "request",
    "serve", "pause", "batch", "route", "send", "gc",
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

_PIECE = 4096
"""Compressed bytes that are unpacked at once where a stream is damaged, before it is unpacked byte by byte."""

_ROW = re.compile(rb'\[\s*-?\d+\s*,[^,\[\]"]*,\s*"([a-z]+)"\s*,')
"""Kind of a span in a line: no text of a record can look like it, because its quotes are escaped."""

_LATEST = 1 << 60
"""Larger than any clock or counter."""

_LATE_US = 10_000_000
"""Microseconds by which a record may end after its block's time: it ended while the block was put together."""

_EARLY_US = 100 * 86_400_000_000
"""Microseconds by which a record may begin before its block's time at most: a hundred days."""

_LARGEST_MIB = 1 << 40
"""Larger than any memory, in MiB."""

_Number = Annotated[int, msgspec.Meta(gt=-_LATEST, lt=_LATEST)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_LATEST)]


class Header(msgspec.Struct, frozen=True):
    """First line of a file. Ids of records up to ``before`` belong to the process that forked this one."""

    host: str = ""
    boot: str = ""
    pid: _Count = 0
    parent: _Count = 0
    command: str = ""
    run: str = ""
    package: str | None = None
    release: str | None = None
    before: _Count = 0
    environ: dict[str, str] = {}


class _Version(msgspec.Struct, rename={"number": "rlpatch timeline"}):
    number: int


class ProcessIdentity(msgspec.Struct):
    """Identity that a process reports as soon as it is known."""

    rank: _Count | None = None


class Block(msgspec.Struct):
    """Records that a process wrote together; ``at`` are its monotonic and wall clocks then, in microseconds.

    ``spans`` are rows. ``iterations`` are columns: ids, starts, lengths, requests, tokens, contexts, longest contexts,
    the thread's CPU times at the starts, rollouts, and columns that are not read. All but the lengths are differences
    to the value before; the first start is relative to the block's time. ``memory`` are rows for `MemoryNote`, in MiB.
    ``blocks`` are the size of a KV cache, and columns of times and of blocks in use, as differences. ``host`` is what
    is available on the host and its size, in MiB. ``cpu_waits`` are rows of a time (relative to the block's), the
    microseconds before it, and how many of these a thread had no CPU.
    """

    at: tuple[_Count, _Number] | None = None
    spans: list[msgspec.Raw] = []
    iterations: msgspec.Raw = msgspec.Raw()
    memory: msgspec.Raw = msgspec.Raw()
    blocks: msgspec.Raw = msgspec.Raw()
    host: msgspec.Raw = msgspec.Raw()
    device: msgspec.Raw = msgspec.Raw()
    cpu_waits: msgspec.Raw = msgspec.Raw()
    who: ProcessIdentity | None = None
    end: Any = None


class RecordRow(msgspec.Struct, array_like=True):
    """A span in a block; ``start`` (relative to the block's time) and ``length`` are in microseconds.

    ``amount`` is a number (of prompt tokens, or of a step), or a list: this number and the mean age of the weights in
    steps, or a micro-batch's tokens without and with padding and its CPU time. ``waited`` are the microseconds in
    collectives that blocked the host; None if they are unknown.
    """

    id: _Number
    parent: Any
    kind: str
    name: Any
    start: Annotated[int, msgspec.Meta(gt=-_EARLY_US, lt=_LATE_US)]
    length: _Count | None = None
    key: Any = None
    amount: Any = None
    waited: Any = None


class KeptSpan(NamedTuple):
    """A span on the common clock, in microseconds; ``end`` is None while the span goes on.

    ``process`` is the index of the process in its run, ``amount`` a number (of prompt tokens, of a step, or of a
    micro-batch's tokens) or None. ``waited`` is the time in collectives that blocked the host, None if that is unknown.
    ``more`` of a micro-batch are its tokens with padding, and the microseconds of its thread's CPU time, None where
    unknown; else (). ``key`` is the id of a request or of its routing, else "".
    """

    start: int
    end: int | None
    kind: str
    name: str
    amount: int | None
    id: int
    parent: int
    process: int
    waited: int | None = None
    more: tuple[int | None, ...] = ()
    key: str = ""


class CpuWait(NamedTuple):
    """Range on the common clock in which a thread was ready to run, but had no CPU for ``waited``; in microseconds."""

    start: int
    end: int
    waited: int


class ProcessDevice(msgspec.Struct, frozen=True):
    """Device of a process: its index among those that ``visible`` lets the process see, and its size in MiB."""

    index: _Count
    visible: str = ""
    name: str = ""
    uuid: str = ""
    total: _Count = 0


class MemoryNote(NamedTuple):
    """Memory of a process at a time on the common clock (microseconds), in bytes.

    ``private`` is resident and not shared. ``free`` is that of the device, ``allocated``, ``reserved`` and ``peak`` are
    this process's share of it; None without a device.
    """

    at: int
    private: int
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None


class HostNote(NamedTuple):
    """Memory that is available on a host at a time (microseconds), and its size, in bytes."""

    at: int
    available: int
    total: int


class CacheNote(NamedTuple):
    """KV-cache blocks in use at a time (microseconds), and how many there are."""

    at: int
    used: int
    total: int


Note = MemoryNote | HostNote | CacheNote
"""What one process noted of memory."""


class IterationColumns:
    """Iterations of an engine as columns, in order: start and end in microseconds, requests, tokens, and more.

    ``context`` is the sum over the requests, ``longest`` that of one request, ``cpu`` the CPU time of the engine's
    thread at the start, in microseconds, ``rollout`` counts from 1, and ``id`` is the record's. They are 0 where a file
    does not have them.
    """

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(9))
        self.start, self.end, self.requests, self.tokens, *more = self._columns
        self.context, self.longest, self.cpu, self.rollout, self.id = more

    def __len__(self) -> int:
        return len(self.start)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield start, end, requests and tokens of each iteration."""
        return zip(self.start, self.end, self.requests, self.tokens, strict=True)

    def extend(self, start: Sequence[int], *columns: Iterable[int]) -> None:
        """Append iterations as columns in the order of the class; columns that are not given are filled with 0."""
        zeros = repeat([0] * len(start), len(self._columns) - 1 - len(columns))
        for column, values in zip(self._columns, (start, *columns, *zeros), strict=True):
            column.extend(values)

    def forget(self, count: int) -> None:
        """Drop the first ``count`` iterations."""
        for column in self._columns:
            del column[:count]


class ProcessFile(Header, frozen=True, kw_only=True):
    """One file: its header with printable texts, and a summary of the records.

    ``package`` includes the release. ``started`` is in milliseconds since 1970, ``begin`` the start of the first record
    by the monotonic clock, in microseconds. ``first`` and ``last`` are the clocks (monotonic, wall; microseconds) of
    the first and last block, None without blocks. ``kinds`` are the kinds of records, including ``iterations``.
    ``rank`` is the last one reported, ``ended`` tells that the process ended by itself, ``cut`` that the compressed
    stream is damaged.
    """

    path: Path
    started: int
    package: str
    begin: int
    first: tuple[int, int] | None
    last: tuple[int, int] | None
    kinds: frozenset[str]
    rank: int | None
    ended: bool
    cut: bool

    @property
    def clocks(self) -> tuple[int, int]:
        """Return the newest monotonic and wall clock, in microseconds."""
        return self.last or self.first or (0, self.started * 1000)

    def number(self, variable: str) -> int | None:
        """Return the whole number in an environment variable of the process; None for anything else."""
        text = self.environ.get(variable, "")
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


@dataclass
class Losses:
    """Parts of files that could not be read so far; ``too_large`` names a file that unpacks to too much, else ""."""

    lines: int = 0
    cut: bool = False
    too_large: str = ""


def paths(folder: Path) -> list[Path]:
    """Return the timeline files in ``folder`` and below it, sorted; [] if it does not exist.

    Below it are folders called ``timeline``, up to three levels deep, and the folders in ``folder/timeline``. A folder
    that may not be read is returned in place of its files.
    """
    places = [
        folder,
        folder / FOLDER,
        *folder.glob(f"*/{FOLDER}"),
        *folder.glob(f"*/*/{FOLDER}"),
        *folder.glob(f"{FOLDER}/*"),
    ]
    files = set[Path]()
    for place in places:
        try:
            if place.is_dir():
                files.update(path for path in place.iterdir() if NAME.fullmatch(path.name) and path.is_file())
        except PermissionError:
            files.add(place)
    return sorted(files)


def lines(path: Path, losses: Losses, progress: Progress = ignore) -> Iterator[bytes]:
    """Yield the complete lines of a compressed file, even if the file is still written or its end is missing.

    Stop at damage, or if the file unpacks to more than rlpatch ever packs; note both in ``losses``. Also note lines
    that are too long there; of each, only the end is yielded, after a NUL byte. Raises OSError.
    """
    stream = zlib.decompressobj(31)
    partial = b""
    unpacked = count = 0
    allowed, most_lines = _LEAST_BYTES, _LEAST_LINES
    with reading(path) as file:
        while chunk := file.read(_CHUNK):
            progress(len(chunk))
            allowed += len(chunk) * _MOST_PACKED
            most_lines += len(chunk) // _SHORTEST_LINE
            while chunk:
                before = stream.copy()
                try:
                    piece = stream.decompress(chunk, _CHUNK)
                    chunk = stream.unconsumed_tail
                except zlib.error:
                    losses.cut = True
                    piece, chunk = _unpack_until_damage(before, chunk), b""
                unpacked, count = unpacked + len(piece), count + piece.count(b"\n")
                if unpacked > allowed or count > most_lines:
                    losses.cut = True
                    losses.too_large = path.name
                    return
                *whole, partial = (partial + piece).split(b"\n")
                yield from whole
                if len(partial) > _LONGEST_LINE:
                    losses.lines += 1
                    partial = b"\0"  # no JSON: what follows of it is lost with it
            if stream.eof or losses.cut:
                return


def _unpack_until_damage(stream: zlib._Decompress, chunk: bytes) -> bytes:
    """Return what ``chunk`` unpacks to before its damage.

    A call that fails returns nothing, so it goes piece by piece.
    """
    pieces = list[bytes]()
    for size in (_PIECE, 1):
        with contextlib.suppress(zlib.error):
            while chunk:
                attempt = stream.copy()
                pieces.append(attempt.decompress(chunk[:size]))
                stream, chunk = attempt, chunk[size:]
    return b"".join(pieces)


def blocks(path: Path, losses: Losses, progress: Progress = ignore) -> Iterator[Block]:
    """Yield the valid blocks of a timeline file; note damage and invalid lines in ``losses``.

    Raises OSError.
    """
    for line in lines(path, losses, progress):
        block = _decode_block(line)
        if block is None:
            losses.lines += 1
        else:
            yield block


_T = TypeVar("_T")


def _decoder(kind: type[_T]) -> Callable[[bytes | msgspec.Raw], _T | None]:
    """Return a function that decodes JSON to the type ``kind``; it returns None for invalid JSON or another type."""
    decode = msgspec.json.Decoder(kind).decode

    def decoded(text: bytes | msgspec.Raw) -> _T | None:
        try:  # contextlib.suppress would take longer than a row
            return decode(text)
        except (ValueError, RecursionError):
            return None

    return decoded


_decode_block, _decode_header, _decode_version = _decoder(Block), _decoder(Header), _decoder(_Version)
_decode_row, _decode_columns = _decoder(RecordRow), _decoder(list[list[int]])
_decode_device, _decode_host = _decoder(ProcessDevice), _decoder(tuple[_Count, _Count])
_decode_cache = _decoder(tuple[_Count, list[_Number], list[_Number]])

_clean = functools.lru_cache(4096)(short)


class NewerVersion(Exception):  # noqa: N818  (not an error of the program: the file is left out)
    """Error for a file that a newer rlpatch has written."""


def survey(path: Path, progress: Progress = ignore) -> ProcessFile | None:
    """Read a whole file and return its header, with its times, rank and kinds of records; None without a valid header.

    Raises NewerVersion for a version that this rlpatch does not read, and OSError.
    """
    losses = Losses()
    every_line = lines(path, losses, progress)
    head = next(every_line, b"")
    version = _decode_version(head)
    if version is not None and version.number != FORMAT:
        raise NewerVersion(str(path))
    header = _decode_header(head)
    if version is None or header is None:
        return None
    first = last = b""
    rank = None
    records = set[bytes]()
    iterates = False
    for line in every_line:
        first = first or line
        last = line if b'"at"' in line else last
        records.update(_ROW.findall(line))
        iterates = iterates or b'"iterations":' in line
        identity = (_decode_block(line) or Block()).who if b'"who"' in line else None
        rank = rank if identity is None or identity.rank is None else identity.rank
    kinds = {kind.decode() for kind in records} & {*KINDS} | ({"iterations"} if iterates else set())
    begin, end = _decode_block(first) or Block(), _decode_block(last) or Block()
    name = NAME.fullmatch(path.name)
    return ProcessFile(
        path=path, started=int(name["started"]) if name else 0, **_texts(header),
        pid=header.pid, parent=header.parent, before=header.before, environ=header.environ,
        begin=_first_start(begin), first=begin.at, last=end.at, kinds=frozenset(kinds), rank=rank,
        ended=bool(end.end), cut=losses.cut,
    )  # fmt: skip


def _texts(header: Header) -> dict[str, str]:
    """Return package with release, host, boot, command and run of a header by name, shortened and printable."""
    package = " ".join(_clean(text, 40) for text in (header.package, header.release) if text)
    longest = {"host": 80, "boot": 80, "command": 80, "run": 200}
    return {"package": package} | {key: _clean(getattr(header, key), most) for key, most in longest.items()}


def _first_start(block: Block) -> int:
    """Return the start of the earliest record in a block by the monotonic clock (µs), at most the time of writing."""
    reader = Reader((), 0)
    reader.add_block(block)
    starts = [span.start for span in (*reader.spans, *reader.open.values())]
    return min([*starts, *reader.iterations.start, (block.at or (0, 0))[0]])


def _short_text(value: object) -> str:
    """Return a text of a file in printable characters, cut to 60; "" for any other value."""
    return _clean(value, 60) if isinstance(value, str) else ""


class Reader:
    """Records of one process, read as far as needed and dropped afterwards.

    ``offset`` is added to the process's clock to get the common clock, in microseconds. Everything that ended
    before ``upto`` has been read. ``open`` are spans that go on, by id; ``marks`` are the spans that end a step;
    ``stale`` is the mean age of a step's weights, by the mark's id. ``stalls`` are times in which the process
    certainly stood still, ``cpu_waits`` those in which it waited for a CPU. ``notes`` are those of memory, ``device``
    is the one noted. ``highest`` id and ``count`` of records show how many are missing.
    """

    def __init__(self, files: Sequence[Path], process: int, offset: int = 0, progress: Progress = ignore) -> None:
        """Prepare to read ``files``, the older first; ``process`` is the index of the process in its run.

        ``offset`` is in microseconds. ``progress`` gets the number of compressed bytes after each read.
        """
        self.process, self.offset = process, offset
        self.spans: list[KeptSpan] = []
        self.open: dict[int, KeptSpan] = {}
        self.marks: list[KeptSpan] = []
        self.stale: dict[int, float] = {}
        self.iterations = IterationColumns()
        self.stalls: list[TimeRange] = []
        self.cpu_waits: list[CpuWait] = []
        self.notes: list[Note] = []
        self.device: ProcessDevice | None = None
        self._blocks_taken = self._late_blocks = 0
        self.upto, self.done = -_LATEST, False
        self.losses = Losses()
        self.highest = self.count = 0
        self._blocks = (block for path in files for block in blocks(path, self.losses, progress))

    def advance(self, until: int) -> None:
        """Read until all records that ended before ``until`` (microseconds) are read, or the files end."""
        while self.upto < until and self.read_block():
            pass

    def read_block(self) -> bool:
        """Read one more block; return False at the end of the files. An unreadable file counts as ended."""
        block = None
        with contextlib.suppress(OSError):  # replaced or taken away since: what was read stays
            block = next(self._blocks, None)
        if block is None:
            self.done = True
            return False
        self.add_block(block)
        return True

    def add_block(self, block: Block) -> None:
        """Add the records of a block, and a stall if the process stood still before it.

        A stall is a time in which the process certainly did not run; none is added if many blocks come late.
        """
        if block.at is not None:
            now = block.at[0] + self.offset
            before, counts, open_before = self.upto, (len(self.spans), len(self.iterations)), {*self.open}
            for raw in block.spans:
                self._add_row(_decode_row(raw), now)
            if block.iterations:
                self._add_iterations(_decode_columns(block.iterations), now)
            self._add_notes(block, now)
            self._add_cpu_waits(_decode_columns(block.cpu_waits) if block.cpu_waits else [], now)
            ended = [(span.start, end_of(span)) for span in self.spans[counts[0] :]]
            ended += zip(self.iterations.start[counts[1] :], self.iterations.end[counts[1] :], strict=True)
            begun = [span.start for span in self.open.values() if span.id not in open_before]
            late = stalls.stall_before_block(before, now, ended, begun)
            self._blocks_taken += 1
            self._late_blocks += late is not None
            if late and self._late_blocks * stalls.RARE <= self._blocks_taken:
                self.stalls.append(late)
            self.upto = max(self.upto, now)

    def _add_row(self, row: RecordRow | None, now: int) -> None:
        """Add the span in ``row`` to the spans, or to the open spans if it has no end yet.

        ``now`` is when the row's block was written, in microseconds; the row's start counts from it. An invalid row is
        counted as lost.
        """
        if row is None or row.kind not in KINDS or row.start + (row.length or 0) > _LATE_US:
            self.losses.lines += 1
            return
        amounts = row.amount if isinstance(row.amount, list) else [row.amount]
        start = now + row.start
        end = None if row.length is None else start + row.length
        name = _short_text(row.name)
        amount, parent = _number(next(iter(amounts), None)), _number(row.parent)
        waited = _number(row.waited)
        waited = None if waited is None or not 0 <= waited <= (row.length or 0) else waited
        more = tuple(map(_number, amounts[1:3])) if row.kind == "unit" else ()
        key = _short_text(row.key) if row.kind in ("request", "route") else ""
        span = KeptSpan(start, end, row.kind, name, amount, row.id, parent or 0, self.process, waited, more, key)
        self.highest = max(self.highest, span.id)
        self.count += 1
        if end is None:
            self.open[span.id] = span
            return
        self.open.pop(span.id, None)
        self.spans.append(span)
        if span.kind == "step" or (span.kind, span.name) == ("phase", "step"):
            self.marks.append(span)
            age = amounts[1] if len(amounts) > 1 else None
            if isinstance(age, int | float) and 0 <= age < _LATEST:
                self.stale[span.id] = float(age)

    def _add_iterations(self, columns: list[list[int]] | None, now: int) -> None:
        """Add the engine iterations of a block that was written at ``now`` (microseconds).

        ``columns`` has ids, starts and lengths, then amounts such as requests. All but the lengths are differences to
        the value before, for the first start to ``now``. If ``columns`` could not be decoded (None), or has a value out
        of range, nothing is added, and one loss is counted.
        """
        if columns is None or len(columns) < 3:
            self.losses.lines += 1
            return
        count = min(map(len, columns[:3]))
        ids = list(accumulate(columns[0][:count]))
        starts = list(accumulate(columns[1][:count], initial=now))[1:]
        lengths = columns[2][:count]
        amounts = [
            list(accumulate(column)) if len(column) == count else [0] * count
            for column in (*columns[3:9], *[[]] * 6)[:6]
        ]
        latest = now + _LATE_US
        counts = [0, *ids, *lengths, *chain(*amounts)]
        begin, end = min(starts, default=now), max(starts, default=now)
        if min(counts) < 0 or max(counts) >= _LATEST or begin <= now - _EARLY_US or end > latest:
            self.losses.lines += 1
            return
        ends = [min(start + length, latest) for start, length in zip(starts, lengths, strict=True)]
        self.iterations.extend(starts, ends, *amounts, ids)
        self.highest = max([self.highest, *ids])
        self.count += count

    def _add_notes(self, block: Block, now: int) -> None:
        """Add the notes of a block that was written at ``now`` (µs); each part that cannot be decoded is one loss."""
        rows = _decode_columns(block.memory) if block.memory else []
        host = _decode_host(block.host) if block.host else None
        cache = _decode_cache(block.blocks) if block.blocks else None
        device = _decode_device(block.device) if block.device else None
        parts = ((rows, block.memory), (host, block.host), (cache, block.blocks), (device, block.device))
        self.losses.lines += sum(part is None and bool(raw) for part, raw in parts)
        self.device = device or self.device
        self.notes.extend(filter(None, (_memory_note(row, now) for row in rows or ())))
        if host:
            self.notes.append(HostNote(now, *(min(size, _LARGEST_MIB) << 20 for size in host)))
        if cache and len(cache[1]) == len(cache[2]):
            self.notes.extend(_cache_notes(*cache, now))

    def _add_cpu_waits(self, rows: list[list[int]] | None, now: int) -> None:
        """Add the waits for a CPU in ``rows`` of a block that was written at ``now``, all in microseconds.

        A row is (end of the range relative to ``now``, its length, the wait in it).
        """
        for row in [[]] if rows is None else rows:
            if len(row) == 3 and -_EARLY_US < row[0] < _LATE_US and 0 < row[2] <= row[1] < _EARLY_US:
                end = now + row[0]
                self.cpu_waits.append(CpuWait(end - row[1], end, row[2]))
            else:
                self.losses.lines += 1

    def cpu_wait(self, start: int, end: int) -> int:
        """Return for how long a thread waited for a CPU between ``start`` and ``end``; all are microseconds.

        A noted wait is spread evenly over the range that it was noted for. 0 if none was noted.
        """
        first = bisect_right(self.cpu_waits, start, key=end_of)
        waited = 0.0
        for wait in takewhile(lambda wait: wait.start < end, islice(self.cpu_waits, first, None)):
            waited += wait.waited * (min(end, wait.end) - max(start, wait.start)) / (wait.end - wait.start)
        return min(round(waited), end - start)

    def take_notes(self, until: int) -> list[Note]:
        """Remove the notes of memory, host and KV cache up to ``until`` (microseconds), and return them."""
        due = [note for note in self.notes if note.at <= until]
        self.notes = [note for note in self.notes if note.at > until]
        return due

    def forget(self, before: int) -> list[KeptSpan]:
        """Drop spans, stalls, CPU waits and iterations that ended by ``before`` (microseconds); return the spans."""
        ended = [span for span in self.spans if end_of(span) <= before]
        self.spans = [span for span in self.spans if end_of(span) > before]
        self.stalls = [stall for stall in self.stalls if stall.end > before]
        self.cpu_waits = [wait for wait in self.cpu_waits if wait.end > before]
        ends = self.iterations.end
        self.iterations.forget(next((at for at, end in enumerate(ends) if end > before), len(ends)))
        return ended


def _memory_note(row: Sequence[int], now: int) -> MemoryNote | None:
    """Return the memory note in ``row``, a row of a block that was written at ``now``; None for an invalid row.

    A row has a time relative to ``now`` and two or six sizes in MiB: resident and shared, and those on the device. The
    note has bytes, and private memory instead of the first two: resident without shared.
    """
    at, *sizes = row or [0]
    if len(sizes) not in (2, 6) or min(sizes) < 0 or max(sizes) >= _LARGEST_MIB or not -_EARLY_US < at < _LATE_US:
        return None
    resident, shared, *of_device = (size << 20 for size in sizes)
    return MemoryNote(now + at, max(resident - shared, 0), *of_device)


def _cache_notes(total: int, times: Sequence[int], used: Sequence[int], now: int) -> Iterator[CacheNote]:
    """Yield the notes on a KV cache of ``total`` blocks from a block of the file that was written at ``now``.

    ``times`` and ``used`` (cache blocks in use) are differences to the value before; the first time is relative to
    ``now``.
    """
    for since, blocks in zip(accumulate(times), accumulate(used), strict=True):
        at = now + since
        if 0 <= blocks <= total and now - _EARLY_US < at < now + _LATE_US:
            yield CacheNote(at, blocks, total)


def _number(value: object) -> int | None:
    """Return ``value`` if it is a whole number in the range of clocks and counters, else None."""
    return value if type(value) is int and -_LATEST < value < _LATEST else None
