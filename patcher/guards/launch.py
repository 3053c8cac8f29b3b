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

from patcher.errors import Kind, Problem
from patcher.guards.shell import Command, UnreadableError, Word, commands, skipped, tokens

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for what only the run tells, and for what is one of the texts but not known to be which."""
COMMAND = "command after --"
ENVIRONMENT = "environment"

_LEVELS = 2  # the script, and the files that it names
_LARGEST = 1 << 20  # of a file that is read for names, in bytes
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_PARAMETER = re.compile(r"\$\{?(\w+|[@*#?$!-])(\[[@*]\])?(?:(:?)([-=+?])(.*?))?\}?", re.DOTALL)
_FOLDER = re.compile(  # $(pwd), $(dirname "$0"), $(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    r"\$\((?:(?:cd|realpath|readlink -f)\s+(?:--\s+)?)?\"?"
    r"(\$\(dirname\s+(?:--\s+)?\"?\$(?:0|\{?BASH_SOURCE(?:\[0\])?\}?)\"?\))?((?:/\.\.)*)\"?\s*(?:>\s*/dev/null\s*(?:2>&1)?\s*)?(?:&&\s*)?(?:pwd(?:\s+-P)?)?\)"
)
_DIRNAME = re.compile(r"\$\(dirname\s+(?:--\s+)?\"?\$(?:0|\{?BASH_SOURCE(?:\[0\])?\}?)\"?\)")
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB|\$)\s.*", re.MULTILINE)
_SETS_UP = re.compile(  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_SETS_UP_BY = re.compile(r"[\"']?\$\((\S*/)?(conda|mamba|micromamba|pyenv|ssh-agent|resize)\b.*", re.DOTALL)
_READ = re.compile(r".+\.(sh|bash|py|ya?ml|env|in)")
_CONFIG_NAME = re.compile(r"--config-name|-cn")
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
        self.functions: set[str] = set()
        self.changing: set[str] = set()  # variables that functions set, or that keep no plain text
        self.args: tuple[str, ...] = ()
        self.path: Path | None = None
        self.folders = [Path()]
        self.level = 0
        self.certain = self.sure = True
        self.fails = self.exports = self.splits = self.strict = self.in_function = False
        self.now = COMMAND
        self.sets: list[str] = []

    # --- files ---

    def script(self, text: str, path: Path, args: tuple[str, ...]) -> None:
        """A script that is started with ``args``."""
        self.path, self.args, self.level = path, args, self.level + 1
        absolute = path.absolute()
        self.folders = [*self.folders, *absolute.parents]
        self.fails = self.fails or bool(re.match(r"#!.*\s-\w*e", text))
        self.lines(text, str(path))

    def lines(self, text: str, name: str, line: int = 1) -> None:
        for found in _DIRECTIVE.finditer(text):
            self.launch.texts.append(Text(f"{name}:{line + text.count(chr(10), 0, found.start())}", normal(found[0])))
        try:
            split = commands(text)
        except (UnreadableError, RecursionError):
            self.launch.texts.extend(
                Text(f"{name}:{at}", normal(one)) for at, one in enumerate(text.splitlines(), line)
            )
            self.launch.hidden.append(Hidden(f"{name}:{line}", "", "it cannot be split into commands"))
            self.sure = False
            return
        for command in split:
            self.now = f"{name}:{line + command.line - 1}"
            self.name, self.offset = name, line - 1
            self.command(command)

    name, offset = "", 0

    def nested(self, text: str, *, path: Path | None = None, args: tuple[str, ...] = (), here: bool = False) -> None:
        """A text that another shell runs, or this one where it is ``here``: whether it gets there is not said."""
        shell = copy(self)
        shell.values, shell.changing = (self.values, self.changing) if here else (dict(self.values), set(self.changing))
        shell.certain, shell.sets = self.level == 0 and self.certain, []
        if path is not None:
            shell.script(text, path, args)
        else:
            name, _, line = self.now.rpartition(":")
            shell.level, shell.args = self.level + 1, args
            shell.lines(text, *((name, int(line)) if name else (self.now, 1)))
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
        """A file that is read for names only."""
        python = path.suffix not in (".yaml", ".yml", ".env")
        if python:
            text = re.sub(r"^[ \t]*#(?!SBATCH).*", "", text, flags=re.MULTILINE)
            joined = re.sub(r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']", "", text)
            self.python(text, str(path))
        for variant in (text, joined) if python else (text,):
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
        if split and re.search(r"(?<!\$)\{[^{}'\"]*,[^{}]*\}", raw) and raw[:1] not in "'\"":
            return [INSIDE]
        while at < len(raw):
            char, end, text = raw[at], at + 1, ""
            if char == '"':
                inner, quoted = not inner, True
            elif char == "\\":
                end = at + 2
                escaped = raw[at + 1 : end]
                text = "" if escaped == "\n" else raw[at:end] if inner and escaped not in '$`"\\' else escaped
            elif not inner and (char == "'" or raw.startswith("$'", at)):
                end, quoted = skipped(raw, at), True
                text = raw[at:end].lstrip("$")[1:-1]
                if char == "$":
                    text = text.encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")
            elif char in "$`" or raw.startswith(("<(", ">("), at):
                end = skipped(raw, at)
                found, several = self.value(raw[at:end])
                if split and not inner:
                    found = [INSIDE] * len(found) if self.splits else [part for one in found for part in one.split()]
                elif not several:
                    found = [" ".join(found)]
                gone = gone or (several and not found)
                text, words = found[0] if found else "", [*words, *found[1:]]
                words[len(words) - max(len(found), 1)] += text
                at = end
                continue
            else:
                text = char
            words[-1] += text
            at = end
        return words if words != [""] or (quoted and not gone) else []

    def value(self, raw: str) -> tuple[list[str], bool]:
        """What an expansion stands for, and whether each of several texts is a word of its own."""
        if raw == "$":
            return ["$"], False
        if raw.startswith(("$((", "${#")):
            return [INSIDE], False
        if raw[0] == "`" or raw.startswith(("$(", "<(", ">(")):
            return [self.folder(raw)], False
        found = _PARAMETER.fullmatch(raw)
        if not found:
            return [OUTSIDE], False  # a part of a variable, or one that another variable names
        name, index, colon, operator, other = found.groups()
        several = bool(index) or name == "@"
        values = self.known(name, operator or "")
        is_set = bool(values) and (values != ("",) or not colon)
        if operator == "+":
            return (self.expand(other) if is_set else []), False
        if operator in ("-", "=") and not is_set:
            values = (" ".join(self.expand(other, split=False)),)
            if operator == "=":
                self.assign(name, values, f"{name}={other}", certain=False)
        elif operator == "?" and not is_set:
            self.sure = False
        return [*values], several

    def known(self, name: str, operator: str) -> tuple[str, ...]:
        """The values of a parameter."""
        if name in ("@", "*") or name.isdigit():
            at = int(name) if name.isdigit() else -1
            known = self.args if at < 0 else (str(self.path or OUTSIDE),) if not at else self.args[at - 1 : at]
            return (INSIDE,) if self.in_function or INSIDE in self.args else known
        if name in "#?$!-" or name in ("RANDOM", "SECONDS", "LINENO"):
            return (INSIDE,)
        if name in ("PWD", "OLDPWD"):
            return (".",)
        if name == "BASH_SOURCE":
            return (str(self.path or OUTSIDE),)
        self.sure = self.sure and not (self.strict and name not in self.values and operator != "-")
        return self.values.get(name, () if operator else (OUTSIDE,))

    def folder(self, raw: str) -> str:
        """The folder that a command prints, where it is that of the script or the one that we are in."""
        found = _FOLDER.fullmatch(raw) or _DIRNAME.fullmatch(raw)
        if not found:
            return OUTSIDE
        of_script = found.re is _DIRNAME or found[1]
        start = str(self.path.absolute().parent) if of_script and self.path else OUTSIDE if of_script else "."
        return start + (found[2] if found.re is _FOLDER else "")

    # --- commands ---

    def assign(self, name: str, values: tuple[str, ...], found: str, *, certain: bool) -> None:
        if not certain or name in self.changing:
            parts = [part for value in (*values, *self.values.get(name, ())) for part in value.split()]
            values = (OUTSIDE if any(map(is_hidden, parts)) else INSIDE,)
        self.values[name], self.origins[name] = values, (self.now, found)
        self.splits = self.splits or name == "IFS"
        self.exported |= {name} if self.exports else set()

    def assignment(self, raw: str, *, certain: bool) -> tuple[str, str]:
        """The name and the value of ``NAME=value``, ``NAME+=value`` or ``NAME=(…)``, which is done."""
        found = _ASSIGNMENT.match(raw)
        assert found is not None  # noqa: S101 - who calls has looked
        (name, index, more), text = found.groups(), raw[found.end() :]
        array = text.startswith("(")
        values = (
            [one for word in tokens(text[1:-1]) for one in self.expand(word.text)]
            if array
            else self.expand(text, split=False)
        )
        values = values or ([] if array else [""])
        if more:
            old = self.values.get(name, ())
            values = [*old, *values] if array else ["".join((*old[:1], *values)), *old[1:]]
        self.assign(name, (*values,), raw, certain=certain and not index)
        return name, " ".join(values)

    def command(self, command: Command) -> None:
        """Take in a command: what it assigns, what it names, and what it starts."""
        certain, self.in_function = command.outer and command.here and self.certain, command.function
        raw = [word.text for word in command.words]
        if raw[:1] == ["function"]:
            self.functions.add(raw[1])
            return
        self.sets, sure = [], command.outer and self.certain and self.sure
        assigned = [*takewhile(_ASSIGNMENT.match, raw)]
        words, places = self.words(command.words[len(assigned) :])
        before, kept = self.sure, dict(self.values)
        pairs = [self.assignment(one, certain=certain and not words) for one in assigned]
        if command.function:
            self.changing |= {name for name, _ in pairs}
        self.sets += [name for name, _ in pairs]
        self.launch.written.update(name_of(found) for target in command.writes for found in self.expand(target))
        plain = True
        if words:
            prefixed = {name: Variable(value, self.now, f"{name}={value}") for name, value in pairs}
            self.values = kept
            plain = self.run(command, words, places, raw[len(assigned) :], prefixed, sure=sure)
        text, expanded = (
            "\n".join((*raw, command.stdin)),
            "\n".join((*words, *(f"{name}={value}" for name, value in pairs))),
        )
        plain, name = plain and sure and not any(map(is_hidden, words)), name_of(words[0]) if words else ""
        self.launch.texts.append(
            Text(self.now, normal(text), expanded, plain, (*self.sets,) if sure or not words else ())
        )
        if before and not command.function:
            self.sure = self.sure and not self.may_end(name, words, text)

    def words(self, raw: Iterable[Word]) -> tuple[list[str], list[str]]:
        """The words of a command with what is known of their variables, and where each of them stands."""
        words, places = list[str](), list[str]()
        for word in raw:
            array = _ASSIGNMENT.match(word.text) and word.text[-1] == ")"
            found = [word.text] if array else self.expand(word.text)
            words += found
            places += [self.now if self.now == COMMAND else f"{self.name}:{word.line + self.offset}"] * len(found)
        return words, places

    def may_end(self, name: str, words: list[str], text: str) -> bool:
        """Whether the script may not get behind a command."""
        if name in ("exit", "return", "kill") or (name == "exec" and words[1:]) or name in self.functions:
            return True
        cannot_fail = _CANNOT_FAIL.fullmatch(name) if name else not re.search(r"\$\(|`", text)
        return (self.fails and not cannot_fail) or bool(_MAY_NEVER_END.search(text))

    def run(
        self,
        command: Command,
        words: list[str],
        places: list[str],
        raw: list[str],
        variables: dict[str, Variable],
        *,
        sure: bool,
    ) -> bool:
        """Take in the words of a command; whether it is a builtin or a program that is plainly started here."""
        certain, name = command.outer and command.here and self.certain, name_of(words[0])
        if name in ("export", "declare", "typeset", "local", "readonly"):
            return self.declare(name, raw[1:], certain=certain and name != "local", function=command.function)
        if name == "unset":
            for one in words[1:]:
                self.unset(one, certain=certain)
            return True
        if name in (
            "set",
            "shift",
            "cd",
            "read",
            "mapfile",
            "readarray",
            "printf",
            "let",
            "getopts",
            "for",
            "select",
            "alias",
        ):
            self.builtin(name, words, certain=certain)
            return False
        if name in (".", "source", "eval"):
            text = " ".join(words[1:])
            if name != "eval":
                self.file(words[1] if words[1:] else "", (*words[2:],) or self.args, here=True)
                self.sure = self.sure or bool(_SETS_UP.fullmatch(text))
            elif OUTSIDE in text or INSIDE in text:
                if not _SETS_UP_BY.fullmatch(raw[-1]):
                    self.hide("what `eval` runs is only known when it runs", text)
            else:
                self.nested(text, here=True)
            return False
        return self.start(command, words, places, variables, sure=sure)

    def declare(self, name: str, raw: list[str], *, certain: bool, function: bool) -> bool:
        options = "".join(one for one in raw if re.match(r"-\w", one))
        export = name == "export" or "x" in options
        for one in (one for one in raw if one[:1] != "-"):
            expanded = [one] if _ASSIGNMENT.match(one) else self.expand(one)
            for word in expanded:
                variable = word.partition("=")[0].rstrip("+").partition("[")[0]
                if OUTSIDE in variable or INSIDE in variable:
                    self.sure = False
                    if variable != INSIDE:
                        self.hide("the name of the variable that it sets is only known when it runs", word)
                    continue
                self.changing |= {variable} if function or re.search("[luin]", options) else set()
                if "=" in word:
                    self.assignment(
                        word if word is one else f"{variable}={shlex.quote(word.partition('=')[2])}", certain=certain
                    )
                elif not certain or re.search("[nluin]", options):
                    self.assign(variable, self.values.get(variable, ("",)), word, certain=False)
                self.exported |= {variable} if export else set()
                self.sets += [variable] if certain and export and "n" not in options else []
        return True

    def unset(self, name: str, *, certain: bool) -> None:
        if certain:
            self.values.pop(name, None)
            self.origins[name] = (self.now, f"unset {name}")
            self.sets.append(name)
        else:
            self.assign(name, (INSIDE,), f"unset {name}", certain=False)
        self.sure = self.sure and not is_hidden(name)

    def builtin(self, name: str, words: list[str], *, certain: bool) -> None:
        operands = [word for word in words[1:] if word[:1] not in "-+"]
        if name == "set":
            self.options(words, operands, certain=certain)
        elif name == "shift":
            self.args = (
                self.args[int(operands[0]) if operands[:1] and operands[0].isdigit() else 1 :] if certain else (INSIDE,)
            )
        elif name == "cd" and operands and OUTSIDE not in operands[0] and INSIDE not in operands[0]:
            self.folders = [self.folders[0] / operands[0], *self.folders]
        elif name == "alias":
            self.functions |= {word.partition("=")[0] for word in operands}
        elif name in ("for", "select"):
            listed = words[3:] if words[2:3] == ["in"] else [INSIDE]
            self.assign(
                words[1] if words[1:] else "_", (OUTSIDE if any(map(is_hidden, listed)) else INSIDE,), "", certain=False
            )
        elif name != "printf" or "-v" in words:
            for one in operands:
                self.assign(one.partition("=")[0], (OUTSIDE,), "", certain=False)

    def options(self, words: list[str], operands: list[str], *, certain: bool) -> None:
        """What `set` changes; an option that is set somewhere else may count."""
        flags = "".join(word for word in words[1:] if re.match(r"-\w", word)) + " ".join(operands)
        off = "".join(word for word in words[1:] if word[:1] == "+") if certain else ""
        self.fails = (self.fails or "errexit" in flags or "e" in flags.partition("o")[0]) and "e" not in off
        self.strict = self.strict or "nounset" in flags or "u" in flags.partition("o")[0]
        self.exports = (self.exports or "allexport" in flags or "a" in flags.partition("o")[0]) and "a" not in off
        if "--" in words:
            self.args = (*words[words.index("--") + 1 :],) if certain else (INSIDE,)
        elif operands and "o" not in flags:
            self.args = (*operands,) if certain else (INSIDE,)

    def start(
        self, command: Command, words: list[str], places: list[str], variables: dict[str, Variable], *, sure: bool
    ) -> bool:
        """Take in a program: the files that it names, the texts that it is given, and how it is started."""
        name = name_of(words[0])
        function = name in self.functions
        at = self.wrapped(words, places, variables)
        program = name_of(words[at]) if at < len(words) else ""
        plain = bool(_PROGRAM.fullmatch(program)) and not function
        if not function and not _NO_LAUNCH.fullmatch(name):
            if is_hidden(words[0]) or (OUTSIDE in name and words[0] != INSIDE):
                self.hide("the program that it starts is only known when it runs", " ".join(words))
            if _SHELL.fullmatch(program):
                self.interpreted(command, words[at + 1 :])
                return self.level == 0
            self.files(name, words[at:] if plain else words, program, command.stdin)
        exported = {
            one: Variable(" ".join(self.values[one]), *self.origins[one])
            if one in self.values
            else Variable(None, *self.origins[one])
            for one in self.origins
            if one in self.exported
        }
        program_at = at if plain else None
        where, folders = self.now, (*self.folders,)
        seen = {} if _NO_LAUNCH.fullmatch(name) else {**exported, **variables}
        self.launch.starts.append(Start(where, (*words,), (*places,), seen, program_at, sure, folders))
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

    def interpreted(self, command: Command, words: list[str]) -> None:
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
        elif command.stdin:
            self.nested(command.stdin, args=(*operands,))
        else:
            self.hide("what the shell reads is only known when it runs", " ".join(words))

    def files(self, name: str, words: list[str], program: str, stdin: str) -> None:
        """The texts and files that the words of a program name."""
        operands = [word for word in words[1:] if word[:1] != "-"]
        if name in ("xargs", "parallel") and any(map(_starts, operands)):
            self.hide("the words that it adds are only known when it runs", " ".join(words))
        composes = name.startswith("docker") and "compose" in (*words, name[7:]) and "up" in words
        if name in ("make", "just") or composes:
            self.hide("what it starts stands in a file of its own", " ".join(words))
        texts = [word for word in (*words[1:], stdin) if re.search(r"\s", word)]
        if _PROGRAM.fullmatch(program):
            for text in texts:
                self.python(text, "")
            if "python" in program and operands and not {"-m", "-c"} & {*words}:
                self.file(operands[0])
        elif _ELSEWHERE.fullmatch(name):
            for text in texts:
                self.nested(text)
        if "/" in words[0] and not _PROGRAM.fullmatch(name) and not words[0].startswith(("/usr/", "/bin/", "/opt/")):
            self.file(words[0], (*words[1:],))
        self.named(words)

    def named(self, words: list[str]) -> None:
        """The files and modules among the words of a program."""
        for before, word in pairwise(words):
            value = word.partition("=")[2] if word[:1] == "-" else word
            file = _READ.fullmatch(value) and (word[:1] == "-" or "=" not in word) and "://" not in word
            if file and not _CONFIG_NAME.match(word) and not _CONFIG_NAME.fullmatch(before):
                self.file(value)
            if before in ("-m", "--module") and word.partition(".")[0] not in self.launch.packages:
                module = find(f"{word.replace('.', '/')}.py", self.folders)
                if module:
                    self.file(str(module))
