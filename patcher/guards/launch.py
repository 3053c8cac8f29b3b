"""Reads the texts of a launch: environment, command, script, and the files that these name, one level down.

Nothing is interpreted. A script is plain as long as it is one simple command after the other: what these export and
start is known. Everything behind is only searched, for names and for what may hide a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import dropwhile, pairwise
from pathlib import Path
from posixpath import basename
from shlex import quote

from patcher.guards.result import COMMAND, ENVIRONMENT, Hidden, Launch, LaunchText
from patcher.guards.shell import ShellCommand, Word, normal, split
from patcher.guards.start import (
    ENDS,
    EXPORTS,
    HARMLESS,
    INSIDE,
    KEPT,
    OUTSIDE,
    PROFILERS,
    PROGRAM,
    RUNS_FILES,
    SHELL,
    Start,
    assigns,
    carries,
    is_hidden,
    is_known,
    shown,
)
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.opened import reading

_LEVELS = 2  # the script, and the files that it names
_NESTED = 8  # texts for a shell in texts for a shell …
_LONGEST = 2000  # of the value of a variable
_LARGEST = 1 << 17  # of a file that is read, in bytes
_UNKNOWN = Word(0, "$()")
_KEYWORDS = ("if", "then", "elif", "else", "do", "while", "until", "!", "time", "-p", "{", "coproc")
_SETS = r"(?s)(read|mapfile|readarray|getopts|let|unset|printf -v) .*"
_PARAMETER = r"(?s)\$\{?(\w+)(\[[^\]]*\])?(?::?([-+=?])(.*?))?\}?"
_PYTHONPATH = r"\$\{?PYTHONPATH\b"
_FOLDER = (  # of the script
    r"\$\((cd (-- )?\"?\$\()?dirname (-- )?\"?\$(0|BASH_SOURCE|\{(0|BASH_SOURCE(\[0\])?)\})\"?\)(\"? .*&& pwd\))?"
)
_HERE = (  # the folder, and what sets up a shell
    r"\$\(pwd\)|\$\{?PWD\}?|\$\((?:\S*/)?(?:conda|mamba|micromamba|pyenv|ssh-agent|resize)\b[^)]*\)"
)
_SAFE = (  # arguments, numbers, paths, tests
    r"(?s)\$[0-9@*#?$!-]|\$\{([0-9]+|[@*](:\d+)*|#[^}]*)\}|\$\{?(PWD|HOME|USER|HOSTNAME|RANDOM)\}?|\$\(\(.*"
)
_SETS_UP = (  # CANN, conda or Python: what such a file sets if it is not here may be missed
    r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
)
_FILE = (  # among the words of a program, behind the word before it; a name of a configuration is none
    r"(?!(\S* )?(--config-name|-cn)\b|\S* \S*://)\S* (?:--?[\w-]+=|(?!-))(?P<file>[^=\s]+\.(?:sh|bash|py|ya?ml|env|in))"
)
_WRITES = r"cp|mv|ln|sed|tee|wget|curl|tar|unzip|git|install|rsync|envsubst|patch"
_PLAIN = (  # commands behind which a script surely goes on, and means the same
    rf"(?s)(?!sleep inf|tail .*-[fF]|printf -v|.*--block)({HARMLESS}|{PROGRAM}|curl|wget|ray)( .*)?"
    rf"|set [-+][eux]+(o pipefail)?|{EXPORTS}|(export|declare|readonly) [^-+].*|(\.|source) ({_SETS_UP})"
)
_PASSES_ALWAYS = r"(?s)(:|echo|set|export)( [^\0\1]*)?"
_FAILS = r"set .*(-\w*[eu]|errexit|nounset)"  # then whatever fails ends the script
_DIVERTS = r"\bexec\s|\$\{\w+:?[=?]|^IFS="
_HANDED = r"((sudo|command|srun|uv|conda) .*)?"
_COMPUTED = (  # commands that start or set what only the run tells: by a hidden word, or what they are fed with
    rf"(?s)\0.*|.*BASH_ENV.*|(?!({HARMLESS}|{ENDS}|{PROGRAM}) )\S* (.* )?\0( .*)?"
    rf"|(alias|trap) .*\0.*|eval .*[\0\1].*|{_HANDED}(make|just|docker.* up)\b.*"
    rf"|{_HANDED}(xargs|parallel|find .* -(exec|ok)(dir)?)"
    r"(?!( (-\S+|\d+|\{\S*\}))*( (echo|printf|rm|kill|ls|cat|mkdir|grep|wc)\b|$)).*"
)
_RUNS_INPUT = rf"(?s)(ssh|pdsh) .*|[\0\1]|(.*[\s/])?{SHELL}( -s.*| -)?"
_JOINED = r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']"  # strings in Python
_PYTHON_HIDES = (
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]|\bsubprocess\.\w+\(|\bos\.(system|popen|exec\w+|spawn\w+)\("
)
_RUN_TIME = Text("the programs that this command starts, or the variables that it sets, are only known at run time")
_INPUT = Text("the standard input of this command is only known at run time")


@dataclass
class Reading:
    """Everything that was read of a launch; Python modules of ``packages`` are not read."""

    environ: Mapping[str, str]
    packages: tuple[str, ...] = ()
    texts: list[LaunchText] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    settings: list[LaunchText] = field(default_factory=list)  # each line of a runtime environment, and the one after it
    written: set[str] = field(default_factory=set)  # names of files that the launch writes

    def place(self, text: str, default: str) -> str:
        """Return the last place where ``text`` stands; ``default`` if it stands nowhere."""
        literal = re.split("[\0\1]", text)[0] or text
        return next((line.where for line in reversed(self.texts) if literal in line.text), default)


def read(launch: Launch, packages: tuple[str, ...] = ()) -> Reading:
    """Return everything that can be read of a launch: texts, starts, hidden places and settings.

    Modules of ``packages`` are not read. Raises Problem (USAGE) if a script that the user names cannot be read.
    """
    result = Reading(launch.environ, packages)
    typed = [launch.command] if launch.command else []
    if launch.script is not None:
        is_python = launch.script.suffix == ".py" or re.match("#!.*python", text_of(launch.script))
        typed.insert(0, ("python" if is_python else "bash", str(launch.script)))
    for words in typed:
        typed_words = (Word(1, quote(word.replace("\0", ""))) for word in words)
        _Reader(result).read_command(ShellCommand((*typed_words,)))
    if all(start.words[0] in ("curl", "wget") for start in result.starts):  # what may be started gets the environment
        result.starts.append(Start(ENVIRONMENT, ("python",), sure=True))
    return result


def find(word: str, folders: Iterable[Path]) -> Path | None:
    """Return the file ``word`` in the first of ``folders`` that has it; None without such a file.

    None, too, if part of ``word`` is known only at run time.
    """
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
        cause = Text("cannot read a file that the launch names: {reason}", reason)
        raise Problem(Kind.USAGE, cause, str(path), hint) from error


@dataclass
class _Reader:
    """Reader at one place of a launch, which adds to ``result``.

    Copies for files that the launch names share the assigned ``values``.
    """

    result: Reading
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

    def place(self, line: int) -> str:
        return f"{self.path}:{line}" if self.path else COMMAND

    def note(self, text: str, line: int, *, plain: bool = False) -> None:
        lines = enumerate(normal(text).splitlines(), line)
        self.result.texts.extend(LaunchText(self.place(number), content, plain) for number, content in lines)

    def hide(self, reason: str, text: str, line: int = 0) -> None:
        self.result.hidden.append(Hidden(self.place(line or self.line), shown(text)[:200], reason))

    # --- texts ---

    def read_script(self, text: str, line: int = 1) -> None:
        """Read a shell script that begins at ``line``: first what its commands set and write, then the commands.

        A text that cannot be split into commands is only searched, and counts as hidden.
        """
        try:
            commands = split(text, line)
            for command in commands:
                self.note_assignments(command)
            for command in commands:
                self.read_command(command)
        except (ValueError, RecursionError):
            self.note(text, line)
            self.hide(Text("rlpatch cannot split this text into commands"), str(self.path or ""))

    def read_inner_shell(self, text: str, line: int, *, plain: bool = False) -> None:
        """Read shell text of an expansion or an inner shell; ``plain`` if a shell surely runs it, without arguments.

        Text nested eight levels deep is hidden.
        """
        if self.nested < _NESTED:
            constants = {} if plain else self.constants  # another shell has only what is exported
            replace(self, nested=self.nested + 1, plain=plain, constants=constants).read_script(text, line)
        else:
            self.hide(Text("this text is nested too deeply in quotes and expansions"), text)

    def read_file(self, word: str, *, plain: bool = False) -> None:
        """Read the file ``word`` that the launch names: a script, a Python program or settings.

        Once only. A file that is missing, written by the launch, larger than 128 KiB, or named only by a file that was
        named itself, counts as hidden. Raises Problem (USAGE) if it cannot be read.
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
            (reader.read_script if is_shell else reader.read_python)(text, 1)

    def read_python(self, text: str, line: int) -> None:
        """Add the lines of Python code or settings to the texts, also with adjacent strings joined.

        Code that runs or sets what only the run tells is hidden. Shell scripts that it names are read.
        """
        text = re.sub(r"^[ \t]*#.*", "", text, flags=re.MULTILINE)
        self.note(text, line)
        self.note(re.sub(_JOINED, "", text), line)
        if self.path and self.plain:
            pairs = enumerate(pairwise([*text.splitlines(), ""]), line)
            self.result.settings += [LaunchText(self.place(at), normal("\n".join(pair))) for at, pair in pairs]
        if match := re.search(_PYTHON_HIDES, text):
            reason = Text("the programs that this code runs, or the variables that it sets, are only known at run time")
            self.hide(reason, match[0], text.count("\n", 0, match.start()) + line)
        for script in re.findall(r"[\"' ]([\w./-]+\.sh)\b", text):
            self.read_file(script)

    # --- words ---

    def note_assignments(self, command: ShellCommand) -> None:
        """Record the values that a command assigns and the files that it writes, whether it runs or not."""
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
        elif re.match(_SETS, " ".join(texts)):
            for text in texts[1:]:
                self.values.setdefault(text.partition("=")[0], []).append(_UNKNOWN)
        elif re.fullmatch(_WRITES, "".join(texts[:1])):
            self.result.written.update(map(basename, texts[1:]))
        self.result.written.update(basename(word.text) for direction, word in command.redirects if ">" in direction)

    def value(self, raw: str) -> str:
        """Return the text to which ``raw`` expands if only one is possible, else a mark.

        The mark is INSIDE if all possible texts are among those that were read, else OUTSIDE. KEPT is added if the
        expansion keeps the value of PYTHONPATH.
        """
        match = re.fullmatch(_PARAMETER, raw)
        if re.match(_PYTHONPATH, raw):
            is_replaced = match and match[3] == "+"
            return Word(self.line, match[4]).marked(self.value) if match and is_replaced else f"{KEPT}{raw}"
        values = self.values.get(match[1], []) if match else []
        text = self.fixed(raw) if match is None else self.only_value(match, values)
        if text is not None:
            return text
        is_kept = values and all(re.search(_PYTHONPATH, word.raw) for word in values)
        return (INSIDE if self.is_clear(raw) else OUTSIDE) + (KEPT if is_kept else "")

    def fixed(self, raw: str) -> str | None:
        """Return the value that an expansion always has, such as the script's folder; None if it may vary.

        Arguments are empty in a script that was started without any.
        """
        if self.plain and re.fullmatch(r"\$\{?[1-9@*]\}?", raw):
            return ""
        if self.path and re.fullmatch(_FOLDER, raw):
            return str(self.path.absolute().parent)
        if re.fullmatch(_HERE, raw):
            return "."
        return ":" if raw.startswith(("[[", "((")) else None

    def only_value(self, match: re.Match[str], values: Sequence[Word]) -> str | None:
        """Return the value of a variable if only one is possible, else None.

        ``match`` is the expansion, ``values`` are the texts that the launch assigns. The value is a constant, the
        default in ``${NAME:-default}``, or one that `fixed` knows.
        """
        if len(values) == 1 and match[1] in self.constants:
            return self.constants[match[1]]
        if (
            match[3] == "-"
            and match[1] not in self.result.environ
            and [word.text for word in values] in ([], [match[0]])
        ):
            default = Word(self.line, match[4]).marked(self.value)
            if is_known(default):
                return default
        return self.fixed(match[0])

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

    def expanded(self, word: Word) -> list[str]:
        """Return the words to which ``word`` expands: none or several if it is a single expansion."""
        mark = word.marked(self.value)
        return mark.split() if re.fullmatch(r"\"?\$(\w+|[@*]|\{[^}]*\})\"?", word.raw) else [mark]

    # --- commands ---

    def read_command(self, command: ShellCommand) -> None:
        """Record what a command sets and starts, read the files that it names, and update ``plain``.

        ``plain`` then tells whether the script surely goes on, and its further lines keep their meaning.
        """
        words = _stripped(command)
        sources = [*words, *(word for _, word in command.redirects)]
        self.line = min((word.line for word in sources), default=self.line)
        start = self.build_start(command, words)
        self.plain = start.sure and not start.is_emptied
        for word in sources:
            for text in word.commands():
                self.read_inner_shell(text, word.line)
        if not (start.texts or self.nested):
            self.note_constants(start)
        if start.words and not (start.texts and re.fullmatch(HARMLESS, start.name)):
            self.result.starts.append(start)
        self.follow(command, start)
        for word in sources:
            self.note_word(word, plain=start.sure and word in words and self.passes_words_on(start))
        raw = " ".join(word.raw for word in words)
        self.plain = start.sure and self.surely_goes_on(start) and not re.search(_DIVERTS, raw)

    def build_start(self, command: ShellCommand, words: Sequence[Word]) -> Start:
        """Build the `Start` of a command, whose ``words`` are expanded.

        It is sure if the script surely gets there, outside of branches, lists and pipes (except to ``tee``).
        """
        marks = (mark for word in words for mark in self.expanded(word))
        start = Start(self.place(self.line), (*marks,), sure=False, folders=self.folders)
        ends = ("\n", ";", "&", "tee") if start.is_python else ("\n", ";")
        is_whole = len(words) == len(command.words) and command.after in ends
        return replace(start, sure=self.plain and is_whole and command.before in ("\n", ";", "&"))

    def passes_words_on(self, start: Start) -> bool:
        """Tell whether the run gets a command's words: it exports them, or starts Python or the script with them."""
        return start.is_export or start.is_python or bool(self.level == 0 and re.fullmatch(SHELL, start.name))

    def note_word(self, word: Word, *, plain: bool) -> None:
        text = word.marked(lambda raw: self.value(raw) if is_known(self.value(raw)) else raw)
        self.note(text, word.line, plain=plain)

    def note_constants(self, start: Start) -> None:
        """Record as constants the variables that a command surely sets, unless the environment has them."""
        for name, value in start.variables.items():
            if value is not None and is_known(value) and len(value) < _LONGEST and name not in self.result.environ:
                self.constants[name] = value

    def surely_goes_on(self, start: Start) -> bool:
        """Tell whether a script surely goes on after a command, and its further lines keep their meaning.

        Set ``fails`` if errors end the script from now on.
        """
        is_passed = not start.own or re.fullmatch(_PASSES_ALWAYS if self.fails else _PLAIN, start.shape)
        may_fail = self.fails and not all(map(is_known, start.words))
        is_edited = self.result.written & {*map(basename, start.own)} and not re.fullmatch(_WRITES, start.name)
        self.fails = self.fails or bool(re.match(_FAILS, start.shape))
        return bool(is_passed) and not (may_fail or is_edited or any(map(is_hidden, start.words)))

    def follow(self, command: ShellCommand, start: Start) -> None:
        """Read the files, texts and input that a command passes on, or change to the folder that it changes to.

        What cannot be read is recorded as hidden.
        """
        if re.fullmatch(_COMPUTED, start.shape):
            self.hide(_RUN_TIME, " ".join(start.texts))
        self.read_input(command, start)
        if start.name in (".", "source"):
            self.read_file("".join(start.own[1:2]))
        elif start.name in ("cd", "pushd"):
            is_here = is_known(" ".join(start.own)) and self.folders
            self.folders = (self.folders[0] / "".join(start.own[1:2]), *self.folders) if is_here else ()
        elif not re.fullmatch(rf"{HARMLESS}|{ENDS}", start.name):
            self.read_words(command, start)

    def read_input(self, command: ShellCommand, start: Start) -> None:
        """Read what a shell or Python runs: a script or a here-document. Any other input counts as hidden."""
        text = " ".join(start.own)
        documents = [word for direction, word in command.redirects if direction == "<<<"]
        is_python = re.fullmatch(RUNS_FILES, start.name) and start.own[1:] in ([], ["-"])
        if is_python or re.fullmatch(_RUNS_INPUT, text):
            is_fed = command.before == "|" or any(direction in ("<", "<>") for direction, _ in command.redirects)
            if is_fed or not (documents or re.match(r"ssh|pdsh|[\0\1]", text)):
                self.hide(_INPUT, text)
            for document in documents:
                read_text = self.read_python if is_python else self.read_inner_shell
                read_text(document.raw.replace("\\$", "$"), document.line)
        elif re.fullmatch(SHELL, start.name) and not re.match(r"\S+( -\w+)* -\w*c", text):
            self.read_shell_script(start.own[1:])

    def read_shell_script(self, words: Sequence[str]) -> None:
        """Read the script that a shell runs with ``words``; its lines are plain if the user named it alone.

        Raises Problem (USAGE) if a script that the user named does not exist.
        """
        operands = [*dropwhile(lambda word: word[:1] in ("-", "+") or word in ("pipefail", "errexit"), words)]
        script = "".join(operands[:1])
        if self.level + self.nested == 0 and not find(script, self.folders):
            text_of(Path(script))  # what the user names is there
        self.read_file(script, plain=self.plain and self.level == 0 and words == operands[:1])

    def read_words(self, command: ShellCommand, start: Start) -> None:
        """Read words of a command that are Python or shell code, and the files that its words name."""
        is_code = start.is_python and not re.fullmatch(PROFILERS, start.name)
        is_whole = re.fullmatch(SHELL, start.name) and re.fullmatch(r"-\w*c", " ".join(start.own[1:-1]))
        for source in command.words:
            if is_code and re.search(r"\w\s", source.text):
                self.read_python(source.text, source.line)
            elif not is_code and re.search(r"[\s<;&|]", source.marked(lambda _: "")):
                self.read_inner_shell(source.text, source.line, plain=self.plain and bool(is_whole))
        if "/" in start.name:
            self.read_file(start.name)
        self.read_named_files(start)

    def read_named_files(self, start: Start) -> None:
        """Read the files that the words of a command name, and Ray's runtime environment as settings.

        Settings are certain only if they stand in front of the program.
        """
        is_sure, programs = self.plain and (start.is_python or carries(start.own)), list[str]()
        for option, word in pairwise(start.own if start.is_python else start.texts):
            if self.plain and re.match("--runtime-env-json |.* --runtime-env-json=", f"{option} {word}"):
                self.result.settings.append(LaunchText(self.place(self.line), normal(word)))
            if match := re.fullmatch(_FILE, f"{option} {word}"):
                is_settings = re.match("(--runtime-env|.* --runtime-env=)", match[0])
                self.read_file(match["file"], plain=is_sure and bool(is_settings))
            if word.endswith(".py") or option in ("-m", "--module", "-c"):
                programs.append(word)
                is_sure = is_sure and not word.endswith(".py")
        if re.fullmatch(RUNS_FILES, start.name):
            self.read_modules(start, programs)

    def read_modules(self, start: Start, programs: Sequence[str]) -> None:
        """Read the files of the modules in ``programs`` that are here and not of ``packages``.

        A command whose program is known only at run time is hidden.
        """
        if not is_known("".join(programs or start.own)):
            self.hide(_INPUT, " ".join(start.own))
        for word in programs:
            path = find(f"{word.replace('.', '/')}.py", self.folders)
            if path and word.partition(".")[0] not in self.result.packages:
                self.read_file(str(path))


def _stripped(command: ShellCommand) -> list[Word]:
    """Return the words of a command after leading shell keywords such as ``then``."""
    return [*dropwhile(lambda word: word.raw in _KEYWORDS, command.words)]


def _elements(raw: str) -> list[Word]:
    """Return the words of the array literal ``raw``. Raises ValueError if it cannot be split."""
    return [word for command in split(raw[1:-1]) for word in command.words]
