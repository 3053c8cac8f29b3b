"""Reads the texts of a launch: environment, command, script, and the files that these name.

Nothing is interpreted. A script is plain as long as it is one simple command after the other: what these export and
start is known. Everything behind is only searched, for names and for what may hide a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from posixpath import basename
from shlex import join
from typing import NamedTuple

from patcher.guards import programs
from patcher.guards.result import COMMAND, ENVIRONMENT, Launch
from patcher.guards.shell import ShellCommand, Word, normal, split
from patcher.guards.start import INSIDE, OUTSIDE, Start, assigns, is_hidden, is_known, with_ellipses
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading

_LONGEST = 2000  # of the value of a variable
_LARGEST = 1 << 17  # of a file that is read, in bytes
_UNKNOWN = "$()"
_RUN_TIME = Text("the programs that this command starts, or the variables that it sets, are only known at run time")
_MISSING = Text(
    "the launch command or script names a file that was not found on this machine or is only known at run time"
)
_TOO_LARGE = Text("the launch command or script names a file of more than 128 KiB, which rlpatch does not read")
_INPUT = Text("the standard input of this command is only known at run time")
_UNREAD = Text(
    "rlpatch does not read this script from here on: the following lines cannot be parsed, or a here-document begins"
)
_CODE = Text("the programs that this code runs, or the variables that it sets, are only known at run time")


class LaunchText(NamedTuple):
    """A word of a command, or a line of a file, without quotes.

    ``plain``: the launch surely exports it, or starts Python with it. ``reason``: why it hides what the launch does.
    """

    where: str
    text: str
    plain: bool = False
    reason: str = ""


@dataclass
class Reading:
    """Everything that was read of a launch, except Python files that ``is_upstream``."""

    environ: Mapping[str, str]
    is_upstream: Callable[[Path], bool]
    texts: list[LaunchText] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    hidden: list[LaunchText] = field(default_factory=list)
    written: set[str] = field(default_factory=set)  # names of files that the launch writes

    def place(self, text: str, default: str) -> str:
        """Return the last place where ``text`` stands; ``default`` if it stands nowhere."""
        literal = re.split("[\0\1]", text)[0] or text
        return next((line.where for line in reversed(self.texts) if literal in line.text), default)


def read(launch: Launch, is_upstream: Callable[[Path], bool] = lambda _: False) -> Reading:
    """Read the command and the script of a launch, and the files that they name, for what they set and start.

    Python files for which ``is_upstream`` returns True are left out. If the launch starts nothing, or only curl or
    wget, Python might run elsewhere. Then a start of Python with the launch's environment is added to the result.
    Raises Problem (USAGE) if the script or one of the files cannot be read.
    """
    result = Reading(launch.environ, is_upstream)
    commands = [launch.command] if launch.command else []
    if launch.script is not None:
        is_python = launch.script.suffix == ".py" or re.match("#!.*python", text_of(launch.script))
        commands.insert(0, ("python" if is_python else "bash", str(launch.script)))
    for words in commands:
        reader = _Reader(result)
        try:
            reader.read_shell(join(words), 1)
        except RecursionError:
            reader.hide(_UNREAD, join(words))
    if all(start.words[0] in ("curl", "wget") for start in result.starts):  # what may be started gets the environment
        result.starts.append(Start(ENVIRONMENT, ("python",), sure=True))
    return result


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """Return the file ``word`` in the first of ``folders`` that has it; None if it is missing or not fully known."""
    with suppress(OSError, ValueError):  # ValueError for a mark
        return next((folder / word for folder in folders if is_known(word) and (folder / word).is_file()), None)
    return None


def text_of(path: Path) -> str:
    """Return the text of a file of the launch. Raises Problem (USAGE) if it cannot be read."""
    try:
        with reading(path) as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = Text(
            "check that you have permission to read the file; the launch script must be a shell or Python script"
        )
        cause = Text("cannot read a file named in the launch command or script: {reason}", reason)
        raise Problem(Kind.USAGE, cause, str(path), hint) from error


@dataclass
class _Reader:
    """Reader of a launch, which adds to ``result``; for texts inside there are copies, which share ``values``.

    Each method that reads raises Problem (USAGE) if a file that its text names cannot be read.
    """

    result: Reading
    values: dict[str, list[str]] = field(default_factory=dict)  # that variables get anywhere in the launch, as written
    constants: dict[str, str] = field(default_factory=dict)  # of variables that have surely got this value
    clear: dict[str, bool] = field(default_factory=dict)
    files: set[Path] = field(default_factory=set)  # that were read
    folders: tuple[Path, ...] = (Path(),)
    path: Path | None = None
    line: int = 1
    plain: bool = True

    def place(self, line: int) -> str:
        return f"{self.path}:{line}" if self.path else COMMAND

    def note(self, text: str, line: int, *, plain: bool = False) -> None:
        lines = enumerate(normal(text).splitlines(), line)
        self.result.texts.extend(LaunchText(self.place(number), content, plain) for number, content in lines)

    def hide(self, reason: str, text: str, line: int = 0) -> None:
        self.result.hidden.append(LaunchText(self.place(line or self.line), with_ellipses(text)[:200], reason=reason))

    def read_shell(self, text: str, line: int) -> None:
        """Note what a shell text, which begins at line number ``line``, sets and starts, and what hides that."""
        commands = [*split(text, line)]
        for command in commands:
            self.note_values(command)
        for command in commands:
            self.read_command(command)

    def read_inner_shell(self, text: str, line: int) -> None:
        """Read the text of an expansion or of another shell; what it assigns to variables does not count outside."""
        replace(self, plain=False, constants={**self.constants}).read_shell(text, line)

    def read_file(self, word: str, *, plain: bool = False) -> None:
        """Read the file that ``word`` names in the launch's folders, once, as Python or as a shell script.

        With ``plain`` it surely runs, and has no arguments. A file that is missing, too large, or written by the launch
        itself is noted as hidden: what it holds is unknown. Missing ones that only set up the environment are not.
        Python files of upstream packages are skipped.
        """
        path = find(word, self.folders)
        file = path.resolve() if path else Path()
        if basename(word) in self.result.written or not (path or re.fullmatch(programs.SETS_UP, word)):
            self.hide(_MISSING, word)
        elif path and file not in self.files and not (file.suffix == ".py" and self.result.is_upstream(file)):
            self.files.add(file)
            if path.stat().st_size > _LARGEST:
                self.hide(_TOO_LARGE, word)
                return
            text, folders = text_of(path), (*self.folders, *path.absolute().parents)
            reader = replace(self, path=path, plain=plain, folders=folders)
            is_shell = path.suffix in (".sh", ".bash", "") or re.match("#!.*sh", text)
            (reader.read_shell if is_shell else reader.read_python)(text, 1)

    def read_python(self, text: str, line: int) -> None:
        """Note Python code or settings as a text, and again with adjacent strings joined; read ``.sh`` files they name.

        What only the run of the code can tell is noted as hidden.
        """
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        self.note(text, line)
        self.note(re.sub(programs.ADJACENT_STRINGS, "", text), line)
        if match := re.search(programs.PYTHON_HIDES, text):
            self.hide(_CODE, match[0], text.count("\n", 0, match.start()) + line)
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.read_file(script)

    # --- words ---

    def note_values(self, command: ShellCommand) -> None:
        """Note the values that a command assigns and the files that it writes; whether it will run is not checked."""
        self.clear.clear()
        texts = [word.text for word in command.words if not assigns(word.raw)]
        for word in command.words:
            if match := assigns(word.raw):
                value = word.raw[match.end() :]
                is_glued = match[3] and not re.match(r"\(|[\"'] ", value)
                self.values.setdefault(match[1], []).append(_UNKNOWN if is_glued else value)
        if re.match(programs.SETS, " ".join(texts)):
            for text in texts[1:]:
                self.values.setdefault(text, []).append(_UNKNOWN)
        elif re.fullmatch(programs.WRITES, "".join(texts[:1])):
            self.result.written.update(map(basename, texts[1:]))
        self.result.written.update(basename(word.text) for direction, word in command.redirects if ">" in direction)

    def expand(self, raw: str) -> str:
        """Return the only text that a shell expansion can yield, else a placeholder.

        The placeholder is INSIDE if all texts that it can yield were read, otherwise OUTSIDE. Arguments of a script
        that is surely started without any are "". As a run sets PYTHONPATH, ``${PYTHONPATH:+TEXT}`` yields TEXT, and
        any other expansion of it is returned as it is.
        """
        fixed = self.fixed_text(raw)
        if fixed is not None:
            return fixed
        match = re.fullmatch(programs.PARAMETER, raw)
        name, operator, operand = match.group(1, 3, 4) if match else ("", None, None)
        default, values = Word(self.line, operand or ""), self.values.get(name, [])
        if name == "PYTHONPATH":
            return default.expanded(self.expand) if operator == "+" else raw
        constant = self.constants.get(name) if len(values) == 1 and operator != "+" else None
        if constant or (constant == "" and not operator):
            return constant
        if operator == "-" and name not in self.result.environ and {value.strip('"') for value in values} <= {raw}:
            text = default.expanded(self.expand)
            if is_known(text):
                return text
        return INSIDE if self.is_clear(raw) else OUTSIDE

    def fixed_text(self, raw: str) -> str | None:
        """Return the text of the shell expansion ``raw`` if it does not depend on variables; else None."""
        if self.plain and re.fullmatch(r"\$\{?[1-9@*]\}?", raw):
            return ""
        for pattern, text in programs.FIXED.items():
            if re.fullmatch(pattern, raw):
                return text or str(self.path.absolute().parent if self.path else Path())
        return None

    def expand_known(self, raw: str) -> str:
        """Return the only text that a shell expansion yields; the expansion as written if the text is not known."""
        text = self.expand(raw)
        return text if is_known(text) else raw

    def is_clear(self, raw: str) -> bool:
        """Tell whether all values of the shell expansion ``raw`` are known from the launch, and note these as texts."""
        if re.fullmatch(programs.KNOWN_PARAMETER, raw):
            return True
        if raw not in self.clear:
            self.clear[raw] = True  # where a variable refers to itself, its other values decide
            match = re.fullmatch(programs.PARAMETER, raw)
            values = [*self.values.get(match[1], []), *([match[4]] if match[3] else [])] if match else []
            if raw.startswith("("):
                values = [raw]
            is_set = bool(values)
            for word in (word for value in values for word in _elements(value)):
                marked = word.expanded(self.expand)
                is_set = is_set and not any(map(is_hidden, marked.split()))
                if marked != word.text:
                    self.note(marked, self.line)
            self.clear[raw] = is_set
        return self.clear[raw]

    # --- commands ---

    def read_command(self, command: ShellCommand) -> None:
        """Record what a command sets and starts, read what it names, and note whether the script surely goes on."""
        sources = [*command.words, *(word for _, word in command.redirects)]
        self.line = min((word.line for word in sources), default=self.line)
        if not command.after:
            self.note(command.words[0].raw, self.line)
            self.hide(_UNREAD, command.words[0].raw.partition("\n")[0])
            return
        start = self.build_start(command)
        self.plain = start.sure and not start.is_emptied
        for word in sources:
            for text in word.commands():
                self.read_inner_shell(text, word.line)
        self.add_constants(start)
        if start.words and not (start.texts and re.fullmatch(programs.HARMLESS, start.name)):
            self.result.starts.append(start)
        self.follow(command, start)
        is_typed_shell = not self.path and re.fullmatch(programs.SHELL, start.name)
        is_passed_on = start.sure and bool(start.is_export or start.program or is_typed_shell)
        for word in sources:
            self.note(word.expanded(self.expand_known), word.line, plain=is_passed_on and word in command.words)
        self.plain = self.goes_on(command, start)

    def add_constants(self, start: Start) -> None:
        """Note the values of variables that a command without a program surely sets."""
        for name, value in start.variables.items() if not start.texts else ():
            if value is not None and is_known(value) and len(value) < _LONGEST and name not in self.result.environ:
                self.constants[name] = value

    def goes_on(self, command: ShellCommand, start: Start) -> bool:
        """Tell whether the script surely goes on behind ``command``, whose program is that of ``start``."""
        is_diverted = re.search(programs.DIVERTS, " ".join(word.raw for word in command.words))
        is_passed = re.fullmatch(programs.GOES_ON, start.shape if start.command_words else " ".join(start.words))
        is_whole = command.after in ("\n", ";", "&")  # else the rest may be in the next line
        return start.sure and is_whole and bool(is_passed) and not is_diverted

    def build_start(self, command: ShellCommand) -> Start:
        """Return the start of ``command``, with its words expanded.

        It is sure only if the script so far is one simple command after the other, and the command is not behind `&&`,
        `||` or a pipe. A command that starts no Python, such as `export`, is also not sure before one of these or `&`.
        """
        marks = list[str]()
        for word in command.words:
            mark = word.expanded(self.expand)
            is_single = re.fullmatch(r"\"?\$(\w+|[@*]|\{[^}]*\})\"?", word.raw)  # none or several words
            marks += mark.split() if is_single else [mark]
        start = Start(self.place(self.line), (*marks,), folders=self.folders)
        ends = ("\n", ";", "&", "|", "&&", "||") if start.program else ("\n", ";")
        start.sure = self.plain and command.before in ("\n", ";", "&") and command.after in ends
        return start

    def follow(self, command: ShellCommand, start: Start) -> None:
        """Read the files and texts that a command names, or note the folder that it changes to.

        ``start`` is the program that ``command`` starts. Commands and programs that are computed, or read from an
        input, are noted as hidden.
        """
        text = " ".join(start.command_words)
        if re.fullmatch(programs.COMPUTED, start.shape):
            self.hide(_RUN_TIME, " ".join(start.texts))
        is_fed = bool(re.match(r"\|(?!\|)", command.before)) or any(
            "<" in direction for direction, _ in command.redirects
        )
        if re.fullmatch(programs.READS_INPUT, text) or (is_fed and re.fullmatch(programs.PASSES_INPUT, text)):
            self.hide(_INPUT, text)
        elif re.fullmatch(programs.SHELL, start.name) and not re.match(r"\S+( -\w+)* -\w*c", text):
            options = rf"[-+].*|{programs.SHELL_OPTIONS}"
            script = next((word for word in start.command_words[1:] if not re.fullmatch(options, word)), "")
            self.read_file(script, plain=self.plain and not self.path and start.command_words[1:] == [script])
        if start.name in (".", "source"):
            self.read_file("".join(start.command_words[1:2]))
        elif start.name in ("cd", "pushd"):
            is_here = is_known(text) and self.folders
            self.folders = (self.folders[0] / "".join(start.command_words[1:2]), *self.folders) if is_here else ()
        elif not re.fullmatch(rf"{programs.HARMLESS}|{programs.CONTROL}", start.name):
            self.read_words(command, start)

    def read_words(self, command: ShellCommand, start: Start) -> None:
        """Read the code in the words of a command, and the files and modules that they name, into ``result``.

        The words are searched as Python code if the command starts a program that is no profiler, else as shell code.
        What Python or a launcher such as torchrun runs is noted as hidden if the words do not tell it.
        """
        is_python = start.program != "" and not re.fullmatch(programs.PROFILERS, start.name)
        for word in command.words:
            if is_python and re.search(r"\w\s", word.text):
                self.read_python(word.text, word.line)
            elif not is_python and re.search(r"[\s<;&|]", word.expanded(lambda _: "")):
                self.read_inner_shell(word.text, word.line)
        self.read_named_files(start)

    def read_named_files(self, start: Start) -> None:
        """Read the files and modules that the words of ``start`` name; note as hidden if they do not tell its code."""
        if "/" in start.name:
            self.read_file(start.name)
        pairs = [*pairwise(start.command_words if start.program else start.texts)]
        named_files = [match["file"] for pair in pairs if (match := re.fullmatch(programs.NAMED_FILE, " ".join(pair)))]
        python = [word for option, word in pairs if word.endswith(".py") or option in ("-m", "--module", "-c")]
        modules = [str(module) for word in python if (module := find(f"{word.replace('.', '/')}.py", self.folders))]
        for file in named_files + modules:
            self.read_file(file)
        if re.fullmatch(programs.RUNS_FILES, start.name) and not is_known(
            "".join(python) or " ".join(start.command_words)
        ):
            self.hide(_INPUT, " ".join(start.command_words))


def _elements(raw: str) -> list[Word]:
    """Return the words of an array literal, or of any other value the value itself."""
    return [word for command in split(raw[1:-1]) for word in command.words] if raw.startswith("(") else [Word(0, raw)]
