"""A worker as its probe wrote it at the last transition: one state file in ``SAVE_PATH/.rlpatch`` for each stage."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from patcher.messages import Text
from patcher.workers import forms

INSTALLED, WAITING, ARMED, RECORDING = Text("installed"), Text("waiting"), Text("armed"), Text("recording")
SAVING, SAVED, NOT_RECORDED, FAILED = Text("saving"), Text("saved"), Text("not recorded"), Text("failed")
STATES = (INSTALLED, WAITING, ARMED, RECORDING, SAVING, SAVED, NOT_RECORDED, FAILED)
"""States in the order in which a worker runs through them; it ends in one of the last three."""

STAGE = r"[a-z][a-z-]{0,60}"
_MOST_WORDS = 300
_FEWEST_UNITS = 2
"""Units that a rollout or call must have for a window after its warm-up."""


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """State that a worker writes about itself, shown by `watch`.

    ``window`` is "" if a worker on demand has no request. ``number`` is the next unit, None if unknown. The units of a
    window count from ``origin``, which is None while the window's condition does not hold. Of ``rollout``, ``step`` and
    ``sync`` (weight syncs), a stage sets the ones that it counts. ``ranks`` are the requested ranks, ``world`` is the
    number of ranks, 0 if unknown. ``request`` is the id of the last request that the worker took or refused.
    """

    target: str
    release: str
    stage: str
    role: str
    host: str
    replica: str
    dp: int | None
    rank: int
    world: int
    pid: int
    ranks: str
    unit: str
    window: str
    load: int
    tail: int
    context: int
    rollout: int | None
    step: int | None
    sync: int | None
    state: str
    why: str
    at: float
    number: int | None
    origin: int | None
    on_demand: bool
    request: str

    @property
    def span(self) -> tuple[int, float] | None:
        """Return start and exclusive end (may be infinite) of the first window, in the steps that the worker counts.

        None without a window, or until its condition holds, from which it counts.
        """
        if not self.window or (self.origin is None and (self.load or self.tail or self.context)):
            return None
        first, _, end = self.window.partition(",")[0].partition(":")
        return int(first) + (self.origin or 0), int(end) + (self.origin or 0) if end else math.inf


@dataclass(frozen=True, kw_only=True)
class Worker(WorkerState):
    """Last state of one worker in one stage.

    ``done`` tells whether the worker will record no more. ``traces`` are the names of its last saved traces, newest
    last. ``live`` is the descriptor of the file with the number of the next unit, None without such a file. ``refused``
    tells that the worker could not take the request in the folder; ``why`` then says what is wrong with the request.
    """

    traces: tuple[str, ...]
    live: int | None
    done: bool = True
    refused: bool = False

    @property
    def turn(self) -> int | None:
        """Return the number of the present training step, or else of the present rollout; None if both are unknown."""
        return self.rollout if self.step is None else self.step

    @property
    def turns(self) -> str:
        """Return the noun for what `turn` counts: rollout or training step."""
        return Text("rollout") if self.step is None else Text("training step")

    @property
    def fitting_window(self) -> str:
        """Return a window `A:B` that would have been reached: it starts at the middle of the units that were counted.

        It is as long as the missed one, but ends with these units at the latest. Return "" if the worker did record,
        counted too little, or has a condition. The number of units is in the reason that the probe gave: "all requests
        have finished after 120 decode steps".
        """
        counted = re.search(r" after (\d+) [a-z]", self.why) if self.state == NOT_RECORDED else None
        is_relative = self.load or self.tail or self.context
        if counted is None or is_relative or self.span is None or int(counted[1]) < _FEWEST_UNITS:
            return ""
        units, (first, end) = int(counted[1]), self.span
        return f"{units // 2}:{int(min(units // 2 + end - first, units))}"

    @property
    def place(self) -> tuple[object, ...]:
        """Return the key of a worker within its run; a worker of a later run may have the same key."""
        return self.target, self.stage, self.role, self.host, self.replica, self.dp, self.rank

    @property
    def name(self) -> str:
        """Return the worker's name in messages."""
        return worker_name(self.host, self.replica, self.rank)


def worker_name(host: str, replica: str, rank: int) -> Text:
    """Return a worker's name in messages, such as "node1 replica 0 rank 2"; ``replica`` "" is left out."""
    if replica:
        return Text("{host} replica {replica} rank {rank}", host=host, replica=replica, rank=rank)
    return Text("{host} rank {rank}", host=host, rank=rank)


def read(text: bytes) -> Worker:
    """Parse the bytes of a state file. Raises ValueError, with the reason, if they are invalid."""
    fields = forms.Fields(text)
    why = fields.content.get("why", "")
    why = forms.printable(why, _MOST_WORDS) if isinstance(why, str) else ""
    return Worker(
        target=fields.text("target"), release=fields.text("release", ""), stage=fields.text("stage", pattern=STAGE),
        unit=fields.text("unit", ""), ranks=",".join(fields.texts("ranks", r"all|\d{1,9}")),
        host=fields.text("host"), replica=fields.text("replica", ""), dp=fields.maybe("dp"),
        rank=fields.number("rank"), world=fields.number("world", 0), pid=fields.number("pid", lowest=1),
        window=fields.text("window", "", f"{forms.WINDOW}(,{forms.WINDOW})*", longest=100_000),
        load=fields.number("load", 0), tail=fields.number("tail", 0), context=fields.number("context", 0),
        rollout=fields.maybe("rollout"), step=fields.maybe("step"), sync=fields.maybe("sync"),
        role=fields.text("role", ""), why=why,
        state=STATES[STATES.index(fields.text("state", pattern="|".join(STATES)))],
        at=fields.time("at"), number=fields.maybe("number"), origin=fields.maybe("origin"), live=fields.maybe("live"),
        traces=tuple(filter(None, map(_name, fields.texts("traces")))),
        on_demand="request" in fields.content, request=fields.text("request", ""),
        done=fields.content.get("done") is not False,
        refused=fields.content.get("refused") is True,
    )  # fmt: skip


def _name(path: str) -> str:
    """Return the last part of a trace's ``path``, as mounts differ between hosts; "" for a hidden file."""
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name.startswith(".") else name
