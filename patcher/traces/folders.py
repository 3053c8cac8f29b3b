"""What lies in a folder of traces: which profiler wrote each, what it is of, and whether it is whole.

Nothing is taken from the inside of a trace but the numbers of its ``ProfilerStep#n``. The rest is known from names
(``patches/probes``), from the files of torch_npu (``torch_npu/profiler/analysis``) and from the facts that a probe
leaves beside a trace.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from patcher.processes import alive
from patcher.traces import blocks, database, names
from patcher.traces import facts as telling
from patcher.traces.facts import NEVER, SUFFIX, Facts
from patcher.traces.names import OUTPUT, Name

WHOLE = "whole"
CUT = "cut off"
EMPTY = "empty"
WRITING = "still written"
KILLED = "killed"
NOT_PARSED = "not parsed"
HALF_PARSED = "half parsed"
FOREIGN = "of another tool"

STATES = {
    WHOLE: "everything is there that a report needs",
    CUT: "it ends in the middle: a full disk, or a process that ended while it wrote",
    EMPTY: "it holds nothing",
    WRITING: "the process that records or parses it is at work",
    KILLED: "torch_npu left no profiler_info: the process was ended inside the window, and the data is lost",
    NOT_PARSED: "it was recorded, and has to be parsed before it can be read",
    HALF_PARSED: "its parsing was interrupted, or failed",
    FOREIGN: "another tool recorded it",
}
"""What each state means. They stand in the order of the work; ``WORST`` is the one in which a capture is as bad."""

WORST = (CUT, KILLED, HALF_PARSED, EMPTY, WRITING, NOT_PARSED, FOREIGN, WHOLE)

BEFORE = f"{OUTPUT}.before"
"""Where `analyse` keeps an older result until it has the new one."""
LOCK = "analyse.lock"
STORE = ".rlpatch"

_STEP = re.compile(rb"ProfilerStep#(\d{1,12})\b")
_LONGEST_STEP = len(b"ProfilerStep#") + 13

OTHER_TOOLS = {
    ".nsys-rep": "Nsight Systems", ".qdrep": "Nsight Systems", ".ncu-rep": "Nsight Compute",
    ".pftrace": "Perfetto", ".perfetto-trace": "Perfetto", ".rpd": "rocmProfileData", ".xplane.pb": "XLA",
}  # fmt: skip
"""How the files of profilers end that rlpatch does not read."""

_BLOCK = 1 << 20
_END = 1 << 16  # bytes within which a trace has closed the list of its events
_RECENT_S = 60.0


@dataclass(frozen=True)
class Trace:
    """One trace of one process. ``why`` says what is wrong with it, in words, if anything is.

    ``form`` is npu, torch or other; ``steps`` are the numbers of the units in it, None where they were not to be had;
    ``asked`` is the window, with None as the end of one that has none; ``raw`` tells whether what torch_npu recorded
    is there, to be parsed. ``said`` is the window in the words of the facts, ``doubts`` are what these contradict.
    What nobody wrote down is None or "".
    """

    path: Path
    form: str
    state: str
    size: int
    why: str = ""
    ours: bool = False
    host: str = ""
    replica: int | None = None
    rank: int | None = None
    pid: int | None = None
    stage: str = ""
    role: str = ""
    rollout: int | None = None
    step: int | None = None
    target: str = ""
    release: str = ""
    asked: tuple[int, int | None] | None = None
    ranks: str = ""
    world: int | None = None
    steps: tuple[int, ...] | None = None
    ended: float = 0.0
    exports: tuple[str, ...] = ()
    raw: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    said: str = ""
    doubts: tuple[str, ...] = ()


class Capture(NamedTuple):
    """The traces of one window of one run, a trace for each rank."""

    traces: tuple[Trace, ...]

    @property
    def first(self) -> Trace:
        """The one that speaks for all where they must agree."""
        return self.traces[0]

    @property
    def state(self) -> str:
        """The worst of its traces."""
        return min((trace.state for trace in self.traces), key=WORST.index)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(trace.size for trace in self.traces)

    @property
    def found(self) -> tuple[int, ...]:
        """The ranks that left a trace."""
        return tuple(sorted({trace.rank for trace in self.traces if trace.rank is not None}))

    @property
    def steps(self) -> tuple[int, ...] | None:
        """The units that every rank has which left some; None where nobody knows."""
        known = [set(trace.steps) for trace in self.traces if trace.steps is not None]
        return tuple(sorted(set.intersection(*known))) if known else None

    @property
    def command(self) -> str:
        """What to type next, or "" where nothing helps but to record again."""
        import shlex

        folder = common(trace.path for trace in self.traces)
        parse = f"rlpatch analyse {shlex.quote(str(folder))}" if any(trace.raw for trace in self.traces) else ""
        paths = " ".join(shlex.quote(str(trace.path)) for trace in self.traces)
        return {
            NOT_PARSED: parse,
            HALF_PARSED: parse,
            WRITING: f"rlpatch traces {shlex.quote(str(folder))}",
            WHOLE: f"rlpatch report {paths}",
            CUT: f"rlpatch report {paths}" if self.first.form == "torch" and self.first.size else "",
            FOREIGN: f"rlpatch report {paths}" if self.first.form != "other" else "",
        }.get(self.state, "")


def common(paths: Iterable[Path]) -> Path:
    """The one path, or the folder in which all of them lie."""
    every = list(paths)
    return every[0] if len(every) == 1 else Path(os.path.commonpath(every))


def captures(folder: Path, told: Callable[[Path], None] = lambda _path: None) -> list[Capture]:
    """The captures below ``folder``, or the one that it is itself, oldest first.

    ``told`` hears of each trace before it is read. Raises OSError where the folder cannot be read.
    """
    from concurrent.futures import ThreadPoolExecutor

    known = telling.below(folder)

    def looked_at(path: Path) -> Trace:
        told(path)
        return look(path, known.get(path.parent, ()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # zlib, which does most of the work, lets the others run
        return grouped(pool.map(looked_at, find(folder)))


def grouped(traces: Iterable[Trace]) -> list[Capture]:
    """Traces put together by run and window: the second one of a rank begins another capture."""
    found: dict[object, list[list[Trace]]] = {}
    for trace in sorted(traces, key=lambda trace: (trace.ended, str(trace.path))):
        alone = trace.path if not trace.ours or trace.rank is None else None
        # Behind a condition each replica's window lies elsewhere.
        window = trace.said or trace.asked
        known = (trace.form, trace.stage, trace.role, trace.step, trace.rollout, window, trace.target)
        groups = found.setdefault((alone, trace.path.parent, *known), [])
        if not groups or any(_who(one) == _who(trace) for one in groups[-1]):
            groups.append([])
        groups[-1].append(trace)
    made = [Capture(tuple(sorted(group, key=_order))) for groups in found.values() for group in groups]
    return sorted(made, key=lambda capture: (capture.first.ended, str(capture.first.path)))


def _who(trace: Trace) -> tuple[str, int | None, int | None]:
    """Which worker left a trace; it leaves one in each capture."""
    return trace.host, trace.replica, trace.rank


def _order(trace: Trace) -> tuple[int, str, str]:
    return (-1 if trace.rank is None else trace.rank, trace.host, str(trace.path))


def find(folder: Path) -> list[Path]:
    """The paths of everything below ``folder`` that is a trace of some tool; nothing inside another trace."""
    folder = telling.trace_of(folder)
    if not folder.is_dir() or folder.name.endswith("_ascend_pt"):
        return [folder]
    found = []
    for place, folders, files in os.walk(folder, onerror=_raised(folder)):
        inside = {name for name in folders if name.endswith("_ascend_pt") or name.startswith("PROF_")}
        folders[:] = [name for name in folders if name not in inside and name != STORE]
        found += [Path(place, name) for name in inside]
        paths = (Path(place, name) for name in files if not name.endswith(SUFFIX))
        found += [path for path in paths if names.is_torch(path.name) or _tool(path.name) or _is_chrome(path)]
    return sorted(found)


def _is_chrome(path: Path) -> bool:
    return path.name.endswith(names.JSON) and blocks.says_events(path)


def _raised(top: Path) -> Callable[[OSError], None]:
    def heard(error: OSError) -> None:
        if error.filename and os.path.realpath(error.filename) == os.path.realpath(top):
            raise error

    return heard


def look(path: Path, known: Iterable[Facts] | None = None) -> Trace:
    """One trace; ``known`` are the facts that lie in its folder, if they were read already."""
    if path.is_dir() and path.name.endswith("_ascend_pt"):
        trace = _npu(path)
    elif _tool(path.name) or path.is_dir():
        trace = Trace(path, "other", FOREIGN, size(path), f"a trace of {_tool(path.name) or 'CANN, without torch_npu'}")
    else:
        trace = _torch(path)
    own = telling.beside(path, known)
    return _with(trace, own) if own else trace


def size(path: Path) -> int:
    """Bytes of a file, or of all that lie in a folder."""
    if not path.is_dir():
        return path.stat().st_size
    total = 0
    for place, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118  (a Path for each costs more)
            except OSError:  # gone meanwhile: the parser tidies up
                continue
    return total


# ---------------------------------------------------------------- torch_npu


def _npu(path: Path) -> Trace:
    name = names.of(path)
    known = name.known
    info = next(iter(sorted(path.glob("profiler_info*.json"))), None)
    settings = _json(info) if info else None
    steps = npu_steps(path)
    exports = exported(path)
    state, why = _npu_state(path, name, info, settings, steps)
    raw = (path / "FRAMEWORK").is_dir() or any(path.glob("PROF_*"))
    about: dict[str, Any] = {
        "exports": exports,
        "raw": raw,
        "steps": steps,
        "ended": name.ended or _changed(path),
        **known,
    }
    if settings:
        about["asked"] = _scheduled(settings)
        if about.get("rank") is None and isinstance(settings.get("rank_id"), int):
            about["rank"] = max(settings["rank_id"], 0)
    if state == WHOLE and not known.get("ours"):
        state, why = FOREIGN, "torch_npu recorded it, and not by a probe of rlpatch"
    return Trace(path, "npu", state, size(path), why, **about)


def _npu_state(
    path: Path, name: Name, info: Path | None, settings: Any, steps: tuple[int, ...] | None
) -> tuple[str, str]:
    if parsing(path):
        return WRITING, "it is being parsed"
    if info is None:
        pid = name.known["pid"]
        if pid and name.here and alive(pid, _changed(path)):
            return WRITING, f"process {pid} records it"
        if not any((path / "FRAMEWORK").glob("*")) and not any(path.glob("PROF_*/*/*")):
            return EMPTY, "there is neither FRAMEWORK nor PROF_ in it"
        return KILLED, "there is no profiler_info.json"
    if settings is None:
        return (EMPTY, f"{info.name} has 0 bytes") if not info.stat().st_size else (CUT, f"{info.name} is not whole")
    if (path / BEFORE).is_dir():
        return HALF_PARSED, f"an `analyse` was killed; {BEFORE} is what there was before"
    if (path / OUTPUT).is_dir():
        why = missing(path)
        return (HALF_PARSED, why) if why else (WHOLE, "")
    if not steps and not any(file.stat().st_size for file in path.glob("PROF_*/device_*/data/*")):
        return EMPTY, "it holds no step and no data of a device"
    return NOT_PARSED, ""


def exported(path: Path) -> tuple[str, ...]:
    """What of text and db an ``*_ascend_pt`` folder was parsed into."""
    output = path / OUTPUT
    text = ("text",) if (output / "trace_view.json").is_file() else ()
    return (*text, *(("db",) if database.parsed_into(output) else ()))


def missing(path: Path) -> str:
    """What is missing in the result of a parsing, in words; "" for nothing.

    Newer torch_npu leaves ``analyse.done`` also where a part of it failed, and older ones never do: it says nothing.
    """
    output = path / OUTPUT
    view, databases = output / "trace_view.json", database.parsed_into(output)
    if not view.is_file() and not databases:
        return "there is neither trace_view.json nor ascend_pytorch_profiler.db"
    if view.is_file() and not _closed(view):
        return "trace_view.json ends in the middle"
    if any((output / f"{file.name}-journal").exists() for file in databases):
        return f"{databases[0].name} was not closed"
    if any(broken(file) for file in databases):
        return f"{databases[0].name} is no database"
    device = any(file.stat().st_size for file in path.glob("PROF_*/device_*/data/*"))
    if device and view.is_file() and not any(output.glob("kernel_details*.csv")):
        return "the device left data, and there is no kernel_details.csv"
    return ""


def broken(file: Path) -> bool:
    """Whether a file is no database, or one that ends in the middle."""
    head = file.open("rb").read(100) if file.stat().st_size >= 100 else b""
    if not head.startswith(b"SQLite format 3\0"):
        return True
    page = int.from_bytes(head[16:18], "big") or 1
    pages = int.from_bytes(head[28:32], "big")
    return pages * (65536 if page == 1 else page) > file.stat().st_size


def npu_steps(path: Path) -> tuple[int, ...] | None:
    """The numbers of the steps: of the result of a parsing where there is one, else of the recorded operators."""
    table = path / OUTPUT / "step_trace_time.csv"
    if table.is_file():
        import csv

        with table.open(newline="", encoding="utf-8", errors="replace") as lines:
            found = {row.get("Step", "") or "" for row in csv.DictReader(lines)}
        numbers = sorted(int(text) for text in found if text.isdigit())
        if numbers:
            return tuple(numbers)
    for file in (path / "FRAMEWORK" / "torch.op_range", path / OUTPUT / "trace_view.json"):
        if file.is_file():
            with file.open("rb") as stream:
                return tuple(sorted(set(_numbers(iter(lambda: stream.read(_BLOCK), b"")))))
    for file in database.parsed_into(path / OUTPUT):
        return _database_steps(file)
    return None


def _database_steps(file: Path) -> tuple[int, ...] | None:
    import sqlite3

    try:
        with database.opened(file) as connection:
            rows = connection.execute("SELECT id FROM STEP_TIME").fetchall()
    except sqlite3.Error:
        return None
    return tuple(sorted(int(row[0]) for row in rows if str(row[0]).isdigit()))


def _scheduled(settings: Any) -> tuple[int, int | None] | None:
    """The window of the schedule that the profiler was built with (``profiler_info.json``)."""
    try:
        schedule = settings["config"]["common_config"]["schedule"]
        first = sum(int(schedule.get(name) or 0) for name in ("skip_first", "wait", "warmup"))
        end = first + int(schedule["active"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return first, None if end >= NEVER else end


def parsing(path: Path) -> bool:
    """Whether an `analyse` of rlpatch is at work in the folder of this trace."""
    import fcntl

    try:
        with (path.parent / STORE / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return _locked(path)
    except OSError:
        return False


def _locked(path: Path) -> bool:
    try:
        names = (path.parent / STORE / LOCK).read_text(encoding="utf-8").split("\n")
    except OSError:
        return False
    return path.name in names


# ---------------------------------------------------------------- torch.profiler


def _torch(path: Path) -> Trace:
    name = names.of(path)
    known = name.known
    total = path.stat().st_size
    about: dict[str, Any] = {"ended": name.ended or _changed(path), **known}
    if not total:
        return Trace(path, "torch", EMPTY, 0, "it has 0 bytes", **about)
    read = _json_text(path)
    about["steps"], about["world"] = read.steps, read.world
    if about.get("rank") is None:
        about["rank"] = read.rank
    if read.wrong:
        pid, recent = known["pid"], time.time() - _changed(path) < _RECENT_S
        writes = pid and name.here and alive(pid, _changed(path))
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


def _json_text(path: Path) -> _Read:
    """A pass over all of a file, compressed or not, in blocks: no more than the numbers of the steps is kept."""
    steps: set[int] = set()
    seen, wrong = _Seen(), ""
    try:
        for number in _numbers(seen.blocks(path)):
            steps.add(number)
    except EOFError:
        wrong = "it is compressed, and ends in the middle"
    except (OSError, zlib.error) as error:
        wrong = f"it is compressed, and cannot be read: {error}"
    rank, world = seen.distributed
    if not wrong and not ended(seen.head, seen.tail):
        wrong = "its JSON ends in the middle"
    return _Read(tuple(sorted(steps)), seen.events, wrong, rank, world)


def ended(head: bytes, tail: bytes) -> bool:
    """Whether Chrome's format ends as it should: behind the last event its list, and what may follow in the object."""
    text = tail.rstrip(b"\0 \t\r\n")
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return text.endswith(b"]")
    for match in reversed([*re.finditer(rb"[}\[]\s*\](?=\s*[,}])", text)]):
        behind = text[match.end() :].strip().removeprefix(b",")
        try:
            return isinstance(json.loads(b"{" + behind), dict)
        except (ValueError, RecursionError):
            continue
    return False


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


