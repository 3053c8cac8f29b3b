"""What a launch starts, and with which environment: read from commands and the scripts that they name.

Nothing is run. Files that the given script names are read too, as far as they exist here; two levels down reading
stops.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from patcher.errors import Kind, Problem
from patcher.launches.builtins import Shell
from patcher.launches.grammar import parsed
from patcher.launches.invocation import RUN_TIME, Argument, Invocation, Placed, inherited, known, quoted
from patcher.launches.program import (
    ADDING,
    ELSEWHERE,
    FROM_FILES,
    LAUNCHERS,
    LISTENERS,
    SHELLS,
    TEXTS,
    WRITING,
    is_python,
    is_quiet,
    is_script,
    is_started,
    name_of,
)
from patcher.launches.pyscript import read_python
from patcher.launches.scope import ASSIGNMENT, DEEP, MANY, MOST_NESTING, Fed, Place, Scope, Ways, arguments, merged
from patcher.launches.wrappers import GIVING, options, texts, unwrapped

_MOST_FILES = 3  # the named script, one that it calls, and the Python program behind that
_MOST_BYTES = 4 << 20


def invocations(
    environ: Mapping[str, str], script: Path | None, command: Sequence[str], pythons: Sequence[str]
) -> tuple[Invocation, ...]:
    """Every invocation of a script and a command (see ``read``)."""
    variables = inherited(environ)
    # The shell sets it anew, whatever the environment says.
    variables.pop("PWD", None)
    base = Scope(variables, folder=_folder(environ))
    reading = Reading(base.folder, tuple(pythons))
    if script is not None:
        reading.file(script, base.copy(program=str(script)), named=True)
    if command:
        place = Place("command after --", named=True)
        reading.command([Placed(word, place.where) for word in command], base.copy(), place)
    if not reading.invocations:
        reading.invocation("environment", (), base)
    return tuple(reading.invocations)


_ABSENT = "the script that it runs is not here, or only known when it runs"
_MOST_TOLD = 1000  # texts for unknown programs that are read
# A variable of an environment, as it is written, and where a batch system reads its options in a script.
_NAMED = re.compile(r"(?<![A-Za-z0-9_])[A-Z_][A-Z0-9_]{2,}(?![A-Za-z0-9_])")
_SUBMITTED = re.compile(r"(?m)^#(?:SBATCH|PBS|BSUB|PJM) .*")
# One that is surely set.
_SET = re.compile(r"(?<![A-Za-z0-9_])([A-Z_][A-Z0-9_]{2,})=")
# Modules that start another module or file of Python.
_STARTERS = re.compile(
    r"torch\.distributed\.(run|launch)|pdb|cProfile|profile|trace|debugpy|coverage|runpy|memray|viztracer|deepspeed.*"
    r"|accelerate\.commands\.launch"
)
_UV_VALUED = re.compile("-p|--(extra|group|with|package|python|project|directory|no-extra|with-editable)")


class Reading:
    """Collects the invocations while it follows commands and scripts."""

    def __init__(self, folder: str | None, pythons: Sequence[str]) -> None:
        self.folder, self.pythons = folder, pythons
        self.invocations: list[Invocation] = []
        self.open_files: list[Path] = []
        self.nesting = self.steps = self.told = 0
        # What the launch may write into files, None for what only the run tells.
        self.written: dict[str, str | None] = {}
        # Where the script is: whether it is surely run, in how many branches, where a way out of a function or a loop
        # makes one of what is behind it, and what its commands are fed.
        self.sure, self.depth = True, 0
        self.fed: Fed | None = None

    def beside(self, name: str, scope: Scope, folder: Path | None) -> Path:
        """A script's path: from the working directory, else in the folder of the script that calls it.

        For nobody says that the script will be started from here; one that changes the directory knows where it is.
        """
        for base in (scope.folder, folder if scope.folder == self.folder else None):
            with suppress(OSError, ValueError):
                if base is not None and Path(base, name).is_file():
                    return Path(base, name)
        # Where nobody knows what it is relative to, there is nothing of that name.
        return Path(scope.folder or os.devnull, name)

    @property
    def certain(self) -> bool:
        """Whether the script surely comes by here."""
        return self.sure and not self.depth

    def invocation(
        self, where: str, argv: Sequence[Argument], scope: Scope | None, sure: bool | None = None, reason: str = ""
    ) -> None:
        """Note a start with the variables of a scope as they are there."""
        variables = {} if scope is None else {
            name: tuple(one._replace(text=known(one.text)) for one in ways) for name, ways in scope.variables.items()
        }  # fmt: skip
        folder = Path(scope.folder) if scope is not None and scope.folder else None
        sure = self.certain if sure is None else sure
        self.invocations.append(Invocation(where, tuple(argv), variables, sure, folder=folder, reason=reason))

    def sourced(self, name: str, scope: Scope, folder: Path) -> Ways | None:
        """Read a file as a part of the script that sources it; None if it cannot be."""
        path = self.beside(name, scope, folder)
        text = self._opened(path, named=False)
        if text is None:
            # One that is being read already goes round for ever.
            around = path.is_file() and path.resolve() in self.open_files and len(self.open_files) < _MOST_FILES
            return [scope] if around else None
        scope.frames += 1
        ends = Shell(self, text, str(path), 1, path.parent).run(scope)
        self.open_files.pop()
        for end in ends:
            end.frames -= 1
            end.leaves = None if end.leaves and end.leaves[0] == "return" else end.leaves
        return ends

    def writes(self, names: Iterable[str], scope: Scope, folder: Path | None, text: str | None = None) -> None:
        """Note files that a command writes or may write: what they hold is ``text`` if that is known."""
        text = text if text is not None and RUN_TIME not in text and self.certain else None
        folders = [one for one in (scope.folder, folder if scope.folder == self.folder else None) if one is not None]
        for path in (Path(one, name) for name in names if RUN_TIME not in name for one in folders):
            self.written[os.path.realpath(path)] = text

    def _opened(self, path: Path, *, named: bool) -> str | None:
        """The text of a file that is not being read already; a Problem if it is ``named`` and no script."""
        try:
            resolved = path.resolve()
            known = self.written.get(str(resolved))
            text = _text(path, named=named) if known is None else known
        except (OSError, ValueError) as error:
            if not named:
                return None
            reason = getattr(error, "strerror", None) or str(error)
            hint = "give the shell or Python script that starts the run"
            raise Problem(Kind.USAGE, f"cannot read the launch script: {reason}", str(path), hint) from error
        lost = known is None and str(resolved) in self.written
        if resolved in self.open_files or len(self.open_files) >= _MOST_FILES or lost:
            return None
        self.open_files.append(resolved)
        return text

    def file(self, path: Path, scope: Scope, *, named: bool = False, python: bool | None = None) -> bool:
        """Read a script; False if it was not read, which is a Problem if it is ``named``."""
        text = self._opened(path, named=named)
        if text is None:
            return False
        if python is None:
            python = path.suffix == ".py" or bool(re.match("#!.*python", text))
        self.text(text, scope, str(path), 1, path.parent, python=python)
        self.open_files.pop()
        return True

    def text(
        self, text: str, scope: Scope, name: str, line: int, folder: Path, *, python: bool, fed: Fed | None = None
    ) -> None:
        """Read the text of a script, which is ``fed`` something.

        ``name`` and ``line`` say where it stands, 0 that ``name`` says it all.
        """
        if self.nesting >= MOST_NESTING:
            scope.anything(name, "")
            self.invocation(name, (None,), scope, False, DEEP)
            return
        before, nesting = (self.sure, self.depth, self.fed), self.nesting
        # What is set in a text that may not be run is set in a branch.
        self.sure, self.depth, self.fed = self.certain, int(not self.certain), fed
        self.nesting, count, opened = nesting + 1, len(self.invocations), len(self.open_files)
        where = f"{name}:{line}" if line else name
        try:
            if python:
                read_python(self, text, scope, name, line, folder)
            else:
                for row in _SUBMITTED.findall(text):
                    self.named([Placed(row, where)], scope, where)
                scope = merged(Shell(self, text, name, line, folder).run(scope), self.depth)
        except RecursionError:
            del self.open_files[opened:]
            scope.anything(where, "")
            self.invocation(where, (None,), scope, False, DEEP)
        if len(self.invocations) == count:
            self.invocation(where, (), scope, self.sure)
        self.sure, self.depth, self.fed = before
        self.nesting = nesting

    def command(self, words: Sequence[Placed], scope: Scope, place: Place) -> None:
        """Follow one command: strip wrappers, read the script behind it, else note the invocation.

        The words may hold RUN_TIME; the scope is changed.
        """
        before, given = {} if self.certain else dict(scope.variables), words
        words = unwrapped(words, scope, place.where, self.pythons)
        if not self.certain:
            scope.perhaps(before)
        if not words and place.fed and name_of(given[0]) == "sudo":  # a shell, by one of its options
            words = [Placed("sh", place.where)]
        name = name_of(words[0]) if words else ""
        if name in WRITING:
            self.writes(words[1:], scope, place.folder)
        if not words or is_quiet(words):
            return
        inside = self._inside(words, scope, place)
        if inside:
            self.invocation(place.where, arguments(words), None)
            return
        reason = _ABSENT if inside is None else self._unread(words, scope, place)
        if reason:
            scope.anything(place.where, quoted(arguments(words)))
        else:
            fed = [Placed(place.fed.text, place.where)] if place.fed else []
            self.named([*words[1:], *fed], scope, place.where, read=name in GIVING)
        if RUN_TIME not in name:
            words = [Placed(name, words[0].where), *words[1:]] if RUN_TIME in words[0] else words
        self.invocation(place.where, arguments(words), scope, reason=reason)

    def named(self, words: Sequence[Placed], scope: Scope, where: str, *, read: bool = False) -> None:
        """Leave to the run what words name that are not followed: their program may give it to what it starts.

        Of a program whose options are ``read`` just what is set in words that are no such options.
        """
        for word in words:
            for name in (_SET if read else _NAMED).findall(word):
                if all(one.where != where for one in scope.look(name)):
                    scope.forget(name, where, quoted([word])[:200])

    def _unread(self, words: Sequence[Placed], scope: Scope, place: Place) -> str:
        """Why nothing is known of what a command starts that could not be followed, empty if its words say it."""
        name, program = name_of(words[0]), str(words[0])
        named, line = is_started(name) or name in LAUNCHERS, " ".join(words)
        asks = place.fed is not None or len(words) > 1
        if is_script(name) or (name in SHELLS and asks) or (name in LISTENERS and place.fed is not None):
            return _ABSENT
        if "/" in program and not named and not self.beside(program, scope, place.folder).is_file():
            return "the program that it runs is not here"
        if set(program) == {RUN_TIME} and not any(is_started(name_of(word)) for word in words):
            return "which program this is, is only known when it runs"
        functions = {*words[1:]} & {*scope.functions} if name in ADDING else ()
        if FROM_FILES.fullmatch(line) or functions or (name == "parallel" and ":::" not in words):
            return "what it starts stands in a file that is not read"
        return ""

    def _inside(self, words: Sequence[Placed], scope: Scope, place: Place) -> bool | None:
        """Read the script that the command names, if there is one.

        True if something was read, None if the command has a text that only the run tells.
        """
        program, name = str(words[0]), name_of(words[0])
        if name in SHELLS or is_python(name):
            return self._interpreter(words, scope, place)
        if RUN_TIME not in program:
            path = self.beside(program, scope, place.folder)
            if is_script(name) or name.endswith(".py") or ("/" in program and _is_script(path)):
                if name.endswith(".py"):
                    self.named(words[1:], scope, place.where)
                child = scope.child(tuple(words[1:]), program)
                return self.file(path, child, named=place.named and "/" in program)
        found = texts(words) if name in TEXTS else []
        if found:
            self.named([word for word in words[1:] if not any(word in text for text in found)], scope, place.where)
        for text in found:
            shell = [Placed("sh", text.where), Placed("-c", text.where), text]
            self.command(shell, scope.copy(), place._replace(named=False))
        if found:
            return True
        if name in LAUNCHERS:
            if self._launched(words, scope, place):
                return True
            fed = place.fed is not None and name in LISTENERS
            return self._interpreter([Placed("sh", place.where)], scope, place) if fed else False
        if not is_started(name):
            self.may_start(words, scope, place)
        return False

    def _launched(self, words: Sequence[Placed], scope: Scope, place: Place) -> bool:
        """Follow what a launcher starts: what stands among its words and looks like that."""
        name = name_of(words[0])
        if name in ADDING:  # it puts other words where a sign stands
            signs = {"{}", *(word for before, word in pairwise(words) if before in {"-I", "-i", "--replace"})}
            sign = re.compile("|".join(map(re.escape, filter(None, signs))))
            words = [words[0], *(Placed(sign.sub(RUN_TIME, word), word.where) for word in words[1:])]
        for at, word in enumerate(words[1:], 1):
            rest = list(words[at + 1 :] if word == "--" else words[at:])
            gives = name_of(word) == "env" and len(rest) > 1 and ASSIGNMENT.match(rest[1])
            batch = name == "sbatch" and _is_script(self.beside(word, scope, place.folder))
            local = word.startswith(("./", "../")) and ":" not in word
            starts = word == "--" or gives or batch or local or ("://" not in word and is_started(name_of(rest[0])))
            if word == "-m" and name in {"torchrun", "accelerate", "deepspeed", "coverage"}:
                inside = self._module("", words[at + 1 :], scope.copy(), place)
                if inside is not False:
                    return bool(inside)
            if rest and starts and not (name == "uv" and _UV_VALUED.fullmatch(words[at - 1])):
                before, own = len(self.invocations), scope.copy()
                self.named(words[1:at], own, place.where, read=name in GIVING)
                rest = [Placed("sh", rest[0].where), *rest] if batch else rest
                rest += [Placed(MANY, place.where)] if name in ADDING else []
                fed = None if name in ADDING else place.fed
                self.command(rest, own, place._replace(fed=fed, named=place.named and name not in ELSEWHERE))
                return len(self.invocations) > before
        return False

    def may_start(self, words: Sequence[Placed], scope: Scope, place: Place) -> None:
        """Follow what a program may start of which nobody knows whether it starts others, and what it gives to them."""
        before, own = self.sure, scope.copy()
        self.sure = False
        own.drop_any(place.where, quoted(arguments(words)))
        if self._launched(words, own, place):
            scope.drop_any(place.where, quoted(arguments(words)))
            told: list[str] = []
        else:
            told = [*words[1:], *([place.fed.text] if place.fed else [])]
        for text in (text for text in told if re.search(r"\s", text) and RUN_TIME not in text):
            self.told += 1
            if self.told > _MOST_TOLD:
                scope.anything(place.where, "")
                self.invocation(place.where, (None,), scope, False, "it tells too much to other programs")
            elif not parsed(text.encode("utf-8", "replace")).has_error:
                count = len(self.invocations)
                self.text(text, own.child(None), place.where, 0, place.folder or Path(), python=False)
                # A filter, a prompt or a document is a shell's text, too; but it starts nothing.
                if not any(one.argv and _starts(one) for one in self.invocations[count:]):
                    del self.invocations[count:]
        self.sure = before

    def _interpreter(self, words: Sequence[Placed], scope: Scope, place: Place) -> bool | None:
        python, rest, fed, program = name_of(words[0]) not in SHELLS, words[1:], place.fed, str(words[0])
        listens, stdin = False, None  # to what it is fed, though words follow; what is left of that
        valued = "-[WX]" if python else "[-+][a-zA-Z]*[oO]|--rcfile|--init-file"
        for option, _, behind in options(rest, valued, signs="-+"):
            rest = behind
            if python and option.startswith("-m"):
                return self._module(option[2:], rest, scope, place)
            listens = listens or (not python and bool(re.fullmatch(r"-[a-zA-Z]*s[a-zA-Z]*", option)))
            if re.fullmatch(r"-[a-zA-Z]*c", option):
                fed, stdin, rest = Fed(rest[0], 0) if rest else None, fed, rest[1:]
                program = str(rest[0]) if rest else program
                break
        else:
            if listens:
                rest = [words[0], *rest]
            elif rest and rest[0] != "-":
                if python:
                    self.named(rest[1:], scope, place.where)
                child, path = scope.child(tuple(rest[1:]), str(rest[0])), self.beside(rest[0], scope, place.folder)
                read = RUN_TIME not in rest[0] and self.file(path, child, named=place.named, python=python)
                return read or (None if python and self._unreadable(path) else False)
        if fed is None or RUN_TIME in fed.text:
            return None if fed else False
        name = place.where.rpartition(":")[0] if fed.line else place.where
        child, folder = scope.child(tuple(rest[1:]), program), place.folder or Path()
        self.text(fed.text, child, name, fed.line, folder, python=python, fed=stdin)
        return True

    def _module(self, name: str, words: Sequence[Placed], scope: Scope, place: Place) -> bool | None:
        """``python -m``: a program that starts another one, or one that is a file here."""
        name, words = (name, words) if name else (str(words[0]) if words else "", words[1:])
        if _STARTERS.fullmatch(name):
            return self._launched([Placed("torchrun", place.where), *words], scope, place)
        for file in (f"{name.replace('.', '/')}.py", f"{name.replace('.', '/')}/__main__.py"):
            path = self.beside(file, scope, place.folder)
            if RUN_TIME not in name and self._unreadable(path):
                self.named(words, scope, place.where)
                return self.file(path, scope.child(tuple(words), file), python=True) or None
        return False

    def _unreadable(self, path: Path) -> bool:
        """Whether a file is here, or will be, so that it matters that it is not read."""
        with suppress(OSError, ValueError):
            return path.is_file() or os.path.realpath(path) in self.written
        return False


def _folder(environ: Mapping[str, str]) -> str | None:
    """The working directory as a shell that starts here names it: by ``PWD`` where that is no stale one."""
    given = environ.get("PWD", "")
    with suppress(OSError):
        here = str(Path.cwd())
        return given if given.startswith("/") and os.path.realpath(given) == here else here
    return None


def _starts(invocation: Invocation) -> bool:
    name = name_of(invocation.argv[0])
    return bool(name) and (bool(invocation.reason) or is_started(name) or name in LAUNCHERS)


def _is_script(path: Path) -> bool:
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(2) == b"#!"
    return False


def _text(path: Path, *, named: bool) -> str:
    """The text of a script. Raises OSError or ValueError where there is none; JSON is none where it is ``named``."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("too large to be a launch script")
    data = path.read_bytes()
    if b"\0" in data:
        raise ValueError("binary, not a launch script")
    if path.suffix == ".json" and named:
        raise ValueError("JSON, not a launch script")
    # Bytes that are not UTF-8 stand in comments and messages; names of variables are ASCII.
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
