"""What the user chose to record, checked: windows, ranks, contents and where the trace goes."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar

from patcher.errors import Kind, Problem

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
ROLES = ("actor", "ref", "critic")

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
        """The window that ``text`` (``A:B``) names; :class:`Problem` (USAGE) where it names none."""
        match = re.fullmatch(r"(\d+):(\d+)", text.strip(), re.ASCII)
        if not match:
            raise Problem(
                Kind.USAGE, f"--{unit} {text}: not a window", hint=f"--{unit} A:B, for example --{unit} 30:60"
            )
        window = cls(unit, int(match[1]), int(match[2]))
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

    def __len__(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


@dataclass(frozen=True)
class Capture:
    """Everything the user chose. ``ranks`` None means all; an ``aic_metrics`` of "" follows the level.

    A rollout stage has a ``rollout``, counted from 0, a training stage has ``training_steps``, counted from 1 as
    verl's log does, a ``role`` and a ``strategy`` ("": all of them).

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
    export_type: str = ""
    aic_metrics: str = ""
    l2_cache: bool = False
    mstx: bool = False
    analysis: bool = False

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
        training = self.window.unit in TRAINING_UNITS
        defaults = {field.name: field.default for field in fields(self)}
        for name in self.ROLLOUT_ONLY if training else self.TRAINING_ONLY:
            if getattr(self, name) != defaults[name]:
                option, kind = name.replace("_", "-"), "rollout" if training else "training"
                raise Problem(
                    Kind.USAGE,
                    f"--{option} belongs to {kind} stages, and --{self.window.unit} to a stage of the other kind",
                    hint=f"leave --{option} out",
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
        if self.level == "level_none" and not self.mstx:
            raise Problem(
                Kind.USAGE,
                "--level level_none records nothing but marks: torch_npu switches them on by itself from 2.9 on",
                hint="--level level_none --mstx, or --level level0",
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of this choice; it is not wrong."""
        said = []
        if self.window.first == 0:
            said.append(
                "the window begins with unit 0, so there is no warm-up: this unit shows the profiler's own start, too"
            )
        elif self.warmup == 0:
            said.append("without warm-up the first unit shows the profiler's own start")
        if len(self.window) > LONG_WINDOW:
            said.append(
                f"{len(self.window)} units are a lot: a trace of more than {LONG_WINDOW} opens slowly or not at all"
            )
        if not re.fullmatch(r"[\w/]*", self.save_path, re.ASCII):
            said.append("torch_npu documents only letters, digits and underscores for the path of a trace")
        if self.ranks is None:
            said.append("every rank writes a trace; one rank of each kind mostly shows the same")
        if self.backend == "npu" and "npu" not in self.contents:
            said.append("without npu in --contents torch_npu ignores level, metrics, L2 cache and mstx")
        if self.export_type == "db":
            said.append("--export-type db: torch_npu 2.1 needs CANN's msprof on PATH when the window opens")
        if {"module", "stack"} & set(self.contents) and self.backend == "npu":
            said.append("stack and module crash with torch_npu 2.10.0.post4, and slow every release down")
        if self.analysis:
            said.append(
                "--analysis blocks the run when the window ends, and torch_npu refuses it in daemon processes such as"
                " vLLM's workers: without it, parse the trace later with torch_npu.profiler.profiler.analyse()"
            )
        return tuple(said)

    @property
    def words(self) -> tuple[str, ...]:
        """The options as the user would type them, those at their default left out."""
        said = [f"--{self.window.unit}", str(self.window)]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value == field.default or field.name == "stage":
                continue
            option = f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                said.append(option)
            elif isinstance(value, tuple) or value is None:
                said += [option, "all" if value is None else ",".join(map(str, value))]
            else:
                said += [option, str(value)]
        return (*said, "--save-path", self.save_path)
