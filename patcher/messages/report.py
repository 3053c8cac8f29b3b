"""The result of a command: for people as lines, for programs as JSON."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from patcher import __version__
from patcher.messages.errors import Kind, Problem
from patcher.messages.language import translate
from patcher.messages.notes import Message, Note, Warned, terminal_width, wrapped
from patcher.messages.text import COMMA, Text, joined

SCHEMA = 1
"""Version of the JSON envelope; it grows by fields, and changes when a field goes or means something else."""

OMIT_NONE = {"omit_none": True}
"""Metadata of a field that is left out of the JSON where it is None."""


class Detail(Text):
    """Line of a report that is shown with `-v` only."""

    __slots__ = ()


class Verbatim(str):
    """Line of a report that quotes a file, and is neither translated nor coloured."""


class StepResult(NamedTuple):
    """Lines, notes and problems of a step of a command; `+` joins steps.

    `lines` go to stdout, `notes` and `problems` to stderr. `done` says briefly what was changed, which is reported even
    if stdout cannot be written.
    """

    lines: tuple[str, ...] = ()
    notes: tuple[Message, ...] = ()
    problems: tuple[Problem, ...] = ()
    done: tuple[str, ...] = ()

    def __add__(self, other: StepResult) -> StepResult:  # type: ignore[override]  # no tuple of eight
        return StepResult._make(first + second for first, second in zip(self, other))

    @classmethod
    def noted(cls, notes: Iterable[Note], level: str = "note") -> StepResult:
        """Return a step that has only `notes`, each with the `level` "note" or "warning"."""
        return cls(notes=tuple(Message(level, *note) for note in notes))


_NOTHING = StepResult()


class CommandResult:
    """Result of a command, joined from its steps.

    `data` (a dataclass or dict) is what `--json` prints instead of lines, `raw` is output to print unchanged, such as a
    diff. With `tells_all` the details of notes are always shown; with `aside` the lines go to stderr. `more` says how
    to see details that are not shown. `then` is called after a report without problems: it gets a function that shows
    another report, and returns the exit code.
    """

    def __init__(
        self,
        command: str,
        step: StepResult = _NOTHING,
        *,
        data: object = None,
        raw: bytes | None = None,
        problems: Sequence[Problem] = (),
        tells_all: bool = False,
        aside: bool = False,
        more: str = "",
        then: Callable[[Callable[[CommandResult], int]], int] | None = None,
    ) -> None:
        self.command, self.raw = command, raw
        self.data: Any = {} if data is None else data
        self.lines: list[str] = []
        self.notes: list[Message] = []
        self.problems: list[Problem] = []
        self.done: list[str] = []
        self.tells_all, self.aside, self.then = tells_all, aside, then
        self.more = more or Text("add -v for details")
        self.add(step + StepResult(problems=tuple(problems)))

    def add(self, step: StepResult) -> None:
        """Append the result of a step; notes and problems that are already present are not repeated.

        If a repeated note has a new detail, that is appended to the earlier note.
        """
        self.lines += step.lines
        self.done += step.done
        for problem in step.problems:
            if str(problem) not in map(str, self.problems):
                self.problems.append(problem)
        for note in step.notes:
            self._add_note(note)

    @property
    def exit_code(self) -> int:
        """Exit code of the first problem, 0 without any."""
        return self.problems[0].kind.exit_code if self.problems else 0

    @property
    def messages(self) -> tuple[str, ...]:
        """Notes, each on a single line."""
        return tuple(note.line for note in self.notes)

    def note(self, text: str, detail: str = "", *, level: str = "note") -> None:
        """Add a note of a `level`, "note" or "warning"; if it is present, only append a new `detail` to it."""
        self._add_note(Message(level, text, detail))

    def _add_note(self, note: Message) -> None:
        for at, earlier in enumerate(self.notes):
            if (earlier.level, earlier.text) == (note.level, note.text):
                if note.detail not in earlier.detail:
                    self.notes[at] = earlier._replace(detail=joined("\n", (earlier.detail, note.detail)))
                return
        self.notes.append(note)

    def warn(self, text: str, detail: str = "") -> None:
        """Add a warning."""
        self.note(text, detail, level="warning")

    def show(self, *, as_json: bool, quiet: bool, color: bool | None, verbose: bool = False) -> int:
        """Print the report, as JSON or as lines, and return the exit code of the process.

        With `quiet` the lines and all notes but `Warned` ones are left out, but neither JSON nor raw output. With
        `verbose` details are added. `color` None means: on a terminal only, without NO_COLOR and TERM=dumb. If stdout
        cannot be written, the exit code stays if it tells of a change or a problem, and is that of ENVIRONMENT
        otherwise. A closed pipe is no failure.
        """
        verbose = verbose or self.tells_all
        if color is None and (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"):
            color = False
        with _catching_write_errors(sys.stderr):
            for text in self._messages(quiet=quiet, verbose=verbose):
                _print_line(text, sys.stderr, color)
        with _catching_write_errors(sys.stderr if self.aside else sys.stdout) as failed:
            self._show_result(as_json=as_json, quiet=quiet, verbose=verbose, color=color)
        with _catching_write_errors(sys.stderr):
            if not (quiet or verbose or as_json) and self._has_details:
                _print_line(translate(self.more), sys.stderr, color)
        if failed and not isinstance(failed[0], BrokenPipeError):
            return self._report_unwritten(failed[0], color)
        return self.exit_code

    def _report_unwritten(self, error: OSError, color: bool | None) -> int:
        """Report on stderr that stdout could not be written, and return the exit code of the process."""
        cause = Text("the output could not be written: {reason}", error.strerror or type(error).__name__)
        if self.done:
            changes = joined(COMMA, self.done)
            cause = Text("{cause}, but these changes were made: {changes}", cause=cause, changes=changes)
        hint = Text("redirect the output to a disk with free space (> FILE), or into a pipe")
        problem = Problem(Kind.ENVIRONMENT, cause, hint=hint)
        with _catching_write_errors(sys.stderr):
            _print_line(_error(problem), sys.stderr, color)
        return self.exit_code if self.done or self.problems else problem.kind.exit_code

    def _messages(self, *, quiet: bool, verbose: bool) -> Iterator[str]:
        """Yield the notes and problems as printed, translated; with `quiet` only those that must be seen.

        With `verbose`, each note is whole and followed by its detail; `Warned` notes always are.
        """
        for note in self.notes:
            if quiet and not isinstance(note, Warned):
                continue
            whole = verbose or isinstance(note, Warned)
            lines = wrapped(note.line, width=None) if whole and not note.fits else [note.short_line]
            yield _color_first_word("\n".join(lines), note.level)
            for line in translate(note.detail).splitlines() if whole else ():
                yield f"  {line}" if isinstance(note, Warned) else _wrapped(line, "  ")
        yield from map(_error, self.problems)

    @property
    def _has_details(self) -> bool:
        """Whether `-v` would show more: the detail of a note, or a line for `-v` only."""
        lines = () if self.raw is not None else self.lines
        hidden = (note.detail or not note.fits for note in self.notes if not isinstance(note, Warned))
        return any(hidden) or any(isinstance(line, Detail) for line in lines)

    def _show_result(self, *, as_json: bool, quiet: bool, verbose: bool, color: bool | None) -> None:
        """Print the JSON document, raw bytes or lines; `quiet` leaves lines out, `verbose` adds those for `-v`."""
        stream = sys.stderr if self.aside else sys.stdout
        if as_json:
            import json  # noqa: PLC0415  (1 ms, and most reports are for people)

            text = json.dumps(self.envelope(), indent=2, ensure_ascii=False, default=str)
            _print_line(text, stream, True, unbroken=True)
        elif self.raw is not None:
            _show_raw(self.raw, color)
        elif not quiet:
            for line in self.lines:
                if isinstance(line, Verbatim):
                    _print_line(line, stream, color, unbroken=True)
                elif not isinstance(line, Detail):
                    word = line.lstrip().partition(" ")[0].rstrip(":")
                    _print_line(_color_first_word(translate(line), word), stream, color)
                elif verbose:
                    _print_line(_wrapped(translate(line), line[: len(line) - len(line.lstrip())]), stream, color)

    def envelope(self) -> dict[str, object]:
        """Return the document of `--json` as a dict: versions, command, exit code, result, notes and problems."""
        problems = [
            {
                "kind": p.kind.name.lower(), "exit_code": p.kind.exit_code, "title": p.kind.title,
                "cause": p.cause, "where": p.place, "next": p.hint, "notes": list(p.notes),
            }
            for p in self.problems
        ]  # fmt: skip
        return {
            "schema": SCHEMA,
            "rlpatch": __version__,
            "command": self.command,
            "exit_code": self.exit_code,
            "result": json_of(self.data),
            "messages": list(self.messages),
            "notes": json_of(self.notes),
            "problems": problems,
        }


def json_of(value: Any) -> Any:
    """Return `value` for JSON: dataclasses and named tuples become objects, enums their values, paths strings.

    A method `as_json` of a value replaces the value first. Fields with `OMIT_NONE` are left out if None.
    """
    import dataclasses  # noqa: PLC0415  (1 ms, and most reports are for people)

    if hasattr(value, "as_json"):
        value = value.as_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if dataclasses.is_dataclass(value):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        pairs = (pair for pair in fields if pair[1] is not None or not pair[0].metadata.get("omit_none"))
        return {field.name: json_of(item) for field, item in pairs}
    if isinstance(value, Mapping):
        return {key: json_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_of(item) for item in value]
    return value


@contextlib.contextmanager
def _catching_write_errors(stream: TextIO | None) -> Iterator[list[OSError]]:
    """Flush `stream` after the block; add an OSError of the block or the flush to the list that is yielded.

    After an error `stream` leads to /dev/null. Ctrl-C only ends the block.
    """
    failed: list[OSError] = []
    try:
        yield failed
        if stream is not None:
            stream.flush()
    except KeyboardInterrupt:
        pass
    except OSError as error:
        failed.append(error)
        _discard(stream)


def _discard(stream: TextIO | None) -> None:
    """Redirect `stream` to /dev/null, so that Python does not fail again on its buffered text at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # None, or a stand-in without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


