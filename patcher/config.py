"""What is recorded, as values that cannot be wrong: a stage of one kind, a profiler of one kind, ranks and a folder.

Each type declares its options once (``patcher.option``): the command line, its help, and the words that print a capture
again follow from the fields. What a combination cannot be is a :class:`Problem` (USAGE) where it is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Generic, NamedTuple, TypeVar

from patcher.errors import Kind, Problem
from patcher.headings import OUTPUT, RECORDED, WHOSE, WINDOW
from patcher.notes import Note
from patcher.option import (
    Flag,
    Folder,
    Number,
    Numbers,
    NumbersOrAll,
    Text,
    Word,
    Words,
    changed,
    flag,
    option,
    options_of,
    shortened,
    whole_number,
    words_of,
)

LEVELS = ("level_none", "level0", "level1", "level2")
CONTENTS = ("npu", "cpu", "memory", "shapes", "module", "stack")
EXPORT_TYPES = ("text", "db")
AIC_METRICS = (
    "none", "pipe_utilization", "arithmetic_utilization", "memory", "memory_l0", "memory_ub",
    "resource_conflict_ratio", "l2_cache",
)  # fmt: skip
ROLES = ("actor", "ref", "critic")
WHOLE = "whole"
"""The unit of a stage that has no window: it is recorded, or set, from its beginning to its end."""

OPEN_END = 10**9
"""The end of a window without one, such as ``30:``: no rollout and no loop has as many units."""
LONG_WINDOW = 128
"""Units: a decode step of a large model is some MB per rank, and no viewer opens more than a few GB."""


class Unit(NamedTuple):
    """A kind of window: what is counted; the first that there is, and what to say of one before it."""

    name: str
    about: str
    first: int = 0
    before: str = ""
    instead: str = ""


ROLLOUT_UNITS = (
    Unit(
        "decode",
        "Decode steps A to B-1; step n produces response token n.",
        first=1,
        before="there is no decode step 0, because prefill produces token 0",
        instead="--prefill, or --iterations",
    ),
    Unit("prefill", "Iterations that still prefill something, counted from 0."),
    Unit("iterations", "Iterations of any kind, counted from 0."),
)
TRAINING_UNITS = (
    Unit("micro-batch", "Micro-batches A to B-1 of a training stage, from 0."),
    Unit("mini-batch", "Mini-batches A to B-1 of an update, from 0."),
)
UNITS = {unit.name: unit for unit in (*ROLLOUT_UNITS, *TRAINING_UNITS)}


@dataclass(frozen=True)
class Window:
    """The units recorded, ``first`` to ``end - 1``, counted from 0 in every rollout or call of a training stage.

    ``later`` are windows behind it, each with a trace of its own. With ``none`` there is no window yet: it is asked for
    while the run goes on.
    """

    unit: str
    first: int
    end: int
    later: tuple[tuple[int, int], ...] = ()
    none: bool = False

    def __post_init__(self) -> None:
        if empty := [one for one in self.all if one[0] >= one[1]]:
            first = empty[0][0]
            hint = f"the end is not recorded: --{self.unit} {first}:{first + 1} records one unit"
            raise Problem(Kind.USAGE, f"--{self.unit} {self}: the window is empty", hint=hint)
        if any(one[1] >= after[0] for one, after in pairwise(self.all)):
            cause = f"--{self.unit} {self}: windows in order, with a unit between them to warm up in"
            raise Problem(Kind.USAGE, cause, hint=f"--{self.unit} {_joined(self.unit, self.all)}")

    def check(self) -> None:
        """Raise :class:`Problem` (USAGE) where it begins before the first unit that there is."""
        unit = UNITS.get(self.unit)
        if unit and self.all and self.first < unit.first:
            later = Window(self.unit, unit.first, max(self.end, unit.first + 1))
            cause = f"--{self.unit} {self}: {unit.before}"
            raise Problem(Kind.USAGE, cause, hint=f"--{self.unit} {later}, or {unit.instead} {self}")

    @property
    def all(self) -> tuple[tuple[int, int], ...]:
        """The first unit and the end of each window."""
        return () if self.none else ((self.first, self.end), *self.later)

    @classmethod
    def parse(cls, unit: str, text: str, following: str = "") -> Window:
        """What ``text`` names: ``A:B``, without an end ``A:``, or several with commas between them.

        ``following`` is the next word of the command line, which may be the end of a window in two words. Raises
        :class:`Problem` (USAGE) for what is no window.
        """
        found = []
        for one in text.split(","):
            match = re.fullmatch(r"([0-9]+):([0-9]*)", one.strip())
            if not match:
                cause = f"--{unit} {shortened(text)}: not a window"
                raise Problem(Kind.USAGE, cause, hint=_meant(unit, text, following))
            first, end = whole_number(match[1]), whole_number(match[2]) if match[2] else OPEN_END
            if first is None or end is None:
                cause = f"--{unit} {shortened(text.strip())}: no rollout and no loop has as many units"
                hint = f"--{unit} A:B with numbers below {OPEN_END}, or without an end: --{unit} {first or 1}:"
                raise Problem(Kind.USAGE, cause, hint=hint)
            found.append((first, end))
        return cls(unit, *found[0], tuple(found[1:]))

    @classmethod
    def whole(cls) -> Window:
        """That of a stage which is recorded from its beginning to its end."""
        return cls(WHOLE, 0, 1)

    @classmethod
    def later_on(cls, unit: str) -> Window:
        """That of a stage which records what is asked for while the run goes on."""
        return cls(unit, 0, 0, none=True)

    def __len__(self) -> int:
        return sum(end - first for first, end in self.all)

    @property
    def open(self) -> bool:
        """Whether it has no end of its own."""
        return bool(self.all) and self.all[-1][1] == OPEN_END

    @property
    def words(self) -> tuple[str, ...]:
        """The option as it would be typed; none for a whole stage."""
        return () if self.unit == WHOLE or self.none else (f"--{self.unit}", str(self))

    def __str__(self) -> str:
        return ",".join(f"{first}:{'' if end == OPEN_END else end}" for first, end in self.all)


def _joined(unit: str, windows: Iterable[tuple[int, int]]) -> Window:
    """These windows in order, those that overlap or leave no unit to warm up in as one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(windows):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return Window(unit, *found[0], tuple(found[1:]))


