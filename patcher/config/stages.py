"""The parts of the RL loop that are recorded, by kind: what each counts, and what may be chosen of it."""

from __future__ import annotations

from typing import ClassVar

from patcher.config.profilers import NO_RANGES, RangeOptions, TorchNpuSettings
from patcher.config.windows import ROLLOUT_UNITS, TRAINING_UNITS, WHOLE, Window, WindowUnit
from patcher.messages import Text, usage
from patcher.options import Options, flag, option, options_of, words_of
from patcher.options.headings import OUTPUT, RECORDED, WHOSE, WINDOW
from patcher.options.notations import Choice, Flag, Number, NumberList, ReplicaList

ROLES = ("actor", "ref", "critic")
SERVERS = ("prefill", "decode")
"""Tasks of a replica's servers, if it has several."""
WHOLE_STAGE = Window(WHOLE, 0, 1)


def _repeat() -> int:
    """Declare the option `--repeat` as a field (default: 1), and return the field."""
    return option(
        Number(1), WHOSE, "Number of consecutive rollouts or training steps in which to record the window.", default=1
    )


def _replicas() -> tuple[int | str, ...] | None:
    """Declare the option `--replicas` as a field (default: replica 0; None: all), and return the field."""
    about = (
        "Replicas of verl's rollout engine to record, such as 0,3. `all` records every replica. With separate servers"
        " for prefill and decode, `prefill` or `decode` selects the servers of that kind."
    )
    return option(ReplicaList(*SERVERS), WHOSE, about, default=(0,))


def _condition(about: str) -> int:
    """Declare an option with the condition from which on a window counts as a field (default: none), and return it."""
    return option(Number(1), WINDOW, about, default=0, default_text="")


class Stage(Options):
    """Part of the RL loop to record; subclasses are kinds of stages.

    `NAMES` are the stages of a kind, the default for its windows first; `UNITS` its units; `KIND` its name in messages.
    `role` and `strategy` restrict the recipes, "" for all.
    """

    NAMES: ClassVar[tuple[str, ...]]
    UNITS: ClassVar[tuple[WindowUnit, ...]]
    KIND: ClassVar[str]
    name: str
    window: Window
    role: str = ""
    strategy: str = ""

    @property
    def marked(self) -> tuple[str, ...]:
        """Units to count or mark."""
        return (self.window.unit,)

    @property
    def words(self) -> tuple[str, ...]:
        """Options that type this stage again; `--stage` is left out if the window implies it."""
        stage = () if self.name == self.NAMES[0] and self.window.words else ("--stage", self.name)
        return (*stage, *self.window.words, *words_of(self))


class WindowedStage(Stage):
    """Stage that is recorded in a window, after a warm-up.

    Raises ValueError for a unit of another kind, Problem (USAGE) for a window that cannot exist.
    """

    name: str
    window: Window
    repeat: int = _repeat()
    warmup: int = option(Number(0), RECORDED, "How many steps the profiler warms up before the window.", default=1)
    on_demand: bool = option(
        Flag(), WINDOW, "Record only when `rlpatch trigger` requests a window during the run.", default=False
    )
    ranges: RangeOptions = NO_RANGES

    def __post_init__(self) -> None:
        if kind_of(self.window.unit).UNITS != self.UNITS:
            raise ValueError(f"{self.window.unit} is not a unit of a {self.KIND} stage")
        if not self.relative:
            self.window.check()
        if self.on_demand and self.repeat > 1:
            cause = Text(
                "--on-demand cannot be combined with --repeat {repeat}: each `rlpatch trigger` records one window"
            )
            hint = Text(
                "leave out --on-demand or --repeat; with --on-demand, `rlpatch trigger` can be used any number of times"
            )
            raise usage(cause.filled(self.repeat), hint)

    @property
    def relative(self) -> bool:
        """Whether units are counted from the moment at which a condition holds."""
        return False


class RolloutStage(WindowedStage):
    """Rollout: a busy period of a worker's engine, counted from 0."""

    NAMES: ClassVar = ("rollout",)
    KIND: ClassVar = "rollout"
    UNITS: ClassVar = ROLLOUT_UNITS
    rollout: int = option(Number(0), WHOSE, "Which rollout to record, counted from 0.", default=0)
    replicas: tuple[int | str, ...] | None = _replicas()
    at_load: int = _condition("Start counting the window's steps after the first iteration with at least N requests.")
    at_tail: int = _condition(
        "Start counting the window's steps after the iteration in which the number of requests first falls from more"
        " than N to at most N."
    )
    at_context: int = _condition("Start counting the window's steps once a request has at least N tokens of context.")

    @property
    def relative(self) -> bool:
        """Whether units are counted from the moment at which a condition holds."""
        return bool(self.at_load or self.at_tail or self.at_context)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window.unit == "aligned" and self.relative:
            cause = Text(
                "--aligned {window} cannot be combined with a start condition (--at-…): the ranks meet the condition"
                " at different times",
                self.window,
            )
            raise usage(cause, Text("leave out the options --at-…, or use --iterations {window}", self.window))


