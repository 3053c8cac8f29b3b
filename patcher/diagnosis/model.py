"""The diagnosis of a run: the values that the text, ``--json`` and the page are made of."""

from __future__ import annotations

from dataclasses import dataclass

from patcher.messages import Text
from patcher.traces.families import (
    ATTENTION,
    COLLECTIVE,
    COPIES,
    ELEMENTWISE,
    GEMM,
    HOST_BOUND,
    MOE,
    OTHER,
    OUTSIDE_FORWARD,
    SAMPLING,
)
from patcher.traces.model import Payload

SCHEMA = 1
"""Version of the JSON of a diagnosis; it changes when a key goes or changes its meaning."""

CLASSES = {
    GEMM: Text("matmul"),
    ATTENTION: Text("attention"),
    MOE: Text("experts"),
    ELEMENTWISE: Text("elementwise"),
    SAMPLING: Text("sampling"),
    COPIES: Text("copies"),
    COLLECTIVE: Text("communication"),
    OTHER: Text("other"),
    HOST_BOUND: Text("host-bound"),
    OUTSIDE_FORWARD: Text("outside forward"),
}
"""Class of work, a family of kernels or a kind of idle time → its name in a narrow table."""


@dataclass(frozen=True, slots=True)
class ClassShare(Payload):
    """Share (0 to 1) and seconds of a class; ``interval`` is the half-width of the share's 95 % interval."""

    KEYS = ("name", "share", "interval", "seconds")

    name: str
    share: float
    interval: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadPart(Payload):
    """The iterations of one load: share of the stage's seconds, ms of each, and its classes, largest first.

    ``error`` is the time that the recorded iterations predict over the measured one, less 1; None if either is missing.
    ``classes`` is empty, and ``why`` says why, where the recorded iterations do not support them.
    """

    KEYS = ("load", "share", "iterations", "ms_each", "classes", "error", "supported", "why")

    load: str
    share: float
    iterations: int
    ms_each: float
    classes: tuple[ClassShare, ...]
    error: float | None
    supported: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class StageDiagnosis(Payload):
    """One stage: its seconds by the timeline, and their classes if they are ``supported``; else ``why`` says why not.

    ``turns`` is the number of its rollouts, ``recorded`` how many of its ``iterations`` were recorded.
    ``recording_seconds`` were lost to the recording itself, and ``waiting_seconds`` lie in iterations that waited for
    something; neither is in ``seconds``. ``between_seconds`` lie between the iterations of an engine, where they are
    part of the others, or between the micro-batches of a call, where they are not. ``step_seconds`` is the stage's
    part of the critical path of all counted steps, and ``limited_by`` what most of that waited for.
    ``record`` is the command that records the micro-batches that are lacking, "" if none are.
    """

    KEYS = (
        "stage", "seconds", "supported", "why", "turns", "iterations", "recorded", "recording_seconds",
        "waiting_seconds", "between_seconds", "classes", "by_load", "step_seconds", "limited_by", "record",
    )  # fmt: skip

    stage: str
    seconds: float
    supported: bool
    why: str
    turns: int
    iterations: int
    recorded: int = 0
    recording_seconds: float = 0.0
    waiting_seconds: float = 0.0
    classes: tuple[ClassShare, ...] = ()
    by_load: tuple[LoadPart, ...] = ()
    between_seconds: float = 0.0
    step_seconds: float = 0.0
    limited_by: str = ""
    record: str = ""


@dataclass(frozen=True, slots=True)
class Action(Payload):
    """Something to do, with the upper bound of what it saves, and the reason."""

    KEYS = ("what", "bound_seconds", "because")

    what: str
    bound_seconds: float
    because: str


@dataclass(frozen=True, slots=True)
class WhatIf(Payload):
    """Time of the same work under another ``setting``: between ``least_seconds`` and ``most_seconds``.

    ``seconds`` is the estimate, None beyond what was seen; all three are None if nothing can be said. ``name`` is
    ``max-num-seqs`` (with the number), ``tail-cut`` (at a number of output tokens), ``free-weight-sync`` or
    ``perfect-balance`` (without a setting, and of the steps of the run, not the rollouts).
    """

    KEYS = ("name", "setting", "seconds", "least_seconds", "most_seconds", "because")

    name: str
    setting: int | None
    seconds: float | None
    least_seconds: float | None
    most_seconds: float | None
    because: str


@dataclass(frozen=True, slots=True)
class DiagnosedWindow(Payload):
    """A recorded window: its stage, what it holds, how much of it is in the timeline, and the command to read it.

    ``iterations`` are those of an engine, or micro-batches.
    """

    KEYS = ("stage", "window", "trace", "iterations", "joined", "report")

    stage: str
    window: str
    trace: str
    iterations: int
    joined: int
    report: str


@dataclass(frozen=True)
class PlannedWindows:
    """Half-open ranges of iterations to record in one rollout, in order.

    They count from its begin or, with ``load`` or ``tail``, from behind the first iteration with so many requests, or
    with no more than so many after there were more.
    """

    windows: tuple[tuple[int, int], ...]
    load: int = 0
    tail: int = 0

    @property
    def option(self) -> str:
        """The windows as they are typed: ``5:10,40:45``."""
        return ",".join(f"{first}:{end}" for first, end in self.windows)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The words of a command line for the state that the windows count from."""
        states = {"--at-load": self.load, "--at-tail": self.tail}
        return tuple(word for name, value in states.items() if value for word in (name, str(value)))


@dataclass(frozen=True, slots=True)
class RunDiagnosis(Payload):
    """The diagnosis of a run; ``planned`` windows would record what is not supported yet, None where all is.

    ``planned_decodes`` are the same for workers that count decode steps. ``notes`` are what the reader has to know of
    the numbers, ``package`` is that of the engine. ``steps`` is the number of training steps that count, and
    ``seconds`` their length; 0 where no process marks steps. ``rollouts`` is how many the engine with most of them had,
    with the warm-up.
    """

    KEYS = (
        "schema", "steps", "seconds", "stages", "actions", "windows", "next_windows", "next_conditions", "notes",
        "what_ifs", "rollouts",
    )  # fmt: skip

    stages: tuple[StageDiagnosis, ...]
    actions: tuple[Action, ...]
    windows: tuple[DiagnosedWindow, ...]
    planned: PlannedWindows | None = None
    planned_decodes: PlannedWindows | None = None
    notes: tuple[str, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    rollouts: int = 0
    package: str = "vllm"
    schema: int = SCHEMA
    steps: int = 0
    seconds: float = 0.0

    @property
    def next_windows(self) -> str:
        """The value of ``--iterations`` that records what is not supported yet, else ""."""
        return self.planned.option if self.planned else ""

    @property
    def next_conditions(self) -> str:
        """The options for the state that these windows count from; "" for the begin of a rollout."""
        return " ".join(self.planned.conditions) if self.planned else ""

    @property
    def supported(self) -> frozenset[str]:
        """Stages whose classes are supported."""
        return frozenset(stage.stage for stage in self.stages if stage.supported)