def _meant(unit: str, text: str, following: str) -> str:
    """The window that the user may have meant by ``text``."""
    spelled = re.fullmatch(r"[\[(]?\s*([0-9]+)\s*(?:[-,;/_.]+|to|\s)\s*([0-9]+)\s*[\])]?", text.strip())
    both = (spelled[1], spelled[2]) if spelled else (text.strip(), following.strip())
    first, end = (whole_number(item) for item in both)
    if first is not None and end is not None:
        try:
            meant = Window(unit, first, end)
            meant.check()
        except Problem as problem:
            return problem.hint
        else:
            return f"--{unit} {meant}"
    example = "30:60" if first is None or first + 30 > OPEN_END else f"{first}:{first + 30}"
    return f"--{unit} A:B, for example --{unit} {example}"


def typed_as(unit: str) -> str:
    """How the user asks for a window of ``unit``."""
    return "no window" if unit == WHOLE else f"--{unit} A:B"


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Ranges of ours in the trace, beside what the profiler records by itself."""

    markers: bool = option(
        Flag(),
        RECORDED,
        "Mark the rollout or training step and every unit of it: with --level level_none the cheapest look.",
        default=False,
    )
    module_ranges: bool = option(
        Flag(), RECORDED, "Mark every call of an nn.Module, for module_statistic.", default=False
    )
    module_pattern: str = option(
        Text("REGEX"), RECORDED, "Only modules whose class name matches.", default="", shown=""
    )

    def __post_init__(self) -> None:
        if self.module_pattern and not self.module_ranges:
            raise Problem(
                Kind.USAGE,
                f"--module-pattern {shortened(self.module_pattern)}: there are no ranges of modules to choose from",
                hint="--module-ranges --module-pattern REGEX",
            )
        try:
            re.compile(self.module_pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise Problem(
                Kind.USAGE,
                f"--module-pattern {shortened(self.module_pattern)}: not a regular expression: {error}",
                hint="a pattern for the names of classes, such as --module-pattern 'Attention|MLP$'",
            ) from None

    @property
    def asked(self) -> str:
        """The option that asks for them, "" if none does."""
        return "--markers" if self.markers else "--module-ranges" if self.module_ranges else ""


NO_RANGES = Ranges()
ALL = Window.whole()


def _repeat() -> int:
    return option(Number(1), WHOSE, "Record the window in this many rollouts or training steps in a row.", default=1)


def _replicas() -> tuple[int, ...] | None:
    return option(
        NumbersOrAll(Numbers(0, "a list of replicas", "--replicas 0,3 or --replicas all")),
        WHOSE,
        "Replicas of the rollout's engine in verl, such as 0,3, or all.",
        default=(0,),
    )


def _contents() -> tuple[str, ...]:
    return option(Words(CONTENTS, same={"cuda": "npu"}), RECORDED, "", default=("npu", "cpu"))


class Stage:
    """A part of the RL loop. ``NAMES`` are those of the kind, the first of which a window of it means by itself.

    ``UNITS`` are the windows that it is recorded in, ``KIND`` is what its kind is called in messages.
    """

    NAMES: ClassVar[tuple[str, ...]]
    UNITS: ClassVar[tuple[Unit, ...]]
    KIND: ClassVar[str]
    name: str
    window: Window

    @property
    def role(self) -> str:
        """The role that it is recorded for, "" for all."""
        return ""

    @property
    def strategy(self) -> str:
        """The parallel strategy that it is recorded for, "" for all."""
        return ""

    @property
    def marked(self) -> tuple[str, ...]:
        """The units that are counted or marked."""
        return (self.window.unit,)

    @property
    def words(self) -> tuple[str, ...]:
        """How it is typed; without ``--stage`` where the window alone means this stage."""
        stage = () if self.name == self.NAMES[0] and self.window.words else ("--stage", self.name)
        return (*stage, *self.window.words, *words_of(self))


@dataclass(frozen=True, kw_only=True)
class Windowed(Stage):
    """A stage that is recorded in a window, with a warm-up before it."""

    name: str
    window: Window
    repeat: int = _repeat()
    warmup: int = option(Number(0), RECORDED, "Units of warm-up before the window.", default=1)
    on_demand: bool = option(Flag(), WINDOW, "Record what trigger asks for while the run goes on.", default=False)
    ranges: Ranges = NO_RANGES

    def __post_init__(self) -> None:
        if kind_of(self.window.unit).UNITS != self.UNITS:
            raise ValueError(f"{self.window.unit} is no unit of a {self.KIND} stage")
        if not self.relative:
            self.window.check()
        if self.on_demand and self.repeat > 1:
            hint = "leave out one of them: trigger asks as often as you like"
            raise Problem(Kind.USAGE, f"--on-demand --repeat {self.repeat}: a request means one of them", hint=hint)

    @property
    def relative(self) -> bool:
        """Whether the window is counted from where a condition holds."""
        return False


@dataclass(frozen=True, kw_only=True)
class Rollout(Windowed):
    """The rollout: a busy period of a worker's engine, counted from 0."""

    NAMES: ClassVar = ("rollout",)
    KIND: ClassVar = "rollout"
    UNITS: ClassVar = ROLLOUT_UNITS
    rollout: int = option(Number(0), WHOSE, "Which rollout, counted from 0.", default=0)
    replicas: tuple[int, ...] | None = _replicas()
    at_load: int = option(
        Number(1), WINDOW, "Count from behind the first iteration of at least N requests.", default=0, shown=""
    )
    at_tail: int = option(
        Number(1), WINDOW, "Count from where at most N requests are left, after there were more.", default=0, shown=""
    )
    at_context: int = option(
        Number(1), WINDOW, "Count from where a request has at least N tokens of context.", default=0, shown=""
    )

    @property
    def relative(self) -> bool:
        """Whether the window is counted from where a condition holds."""
        return bool(self.at_load or self.at_tail or self.at_context)


