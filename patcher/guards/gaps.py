"""The places where a launch loses the hook: read from the words of its command and scripts, before anything runs."""

from __future__ import annotations

import re
from posixpath import basename
from typing import NamedTuple

from patcher.guards import programs
from patcher.guards.launch import read
from patcher.guards.result import Launch
from patcher.guards.start import is_known, with_ellipses
from patcher.messages import Text

_OURS = "/rlpatch-run"
"""Stands for the folder of the run, which is not there yet."""
_KEEPS = r"\$PYTHONPATH\b|\$\{PYTHONPATH\b(?!:?\+)"
"""An expansion that keeps what a run added to PYTHONPATH."""
_FLAGS = r"-[bBdhiOPqRsuvVx]*"
_PYTHON = rf"(.* )?(\S*/)?(python|pypy)[\d.]*t?( {_FLAGS}[WX] ?\S+| {_FLAGS})* {_FLAGS}"
_LOST = {
    rf"{_PYTHON}I.*": (Text("Python with -I ignores PYTHONPATH"), Text("start Python without -I")),
    rf"{_PYTHON}E.*": (Text("Python with -E ignores PYTHONPATH"), Text("start Python without -E")),
    rf"{_PYTHON}S.*": (Text("Python with -S does not import sitecustomize"), Text("start Python without -S")),
    r"(docker|podman|nerdctl) (.* )?(run|exec|start) .*": (
        Text("the container has neither rlpatch's environment variables nor rlpatch's folder"),
        Text("start `rlpatch run` inside the container"),
    ),
    r"(ssh|pdsh|kubectl) .*": (
        Text("the other machine has neither rlpatch's environment variables nor rlpatch's folder"),
        Text("start `rlpatch run` on the other machine"),
    ),
    rf"ray job submit(?!.*([\0\1]|{_OURS})).*": (
        Text("the job runs with the cluster's environment variables, not with those of this shell"),
        "",
    ),
    r"srun (.* )?--export=(?!ALL)(?!\S*PYTHONPATH).*": (
        Text("srun passes on only the variables in --export"),
        Text("add PYTHONPATH to --export, or leave --export out"),
    ),
    r"sudo .*": (
        Text("sudo passes on only the variables that its configuration allows"),
        "sudo env PYTHONPATH=$PYTHONPATH …",
    ),
    r"unset (.* )?PYTHONPATH( .*)?|env (.* )?(-i|-|--ignore-environment|(-u ?|--unset[= ])PYTHONPATH)( .*)?": (
        Text("this command unsets PYTHONPATH, or empties the environment (env -i)"),
        Text("keep PYTHONPATH in the environment"),
    ),
}
"""The words of a start at which the hook is lost: why, and what to write instead; nothing for a submitted job, whose
option contains the name of a variable."""


class HookGap(NamedTuple):
    """A place where processes start without the hook, what to write instead, and whether it is surely passed."""

    where: str
    found: str
    why: str
    instead: str
    sure: bool


def submit_words(variable: str) -> str:
    """Return shell words by which `ray job submit` gets the hook's package in ``variable``; none outside of a run."""
    return f'${{{variable}:+--runtime-env-json "{{\\"py_modules\\": [\\"${variable}\\"]}}"}}'


def hook_gaps(launch: Launch, variable: str) -> tuple[HookGap, ...]:
    """Return the places of a launch at which processes lose, or may lose, rlpatch's import hook, at most one a line.

    ``variable`` is the name of the environment variable that turns the hook on; advice mentions it. Raises Problem
    (USAGE) if the launch's script, or a file that it names, cannot be read.
    """
    starts, gaps = read(launch).starts, dict[str, HookGap]()
    sets_only = rf"{programs.CONTROL}|{programs.HARMLESS}|export|declare|typeset|local|readonly"
    running = [number for number, start in enumerate(starts) if not re.fullmatch(sets_only, "".join(start.texts[:1]))]
    is_seen = any(start.program for start in starts)
    for number, start in enumerate(starts):
        text = " ".join((*map(basename, start.texts[:1]), *start.texts[1:]))
        for pattern, (why, instead) in _LOST.items():
            if re.fullmatch(pattern, text, re.DOTALL):
                words = with_ellipses(" ".join(start.words))[:200]
                advice = instead or Text("add {option}", submit_words(variable))
                is_sure = start.sure and not re.match("sudo" if is_seen else "sudo|unset", text)
                gaps.setdefault(start.where, HookGap(start.where, words, why, advice, is_sure))
        value = start.variables.get("PYTHONPATH")
        if value is not None and not re.search(_KEEPS, value) and number <= max(running, default=-1):
            why = Text("the PYTHONPATH that rlpatch sets might be overwritten")
            if is_known(value):
                why = Text("the PYTHONPATH that rlpatch sets is overwritten")
            advice = Text("use `export PYTHONPATH=…:$PYTHONPATH`, which keeps the old value")
            is_sure = start.sure and is_seen and is_known(value)
            gaps.setdefault(
                start.where, HookGap(start.where, with_ellipses(f"PYTHONPATH={value}"), why, advice, is_sure)
            )
    return tuple(gaps.values())
