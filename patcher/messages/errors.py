"""Every way in which rlpatch can fail: one table from the kind of a problem to its exit code and title."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

from patcher.messages.notes import Note
from patcher.messages.text import Text, joined


class Kind(enum.Enum):
    """Kind of a problem, as (exit code, title); the exit codes are part of the command line's contract."""

    UNEXPECTED = (1, Text("unexpected failure"))
    USAGE = (2, Text("wrong usage"))
    NO_TARGET = (3, Text("no such target"))
    VERSION = (3, Text("version mismatch"))
    NO_RECIPE = (3, Text("no recipe"))
    STRUCTURE = (4, Text("code structure not recognised"))
    FOREIGN_EDIT = (4, Text("somebody else changed the file"))
    ENVIRONMENT = (5, Text("not possible in this environment"))
    ROLLED_BACK = (6, Text("failed, and all changes were undone"))
    ROLLBACK_INCOMPLETE = (7, Text("failed, and some changes could not be undone"))
    TRACE = (4, Text("trace not recognised"))
    NO_TRACE = (3, Text("no trace"))
    NO_WORKER = (3, Text("no worker"))
    NOT_COMPARABLE = (4, Text("not comparable"))
    PROFILER_ON = (8, Text("another profiler is switched on"))
    SLOWER = (9, Text("slower than --fail-above allows"))
    LOST = (10, Text("a patch is no longer in its file"))
    NOT_EXECUTABLE = (126, Text("command cannot be executed"))
    NO_COMMAND = (127, Text("no such command"))
    INTERRUPTED = (130, Text("interrupted, nothing was changed"))

    def __init__(self, exit_code: int, title: str) -> None:
        self.exit_code, self.title = exit_code, title


class Problem(Exception):  # noqa: N818  (it is what the user reads, not a type that callers tell apart by name)
    """Failure that the user can act on; immutable, see `replace`.

    `cause` says what happened, `where` names the file (with the line if known) or folder, `node` the cluster nodes.
    `hint` is the next command to type (a `CommandLine`) or thing to look at. `expected` and `actual` are set if a
    search failed.
    """

    def __init__(
        self,
        kind: Kind,
        cause: str,
        where: str = "",
        hint: str = "",
        notes: tuple[str, ...] = (),
        expected: str = "",
        actual: str = "",
        node: str = "",
    ) -> None:
        super().__init__(kind, cause, where, hint, notes, expected, actual, node)  # which pickle passes again
        self.kind = kind
        self.cause = cause
        self.where = where
        self.hint = hint
        self.notes = notes
        self.expected = expected
        self.actual = actual
        self.node = node

    def replace(self, **fields: Any) -> Problem:
        """Return a copy of the problem with other `fields`."""
        return Problem(**{**vars(self), **fields})

    def __str__(self) -> str:
        """Return the whole message on several lines."""
        return "\n  ".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the whole message: kind and cause, place, notes, hint."""
        return (self._head, *self._rest)

    @property
    def place(self) -> str:
        """Names of nodes, then the file or folder that the problem is at, as `node: path`; "" for none."""
        return ": ".join(filter(None, (self.node, self.where)))

    @property
    def note(self) -> Note:
        """Note with the same content, for a command that goes on in spite of the problem."""
        return Note(self._head, joined("\n", self._rest))

    @property
    def _head(self) -> Text:
        """Title and cause."""
        return Text("{title}: {cause}", title=self.kind.title, cause=self.cause)

    @property
    def _rest(self) -> tuple[str, ...]:
        """Lines below the head: place, notes and hint."""
        where = (Text("at {place}", self.place),) if self.place else ()
        return (*where, *self.notes, *((Text("next: {hint}", self.hint),) if self.hint else ()))


def usage(cause: str, hint: str, where: str = "", notes: tuple[str, ...] = ()) -> Problem:
    """Return a Problem (USAGE) with what is wrong in the command line or configuration, and what to type instead."""
    return Problem(Kind.USAGE, cause, where, hint, notes)


def problem_of(error: BaseException) -> Problem:
    """Return the Problem that describes an exception which ended a command; a Problem is returned unchanged.

    Its kind is INTERRUPTED for Ctrl-C, ENVIRONMENT for an OSError, else UNEXPECTED.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, KeyboardInterrupt):
        hint = Text("run the same command again to start over")
        return Problem(Kind.INTERRUPTED, Text("stopped by Ctrl-C"), hint=hint)
    if isinstance(error, PermissionError):
        return permission_problem(error)
    if isinstance(error, OSError):
        where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
        hint = Text("check {path}, then run the same command again", where or Text("the current folder"))
        return Problem(Kind.ENVIRONMENT, error.strerror or str(error), where, hint)
    hint = Text("please report this; add -v to the command to see the traceback")
    return Problem(Kind.UNEXPECTED, f"{type(error).__name__}: {error}", hint=hint)


def permission_problem(error: PermissionError) -> Problem:
    """Return the Problem (ENVIRONMENT) for a path that this user may not read: the closed folder, and its owner."""
    path = Path(os.fsdecode(error.filename)) if error.filename else Path()
    there = (folder for folder in reversed(path.parents) if os.access(folder, os.F_OK))
    closed = next((folder for folder in there if not os.access(folder, os.X_OK)), None)
    cause = Text("{file} cannot be read: permission denied", path.name)
    if closed:
        cause = Text("you have no permission to enter the folder {folder}", closed.name or closed)
    hint = Text("run rlpatch as the owner ({owner}), or give your user access to this path", _owner(closed or path))
    return Problem(Kind.ENVIRONMENT, cause, str(closed or path), hint)


def _owner(path: Path) -> str:
    """Return the name of the user who owns a path; "another user" if it is not known."""
    try:
        return path.owner()
    except (OSError, KeyError):
        return Text("another user")
