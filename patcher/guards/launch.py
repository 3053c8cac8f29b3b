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

from patcher.guards.shell import Command, Word, commands, skipped, tokens
from patcher.messages.errors import Kind, Problem

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for what only the run tells, and for what is one of the texts but not known to be which."""
COMMAND = "command after --"
ENVIRONMENT = "environment"

_LEVELS = 2  # the script, and the files that it names
_LARGEST = 1 << 20  # of a file that is read for names, in bytes
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_PARAMETER = re.compile(r"\$\{?(\w+|[@*#?$!-])(\[[@*]\])?(?:(:?)([-=+?])(.*?))?\}?", re.DOTALL)
_FOLDER = re.compile(  # $(pwd), $(dirname "$0"), $(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd), without blanks
    r"\$\((?:cd|realpath|readlink-f)?((?:\$\()?dirname\$(?:0|BASH_SOURCE)\)?)?((?:/\.\.)*)(?:(?:&&)?pwd(?:-P)?)?\)?"
)
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB|\$)\s.*", re.MULTILINE)
_SETS_UP = re.compile(  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_SETS_UP_BY = re.compile(r"[\"']?\$\((\S*/)?(conda|mamba|micromamba|pyenv|ssh-agent|resize)\b.*", re.DOTALL)
_READ = re.compile(r".+\.(sh|bash|py|ya?ml|env|in)")
_CONFIG_NAME = re.compile(r"--config-name|-cn")
_BUILTINS = ("set", "shift", "cd", "read", "mapfile", "readarray", "printf", "let", "getopts", "for", "select", "alias")
_SHELL = re.compile(r"(ba|da|z|k)?sh")
_PROGRAM = re.compile(r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed|vllm|sglang|msprof")
_WRAPPER = re.compile(r"nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env|command")
_NO_LAUNCH = re.compile(
    r"\[\[?|:|test|true|false|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|uv|git|wget|curl|grep"
    r"|egrep|sed|awk|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|wait|kill|pkill|tee|basename|dirname|realpath|hostname"
    r"|nvidia-smi|npu-smi|which|type|pwd|shopt|alias|trap|hf|huggingface-cli|jobs|seq|tr|cut|find|df|du|free|uname|apt(-get)?"
)
_CANNOT_FAIL = re.compile(r":|true|echo|printf|set|shopt|export|declare|typeset|readonly|unset|trap|alias|ulimit")
_MAY_NEVER_END = re.compile(
    r"sleep\sinf|tail\s(.|\n)*-[fF]|--block|\A(while|until)\s|\btrap\s(.|\n)*(DEBUG|ERR)|\Aset\s-\w*n"
)
_ELSEWHERE = re.compile(
    r"ssh|pdsh|tmux|screen|su|sudo|docker|podman|kubectl|srun|sbatch|salloc|mpirun|mpiexec|flock|script|watch|xargs"
)
_PYTHON_HIDES = re.compile(
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]"
)


class Text(NamedTuple):
    """A text of the launch without its quotes, and what it is with the variables that are known.

    ``plain`` says that it is a command at the outermost level that the launch surely passes, of words that are known,
    and ``sets`` are the variables that such a command sets or unsets, once for each time.
    """

    where: str
    text: str
    expanded: str = ""
    plain: bool = False
    sets: tuple[str, ...] = ()


class Hidden(NamedTuple):
    """A place where a text may be that cannot be read."""

    where: str
    found: str
    reason: str


class Variable(NamedTuple):
    """The value of a variable, with marks for what is not known of it, and where it was set; None if it was unset."""

    value: str | None
    where: str
    found: str = ""


class Start(NamedTuple):
    """A program that is started, with its words and where these stand.

    ``program`` is the number of the word that is Python or a launcher of it, or None where the program is another one
    and may run somewhere else. ``sure`` says that the launch certainly passes by.
    """

    where: str
    words: tuple[str, ...]
    places: tuple[str, ...]
    variables: Mapping[str, Variable]
    program: int | None
    sure: bool
    folders: tuple[Path, ...]


class Launch(NamedTuple):
    """All that is known of a launch."""

    texts: list[Text]
    starts: list[Start]
    hidden: list[Hidden]
    seen: set[Path]
    written: set[str]
    packages: tuple[str, ...]


def read(
    environ: Mapping[str, str], script: Path | None, command: Sequence[str], packages: tuple[str, ...] = ()
) -> Launch:
    """The texts of a launch and what it starts. Raises Problem(USAGE) where a script that is named cannot be read."""
    launch = Launch([], [], [], set(), set(), packages)
    if script is not None:
        shell, text = _Shell(launch, environ), _text(script)
        if script.suffix == ".py" or re.match("#!.*python", text):
            shell.now = str(script)
            shell.command(Command((Word("python", 1), Word(shlex.quote(str(script)), 1)), 1))
        else:
            shell.script(text, script, ())
    if command:
        shell = _Shell(launch, environ)
        words = tuple(Word(shlex.quote(word), 1) for word in command)
        shell.command(Command(words, 1))
    return launch


def normal(text: str) -> str:
    """A text without quotes and backslashes, so that a name stands in it in one piece."""
    return re.sub(r"\\\n|[\"'\\]", "", text)


def name_of(word: str) -> str:
    """The name of a program without its folder."""
    return word.rpartition("/")[2]


def is_hidden(word: str) -> bool:
    """Whether a word may name anything: its key is not known, or put together from pieces."""
    key = word.partition("=")[0]
    if re.match(r"[\0\1]+/", key):
        return False  # a path
    return OUTSIDE in key or (INSIDE in key and key != INSIDE)


def _starts(word: str) -> bool:
    return word == "env" or bool(_PROGRAM.fullmatch(word) or _SHELL.fullmatch(word))


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """The file that a word names, in the first of some folders that has it."""
    if OUTSIDE in word or INSIDE in word:
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


class _Shell:
    """What is known at a place of a script."""

    def __init__(self, launch: Launch, environ: Mapping[str, str]) -> None:
        self.launch = launch
        self.values: dict[str, tuple[str, ...]] = {name: (value,) for name, value in environ.items()}
        self.origins = {name: (ENVIRONMENT, f"{name}={value}") for name, value in environ.items()}
        self.exported = set(environ)
        self.functions: set[str] = set()  # and aliases
        self.args: tuple[str, ...] = ()
        self.path: Path | None = None
        self.folders = [Path()]
        self.level = self.line = 0
        self.certain = self.sure = True
        self.fails = False
        self.current, self.passed, self.stays = Command((), 0), False, False
        self.name, self.now = "", COMMAND
        self.sets: list[str] = []

    # --- files ---

    def script(self, text: str, path: Path, args: tuple[str, ...]) -> None:
        """A script that is started with ``args``."""
        self.path, self.args, self.level = path, args, self.level + 1
        self.folders = [*self.folders, *path.absolute().parents]
        self.fails = self.fails or bool(re.match(r"#!.*\s-\w*e", text))
        self.lines(text, str(path))

    def lines(self, text: str, name: str, line: int = 1) -> None:
        for found in _DIRECTIVE.finditer(text):
            self.launch.texts.append(Text(f"{name}:{line + text.count(chr(10), 0, found.start())}", normal(found[0])))
        try:
            split = commands(text)
        except (ValueError, RecursionError):
            lines = enumerate(text.splitlines(), line)
            self.launch.texts.extend(Text(f"{name}:{at}", normal(one)) for at, one in lines)
            self.launch.hidden.append(Hidden(f"{name}:{line}", "", "it cannot be split into commands"))
            self.sure = False
            return
        for command in split:
            self.name, self.line = name, line + command.line - 1
            self.now = f"{name}:{self.line}"
            self.command(command)

    def nested(self, text: str, *, path: Path | None = None, args: tuple[str, ...] = (), here: bool = False) -> None:
        """A text that another shell runs, or this one where it is ``here``: whether it gets there is not said."""
        shell = copy(self)
        shell.values = self.values if here else dict(self.values)
        shell.certain, shell.sets = self.level == 0 and self.certain, []
        if path is not None:
            shell.script(text, path, args)
        else:
            shell.level, shell.args = self.level + 1, args
            shell.lines(text, self.name or self.now, self.line or 1)
        self.sure = self.sure and not here

    def hide(self, reason: str, found: str = "") -> None:
        self.launch.hidden.append(Hidden(self.now, re.sub("[\0\1]+", "…", found)[:200], reason))

    def file(self, word: str, args: tuple[str, ...] = (), *, here: bool = False) -> None:
        """A file that the launch names: a script, a program in Python, or settings."""
        path = find(word, self.folders)
        if path is None or name_of(word) in self.launch.written:
            if not _SETS_UP.fullmatch(word):
                self.hide("a file that it names is not here, or only known when it runs", word)
        elif self.level >= _LEVELS:
            self.hide("it is named by a file that the launch names", word)
        elif path not in self.launch.seen and path.stat().st_size < _LARGEST and not self.packaged(path):
            self.launch.seen.add(path)
            text = _text(path)
            if path.suffix in (".sh", ".bash", "") or (text.startswith("#!") and "sh" in text.partition("\n")[0]):
                self.nested(text, path=path, args=args, here=here)
            else:
                self.names(text, path)

    def packaged(self, path: Path) -> bool:
        """Whether it is a program of a project that is known."""
        packages = self.launch.packages
        beside = [one.parent / packages[0] for one in path.absolute().parents if one.name in packages]
        return any((one / "__init__.py").is_file() for one in beside)

    def names(self, text: str, path: Path) -> None:
        """A file that is read for names only; in Python also for those that stand in several strings."""
        variants = [text]
        if path.suffix not in (".yaml", ".yml", ".env"):
            text = re.sub(r"^[ \t]*#(?!SBATCH).*", "", text, flags=re.MULTILINE)
            variants = [text, re.sub(r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']", "", text)]
            self.python(text, str(path))
        for variant in variants:
            found = normal(variant).splitlines()
            self.launch.texts.extend(Text(f"{path}:{at}", line) for at, line in enumerate(found, 1) if line)

    def python(self, text: str, name: str) -> None:
        """What hides a text in a program in Python."""
        if found := _PYTHON_HIDES.search(text):
            where = f"{name}:{text.count(chr(10), 0, found.start()) + 1}" if name else self.now
            self.launch.hidden.append(Hidden(where, found[0], "what it sets or runs there is only known when it runs"))
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.file(script)

    # --- words ---

    def expand(self, raw: str, *, split: bool = True) -> list[str]:
        """The words that a word becomes, with marks for what is not known."""
        words, quoted, gone, inner, at = [""], False, False, False, 0
        if split and re.match(r"[^'\"]*(?<!\$)\{[^{}'\"]*,[^{}]*\}", raw):
            return [INSIDE]
        while at < len(raw):
            char, end, found = raw[at], at + 1, [raw[at]]
            if char == '"':
                inner, quoted, found = not inner, True, [""]
            elif char == "\\":
                end, found = at + 2, [raw[at + 1 : at + 2].strip("\n")]
            elif not inner and (char == "'" or raw.startswith("$'", at)):
                end, quoted = skipped(raw, at), True
                text = raw[at:end].lstrip("$")[1:-1]
                found = [OUTSIDE if char == "$" and "\\" in text else text]
            elif char in "$`" or raw.startswith(("<(", ">("), at):
                end = skipped(raw, at)
                found, several = self.value(raw[at:end])
                if split and not inner:
                    found = [part for one in found for part in one.split()]
                elif not several:
                    found = [" ".join(found)]
                gone = gone or (several and not found)
            words[-1] += found[0] if found else ""
            words += found[1:]
            at = end
        return words if words != [""] or (quoted and not gone) else []

    def value(self, raw: str) -> tuple[list[str], bool]:
        """What an expansion stands for, and whether each of several texts is a word of its own."""
        if raw.startswith(("$((", "${#")):
            return [INSIDE], False
        found = _PARAMETER.fullmatch(raw)
        if not found:
            return ["$"] if raw == "$" else [self.folder(raw)], False
        name, index, colon, operator, other = found.groups()
        values = self.known(name)
        is_set = bool(values) and (values != ("",) or not colon)
        if operator == "+":
            return (self.expand(other) if is_set else []), False
        if not is_set and operator == "-":
            values = (" ".join(self.expand(other, split=False)),)
        elif not is_set and (operator or not (name in "@*" or name.isdigit())):
            values, self.sure = (OUTSIDE,), self.sure and not (operator or self.fails)
        return [*values], bool(index) or name == "@"

    def known(self, name: str) -> tuple[str, ...]:
        """The values of a parameter; none if it is not set."""
        if name == "BASH_SOURCE" or name == "0":
            return (str(self.path or OUTSIDE),)
        if name in "@*" or name.isdigit():
            known = self.args[int(name) - 1 : int(name)] if name.isdigit() else self.args
            return (INSIDE,) if self.current.function or INSIDE in self.args else known
        if name in "#?$!-" or name in ("RANDOM", "SECONDS", "LINENO"):
            return (INSIDE,)
        return (".",) if name == "PWD" else self.values.get(name, ())

    def folder(self, raw: str) -> str:
        """The folder that a command prints, where it is that of the script or the one that we are in."""
        found = _FOLDER.fullmatch(re.sub(r"[\"{}\s]|--|\[0\]|>/dev/null|2>&1", "", raw))
        if not found or (found[1] and not self.path):
            return OUTSIDE
        return (str(self.path.absolute().parent) if found[1] and self.path else ".") + (found[2] or "")

    # --- commands ---

    def assigned(self, raw: str) -> tuple[str, tuple[str, ...]]:
        """The name and the values of ``NAME=value``, ``NAME+=value`` or ``NAME=(…)``."""
        found = _ASSIGNMENT.match(raw)
        assert found is not None  # noqa: S101 - who calls has looked
        (name, index, more), text = found.groups(), raw[found.end() :]
        if array := text.startswith("("):
            values = [one for word in tokens(text[1:-1]) for one in self.expand(word.text)]
        else:
            values = self.expand(text, split=False) or [""]
        old = self.values.get(name, ())
        if more and array:
            values = [*old, *values]
        elif more or index:
            values = ["".join((*old[:1], *values))] if more and not index else [INSIDE]
        return name, (*values,)

    def assign(self, name: str, values: tuple[str, ...], found: str, *, known: bool = True) -> None:
        if not (known and self.stays):
            parts = [part for value in (*values, *self.values.get(name, ())) for part in value.split()]
            values = (OUTSIDE if any(map(is_hidden, parts)) else INSIDE,)
        elif name in self.exported:
            self.sets.append(name)
        self.values[name], self.origins[name] = values, (self.now, found)
        self.sure = self.sure and name != "IFS"

    def command(self, command: Command) -> None:
        """Take in a command: what it assigns, what it names, and what it starts."""
        raw = [word.text for word in command.words]
        if raw[:1] == ["function"]:
            self.functions.add(raw[1])
            return
        self.sets, self.current, before = [], command, self.sure
        self.passed = passed = command.outer and self.certain and self.sure
        self.stays = command.outer and command.here and self.certain
        assigned = [*takewhile(_ASSIGNMENT.match, raw)]
        words, places = self.words(command.words[len(assigned) :])
        variables = dict[str, Variable]()
        for one in assigned:
            name, values = self.assigned(one)
            variables[name] = Variable(" ".join(values), self.now, one)
            if not words:
                self.assign(name, values, one)
        self.launch.written.update(name_of(found) for target in command.writes for found in self.expand(target))
        text, plain = "\n".join((*raw, command.stdin)), passed
        expanded = "\n".join((*words, *(f"{name}={one.value}" for name, one in variables.items())))
        if words:
            self.sets += variables
            plain = self.run(words, places, raw[len(assigned) :], variables)
        plain = plain and passed and not any(map(is_hidden, words))
        self.launch.texts.append(Text(self.now, normal(text), expanded, plain, (*self.sets,) if passed else ()))
        if before and not command.function:
            self.sure = self.sure and not self.may_end(name_of(words[0]) if words else "", words, text)

    def words(self, raw: Iterable[Word]) -> tuple[list[str], list[str]]:
        """The words of a command with what is known of their variables, and where each of them stands."""
        words, places, first = list[str](), list[str](), 0
        for word in raw:
            first = first or word.line
            array = _ASSIGNMENT.match(word.text) and word.text[-1] == ")"
            found = [word.text] if array else self.expand(word.text)
            words += found
            place = f"{self.name}:{self.line + word.line - first}" if self.name else self.now
            places += [place] * len(found)
        return words, places

    def may_end(self, name: str, words: list[str], text: str) -> bool:
        """Whether the script may not get behind a command."""
        if name in ("exit", "return", "kill") or (name == "exec" and words[1:]) or name in self.functions:
            return True
        cannot_fail = _CANNOT_FAIL.fullmatch(name) if name else not re.search(r"\$\(|`", text)
        return (self.fails and not cannot_fail) or bool(_MAY_NEVER_END.search(text))

    def run(self, words: list[str], places: list[str], raw: list[str], variables: dict[str, Variable]) -> bool:
        """Take in the words of a command; whether it is a builtin or a program that is plainly started here."""
        name, text = name_of(words[0]), " ".join(words[1:])
        if name in ("export", "declare", "typeset", "local", "readonly"):
            self.declare(name, raw[1:])
        elif name == "unset":
            self.sure = self.sure and not any(map(is_hidden, words))
            for one in words[1:]:
                self.assign(one, (INSIDE,), f"unset {one}")
                self.values.pop(one if self.stays else "", None)
        elif name in (".", "source"):
            self.file(words[1] if words[1:] else "", (*words[2:],) or self.args, here=True)
            self.sure = self.sure or bool(_SETS_UP.fullmatch(text))
        elif name == "eval" and (OUTSIDE in text or INSIDE in text):
            if not _SETS_UP_BY.fullmatch(raw[-1]):
                self.hide("what `eval` runs is only known when it runs", text)
        elif name == "eval":
            self.nested(text, here=True)
        elif name in _BUILTINS:
            self.builtin(name, words)
        else:
            return self.start(words, places, variables)
        return name in ("export", "unset")

    def declare(self, name: str, raw: list[str]) -> None:
        """What ``export``, ``declare`` and the like do; a name that is put together is one that is not certain."""
        options = "".join(one for one in raw if one[:1] in ("-", "+"))
        plain = name in ("export", "declare", "typeset") and not re.search(r"[^-xgaA]", options)
        self.sure = self.sure and (plain or name == "local")
        for one in (one for one in raw if one[:1] not in ("-", "+")):
            for word in [one] if _ASSIGNMENT.match(one) else self.expand(one):
                variable = re.split(r"[+=[]", word, maxsplit=1)[0]
                if OUTSIDE in variable or INSIDE in variable:
                    self.sure = False
                    if variable != INSIDE:
                        self.hide("the name of the variable that it sets is only known when it runs", word)
                    continue
                if name == "export" or "x" in options:
                    self.exported.add(variable)
                if "=" in word and word is one:
                    self.assign(variable, self.assigned(word)[1], word, known=plain)
                elif "=" in word or not (self.stays and plain):
                    self.assign(variable, (INSIDE,), word, known=False)
                else:
                    self.sets.append(variable)

    def builtin(self, name: str, words: list[str]) -> None:
        operands = [word for word in words[1:] if word[:1] not in ("-", "+")]
        if name == "set":
            self.options(words, operands)
        elif name == "shift":
            self.args = (INSIDE,)
        elif name == "cd" and operands and OUTSIDE not in operands[0] and INSIDE not in operands[0]:
            self.folders = [self.folders[0] / operands[0], *self.folders]
        elif name == "alias":
            self.functions |= {word.partition("=")[0] for word in operands}
        elif name in ("for", "select"):
            listed = words[3:] if words[2:3] == ["in"] else [INSIDE]
            self.assign(words[1] if words[1:] else "_", (*listed,), "", known=False)
        elif name != "cd" and (name != "printf" or "-v" in words):
            for one in operands:
                self.assign(one.partition("=")[0], (OUTSIDE,), "", known=False)

    def options(self, words: list[str], operands: list[str]) -> None:
        letters = {*"".join(word for word in words[1:] if re.match(r"-\w", word))}
        self.fails = self.fails or bool(letters & {"e", "u"} or {"errexit", "nounset"} & {*operands})
        self.sure = self.sure and not (letters & {"a", "k", "n"} or {"allexport", "noexec"} & {*operands})
        self.args = (INSIDE,) if "--" in words or (operands and "o" not in letters) else self.args

    def start(self, words: list[str], places: list[str], variables: dict[str, Variable]) -> bool:
        """Take in a program: the files that it names, the texts that it is given, and how it is started."""
        name = name_of(words[0])
        at = self.wrapped(words, places, variables)
        program = name_of(words[at]) if at < len(words) else ""
        plain = bool(_PROGRAM.fullmatch(program)) and name not in self.functions
        if name not in self.functions and not _NO_LAUNCH.fullmatch(name):
            if is_hidden(words[0]) or (OUTSIDE in name and words[0] != INSIDE):
                self.hide("the program that it starts is only known when it runs", " ".join(words))
            if _SHELL.fullmatch(program):
                self.interpreted(words[at + 1 :])
                return self.level == 0
            self.files(name, words[at:] if plain else words, program)
        exported = {
            one: Variable(" ".join(self.values[one]) if one in self.values else None, *self.origins[one])
            for one in self.exported & {*self.origins}
        }
        seen = {} if _NO_LAUNCH.fullmatch(name) else {**exported, **variables}
        program_at, folders = at if plain else None, (*self.folders,)
        self.launch.starts.append(Start(self.now, (*words,), (*places,), seen, program_at, self.passed, folders))
        return plain

    def wrapped(self, words: list[str], places: list[str], variables: dict[str, Variable]) -> int:
        """Where the program begins behind `nohup`, `timeout 5`, `env NAME=value` and the like."""
        at = 0
        while at < len(words) and _WRAPPER.fullmatch(name_of(words[at])) and words[at + 1 : at + 2] != ["-v"]:
            environment, at = name_of(words[at]) == "env", at + 1
            passed = r"[\d.,:-]+[smhd]?" if environment else r"-.*|[\d.,:-]+[smhd]?"
            while at < len(words) and re.fullmatch(passed, words[at], re.DOTALL):
                at += 1
            while environment and at < len(words) and _ASSIGNMENT.match(words[at]):
                variable, _, value = words[at].partition("=")
                variables[variable] = Variable(value, places[at], words[at])
                self.sets.append(variable)
                at += 1
        return at

    def interpreted(self, words: list[str]) -> None:
        """The words behind a shell: a text, a script, or what it reads."""
        options = [*takewhile(lambda word: word[:1] in ("-", "+") or word in ("pipefail", "errexit"), words)]
        operands, flags = words[len(options) :], "".join(one for one in options if one[1:2] != "-")
        self.fails = self.fails or "e" in flags
        if "c" in flags:
            self.nested(operands[0] if operands else "", args=(*operands[2:],))
        elif operands and "s" not in flags:
            if self.level == 0 and not find(operands[0], self.folders):
                _text(Path(operands[0]))  # what the user names is there
            self.file(operands[0], (*operands[1:],))
        elif self.current.stdin:
            self.nested(self.current.stdin, args=(*operands,))
        else:
            self.hide("what the shell reads is only known when it runs", " ".join(words))

    def files(self, name: str, words: list[str], program: str) -> None:
        """The texts and files that the words of a program name."""
        operands = [word for word in words[1:] if word[:1] != "-"]
        if name in ("xargs", "parallel") and any(map(_starts, operands)):
            self.hide("the words that it adds are only known when it runs", " ".join(words))
        if name in ("make", "just") or (name.startswith("docker") and "up" in words):
            self.hide("what it starts stands in a file of its own", " ".join(words))
        texts = [word for word in (*words[1:], self.current.stdin) if re.search(r"\s", word)]
        if _PROGRAM.fullmatch(program):
            for text in texts:
                self.python(text, "")
            if "python" in program and operands and not {"-m", "-c"} & {*words}:
                self.file(operands[0])
        elif _ELSEWHERE.fullmatch(name):
            for text in texts:
                self.nested(text)
        elif "/" in words[0] and not words[0].startswith(("/usr/", "/bin/", "/opt/")):
            self.file(words[0], (*words[1:],))
        self.named(words)

    def named(self, words: list[str]) -> None:
        """The files and modules among the words of a program."""
        for before, word in pairwise(words):
            value = word.partition("=")[2] if word[:1] == "-" else word
            file = _READ.fullmatch(value) and (word[:1] == "-" or "=" not in word) and "://" not in word
            if file and not _CONFIG_NAME.match(word) and not _CONFIG_NAME.fullmatch(before):
                self.file(value)
            module = before in ("-m", "--module") and word.partition(".")[0] not in self.launch.packages
            if module and (found := find(f"{word.replace('.', '/')}.py", self.folders)):
                self.file(str(found))
