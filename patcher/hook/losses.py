"""Where a launch loses the hook: read from its command and scripts, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.hook.folder import VARIABLE
from patcher.launches import ANY, CONTAINERS, Assignment, Invocation, is_python, name_of, quoted, read

SUBMITTED = f'${{{VARIABLE}:+--runtime-env-json "{{\\"py_modules\\": [\\"${VARIABLE}\\"]}}"}}'
"""What `ray job submit` needs beside its other options; nothing where no `rlpatch run` is around it."""
_OURS = "/rlpatch-run"
"""Stands for the folder, which is not there yet."""


class Loss(NamedTuple):
    """A place where processes begin without the hook: what stands there, why that is one, and what to write instead.

    It is ``sure`` where the launch certainly comes by.
    """

    where: str
    found: str
    why: str
    instead: str
    sure: bool


def losses(environ: Mapping[str, str], script: Path | None, command: Sequence[str]) -> tuple[Loss, ...]:
    """Every place of a launch in ``environ`` at which the hook is lost, one for each line.

    Raises Problem(USAGE) where a script that is named cannot be read.
    """
    before = environ.get("PYTHONPATH")
    given = {"PYTHONPATH": f"{_OURS}:{before}" if before else _OURS, VARIABLE: f"{_OURS}/sitecustomize"}
    invocations = read({**environ, **given}, script, command)
    found: dict[str, Loss] = {}
    # An option says more than what is not in the environment behind it.
    for look in (_option, _elsewhere, _variable):
        for loss in (loss for invocation in invocations for loss in look(invocation)):
            found.setdefault(loss.where, loss)
    here = _folder()
    return tuple(loss._replace(where=loss.where.removeprefix(here)) for loss in found.values())


def _folder() -> str:
    """The working directory with a slash behind it: its files are named as they are typed there."""
    try:
        return f"{Path.cwd()}/"
    except OSError:  # it is gone
        return ""


def _option(invocation: Invocation) -> Iterator[Loss]:
    """An option by which Python ignores PYTHONPATH, or imports no ``sitecustomize``."""
    words = iter(invocation.argv)
    if not is_python(name_of(next(words, ""))):
        return
    for word in words:
        if not word or not re.match(r"-[A-Za-z]", word):
            return
        for at, flag in enumerate(word[1:], 2):
            if flag in "IES":
                why = f"Python with -{flag} {'imports no sitecustomize' if flag == 'S' else 'ignores PYTHONPATH'}"
                yield Loss(invocation.where, _said(invocation), why, f"leave -{flag} out", invocation.sure)
            if flag in "IEScm":
                return
            if flag in "WX":  # the rest of the word is its value, or the next word
                if not word[at:]:
                    next(words, None)
                break


def _elsewhere(invocation: Invocation) -> Iterator[Loss]:
    """A program that starts its command where neither the environment nor the folder of a run is."""
    name = name_of(invocation.argv[0]) if invocation.argv else ""
    if name in CONTAINERS:
        why, instead = "a container has neither our environment nor our folder", "start rlpatch run within it"
    elif name in {"ssh", "kubectl"}:
        why, instead = "another machine has neither our environment nor our folder", "start rlpatch run over there"
    elif name == "ray" and invocation.argv[1:3] == ("job", "submit"):
        if any(word and _OURS in word for word in invocation.argv) or _given(invocation):
            return
        why, instead = "the job runs with the environment of the cluster", f"add {SUBMITTED}"
    else:
        return
    yield Loss(invocation.where, _said(invocation), why, instead, invocation.sure)


def _given(invocation: Invocation) -> bool:
    """Whether a submitted job is given modules by a text that only the run tells."""
    words = list(invocation.argv)
    return "--runtime-env-json" in words and None in words[words.index("--runtime-env-json") :][:2]


def _variable(invocation: Invocation) -> Iterator[Loss]:
    """PYTHONPATH set anew, unset, or gone with all other variables."""
    if not invocation.variables and invocation.folder is None:
        return  # the script behind these words was read itself
    ways = invocation.variables.get("PYTHONPATH") or invocation.variables.get(ANY, ())
    if not ways:
        why = "PYTHONPATH was unset, or the environment emptied (env -i)"
        yield Loss(invocation.where, _said(invocation), why, "leave PYTHONPATH in the environment", invocation.sure)
    lost = [way for way in ways if _is_lost(way)]
    if lost:
        sure = invocation.sure and len(lost) == len(ways) and all(way.depth == 0 for way in lost)
        if lost[-1].found.startswith("sudo"):
            why, instead = "sudo lets through what its configuration says", "sudo env PYTHONPATH=$PYTHONPATH …"
        elif not lost[-1].present:
            why, instead = "PYTHONPATH was unset", "leave it in the environment"
        else:
            why, instead = "PYTHONPATH is set anew", "export PYTHONPATH=…:$PYTHONPATH keeps what was there"
        yield Loss(lost[-1].where, lost[-1].found, why, instead, sure)


def _is_lost(way: Assignment) -> bool:
    if way.where == "environment":
        return False  # as a job of Ray has it: there is more to be said of that one
    if not way.present or not way.exported:
        return not way.found or "PYTHONPATH" in way.found or way.found.startswith("sudo")
    if way.text is None:
        name, _, value = way.found.partition("=")
        return name.endswith("PYTHONPATH") and "PYTHONPATH" not in value
    return _OURS not in way.text


def _said(invocation: Invocation) -> str:
    return quoted(invocation.argv)[:200]
