"""What the user chose to record, checked: windows, ranks, contents and where the trace goes."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar

from patcher.errors import Kind, Problem
from patcher.notes import Note

LEVELS = ("level_none", "level0", "level1", "level2")
CONTENTS = ("npu", "cpu", "memory", "shapes", "module", "stack")
EXPORT_TYPES = ("text", "db")
BACKENDS = ("npu", "torch")
AIC_METRICS = (
    "none", "pipe_utilization", "arithmetic_utilization", "memory", "memory_l0", "memory_ub",
    "resource_conflict_ratio", "l2_cache",
)  # fmt: skip
ROLLOUT_UNITS = ("decode", "prefill", "iterations")
TRAINING_UNITS = ("micro-batch", "mini-batch")
UNITS = ROLLOUT_UNITS + TRAINING_UNITS
WHOLE = "whole"
"""The unit of a stage that has no window: it is recorded, or set, from its beginning to its end."""
BUILTIN = "builtin"
"""The stage of the framework's own profiler, whose settings are changed; nothing of ours records there."""
ROLES = ("actor", "ref", "critic")

OPEN_END = 10**9
"""The end of a window without one, such as ``30:``: no rollout and no loop has as many units."""
LONG_WINDOW = 128
"""Units: a decode step of a large model is some MB per rank, and no viewer opens more than a few GB."""


@dataclass(frozen=True)
class Window:
    """The units recorded, ``first`` to ``end - 1``, counted from 0 in every rollout or call of a training stage."""

    unit: str
    first: int
    end: int

    @classmethod
    def parse(cls, unit: str, text: str) -> Window:
        """The window that ``text`` names, ``A:B`` or, without an end, ``A:``; :class:`Problem` (USAGE) for none."""
        match = re.fullmatch(r"(\d+):(\d*)", text.strip(), re.ASCII)
        if not match:
            raise Problem(
                Kind.USAGE, f"--{unit} {text}: not a window", hint=f"--{unit} A:B, for example --{unit} 30:60"
            )
        window = cls(unit, int(match[1]), int(match[2] or OPEN_END))
        if window.first >= window.end:
            hint = f"the end is not recorded: --{unit} {window.first}:{window.first + 1} records one unit"
            raise Problem(Kind.USAGE, f"--{unit} {text}: the window is empty", hint=hint)
        if unit == "decode" and window.first == 0:
            cause = f"--decode {text}: there is no decode step 0, because prefill produces token 0"
            raise Problem(
                Kind.USAGE,
                cause,
                hint=f"--decode 1:{max(window.end, 2)}, or --prefill, or --iterations {text}",
            )
        return window

    @classmethod
    def whole(cls) -> Window:
        """That of a stage which is recorded from its beginning to its end."""
        return cls(WHOLE, 0, 1)

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def open(self) -> bool:
        """Whether it has no end of its own."""
        return self.end == OPEN_END

    def __str__(self) -> str:
        return f"{self.first}:{'' if self.open else self.end}"


def option(unit: str) -> str:
    """How the user asks for a window of ``unit``."""
    return "no window" if unit == WHOLE else f"--{unit} A:B"


