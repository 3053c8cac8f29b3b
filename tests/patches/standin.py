"""A profiler that writes down what it is told, and workers that run a rendered recorder over it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import CodeType, ModuleType
from typing import Any

import pytest

from patcher.changes.change import SHARED, PatchId
from patcher.config import WHOLE
from patcher.editing.rendering import render
from patcher.recipe import Recipe
from tests.choices import config as recorded


class Profiler:
    """Runs the schedule and writes down which iterations it would record."""

    def __init__(self, wait: int, warmup: int, active: int) -> None:
        self.schedule = (wait, warmup, active)
        self.step_num = 0
        self.recorded: dict[int, list[str]] = {}
        self.calls: list[str] = []

    @property
    def recording(self) -> bool:
        wait, warmup, active = self.schedule
        return (
            "start" in self.calls
            and "stop" not in self.calls
            and wait + warmup <= self.step_num < wait + warmup + active
        )

    def start(self) -> None:
        self.calls.append("start")

    def step(self) -> None:
        self.calls.append("step")
        self.step_num += 1

    def stop(self) -> None:
        self.calls.append("stop")

    def run(self, label: str) -> None:
        if self.recording:
            self.recorded.setdefault(self.step_num, []).append(label)


class Backend:
    """What stands in for a backend; a trace appears when the profiler stops while or after recording."""

    made: list[Profiler]
    leaves_trace = True

    def synchronize(self) -> None:
        if self.made:
            self.made[-1].calls.append("sync")

    def conflict(self) -> str:
        return ""

    def traces(self) -> set[str]:
        return {str(n) for n, p in enumerate(self.made) if "stop" in p.calls and p.recorded and self.leaves_trace}


class ProfilerModule(ModuleType):
    """``torch.profiler`` or ``torch_npu.profiler``, as far as the schedule goes."""

    class Words:
        """Members of an enumeration."""

        def __getattr__(self, name: str) -> str:
            return name

    ProfilerActivity = ProfilerLevel = AiCMetrics = ExportType = Words()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.record_function = nullcontext

    def schedule(self, *, wait: int, warmup: int, active: int, repeat: int) -> tuple[int, int, int]:
        assert repeat == 1
        return wait, warmup, active

    def tensorboard_trace_handler(self, folder: str, name: str, **_more: bool) -> tuple[str, str]:
        return folder, name

    def _ExperimentalConfig(self, **settings: object) -> object:
        return settings

    def profile(self, *, schedule: tuple[int, int, int], **_more: object) -> Profiler:
        """Make the profiler of the recorder that opens its window."""
        made: list[Profiler] = sys._rlpatch_recording.made  # type: ignore[attr-defined]
        made.append(Profiler(*schedule))
        return made[-1]


def synchronize() -> None:
    """Wait for the device, as ``torch_npu.npu.synchronize`` does: let the recorder's `Backend` know."""
    sys._rlpatch_recording.synchronize()  # type: ignore[attr-defined]


class Console:
    """What recorders have said on stderr in a test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.seen = capsys, ""

    @property
    def text(self) -> str:
        self.seen += self.capsys.readouterr().err
        return self.seen

    @property
    def messages(self) -> list[str]:
        """Each message, with the traceback that it may have."""
        return [f"rlpatch: {message}".strip() for message in re.split("^rlpatch: ", self.text, flags=re.MULTILINE)[1:]]

    @property
    def failures(self) -> list[str]:
        """The messages of recorders that have failed."""
        return [message for message in self.messages if ": recording failed, the run goes on: " in message]


_WORDS = {
    "ON_DEMAND": "--on-demand",
    "LIVE": "--live",
    "EVERY_RANK": "--ranks all",
    "BY_SERVER": "--replicas prefill",
    "REPEAT": "--repeat {}",
    "WARMUP": "--warmup {}",
}
"""What decides on the layers of a recorder, as the user asks for it."""


def of_its_stage(recipe: Recipe, constants: Mapping[str, Any]) -> Any:
    """Some capture of a stage like the recipe's, with the layers that ``constants`` ask for."""
    unit = constants.get("UNIT", recipe.windows[0])
    window = "" if unit == WHOLE else f"--{unit} {'1:2,3:4' if constants.get('SEVERAL') else '1:2'}"
    asked = [words.format(constants[name]) for name, words in _WORDS.items() if constants.get(name)]
    asked += [f"--at-{name} {value}" for name, value in constants.get("AT", {}).items() if value != "0"]
    if not any(constants.get(name) for name in ("METADATA", "LIVE", "ON_DEMAND", "EVERY_RANK")):
        asked.append("--no-facts")
    backend = constants.get("backend", "npu")
    return recorded(f"--stage {recipe.stage} {window} --tool {backend} {' '.join(asked)}")


