"""Traces in Chrome's format, plain or gzip: all events of one, or in one pass whether it is whole and its step numbers.

The events come a block of 8 MB at a time, so the whole of a trace is never in memory. A block is cut behind an event
and decoded by msgspec into the few fields that a report needs, or by the standard library where msgspec is missing
(the extra ``report``), which takes four times as long and gives the same. What is broken is read as far as it goes, and
reported: a file that was cut, control characters and NaN, which profilers write and JSON does not know
(pytorch/pytorch 130622), and single events that nothing can read.
"""

from __future__ import annotations

import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, get_type_hints

from patcher.messages.errors import Kind, Problem

if TYPE_CHECKING:
    from typing import TypeAlias

    Decode: TypeAlias = Callable[[bytes], list["Event"]]

BLOCK = 8 << 20
"""Bytes that are decoded at once."""

LARGEST = 32 << 20
"""Bytes: no event is as large, so where none ends within them, something opens that nothing closes."""

_SCAN = 1 << 20
"""Bytes that a scan takes at once."""

_ENDS = 1 << 16
"""Bytes within which a trace begins the list of its events, and at its end closes it."""

_STEP = re.compile(rb"ProfilerStep#(\d{1,12})\b")
_LONGEST_STEP = len(b"ProfilerStep#") + 13
_BLANK = b"\xef\xbb\xbf \t\r\n"

