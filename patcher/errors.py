"""Every way in which rlpatch can fail: one table from the kind of a problem to its exit code and title."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """What went wrong, as (exit code, title); the exit codes are part of the command line's contract."""

    UNEXPECTED = (1, "unexpected failure")
    USAGE = (2, "wrong usage")
    NO_TARGET = (3, "no such target")
    VERSION = (3, "version mismatch")
    NO_RECIPE = (3, "no recipe")
    STRUCTURE = (4, "structure not recognised")
    FOREIGN_EDIT = (4, "changed by someone else")
    ENVIRONMENT = (5, "the environment refuses")
    ROLLED_BACK = (6, "failed and rolled back")
    ROLLBACK_INCOMPLETE = (7, "rollback incomplete")
    PROFILER_ON = (8, "another profiler is switched on")
    INTERRUPTED = (130, "interrupted, everything as before")

    @property
    def exit_code(self) -> int:
        """The exit code of the process, 1 to 130."""
        return self.value[0]

    @property
    def title(self) -> str:
        """A few words for the head of the message."""
        return self.value[1]


class Problem(Exception):  # noqa: N818  (it is what the user reads, not a type that callers tell apart by name)
    """A failure that people can act on.

    ``cause`` says what happened, ``where`` names the file (with the line where there is one) or the folder,
    ``hint`` is the next command to type or the next thing to look at.
    """

    def __init__(self, kind: Kind, cause: str, where: str = "", hint: str = "", notes: tuple[str, ...] = ()) -> None:
        super().__init__(kind, cause, where, hint, notes)
        self.kind = kind
        self.cause = cause
        self.where = where
        self.hint = hint
        self.notes = notes

    def __str__(self) -> str:
        """The whole message on as many lines as it needs."""
        lines = [f"{self.kind.title}: {self.cause}"]
        if self.where:
            lines.append(f"  at {self.where}")
        lines.extend(f"  {note}" for note in self.notes)
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)
