"""The texts of a launch: its environment, its command, its script and the files that these name, one level down.

Nothing is interpreted. A command at the outermost level of a script, which the script surely passes, is plain: what it
assigns is known to those behind it. What is assigned anywhere else, an array, and what a script gets as arguments are
only known to be among the texts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from patcher.guards.shell import SimpleCommand, Token, commands, pieces, tokens
from patcher.messages.errors import Kind, Problem
from patcher.store.filesystem.opened import reading

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for what only the run tells, and for what is one of the texts but not known to be which."""
COMMAND = "command after --"
ENVIRONMENT = "environment"

# Patterns are compiled where they are first used: most launches that `apply` looks at have no script.
_LEVELS = 2  # the script, and the files that it names
_LARGEST = 1 << 20  # of a file that is read for names, in bytes
_ASSIGNS = partial(re.match, r"(?a)[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_PARAMETER = r"(?s)\$\{?(\w+|[@*])(?:\[[@*]\])?(?::?([-+])(.*?))?\}?"
_MAY_BE_NONE = r"[^\"']*|\"\$(@|\{(@|\w+\[@\])\})\""  # the words that vanish where they are empty
_BRACES = r"\{[^{}]*,[^{}]*\}"
_HOME = r"\$\((cd (-- )?\"?\$\()?dirname (-- )?\"?\$(0|BASH_SOURCE|\{(0|BASH_SOURCE(\[0\])?)\})\"?\)(\"? .*&& pwd\))?"
_SETS_UP = (  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_SETS_UP_BY = r"(?s)[\"']?\$\((\S*/)?(conda|mamba|micromamba|pyenv|ssh-agent|resize)\b.*"
_FILE = (  # among the words of a program, behind the word before it; a name of a configuration is none
    r"(?!(\S* )?(--config-name|-cn)\b|\S* \S*://)\S* (?:--?[\w-]+=|(?!-))(?P<file>[^=\s]+\.(?:sh|bash|py|ya?ml|env|in))"
)
_SHELL = r"(ba|da|z|k)?sh"
_PASSES_ON = rf"{_SHELL}|set|export|declare|typeset|local|readonly|unset"  # whatever word it gets
_PROGRAM = r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed|vllm|sglang|msprof"
_WRAPS = partial(  # what may stand before the program, or behind these
    re.match,
    r"(.*/)?(nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env)$|-|[\d.,:-]+[smhd]?$|\w+=",
)
_NO_LAUNCH = (
    r"\[\[?|:|test|true|false|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|uv|git|wget|curl"
    r"|e?grep|sed|awk|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|wait|kill|pkill|tee|basename|dirname|realpath|hostname"
    r"|nvidia-smi|npu-smi|which|type|pwd|shopt|alias|trap|hf|huggingface-cli|jobs|seq|tr|cut|find|df|du|free|uname|apt(-get)?"
)
_CANNOT_FAIL = r":|true|echo|printf|set|shopt|export|declare|typeset|readonly|unset|trap|alias|ulimit|"
_FAILS = r"\s-\w*[eu]| errexit| nounset"  # then whatever fails ends the script
_ENDS = (  # or may never end, or changes what is known in a way that is not followed
    r"\A(\S*/)?((exit|return|kill|while|until|alias|set\s-\w*[akn]|set\s-o\s(allexport|noexec))\s|exec\s\S)"
    r"|\A(declare|typeset|export|unset)\s[-+]\w*[^-xgaA\s]|\AIFS=.*\n\Z|\$\{\w+:?[=?]"
    r"|sleep\sinf|tail\s(.|\n)*-[fF]|--block|\btrap\s(.|\n)*(DEBUG|ERR)"
)
_HIDES = (  # commands that start what stands elsewhere, or what comes from another command
    r"(?s)\0|make\b|just\b|docker.*\sup\b|(xargs|parallel)\s(.*\s)?(env|python|torchrun|\w*sh)\b|eval\s.*[\0\1]"
)
_JOINED = r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']"  # strings in Python
_PYTHON_HIDES = (
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]"
)


class LaunchText(NamedTuple):
    """A word of a command, as it is written without quotes and as it expands, or a line of a file.

    ``plain`` says that the launch surely passes there, at the outermost level, and starts Python or exports with it.
    """

    where: str
    text: str
    plain: bool = False


class Hidden(NamedTuple):
    """A place where a text may be that cannot be read."""

    where: str
    found: str
    reason: str


class Start(NamedTuple):
    """A program that is started: its words, and the variables that it gets, None for one that was unset.

    ``program`` is the name of Python or a launcher of it, or empty where the program is another one and may run
    somewhere else. ``sure`` says that the launch certainly passes by.
    """

    where: str
    words: tuple[str, ...]
    variables: Mapping[str, str | None]
    program: str
    sure: bool
    folders: tuple[Path, ...] = ()


class Launch(NamedTuple):
    """All that is known of a launch; modules of the ``packages`` are not read."""

    packages: tuple[str, ...]
    texts: list[LaunchText]
    starts: list[Start]
    hidden: list[Hidden]
    written: set[str]

    def place(self, text: str, default: str) -> str:
        """Where a text stands, the last time; ``default`` if it stands nowhere."""
        return next((one.where for one in reversed(self.texts) if text in one.text), default)


def read(
    environ: Mapping[str, str], script: Path | None, command: Sequence[str], packages: tuple[str, ...] = ()
) -> Launch:
    """The texts of a launch and what it starts. Raises Problem(USAGE) where a script that is named cannot be read."""
    launch = Launch(packages, [], [], [], set())
    started = [command] if command else []
    if script is not None:
        is_python = script.suffix == ".py" or re.match("#!.*python", text_of(script))
        started.insert(0, ("python" if is_python else "bash", str(script)))
    for words in started:
        _Shell(launch, environ).command(SimpleCommand((*(Token(shlex.quote(word), 1) for word in words),)))
    if not any(one.variables for one in launch.starts):  # what may be started gets the environment
        launch.starts.append(Start(ENVIRONMENT, ("",), {**environ}, "python", sure=True))
    return launch


def normal(text: str) -> str:
    """A text without quotes and backslashes, so that a name stands in it in one piece."""
    return re.sub(r"\\\n|[\"'\\]", "", text)


def name_of(word: str) -> str:
    """The name of a program without its folder."""
    return "[[" if word.startswith("[[") else word.rpartition("/")[2]


def is_hidden(word: str) -> bool:
    """Whether a word may name anything: its key is not known, or put together from pieces."""
    key = word.partition("=")[0]
    if re.match(r"[\0\1]+/", key):
        return False  # a path
    return OUTSIDE in key or (INSIDE in key and word != INSIDE)


def is_known(text: str) -> bool:
    """Whether nothing of a text is left to the run."""
    return OUTSIDE not in text and INSIDE not in text


def shown(text: object) -> str:
    """A text as a person may read it, with … for what is not known."""
    return re.sub("[\0\1]+", "…", str(text))


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """The file that a word names, in the first of some folders that has it."""
    with suppress(OSError, ValueError):  # ValueError for a mark
        return next((folder / word for folder in folders if is_known(word) and (folder / word).is_file()), None)
    return None


def text_of(path: Path) -> str:
    """The text of a file of the launch. Raises Problem(USAGE) where it cannot be read."""
    try:
        with reading(path) as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "give files that can be read, a shell or Python script for the launch script"
        raise Problem(Kind.USAGE, f"cannot read a file of the launch: {reason}", str(path), hint) from error


def _mark(*texts: str | None) -> str:
    """What stands for something that is made of some texts."""
    words = " ".join(text or "" for text in texts).split()
    return OUTSIDE if any(map(is_hidden, words)) else INSIDE if words else ""


class _Shell:
    """What is known at a place of a script."""

    def __init__(self, launch: Launch, environ: Mapping[str, str]) -> None:
        self.launch = launch
        self.variables: dict[str, str | None] = {**environ}
        self.functions: set[str] = set()
        self.args = ""  # what stands for each
        self.path: Path | None = None
        self.folders = [Path()]
        self.level, self.name, self.line = 0, "", 1
        self.sure, self.fails = True, False  # whether it surely gets here; whether what fails ends the script
        self.current = SimpleCommand(())

    # --- files ---

    def nested(self, text: str, *, path: Path | None = None, args: Iterable[str] = (), here: bool = False) -> None:
        """A text that another shell runs, or this one where it is ``here``: whether it gets there is not said."""
        shell = copy(self)
        shell.variables = self.variables if here else dict(self.variables)
        shell.level, shell.args = self.level + 1, _mark(*args)
        if path is not None:
            shell.path, shell.name, shell.line = path, shown(path), 1
            shell.folders = [*self.folders, *path.absolute().parents]
            shell.fails = self.fails or bool(re.search(_FAILS, text.partition("\n")[0]))
        try:
            for command in commands(text, shell.line):
                shell.command(command)
        except (ValueError, RecursionError):
            shell.lines(text, shell.line)
            self.hide("it cannot be split into commands", shell.name)
        self.sure = self.sure and (not here or bool(path and re.fullmatch(_SETS_UP, str(path))))

    def place(self, line: int = 0) -> str:
        return f"{self.name}:{line or self.line}" if self.name else COMMAND

    def lines(self, text: str, line: int = 1, *, plain: bool = False) -> None:
        """Keep the lines of a text."""
        found = enumerate(normal(text).splitlines(), line)
        self.launch.texts.extend(LaunchText(self.place(number), one, plain) for number, one in found)

    def hide(self, reason: str, found: str = "") -> None:
        self.launch.hidden.append(Hidden(self.place(), shown(found)[:200], reason))

    def file(self, word: str, args: Iterable[str] = (), *, here: bool = False) -> None:
        """A file that the launch names: a script, a program in Python, or settings."""
        path = find(word, self.folders)
        if path is None or name_of(word) in self.launch.written:
            if not re.fullmatch(_SETS_UP, word):
                self.hide("a file that it names is not here, or only known when it runs", word)
        elif self.level >= _LEVELS or path.stat().st_size > _LARGEST:
            self.hide("it is too large, or named by a file that the launch names", word)
        elif path.suffix in (".sh", ".bash", "") or re.match("#!.*sh", text_of(path)):
            self.nested(text_of(path), path=path, args=args, here=here)
        else:
            self.names(text_of(path), shown(path))

    def names(self, text: str, name: str, line: int = 1) -> None:
        """A program in Python, or settings: read for names only, also for those that stand in several strings."""
        inner = copy(self)
        inner.name = name
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        inner.lines(text, line)
        inner.lines(re.sub(_JOINED, "", text), line)
        if found := re.search(_PYTHON_HIDES, text):
            inner.line = text.count("\n", 0, found.start()) + line
            inner.hide("what it sets or runs there is only known when it runs", found[0])
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            inner.file(script)

    # --- words ---

    def expand(self, raw: str) -> str:
        """A word with what is known of its variables, and marks for the rest and where it becomes several words."""
        expanded = ""
        for piece, quoted in pieces(raw):
            if piece[0] in "$`" or (not quoted and piece.startswith(("<(", ">("))):
                value = self.value(piece)
                expanded += value if quoted or not re.search(r"\s", value) else _mark(value)
            elif piece[0] == "\\":
                expanded += piece[1:].strip("\n")
            elif quoted or piece == '"':
                expanded += piece.strip('"')
            elif piece[0] == "(":
                expanded += _mark(self.joined(piece[1:-1]))
            else:
                expanded += piece[1:-1] if piece[0] == "'" else re.sub(_BRACES, INSIDE, piece)
        return expanded

    def value(self, raw: str) -> str:
        """What an expansion stands for."""
        if raw in ("$(pwd)", "$PWD", "${PWD}"):
            return "."
        if self.path and re.fullmatch(_HOME, raw):
            return str(self.path.absolute().parent)
        found = re.fullmatch(_PARAMETER, raw)
        if not found:
            return {"$": raw}.get(raw, INSIDE if raw.startswith(("$((", "${#")) else OUTSIDE)
        name, operator, word = found.groups()
        value = self.variables.get(name)
        if name in "@*" or name.isdigit():
            value = self.args if self.current.outer else INSIDE  # of the script, or of a call
        if operator and bool(value) == (operator == "+"):
            return self.joined(word)
        return OUTSIDE if value is None and operator != "+" else value or ""

    def joined(self, text: str) -> str:
        """The words of an array, or of what counts where a variable is not set."""
        return " ".join(self.expand(one.text) for one in tokens(text) if one.kind == "word")

    # --- commands ---

    def assigned(self, text: str) -> tuple[str, str | None]:
        """The name and the value of ``NAME=value``, None behind ``NAME`` alone."""
        key, equals, value = text.partition("=")
        name = key.rstrip("+").partition("[")[0]
        value = value if name == key else _mark(value, self.variables.get(name))
        return name, value if equals else None

    def keep(self, name: str, value: str | None) -> None:
        self.variables[name] = value if self.stays else _mark(value, self.variables.get(name))

    def command(self, command: SimpleCommand) -> None:
        """Take in a command: what it assigns, what it names, and what it starts."""
        begin = (command.words + command.redirects)[0]
        if begin.kind == "define":
            self.functions.update(re.findall(r"[\w:.-]+", begin.text))
            return
        self.current, self.line = command, begin.line
        taken = [(word, self.expand(word.text)) for word in command.words]
        first = len([*takewhile(_ASSIGNS, (word.text for word in command.words))])
        words = [text for word, text in taken[first:] if text or not re.fullmatch(_MAY_BE_NONE, word.text)]
        name = name_of(words[0]) if words else ""
        self.sure = self.sure and name not in self.functions
        outermost = command.outer and self.level < _LEVELS
        self.passed, self.stays = outermost and self.sure, outermost and command.here
        assigned, plain = dict(self.assigned(text) for _, text in taken[:first]), False
        if words:
            plain = self.run(words, taken[-1][0].text, assigned) and not any(map(is_hidden, words))
        else:
            for variable, value in assigned.items():
                self.keep(variable, value)
        self.note(taken, plain=plain and self.passed)
        self.sure = self.sure and not self.may_end(name, taken)

    def may_end(self, name: str, taken: Sequence[tuple[Token, str]]) -> bool:
        """Whether the script may not get behind the command, or means something else there."""
        may_fail = not re.fullmatch(_CANNOT_FAIL, name) or not all(is_known(text) for _, text in taken)
        return (self.fails and may_fail) or bool(re.search(_ENDS, "".join(f"{word.text}\n" for word, _ in taken)))

    def note(self, taken: Iterable[tuple[Token, str]], *, plain: bool) -> None:
        """Keep the texts of a command, and which files it writes."""
        for word, text in taken:
            self.lines(text, word.line, plain=plain)
            if not plain or text == INSIDE:  # an array, or what stands in braces
                self.lines(word.text, word.line)
        for redirect in self.current.redirects:
            self.lines(redirect.text + redirect.document, redirect.line)
            if ">" in redirect.kind:
                self.launch.written.add(name_of(self.expand(redirect.text)))

    def run(self, words: Sequence[str], last: str, assigned: dict[str, str | None]) -> bool:
        """Take in the words of a command; whether it plainly exports a variable or starts Python here."""
        name, text = name_of(words[0]), " ".join(words)
        deciding = words if name in self.functions or re.fullmatch(_PASSES_ON, name) else words[:1]
        hides = re.match(_HIDES, text) or any(map(is_hidden, deciding))
        if hides and not re.match(_SETS_UP_BY, last):
            self.hide("what it starts or sets is only known when it runs", text)
        match name:
            case "export" | "declare" | "typeset" | "local" | "readonly" | "unset":
                return self.declare(name, words[1:])
            case "." | "source":
                self.file("".join(words[1:2]), words[2:] or [self.args], here=True)
            case "eval" if OUTSIDE not in text:
                self.nested(text[5:], here=True)
            case "set" | "shift":
                self.fails = self.fails or bool(re.search(_FAILS, text))
                self.args = self.args if re.match("set [-+][^-]", text) else INSIDE
            case "cd" if is_known(text):
                self.folders = [self.folders[0] / "".join(words[1:2]), *self.folders]
            case "for" | "select":
                self.keep("".join(words[1:2]), _mark(*words[3:]))
            case "read" | "mapfile" | "readarray" | "let" | "getopts" | "printf":
                self.variables.update((one.partition("=")[0], OUTSIDE) for one in words[1:])
            case _:
                return self.start(words, assigned)
        return False

    def declare(self, name: str, words: Sequence[str]) -> bool:
        """What ``export``, ``unset``, ``declare`` and the like do; whether they plainly set the environment."""
        options = "".join(word for word in words if word[:1] in ("-", "+"))
        for word in (word for word in words if word[:1] not in ("-", "+")):
            variable, value = self.assigned(word)
            self.sure = self.sure and is_known(variable)
            if value is not None or name == "unset":
                self.keep(variable, value)
        return (name in ("export", "unset") and not options) or bool(re.fullmatch("-[gaA]*x[gaA]*", options))

    def start(self, words: Sequence[str], assigned: dict[str, str | None]) -> bool:
        """Take in a program: the files and texts that it names, and how it is started."""
        before = [*takewhile(_WRAPS, words)]
        assigned.update(map(self.assigned, filter(_ASSIGNS, before)))  # behind `env`
        emptied = "env" in map(name_of, before) and any(word[:1] == "-" for word in before)
        own = words[len(before) :]
        program = name_of(own[0]) if own and not emptied else ""
        if re.fullmatch(_SHELL, program):
            outside, self.variables = self.variables, {**self.variables, **assigned}
            self.interpreted(own[1:])
            self.variables = outside
            return self.level == 0 and len(own) == 2  # what it gets is not followed
        program = program if re.fullmatch(_PROGRAM, program) else ""
        if not re.fullmatch(_NO_LAUNCH, name_of(words[0])):
            self.files(own if program else words, python=bool(program))
            assigned = {**self.variables, **assigned}
        start = Start(self.place(), (*words,), assigned, program, self.passed, (*self.folders,))
        self.launch.starts.append(start)
        return bool(program)

    def interpreted(self, words: Sequence[str]) -> None:
        """The words behind a shell: a text, or a script."""
        options = [*takewhile(lambda word: word[:1] in ("-", "+") or word in ("pipefail", "errexit"), words)]
        operands, flags = words[len(options) :], "".join(one for one in options if one[1:2] != "-")
        self.fails = self.fails or "e" in flags
        if "c" in flags:
            self.nested("".join(operands[:1]), args=operands[2:])
        elif operands and "s" not in flags:
            if self.level == 0 and not find(operands[0], self.folders):
                text_of(Path(operands[0]))  # what the user names is there
            self.file(operands[0], operands[1:])
        else:
            self.hide("what the shell reads is only known when it runs", " ".join(words))

    def files(self, words: Sequence[str], *, python: bool) -> None:
        """The texts, files and modules that the words of a program name."""
        if not python:
            self.level = max(self.level, 1)  # what it starts may be elsewhere
            if "/" in words[0] and not words[0].startswith(("/usr/", "/bin/", "/opt/")):
                self.file(words[0], words[1:])
        for text in (*words[1:], *(one.document for one in self.current.redirects)):
            if re.search(r"\w\s", text):
                self.names(text, self.name, self.line) if python else self.nested(text)
        for before, word in pairwise(words):
            if named := re.fullmatch(_FILE, f"{before} {word}"):
                self.file(named["file"])
            module = before in ("-m", "--module") and word.partition(".")[0] not in self.launch.packages
            if module and (found := find(f"{word.replace('.', '/')}.py", self.folders)):
                self.file(str(found))
