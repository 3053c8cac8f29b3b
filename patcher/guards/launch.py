"""The texts of a launch: its environment, its command, its script and the files that these name, one level down.

Nothing is interpreted. A command at the outermost level of a script, which the script surely passes, is plain: what it
assigns is known to those behind it. What is assigned anywhere else is only known to be one of the texts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from patcher.guards.shell import SimpleCommand, Token, commands, skipped, tokens
from patcher.messages.errors import Kind, Problem

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for what only the run tells, and for what is one of the texts but not known to be which."""
COMMAND = "command after --"
ENVIRONMENT = "environment"

_LEVELS = 2  # the script, and the files that it names
_LARGEST = 1 << 20  # of a file that is read for names, in bytes
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_PARAMETER = re.compile(r"\$\{?(\w+|[@*])(?:\[[@*]\])?(?:(:?)([-=?])(.*?))?\}?", re.DOTALL)
_SEVERAL = re.compile(r"(\"\$\{?(?:@|\w+\[@\])\}?\")|\$\{?(?:@|\w+(?:\[@\])?)\}?")
_HOME = re.compile(
    r"\$\((cd (-- )?\"?\$\()?dirname (-- )?\"?\$(0|BASH_SOURCE|\{(0|BASH_SOURCE(\[0\])?)\})\"?\)(\"? .*&& pwd\))?"
)
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB|\$)\s.*", re.MULTILINE)
_SETS_UP = re.compile(  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_SETS_UP_BY = re.compile(r"[\"']?\$\((\S*/)?(conda|mamba|micromamba|pyenv|ssh-agent|resize)\b.*", re.DOTALL)
_FILE = re.compile(  # among the words of a program, behind the word before it; a name of a configuration is none
    r"(?!(\S* )?(--config-name|-cn)\b|\S* \S*://)\S* (?:--?[\w-]+=|(?!-))(?P<file>[^=\s]+\.(?:sh|bash|py|ya?ml|env|in))"
)
_SHELL = re.compile(r"(ba|da|z|k)?sh")
_PROGRAM = re.compile(r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed|vllm|sglang|msprof")
_WRAPPER = re.compile(  # what may stand before the program, or behind these
    r"(.*/)?(nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env)$|-|[\d.,:-]+[smhd]?$|\w+="
)
_NO_LAUNCH = re.compile(
    r"\[\[?|:|test|true|false|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|uv|git|wget|curl|grep"
    r"|egrep|sed|awk|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|wait|kill|pkill|tee|basename|dirname|realpath|hostname"
    r"|nvidia-smi|npu-smi|which|type|pwd|shopt|alias|trap|hf|huggingface-cli|jobs|seq|tr|cut|find|df|du|free|uname|apt(-get)?"
)
_CANNOT_FAIL = re.compile(r":|true|echo|printf|set|shopt|export|declare|typeset|readonly|unset|trap|alias|ulimit")
_ENDS = re.compile(  # or may never end, or changes what is known in a way that is not followed
    r"\A(\S*/)?(exit|return|kill|while|until|alias|set\s-\w*[akn]|set\s-o\s(allexport|noexec))\s|\A(\S*/)?exec\s\S"
    r"|sleep\sinf|tail\s(.|\n)*-[fF]|--block|\btrap\s(.|\n)*(DEBUG|ERR)"
)
_HIDES = re.compile(  # commands that start what stands elsewhere, or what comes from another command
    r"\0|make\b|just\b|docker.*\sup\b|(xargs|parallel)\s(.*\s)?(env|python|torchrun|\w*sh)\b|eval\s.*[\0\1]", re.DOTALL
)
_PYTHON_HIDES = re.compile(
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]"
)


class LaunchText(NamedTuple):
    """A word of a command, as it is written without quotes and as it expands, or a line of a file.

    ``plain`` says that the words of its command are known and that the launch surely passes there, at the outermost
    level; ``sets`` is the variable that the word plainly sets or unsets.
    """

    where: str
    text: str
    plain: bool = False
    sets: str = ""


class Hidden(NamedTuple):
    """A place where a text may be that cannot be read."""

    where: str
    found: str
    reason: str


class Variable(NamedTuple):
    """The value of a variable, with marks for what is not known of it, and where it was set; None if it was unset."""

    value: str | None = None
    where: str = ""
    found: str = ""
    exported: bool = False


class Start(NamedTuple):
    """A program that is started: its words, where these stand, and the environment that it gets.

    ``program`` is the number of the word that is Python or a launcher of it, or None where the program is another one
    and may run somewhere else. ``sure`` says that the launch certainly passes by.
    """

    where: str
    words: tuple[str, ...]
    places: tuple[str, ...]
    variables: Mapping[str, Variable]
    program: int | None
    sure: bool
    folders: tuple[Path, ...] = ()


class Launch(NamedTuple):
    """All that is known of a launch; programs of the ``packages`` are not read."""

    packages: tuple[str, ...]
    texts: list[LaunchText]
    starts: list[Start]
    hidden: list[Hidden]
    written: set[str]


def read(
    environ: Mapping[str, str], script: Path | None, command: Sequence[str], packages: tuple[str, ...] = ()
) -> Launch:
    """The texts of a launch and what it starts. Raises Problem(USAGE) where a script that is named cannot be read."""
    launch = Launch(packages, [], [], [], set())
    started = [command] if command else []
    if script is not None:
        is_python = script.suffix == ".py" or re.match("#!.*python", _text(script))
        started.insert(0, ("python" if is_python else "bash", str(script)))
    for words in started:
        _Shell(launch, environ).command(SimpleCommand((*(Token(shlex.quote(word), 1) for word in words),)))
    if not any(one.variables for one in launch.starts):  # what may be started gets the environment
        variables = _Shell(launch, environ).variables
        launch.starts.append(Start(ENVIRONMENT, ("",), (ENVIRONMENT,), variables, program=0, sure=True))
    return launch


def normal(text: str) -> str:
    """A text without quotes and backslashes, so that a name stands in it in one piece."""
    return re.sub(r"\\\n|[\"'\\]", "", text)


def name_of(word: str) -> str:
    """The name of a program without its folder."""
    return "[[" if word.startswith("[[") else word.rpartition("/")[2]


def key_of(word: str) -> str:
    """The name before ``=``, ``+=`` or ``[…]=``."""
    return re.split(r"[+=[]", word, maxsplit=1)[0]


def is_hidden(word: str) -> bool:
    """Whether a word may name anything: its key is not known, or put together from pieces."""
    key = word.partition("=")[0]
    if re.match(r"[\0\1]+/", key):
        return False  # a path
    return OUTSIDE in key or (INSIDE in key and key != INSIDE)


def is_known(text: str) -> bool:
    """Whether nothing of a text is left to the run."""
    return OUTSIDE not in text and INSIDE not in text


def shown(text: object) -> str:
    """A text as a person may read it: files as they are typed in the working directory, and … for what is not known."""
    with suppress(OSError):  # a working directory that is gone
        text = str(text).removeprefix(f"{Path.cwd()}/")
    return re.sub("[\0\1]+", "…", str(text))


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """The file that a word names, in the first of some folders that has it."""
    if not is_known(word):
        return None
    with suppress(OSError, ValueError):
        return next((folder / word for folder in folders if (folder / word).is_file()), None)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "give the shell or Python script that starts the run"
        raise Problem(Kind.USAGE, f"cannot read the launch script: {reason}", str(path), hint) from error


def _mark(*texts: str | None) -> str:
    """What stands for something that is made of some texts."""
    return OUTSIDE if any(map(is_hidden, " ".join(text or "" for text in texts).split())) else INSIDE


class _Shell:
    """What is known at a place of a script."""

    def __init__(self, launch: Launch, environ: Mapping[str, str]) -> None:
        self.launch = launch
        self.variables = {
            name: Variable(value, ENVIRONMENT, f"{name}={value}", exported=True) for name, value in environ.items()
        }
        self.functions: set[str] = set()  # and aliases
        self.args: tuple[str, ...] = ()
        self.path: Path | None = None
        self.folders = [Path()]
        self.level, self.name, self.now, self.line = 0, "", COMMAND, 1
        self.sure, self.fails = True, False  # behind `set -e` or the like, whatever fails ends the script
        self.current, self.passed, self.stays, self.sets = SimpleCommand(()), False, False, set[str]()

    def place(self, word: Token) -> str:
        return f"{self.name}:{word.line}" if self.name else COMMAND

    # --- files ---

    def nested(self, text: str, *, path: Path | None = None, args: Sequence[str] = (), here: bool = False) -> None:
        """A text that another shell runs, or this one where it is ``here``: whether it gets there is not said."""
        shell = copy(self)
        shell.variables = self.variables if here else dict(self.variables)
        shell.level, shell.args = self.level + 1, (*args,)
        if path is not None:
            shell.path, shell.name, shell.line = path, shown(path), 1
            shell.folders = [*self.folders, *path.absolute().parents]
            shell.fails = self.fails or bool(re.match(r"#!.*\s-\w*e", text))
        for found in _DIRECTIVE.finditer(text):
            shell.lines(found[0], text.count("\n", 0, found.start()) + shell.line)
        try:
            for command in commands(text, shell.line):
                if command.words and command.words[0].kind == "define":
                    shell.functions |= {*re.findall(r"[\w:.-]+", command.words[0].text)}
                else:
                    shell.command(command)
        except (ValueError, RecursionError):
            shell.lines(text, shell.line)
            self.hide("it cannot be split into commands", shell.name)
        self.sure = self.sure and (not here or bool(path and _SETS_UP.fullmatch(str(path))))

    def lines(self, text: str, number: int = 1) -> None:
        """A text of which nothing but the names is known."""
        for at, line in enumerate(normal(text).splitlines(), number):
            self.launch.texts.append(LaunchText(f"{self.name}:{at}" if self.name else COMMAND, line))

    def hide(self, reason: str, found: str = "") -> None:
        self.launch.hidden.append(Hidden(self.now, shown(found)[:200], reason))

    def file(self, word: str, args: Sequence[str] = (), *, here: bool = False) -> None:
        """A file that the launch names: a script, a program in Python, or settings."""
        path = find(word, self.folders)
        if path is None or name_of(word) in self.launch.written:
            if not _SETS_UP.fullmatch(word):
                self.hide("a file that it names is not here, or only known when it runs", word)
        elif self.level >= _LEVELS or path.stat().st_size > _LARGEST:
            self.hide("it is too large, or named by a file that the launch names", word)
        elif path.suffix in (".sh", ".bash", "") or re.match("#!.*sh", _text(path)):
            self.nested(_text(path), path=path, args=args, here=here)
        elif not self.packaged(path):
            self.names(_text(path), path)

    def packaged(self, path: Path) -> bool:
        """Whether it is a program of a project that is known."""
        packages = self.launch.packages
        beside = [one.parent / packages[0] for one in path.absolute().parents if one.name in packages]
        return any((one / "__init__.py").is_file() for one in beside)

    def names(self, text: str, path: Path) -> None:
        """A file that is read for names only, in Python also for those that stand in several strings."""
        inner = copy(self)
        inner.name = shown(path)
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        inner.lines(text)
        inner.lines(re.sub(r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']", "", text))
        inner.python(text)

    def python(self, text: str) -> None:
        """What hides a text in a program in Python."""
        if found := _PYTHON_HIDES.search(text):
            self.now = f"{self.name}:{text.count(chr(10), 0, found.start()) + 1}"
            self.hide("what it sets or runs there is only known when it runs", found[0])
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.file(script)

    # --- words ---

    def words(self, raw: str) -> list[str]:
        """The words that a word becomes."""
        found = _SEVERAL.fullmatch(raw)
        value = self.value(raw.strip('"')) if found else self.expand(raw)
        if found and found[1]:
            return value.split("\n") if value else []
        return value.split() if found else [value]

    def expand(self, raw: str, *, split: bool = True) -> str:
        """A word with what is known of its variables, and marks for the rest and where it becomes several words."""
        if re.match(r"\w+\+?=\(", raw) or (split and re.match(r"[^'\"]*(?<!\$)\{[^{}'\"]*,[^{}]*\}", raw)):
            return INSIDE  # an array, or braces
        expanded, inner, at = "", False, 0
        while at < len(raw):
            char, end, found = raw[at], at + 1, raw[at]
            if char == '"':
                inner, found = not inner, ""
            elif char == "\\":
                end, found = at + 2, raw[at + 1 : at + 2].strip("\n")
            elif char == "'" and not inner:
                end = skipped(raw, at)
                found = raw[at + 1 : end - 1]
            elif char in "$`" or raw.startswith(("<(", ">("), at):
                end = skipped(raw, at)
                found = self.value(raw[at:end])
                found = _mark(found) if split and not inner and re.search(r"\s", found) else found
            expanded, at = expanded + found, end
        return expanded

    def value(self, raw: str) -> str:
        """What an expansion stands for; the elements of an array are lines."""
        found = _PARAMETER.fullmatch(raw)
        if not found:
            return self.printed(raw)
        name, colon, operator, default = found.groups()
        value = "." if name == "PWD" else self.variables.get(name, Variable()).value
        if name in "@*" or name.isdigit():
            value = self.argument(name)
        if operator == "-" and not (value if colon else value is not None):
            return self.expand(default, split=False)
        if not value and (operator in ("=", "?") or (self.fails and value is None)):
            self.sure = False
        return OUTSIDE if value is None else value

    def printed(self, raw: str) -> str:
        """What an expansion that is no parameter stands for."""
        if self.path and _HOME.fullmatch(raw):
            return str(self.path.absolute().parent)
        return {"$": raw, "$(pwd)": "."}.get(raw, INSIDE if raw.startswith(("$((", "${#")) else OUTSIDE)

    def argument(self, name: str) -> str:
        if INSIDE in self.args or (self.functions and not self.current.outer):
            return INSIDE  # of the script, or of a call
        return "\n".join(self.args if name in "@*" else self.args[int(name) - 1 : int(name)])

    # --- commands ---

    def assigned(self, raw: str) -> tuple[str, str]:
        """The name and the value of an assignment; the elements of an array are lines."""
        name, (_, more, text) = key_of(raw), re.split(r"(\+?)=", raw, maxsplit=1)
        old = self.variables.get(name, Variable()).value or ""
        if raw[len(name)] == "[":
            return name, _mark(old, self.expand(text, split=False))
        if text.startswith("("):
            values = [one for word in tokens(text[1:-1]) if word.kind == "word" for one in self.words(word.text)]
            return name, "\n".join(([old] if more and old else []) + values)
        return name, (old if more else "") + self.expand(text, split=False)

    def assign(
        self, name: str, value: str | None, found: str = "", *, known: bool = True, exported: bool = False
    ) -> None:
        old = self.variables.get(name, Variable())
        exported = exported or old.exported
        if not (known and self.stays):
            value = _mark(value, old.value)
        elif exported:
            self.sets.add(name)
        self.variables[name] = Variable(value, self.now, found, exported)
        self.sure = self.sure and name != "IFS"

    def command(self, command: SimpleCommand) -> None:
        """Take in a command: what it assigns, what it names, and what it starts."""
        self.current, self.sets = command, set()
        begin = (command.words + command.redirects)[0]
        self.line, self.now = begin.line, self.place(begin)
        taken = [(word, self.words(word.text)) for word in command.words]
        first = len([*takewhile(_ASSIGNMENT.match, (word.text for word in command.words))])
        words = [(one, self.place(word)) for word, found in taken[first:] for one in found]
        self.sure = self.sure and not (words and name_of(words[0][0]) in self.functions)
        outermost = command.outer and self.level < _LEVELS
        self.passed, self.stays = outermost and self.sure, outermost and command.here
        assigned = self.assignments(command.words[:first], stay=first == len(taken))
        plain = True
        if words:
            self.sets.update(assigned)
            plain = self.run(words, [word.text for word, _ in taken[first:]], assigned)
        self.note(taken, plain=plain and self.passed)
        self.sure = self.sure and not self.may_end(words[0][0] if words else "")

    def assignments(self, words: Iterable[Token], *, stay: bool) -> dict[str, Variable]:
        """The variables that a command begins with; without a program behind them they ``stay``."""
        assigned = {}
        for word in words:
            name, value = self.assigned(word.text)
            assigned[name] = Variable(value, self.place(word), word.text, exported=True)
            if stay:
                self.assign(name, value, word.text)
        return assigned

    def note(self, taken: list[tuple[Token, list[str]]], *, plain: bool) -> None:
        """Keep the texts of a command, and which files it writes."""
        for word, found in taken:
            key = key_of(normal(word.text))
            sets = key if self.passed and key in self.sets else ""
            self.launch.texts.append(LaunchText(self.place(word), "\n".join((normal(word.text), *found)), plain, sets))
        for redirect in self.current.redirects:
            self.launch.texts.append(LaunchText(self.now, normal(f"{redirect.text}\n{redirect.document}")))
            if ">" in redirect.kind:
                self.launch.written.add(name_of(self.expand(redirect.text)))

    def may_end(self, word: str) -> bool:
        """Whether the script may not get behind a command that begins with a word."""
        name, text = name_of(word), "".join(f"{word.text}\n" for word in self.current.words)
        cannot_fail = _CANNOT_FAIL.fullmatch(name) if name else not re.search(r"\$\(|`", text)
        return (self.fails and not cannot_fail) or bool(_ENDS.search(text))

    def run(self, placed: list[tuple[str, str]], raw: list[str], assigned: dict[str, Variable]) -> bool:
        """Take in the words of a command with their places; whether it plainly sets something or starts Python here."""
        words, places = [word for word, _ in placed], [place for _, place in placed]
        name, text, known = name_of(words[0]), " ".join(words), not any(map(is_hidden, words))
        deciding = words if name in self.functions else [name]
        if any(map(is_hidden, deciding)) or (_HIDES.match(text) and not _SETS_UP_BY.match(raw[-1])):
            self.hide("what it starts or sets is only known when it runs", text)
        if name in ("export", "declare", "typeset", "local", "readonly", "unset"):
            self.declare(name, raw[1:])
            return known and name not in ("local", "readonly")
        if name in (".", "source"):
            self.file("".join(words[1:2]), words[2:] or self.args, here=True)
        elif name == "eval" and OUTSIDE not in text:
            self.nested(text[5:], here=True)
        elif not self.builtin(name, words):
            return self.start(words, places, assigned) and known
        return False

    def builtin(self, name: str, words: list[str]) -> bool:
        """What else changes what is known; whether it is that."""
        text, loop = " ".join(words), name in ("for", "select")
        if name in ("set", "shift"):
            self.fails = self.fails or bool(re.search(r" -\w*[eu]| errexit| nounset", text))
            self.args = self.args if re.match("set [-+][^-]", text) else (INSIDE,)
        elif name == "cd" and is_known(text):
            self.folders = [self.folders[0] / "".join(words[1:2]), *self.folders]
        elif loop or name in ("read", "mapfile", "readarray", "let", "getopts", "printf"):
            for one in words[1:2] if loop else words[1:]:
                self.assign(key_of(one), " ".join(words[3:]) if loop else OUTSIDE, known=False)
        else:
            return False
        return True

    def declare(self, name: str, raw: list[str]) -> None:
        """What ``export``, ``unset``, ``declare`` and the like do."""
        options = "".join(one for one in raw if one[:1] in ("-", "+"))
        plain = name in ("export", "unset", "declare", "typeset") and not re.search(r"[^-xgaA]", options)
        self.sure = self.sure and plain and not any(map(is_hidden, map(self.expand, raw)))
        for one in (one for one in raw if one[:1] not in ("-", "+")):
            word = self.expand(one)
            variable, old = key_of(word), self.variables.get(key_of(word), Variable())
            known, exported = plain and "=" not in word, name in ("export", "unset") or "x" in options
            if _ASSIGNMENT.match(one):
                self.assign(*self.assigned(one), one, known=plain, exported=exported)
            elif not is_known(variable):
                self.hide("the name of the variable that it sets is only known when it runs", word)
            elif name == "unset":
                self.assign(variable, None, f"unset {one}", known=known, exported=True)
            else:
                self.assign(variable, old.value, old.found, known=known, exported=exported)

    def start(self, words: list[str], places: list[str], assigned: dict[str, Variable]) -> bool:
        """Take in a program: the files and texts that it names, and how it is started."""
        before = [*takewhile(_WRAPPER.match, words)]
        at, program = len(before), name_of("".join(words[len(before) : len(before) + 1]))
        for word, place in zip(before, places, strict=False):
            if _ASSIGNMENT.match(word):  # behind `env`
                assigned[key_of(word)] = Variable(word.partition("=")[2], place, word, exported=True)
                self.sets.add(key_of(word))
        emptied = "env" in map(name_of, before) and any(word[:1] == "-" for word in before)
        if _SHELL.fullmatch(program) and not emptied:
            outside, self.variables = self.variables, {**self.variables, **assigned}
            self.interpreted(words[at + 1 :])
            self.variables = outside
            return self.level == 0
        plain = bool(_PROGRAM.fullmatch(program)) and not emptied
        if not _NO_LAUNCH.fullmatch(name_of(words[0])):
            self.files(words[at:] if plain else words, python=plain)
            assigned = {**{name: one for name, one in self.variables.items() if one.exported}, **assigned}
        program_at, folders = at if plain else None, (*self.folders,)
        start = Start(self.now, (*words,), (*places,), assigned, program_at, self.passed, folders)
        self.launch.starts.append(start)
        return plain

    def interpreted(self, words: list[str]) -> None:
        """The words behind a shell: a text, a script, or what it reads."""
        options = [*takewhile(lambda word: word[:1] in ("-", "+") or word in ("pipefail", "errexit"), words)]
        operands, flags = words[len(options) :], "".join(one for one in options if one[1:2] != "-")
        documents = "".join(one.document for one in self.current.redirects)
        self.fails = self.fails or "e" in flags
        if "c" in flags:
            self.nested("".join(operands[:1]), args=operands[2:])
        elif operands and "s" not in flags:
            if self.level == 0 and not find(operands[0], self.folders):
                _text(Path(operands[0]))  # what the user names is there
            self.file(operands[0], operands[1:])
        elif documents:
            self.nested(documents, args=operands)
        else:
            self.hide("what the shell reads is only known when it runs", " ".join(words))

    def files(self, words: list[str], *, python: bool) -> None:
        """The texts, files and modules that the words of a program name."""
        if not python:
            self.level = max(self.level, 1)  # what it starts may be elsewhere
            if "/" in words[0] and not words[0].startswith(("/usr/", "/bin/", "/opt/")):
                self.file(words[0], words[1:])
        for text in (*words[1:], *(one.document for one in self.current.redirects)):
            if re.search(r"\w\s", text):
                (self.python if python else self.nested)(text)
        for before, word in pairwise(words):
            if named := _FILE.fullmatch(f"{before} {word}"):
                self.file(named["file"])
            module = before in ("-m", "--module") and word.partition(".")[0] not in self.launch.packages
            if module and (found := find(f"{word.replace('.', '/')}.py", self.folders)):
                self.file(str(found))