_STYLED = re.compile(r"\x1b\[[\d;]*m")
_BOLD, _RED, _GREEN, _YELLOW, _CYAN, _BOLD_RED = "1", "31", "32", "33", "36", "1;31"
_TINTS = {
    **dict.fromkeys(("patched", "reverted", "intact", "off"), _GREEN),
    **dict.fromkeys(("warning", "edited", "lost", "missing", "armed", "unknown"), _YELLOW),
    **dict.fromkeys(("tampered", "on"), _RED),
    **dict.fromkeys(("note", "next"), _CYAN),
}
"""The words that open a line of a report, and their colours."""


def _print_line(text: str, stream: TextIO | None, color: bool | None, *, unbroken: bool = False) -> None:
    """Print `text` to `stream`, if there is one; a line that is wider than the terminal is broken unless `unbroken`."""
    if stream is None:  # the shell closed it
        return
    if not unbroken and (width := terminal_width(stream)):
        text = "\n".join(_break_line(line, width) for line in text.split("\n"))
    if not (stream.isatty() if color is None else color):
        text = _STYLED.sub("", text)
    stream.write(f"{text}\n")
    stream.flush()


_WHOLE = r"`[^`]*`|(?:^(?:[^\s:：]+[:：] ?)?|(?<=[:：] )|(?<=：))rlpatch .*"
"""What is copied out of a line, and therefore not broken: code, and a command up to the end; "next:" stays with it."""
_GAP = r"\S {2,}\S"


