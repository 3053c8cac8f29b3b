"""A file in Chrome's format on disk: whether it is whole, and the numbers of its ``ProfilerStep#n``, in one pass."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from patcher.processes import alive
from patcher.traces import names
from patcher.traces.states import CUT, EMPTY, FOREIGN, WHOLE, WRITING, Trace, changed

_STEP = re.compile(rb"ProfilerStep#(\d{1,12})\b")
_LONGEST_STEP = len(b"ProfilerStep#") + 13
_BLOCK = 1 << 20
_END = 1 << 16  # bytes within which a trace has closed the list of its events
_RECENT_S = 60.0
_BLANK = b"\xef\xbb\xbf \t\r\n"


def look(path: Path) -> Trace:
    """What a trace of torch.profiler shows of itself."""
    name = names.of(path)
    known = name.known
    total = path.stat().st_size
    about: dict[str, Any] = {"ended": name.ended or changed(path), **known}
    if not total:
        return Trace(path, "torch", EMPTY, 0, "it has 0 bytes", **about)
    read = _passed(path)
    about["steps"], about["world"] = read.steps, read.world
    if about.get("rank") is None:
        about["rank"] = read.rank
    if not read.is_json:
        return Trace(path, "torch", EMPTY, total, "it holds no JSON", **about)
    if read.wrong:
        pid, recent = known["pid"], time.time() - changed(path) < _RECENT_S
        writes = pid and name.here and alive(pid, changed(path))
        if (name.temporary and writes) or (recent and (writes or (pid and not name.here))):
            return Trace(path, "torch", WRITING, total, f"process {pid} writes it", **about)
        return Trace(path, "torch", CUT, total, read.wrong, **about)
    if not read.events:
        return Trace(path, "torch", EMPTY, total, "it holds no event", **about)
    if not known["ours"]:
        return Trace(
            path, "torch", FOREIGN, total, "torch.profiler recorded it, and not by a probe of rlpatch", **about
        )
    return Trace(path, "torch", WHOLE, total, **about)


class _Read(NamedTuple):
    """What one pass over a trace tells: ``wrong`` is what it ends with, if that is wrong."""

    steps: tuple[int, ...]
    events: bool
    wrong: str = ""
    rank: int | None = None
    world: int | None = None
    is_json: bool = True


def _passed(path: Path) -> _Read:
    """A pass over all of a file, compressed or not, in blocks: no more than the numbers of the steps is kept."""
    steps: set[int] = set()
    seen, wrong = _Seen(), ""
    try:
        for number in _step_numbers(seen.blocks(path)):
            steps.add(number)
    except EOFError:
        wrong = "it is compressed, and ends in the middle"
    except (OSError, zlib.error) as error:
        wrong = f"it is compressed, and cannot be read: {error}"
    rank, world = seen.distributed
    if not wrong and not ended(seen.head, seen.tail):
        wrong = "its JSON ends in the middle"
    begins = seen.head.lstrip(_BLANK)[:1]  # nothing, where it was cut off before
    is_json = begins in (b"", b"{", b"[")
    return _Read(tuple(sorted(steps)), seen.events, wrong, rank, world, is_json)


def ended(head: bytes, tail: bytes) -> bool:
    """Whether Chrome's format ends as it should: behind the last event its list, and what may follow in the object."""
    text = tail.rstrip(b"\0 \t\r\n")
    if not head.lstrip(_BLANK).startswith(b"{"):
        return text.endswith(b"]")
    for match in reversed([*re.finditer(rb"[}\[]\s*\](?=\s*[,}])", text)]):
        behind = text[match.end() :].strip().removeprefix(b",")
        try:
            return isinstance(json.loads(b"{" + behind), dict)
        except (ValueError, RecursionError):
            continue
    return False


def steps_in(path: Path) -> tuple[int, ...]:
    """The numbers of the ``ProfilerStep#n`` in a file of any form that says them as they are."""
    with path.open("rb") as file:
        return tuple(sorted(set(_step_numbers(iter(lambda: file.read(_BLOCK), b"")))))


def closed(path: Path) -> bool:
    """Whether a file ends as it should, by its beginning and its end alone."""
    with path.open("rb") as file:
        head = file.read(64)
        file.seek(max(path.stat().st_size - _END, 0))
        return ended(head, file.read())


class _Seen:
    """What the blocks of a file have shown so far."""

    def __init__(self) -> None:
        self.tail, self.head, self.events = b"", b"", False

    def blocks(self, path: Path) -> Iterator[bytes]:
        """The text of a file; behind what can be read of one that is packed and not whole, EOFError or zlib.error."""
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            unpacker = zlib.decompressobj(wbits=31) if packed else None
            while block := file.read(_BLOCK):
                full = False
                while unpacker and (block or full):
                    text = unpacker.decompress(block, _BLOCK)
                    yield from self._seen(text)
                    full = len(text) == _BLOCK  # then there may be more of it
                    block = unpacker.unconsumed_tail or unpacker.unused_data
                    if unpacker.eof:  # several behind each other are one
                        block, full = block if block.strip(b"\0") else b"", False
                        unpacker = zlib.decompressobj(wbits=31) if block else unpacker
                if not packed:
                    yield from self._seen(block)
        if unpacker and not unpacker.eof:
            raise EOFError

    def _seen(self, text: bytes) -> Iterator[bytes]:
        if text:
            self.head = self.head or text[:65536]
            self.events = self.events or b'"ph"' in text
            self.tail = (self.tail + text)[-_END:]
            yield text

    @property
    def distributed(self) -> tuple[int | None, int | None]:
        """Rank and world size, as torch.profiler writes them above the events of a distributed run."""
        found = re.search(rb'"distributedInfo"\s*:\s*\{[^}]*\}', self.head)
        if not found:
            return None, None
        values = [re.search(rb'"%s"\s*:\s*(\d{1,9})\b' % name, found[0]) for name in (b"rank", b"world_size")]
        rank, world = (int(value[1]) if value else None for value in values)
        return rank, world


def _step_numbers(blocks: Iterable[bytes]) -> Iterator[int]:
    """The n of every ``ProfilerStep#n``, also of one that lies across two blocks."""
    rest = b""
    try:
        for block in blocks:
            text = rest + block
            yield from (int(match[1]) for match in _STEP.finditer(text) if match.end() < len(text))
            rest = text[-_LONGEST_STEP:]
    finally:  # also of a file that was cut
        found = [int(match[1]) for match in _STEP.finditer(rest)]
    yield from found