def _numbers(blocks: Iterable[bytes]) -> Iterator[int]:
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


# ---------------------------------------------------------------- tools, times, facts


def _tool(name: str) -> str:
    return next((tool for end, tool in OTHER_TOOLS.items() if name.endswith(end)), "")


def _changed(path: Path) -> float:
    """When the youngest file of a trace was written, or the trace itself."""
    times = [path.stat().st_mtime]
    if path.is_dir():
        times += [file.stat().st_mtime for file in path.glob("*")]
    return max(times)


def _json(path: Path) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _closed(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
        file.seek(max(path.stat().st_size - _END, 0))
        return ended(head, file.read())


def _with(trace: Trace, found: Facts) -> Trace:
    """The trace with what its facts say, where they say it in the form that is asked for."""
    facts = found.content
    if found.why:
        return replace(trace, doubts=(found.why,))
    words = {name: telling.text(facts, name) for name in ("target", "release", "stage", "role", "host", "ranks")}
    numbers = {name: telling.number(facts, name) for name in ("rollout", "step", "rank", "pid", "world")}
    told: dict[str, Any] = {name: value for name, value in {**words, **numbers}.items() if value is not None}
    replica, lies, units = telling.replica(facts), telling.span(facts), telling.units(facts)
    return replace(
        trace, ours=True, facts=facts, said=telling.window(facts), asked=lies or trace.asked,
        replica=trace.replica if replica is None else replica,
        steps=tuple(sorted(units)) if trace.steps is None and units else trace.steps,
        doubts=tuple(telling.doubts(facts, trace.path, trace.form, trace.steps)), **told,
    )  # fmt: skip