@dataclass(frozen=True, kw_only=True)
class Training(Windowed):
    """A stage of a training step, which is counted from 1 as verl's log does; ``role`` and ``strategy``: "" for all."""

    NAMES: ClassVar = ("update-policy", "compute-log-prob", "update-critic", "compute-values")
    KIND: ClassVar = "training"
    UNITS: ClassVar = TRAINING_UNITS
    role: str = option(Word(ROLES, unset="all"), WHOSE, "For whom a training stage works.", default="")
    strategy: str = option(
        Word((), same={"fsdp2": "fsdp"}, others=True),  # verl runs both by one class
        WHOSE,
        "Patch only the classes of fsdp, megatron, ...; default: of all where the window can be had.",
        default="",
    )
    training_steps: tuple[int, ...] = option(
        Numbers(
            1,
            "a list of training steps, which are counted from 1",
            "--training-steps 1 or --training-steps 2,5",
        ),
        WHOSE,
        "Which training steps, counted from 1 in each process, such as 2,5.",
        default=(1,),
    )

    @property
    def marked(self) -> tuple[str, ...]:
        """The unit of the window, with markers all that a training stage has."""
        return tuple(unit.name for unit in self.UNITS) if self.ranges.markers else (self.window.unit,)


@dataclass(frozen=True, kw_only=True)
class Whole(Stage):
    """A stage that is recorded from its beginning to its end, without a warm-up or ranges of ours."""

    NAMES: ClassVar = ("graph-capture",)
    UNITS: ClassVar = ()
    KIND: ClassVar = "whole"
    name: str
    window: Window = field(default=ALL, init=False)
    repeat: int = _repeat()
    replicas: tuple[int, ...] | None = _replicas()


