"""The window that workers on demand shall record: one small file for each stage, which they poll for."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field

from patcher.workers import forms

SUFFIX = ".request"

EXPIRES_S = 86_400.0
"""Seconds after which a request expires by default: a day later nobody thinks of it any more."""


@dataclass(frozen=True, kw_only=True)
class TriggerRequest:
    """Window to record in rollout or training step ``at``; a condition of 0 is no condition.

    ``ranks`` and ``window`` are in the form of the command line, ``expires`` is in seconds since 1970. ``role`` is that
    of a training stage, "" for all roles. A worker names the request that it took by ``id``.
    """

    id: str = field(default_factory=lambda: os.urandom(6).hex())
    window: str
    ranks: str
    at: int
    role: str = ""
    load: int = 0
    tail: int = 0
    context: int = 0
    expires: float = field(default_factory=lambda: time.time() + EXPIRES_S)
    format: int = forms.FORMAT

    def includes(self, rank: int, role: str) -> bool:
        """Tell whether the request is for a worker with this ``rank`` and ``role``."""
        return self.role in ("", role) and (self.ranks == "all" or str(rank) in self.ranks.split(","))

    @property
    def text(self) -> bytes:
        """Content of the request file: JSON with format, expiry, and RLPATCH variables as text."""
        variables = {
            "REQUEST": self.id, "WINDOW": self.window, "RANKS": self.ranks, "ROLE": self.role, "ROLLOUT": self.at,
            "TRAINING_STEPS": self.at, "AT_LOAD": self.load, "AT_TAIL": self.tail, "AT_CONTEXT": self.context,
        }  # fmt: skip
        settings = {f"RLPATCH_{name}": str(value) for name, value in variables.items()}
        return f"{json.dumps({'format': self.format, 'expires': self.expires, **settings})}\n".encode()


@dataclass(frozen=True, kw_only=True)
class FiledRequest(TriggerRequest):
    """A request in the folder; ``written`` is in seconds since 1970 by the clock of the file system."""

    written: float


def read(text: bytes) -> TriggerRequest:
    """Parse the bytes of a request file. Raises ValueError, with the reason, if they are invalid."""
    fields = forms.Fields(text)
    at, load, tail, context = (
        int(fields.text(f"RLPATCH_{name}", pattern=r"\d{1,9}"))
        for name in ("ROLLOUT", "AT_LOAD", "AT_TAIL", "AT_CONTEXT")
    )
    return TriggerRequest(
        id=fields.text("RLPATCH_REQUEST", pattern=r"[0-9a-f]{1,64}"),
        window=fields.text("RLPATCH_WINDOW", pattern=f"{forms.WINDOW}(,{forms.WINDOW})*", longest=10_000),
        ranks=fields.text("RLPATCH_RANKS", pattern=r"all|\d{1,9}(,\d{1,9})*", longest=100_000),
        role=fields.text("RLPATCH_ROLE", "", pattern=r"[a-z]*"), at=at, load=load, tail=tail, context=context,
        expires=fields.time("expires"),
    )  # fmt: skip
