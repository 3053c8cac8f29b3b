"""Traces in Chrome's format, plain or gzip: all events of one, or in one pass whether it is whole and its step numbers.

The events come a block of 2 MB at a time, so the whole of a trace is never in memory. A block is cut behind an event
and decoded by msgspec into the few fields that a report needs. What is broken is read as far as it goes, and reported:
a file that was cut, control characters and NaN, which profilers write and JSON does not know (pytorch/pytorch 130622),
and single events that nothing can read.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal, DecimalException
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from patcher.messages import Kind, Problem, Text
from patcher.progress import Progress, ignore
from patcher.store.filesystem.opened import reading

BLOCK = 2 << 20
"""Bytes that are decoded at once."""

BEYOND = 1 << 63
"""Nanoseconds that no time is: columns have 64 bits."""

LARGEST = 32 << 20
"""Bytes: no event is as large, so where none ends within them, something opens that nothing closes. Nor is a header."""

_DEEPEST, _MOST_TOKENS, _MOST_HEADS = 1000, 1_000_000, 3
"""Limits of an event's nesting, of its brackets and texts, and of places that look like the start of the event list."""

_SCAN = 1 << 20
"""Bytes that a scan takes at once."""

_LEAST_UNPACKED, _MOST_PACKED = 64 << 20, 100
"""Bytes that any gzip file may unpack to, and how many times its size it may be: traces come to 10 to 30 times."""

_ENDS = 1 << 16
"""Bytes within which a trace begins the list of its events, and at its end closes it."""

_NEAR = 1 << 18
"""Bytes at the end of a block in which the last event of it ends; of larger ones the end is found token by token."""

_STEP = re.compile(rb"ProfilerStep#(\d{1,12})\b")
_LONGEST_STEP = len(b"ProfilerStep#") + 13
_BLANK, _BETWEEN_EVENTS = b"\xef\xbb\xbf \t\r\n", b", \t\r\n"

_HEAD = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_LIST, _PHASE = re.compile(rb"\s*\[\s*\{"), re.compile(rb'"ph"\s*:\s*"')
_TOKENS = re.compile(rb'"[^"\n]*"?|[{}\[\]]')  # a text that is not closed ends with its line
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NO_NUMBER = re.compile(rb"(:\s*)[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)
_PRINTABLE = bytes(max(byte, 0x20) for byte in range(256))
"""Control characters as spaces: between the tokens of JSON they mean the same, and in its texts they are forbidden."""

_Scalar = int | float | str | None
"""Type of fields that a report looks at only if they are what it expects: any scalar is decoded without a detour."""

_NOTHING = msgspec.Raw()


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "connection": "connection_id", "task": "Task Type", "forward": "Fwd thread id", "group": "Process Group Name",
        "collective": "Collective name", "sent": "In msg nelems", "received": "Out msg nelems", "ranks": "Group size",
        "type": "data_type", "dims": "Input Dims", "kinds": "Input type", "concrete": "Concrete Inputs",
        "bytes": "Bytes", "allocated": "Total Allocated", "place": "Device Id", "place_kind": "Device Type",
    },
):  # fmt: skip
    """The fields of an event's ``args`` that a report reads; None, or empty, for a missing field.

    ``dims``, ``kinds`` and ``concrete`` are undecoded JSON, because few events need them.
    """

    correlation: int | None = None
    stream: int | str | None = None
    device: int | str | None = None
    connection: int | None = None
    task: str | None = None
    kernel: _Scalar = None
    level: str | None = None
    forward: int | None = None
    domain: str | None = None
    group: str | None = None
    collective: _Scalar = None
    sent: _Scalar = None
    received: _Scalar = None
    ranks: _Scalar = None
    dtype: _Scalar = None
    count: _Scalar = None
    type: _Scalar = None
    dims: msgspec.Raw = _NOTHING
    kinds: msgspec.Raw = _NOTHING
    concrete: msgspec.Raw = _NOTHING
    bytes: int | None = None
    allocated: int | None = None
    place: int | None = None
    place_kind: int | None = None


class Event(msgspec.Struct, gc=False):
    """One event, with the field names of Chrome's trace format; ``ts`` is text, because a float loses nanoseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    id: int | str = 0
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: float = 0.0
    args: Args | None = None


_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _decode(data: bytes) -> list[Event]:
    """Decode a JSON list of events; a field of another type counts as missing.

    Raises ValueError for invalid JSON, RecursionError for nesting that is too deep.
    """
    try:
        return _decode_events(data)
    except msgspec.ValidationError:  # some field has another type: rare enough for the slow way
        return [_event(fields) for fields in _decode_objects(data)]


def _event(fields: Mapping[str, msgspec.Raw]) -> Event:
    """Decode an event, a JSON text for each field, as far as it goes."""
    values = _valid_fields(Event, fields)
    if "args" in fields and "args" not in values:
        with suppress(msgspec.ValidationError):
            values["args"] = Args(**_valid_fields(Args, _decode_object(fields["args"])))
    return Event(**values)


def _valid_fields(struct: type[msgspec.Struct], fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the attributes of ``struct`` whose ``fields`` have the right type; numbers may be texts."""
    values = {}
    for key, name, decode in _field_decoders(struct):
        if key in fields:
            with suppress(msgspec.ValidationError):
                values[name] = decode(fields[key])
    return values


