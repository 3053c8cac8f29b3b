"""The tools that record, torch_npu.profiler or torch.profiler, the contents of their traces, and ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from patcher.messages import Note, Text, usage
from patcher.options import Options, option
from patcher.options.headings import RECORDED
from patcher.options.notations import AnyText, Choice, ChoiceList, Flag, shortened

LEVELS = ("level_none", "level0", "level1", "level2")
CONTENTS = ("npu", "cpu", "memory", "shapes", "module", "stack")
BASE_STALL_MS, STALL_MS = 30, {"memory": 15, "shapes": 55, "stack": 105}
"""Milliseconds of :attr:`ProfilerSettings.unit_stall_ms`, and what each of the contents adds to them."""
EXPORT_TYPES = ("text", "db")
AIC_METRICS = (
    "none", "pipe_utilization", "arithmetic_utilization", "memory", "memory_l0", "memory_ub",
    "resource_conflict_ratio", "l2_cache",
)  # fmt: skip


class RangeOptions(Options):
    """Options for ranges that rlpatch adds to the trace. Raises Problem (USAGE) for an unusable module pattern."""

    markers: bool = option(
        Flag(),
        RECORDED,
        "Mark the rollout or training step and each decode step, micro-batch, … in the trace. With --level"
        " level_none, this is the cheapest recording.",
        default=False,
    )
    module_ranges: bool = option(
        Flag(),
        RECORDED,
        "Mark every nn.Module call in the trace, for module_statistic of msprof-analyze.",
        default=False,
    )
    module_pattern: str = option(
        AnyText("REGEX"),
        RECORDED,
        "Mark only modules whose class name matches this regular expression.",
        default="",
        default_text="",
    )

    def __post_init__(self) -> None:
        typed = f"--module-pattern {shortened(self.module_pattern)}"
        if self.module_pattern and not self.module_ranges:
            cause = Text("--module-pattern needs --module-ranges")
            raise usage(f"{typed}: {cause}", "--module-ranges --module-pattern REGEX")
        try:
            re.compile(self.module_pattern)
        except (re.error, OverflowError, RecursionError) as error:
            cause = Text("the value of {option} is not a regular expression: {error}", option=typed, error=error)
            hint = Text("give a pattern for class names, such as --module-pattern 'Attention|MLP$'")
            raise usage(cause, hint) from None

    @property
    def switch(self) -> str:
        """Option that switches ranges on, "" if none are on."""
        return "--markers" if self.markers else "--module-ranges" if self.module_ranges else ""


NO_RANGES = RangeOptions()


def _contents() -> tuple[str, ...]:
    """Return the field of the option `--contents`."""
    return option(ChoiceList(CONTENTS, same={"cuda": "npu"}), RECORDED, "What to record.", default=("npu", "cpu"))


class ProfilerSettings(Options):
    """Settings of a profiler; each subclass is a profiler.

    `TOOL` is its word for `--tool`, `MODULE` its Python name, `NEEDED` the contents that ranges need, `DEVICE` its name
    for the accelerator, `PATHS` the pattern of paths that it documents. `STARTED_BY` is the program that must have
    started the process, as guards name it; "" for none.
    """

    TOOL: ClassVar[str]
    MODULE: ClassVar[str]
    STARTED_BY: ClassVar[str] = ""
    NEEDED: ClassVar[str]
    DEVICE: ClassVar[str] = "CUDA"
    PATHS: ClassVar[str] = r".*"
    contents: tuple[str, ...]
    level: str = ""

    def check(self, ranges: RangeOptions) -> None:
        """Raise Problem (USAGE) if `--contents` would record nothing, or lacks what `ranges` or its `memory` needs."""
        contents = f"--contents {','.join(self.contents)}"
        if ranges.switch and self.NEEDED not in self.contents:
            cause = Text("with {contents}, {option} adds nothing to the trace: add {needed} to --contents")
            cause = cause.filled(contents=contents, option=ranges.switch, needed=self.NEEDED)
            raise usage(cause, f"--contents {','.join((self.NEEDED, *self.contents))}")
        if not {"npu", "cpu"} & set(self.contents):
            cause = Text("{contents} has neither npu nor cpu, so nothing would be recorded", contents)
            raise usage(cause, "--contents npu,cpu")
        if "memory" in self.contents and "cpu" not in self.contents:
            cause = Text(
                "{contents} has memory, but not cpu; allocations are recorded on the host, so memory needs cpu"
            )
            raise usage(cause.filled(contents), "--contents npu,cpu,memory")

    @property
    def unit_stall_ms(self) -> int:
        """Estimated milliseconds for which saving one decode step stalls a model of 32 layers.

        Measured with torch 2.13 and vLLM 0.27.0 on a model of 2 layers on a CPU, and scaled by the layers.
        """
        return BASE_STALL_MS + sum(STALL_MS.get(word, 0) for word in self.contents)

    @property
    def light(self) -> bool:
        """Whether only marks are recorded, and no operators."""
        return self.level == "level_none"

    def notes(self, ranges: RangeOptions) -> Iterator[Note]:
        """Yield notes for the report on the effects of these settings and of the requested `ranges`."""
        if ranges.module_ranges:
            detail = Text(
                "a graph (ACL graph, CUDA graph, torch.compile) calls no module when it runs, so its modules"
                " get no ranges. In vLLM, enforce_eager=True turns graphs off"
            )
            yield Note(Text("--module-ranges has no effect for code that runs in a graph"), detail)


class TorchNpuSettings(ProfilerSettings):
    """Settings of torch_npu.profiler; every valid combination works from 2.1.0.post8 on.

    "" and () are defaults that follow from other settings: see `exports` and `patches.tools`.
    """

    TOOL: ClassVar = "npu"
    MODULE: ClassVar = "torch_npu.profiler"
    NEEDED: ClassVar = "npu"
    DEVICE: ClassVar = "NPU"
    PATHS: ClassVar = r"[\w/]*"
    level: str = option(Choice(LEVELS), RECORDED, "Level of detail.", default="", default_text="level1 on NPUs")
    contents: tuple[str, ...] = _contents()
    export_type: tuple[str, ...] = option(
        ChoiceList(EXPORT_TYPES),
        RECORDED,
        "Formats to export.",
        default=(),
        default_text="text; db with --module-ranges",
    )
    aic_metrics: str = option(
        Choice(
            AIC_METRICS,
            same={"AiCoreNone": "none"},
            missing={"memory_access": Text("torch_npu 2.1 does not have these AI Core metrics")},
        ),
        RECORDED,
        "AI Core metrics.",
        default="",
        default_text="pipe_utilization from level1 on",
    )
    l2_cache: bool = option(Flag(negated=True), RECORDED, "Record L2 cache hits.", default=False)
    mstx: bool = option(Flag(negated=True), RECORDED, "Record mstx marks.", default=False)
    analysis: bool = option(
        Flag(negated=True),
        RECORDED,
        "Parse the trace during the run.",
        default=False,
        default_text="later, with `rlpatch analyse`",
    )

    def check(self, ranges: RangeOptions) -> None:
        """Raise Problem (USAGE) as the base class does, or for options of torch_npu that would have no effect."""
        super().check(ranges)
        if ranges.module_ranges and self.export_type == ("text",):
            cause = Text("module_statistic of msprof-analyze reads a database, but --export-type text writes none")
            raise usage(cause, Text("use --export-type db,text, or leave --export-type out"))
        if self.aic_metrics not in ("", "none") and self.level in ("level0", "level_none"):
            cause = Text("--aic-metrics {aic_metrics} has no effect below --level level1", self.aic_metrics)
            hint = Text("use --level level1; or keep --level {level}, and leave --aic-metrics out", self.level)
            raise usage(cause, hint)
        if self.light and not self.marks(ranges):
            cause = Text(
                "--level level_none records only marks. torch_npu before 2.9 does not switch marks on by itself, so"
                " nothing would be recorded"
            )
            hint = Text(
                "use --level level0; or switch on marks with --markers (marks of steps) or --mstx (your own marks)"
            )
            raise usage(cause, hint)

    def marks(self, ranges: RangeOptions) -> bool:
        """Tell whether the trace records mstx marks, because of `--mstx` or of ranges, which are made of marks."""
        return self.mstx or bool(ranges.switch)

    def exports(self, ranges: RangeOptions) -> tuple[str, ...]:
        """Return the types of export: those of the user, else "db" with module ranges and "text" without."""
        return self.export_type or (("db",) if ranges.module_ranges else ("text",))

    def notes(self, ranges: RangeOptions) -> Iterator[Note]:
        """Yield notes on what torch_npu, in some releases, needs, ignores or fails on with these settings."""
        if "npu" not in self.contents:
            yield Note(Text("without npu in --contents, torch_npu ignores level, metrics, L2 and mstx"))
        if "db" in self.exports(ranges):
            yield Note(
                Text("to export a database, torch_npu 2.1 needs CANN's msprof on PATH"),
                Text("msprof must already be on PATH when the recording window opens"),
            )
        if len(self.export_type) > 1:
            yield Note(Text("with several values of --export-type, torch_npu 2.1 writes only text"))
        if {"module", "stack"} & set(self.contents):
            yield Note(
                Text("torch_npu 2.10.0.post4 crashes when --contents includes stack or module"),
                Text("in torch_npu versions other than 2.10.0.post4, stack and module in --contents slow down the run"),
            )
        yield from super().notes(ranges)
        if ranges.module_ranges:
            detail = Text("torch_npu before 2.7 does not record module ranges")
            yield Note(Text("--module-ranges needs torch_npu 2.7 or later"), detail)
            if "cpu" not in self.contents or self.light:
                detail = Text(
                    "module_statistic can tell which module launched a kernel only if the trace contains host"
                    " operators (cpu) and kernels"
                )
                text = Text(
                    "module_statistic of msprof-analyze needs cpu in --contents, and a --level that records kernels"
                )
                yield Note(text, detail)
        if self.analysis:
            detail = Text(
                "torch_npu cannot parse a trace in a daemon process, such as a worker of vLLM. Leave --analysis out,"
                " and parse the trace later with `rlpatch analyse`"
            )
            yield Note(Text("with --analysis, the run waits for parsing, which fails in vLLM's workers"), detail)


class TorchSettings(ProfilerSettings):
    """Settings of torch.profiler, for CUDA and CPU; "npu" in `contents` means the accelerator."""

    TOOL: ClassVar = "torch"
    MODULE: ClassVar = "torch.profiler"
    NEEDED: ClassVar = "cpu"
    contents: tuple[str, ...] = _contents()


class NsysSettings(ProfilerSettings):
    """Nsight Systems, which records from outside: what it records are options of ``nsys profile``."""

    TOOL: ClassVar = "nsys"
    MODULE: ClassVar = "nsys"
    NEEDED: ClassVar = "npu"
    STARTED_BY: ClassVar = "Nsight Systems"
    contents: tuple[str, ...] = ("npu",)

    def check(self, ranges: RangeOptions) -> None:
        """Raise Problem (USAGE) for `--markers`: nsys records a range for each step anyway."""
        if ranges.markers:
            cause = Text("--markers adds nothing with --tool nsys: each step has an NVTX range anyway")
            raise usage(cause, Text("leave out --markers"))

    @property
    def unit_stall_ms(self) -> int:
        """Zero: nsys writes the report, in a process of its own."""
        return 0


class MemorySettings(ProfilerSettings):
    """The history of torch's allocator (``torch.cuda.memory``, ``torch_npu.npu.memory``), with Python stacks."""

    TOOL: ClassVar = "memory"
    MODULE: ClassVar = "the allocator of torch"
    NEEDED: ClassVar = "npu"
    contents: tuple[str, ...] = ("npu",)

    def check(self, ranges: RangeOptions) -> None:
        """Raise Problem (USAGE) for any ranges: a history of allocations has none."""
        if ranges.switch:
            cause = Text("{option} adds nothing with --tool memory: a snapshot marks each step anyway", ranges.switch)
            raise usage(cause, Text("leave out {option}", ranges.switch))

    @property
    def unit_stall_ms(self) -> int:
        """Estimated milliseconds for which saving some 1,500 allocations stalls a decode step."""
        return STALL_MS["memory"]


class NoProfiler(ProfilerSettings):
    """Placeholder for the timeline, which uses no profiler."""

    TOOL: ClassVar = ""
    MODULE: ClassVar = ""
    NEEDED: ClassVar = "cpu"
    contents: tuple[str, ...] = ("cpu",)


PROFILERS: Mapping[str, type[TorchNpuSettings | TorchSettings | NsysSettings | MemorySettings]] = {
    kind.TOOL: kind for kind in (TorchNpuSettings, TorchSettings, NsysSettings, MemorySettings)
}
"""Word of ``--tool`` → the class of its settings."""
TOOLS = tuple(PROFILERS)
