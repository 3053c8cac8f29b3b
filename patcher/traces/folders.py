"""What lies in a folder of traces: which profiler wrote each, what it is of, and whether it is whole.

Nothing is taken from the inside of a trace but the numbers of its ``ProfilerStep#n``. The rest is known from names
(``patches/probes``), from the files of torch_npu (``torch_npu/profiler/analysis``) and from the facts that a probe
leaves beside a trace.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from patcher.traces import blocks, chrome_files, names, npu_folders
from patcher.traces import facts as telling
from patcher.traces.facts import SUFFIX, Facts
from patcher.traces.npu_folders import STORE
from patcher.traces.states import CUT, FOREIGN, HALF_PARSED, NOT_PARSED, WHOLE, WORST, WRITING, Trace, size

OTHER_TOOLS = {
    ".nsys-rep": "Nsight Systems", ".qdrep": "Nsight Systems", ".ncu-rep": "Nsight Compute",
    ".pftrace": "Perfetto", ".perfetto-trace": "Perfetto", ".rpd": "rocmProfileData", ".xplane.pb": "XLA",
}  # fmt: skip
"""How the files of profilers end that rlpatch does not read."""


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
        trace = npu_folders.look(path)
    elif _tool(path.name) or path.is_dir():
        trace = Trace(path, "other", FOREIGN, size(path), f"a trace of {_tool(path.name) or 'CANN, without torch_npu'}")
    else:
        trace = chrome_files.look(path)
    own = telling.beside(path, known)
    return _with(trace, own) if own else trace


def _tool(name: str) -> str:
    return next((tool for end, tool in OTHER_TOOLS.items() if name.endswith(end)), "")


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