@functools.cache
def _field_decoders(struct: type[msgspec.Struct]) -> list[tuple[str, str, Callable[[bytes], Any]]]:
    """Return (name in JSON, attribute, decoder) of each field."""
    return [
        (field.encode_name, field.name, msgspec.json.Decoder(field.type, strict=False).decode)
        for field in msgspec.structs.fields(struct)
    ]


def nanoseconds(microseconds: bytes | str) -> int:
    """Convert a text of microseconds, quoted or not, to whole nanoseconds.

    Raises ValueError if the text is no number, or its absolute value is 2**63 ns or more.
    """
    text = microseconds.encode() if isinstance(microseconds, str) else bytes(microseconds)
    if text[:1] == b'"':
        text = text[1:-1]
    time: Decimal | int
    try:
        time = int(text.replace(b".", b"", 1)) if text[-4:-3] == b"." else int(text) * 1000
    except ValueError:
        with suppress(DecimalException):
            time = Decimal(text.decode("ascii", "replace")) * 1000
            if abs(time) < BEYOND:
                return round(time)
    else:
        if abs(time) < BEYOND:
            return time
    raise ValueError(f"no time: {text[:40]!r}")


def times(event: Event) -> tuple[int, int]:
    """Return begin and end of an event in whole ns. Raises ValueError or OverflowError for an invalid time."""
    begin = nanoseconds(event.ts)
    end = begin + round(event.dur * 1000)
    if abs(end) >= BEYOND:
        raise OverflowError(Text("an event has the invalid duration {duration}", event.dur))
    return begin, end


