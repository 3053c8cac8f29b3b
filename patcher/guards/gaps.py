"""Where a launch loses the hook: read from the words of its command and scripts, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.guards.launch import INSIDE, Launch, Start, name_of, read, shown

_OURS = "/rlpatch-run"
"""Stands for the folder of the run, which is not there yet."""
_FLAGS = r"-[bBdhiOPqRsuvVx]*"
_PYTHON = rf"(.* )?(\S*/)?(python|pypy)[\d.]*t?( {_FLAGS}[WX] ?\S+| {_FLAGS})* {_FLAGS}"
_LOST = {
    rf"{_PYTHON}(?P<flag>[IE]).*": ("Python with -{flag} ignores PYTHONPATH", "leave -{flag} out"),
    rf"{_PYTHON}S.*": ("Python with -S imports no sitecustomize", "leave -S out"),
    r"(docker|podman|nerdctl) (.* )?(run|exec|start) .*": (
        "a container has neither our environment nor our folder",
        "start rlpatch run within it",
    ),
    r"(ssh|pdsh|kubectl) .*": (
        "another machine has neither our environment nor our folder",
        "start rlpatch run over there",
    ),
    rf"ray job submit(?!.*([\0\1]|{_OURS})).*": ("the job runs with the environment of the cluster", "add {submitted}"),
    r"srun (.* )?--export=(?!ALL)(?!\S*PYTHONPATH).*": (
        "srun passes on only what --export lists",
        "add PYTHONPATH to --export, or leave --export out",
    ),
    r"sudo .*": ("sudo passes on only what its configuration allows", "sudo env PYTHONPATH=$PYTHONPATH …"),
    r"env (.* )?(-i|-|--ignore-environment|(-u ?|--unset[= ])PYTHONPATH)( .*)?": (
        "PYTHONPATH was unset, or the environment emptied (env -i)",
        "leave PYTHONPATH in the environment",
    ),
}
"""The words of a start at which the hook is lost: why, and what to write instead."""


class HookGap(NamedTuple):
    """A place where processes begin without the hook, and what to write instead; ``sure`` if a launch surely passes."""

    where: str
    found: str
    why: str
    instead: str
    sure: bool


def submitted(variable: str) -> str:
    """What `ray job submit` needs beside its other options; nothing where no `rlpatch run` is around it."""
    return f'${{{variable}:+--runtime-env-json "{{\\"py_modules\\": [\\"${variable}\\"]}}"}}'


def hook_gaps(
    environ: Mapping[str, str], script: Path | None, command: Sequence[str], variable: str
) -> tuple[HookGap, ...]:
    """Every place of a launch at which the hook is lost, one for each line; ``variable`` names the hook's module.

    Raises Problem(USAGE) where a script that is named cannot be read.
    """
    before = environ.get("PYTHONPATH")
    ours = {"PYTHONPATH": f"{_OURS}:{before}" if before else _OURS, variable: f"{_OURS}/sitecustomize"}
    launch, found = read({**environ, **ours}, script, command), dict[str, HookGap]()
    for start in launch.starts:
        for gap in (*_elsewhere(start, variable), *_set_anew(start, launch)):
            found.setdefault(gap.where, gap)
    return tuple(found.values())


def _elsewhere(start: Start, variable: str) -> Iterator[HookGap]:
    """Words that start a command where the environment or the folder of a run is not, or Python without them."""
    text = " ".join((name_of(start.words[0]), *start.words[1:]))
    found, sure = shown(" ".join(start.words))[:200], start.sure and not text.startswith("sudo")
    for pattern, (why, instead) in _LOST.items():
        if match := re.fullmatch(pattern, text, re.DOTALL):
            words = {**match.groupdict(), "submitted": submitted(variable)}
            yield HookGap(start.where, found, why.format(**words), instead.format(**words), sure)


def _set_anew(start: Start, launch: Launch) -> Iterator[HookGap]:
    """PYTHONPATH set to what does not contain the folder of the run, or unset."""
    value = start.variables.get("PYTHONPATH", _OURS)
    why, instead = "PYTHONPATH is overwritten", "export PYTHONPATH=…:$PYTHONPATH keeps what was there"
    if value is None:
        why, instead = "PYTHONPATH was unset", "leave it in the environment"
    if value is None or _OURS not in value:
        found = "PYTHONPATH" if value is None else f"PYTHONPATH={value}"
        yield HookGap(launch.place(found, start.where), shown(found), why, instead, start.sure and INSIDE not in found)
