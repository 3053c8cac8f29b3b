"""A worker as its probe wrote it at the last transition: one state file in ``SAVE_PATH/.rlpatch`` for each stage."""

from __future__ import annotations

import math
from dataclasses import dataclass

from patcher.messages import Text
from patcher.workers import forms

INSTALLED, WAITING, ARMED, RECORDING = Text("installed"), Text("waiting"), Text("armed"), Text("recording")
SAVING, SAVED, NOT_RECORDED, FAILED = Text("saving"), Text("saved"), Text("not recorded"), Text("failed")
STATES = (INSTALLED, WAITING, ARMED, RECORDING, SAVING, SAVED, NOT_RECORDED, FAILED)
"""In the order in which a worker runs through them; it ends with one of the last three."""

STAGE = r"[a-z][a-z-]{0,60}"
_MOST_WORDS = 300


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """The state that a worker writes of itself, and `watch` shows.

    ``window`` is "" where a worker on demand has no request; ``number`` is that of its next unit, None where it
    did not tell; ``origin`` is what the numbers of a window count from, None while its condition does not hold.
    ``rollout``, ``step`` or ``sync`` is the one that it is in, whichever its stage counts. ``ranks`` are those
    that were asked for, ``world`` how many are numbered together, 0 where it does not know. ``request`` is the id
    of the last request that it took or refused.
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
        """The units of the window, of several the first; None where they are not known yet."""
        if not self.window or (self.origin is None and (self.load or self.tail or self.context)):
            return None
        first, _, end = self.window.partition(",")[0].partition(":")
        return int(first) + (self.origin or 0), int(end) + (self.origin or 0) if end else math.inf


@dataclass(frozen=True, kw_only=True)
class Worker(WorkerState):
    """The last state of one worker in one stage.

    ``done`` tells whether it will record no more. ``traces`` are the names of the last that it has saved, newest last.
    ``live`` is the descriptor of the file in which it keeps the number of its next unit, if it does. ``refused`` tells
    that it could not take the request that lies there, ``why`` then says what is wrong with it.
    """

    traces: tuple[str, ...]
    live: int | None
    done: bool = True
    refused: bool = False

    @property
    def turn(self) -> int | None:
        """The number of the rollout or training step that it is in."""
        return self.rollout if self.step is None else self.step

    @property
    def turns(self) -> str:
        """Return what it counts: rollouts or training steps."""
        return Text("rollout") if self.step is None else Text("training step")

    @property
    def place(self) -> tuple[object, ...]:
        """Return which worker of a run it is; one of the next run may be the same."""
        return self.target, self.stage, self.role, self.host, self.replica, self.dp, self.rank

    @property
    def name(self) -> str:
        """Return how it is called in messages."""
        return named(self.host, self.replica, self.rank)


def named(host: str, replica: str, rank: int) -> Text:
    """Return how a worker is called in messages."""
    if replica:
        return Text("{host} replica {replica} rank {rank}", host, replica, rank)
    return Text("{host} rank {rank}", host, rank)


def read(text: bytes) -> Worker:
    """The worker that a state file tells of; ValueError, which says why, for what is none."""
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
    """The name of a trace: where its folder is mounted may differ from where the worker saw it."""
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name.startswith(".") else name