class ChromeEvents:
    """The events of the trace at ``path``, a list for each block, and after the last one the state of the file.

    ``header`` holds the fields beside the events, ``cut`` the reason why the end is missing, ``lost`` the number of
    events that could not be read. Iterating raises Problem (TRACE) if the file is no such trace, OSError if it cannot
    be read.
    """

    def __init__(self, path: Path, progress: Progress = ignore, *, block: int = BLOCK) -> None:
        self.path, self.progress, self.block = path, progress, block
        self.header: dict[str, Any] = {}
        self.cut = ""
        self.lost = 0
        self._skipping = False

    def feed(self, take: Callable[[Iterator[Event]], None]) -> None:
        """Call ``take`` with an iterator of the events of each block, in order.

        An event at which ``take`` raises ValueError, OverflowError or TypeError is counted as lost, and ``take`` is
        called again with the events after it.
        """
        for events in self:
            remaining = iter(events)
            while True:
                try:
                    take(remaining)
                except (ValueError, OverflowError, TypeError):
                    self.lost += 1
                else:
                    break

    def __iter__(self) -> Iterator[list[Event]]:
        with reading(self.path) as raw:
            file = _Stream(raw, self.progress)
            unparsed, ended, goes_on = self._read_header(file), False, True
            while goes_on and not ended:
                events, at, ended = self._decode_whole(unparsed)
                yield events
                more = file.read(self.block if at else max(self.block, len(unparsed)))  # a long event stays linear
                unparsed = (unparsed[at:] + more).lstrip(_BETWEEN_EVENTS)
                goes_on = bool(at or more)
            if ended:
                unparsed = b"".join((unparsed, *iter(lambda: file.read(self.block), b""))).strip()
                self.header.update(_parse_object(b"{" + unparsed.removesuffix(b"}") + b"}") or {})
            self.cut = file.cut or ("" if ended else Text("the file is cut off within its list of events"))

    def _read_header(self, file: _Stream) -> bytes:
        """Read up to the opening of the list of events, and return the text read after it.

        Set ``header`` to the JSON object around the list, with what stands before it. A file that is only a list leaves
        ``header`` as it is. Raises Problem (TRACE) if the file is no such JSON.
        """
        unparsed = file.read(self.block).lstrip(_BLANK)
        if unparsed.startswith(b"["):
            return unparsed[1:]
        if not unparsed.startswith(b"{"):
            raise self._problem(
                Text("{name} is not JSON", self.path.name) if unparsed else Text("{name} is empty", self.path.name),
                file,
            )
        while True:
            for head in islice(_HEAD.finditer(unparsed), _MOST_HEADS):
                header = _parse_object(unparsed[: head.end()] + b"]}")
                if header is not None:
                    self.header = header
                    return unparsed[head.end() :]
            more = file.read(max(self.block, len(unparsed))) if len(unparsed) < LARGEST else b""
            if not more:
                raise self._problem(
                    Text(
                        "{name} has no traceEvents list in its first {count:,} bytes",
                        name=self.path.name,
                        count=len(unparsed),
                    ),
                    file,
                )
            unparsed += more

    def _problem(self, cause: str, file: _Stream) -> Problem:
        """Build a Problem (TRACE) about the file from ``cause``, and why the gzip file is cut off, if it is."""
        if file.cut:
            cause = Text("{cause}: {reason}", cause=cause, reason=file.cut)
        hint = Text(
            "run `rlpatch traces {parent}` to see which traces are complete", shlex.quote(str(self.path.parent))
        )
        return Problem(Kind.TRACE, cause, str(self.path), hint)

    def _decode_whole(self, unparsed: bytes) -> tuple[list[Event], int, bool]:
        """Return the whole events of ``unparsed``, the offset after the last one, and whether the list ends there.

        An offset of 0 means that more text is needed. Events that cannot be read are counted as lost.
        """
        if self._skipping:
            return self._skipped(unparsed)
        cuts = list(_BETWEEN.finditer(unparsed, max(len(unparsed) - _NEAR, 0)))
        for cut in reversed(cuts[-2:]):  # one that the decoder takes is right; what looks like one can lie in an event
            events = self._decode_or_repair(unparsed[: cut.start() + 1])
            if events is not None:
                return events, cut.end(), False
        whole, end = _whole_events(unparsed)
        if not whole and (end < 0 or (end == 0 and len(unparsed) > LARGEST)):
            self.lost += 1
            return self._skipped(unparsed)
        each = [self._decode_or_repair(unparsed[begin:after]) for begin, after in whole]
        self.lost += each.count(None)
        return (
            [event for events in each for event in events or ()],
            end if end > 0 else whole[-1][1] if whole else 0,
            end > 0,
        )

    def _skipped(self, unparsed: bytes) -> tuple[list[Event], int, bool]:
        """Skip text in which no event ends, up to where one seems to begin; returns the values of `_decode_whole`."""
        between, last = _BETWEEN.search(unparsed), unparsed.rfind(b"}", max(len(unparsed) - _NEAR, 0))
        self._skipping = not between
        return [], between.end() if between else last if last >= 0 else len(unparsed), False

    def _decode_or_repair(self, events: bytes) -> list[Event] | None:
        """Return the events in ``events``, a list without its brackets; None if one of them cannot be read.

        If decoding fails, it is tried once more with control characters and NaN replaced.
        """
        for broken in (False, True):
            try:
                return _decode(b"[" + (_repaired(events) if broken else events).lstrip(_BETWEEN_EVENTS) + b"]")
            except ValueError:
                continue
            except RecursionError:
                break
        return None


def has_events(path: Path) -> bool:
    """Tell whether a file begins like a Chrome trace, plain or gzip; False if it cannot be read."""
    head = first_bytes(path)
    return _HEAD.search(head) is not None or (_LIST.match(head) is not None and _PHASE.search(head) is not None)


