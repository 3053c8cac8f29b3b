"""The values that planning hands to the store: which bytes become which, and what is remembered of it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

SHARED = "recorder"
"""The stage of a block that several patches of one class have in common."""


class PatchId(NamedTuple):
    """The name of a patch: the same id applied again replaces it, another one is added.

    With the stage ``recorder`` it names what patches share: it goes in with the first of them and out with the last.
    """

    target: str
    stage: str
    role: str = ""

    @property
    def shared(self) -> bool:
        """Whether it is no patch by itself."""
        return self.stage == SHARED

    def __str__(self) -> str:
        """The id as it stands in markers and messages: ``vllm-ascend rollout``."""
        return " ".join(part for part in self if part)

    def rename(self, code: str) -> str:
        """``code`` with the names of this patch for the placeholders ``_rlpatch_stage`` and ``_RlpatchStage``.

        Several patches may stand in one class, so each has names of its own.
        """
        words = [word for part in (self.stage, self.role) for word in part.split("-") if word]
        code = code.replace("_rlpatch_stage", f"_rlpatch_{'_'.join(words)}")
        return code.replace("_RlpatchStage", f"_Rlpatch{''.join(map(str.capitalize, words))}")


class Change(NamedTuple):
    """One file of a transaction, its ``path`` relative to the root.

    ``before`` are the bytes that planning read, ``after`` those to be written, ``pristine`` those without our lines.
    """

    path: PurePosixPath
    before: bytes
    after: bytes
    pristine: bytes


class Record(NamedTuple):
    """The store's record of an applied patch, so that ``status`` can tell the truth later.

    ``files`` are the paths relative to the root that carry lines of this patch; ``options`` are the words of
    the configuration as the user would type them again.
    """

    patch: PatchId
    version: str
    options: tuple[str, ...]
    files: tuple[str, ...]
    applied_at: str
    tool: str


class Edit(NamedTuple):
    """Everything that one transaction does below one root: the changed files and the patches added or removed."""

    root: Path
    changes: tuple[Change, ...]
    add: tuple[Record, ...] = ()
    remove: tuple[PatchId, ...] = ()