@dataclass(frozen=True)
class Capture:
    """Everything the user chose. ``ranks`` None means all; an ``aic_metrics`` of "" follows the level.

    A rollout stage has a ``rollout``, counted from 0, a training stage has ``training_steps``, counted from 1 as
    verl's log does, a ``role`` and a ``strategy`` ("": all of them). ``settings`` are the fields that the user named
    for the stage ``builtin``: all others stay as upstream has them.

    Building one checks that every release of the profiler from torch_npu 2.1.0.post8 on accepts the combination;
    :class:`Problem` (USAGE) says why not.
    """

    window: Window
    save_path: str
    stage: str = "rollout"
    role: str = ""
    strategy: str = ""
    ranks: tuple[int, ...] | None = (0,)
    rollout: int = 0
    training_steps: tuple[int, ...] = (1,)
    repeat: int = 1
    warmup: int = 1
    backend: str = "npu"
    level: str = ""
    contents: tuple[str, ...] = ("npu", "cpu")
    export_type: tuple[str, ...] = ()
    aic_metrics: str = ""
    l2_cache: bool = False
    mstx: bool = False
    analysis: bool = False
    markers: bool = False
    module_ranges: bool = False
    module_pattern: str = ""
    settings: tuple[str, ...] = ()

    SETTINGS: ClassVar[tuple[str, ...]] = (
        "level",
        "contents",
        "export_type",
        "aic_metrics",
        "l2_cache",
        "mstx",
        "analysis",
    )
    ROLLOUT_ONLY: ClassVar[tuple[str, ...]] = ("rollout",)
    TRAINING_ONLY: ClassVar[tuple[str, ...]] = ("role", "strategy", "training_steps")
    NPU_ONLY: ClassVar[tuple[str, ...]] = (
        "level",
        "export_type",
        "aic_metrics",
        "l2_cache",
        "mstx",
        "analysis",
    )

    def __post_init__(self) -> None:
        self._check_stage()
        self._check_ranges()
        if self.backend == "torch":
            self._check_torch()
        else:
            self._check_npu()
        if not {"npu", "cpu"} & set(self.contents):
            raise Problem(
                Kind.USAGE,
                "--contents names neither npu nor cpu: nothing would be recorded",
                hint="--contents npu,cpu",
            )
        if "memory" in self.contents and "cpu" not in self.contents:
            raise Problem(
                Kind.USAGE,
                "--contents memory needs cpu: allocations are seen on the host",
                hint="--contents npu,cpu,memory",
            )
        # The pattern of torch_npu's own check (torch_npu/utils/_path_manager.py), in which nothing can end a literal.
        if not re.fullmatch(r"/[\w./~ -]*", self.save_path, re.ASCII):
            raise Problem(
                Kind.USAGE,
                f"--save-path {self.save_path}: torch_npu refuses this path",
                hint="--save-path /tmp/rlpatch_traces: absolute, of letters, digits and underscores",
            )

    def _check_stage(self) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for name in (
            *(() if self.window.unit in ROLLOUT_UNITS else self.ROLLOUT_ONLY),
            *(() if self.window.unit in TRAINING_UNITS else self.TRAINING_ONLY),
        ):
            if getattr(self, name) != defaults[name]:
                said, kind = name.replace("_", "-"), "rollout" if name in self.ROLLOUT_ONLY else "training"
                stage = f"--stage {self.stage}" if self.window.unit == WHOLE else f"--{self.window.unit}"
                raise Problem(
                    Kind.USAGE,
                    f"--{said} belongs to {kind} stages, and {stage} to a stage of another kind",
                    hint=f"leave --{said} out",
                )
        for name in ("warmup", "markers", "module_ranges"):
            if self.window.unit == WHOLE and self.stage != BUILTIN and getattr(self, name) != defaults[name]:
                said = name.replace("_", "-")
                cause = f"--{said}: {self.stage} is recorded as a whole, without a warm-up or ranges of ours"
                raise Problem(Kind.USAGE, cause, hint=f"leave --{said} out")
        if self.stage == BUILTIN and not self.settings:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in self.SETTINGS)
            raise Problem(Kind.USAGE, "--builtin without a setting: nothing would change", hint=f"one of {named}")

    def _check_ranges(self) -> None:
        if self.module_pattern and not self.module_ranges:
            raise Problem(
                Kind.USAGE,
                f"--module-pattern {self.module_pattern}: there are no ranges of modules to choose from",
                hint="--module-ranges --module-pattern REGEX",
            )
        try:
            re.compile(self.module_pattern)
        except re.error as error:
            raise Problem(
                Kind.USAGE,
                f"--module-pattern {self.module_pattern}: not a regular expression: {error}",
                hint="a pattern for the names of classes, such as --module-pattern 'Attention|MLP$'",
            ) from None
        needed = {"npu": "npu", "torch": "cpu"}[self.backend]
        if (self.markers or self.module_ranges) and needed not in self.contents:
            asked = "--markers" if self.markers else "--module-ranges"
            raise Problem(
                Kind.USAGE,
                f"--contents {','.join(self.contents)}: {asked} would leave nothing in the trace without {needed}",
                hint=f"--contents {','.join((needed, *self.contents))}",
            )
        if self.module_ranges and self.export_type == ("text",):
            raise Problem(
                Kind.USAGE,
                "--export-type text: msprof-analyze's module_statistic reads ranges of modules from the database",
                hint="--export-type db,text, or leave --export-type out",
            )

    def _check_torch(self) -> None:
        for name in self.NPU_ONLY:
            if getattr(self, name):
                option = name.replace("_", "-")
                raise Problem(
                    Kind.USAGE,
                    f"--{option} does not exist in torch.profiler",
                    hint=f"leave --{option} out, or take --backend npu",
                )

    def _check_npu(self) -> None:
        if self.aic_metrics not in ("", "none") and self.level in ("level0", "level_none"):
            raise Problem(
                Kind.USAGE,
                f"--aic-metrics {self.aic_metrics}: torch_npu collects them from level1 on and would drop them",
                hint=f"--level level1, or leave --aic-metrics out at {self.level}",
            )
        if self.level == "level_none" and not self.marks:
            raise Problem(
                Kind.USAGE,
                "--level level_none records nothing but marks: torch_npu switches them on by itself from 2.9 on",
                hint="--level level_none --markers, or --mstx for marks of your own, or --level level0",
            )

    @property
    def units(self) -> tuple[str, ...]:
        """What is counted or marked: the unit of the window, with markers all that a training stage has."""
        training = self.markers and self.window.unit in TRAINING_UNITS
        return TRAINING_UNITS if training else (self.window.unit,)

    @property
    def marks(self) -> bool:
        """Whether the trace takes mstx marks: asked for as such, or by what makes use of them."""
        return self.mstx or self.markers or self.module_ranges

    @property
    def exports(self) -> tuple[str, ...]:
        """The types of export: those asked for, else the ones that what was asked for needs."""
        return self.export_type or (("db",) if self.module_ranges else ("text",))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the user should know of this choice; it is not wrong."""
        return self._contents_notes if self.stage == BUILTIN else (*self._window_notes, *self._contents_notes)

    @property
    def _window_notes(self) -> tuple[Note, ...]:
        said: list[Note] = []
        if self.window.first == 0 and self.window.unit != WHOLE:
            detail = "the window begins with unit 0, and no unit comes before it to warm up in"
            said.append(Note("no warm-up: unit 0 shows the profiler's own start, too", detail))
        elif self.warmup == 0 and self.window.unit != WHOLE:
            said.append(Note("without warm-up the first unit shows the profiler's own start"))
        if len(self.window) > LONG_WINDOW and self.level != "level_none":
            units = "a window without an end" if self.window.open else f"{len(self.window)} units"
            said.append(Note(f"{units}: a trace of more than {LONG_WINDOW} opens slowly, if at all"))
        if not re.fullmatch(r"[\w/]*", self.save_path, re.ASCII):
            said.append(Note("torch_npu documents only letters, digits and underscores for a path", self.save_path))
        if self.ranks is None:
            said.append(Note("every rank writes a trace; one rank of each kind mostly shows the same"))
        return tuple(said)

    @property
    def _contents_notes(self) -> tuple[Note, ...]:
        said: list[Note] = []
        if self.backend == "npu" and "npu" not in self.contents:
            said.append(Note("without npu in --contents torch_npu ignores level, metrics, L2 and mstx"))
        if "db" in self.exports and self.backend == "npu":
            said.append(Note("db export: torch_npu 2.1 needs CANN's msprof on PATH", "when the window opens"))
        if len(self.export_type) > 1:
            said.append(Note("--export-type with two types: torch_npu 2.1 takes one, text"))
        if {"module", "stack"} & set(self.contents) and self.backend == "npu":
            said.append(Note("stack and module crash torch_npu 2.10.0.post4, and slow every release"))
        if self.module_ranges:
            detail = (
                "graphs (ACL graphs, CUDA graphs, torch.compile) call no modules when they run;"
                " enforce_eager=True switches them off in vLLM"
            )
            said.append(Note("--module-ranges: what runs in a graph has no ranges", detail))
        if self.module_ranges and self.backend == "npu":
            detail = "with an earlier one the window is recorded without ranges"
            said.append(Note("--module-ranges needs torch_npu 2.7 or later", detail))
            if "cpu" not in self.contents or self.level == "level_none":
                detail = "it finds the kernels of a module by its operators"
                said.append(Note("module_statistic needs cpu in --contents, and a level with kernels", detail))
        if self.analysis:
            detail = (
                "torch_npu refuses to parse in daemon processes, such as vLLM's workers; without --analysis, parse the"
                " trace later: torch_npu.profiler.profiler.analyse()"
            )
            said.append(Note("--analysis blocks the run when the window ends; vLLM's workers refuse it", detail))
        return tuple(said)

    @property
    def words(self) -> tuple[str, ...]:
        """The options as the user would type them, those at their default left out."""
        said = ["--stage", self.stage] if self.window.unit == WHOLE else [f"--{self.window.unit}", str(self.window)]
        if self.stage == BUILTIN:
            said = ["--builtin"]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if field.name in ("stage", "settings") or (value == field.default and field.name not in self.settings):
                continue
            typed = field.name.replace("_", "-")
            if isinstance(value, bool):
                said.append(f"--{typed}" if value else f"--no-{typed}")
            elif isinstance(value, tuple) or value is None:
                said += [f"--{typed}", "all" if value is None else ",".join(map(str, value))]
            else:
                said += [f"--{typed}", str(value)]
        return tuple(said) if self.stage == BUILTIN else (*said, "--save-path", self.save_path)