@dataclass(frozen=True, kw_only=True)
class Builtin(Stage):
    """The framework's own profiler, of whose settings those ``named`` are set; nothing of ours records there."""

    NAMES: ClassVar = ("builtin",)
    UNITS: ClassVar = ()
    KIND: ClassVar = "builtin"
    name: str = field(default="builtin", init=False)
    window: Window = field(default=ALL, init=False)
    named: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.named:
            settings = ", ".join(map(flag, options_of(TorchNpu)))
            cause = "--builtin without a setting: nothing would change"
            raise Problem(Kind.USAGE, cause, hint=f"one of {settings}")

    @property
    def words(self) -> tuple[str, ...]:
        """The option that means it."""
        return ("--builtin",)


KINDS: tuple[type[Windowed | Whole], ...] = (Rollout, Training, Whole)
"""The kinds of stages that are recorded."""
_KIND_OF = {unit.name: kind for kind in KINDS for unit in kind.UNITS}
STAGES = tuple(name for kind in (*KINDS, Builtin) for name in kind.NAMES)
"""The names of the stages that there are recipes for; a recipe may have another one."""


def kind_of(unit: str) -> type[Windowed | Whole]:
    """The kind of the stages that are recorded in a window of ``unit``."""
    return _KIND_OF.get(unit, Whole)


class Profiler:
    """What records: ``BACKEND`` is the word for it, ``MODULE`` its name, ``NEEDED`` what ranges stand in."""

    BACKEND: ClassVar[str]
    MODULE: ClassVar[str]
    NEEDED: ClassVar[str]
    contents: tuple[str, ...]

    def check(self, ranges: Ranges) -> None:
        """Raise :class:`Problem` (USAGE) where ``ranges`` would not be recorded, or nothing would."""
        if ranges.asked and self.NEEDED not in self.contents:
            cause = f"{ranges.asked} would leave nothing in the trace without {self.NEEDED}"
            contents = ",".join((self.NEEDED, *self.contents))
            raise Problem(Kind.USAGE, f"--contents {','.join(self.contents)}: {cause}", hint=f"--contents {contents}")
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

    @property
    def light(self) -> bool:
        """Whether it records marks alone."""
        return False

    def notes(self, ranges: Ranges) -> tuple[Note, ...]:
        """What the user should know of this choice; it is not wrong."""
        detail = (
            "graphs (ACL graphs, CUDA graphs, torch.compile) call no modules when they run;"
            " enforce_eager=True switches them off in vLLM"
        )
        said = Note("--module-ranges: what runs in a graph has no ranges", detail)
        return (said,) if ranges.module_ranges else ()


