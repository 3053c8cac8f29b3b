"""Reads the texts of a launch: environment, command, script, and the files that these name, one level down.

Nothing is interpreted. A script is plain as long as it is one simple command after the other: what these export and
start is known. Everything behind is only searched, for names and for what may hide a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from patcher.guards.result import Hidden, Launch
from patcher.guards.shell import ShellCommand, Word, split
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for an expansion: of what only the run tells, and of whole names that stand among the texts."""
COMMAND = Text("command after --")
ENVIRONMENT = Text("environment")


def within_sentence(where: str) -> str:
    """Return the name of a place as it stands in a sentence."""
    return Text("the command after --") if where == COMMAND else where


_LEVELS = 2  # the script, and the files that it names
_NESTED = 8  # texts for a shell in texts for a shell …
_LONGEST = 2000  # of the value of a variable
_LARGEST = 1 << 17  # of a file that is read, in bytes
_NONE = ShellCommand((), (), "", "")
_KEYWORDS = ("if", "then", "elif", "else", "do", "while", "until", "!", "time", "-p", "{", "coproc")
_DECLARES = ("export", "declare", "typeset", "local", "readonly", "unset")
_SETS = ("read", "mapfile", "readarray", "getopts", "let", "unset")
_PASSES_ON = ("set", "trap", INSIDE, *_DECLARES, *_SETS)  # to what a script starts or sets, whatever word they get
_ASSIGNS = partial(re.match, r"(?a)([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_UNKNOWN = Word(0, OUTSIDE, [])
_SAFE = (  # arguments, numbers, paths
    r"(?s)\$[0-9@*#?$!-]|\$\{([0-9]+|[@*](:\d+)*|#[^}]*)\}|\$\(\(.*\)\)|\$\{?(PWD|HOME|USER|HOSTNAME|RANDOM)\}?"
)
_PARAMETER = r"(?s)\$\{?(\w+)(\[[^\]]*\])?(?::?([-+=?])(.*?))?\}?"
_FOLDER = (  # of the script
    r"\$\((cd (-- )?\"?\$\()?dirname (-- )?\"?\$(0|BASH_SOURCE|\{(0|BASH_SOURCE(\[0\])?)\})\"?\)(\"? .*&& pwd\))?"
)
_SETS_UP = (  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_SETS_UP_BY = r"(?s)\$\((\S*/)?(conda|mamba|micromamba|pyenv|ssh-agent|resize)\b.*"
_FILE = (  # among the words of a program, behind the word before it; a name of a configuration is none
    r"(?!(\S* )?(--config-name|-cn)\b|\S* \S*://)\S* (?:--?[\w-]+=|(?!-))(?P<file>[^=\s]+\.(?:sh|bash|py|ya?ml|env|in))"
)
_SHELL = r"(ba|da|z|k)?sh"
_PROGRAM = r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed|vllm|sglang|msprof"
_WRAPS = partial(  # what may stand before the program, or behind these
    re.match,
    r"(.*/)?(nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env)$|-|[\d.,:-]+[smhd]?$|\w+=",
)
_HARMLESS = (
    r"|:|\[|test|true|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|git|e?grep|sed|awk"
    r"|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|tee|basename|dirname|realpath|hostname|nvidia-smi|npu-smi|which|type|pwd"
    r"|seq|tr|cut|find|df|du|free|uname|apt(-get)?|hf|huggingface-cli|ps|#\w+"
)
_ASKS = r"curl|wget"
_PASSED = rf"{_HARMLESS}|{_PROGRAM}|{_ASKS}|{_SHELL}|{'|'.join(_DECLARES)}|set|ray|nohup|env"  # and go on behind them
_WRITES = r"cp|mv|ln|sed|tee|wget|curl|tar|unzip|git|install|rsync|envsubst|patch"
_FED = (  # they start what they are fed with, unless that is harmless
    r"(?s)((xargs|parallel|find .* -(exec|ok)(dir)?)"
    r"(?!( (-\S+|\d+|\{\S*\}))*( (echo|printf|rm|kill|ls|cat|mkdir|grep|wc)\b|$))|make|just|docker.* up)\b.*"
)
_RUNS_INPUT = rf"(?s)(ssh|pdsh) .*|[\0\1]|(.*[\s/])?{_SHELL}( -s.*| -)?"
_FAILS = r"\s-\w*[eu]|\s(errexit|nounset)\b"  # then whatever fails ends the script
_DIVERTS = (  # an option of `set`, an attribute, a value that is assigned where it is used; or what may never end
    r"^set .*([-+]\w*[akn]|allexport|noexec)|^(declare|typeset|export|unset) ([-+]\w*[^xgaAv\s]|\+)|\$\{\w+:?[=?]|^IFS="
    r"|^sleep inf|^tail .*-[fF]|--block"
)
_JOINED = r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']"  # strings in Python
_PYTHON_HIDES = (
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]|\bsubprocess\.\w+\(|\bos\.(system|popen|exec\w+|spawn\w+)\("
)
_NOT_HERE = Text("a file that it names is not here, or only known when it runs")
_INPUT = Text("what it reads as its input is only known when it runs")
_ONLY_RUN = Text("what it starts or sets is only known when it runs")


class LaunchText(NamedTuple):
    """A word of a command, or a line of a file, without quotes.

    ``plain`` says that the launch surely passes there, and exports or starts Python with it.
    """

    where: str
    text: str
    plain: bool = False


class Start(NamedTuple):
    """A command: its words, and the variables that it gets, None for one that was unset.

    ``program`` is the name of Python or a launcher of it, or empty where the program is another one and may run
    somewhere else. ``sure`` says that the launch certainly passes by.
    """

    where: str
    words: tuple[str, ...]
    variables: Mapping[str, str | None]
    program: str
    sure: bool
    folders: tuple[Path, ...] = ()


@dataclass
class Reading:
    """All that was read of a launch; modules of the ``packages`` are not read."""

    packages: tuple[str, ...] = ()
    texts: list[LaunchText] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)

    def place(self, text: str, default: str) -> str:
        """Return where a text stands, the last time; ``default`` if it stands nowhere."""
        return next((line.where for line in reversed(self.texts) if text in line.text), default)


def read(launch: Launch, packages: tuple[str, ...] = ()) -> Reading:
    """Return the texts of a launch and what it starts. Raises Problem(USAGE) where a named script cannot be read."""
    result = Reading(packages)
    typed = [launch.command] if launch.command else []
    if launch.script is not None:
        is_python = launch.script.suffix == ".py" or re.match("#!.*python", text_of(launch.script))
        typed.insert(0, ("python" if is_python else "bash", str(launch.script)))
    for words in typed:
        reader = _Reader(result, launch.environ)
        reader.command(ShellCommand(tuple(Word(1, word.replace("\0", ""), []) for word in words), (), "\n", "\n"))
    if not any(start.variables for start in result.starts):  # what may be started gets the environment
        result.starts.append(Start(ENVIRONMENT, ("",), {**launch.environ}, "python", sure=True))
    return result


def normal(text: str) -> str:
    """Return a text without quotes and backslashes, so that a name stands in it in one piece."""
    return re.sub(r"\\\n|[\"'\\]", "", text)


def name_of(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]


def is_hidden(word: str) -> bool:
    """Return whether a word may name anything: its key is not known, or put together from pieces."""
    key = word.partition("=")[0].strip("[]'\",")
    if re.match(r"[\0\1]+/", key):
        return False  # a path
    return OUTSIDE in key or (INSIDE in key and key != INSIDE)


def is_known(text: str) -> bool:
    """Return whether nothing of a text is left to the run."""
    return OUTSIDE not in text and INSIDE not in text


def shown(text: object) -> str:
    """Return a text as a person may read it, with … for what is not known."""
    return re.sub("[\0\1]+", "…", str(text))


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """Return the file that a word names, in the first of some folders that has it."""
    with suppress(OSError, ValueError):  # ValueError for a mark
        return next((folder / word for folder in folders if is_known(word) and (folder / word).is_file()), None)
    return None


def text_of(path: Path) -> str:
    """Return the text of a file of the launch. Raises Problem(USAGE) where it cannot be read."""
    try:
        with reading(path) as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = Text("give files that can be read, a shell or Python script for the launch script")
        raise Problem(
            Kind.USAGE, Text("cannot read a file of the launch: {reason}", reason), str(path), hint
        ) from error


class _Reader:
    """What is known at a place of a launch. Copies for the files that it names share what all of them assign."""

    def __init__(self, result: Reading, environ: Mapping[str, str]) -> None:
        self.result = result
        self.environ = environ
        self.variables: dict[str, str | None] = {**environ}
        self.values: dict[str, list[Word]] = {}
        self.constants: dict[str, str] = {}  # of variables that no other command assigns
        self.passed = set[str]()  # those of them that the launch surely assigned
        self.cleared: dict[str, bool] = {}
        self.functions = set[str]()
        self.written = set[str]()
        self.documents: dict[str, str] = {}  # of the files that here-documents are written to
        self.files = set[str]()  # that were read
        self.folders = [Path()]
        self.path: Path | None = None
        self.name, self.line, self.level, self.nested = "", 1, 0, 0
        self.plain, self.fails, self.has_arguments = True, False, False

    def place(self, line: int = 0) -> str:
        return f"{self.name}:{line or self.line}" if self.name else COMMAND

    def note(self, text: str, line: int, *, plain: bool = False) -> None:
        """Keep the lines of a text."""
        lines = enumerate(normal(text).splitlines(), line)
        self.result.texts.extend(LaunchText(self.place(number), content, plain) for number, content in lines)

    def hide(self, reason: str, found: str) -> None:
        self.result.hidden.append(Hidden(self.place(), shown(found)[:200], reason))

    # --- files ---

    def script(self, text: str, line: int = 1, *, is_shell: bool = True) -> None:
        """Read a script; what cannot be split is no script, unless it ``is_shell`` for certain."""
        try:
            commands = split(text, line)
            for command in commands:
                self.learn(command)
            for command, following in pairwise((*commands, _NONE)):
                self.command(command, following)
        except (ValueError, RecursionError):
            self.note(text, line)
            if is_shell:
                self.hide(Text("it cannot be split into commands"), self.name)

    def inner(self, text: str, line: int, *, is_shell: bool = True) -> None:
        """Read what an expansion or another shell runs: nothing of it is plain."""
        reader = copy(self)
        reader.plain, reader.nested = False, self.nested + 1
        if reader.nested > _NESTED:
            self.hide(Text("it stands in too many quotes and expansions"), text)
        else:
            reader.script(text, line, is_shell=is_shell)

    def file(self, word: str, *, plain: bool = False, has_arguments: bool = True) -> None:
        """Read a file that the launch names: a script, a program in Python, or settings."""
        path, document = find(word, self.folders), self.documents.get(word)
        is_written = name_of(word) in self.written
        if is_written or (path is None and document is None):
            if is_written or not re.fullmatch(_SETS_UP, word):
                self.hide(_NOT_HERE, word)
        elif self.level >= _LEVELS or (path and path.stat().st_size > _LARGEST):
            self.hide(Text("it is too large, or named by a file that the launch names"), word)
        elif plain or word not in self.files:
            self.files.add(word)
            text = text_of(path) if path and document is None else document or ""
            reader = copy(self)
            reader.name, reader.line, reader.level = shown(path or word), 1, self.level + 1
            if Path(word).suffix in (".sh", ".bash", "") or re.match("#!.*sh", text):
                reader.path, reader.plain, reader.has_arguments = path, plain, has_arguments
                reader.variables = dict(self.variables)
                reader.folders = [*self.folders, *Path(path or word).absolute().parents]
                reader.fails = self.fails or bool(re.search(_FAILS, text.partition("\n")[0]))
                reader.script(text)
            else:
                reader.python(text, 1)

    def python(self, text: str, line: int) -> None:
        """Search a program in Python, or settings, for names: also for those that stand in several strings."""
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        self.note(text, line)
        self.note(re.sub(_JOINED, "", text), line)
        if match := re.search(_PYTHON_HIDES, text):
            self.line = text.count("\n", 0, match.start()) + line
            self.hide(Text("what it sets or runs there is only known when it runs"), match[0])
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.file(script)

    # --- words ---

    def learn(self, command: ShellCommand) -> None:
        """Take in what a command assigns, defines and writes, wherever it stands."""
        self.cleared.clear()
        texts = [word.text for word in _stripped(command)]
        name = next((text for text in texts if not _ASSIGNS(text)), "")
        for word in command.words:
            if match := _ASSIGNS(word.coded):
                value = Word(word.line, word.coded[match.end() :], word.expansions)
                is_glued = match[3] and not value.text.startswith(("(", " "))
                self.values.setdefault(match[1], []).append(_UNKNOWN if is_glued else value)
        if name in ("for", "select"):
            self.values.setdefault("".join(texts[1:2]), []).extend(_stripped(command)[3:])
        elif name in _SETS or texts[:2] == ["printf", "-v"]:
            for text in texts[1:]:
                self.values.setdefault(text.partition("=")[0], []).append(_UNKNOWN)
        elif name == "function" or command.after == "()":
            self.functions.update(texts)
        elif re.fullmatch(_WRITES, name):
            self.written.update(map(name_of, texts[1:]))
        self.learn_redirects(command, name)

    def learn_redirects(self, command: ShellCommand, name: str) -> None:
        """Take in the files that a command writes by redirection, with the here-documents that ``cat`` writes."""
        document = "".join(word.text for direction, word in command.redirects if direction == "<<<")
        for direction, word in command.redirects:
            if direction == ">" and name == "cat" and document:
                self.documents[word.text] = document
            elif ">" in direction:
                self.written.add(name_of(word.text))

    def value(self, raw: str) -> str:
        """Return what an expansion comes to: the text where only one is possible, or a mark.

        Behind the plain part of a script, a variable with one value may also be empty.
        """
        if re.fullmatch(r"\$\{?[1-9@*]\}?", raw) and self.plain and not self.has_arguments:
            return ""
        if self.path and re.fullmatch(_FOLDER, raw):
            return str(self.path.absolute().parent)
        if raw in ("$(pwd)", "$PWD", "${PWD}"):
            return "."
        if raw.startswith(("[[", "((")):
            return ":"
        if raw.startswith(("$PYTHONPATH", "${PYTHONPATH")):
            return raw  # what a run adds to it is kept
        if match := re.fullmatch(_PARAMETER, raw):
            name, values = match[1], self.values.get(match[1], [])
            if len(values) == 1 and name in (self.passed if self.plain else self.constants):
                return self.constants[name]
            if match[3] == "-" and name not in self.environ and [word.text for word in values] in ([], [raw]):
                default = " ".join(word.marked(self.value) for word in _words(match[4]))
                if is_known(default):
                    return default
        return INSIDE if self.is_clear(raw) else OUTSIDE

    def split_mark(self, word: Word) -> list[str]:
        """Return a word as it expands: one that is an expansion comes to no word, or several."""
        mark = word.marked(self.value)
        return mark.split() if re.fullmatch("\0\\d+\0", word.coded) else [mark]

    def is_clear(self, raw: str) -> bool:
        """Return whether an expansion comes to whole names that stand among the texts."""
        if raw not in self.cleared:
            self.cleared[raw] = True  # where a variable refers to itself, its other values decide
            match = re.fullmatch(_PARAMETER, raw)
            is_set, words = bool(re.fullmatch(_SAFE, raw)), list[Word]()
            if raw.startswith("("):
                is_set, words = True, [*_words(raw[1:-1])]
            elif match and not is_set:
                values = self.values.get(match[1], [])
                is_set, words = bool(values) or match[3] is not None, [*values, *_words(match[4] or "")]
            for word in words:
                marked = word.marked(self.value)
                is_set = is_set and not any(map(is_hidden, marked.split()))
                if marked != word.text:
                    self.note(marked, self.line)
            self.cleared[raw] = is_set
        return self.cleared[raw]

    # --- commands ---

    def command(self, command: ShellCommand, following: ShellCommand = _NONE) -> None:
        """Take in a command: what it sets, what it starts, and the files that it names."""
        words, was_plain = _stripped(command), self.plain
        sources = [*words, *(word for _, word in command.redirects)]
        self.line = min((word.line for word in sources), default=self.line)
        is_tee = command.before == "|" and [word.text for word in words[:1]] == ["tee"]
        self.plain &= len(words) == len(command.words) and _stands_alone(command, following)
        stays = self.plain and command.after not in ("&", "|")
        assigned = [*takewhile(lambda word: _ASSIGNS(word.coded), words)]
        values = dict(word.marked(self.value).split("=", 1) for word in assigned)
        marks = [mark for word in words[len(assigned) :] for mark in self.split_mark(word)]
        name = name_of(marks[0]) if marks else ""
        self.expansions(sources)
        if values:
            self.result.starts.append(Start(self.place(), tuple(map("=".join, values.items())), {}, "", self.plain))
        if not marks:
            self.assign(values, stays=stays)
        is_plain = self.run(name, marks, values, command, stays=stays) and self.plain if marks else False
        for word in sources:
            self.note_word(word, plain=is_plain, is_operand=word in words)
        self.plain = was_plain and (is_tee or (self.plain and not self.diverts(name, marks, words)))

    def expansions(self, words: Iterable[Word]) -> None:
        """Read the commands that stand in words."""
        for word in words:
            for text in word.commands():
                self.inner(text, word.line)

    def assign(self, values: Mapping[str, str], *, stays: bool) -> None:
        """Take in the constants that a command assigns; they ``stay`` behind a plain one."""
        for variable, value in values.items():
            if is_known(value) and len(value) < _LONGEST and variable not in self.environ:
                self.constants[variable] = value
                self.passed.update([variable] if stays else [])

    def note_word(self, word: Word, *, plain: bool, is_operand: bool) -> None:
        """Keep a word as it expands and as it stands there; of a ``plain`` command, the mark says the name."""
        mark = word.marked(self.value)
        self.note(mark, word.line, plain=plain and is_operand)
        if mark != word.text:
            self.note(word.text.partition("=")[2] if plain and "=" in mark else word.text, word.line)

    def diverts(self, name: str, marks: Sequence[str], words: Sequence[Word]) -> bool:
        """Return whether the script may not get behind a command, or means something else from there on."""
        text = " ".join(word.text for word in words)
        is_all_known = all(is_known(word.marked(self.value)) for word in words)
        if self.fails and (name not in ("", ":", "echo", "set", *_DECLARES) or not is_all_known):
            return True
        passes: object = re.fullmatch(_PASSED, name) or marks == ["exec"]
        if name in (".", "source"):
            passes = re.fullmatch(_SETS_UP, marks[-1]) and name_of(marks[-1]) not in self.written
        changes = name in self.functions or any(map(is_hidden, marks)) or re.search(_DIVERTS, text)
        return not passes or bool(changes)

    def run(self, name: str, marks: list[str], values: dict[str, str], command: ShellCommand, *, stays: bool) -> bool:
        """Take in the words of a command; return whether it exports a variable or starts Python."""
        text, own = " ".join(marks), [*marks[len([*takewhile(_WRAPS, marks)]) :]]
        if self.is_computed(name, marks, own, command) and not re.fullmatch(_SETS_UP_BY, command.words[-1].text):
            self.hide(_ONLY_RUN, text)
        if name in _DECLARES:
            return self.declare(name, marks, stays=stays)
        if name in (".", "source"):
            self.file("".join(marks[1:2]))
        elif name == "eval":
            self.inner(" ".join(word.text for word in command.words[1:]), self.line)
        elif name in ("set", "shift"):
            self.fails = self.fails or bool(re.search(_FAILS, text))
            self.has_arguments |= not re.match("set [-+][^-]", text)
        elif name in ("cd", "pushd"):
            is_found = is_known(text) and bool(self.folders)
            self.folders = [self.folders[0] / "".join(marks[1:2]), *self.folders] if is_found else []
        elif not re.fullmatch(_HARMLESS, name):
            return self.start(marks, own, values, command)
        return False

    def is_computed(self, name: str, marks: Sequence[str], own: Sequence[str], command: ShellCommand) -> bool:
        """Return whether only the run knows what a command starts or sets."""
        text = " ".join(marks)
        if name == "eval" and any("\0" in word.coded for word in command.words):
            return True
        if name in ("trap", "alias") and OUTSIDE in text:
            return True
        passes_on = name in self.functions or name in _PASSES_ON or re.fullmatch(_SHELL, name)
        deciding = marks if passes_on else marks[: len(marks) - len(own) + 1]
        is_fed = re.fullmatch(_FED, " ".join(own)) is not None
        return is_fed or "BASH_ENV" in text or any(map(is_hidden, deciding))

    def declare(self, name: str, marks: Sequence[str], *, stays: bool) -> bool:
        """Take in the variables that a command declares; return whether it exports them."""
        options = "".join(word for word in marks[1:] if word[:1] in ("-", "+"))
        exports = bool(re.fullmatch("(export|unset) (-v)?|[dlrt]\\w* -[gaA]*x[gaA]*", f"{name} {options}"))
        for variable, equals, value in (word.partition("=") for word in marks[1:] if exports and stays):
            if equals or name == "unset":
                self.variables[variable] = value if equals else None
        self.result.starts.append(Start(self.place(), (*marks,), {}, "", self.plain))
        return exports

    def start(self, marks: list[str], own: list[str], values: dict[str, str], command: ShellCommand) -> bool:
        """Take in a program: how it is started, and the files and texts that it names."""
        set_before, is_emptied = _environment_of(marks[: len(marks) - len(own)])
        values = {**values, **set_before}
        name = name_of(own[0]) if own and not is_emptied else ""
        documents = [word for direction, word in command.redirects if direction == "<<<"]
        is_fed = command.before == "|" or any(direction in ("<", "<>") for direction, _ in command.redirects)
        is_shell = re.fullmatch(_SHELL, name) is not None
        if re.fullmatch(_RUNS_INPUT, " ".join(own)):
            self.input(documents, " ".join(marks), is_hidden=is_fed or (is_shell and not documents))
        elif is_shell and not re.match(r"\S+( -\w+)* -\w*c", " ".join(own)):
            return self.shell(own[1:], values)
        program = name if re.fullmatch(_PROGRAM, name) else ""
        variables = {} if re.fullmatch(_ASKS, name) else {**self.variables, **values}
        self.result.starts.append(Start(self.place(), (*marks,), variables, program, self.plain, (*self.folders,)))
        if "/" in marks[0] and not program and not marks[0].startswith(("/usr/", "/bin/", "/opt/")):
            self.file(marks[0])
        self.programs(command, is_python=bool(program), is_shell=is_shell)
        if re.match("python|pypy|torchrun|accelerate|deepspeed", program):
            self.module(own, documents)
        self.named_files(own if program else marks)
        return bool(program)

    def named_files(self, words: Sequence[str]) -> None:
        """Read the files that the words of a program name."""
        for option, word in pairwise(words):
            if file := re.fullmatch(_FILE, f"{option} {word}"):
                self.file(file["file"])

    def input(self, documents: Sequence[Word], text: str, *, is_hidden: bool) -> None:
        """Read the here-documents that a shell runs; what else it reads may be hidden."""
        for document in documents:
            self.inner(document.text.replace("\\$", "$"), document.line)
        if is_hidden:
            self.hide(_INPUT, text)

    def programs(self, command: ShellCommand, *, is_python: bool, is_shell: bool) -> None:
        """Read the words of a command that are programs themselves, in Python or for a shell."""
        for word in command.words:
            if is_python and re.search(r"\w\s", word.coded):
                copy(self).python(word.text, word.line)
            elif not is_python and re.search(r"[\s<;&|]", word.coded):
                self.inner(word.text, word.line, is_shell=is_shell)

    def module(self, words: Sequence[str], documents: Sequence[Word]) -> None:
        """Read the module that Python runs, or its input."""
        named = [mark for option, mark in pairwise(words) if option in ("-m", "--module", "-c") or mark.endswith(".py")]
        if words[1:] in ([], ["-"]):
            for document in documents:
                copy(self).python(document.text, document.line)
        if (not named and not documents and words[1:] in ([], ["-"])) or not is_known("".join(named or words)):
            self.hide(_INPUT, " ".join(words))
        for mark in named:
            path = find(f"{mark.replace('.', '/')}.py", self.folders)
            if path and mark.partition(".")[0] not in self.result.packages:
                self.file(str(path))

    def shell(self, words: Sequence[str], values: dict[str, str]) -> bool:
        """Read the script that a shell runs; return whether it is plain."""
        options = [*takewhile(lambda word: word[:1] in ("-", "+") or word in ("pipefail", "errexit"), words)]
        operands, flags = words[len(options) :], "".join(word for word in options if word[1:2] != "-")
        if self.level + self.nested == 0 and not find("".join(operands[:1]), self.folders):
            text_of(Path("".join(operands[:1])))  # what the user names is there
        reader = copy(self)
        reader.variables, reader.fails = {**self.variables, **values}, "e" in flags
        is_plain = self.plain and self.level == 0
        reader.file("".join(operands[:1]), plain=is_plain, has_arguments=len(operands) > 1)
        return is_plain and len(words) == 1


def _stands_alone(command: ShellCommand, following: ShellCommand) -> bool:
    """Return whether a command is no part of a list or a pipe, but for a ``tee`` behind it."""
    goes_on = command.after in ("\n", ";", "&") or [word.text for word in following.words[:1]] == ["tee"]
    return command.before in ("\n", ";", "&") and goes_on


def _environment_of(words: Sequence[str]) -> tuple[dict[str, str], bool]:
    """Return the variables that the words before a program set, and whether they may empty its environment."""
    values = dict(word.split("=", 1) for word in words if _ASSIGNS(word))
    is_emptied = {"env", "exec"} & set(map(name_of, words)) and any(word[:1] == "-" for word in words)
    return values, bool(is_emptied)


def _stripped(command: ShellCommand) -> list[Word]:
    """Return the words of a command behind the keywords before it."""
    words = [*command.words]
    while words and words[0].coded in _KEYWORDS:
        words.pop(0)
    return words


def _words(text: str) -> Iterator[Word]:
    """Yield the words of an array, or of what counts where a variable is not set. Raises ValueError."""
    return (word for command in split(text) for word in command.words)