_HEAD = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_OPEN, _CLOSE, _COMMA = b"{", b"}", b","
_TOKENS = re.compile(rb'"(?:[^"\\\n]|\\.)*"?|[{}\[\]]')  # a text that is not closed ends with its line
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NO_NUMBER = re.compile(rb"(:\s*)[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)
_PRINTABLE = bytes(max(byte, 0x20) for byte in range(256))
"""Control characters as spaces: between the tokens of JSON they mean the same, and in its texts they are forbidden."""

_ARGS = {
    "correlation": "correlation",
    "stream": "stream",
    "device": "device",
    "connection": "connection_id",
    "task": "Task Type",
    "level": "level",
    "forward": "Fwd thread id",
    "domain": "domain",
    "group": "Process Group Name",
    "label": "name",
}
"""Field → its name in the ``args`` of an event."""


class Event:
    """One event, its fields named as in Chrome's trace format; ``ts`` is text, for a float loses nanoseconds."""

    __slots__ = ("args", "cat", "dur", "id", "name", "ph", "pid", "tid", "ts")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.ph, self.cat, self.name = (_text(fields.get(key)) for key in ("ph", "cat", "name"))
        self.pid, self.tid, self.id = fields.get("pid", 0), fields.get("tid", 0), fields.get("id", 0)
        self.ts = _text(fields.get("ts", "0")).encode()
        self.dur = float(fields.get("dur") or 0)
        args = fields.get("args")
        self.args = Args(args) if isinstance(args, Mapping) else None


class Args:
    """The fields that are read of the ``args`` of an event; None where one is missing, or not of its type."""

    __slots__ = tuple(_ARGS)

    correlation: int | None
    stream: int | str | None
    device: int | str | None
    connection: int | None
    task: str | None
    level: str | None
    forward: int | None
    domain: str | None
    group: str | None
    label: str | None

    def __init__(self, fields: Mapping[str, Any]) -> None:
        for name, key in _ARGS.items():
            value = fields.get(key)
            if name in ("correlation", "connection", "forward") and not isinstance(value, int):
                value = int(value) if isinstance(value, str) and value.isdigit() else None
            setattr(self, name, value)


def nanoseconds(microseconds: bytes | str) -> int:
    """The whole nanoseconds of a time that is written in microseconds; ValueError if it is no number.

    Written with more than 3 decimals, it is rounded to the nearest.
    """
    text = bytes(microseconds) if not isinstance(microseconds, str) else microseconds.encode()
    if text[:1] == b'"':
        text = text[1:-1]
    try:
        return int(text[:-4] + text[-3:]) if text[-4:-3] == b"." else int(text) * 1000
    except ValueError:
        pass
    try:
        time = Decimal(text.decode("ascii", "replace")) * 1000
        if abs(time) < 1 << 63:
            return round(time)
    except DecimalException:
        pass
    raise ValueError(f"no time: {text[:40]!r}")


def times(event: Event) -> tuple[int, int]:
    """Begin and end of an event, in whole nanoseconds; ValueError if its time is no number."""
    begin = nanoseconds(event.ts)
    return begin, begin + round(event.dur * 1000)


class ChromeEvents:
    """The events of the trace at ``path``, a list for each block, and after the last one the state of the file.

    ``header`` holds the fields beside the events, ``cut`` the reason why the end is missing, ``lost`` the number of
    events that could not be read, ``repaired`` is True if characters had to be replaced. Iterating raises Problem
    (TRACE) if the file is no such trace, OSError if it cannot be read.
    """

    def __init__(self, path: Path, *, block: int = BLOCK) -> None:
        self.path, self.block = path, block
        self.header: dict[str, Any] = {}
        self.cut = ""
        self.lost = 0
        self.repaired = False
        self.decode: Decode = _decoder()

    def feed(self, take: Callable[[Iterator[Event]], None]) -> None:
        """Hand all events to ``take``, in order; one at which it raises is lost, and the next call begins behind it."""
        for events in self:
            rest = iter(events)
            while True:
                try:
                    take(rest)
                except (ValueError, OverflowError, TypeError):
                    self.lost += 1
                else:
                    break

    def __iter__(self) -> Iterator[list[Event]]:
        with self.path.open("rb") as raw:
            yield from self._events(_Stream(raw))

    def _events(self, file: _Stream) -> Iterator[list[Event]]:
        rest = self._begin(file)
        while more := file.read(self.block):
            events, at, ended = self._decoded(rest)
            yield events
            rest = rest[at:] + more
            if ended:
                rest += b"".join(iter(lambda: file.read(self.block), b""))
                self._take_tail(rest)
                return
        self.cut = file.cut
        yield self._last(rest)

    def _begin(self, file: _Stream) -> bytes:
        """The text behind the opening of the list of events; the header is taken."""
        rest = file.read(self.block)
        rest = rest[3:] if rest.startswith(b"\xef\xbb\xbf") else rest
        first = rest.lstrip()[:1]
        if first == b"[":
            return rest.lstrip()[1:]
        if first != b"{":
            what = "is empty" if not rest.strip() else "holds no JSON"
            cause = f"{self.path.name} {what}{f': {file.cut}' if file.cut else ''}"
            hint = f"rlpatch traces {shlex.quote(str(self.path.parent))} shows which traces are whole"
            raise Problem(Kind.TRACE, cause, str(self.path), hint)
        while True:
            for found in _HEAD.finditer(rest):
                header = self._loaded(rest[: found.end()] + b"]}")
                if header is not None:
                    self.header = header
                    return rest[found.end() :]
            more = file.read(self.block)
            if not more:
                cause = f"{self.path.name} holds no list traceEvents{f': {file.cut}' if file.cut else ''}"
                raise Problem(Kind.TRACE, cause, str(self.path), hint="a trace is what the profiler exported, as JSON")
            rest += more

    def _decoded(self, rest: bytes) -> tuple[list[Event], int, bool]:
        """The events of ``rest`` up to its last one, where that ends, and whether the list ends there."""
        at = len(rest)
        for _ in range(2):  # a cut that the decoder takes is right; what looks like one can stand within an event
            at = _last_cut(rest, at)
            if at <= 0:
                break
            events = self._attempt(rest[:at])
            if events is not None:
                return events, rest.index(_COMMA, at) + 1, False
        whole, ended = _whole_events(rest)
        if not whole and not ended and len(rest) > LARGEST and (found := _BETWEEN.search(rest)):
            self.lost += 1
            return [], found.end(), False
        events = self._salvaged(rest, whole)
        return events, ended or _behind(rest, whole), bool(ended)

    def _attempt(self, events: bytes) -> list[Event] | None:
        try:
            return self.decode(b"[" + (_repaired(events) if self.repaired else events) + b"]")
        except ValueError:
            if self.repaired:
                return None
        fixed = _repaired(events)
        if fixed == events:
            return None
        try:
            found = self.decode(b"[" + fixed + b"]")
        except ValueError:
            return None
        self.repaired = True
        return found

    def _salvaged(self, rest: bytes, whole: list[tuple[int, int]]) -> list[Event]:
        """The events at the places ``whole``, without those that cannot be read."""
        if not whole:
            return []
        together = self._attempt(rest[whole[0][0] : whole[-1][1]])
        if together is not None:
            return together
        events = []
        for begin, end in whole:
            fields = self._loaded(rest[begin:end])
            try:
                events.append(Event(fields or {}))
                self.lost += fields is None
            except (TypeError, ValueError):
                self.lost += 1
        return events

    def _last(self, rest: bytes) -> list[Event]:
        """The last events; the fields behind them are taken."""
        end = len(rest)
        for _ in range(8 if not self.cut else 0):  # other lists may stand behind that of the events
            end = rest.rfind(b"]", 0, end)
            if end < 0:
                break
            if self._is_tail(rest[end + 1 :]):
                events = self._attempt(rest[:end].rstrip().removesuffix(_COMMA))
                if events is not None:
                    self._take_tail(rest[end + 1 :])
                    return events
        whole, ended = _whole_events(rest)
        if ended:
            self._take_tail(rest[ended:])
        elif not self.cut:
            self.cut = "the file ends before the list of its events does"
        return self._salvaged(rest, whole)

    def _is_tail(self, rest: bytes) -> bool:
        return rest.strip() in (b"", b"}") or self._loaded(_object(rest)) is not None

    def _take_tail(self, rest: bytes) -> None:
        self.header.update(self._loaded(_object(rest)) or {})

    def _loaded(self, data: bytes) -> dict[str, Any] | None:
        """``data`` as an object, repaired if it has to be; None if it is none."""
        for attempt in (data, _repaired(data)):
            try:
                found = json.loads(attempt.decode("utf-8", "replace"), parse_float=str, strict=False)
            except (ValueError, RecursionError):
                continue
            return found if isinstance(found, dict) else None
        return None


def has_events(path: Path) -> bool:
    """Whether a file of any name begins like a trace in Chrome's format, plain or gzip."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as raw:
            return _HEAD.search(_Stream(raw).read(_ENDS)) is not None
    except OSError:
        return False


class _Stream:
    """The bytes of ``raw``, unpacked if it is gzip, which its content decides and not its name.

    Of a gzip file that ends too early, or is damaged, everything before is read; ``error`` is the reason then.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.error: EOFError | zlib.error | None = None
        self.packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self.unpack: Any = _unpacker() if self.packed else None
        self.pending = b""

    @property
    def cut(self) -> str:
        """Why the end is missing; "" where it is not."""
        damaged = f"the gzip file is damaged ({self.error})" if self.error else ""
        return "the gzip file ends before its end" if isinstance(self.error, EOFError) else damaged

    def read(self, size: int) -> bytes:
        """About ``size`` bytes, none at the end."""
        if not self.packed:
            return self.raw.read(size)
        parts: list[bytes] = []
        missing = size
        while missing > 0 and self.unpack is not None:
            try:
                part = self._unpacked(missing)
            except (EOFError, zlib.error) as error:
                self.error, self.unpack = error, None
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _unpacked(self, most: int) -> bytes:
        """The next bytes, at most ``most``. Raises EOFError, zlib.error."""
        if self.unpack.eof:  # several gzip files behind each other are one
            self.pending = self.unpack.unused_data or self.raw.read(1 << 20)
            self.unpack = _unpacker() if self.pending.strip(b"\0") else None
            return b""
        self.pending = self.pending or self.unpack.unconsumed_tail or self.raw.read(1 << 20)
        if not self.pending:
            raise EOFError
        pending, self.pending = self.pending, b""
        return bytes(self.unpack.decompress(pending, most))


def _unpacker() -> Any:
    return zlib.decompressobj(wbits=31)


# ---------------------------------------------------------------- one pass that keeps no event


class Scan(NamedTuple):
    """One pass over a trace: the numbers of its ``ProfilerStep#n``, whether it has events, and how it begins and ends.

    ``rank`` and ``world`` size are those that torch.profiler writes above the events of a distributed run. ``error``
    says why the end could not be read.
    """

    steps: tuple[int, ...]
    events: bool
    head: bytes
    tail: bytes
    error: OSError | EOFError | zlib.error | None

    @property
    def whole(self) -> bool:
        """Whether it ends as it should."""
        return not self.error and ended(self.head, self.tail)

    @property
    def is_json(self) -> bool:
        """Whether it begins like JSON; a file that was cut off before it began does."""
        return self.head.lstrip(_BLANK)[:1] in (b"", b"{", b"[")

    def distributed(self, name: str) -> int | None:
        """The field ``name`` of the description of the distributed run."""
        found = re.search(rb'"distributedInfo"\s*:\s*\{[^}]*\}', self.head)
        value = found and re.search(rb'"%s"\s*:\s*(\d{1,9})\b' % name.encode(), found[0])
        return int(value[1]) if value else None


def scan(path: Path) -> Scan:
    """Read the whole of a file of any form in blocks, compressed or not."""
    steps: set[int] = set()
    head = tail = rest = b""
    events = False
    error: OSError | EOFError | zlib.error | None
    try:
        with path.open("rb") as raw:
            stream = _Stream(raw)
            while block := stream.read(_SCAN):
                head = head or block[:_ENDS]
                events = events or b'"ph"' in block
                tail = (tail + block)[-_ENDS:]
                text = rest + block  # a number may lie across two blocks
                steps.update(int(found[1]) for found in _STEP.finditer(text) if found.end() < len(text))
                rest = text[-_LONGEST_STEP:]
        error = stream.error
    except OSError as failed:
        error = failed
    steps.update(int(found[1]) for found in _STEP.finditer(rest))
    return Scan(tuple(sorted(steps)), events, head, tail, error)


def steps_in(path: Path) -> tuple[int, ...]:
    """The numbers of the ``ProfilerStep#n`` in a file of any form that has them as text. Raises OSError."""
    found = scan(path)
    if isinstance(found.error, OSError):
        raise found.error
    return found.steps


def ended(head: bytes, tail: bytes) -> bool:
    """Whether a trace ends as it should: behind the last event its list, and the fields that may follow."""
    text = tail.rstrip(b"\0 \t\r\n")
    if not head.lstrip(_BLANK).startswith(_OPEN):
        return text.endswith(b"]")
    for match in reversed([*re.finditer(rb"[}\[]\s*\](?=\s*[,}])", text)]):
        behind = text[match.end() :].strip().removeprefix(_COMMA)
        try:
            return isinstance(json.loads(_OPEN + behind), dict)
        except (ValueError, RecursionError):
            continue
    return False


def closed(path: Path) -> bool:
    """Whether a file ends as it should, by its beginning and its end alone."""
    with path.open("rb") as file:
        head = file.read(64)
        file.seek(max(path.stat().st_size - _ENDS, 0))
        return ended(head, file.read())


# ---------------------------------------------------------------- within the text of a trace


def _object(tail: bytes) -> bytes:
    """The fields behind a list within an object, as an object."""
    return b"{" + tail.strip().removeprefix(_COMMA).strip().removesuffix(b"}") + b"}"


def _behind(rest: bytes, whole: list[tuple[int, int]]) -> int:
    """Where the next event may begin: behind the last whole one, and its comma."""
    if not whole:
        return 0
    end = whole[-1][1]
    return end + len(rest[end:]) - len(rest[end:].lstrip().removeprefix(_COMMA))


def _last_cut(rest: bytes, before: int) -> int:
    """Where the last ``}`` that is followed by ``, {`` ends, before the place ``before``; 0 without one."""
    at = rest.rfind(_OPEN, 0, before)
    while at > 0:
        between = rest[max(at - 64, 0) : at].rstrip()
        if between.endswith(_COMMA) and between[:-1].rstrip().endswith(_CLOSE):
            return max(at - 64, 0) + len(between[:-1].rstrip())
        at = rest.rfind(_OPEN, 0, at)
    return 0


def _whole_events(rest: bytes) -> tuple[list[tuple[int, int]], int]:
    """Where each whole event of ``rest`` begins and ends, token by token; and where the list ends, else 0."""
    found: list[tuple[int, int]] = []
    depth = begin = 0
    for match in _TOKENS.finditer(rest):
        token = match.group()
        if token in (b"{", b"["):
            if depth == 0:
                begin = match.start()
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return found, match.end()
            if depth == 0:
                found.append((begin, match.end()))
    return found, 0


def _repaired(data: bytes) -> bytes:
    data = _NO_NUMBER.sub(rb"\1null", data.translate(_PRINTABLE))
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _decoder() -> Decode:
    """The decoder of a list of events; it raises ValueError for what is none."""
    try:
        import msgspec
    except ImportError:
        return _decoded_by_json
    columns = [(name, kind, None) for name, kind in get_type_hints(Args).items()]
    args = msgspec.defstruct("Args", columns, rename=_ARGS, gc=False)
    texts = [(name, str, "") for name in ("ph", "cat", "name")]
    numbers = [(name, int | str, 0) for name in ("pid", "tid", "id")]
    times = [("ts", msgspec.Raw, msgspec.Raw(b"0")), ("dur", float, 0.0)]
    event = msgspec.defstruct("Event", [*texts, *numbers, *times, ("args", args | None, None)], gc=False)
    decode = msgspec.json.Decoder(list[event]).decode  # type: ignore[valid-type]

    def decoded(data: bytes) -> list[Event]:
        try:
            return decode(data)
        except msgspec.ValidationError:  # a field of another type: rare enough for the slow way
            return _decoded_by_json(data)

    return decoded


def _decoded_by_json(data: bytes) -> list[Event]:
    found = json.loads(data, parse_float=str)
    if not all(isinstance(fields, dict) for fields in found):
        raise ValueError("an event is an object")
    try:
        return [Event(fields) for fields in found]
    except TypeError as error:
        raise ValueError(str(error)) from error
