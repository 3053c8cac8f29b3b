"""Reads the texts of a launch: environment, command, script, and the files that these name, one level down.

Nothing is interpreted. A script is plain as long as it is one simple command after the other: what these export and
start is known. Everything behind is only searched, for names and for what may hide a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import dropwhile, pairwise
from pathlib import Path
from posixpath import basename
from shlex import quote
from typing import NamedTuple

from patcher.guards.certain import LaunchText, certain, normal
from patcher.guards.result import Hidden, Launch
from patcher.guards.shell import ShellCommand, Word, split
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for an expansion: of what only the run tells, and of whole names that stand among the texts."""
KEPT = "\2"
"""Stands before what PYTHONPATH expands to, which has what a run added to it."""
COMMAND = Text("command after --")
ENVIRONMENT = Text("environment")

_LEVELS = 2  # the script, and the files that it names
_NESTED = 8  # texts for a shell in texts for a shell …
_LONGEST = 2000  # of the value of a variable
_LARGEST = 1 << 17  # of a file that is read, in bytes
_UNKNOWN = Word(0, "$()")
_KEYWORDS = ("if", "then", "elif", "else", "do", "while", "until", "!", "time", "-p", "{", "coproc")
_ASSIGNS = partial(re.match, r"(?a)([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_EXPORTS = r"(export|unset|(declare|typeset|local|readonly) -[gaA]*x[gaA]*) [^-+].*"
_SETS = r"(?s)(read|mapfile|readarray|getopts|let|unset|printf -v) .*"
_PARAMETER = r"(?s)\$\{?(\w+)(\[[^\]]*\])?(?::?([-+=?])(.*?))?\}?"
_PYTHONPATH = r"\$\{?PYTHONPATH\b"
_FOLDER = (  # of the script
    r"\$\((cd (-- )?\"?\$\()?dirname (-- )?\"?\$(0|BASH_SOURCE|\{(0|BASH_SOURCE(\[0\])?)\})\"?\)(\"? .*&& pwd\))?"
)
_SAFE = (  # arguments, numbers, paths, tests
    r"(?s)\$[0-9@*#?$!-]|\$\{([0-9]+|[@*](:\d+)*|#[^}]*)\}|\$\{?(PWD|HOME|USER|HOSTNAME|RANDOM)\}?|\$\(\(.*"
)
_SETS_UP = (  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_SETS_UP_BY = r"\$\((?:\S*/)?(?:conda|mamba|micromamba|pyenv|ssh-agent|resize)\b[^)]*\)"
_FILE = (  # among the words of a program, behind the word before it; a name of a configuration is none
    r"(?!(\S* )?(--config-name|-cn)\b|\S* \S*://)\S* (?:--?[\w-]+=|(?!-))(?P<file>[^=\s]+\.(?:sh|bash|py|ya?ml|env|in))"
)
_SHELL = r"(ba|da|z|k)?sh"
_RUNS_FILES = r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed"
_PROFILERS = r"msprof|nsys|ncu|rocprof\S*"
_PROGRAM = rf"{_RUNS_FILES}|vllm|sglang|{_PROFILERS}"
_CARRIES = (
    r"srun|mpi(run|exec)|torchrun|accelerate|deepspeed|ray|docker|podman|nerdctl|singularity|apptainer|enroot|kubectl"
    r"|ssh|pdsh|sudo|conda|mamba|micromamba|uv|poetry|pixi|command"
)
wraps = partial(  # what may stand before the program, or behind these
    re.match,
    r"(.*/)?(nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env)$|-|\d[\d.,:-]*[smhd]?$|\w+=\S*$",
)
_HARMLESS = (  # they start nothing, set nothing, and go on, whatever words they get
    r"|:|\[\[?|test|true|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|git|e?grep|sed|awk"
    r"|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|tee|basename|dirname|realpath|hostname|nvidia-smi|npu-smi|which|type|pwd"
    r"|seq|tr|cut|find|df|du|free|uname|apt(-get)?|hf|huggingface-cli|ps|#\w+"
)
_ENDS = r"curl|wget|unset|wait|p?kill|exit|return|break|continue|shift|for|select|case|function|in|done|fi|esac|else|\}"
_WRITES = r"cp|mv|ln|sed|tee|wget|curl|tar|unzip|git|install|rsync|envsubst|patch"
_PLAIN = (  # commands behind which a script surely goes on, and means the same
    rf"(?s)(?!sleep inf|tail .*-[fF]|printf -v|.*--block)({_HARMLESS}|{_PROGRAM}|curl|wget|ray)( .*)?"
    rf"|set [-+][eux]+(o pipefail)?|{_EXPORTS}|(export|declare|readonly) [^-+].*|(\.|source) ({_SETS_UP})"
)
_PASSES_ALWAYS = r"(?s)(:|echo|set|export)( [^\0\1]*)?"
_FAILS = r"set .*(-\w*[eu]|errexit|nounset)"  # then whatever fails ends the script
_DIVERTS = r"\bexec\s|\$\{\w+:?[=?]|^IFS="
_HANDED = r"((sudo|command|srun|uv|conda) .*)?"
_COMPUTED = (  # commands that start or set what only the run tells: by a hidden word, or what they are fed with
    rf"(?s)\0.*|.*BASH_ENV.*|(?!({_HARMLESS}|{_ENDS}|{_PROGRAM}) )\S* (.* )?\0( .*)?"
    rf"|(alias|trap) .*\0.*|eval .*[\0\1].*|{_HANDED}(make|just|docker.* up)\b.*"
    rf"|{_HANDED}(xargs|parallel|find .* -(exec|ok)(dir)?)"
    r"(?!( (-\S+|\d+|\{\S*\}))*( (echo|printf|rm|kill|ls|cat|mkdir|grep|wc)\b|$)).*"
)
_RUNS_INPUT = rf"(?s)(ssh|pdsh) .*|[\0\1]|(.*[\s/])?{_SHELL}( -s.*| -)?"
_JOINED = r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']"  # strings in Python
_PYTHON_HIDES = (
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]|\bsubprocess\.\w+\(|\bos\.(system|popen|exec\w+|spawn\w+)\("
)
_INPUT = Text("the standard input of this command is only known at run time")


class Start(NamedTuple):
    """A command with its words and the variables that it gets or exports (None: it unsets the variable).

    ``program`` is the name of Python or of a launcher of Python; "" for another program, which may run elsewhere or
    without the environment. ``sure`` tells that the launch certainly runs the command.
    """

    where: str
    words: tuple[str, ...]
    variables: Mapping[str, str | None]
    program: str
    sure: bool
    folders: tuple[Path, ...] = ()


@dataclass
class Reading:
    """Everything that was read of a launch; Python modules of ``packages`` are not read."""

    packages: tuple[str, ...] = ()
    texts: list[LaunchText] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    settings: list[LaunchText] = field(default_factory=list)  # lines of Python and YAML that certainly count
    written: set[str] = field(default_factory=set)  # names of files that the launch writes

    def place(self, text: str, default: str) -> str:
        """Return the last place where ``text`` stands; ``default`` if it stands nowhere."""
        literal = re.split("[\0\1]", text)[0] or text
        return next((line.where for line in reversed(self.texts) if literal in line.text), default)


def read(launch: Launch, packages: tuple[str, ...] = ()) -> Reading:
    """Return the texts, starts and hidden places of a launch.

    Modules of ``packages`` are not read. Raises Problem (USAGE) if a script that the user names cannot be read.
    """
    result = Reading(packages)
    typed = [launch.command] if launch.command else []
    if launch.script is not None:
        is_python = launch.script.suffix == ".py" or re.match("#!.*python", text_of(launch.script))
        typed.insert(0, ("python" if is_python else "bash", str(launch.script)))
    for words in typed:
        typed_words = (Word(1, quote(word.replace("\0", ""))) for word in words)
        _Reader(result, launch.environ).command(ShellCommand((*typed_words,)))
    if all(
        start.words[:1] in (("curl",), ("wget",)) for start in result.starts
    ):  # what may be started gets the environment
        result.starts.append(Start(ENVIRONMENT, ("",), {}, "python", sure=True))
    return result


def within_sentence(where: str) -> str:
    """Return a place in the form for the middle of a sentence."""
    return Text("the command after --") if where == COMMAND else where


def is_hidden(word: str) -> bool:
    """Tell whether ``word`` may set any key: the part before = is unknown or joined from expansions."""
    key = word.partition("=")[0].strip("[]'\",")
    is_path = re.match(r"[\0\1]+/", key)
    return not is_path and (OUTSIDE in key or (INSIDE in key and key != INSIDE))


def is_known(text: str) -> bool:
    """Tell whether ``text`` contains no part that is known only at run time."""
    return OUTSIDE not in text and INSIDE not in text


def carries(words: Sequence[str]) -> bool:
    """Tell whether the first of ``words`` is a launcher that certainly runs the program behind its options."""
    return bool(words) and bool(re.fullmatch(_CARRIES, basename(words[0])))


def shown(text: object) -> str:
    """Return ``text`` for people, with … for each part that is known only at run time."""
    return re.sub("[\0\1]+", "…", str(text).replace(KEPT, ""))


def may_start(start: Start) -> bool:
    """Tell whether a start may lead to a Python process: it is more than an assignment or an end of the script."""
    words = [*dropwhile(_ASSIGNS, start.words)]
    return bool(words) and not re.fullmatch(
        rf"{_ENDS}|{_HARMLESS}|export|declare|typeset|local|readonly|ray stop", words[0]
    )


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """Return the file ``word`` in the first of ``folders`` that has it; None without such a file or a known word."""
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
        hint = Text("use readable files; the launch script must be a shell or Python script")
        raise Problem(
            Kind.USAGE, Text("cannot read a file that the launch names: {reason}", reason), str(path), hint
        ) from error


@dataclass
class _Reader:
    """Reader at one place of a launch, which adds to ``result``.

    Copies for files that the launch names share the assigned ``values``.
    """

    result: Reading
    environ: Mapping[str, str]
    values: dict[str, list[Word]] = field(default_factory=dict)  # that variables get
    constants: dict[str, str] = field(default_factory=dict)  # of variables with one value, once it was assigned
    clear: dict[str, bool] = field(default_factory=dict)
    files: set[tuple[str, bool]] = field(default_factory=set)  # whose texts were read, and whether they are plain
    folders: tuple[Path, ...] = (Path(),)
    path: Path | None = None
    line: int = 1
    level: int = 0
    nested: int = 0
    plain: bool = True
    fails: bool = False

    def note(self, text: str, line: int, *, plain: bool = False) -> None:
        for number, content in enumerate(normal(text).splitlines(), line):
            self.result.texts.append(LaunchText(f"{self.path}:{number}" if self.path else COMMAND, content, plain))

    def hide(self, reason: str, text: str) -> None:
        where = f"{self.path}:{self.line}" if self.path else COMMAND
        self.result.hidden.append(Hidden(where, shown(text)[:200], reason))

    def script(self, text: str, line: int = 1) -> None:
        """Read a shell script that begins at ``line``; one that cannot be split into commands is only searched."""
        try:
            commands = split(text, line)
            for command in commands:
                self.learn(command)
            for command in commands:
                self.command(command)
        except (ValueError, RecursionError):
            self.note(text, line)
            self.hide(Text("rlpatch cannot split this text into commands"), str(self.path or ""))

    def inner(self, text: str, line: int, *, plain: bool = False) -> None:
        """Read shell text of an expansion or an inner shell; with ``plain`` a shell runs it, without arguments.

        Text that is nested too deeply is not read but recorded as hidden.
        """
        if self.nested < _NESTED:
            constants = {} if plain else self.constants  # another shell has only what is exported
            replace(self, nested=self.nested + 1, plain=plain, constants=constants).script(text, line)
        else:
            self.hide(Text("this text is nested too deeply in quotes and expansions"), text)

    def file(self, word: str, *, plain: bool = False) -> None:
        """Read the file ``word`` that the launch names: a script, a Python program or settings.

        Record as hidden a file that is missing, too large, written by the launch or named too many levels down. Raises
        Problem (USAGE) if it cannot be read.
        """
        path, is_written = find(word, self.folders), basename(word) in self.result.written
        is_read = bool({(word, plain), (word, True)} & self.files)
        if not is_written and (is_read or (not path and re.fullmatch(_SETS_UP, word))):
            return
        self.files.add((word, plain))
        if is_written or not path:
            self.hide(Text("the launch names a file that was not found here or is only known at run time"), word)
        elif self.level >= _LEVELS or path.stat().st_size > _LARGEST:
            self.hide(
                Text("the file is too large, or the launch refers to it only indirectly, through another file"), word
            )
        else:
            text = text_of(path)
            plain = plain and not re.match("#!.* -", text)
            folders = (*self.folders, *path.absolute().parents)
            reader = replace(self, path=path, level=self.level + 1, plain=plain, folders=folders)
            is_shell = path.suffix in (".sh", ".bash", "") or re.match("#!.*sh", text)
            (reader.script if is_shell else reader.python)(text, 1)

    def python(self, text: str, line: int) -> None:
        """Add the lines of Python or settings from ``line`` on, also with adjacent strings joined.

        Record as hidden the first code that computes names. Read the shell scripts that the text names.
        """
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        self.note(text, line)
        self.note(re.sub(_JOINED, "", text), line)
        if self.plain and self.path:
            self.result.settings += certain(self.path, text)
        if match := re.search(_PYTHON_HIDES, text):
            self.line = text.count("\n", 0, match.start()) + line
            self.hide(Text("what this code sets or runs is only known at run time"), match[0])
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.file(script)

    # --- words ---

    def learn(self, command: ShellCommand) -> None:
        """Record the values that a command assigns and the files that it writes, whether it runs or not."""
        self.clear.clear()
        words = _stripped(command)
        texts = [word.text for word in dropwhile(lambda word: _ASSIGNS(word.raw), words)]
        name = texts[0] if texts else ""
        for word in words:
            if match := _ASSIGNS(word.raw):
                value = Word(word.line, word.raw[match.end() :])
                is_glued = match[3] and not value.text.startswith(("(", " "))
                elements = [Word(word.line, ""), *_elements(value.raw)] if value.raw.startswith("(") else [value]
                self.values.setdefault(match[1], []).extend([_UNKNOWN] if is_glued else elements)
        if name in ("for", "select"):
            self.values.setdefault("".join(texts[1:2]), []).extend(words[3:])
        elif re.match(_SETS, " ".join(texts)):
            for text in texts[1:]:
                self.values.setdefault(text.partition("=")[0], []).append(_UNKNOWN)
        elif re.fullmatch(_WRITES, name):
            self.result.written.update(map(basename, texts[1:]))
        self.result.written.update(basename(word.text) for direction, word in command.redirects if ">" in direction)

    def value(self, raw: str) -> str:
        """Return the text of an expansion if only one is possible, else the mark INSIDE or OUTSIDE.

        What keeps the value of PYTHONPATH is marked KEPT, too.
        """
        match = re.fullmatch(_PARAMETER, raw)
        if re.match(_PYTHONPATH, raw):
            is_replaced = match and match[3] == "+"
            return Word(self.line, match[4]).marked(self.value) if match and is_replaced else f"{KEPT}{raw}"
        text = self.constant(match) if match else None
        if text is None:
            text = self.fixed(raw)
        if text is not None:
            return text
        values = self.values.get(match[1], []) if match else []
        is_kept = values and all(re.search(_PYTHONPATH, word.raw) for word in values)
        return (INSIDE if self.is_clear(raw) else OUTSIDE) + (KEPT if is_kept else "")

    def fixed(self, raw: str) -> str | None:
        """Return what an expansion always is in a script that was started without arguments; None for others."""
        if self.plain and re.fullmatch(r"\$\{?[1-9@*]\}?", raw):
            return ""
        if self.path and re.fullmatch(_FOLDER, raw):
            return str(self.path.absolute().parent)
        if re.fullmatch(rf"\$\(pwd\)|\$\{{?PWD\}}?|{_SETS_UP_BY}", raw):
            return "."
        return ":" if raw.startswith(("[[", "((")) else None

    def constant(self, match: re.Match[str]) -> str | None:
        """Return the only value of a variable, or the default in the expansion; None if there may be others."""
        name, values = match[1], self.values.get(match[1], [])
        if len(values) == 1 and name in self.constants:
            return self.constants[name]
        if match[3] != "-" or name in self.environ or [word.text for word in values] not in ([], [match[0]]):
            return None
        default = Word(self.line, match[4]).marked(self.value)
        return default if is_known(default) else None

    def is_clear(self, raw: str) -> bool:
        """Tell whether an expansion yields only whole words that are among the texts that were read.

        Adds the words of its possible values to the texts.
        """
        if raw not in self.clear:
            self.clear[raw] = True  # where a variable refers to itself, its other values decide
            match = re.fullmatch(_PARAMETER, raw)
            is_set, words = bool(re.fullmatch(_SAFE, raw)), list[Word]()
            if raw.startswith("("):
                is_set, words = True, _elements(raw)
            elif match and not is_set:
                values = self.values.get(match[1], [])
                is_set, words = bool(values) or match[3] is not None, [*values, *_elements(f"({match[4] or ''})")]
            for word in words:
                marked = word.marked(self.value)
                is_set = is_set and not any(map(is_hidden, marked.split()))
                if marked != word.text:
                    self.note(marked, self.line)
            self.clear[raw] = is_set
        return self.clear[raw]

    def marks(self, word: Word) -> list[str]:
        """Return the words to which ``word`` expands: a lone unquoted expansion may be no word or several."""
        mark = word.marked(self.value)
        return mark.split() if re.fullmatch(r"\"?\$(\w+|[@*]|\{[^}]*\})\"?", word.raw) else [mark]

    # --- commands ---

    def command(self, command: ShellCommand) -> None:
        """Record what a command sets and starts, read the files that it names, and update ``plain``."""
        words = _stripped(command)
        sources = [*words, *(word for _, word in command.redirects)]
        self.line = min((word.line for word in sources), default=self.line)
        call = _Call([mark for word in words for mark in self.marks(word)])
        is_plain = self.plain and _stands_alone(command, call)
        self.plain = is_plain and not call.is_emptied
        for word in sources:
            for text in word.commands():
                self.inner(text, word.line)
        self.start(call, is_plain=is_plain)
        self.follow(command, call)
        is_taken = call.is_export or call.is_python or bool(self.level == 0 and re.fullmatch(_SHELL, call.program))
        for word in sources:
            text = word.marked(lambda raw: self.value(raw) if is_known(self.value(raw)) else raw)
            self.note(text, word.line, plain=is_plain and is_taken and word in words)
        self.plain = is_plain and self.passes(call) and not re.search(_DIVERTS, " ".join(word.raw for word in words))

    def start(self, call: _Call, *, is_plain: bool) -> None:
        """Record the constants that a command assigns, and the start of its program."""
        pairs = [word.partition("=") for word in call.variables]
        for variable, _, value in pairs if not (call.texts or self.nested) else ():
            if is_known(value) and len(value) < _LONGEST and variable not in self.environ:
                self.constants[variable] = value
        if call.marks and (not call.is_harmless or call.program == "unset"):
            program = call.program if call.is_python and not call.is_emptied else ""
            variables = {name: value if equals else None for name, equals, value in pairs}
            place = f"{self.path}:{self.line}" if self.path else COMMAND
            self.result.starts.append(Start(place, (*call.marks,), variables, program, is_plain, self.folders))

    def passes(self, call: _Call) -> bool:
        """Tell whether a script surely goes on after a command, with the same meaning."""
        is_passed = not call.own or re.fullmatch(_PASSES_ALWAYS if self.fails else _PLAIN, call.shape)
        may_fail = self.fails and not all(map(is_known, call.marks))
        is_edited = self.result.written & {*map(basename, call.own)} and not re.fullmatch(_WRITES, call.program)
        self.fails = self.fails or bool(re.match(_FAILS, call.shape))
        return bool(is_passed) and not (may_fail or is_edited or any(map(is_hidden, call.marks)))

    def follow(self, command: ShellCommand, call: _Call) -> None:
        """Read the files, texts and input that a command passes on; record as hidden what cannot be read."""
        text = " ".join(call.own)
        documents = [word for direction, word in command.redirects if direction == "<<<"]
        if re.fullmatch(_COMPUTED, call.shape):
            self.hide(Text("what this command starts or sets is only known at run time"), " ".join(call.texts))
        if re.fullmatch(_RUNS_INPUT, text):
            self.inputs(command, documents, text)
        elif re.fullmatch(_SHELL, call.program) and not re.match(r"\S+( -\w+)* -\w*c", text):
            self.shell(call.own)
        if call.program in (".", "source"):
            self.file("".join(call.own[1:2]))
        elif call.program in ("cd", "pushd"):
            is_here = is_known(text) and self.folders
            self.folders = (self.folders[0] / "".join(call.own[1:2]), *self.folders) if is_here else ()
        elif not re.fullmatch(rf"{_HARMLESS}|{_ENDS}", call.program):
            self.programs(command, call, documents)

    def inputs(self, command: ShellCommand, documents: list[Word], text: str) -> None:
        """Read the here-documents that a shell runs; record any other input as hidden."""
        is_fed = command.before == "|" or any(direction in ("<", "<>") for direction, _ in command.redirects)
        if is_fed or not (documents or re.match(r"ssh|pdsh|[\0\1]", text)):
            self.hide(_INPUT, text)
        for document in documents:
            self.inner(document.raw.replace("\\$", "$"), document.line)

    def shell(self, words: list[str]) -> None:
        """Read the script that a shell runs; it is plain if the user named it without arguments and options.

        Raises Problem (USAGE) if a script that the user named does not exist.
        """
        operands = [*dropwhile(lambda word: word[:1] in ("-", "+") or word in ("pipefail", "errexit"), words[1:])]
        if self.level + self.nested == 0 and not find("".join(operands[:1]), self.folders):
            text_of(Path("".join(operands[:1])))  # what the user names is there
        self.file("".join(operands[:1]), plain=self.plain and self.level == 0 and words[1:] == operands[:1])

    def programs(self, command: ShellCommand, call: _Call, documents: list[Word]) -> None:
        """Read the words of a command that are programs or names of files."""
        is_code = call.is_python and not re.fullmatch(_PROFILERS, call.program)
        is_whole = re.fullmatch(_SHELL, call.program) and re.fullmatch(r"-\w*c", " ".join(call.own[1:-1]))
        for source in command.words:
            if is_code and re.search(r"\w\s", source.text):
                replace(self).python(source.text, source.line)
            elif not is_code and re.search(r"[\s<;&|]", source.marked(lambda _: "")):
                self.inner(source.text, source.line, plain=self.plain and bool(is_whole))
        if "/" in call.program:
            self.file(call.program)
        self.named(call)
        if re.fullmatch(_RUNS_FILES, call.program):
            self.modules(call.own, documents)

    def named(self, call: _Call) -> None:
        """Read the files that the words of a command name; the first program and a runtime environment are plain."""
        is_sure = self.plain and (call.is_python or carries(call.own))
        for option, word in pairwise(call.own if call.is_python else call.texts):
            if file := re.fullmatch(_FILE, f"{option} {word}"):
                is_first = word.endswith(".py") or re.match("(--runtime-env|.* --runtime-env=)", f"{option} {word}")
                self.file(file["file"], plain=is_sure and bool(is_first))
                is_sure = is_sure and not word.endswith(".py")

    def modules(self, words: list[str], documents: list[Word]) -> None:
        """Read the modules or programs that Python runs, or the here-documents that are its input.

        Record as hidden any other input, and words known only at run time.
        """
        modules = [
            word for option, word in pairwise(words) if option in ("-m", "--module", "-c") or word.endswith(".py")
        ]
        is_input = words[1:] in ([], ["-"])
        if not is_known("".join(modules or words)) or (is_input and not documents):
            self.hide(_INPUT, " ".join(words))
        for document in documents if is_input else ():
            replace(self).python(document.raw, document.line)
        for word in modules:
            path = find(f"{word.replace('.', '/')}.py", self.folders)
            if path and word.partition(".")[0] not in self.result.packages:
                self.file(str(path))


class _Call:
    """A command after expansion.

    ``marks`` are all words; ``texts`` the words after leading assignments; ``own`` the words from the program on, after
    wrappers such as nohup; ``variables`` what it assigns or exports; ``shape`` its words with unknown ones marked.
    """

    def __init__(self, marks: list[str]) -> None:
        """Split ``marks``, the expanded words of a command, into assignments, wrappers and the program's words."""
        self.marks = marks
        self.texts = [*dropwhile(_ASSIGNS, marks)]
        self.own = [*dropwhile(wraps, self.texts)]
        before = self.texts[: len(self.texts) - len(self.own)]
        is_local = self.own and re.match(rf"(?!/(usr|s?bin|opt)/|(.*/)?({_PROGRAM}|{_SHELL})$).*/", self.own[0])
        self.program = self.own[0] if is_local else basename("".join(self.own[:1]))
        self.is_python = bool(re.fullmatch(_PROGRAM, self.program))
        self.is_harmless = bool(self.texts) and bool(re.fullmatch(_HARMLESS, self.program))
        self.is_emptied = bool(re.search(r"(^|[\s/])(env|exec) -", " ".join(before)))
        self.is_export = bool(re.fullmatch(rf"(?s){_EXPORTS}", " ".join(self.own)))
        before = [*marks[: len(marks) - len(self.texts)], *before]
        self.variables = self.own[1:] if self.is_export else [word for word in before if _ASSIGNS(word)]
        words = [OUTSIDE if is_hidden(word) else word for word in self.own]
        self.shape = " ".join([self.program if words[:1] == self.own[:1] else OUTSIDE, *words[1:]])


def _stands_alone(command: ShellCommand, call: _Call) -> bool:
    """Tell whether a command is not part of a list or pipe, except a Python command piped into ``tee``."""
    ends = ("\n", ";", "&", "tee") if call.is_python else ("\n", ";")
    is_whole = len(_stripped(command)) == len(command.words)
    return is_whole and command.before in ("\n", ";", "&") and command.after in ends


def _stripped(command: ShellCommand) -> list[Word]:
    """Return the words of a command after leading shell keywords."""
    return [*dropwhile(lambda word: word.raw in _KEYWORDS, command.words)]


def _elements(raw: str) -> list[Word]:
    """Return the words of the array literal ``raw``. Raises ValueError if it cannot be split."""
    return [word for command in split(raw[1:-1]) for word in command.words]