@dataclass(frozen=True, kw_only=True)
class TorchNpu(Profiler):
    """torch_npu.profiler; every release from 2.1.0.post8 on takes the combinations that can be built.

    "" and () are the defaults that follow from others: see :meth:`exports` and ``patches.profilers``.
    """

    BACKEND: ClassVar = "npu"
    MODULE: ClassVar = "torch_npu.profiler"
    NEEDED: ClassVar = "npu"
    level: str = option(Word(LEVELS), RECORDED, "", default="", shown="level1 on NPUs")
    contents: tuple[str, ...] = _contents()
    export_type: tuple[str, ...] = option(
        Words(EXPORT_TYPES), RECORDED, "", default=(), shown="text; with --module-ranges db"
    )
    aic_metrics: str = option(
        Word(AIC_METRICS, same={"AiCoreNone": "none"}, missing={"memory_access": "torch_npu 2.1 does not have"}),
        RECORDED,
        "AI Core metrics.",
        default="",
        shown="from level1 on pipe_utilization",
    )
    l2_cache: bool = option(Flag(negated=True), RECORDED, "Record L2 cache hits.", default=False)
    mstx: bool = option(Flag(negated=True), RECORDED, "Record mstx marks.", default=False)
    analysis: bool = option(Flag(negated=True), RECORDED, "Parse the trace in the run.", default=False, shown="offline")

    def check(self, ranges: Ranges) -> None:
        """Raise :class:`Problem` (USAGE) for what torch_npu would drop or not record."""
        super().check(ranges)
        if ranges.module_ranges and self.export_type == ("text",):
            raise Problem(
                Kind.USAGE,
                "--export-type text: msprof-analyze's module_statistic reads ranges of modules from the database",
                hint="--export-type db,text, or leave --export-type out",
            )
        if self.aic_metrics not in ("", "none") and self.level in ("level0", "level_none"):
            raise Problem(
                Kind.USAGE,
                f"--aic-metrics {self.aic_metrics}: torch_npu collects them from level1 on and would drop them",
                hint=f"--level level1, or leave --aic-metrics out at {self.level}",
            )
        if self.light and not self.marks(ranges):
            raise Problem(
                Kind.USAGE,
                "--level level_none records nothing but marks: torch_npu switches them on by itself from 2.9 on",
                hint="--level level_none --markers, or --mstx for marks of your own, or --level level0",
            )

    @property
    def light(self) -> bool:
        """Whether it records marks alone."""
        return self.level == "level_none"

    def marks(self, ranges: Ranges) -> bool:
        """Whether the trace takes mstx marks: asked for as such, or by the ranges that make use of them."""
        return self.mstx or bool(ranges.asked)

    def exports(self, ranges: Ranges) -> tuple[str, ...]:
        """The types of export: those asked for, else the ones that what was asked for needs."""
        return self.export_type or (("db",) if ranges.module_ranges else ("text",))

    def notes(self, ranges: Ranges) -> tuple[Note, ...]:
        """What the user should know of this choice; it is not wrong."""
        said: list[Note] = []
        if "npu" not in self.contents:
            said.append(Note("without npu in --contents torch_npu ignores level, metrics, L2 and mstx"))
        if "db" in self.exports(ranges):
            said.append(Note("db export: torch_npu 2.1 needs CANN's msprof on PATH", "when the window opens"))
        if len(self.export_type) > 1:
            said.append(Note("--export-type with two types: torch_npu 2.1 takes one, text"))
        if {"module", "stack"} & set(self.contents):
            said.append(Note("stack and module crash torch_npu 2.10.0.post4, and slow every release"))
        said += super().notes(ranges)
        if ranges.module_ranges:
            detail = "with an earlier one the window is recorded without ranges"
            said.append(Note("--module-ranges needs torch_npu 2.7 or later", detail))
            if "cpu" not in self.contents or self.light:
                detail = "it finds the kernels of a module by its operators"
                said.append(Note("module_statistic needs cpu in --contents, and a level with kernels", detail))
        if self.analysis:
            detail = (
                "torch_npu refuses to parse in daemon processes, such as vLLM's workers; without --analysis, parse the"
                " trace later: torch_npu.profiler.profiler.analyse()"
            )
            said.append(Note("--analysis blocks the run when the window ends; vLLM's workers refuse it", detail))
        return tuple(said)


@dataclass(frozen=True, kw_only=True)
class Torch(Profiler):
    """torch.profiler, for CUDA and CPU; ``npu`` in its contents is the device, whatever it is."""

    BACKEND: ClassVar = "torch"
    MODULE: ClassVar = "torch.profiler"
    NEEDED: ClassVar = "cpu"
    contents: tuple[str, ...] = _contents()


PROFILERS: tuple[type[TorchNpu | Torch], ...] = (TorchNpu, Torch)
BACKENDS = tuple(profiler.BACKEND for profiler in PROFILERS)

