"""The values that planning hands to the store: which bytes become which, and what is remembered of it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

SHARED = "recorder"
"""The stage of a block that several patches of one class have in common."""


class PatchId(NamedTuple):
    """Identifier of a patch: applying the same id again replaces the patch, another id adds a patch."""

    target: str
    stage: str
    role: str = ""

    @property
    def shared(self) -> bool:
        """Tell whether this id identifies a block that patches share, not a patch."""
        return self.stage == SHARED

    def __str__(self) -> str:
        """Return the id in the form of markers and messages: ``vllm-ascend rollout``."""
        return " ".join(part for part in self if part)

    def rename(self, code: str) -> str:
        """Return ``code`` with the patch's own names in place of ``_rlpatch_stage`` and ``_RlpatchStage``."""
        words = [word for part in (self.stage, self.role) for word in part.split("-") if word]
        code = code.replace("_rlpatch_stage", f"_rlpatch_{'_'.join(words)}")
        return code.replace("_RlpatchStage", f"_Rlpatch{''.join(map(str.capitalize, words))}")


class Change(NamedTuple):
    """One file of a transaction: ``path`` below the root, ``before`` and ``after``, ``pristine`` without rlpatch."""

    path: PurePosixPath
    before: bytes
    after: bytes
    pristine: bytes


class Record(NamedTuple):
    """Entry of the store for an applied patch, from which ``status`` reports later.

    ``files`` are the paths with lines of this patch, relative to the root. ``options`` are the command-line words that
    would apply the patch again.
    """

    patch: PatchId
    version: str
    options: tuple[str, ...]
    files: tuple[str, ...]
    applied_at: str
    tool: str


class Edit(NamedTuple):
    """All changes of one transaction below one root: the changed files, and the patches added or removed."""

    root: Path
    changes: tuple[Change, ...]
    add: tuple[Record, ...] = ()
    remove: tuple[PatchId, ...] = ()