def _break_line(line: str, width: int) -> str:
    """Return a line as text with newlines, so that no part of it is wider than `width` columns if possible.

    Further parts are indented by four blanks, or to the second of two columns. Code, commands and rows of a table stay
    whole.
    """
    plain = _STYLED.sub("", line)
    words = plain.lstrip()
    indent = plain[: len(plain) - len(words)]
    gaps = [len(indent) + gap.end() - 1 for gap in re.finditer(_GAP, words)]
    if len(plain) * 2 <= width or len(gaps) > 1 or any(gap > width // 2 for gap in gaps):
        return line
    further = " " * (gaps[0] if gaps else len(indent) + 4)
    unbreakable = re.sub(_WHOLE, lambda match: match[0].replace(" ", "\0"), words)
    first, *more = (part.replace("\0", " ") for part in wrapped(unbreakable, indent, further, width))
    if not more:
        return line
    styled = line[: line.rfind("\x1b[0m") + 4] if "\x1b[0m" in line else ""
    opening = _STYLED.sub("", styled)
    if first.startswith(opening):
        first = styled + first[len(opening) :]
    return "\n".join((first, *more))


def _show_raw(data: bytes, color: bool | None) -> None:
    """Print a diff to stdout: as coloured text on a terminal or if `color` is true, else as unchanged bytes."""
    if sys.stdout is None:  # the shell closed it
        return
    if sys.stdout.isatty() if color is None else color:
        for line in data.decode("utf-8", "replace").splitlines():
            tint = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1], "")
            codes = _BOLD if line.startswith(("+++", "---", "diff")) else tint
            _print_line(_style(line, codes), sys.stdout, True, unbroken=True)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _style(text: str, codes: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


def _error(problem: Problem) -> str:
    """Return a problem translated and as printed: "Error:" in red, then its lines below each other."""
    first, *more = problem.lines
    line = translate(Text("Error: {problem}", first))
    first = re.sub("[^:：]+[:：] ?", lambda match: _style(match[0], _BOLD_RED), line, count=1)
    return "\n  ".join((first, *map(translate, more)))


def _color_first_word(line: str, word: str) -> str:
    """Return a translated `line` with its first word coloured, if `word`, the same in English, has a colour."""
    return re.sub(r"[^\s:：]+", lambda match: _style(match[0], _TINTS[word]), line, count=1) if word in _TINTS else line


def _wrapped(line: str, indent: str) -> str:
    return "\n".join(wrapped(line.strip(), indent, indent, None))