StageT_co = TypeVar("StageT_co", bound=Stage, covariant=True)


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(Generic[StageT_co]):
    """Everything the user chose. ``ranks`` None means all; ``save_path`` is "" where nothing of ours records."""

    stage: StageT_co
    profiler: TorchNpu | Torch
    ranks: tuple[int, ...] | None = option(
        NumbersOrAll(Numbers(0, "a list of ranks", "--ranks 0,8 or --ranks all")),
        WHOSE,
        "Global ranks, such as 0,8, or all.",
        default=(0,),
    )
    save_path: str = option(
        Folder(), OUTPUT, "Where the traces go.", default="", shown="rlpatch_traces in the working directory"
    )
    max_trace_gb: int = option(Number(1), OUTPUT, "Record no window whose trace would be larger.", default=0, shown="")
    live: bool = option(Flag(), OUTPUT, "Let watch see the number of each unit on the same host.", default=False)
    facts: bool = option(
        Flag(negated=True), OUTPUT, "Say what each unit held, and let watch see how far it is.", default=True
    )

    def __post_init__(self) -> None:
        self.profiler.check(self.ranges)
        on_demand = isinstance(self.stage, Windowed) and self.stage.on_demand
        if (self.live or on_demand) and not self.facts:
            word = "--live" if self.live else "--on-demand"
            raise Problem(Kind.USAGE, f"{word} --no-facts: a worker is not seen without them", hint="leave out one")
        if isinstance(self.stage, Builtin):
            more = {*changed(self), *changed(self.profiler)}.difference(self.stage.named)
            if more or not isinstance(self.profiler, TorchNpu):
                raise ValueError(f"{more} are no settings of the framework's own profiler that were named")
        # The pattern of torch_npu's own check (torch_npu/utils/_path_manager.py), in which nothing can end a literal.
        elif not re.fullmatch(r"/[\w./~ -]*", self.save_path, re.ASCII):
            raise Problem(
                Kind.USAGE,
                f"--save-path {self.save_path}: torch_npu refuses this path",
                hint="--save-path /tmp/rlpatch_traces: absolute, of letters, digits and underscores",
            )

    @property
    def ranges(self) -> Ranges:
        """The ranges of ours in the trace."""
        return self.stage.ranges if isinstance(self.stage, Windowed) else NO_RANGES

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the user should know of this choice; it is not wrong."""
        settings = self.profiler.notes(self.ranges)
        return settings if isinstance(self.stage, Builtin) else (*self._window_notes(), *settings)

    def _window_notes(self) -> tuple[Note, ...]:
        said: list[Note] = []
        stage = self.stage
        if isinstance(stage, Windowed):
            if stage.on_demand:
                detail = "as often as you like, without a restart; rlpatch watch shows who is there"
                said.append(Note(f"ask while the run goes on: rlpatch trigger --{stage.window.unit} A:B", detail))
            if stage.window.all and stage.window.first == 0 and not stage.relative:
                detail = "the window begins with unit 0, and no unit comes before it to warm up in"
                said.append(Note("no warm-up: unit 0 shows the profiler's own start, too", detail))
            elif stage.warmup == 0:
                said.append(Note("without warm-up the first unit shows the profiler's own start"))
            if len(stage.window) > LONG_WINDOW and not self.profiler.light:
                units = "a window without an end" if stage.window.open else f"{len(stage.window)} units"
                said.append(Note(f"{units}: a trace of more than {LONG_WINDOW} opens slowly, if at all"))
        if isinstance(self.profiler, TorchNpu) and not re.fullmatch(r"[\w/]*", self.save_path, re.ASCII):
            said.append(Note("torch_npu documents only letters, digits and underscores for a path", self.save_path))
        if isinstance(stage, Rollout | Whole) and stage.replicas != (0,):
            detail = (
                "verl tells vLLM from 0.8.0 on (VERL_REPLICA_RANK); to an engine that is not told, --replicas means"
                " nothing: it records, whichever it is, and the folder's name has no replica"
            )
            said.append(Note("--replicas chooses among engines that are told which replica they are", detail))
        if self.ranks is None:
            said.append(Note("every rank writes a trace; one rank of each kind mostly shows the same"))
        return tuple(said)

    @property
    def words(self) -> tuple[str, ...]:
        """The options as the user would type them, those at their default left out.

        What the environment or the working directory would decide is said, so that it means the same everywhere.
        """
        if isinstance(self.stage, Builtin):
            return (*self.stage.words, *words_of(self.profiler, always=self.stage.named))
        backend = ("--backend", self.profiler.BACKEND)
        return (*self.stage.words, *backend, *words_of(self.profiler), *words_of(self.ranges), *words_of(self))