class TrainingStage(WindowedStage):
    """Stage of a training step; steps are counted from 1, as in verl's log."""

    NAMES: ClassVar = ("update-policy", "compute-log-prob", "update-critic", "compute-values")
    KIND: ClassVar = "training"
    UNITS: ClassVar = TRAINING_UNITS
    role: str = option(
        Choice(ROLES, unset="all"), WHOSE, "Record a training stage only when it runs for this role.", default=""
    )
    strategy: str = option(
        # verl runs all three by one class; that of FSDP-Turbo derives from it.
        Choice((), same={"fsdp2": "fsdp", "fsdp-turbo": "fsdp"}, accepts_unknown=True),
        WHOSE,
        "Patch only the classes of this strategy, such as fsdp or megatron. Default: all classes that support"
        " the chosen window.",
        default="",
    )
    training_steps: tuple[int, ...] = option(
        NumberList(1),
        WHOSE,
        "Which training steps to record, counted from 1 in each process, such as 2,5.",
        default=(1,),
    )

    @property
    def marked(self) -> tuple[str, ...]:
        """Units to count or mark: that of the window, and with markers those of all its loops."""
        loops = tuple(unit.name for unit in self.UNITS if unit.loop)
        return loops if self.ranges.markers and self.window.unit in loops else (self.window.unit,)


class WholeStage(Stage):
    """Stage that is recorded from its beginning to its end, without a warm-up or added ranges."""

    NAMES: ClassVar = ("graph-capture",)
    UNITS: ClassVar = ()
    KIND: ClassVar = "whole"
    name: str
    window: Window = WHOLE_STAGE
    repeat: int = _repeat()
    replicas: tuple[int | str, ...] | None = _replicas()


class SyncStage(WholeStage):
    """Transfer of the weights from the trainer to the rollout, recorded as a whole."""

    NAMES: ClassVar = ("weight-sync",)
    KIND: ClassVar = "weight-sync"
    sync: int = option(Number(0), WHOSE, "Which weight sync to record, counted from 0 in each process.", default=0)

    def __post_init__(self) -> None:
        if words := [replica for replica in self.replicas or () if replica in SERVERS]:
            cause = Text(
                "--replicas {servers} cannot be used with a weight sync: the option chooses single servers, but each"
                " sync covers all servers of a replica",
                words[0],
            )
            raise usage(cause, Text("choose replicas by number, such as --replicas 0,3, or leave --replicas out"))


class BuiltinStage(Stage):
    """Framework's own profiler; `changed_settings` names settings of `PROFILER`.

    Raises Problem (USAGE) if it names none.
    """

    NAMES: ClassVar = ("builtin",)
    UNITS: ClassVar = ()
    KIND: ClassVar = "builtin"
    PROFILER: ClassVar = TorchNpuSettings
    name: str = "builtin"
    window: Window = WHOLE_STAGE
    changed_settings: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.changed_settings:
            cause = Text("with --builtin, name at least one setting to change")
            settings = ", ".join(map(flag, options_of(self.PROFILER)))
            raise usage(cause, Text("add one of {options}", settings))

    @property
    def words(self) -> tuple[str, ...]:
        """Option that selects this stage."""
        return ("--builtin",)


class TimelineStage(Stage):
    """Timeline that every process keeps of the whole run, without a profiler."""

    NAMES: ClassVar = ("timeline",)
    UNITS: ClassVar = ()
    KIND: ClassVar = "timeline"
    name: str = "timeline"
    window: Window = WHOLE_STAGE
    max_timeline_mb: int = option(
        Number(1), OUTPUT, "Size in MB beyond which a process's timeline keeps only its newest part.", default=50
    )

    @property
    def words(self) -> tuple[str, ...]:
        """Options that select and configure this stage."""
        return ("--timeline", *words_of(self))


KINDS: tuple[type[WindowedStage | WholeStage], ...] = (RolloutStage, TrainingStage, WholeStage, SyncStage)
"""The kinds of stages that are recorded."""
_KIND_OF = {unit.name: kind for kind in KINDS for unit in kind.UNITS}
STAGES = tuple(name for kind in (*KINDS, BuiltinStage, TimelineStage) for name in kind.NAMES)
"""The names of the stages that there are recipes for; a recipe may have another one."""


def kind_of(unit: str, stage: str = "") -> type[WindowedStage | WholeStage]:
    """Return the kind of stage with windows of `unit`; for a unit without a window, the kind of `stage`."""
    return _KIND_OF.get(unit, SyncStage if stage in SyncStage.NAMES else WholeStage)
