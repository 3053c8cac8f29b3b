"""The recipes of msprof-analyze, and the files that each leaves: it ends with exit code 0 also where there is none."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from patcher import interrupts
from patcher.messages.errors import Kind, Problem
from patcher.traces.names import is_npu
from patcher.traces.tools.parsing import IDLE, ToolProcess

PROGRAM = "msprof-analyze"
FOLDER = "msprof_analyze"
"""Below the folder of the traces: a folder for each recipe, so that one sees what it left."""

OVERVIEW = "all"
DATABASE = (
    "cluster_time_summary", "free_analysis", "slow_rank", "compute_op_sum", "cann_api_sum", "communication_time_sum",
    "hccl_sum", "communication_bottleneck",
)  # fmt: skip
"""Those that read the database only."""
MODULES, ADVISOR, COMPARE = "module_statistic", "advisor", "compare"

_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """The files that one recipe left; ``why`` is the reason where there is none."""

    recipe: str
    files: tuple[Path, ...]
    why: str = ""


def program(wanted: str, python: str) -> str:
    """msprof-analyze as it was named, or else beside the target's interpreter, beside rlpatch, or on PATH; "" for none.

    Raises: Problem(USAGE) where it was named and is not there.
    """
    if wanted:
        found = shutil.which(os.path.expanduser(wanted))  # noqa: PTH111  (a name stays a name)
        if found is None:
            raise Problem(Kind.USAGE, f"there is no program {wanted}", hint=f"pip install {PROGRAM}, and name it")
        return found
    beside = [os.path.dirname(place) for place in (python, sys.executable) if place]  # noqa: PTH120
    return next(filter(None, (shutil.which(PROGRAM, path=place) for place in (*beside, None))), "")


def chosen(exports: Iterable[str], *, modules: bool, advise: bool) -> list[str]:
    """The recipes for traces that were parsed into ``exports``."""
    names = [OVERVIEW, *(DATABASE if "db" in exports else ())]
    names += [MODULES] if modules else []
    return [*names, *([ADVISOR] if advise else [])]


def run(
    exe: str, folder: Path, names: Sequence[str], *, patience: float, done: Callable[[RecipeResult], None]
) -> list[RecipeResult]:
    """Run the recipes one after the other on the traces of a folder. Raises KeyboardInterrupt, with none half done."""
    top = _folder(folder)
    made = []
    for name in names:
        words = ["advisor", "all", "-l", "en"] if name == ADVISOR else ["cluster", "-m", name]
        made.append(run_one(name, [exe, *words, "-d", str(folder)], top / name, patience=patience))
        done(made[-1])
    with contextlib.suppress(OSError):  # one of them left something
        top.rmdir()
    return made


def compared(exe: str, before: Path, after: Path, *, patience: float) -> RecipeResult:
    """Run the comparison of msprof-analyze on two traces: what it calls the benchmark is what was before."""
    command = [exe, COMPARE, "-d", str(after), "-bp", str(before)]
    return run_one(COMPARE, command, _folder(after) / COMPARE, patience=patience)


def _folder(traces: Path) -> Path:
    return (traces.parent if is_npu(traces) else traces) / FOLDER


def run_one(recipe: str, command: Sequence[str], output: Path, *, patience: float) -> RecipeResult:
    """Run a command that writes into ``output``, empty before. Raises KeyboardInterrupt, with nothing there."""
    files: list[Path] = []
    with interrupts.deferred(terminated=True), tempfile.TemporaryFile() as log:
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        try:
            child = ToolProcess([*command, "-o", str(output)], output, log)
            why = _waited(child, output, patience)
            if not why:
                files = sorted(path for path in output.rglob("*") if path.is_file() and path.stat().st_size)
        finally:
            if not files:
                shutil.rmtree(output)
        return RecipeResult(recipe, tuple(files), "" if files else why or _reason(child))


def _waited(child: ToolProcess, output: Path, patience: float) -> str:
    try:
        while child.process.poll() is None:
            interrupts.look()
            if child.idles(output, patience):
                return f"it {IDLE.format(patience)}"
            time.sleep(_PAUSE_S)
    finally:
        child.stop()
    return f"it died of signal {-child.process.returncode}" if child.process.returncode < 0 else ""


def _reason(child: ToolProcess) -> str:
    """Why it left nothing, from its output: an error, or the line before "finished"."""
    found = child.last_lines("[ERROR]", "Error", "skip", " No ", "no data") or child.last_lines()
    lines = ["", *(line for line in found if "finished" not in line)]
    return lines[-1].rpartition("]")[2].strip() or "it said nothing"
