"""Reads the texts of a launch: environment, command, script, and the files that these name.

Nothing is interpreted. A script is plain as long as it is one simple command after the other: what these export and
start is known. Everything behind is only searched, for names and for what may hide a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import dropwhile, pairwise
from pathlib import Path
from posixpath import basename
from shlex import join
from typing import NamedTuple

from patcher.guards import programs
from patcher.guards.result import COMMAND, ENVIRONMENT, Launch
from patcher.guards.shell import ShellCommand, Word, normal, split
from patcher.guards.start import INSIDE, OUTSIDE, Start, assigns, is_hidden, is_known, shown
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading

_LONGEST = 2000  # of the value of a variable
_LARGEST = 1 << 17  # of a file that is read, in bytes
_UNKNOWN = Word(0, "$()")
_RUN_TIME = Text("the programs that this command starts, or the variables that it sets, are only known at run time")
_MISSING = Text(
    "the launch command or script names a file that was not found on this machine or is only known at run time"
)
_INPUT = Text("the standard input of this command is only known at run time")


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
    typed = [launch.command] if launch.command else []
    if launch.script is not None:
        is_python = launch.script.suffix == ".py" or re.match("#!.*python", text_of(launch.script))
        typed.insert(0, ("python" if is_python else "bash", str(launch.script)))
    for words in typed:
        _Reader(result).read_shell(join(words), 1)
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
    """Reader of a launch, which adds to ``result``; for texts inside there are copies, which share ``values``."""

    result: Reading
    values: dict[str, list[Word]] = field(default_factory=dict)  # that variables get anywhere in the launch
    constants: dict[str, str] = field(default_factory=dict)  # of variables that have surely got this value
    clear: dict[str, bool] = field(default_factory=dict)
    files: set[Path] = field(default_factory=set)  # that were read
    folders: tuple[Path, ...] = (Path(),)
    path: Path | None = None
    line: int = 1
    plain: bool = True
    ends_on_error: bool = False

    def place(self, line: int) -> str:
        return f"{self.path}:{line}" if self.path else COMMAND

    def note(self, text: str, line: int, *, plain: bool = False) -> None:
        lines = enumerate(normal(text).splitlines(), line)
        self.result.texts.extend(LaunchText(self.place(number), content, plain) for number, content in lines)

    def hide(self, reason: str, text: str, line: int = 0) -> None:
        self.result.hidden.append(LaunchText(self.place(line or self.line), shown(text)[:200], reason=reason))

    def read_shell(self, text: str, line: int) -> None:
        """Note what a shell text, which begins at line number ``line``, sets and starts, and what hides that.

        Text that cannot be split into commands is noted as hidden. Raises Problem (USAGE) if a file that it names
        cannot be read.
        """
        commands = list[ShellCommand]()
        try:
            for command in split(text, line):
                commands.append(command)
                self.note_assignments(command)
        except ValueError as error:
            self.hide_text(*error.args)
        try:
            for command in commands:
                self.read_command(command)
        except RecursionError:
            self.hide_text(line, text)

    def hide_text(self, line: int, text: str) -> None:
        """Note a shell text that begins at ``line`` and is not read further, and count it as hidden."""
        self.note(text, line)
        self.hide(
            Text(
                "rlpatch does not read this script from here on: the following lines cannot be parsed, or a"
                " here-document begins"
            ),
            text.partition("\n")[0],
            line,
        )

    def read_inner_shell(self, text: str, line: int) -> None:
        """Read the text of an expansion or of another shell; what it assigns to variables does not count outside."""
        replace(self, plain=False, constants={**self.constants}).read_shell(text, line)

    def read_file(self, word: str, *, plain: bool = False) -> None:
        """Read the file that ``word`` names in the launch's folders, once, as Python or as a shell script.

        With ``plain`` it surely runs, and has no arguments. A file that is missing, too large, or written by the launch
        itself is noted as hidden: what it holds is unknown. Missing ones that only set up the environment are not.
        Python files of upstream packages are skipped. Raises Problem (USAGE) if the file cannot be read.
        """
        path, is_written = find(word, self.folders), basename(word) in self.result.written
        if is_written or not (path or re.fullmatch(programs.SETS_UP, word)):
            self.hide(_MISSING, word)
        if is_written or not path:
            return
        file = path.resolve()
        if file in self.files or (file.suffix == ".py" and self.result.is_upstream(file)):
            return
        self.files.add(file)
        if file.stat().st_size > _LARGEST:
            self.hide(
                Text("the launch command or script names a file of more than 128 KiB, which rlpatch does not read"),
                word,
            )
            return
        text, folders = text_of(path), (*self.folders, *path.absolute().parents)
        reader = replace(self, path=path, plain=plain, folders=folders)
        is_shell = path.suffix in (".sh", ".bash", "") or re.match("#!.*sh", text)
        (reader.read_shell if is_shell else reader.read_python)(text, 1)

    def read_python(self, text: str, line: int) -> None:
        """Note Python code or settings as a text, and again with adjacent strings joined; read ``.sh`` files they name.

        What only the run of the code can tell is noted as hidden. Raises Problem (USAGE) if a file cannot be read.
        """
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        self.note(text, line)
        self.note(re.sub(programs.ADJACENT_STRINGS, "", text), line)
        if match := re.search(programs.PYTHON_HIDES, text):
            reason = Text("the programs that this code runs, or the variables that it sets, are only known at run time")
            self.hide(reason, match[0], text.count("\n", 0, match.start()) + line)
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.read_file(script)

    # --- words ---

    def note_assignments(self, command: ShellCommand) -> None:
        """Note the values that a command assigns and the files that it writes; whether it will run is not checked."""
        self.clear.clear()
        words = _stripped(command)
        texts = [word.text for word in dropwhile(lambda word: assigns(word.raw), words)]
        for word in words:
            if match := assigns(word.raw):
                value = Word(word.line, word.raw[match.end() :])
                is_glued = match[3] and not value.text.startswith(("(", " "))
                elements = [Word(word.line, ""), *_elements(value.raw)] if value.raw.startswith("(") else [value]
                self.values.setdefault(match[1], []).extend([_UNKNOWN] if is_glued else elements)
        if texts[:1] in (["for"], ["select"]):
            self.values.setdefault("".join(texts[1:2]), []).extend(words[3:])
        elif re.match(programs.SETS, " ".join(texts)):
            for text in texts[1:]:
                self.values.setdefault(text.partition("=")[0], []).append(_UNKNOWN)
        elif re.fullmatch(programs.WRITES, "".join(texts[:1])):
            self.result.written.update(map(basename, texts[1:]))
        self.result.written.update(basename(word.text) for direction, word in command.redirects if ">" in direction)

    def expand(self, raw: str) -> str:
        """Return the only text that a shell expansion can yield, else a placeholder.

        The placeholder is INSIDE if all texts that it can yield were read, otherwise OUTSIDE. As a run sets PYTHONPATH,
        ``${PYTHONPATH:+TEXT}`` yields TEXT, and any other expansion of it is returned as it is.
        """
        text = self.fixed_text(raw)
        if text is not None:
            return text
        match = re.fullmatch(programs.PARAMETER, raw)
        name, operator, operand = match.group(1, 3, 4) if match else ("", None, None)
        default = Word(self.line, operand or "")
        if name == "PYTHONPATH":
            return default.expanded(self.expand) if operator == "+" else raw
        values = [word.text for word in self.values.get(name, [])]
        constant = self.constants.get(name) if len(values) == 1 and operator != "+" else None
        if constant or (constant == "" and not operator):
            return constant
        is_default = operator == "-" and name not in self.result.environ and values in ([], [raw])
        text = default.expanded(self.expand) if is_default else OUTSIDE
        if is_known(text):
            return text
        return INSIDE if self.is_clear(raw) else OUTSIDE

    def fixed_text(self, raw: str) -> str | None:
        """Return the text of the shell expansion ``raw`` if it does not depend on variables, such as a script's folder.

        Else return None. Arguments of a script that is surely started without any are "".
        """
        if self.plain and re.fullmatch(r"\$\{?[1-9@*]\}?", raw):  # a script that was started without arguments
            return ""
        if self.path and re.fullmatch(programs.SCRIPT_FOLDER, raw):
            return str(self.path.absolute().parent)
        return next((text for pattern, text in programs.FIXED.items() if re.fullmatch(pattern, raw)), None)

    def expand_known(self, raw: str) -> str:
        """Return the only text that a shell expansion yields; the expansion as written if the text is not known."""
        text = self.expand(raw)
        return text if is_known(text) else raw

    def is_clear(self, raw: str) -> bool:
        """Tell whether all values of the shell expansion ``raw`` are known from the launch, and note these as texts."""
        if raw not in self.clear:
            self.clear[raw] = True  # where a variable refers to itself, its other values decide
            match = re.fullmatch(programs.PARAMETER, raw)
            is_array = raw.startswith("(")
            words = _elements(raw) if is_array else list[Word]()
            is_set = is_array or bool(re.fullmatch(programs.KNOWN_PARAMETER, raw))
            if match and not is_set:
                words = [*self.values.get(match[1], []), *_elements(f"({match[4] or ''})")]
                is_set = bool(words) or match[3] is not None
            for word in words:
                marked = word.expanded(self.expand)
                is_set = is_set and not any(map(is_hidden, marked.split()))
                if marked != word.text:
                    self.note(marked, self.line)
            self.clear[raw] = is_set
        return self.clear[raw]

    # --- commands ---

    def read_command(self, command: ShellCommand) -> None:
        """Record what a command sets and starts, read what it names, and note whether the script surely goes on.

        Raises Problem (USAGE) if a file cannot be read.
        """
        words = _stripped(command)
        sources = [*words, *(word for _, word in command.redirects)]
        self.line = min((word.line for word in sources), default=self.line)
        start = self.build_start(command, words)
        self.plain = start.sure and not start.is_emptied
        for word in sources:
            for text in word.commands():
                self.read_inner_shell(text, word.line)
        if not start.texts:
            self.add_constants(start)
        if start.words and not (start.texts and re.fullmatch(programs.HARMLESS, start.name)):
            self.result.starts.append(start)
        self.follow(command, start)
        is_typed_shell = not self.path and re.fullmatch(programs.SHELL, start.name)
        is_passed_on = start.sure and bool(start.is_export or start.program or is_typed_shell)
        for word in sources:
            self.note(word.expanded(self.expand_known), word.line, plain=is_passed_on and word in words)
        is_diverted = re.search(programs.DIVERTS, " ".join(word.raw for word in words))
        is_list = command.after in ("|", "&&", "||")  # the rest of which may be in the next line
        self.plain = start.sure and self.surely_goes_on(start) and not (is_diverted or is_list)

    def add_constants(self, start: Start) -> None:
        """Keep the values that a command without a program assigns to variables that are not in the environment."""
        for name, value in start.variables.items():
            if value is not None and is_known(value) and len(value) < _LONGEST and name not in self.result.environ:
                self.constants[name] = value

    def surely_goes_on(self, start: Start) -> bool:
        """Tell whether a script surely goes on after a command that does not change what its further lines do.

        Call it for the commands in order: `set -e` sets ``ends_on_error``, as the script then ends at the first error.
        """
        goes_on = programs.NEVER_FAILS if self.ends_on_error else programs.GOES_ON
        may_fail = self.ends_on_error and not all(map(is_known, start.words))
        self.ends_on_error = self.ends_on_error or bool(re.match(programs.ENDS_ON_ERROR, start.shape))
        is_edited = self.result.written & {*map(basename, start.own)} and not re.fullmatch(programs.WRITES, start.name)
        is_passed = not start.own or re.fullmatch(goes_on, start.shape)
        return bool(is_passed) and not (may_fail or is_edited or any(map(is_hidden, start.words)))

    def build_start(self, command: ShellCommand, words: Sequence[Word]) -> Start:
        """Return the start of ``command``, with its ``words`` expanded.

        It is sure only if the script so far is one simple command after the other, and the command is not behind `&&`,
        `||` or a pipe. A command that starts no Python, such as `export`, is also not sure before one of these or `&`.
        """
        marks = list[str]()
        for word in words:
            mark = word.expanded(self.expand)
            is_single = re.fullmatch(r"\"?\$(\w+|[@*]|\{[^}]*\})\"?", word.raw)  # none or several words
            marks += mark.split() if is_single else [mark]
        start = Start(self.place(self.line), (*marks,), folders=self.folders)
        ends = ("\n", ";", "&", "|", "&&", "||") if start.program else ("\n", ";")
        is_whole = len(words) == len(command.words) and command.after in ends
        start.sure = self.plain and is_whole and command.before in ("\n", ";", "&")
        return start

    def follow(self, command: ShellCommand, start: Start) -> None:
        """Read the files and texts that a command names, or note the folder that it changes to.

        ``start`` is the program that ``command`` starts. Commands and programs that are computed, or read from an
        input, are noted as hidden. Raises Problem (USAGE) if a file cannot be read.
        """
        text = " ".join(start.own)
        if re.fullmatch(programs.COMPUTED, start.shape):
            self.hide(_RUN_TIME, " ".join(start.texts))
        is_fed = command.before == "|" or any("<" in direction for direction, _ in command.redirects)
        if re.fullmatch(programs.READS_INPUT, text) or (is_fed and re.fullmatch(programs.PASSES_INPUT, text)):
            self.hide(_INPUT, text)
        elif re.fullmatch(programs.SHELL, start.name) and not re.match(r"\S+( -\w+)* -\w*c", text):
            options = rf"[-+].*|{programs.SHELL_OPTIONS}"
            script = next((word for word in start.own[1:] if not re.fullmatch(options, word)), "")
            self.read_file(script, plain=self.plain and not self.path and start.own[1:] == [script])
        if start.name in (".", "source"):
            self.read_file("".join(start.own[1:2]))
        elif start.name in ("cd", "pushd"):
            is_here = is_known(text) and self.folders
            self.folders = (self.folders[0] / "".join(start.own[1:2]), *self.folders) if is_here else ()
        elif not re.fullmatch(rf"{programs.HARMLESS}|{programs.CONTROL}", start.name):
            self.read_words(command, start)

    def read_words(self, command: ShellCommand, start: Start) -> None:
        """Read the code in the words of a command, and the files and modules that they name, into ``result``.

        The words are searched as Python code if the command starts a program that is no profiler, else as shell code.
        What Python or a launcher such as torchrun runs is noted as hidden if the words do not tell it. Raises Problem
        (USAGE) if a file cannot be read.
        """
        self.read_code(command, is_python=start.program != "" and not re.fullmatch(programs.PROFILERS, start.name))
        if "/" in start.name:
            self.read_file(start.name)
        pairs = [*pairwise(start.own if start.program else start.texts)]
        named = [match["file"] for pair in pairs if (match := re.fullmatch(programs.NAMED_FILE, " ".join(pair)))]
        python = [word for option, word in pairs if word.endswith(".py") or option in ("-m", "--module", "-c")]
        modules = [str(module) for word in python if (module := find(f"{word.replace('.', '/')}.py", self.folders))]
        for file in named + modules:
            self.read_file(file)
        if re.fullmatch(programs.RUNS_FILES, start.name) and not is_known("".join(python) or " ".join(start.own)):
            self.hide(_INPUT, " ".join(start.own))

    def read_code(self, command: ShellCommand, *, is_python: bool) -> None:
        """Read the words of a command that look like code, and record what this sets, starts or hides.

        The code is Python with ``is_python``, otherwise a shell's. Raises Problem (USAGE) if a file that it names
        cannot be read.
        """
        for source in command.words:
            if is_python and re.search(r"\w\s", source.text):
                self.read_python(source.text, source.line)
            elif not is_python and re.search(r"[\s<;&|]", source.expanded(lambda _: "")):
                self.read_inner_shell(source.text, source.line)


def _stripped(command: ShellCommand) -> list[Word]:
    """Return the words of a command after leading shell keywords such as ``then``."""
    return [*dropwhile(lambda word: word.raw in programs.KEYWORDS, command.words)]


def _elements(raw: str) -> list[Word]:
    """Return the words of the array literal ``raw``; one that is not known if it cannot be split."""
    with suppress(ValueError):
        return [word for command in split(raw[1:-1]) for word in command.words]
    return [_UNKNOWN]
