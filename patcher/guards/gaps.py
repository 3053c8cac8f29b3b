"""Where a launch loses the hook: read from the words of its command and scripts, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from patcher.guards.launch import ENVIRONMENT, INSIDE, OUTSIDE, Start, name_of, read

_CONTAINERS = {"docker", "podman", "nerdctl"}
_OURS = "/rlpatch-run"
"""Stands for the folder of the run, which is not there yet."""


class HookGap(NamedTuple):
    """A place where processes begin without the hook: what stands there, why that is one, and what to write instead.

    It is ``sure`` where the launch certainly comes by.
    """

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
    found: dict[str, HookGap] = {}
    for start in read({**environ, **ours}, script, command).starts:
        for gap in (*_option(start), *_elsewhere(start, variable), *_set_anew(start)):
            found.setdefault(gap.where, gap)
    here = ""
    with suppress(OSError):  # a working directory that is gone
        here = f"{Path.cwd()}/"
    return tuple(gap._replace(where=gap.where.removeprefix(here)) for gap in found.values())


def _gap(start: Start, why: str, instead: str, *, sure: bool = True) -> HookGap:
    shown = re.sub("[\0\1]+", "…", " ".join(start.words))[:200]
    return HookGap(start.where, shown, why, instead, sure and start.sure)


def _option(start: Start) -> Iterator[HookGap]:
    """An option by which Python ignores PYTHONPATH, or imports no ``sitecustomize``."""
    words = iter(start.words)
    if not any(re.fullmatch(r"(python|pypy)[\d.]*t?", name_of(word)) for word in words):
        return
    for word in words:
        flags = re.fullmatch(r"-([A-Za-z]+).*", word)
        if not flags:
            return
        lost = re.match(r"[^IEScmWX]*([IES])", flags[1])
        if lost:
            why = f"Python with -{lost[1]} {'imports no sitecustomize' if lost[1] == 'S' else 'ignores PYTHONPATH'}"
            yield _gap(start, why, f"leave -{lost[1]} out")
        if lost or re.match(r"[^WX]*[cm]", flags[1]):
            return
        if flags[1][-1] in "WX" and word == f"-{flags[1]}":
            next(words, None)


def _elsewhere(start: Start, variable: str) -> Iterator[HookGap]:
    """A program that starts its command where the environment or the folder of a run is not."""
    words, name = start.words, name_of(start.words[0])
    if name in _CONTAINERS and {"run", "exec", "start"} & {*words}:
        yield _gap(start, "a container has neither our environment nor our folder", "start rlpatch run within it")
    elif name in ("ssh", "pdsh", "kubectl"):
        yield _gap(start, "another machine has neither our environment nor our folder", "start rlpatch run over there")
    elif words[1:3] == ("job", "submit") and name == "ray":
        given = [word for word in words[words.index("submit") :] if _OURS in word or OUTSIDE in word or INSIDE in word]
        if not given:
            yield _gap(start, "the job runs with the environment of the cluster", f"add {submitted(variable)}")
    elif name == "srun" and any(re.match(r"--export=(?!ALL)(?!.*PYTHONPATH)", word) for word in words):
        yield _gap(start, "srun hands on what --export lists", "add PYTHONPATH to --export, or leave --export out")
    elif name == "sudo":
        yield _gap(
            start, "sudo lets through what its configuration says", "sudo env PYTHONPATH=$PYTHONPATH …", sure=False
        )
    elif name == "env" and {"-i", "-", "--ignore-environment"} & {*words}:
        why = "PYTHONPATH was unset, or the environment emptied (env -i)"
        yield _gap(start, why, "leave PYTHONPATH in the environment")
    elif name == "env" and re.search(r"-u ?PYTHONPATH|--unset[= ]PYTHONPATH", " ".join(words)):
        yield _gap(start, "PYTHONPATH was unset", "leave it in the environment")


def _set_anew(start: Start) -> Iterator[HookGap]:
    """PYTHONPATH set to what does not contain the folder of the run, or unset."""
    variable = start.variables.get("PYTHONPATH")
    if variable is None or variable.where == ENVIRONMENT or _OURS in (variable.value or ""):
        return
    sure = start.sure and variable.value != INSIDE
    if variable.value is None:
        yield HookGap(variable.where, variable.found, "PYTHONPATH was unset", "leave it in the environment", sure)
    elif "PYTHONPATH" not in variable.found.partition("=")[2]:
        instead = "export PYTHONPATH=…:$PYTHONPATH keeps what was there"
        yield HookGap(variable.where, variable.found, "PYTHONPATH is set anew", instead, sure)