class _Unnamed(PatchId):
    """A patch without a name: what goes in keeps the placeholders."""

    def rename(self, code: str) -> str:
        return code


def rendered(
    recipe: Recipe, constants: Mapping[str, Any], *, layers: Sequence[type] = (), release: str = ""
) -> tuple[str, ...]:
    """What goes into the recipe's class with ``constants`` for what the user chose and what is settled.

    ``layers`` go on top of those that are asked for.
    """
    config = of_its_stage(recipe, constants)
    original = recipe.probe
    assert original.recorder is not None
    over = (*original.layers(config, release), *layers)
    kinds: list[type] = [*over, *original.parts(config, release), original.recorder]
    noted = {
        name: note
        for kind in kinds
        for base in kind.__mro__
        for name, note in vars(base).get("__annotations__", {}).items()
    }
    fixed = {name: value for name, value in constants.items() if "CompileTime" in noted.get(name, "")}
    if "LONGEST" in noted:
        fixed.setdefault("LONGEST", 10**9)
    own = original.settings(config)
    known = {name for kind in kinds for base in kind.__mro__ for name in vars(base) if name.isupper()} - {*fixed}
    settings = {name: value for name, value in constants.items() if name in known}
    about = {name: own[name] for name in ("ABOUT", "IDENTITY", "BETWEEN", "AT") if name in own}
    probe = original._replace(
        constants=lambda config, release: {**original.constants(config, release), **fixed},
        settings=lambda _config: {"SAVE_PATH": "/tmp", **about, **settings},
        layers=lambda _config, _release: over,
    )
    shared = PatchId("target", SHARED)
    text = render(recipe._replace(probe=probe), config, release, _Unnamed("target", "stage"), shared)
    return (*text.shared_lines, *text.patch_lines)


_COMPILED: dict[object, tuple[Recipe, CodeType]] = {}
"""By what is asked for; with the recipe, so that no other one gets its id."""


def _compiled(
    recipe: Recipe, constants: Mapping[str, Any], *, layers: Sequence[type] = (), release: str = ""
) -> CodeType:
    """A class of the rendered lines, written once: that takes longer than most schedules that are run through it."""
    chosen = sorted((name, repr(value)) for name, value in constants.items() if name.isupper())
    asked = (id(recipe), constants.get("backend"), *chosen, tuple(layers), release)
    if asked not in _COMPILED:
        lines = "\n".join(f"    {line}" for line in rendered(recipe, constants, layers=layers, release=release))
        _COMPILED[asked] = recipe, compile(f"class Patched(Base):\n{lines}\n", "<patched>", "exec")
    return _COMPILED[asked][1]


def host(worker: object, recipe: Recipe, constants: Mapping[str, Any], *parts: type, **how: Any) -> None:
    """Make ``worker`` one whose class holds the rendered recorder, with ``parts`` for the backend."""
    namespace: dict[str, Any] = {"Base": type(worker)}
    exec(_compiled(recipe, constants, **how), namespace)
    patched = namespace["Patched"]
    beside = {name: value for name, value in constants.items() if not name.isupper()}
    patched._RlpatchStage = type("Recorder", (*parts, Backend, patched._RlpatchStage), beside)
    worker.__class__ = patched