def first_bytes(path: Path) -> bytes:
    """Return the first 64 KiB of a regular file, unpacked if it is gzip; empty if it cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return b""
        with reading(path) as raw:
            return _Stream(raw).read(_ENDS)
    except OSError:
        return b""


class _Stream:
    """Bytes of ``raw``, unpacked if the content, not the name, is gzip.

    Of a gzip file that is cut off, damaged or unpacks to too much, the bytes before are read, and ``cut`` is the
    reason. ``progress`` hears how many packed bytes were read.
    """

    def __init__(self, raw: BinaryIO, progress: Progress = ignore) -> None:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self.raw, self.unpacked = raw, gzip.GzipFile(fileobj=raw) if packed else None
        self.cut = ""
        self.total = 0
        self.progress, self.reported = progress, 0

    def read(self, size: int) -> bytes:
        """Return about ``size`` unpacked bytes, none at the end, and report to ``progress`` the packed bytes read."""
        data = self._read(size)
        at = self.raw.tell()
        self.progress(at - self.reported)
        self.reported = at
        return data

    def _read(self, size: int) -> bytes:
        """Return up to ``size`` unpacked bytes; sets ``cut`` if the gzip file is short, damaged or too large."""
        if self.unpacked is None:
            return self.raw.read(size)
        parts: list[bytes] = []
        missing = size
        try:
            while missing > 0 and not self.cut and (part := self.unpacked.read1(missing)):
                parts.append(part)
                missing -= len(part)
                self.total += len(part)
                if self.total > _LEAST_UNPACKED + _MOST_PACKED * self.raw.tell():
                    self.cut = Text("the gzip file unpacks to more than {limit} times its packed size", _MOST_PACKED)
        except EOFError:
            self.cut = Text("the gzip file is cut off")
        except (gzip.BadGzipFile, zlib.error) as error:
            self.cut = Text("the gzip file is damaged ({error})", error)
        return b"".join(parts)


# ---------------------------------------------------------------- one pass that keeps no event


class Scan(NamedTuple):
    """Result of one pass over a trace: numbers of its ``ProfilerStep#n``, whether it has events, and its first bytes.

    ``cut`` says why the end is missing, "" if the trace is complete.
    """

    steps: tuple[int, ...]
    events: bool
    head: bytes
    cut: str

    @property
    def is_json(self) -> bool:
        """Whether the file begins like JSON, or is empty."""
        return self.head.lstrip(_BLANK)[:1] in (b"", b"{", b"[")

    def distributed(self, name: str) -> int | None:
        """Return a number of distributedInfo in the header, such as ``rank`` or ``world_size``; None if missing.

        Only the first 64 KiB are searched.
        """
        description = re.search(rb'"distributedInfo"\s*:\s*\{[^}]*\}', self.head)
        value = description and re.search(rb'"%s"\s*:\s*(\d{1,9})\b' % name.encode(), description[0])
        return int(value[1]) if value else None


def scan(path: Path, progress: Progress = ignore) -> Scan:
    """Scan a trace, plain or gzip, for its step numbers, and for whether it is complete.

    The file is read once, without decoding events. ``progress`` gets the number of bytes of each read. Raises OSError.
    """
    steps: set[int] = set()
    head = tail = unparsed = b""
    events = False
    with reading(path) as raw:
        stream = _Stream(raw, progress)
        while block := stream.read(_SCAN):
            head = head or block[:_ENDS]
            events = events or b'"ph"' in block
            tail = (tail + block)[-_ENDS:]
            text = unparsed + block  # a number may lie across two blocks
            steps.update(int(match[1]) for match in _STEP.finditer(text) if match.end() < len(text))
            unparsed = text[-_LONGEST_STEP:]
    steps.update(int(match[1]) for match in _STEP.finditer(unparsed))
    cut = stream.cut or ("" if _is_ended(head, tail) else Text("the file ends before its JSON is complete"))
    return Scan(tuple(sorted(steps)), events, head, cut)


def _is_ended(head: bytes, tail: bytes) -> bool:
    """Tell whether a trace is complete: the list of events is closed, and the fields after it are valid JSON."""
    text = tail.rstrip(b"\0 \t\r\n")
    if not head.lstrip(_BLANK).startswith(b"{"):
        return text.endswith(b"]")
    lists = [*re.finditer(rb"[}\[]\s*\](?=\s*[,}])\s*,?", text)]
    return any(_parse_object(b"{" + text[match.end() :]) is not None for match in reversed(lists))


def is_closed(path: Path) -> bool:
    """Tell by its first bytes and last 64 KiB whether an uncompressed trace ends as JSON should. Raises OSError."""
    with reading(path) as file:
        head = file.read(64)
        file.seek(max(path.stat().st_size - _ENDS, 0))
        return _is_ended(head, file.read())


# ---------------------------------------------------------------- within the text of a trace


def _whole_events(unparsed: bytes) -> tuple[list[tuple[int, int]], int]:
    """Return (begin, end) of each whole event in ``unparsed``, and the offset after the end of their list.

    The offset is 0 if the list goes on, and -1 if an event is nested deeper, or longer, than any real event.
    """
    events: list[tuple[int, int]] = []
    depth = begin = first = 0
    text = unparsed.replace(b"\\\\", b"__").replace(b'\\"', b"__")  # faster than an expression that knows escapes
    for count, match in enumerate(_TOKENS.finditer(text)):
        token = match.group()
        if token in (b"{", b"["):
            if depth == 0:
                begin, first = match.start(), count
            depth += 1
            if depth > _DEEPEST or count - first > _MOST_TOKENS:
                return events, -1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return events, match.end()
            if depth == 0:
                events.append((begin, match.end()))
    return events, 0


def _repaired(data: bytes) -> bytes:
    return _NO_NUMBER.sub(rb"\1null", data.translate(_PRINTABLE)).decode("utf-8", "replace").encode()


def _parse_object(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object, with control characters and NaN replaced; None if the text is no object.

    Numbers with a fraction stay texts.
    """
    try:
        value = json.loads(_repaired(data), parse_float=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
