"""A worker as its probe wrote it at the last transition: one state file in ``SAVE_PATH/.rlpatch`` for each stage."""

from __future__ import annotations

from dataclasses import dataclass

from patcher.workers import forms

INSTALLED, WAITING, ARMED, RECORDING = "installed", "waiting", "armed", "recording"
SAVED, NOT_RECORDED, FAILED = "saved", "not recorded", "failed"
STATES = (INSTALLED, WAITING, ARMED, RECORDING, SAVED, NOT_RECORDED, FAILED)
"""In the order in which a worker runs through them; it ends with one of the last three."""

STAGE = r"[a-z][a-z-]{0,60}"
_LIVE = r"/dev/shm/rlpatch_[\w.-]{1,200}"  # noqa: S108  (a pattern)
_MOST_WORDS = 300
_REFUSAL = "request refused: "
MOST_TRACES = 16
"""A state names no more, the newest."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The last state of one worker in one stage.

    ``window`` is "" where a worker on demand has no request; ``number`` is that of its next unit, None where it
    did not tell. ``rollout`` or ``step`` is the one that it is in, whichever its stage counts; it records in ``repeat``
    of them. ``done`` tells whether it will record no more, None where it does not say. ``ranks`` are those that were
    asked for, ``world`` how many are numbered together, 0 where it does not know. ``traces`` are the names of what it
    has saved so far, newest last; ``request`` is the id of the last request that it took or refused. ``live`` is where
    it keeps the number of its next unit, if it does. ``refused`` tells that it could not take the request that lies
    there, ``why`` then says what is wrong with it.
    """

    target: str
    release: str
    stage: str
    unit: str
    backend: str
    ranks: str
    host: str
    replica: str
    dp: int | None
    rank: int
    world: int
    pid: int
    window: str
    load: int
    tail: int
    context: int
    rollout: int | None
    step: int | None
    role: str
    state: str
    why: str
    at: float
    number: int | None
    traces: tuple[str, ...]
    on_demand: bool
    request: str
    live: str
    repeat: int = 1
    done: bool | None = None
    refused: bool = False

    @property
    def windows(self) -> int:
        """How many traces it leaves in all, of those that a state names: one for each window of each repetition."""
        return min((self.window.count(",") + 1) * self.repeat, MOST_TRACES)

    @property
    def turn(self) -> int | None:
        """The number of the rollout or training step that it is in."""
        return self.rollout if self.step is None else self.step

    @property
    def turns(self) -> str:
        """What it counts: rollouts or training steps."""
        return "rollout" if self.step is None else "training step"

    @property
    def place(self) -> tuple[object, ...]:
        """Which worker of a run it is; one of the next run may be the same."""
        return self.target, self.stage, self.role, self.host, self.replica, self.dp, self.rank

    @property
    def name(self) -> str:
        """How it is called in messages."""
        replica = f" replica {self.replica}" if self.replica else ""
        return f"{self.host}{replica} rank {self.rank}"


def read(text: bytes) -> Worker:
    """The worker that a state file tells of; ValueError, which says why, for what is none."""
    content = forms.loaded(text)
    fields = forms.Fields(content)
    state = fields.text("state")
    if state not in STATES:
        raise ValueError(f"its state is {forms.shown(state)}")
    why, pid, done = content.get("why", ""), fields.number("pid", lowest=1), content.get("done")
    return Worker(
        target=fields.text("target"), release=fields.text("release", ""), stage=fields.text("stage", pattern=STAGE),
        unit=fields.text("unit", ""), backend=fields.text("backend", ""),
        ranks=fields.listed("ranks", forms.RANKS),
        host=fields.text("host"), replica=fields.text("replica", ""), dp=fields.maybe("dp"),
        rank=fields.number("rank"), world=fields.number("world", 0), pid=pid,
        window=fields.text("window", "", forms.WINDOWS, longest=100_000),
        load=fields.number("load", 0), tail=fields.number("tail", 0), context=fields.number("context", 0),
        rollout=fields.maybe("rollout"), step=fields.maybe("step"), role=fields.text("role", ""),
        state=state, why=forms.printable(why, _MOST_WORDS) if isinstance(why, str) else "", at=fields.time("at"),
        number=fields.maybe("number"), traces=tuple(filter(None, map(_name, fields.texts("traces")))),
        on_demand=fields.flag("on_demand") if "on_demand" in content else "request" in content,
        request=fields.text("request", ""), live=_live(fields, pid), done=done if isinstance(done, bool) else None,
        repeat=fields.number("repeat", 1, lowest=1), refused=_refused(content.get("refused"), why),
    )  # fmt: skip


def _refused(refused: object, why: object) -> bool:
    """Whether the probe refused a request: by its field, or where it writes none, by how its words begin.

    Of format 1: a probe without ``refused`` begins the words of a refusal, and of nothing else, with ``_REFUSAL``.
    """
    return refused if isinstance(refused, bool) else isinstance(why, str) and why.startswith(_REFUSAL)


def _live(fields: forms.Fields, pid: int) -> str:
    """Where the number lies: a file in memory, or one without a name that the process holds open."""
    if isinstance(fields.content.get("live"), int):
        return f"/proc/{pid}/fd/{fields.number('live')}"
    return fields.text("live", "", _LIVE)


def _name(path: str) -> str:
    """The name of a trace: where its folder is mounted may differ from where the worker saw it."""
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name.startswith(".") else name
