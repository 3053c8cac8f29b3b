"""What a launch starts, and with which environment: read from commands and the scripts that they name.

Nothing is run. Files that the given script names are read too, as far as they exist here; two levels down reading
stops.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from patcher.errors import Kind, Problem
from patcher.guards.pyscript import read_python
from patcher.guards.scope import (
    ANY,
    ASSIGNMENT,
    MOST_NESTING,
    RUN_TIME,
    Argument,
    Fed,
    Invocation,
    Placed,
    Scope,
    Variables,
    arguments,
    inherited,
    known,
    quoted,
)
from patcher.guards.shellscript import Outcome, Shell

_MOST_FILES = 3  # the named script, one that it calls, and the Python program behind that
_MOST_BYTES = 4 << 20


def read(environ: Mapping[str, str], script: Path | None = None, command: Sequence[str] = ()) -> tuple[Invocation, ...]:
    """Every invocation of a script and a command; without any, one invocation with the environment alone.

    Raises Problem(USAGE) if a script that the caller names is missing, unreadable, or not a script.
    """
    variables = inherited(environ)
    # The shell sets it anew, whatever the environment says.
    variables.pop("PWD", None)
    base = Scope(variables, folder=_folder(environ))
    reading = Reading(base.folder)
    if script is not None:
        own = base.copy()
        own.program = str(script)
        reading.file(script, own, named=True)
    if command:
        where = "command after --"
        reading.command([Placed(word, where) for word in command], base.copy(), where, True, named=True)
    if not reading.invocations:
        reading.invocation("environment", (), base, True)
    return tuple(reading.invocations)


_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
PYTHON = re.compile(r"(python|pypy)[\d.]*")
# Programs that start another with the same environment: their options that take a word, and how many words follow.
_WRAPPERS = {
    "env": ("-u -C --unset --chdir", 0), "nohup": ("", 0), "setsid": ("", 0), "time": ("-f -o", 0),
    "sudo": ("-u -g -h -p -C -r -t -T -U -D -R", 0), "nice": ("-n", 0), "ionice": ("-c -n -p", 0),
    "stdbuf": ("-i -o -e", 0), "timeout": ("-s -k --signal --kill-after", 1), "taskset": ("", 1), "chrt": ("", 1),
    "numactl": ("-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave --preferred", 0),
}  # fmt: skip
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_FLAGS = re.compile(r"-[itdqP]+|--(rm|privileged|init|tty|interactive|detach|quiet|read-only|no-healthcheck)|--\w.*=.*")
# What these start may see other files and variables than this machine has.
_ELSEWHERE = _CONTAINERS | {"ray", "ssh", "kubectl", "apptainer", "singularity"}
LAUNCHERS = _ELSEWHERE | {
    "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "msrun", "conda", "uv", "poetry", "xargs",
    "msprof", "nsys", "ncu", "strace", "perf", "coverage",
}  # fmt: skip
_UV_VALUED = frozenset({
    "--extra", "--group", "--with", "--package", "--python", "-p", "--project", "--directory", "--no-extra",
    "--with-editable",
})  # fmt: skip
# Programs that neither run an engine nor ask one for anything: what they inherit does not matter.
_QUIET = frozenset({
    "mkdir", "rm", "cp", "mv", "ln", "ls", "cat", "tee", "sleep", "wait", "kill", "pkill", "date", "chmod",
    "chown", "grep", "sed", "awk", "cut", "tr", "head", "tail", "sort", "wc", "find", "dirname", "basename",
    "realpath", "readlink", "touch", "hostname", "ip", "ifconfig", "npu-smi", "nvidia-smi", "pip", "pip3", "git",
    "wget", "tar", "unzip", "disown", "logger", "seq", "uname", "whoami", "id", "apt", "apt-get", "apt-cache",
    "which", "mktemp", "lsof", "uniq", "expr", "nproc",
})  # fmt: skip


class Reading:
    """Collects the invocations while it follows commands and scripts."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.invocations: list[Invocation] = []
        self.open_files: list[Path] = []
        self.nesting = 0
        self.steps = 0
        self.sure = True

    def beside(self, name: str, scope: Scope, folder: Path | None) -> Path:
        """A script's path: from the working directory, else in the folder of the script that calls it.

        For nobody says that the script will be started from here; one that changes the directory knows where it is.
        """
        for base in (scope.folder, folder if scope.folder == self.folder else None):
            try:
                if base is not None and Path(base, name).is_file():
                    return Path(base, name)
            except (OSError, ValueError):
                pass
        # Where nobody knows what it is relative to, there is nothing of that name.
        return Path(scope.folder or os.devnull, name)

    def invocation(
        self, where: str, argv: Sequence[Argument], scope: Scope | None, sure: bool, reason: str = ""
    ) -> None:
        """Note a start with the variables of a scope as they are there."""
        variables: Variables = {}
        if scope is not None:
            variables = {
                name: tuple(one._replace(text=known(one.text)) for one in ways)
                if any(one.text and RUN_TIME in one.text for one in ways) else ways
                for name, ways in scope.variables.items()
            }  # fmt: skip
        folder = Path(scope.folder) if scope is not None and scope.folder else None
        self.invocations.append(Invocation(where, tuple(argv), variables, sure, folder=folder, reason=reason))

    def sourced(self, name: str, scope: Scope, folder: Path, by: Shell) -> Outcome | None:
        """Read a file as a part of the script that sources it; None if it cannot be."""
        path = self.beside(name, scope, folder)
        text = self._opened(path, named=False)
        if text is None:
            # One that is being read already goes round for ever.
            around = path.is_file() and path.resolve() in self.open_files and len(self.open_files) < _MOST_FILES
            return (scope, scope) if around else None
        try:
            return Shell(self, text, str(path), 1, path.parent, by.flow).sourced(scope)
        finally:
            self.open_files.pop()

    def _opened(self, path: Path, *, named: bool) -> str | None:
        """The text of a file that is not being read already; a Problem if it is ``named`` and cannot be."""
        try:
            text = _text(path, named=named)
            resolved = path.resolve()
        except (OSError, ValueError):
            text = None
        if text is None or resolved in self.open_files or len(self.open_files) >= _MOST_FILES:
            return None
        self.open_files.append(resolved)
        return text

    def file(
        self, path: Path, scope: Scope, *, named: bool = False, sure: bool = True, python: bool | None = None
    ) -> bool:
        """Read a script; False if it was not read, which is a Problem if it is ``named``."""
        text = self._opened(path, named=named)
        if text is None:
            return False
        first = text.split("\n", 1)[0]
        if python is None:
            python = path.suffix == ".py" or (first.startswith("#!") and "python" in first)
        try:
            self.text(text, scope, str(path), 1, path.parent, sure, python=python)
        finally:
            self.open_files.pop()
        return True

    def text(self, text: str, scope: Scope, name: str, line: int, folder: Path, sure: bool, *, python: bool) -> None:
        """Read the text of a script; ``name`` and ``line`` say where it stands, 0 that ``name`` says it all."""
        if self.nesting >= MOST_NESTING:
            return
        self.nesting += 1
        count, before, self.sure = len(self.invocations), self.sure, sure
        try:
            if python:
                read_python(self, text, scope, name, line, folder)
            else:
                scope = Shell(self, text, name, line, folder).run(scope)
            if len(self.invocations) == count:
                self.invocation(f"{name}:{line}" if line else name, (), scope, sure)
        finally:
            self.nesting -= 1
            self.sure = before

    def command(
        self,
        words: Sequence[Placed],
        scope: Scope,
        where: str,
        sure: bool,
        *,
        folder: Path | None = None,
        fed: Fed | None = None,
        named: bool = False,
    ) -> None:
        """Follow one command: strip wrappers, read the script behind it, else note the invocation.

        The words may hold RUN_TIME; the scope is changed.
        """
        words = self._unwrapped(list(words), scope, where)
        if not words:
            return
        inside = self._inside(words, scope, where, sure, folder, fed, named)
        name = PurePath(words[0]).name
        if inside or name not in _QUIET:
            runs = name.endswith((".sh", ".bash")) or (name in _SHELLS and (len(words) > 1 or fed is not None))
            blind = runs and not inside
            reason = "the script that it runs is not here, or only known when it runs" if blind else ""
            self.invocation(where, arguments(words), None if inside else scope, sure, reason)

    def _unwrapped(self, words: list[Placed], scope: Scope, where: str) -> list[Placed]:
        """The command behind ``env``, ``nohup`` and the like; its scope is what they make of this one."""
        count = len(words)
        while words:
            head = PurePath(words[0]).name
            assigned = ASSIGNMENT.match(words[0])
            if assigned:
                text = words[0][assigned.end() :]
                found = words[0].replace(RUN_TIME, "…")
                scope.put(assigned.group(1), [known(text)], where, found, export=True)
                words = words[1:]
            elif head in _WRAPPERS:
                words = self._wrapper(head, words[1:], scope, where)
            else:
                break
        if words and words[0][:1] == RUN_TIME and len(words) < count:
            # Perhaps another `NAME=value` behind `env`; at the begin it is taken for a program.
            scope.anything(where, quoted(arguments(words))[:200])
        head = PurePath(words[0]).name if words else ""
        if head in _CONTAINERS:
            _contained(words, scope, where)
        elif head in {"ssh", "kubectl"}:
            scope.variables.clear()
        elif head == "ray" and words[1:3] == ["job", "submit"]:
            _submitted(words, scope, where)
        elif head == "uv" and any(word.startswith("--env-file") for word in words):
            scope.anything(where, "uv run --env-file")
        return words

    @staticmethod
    def _wrapper(head: str, words: list[Placed], scope: Scope, where: str) -> list[Placed]:
        valued, operands = _WRAPPERS[head]
        keeps = head != "sudo"
        while words and words[0][:1] == "-":
            word, value = words[0], words[1] if len(words) > 1 else Placed(RUN_TIME, where)
            unset = re.match(r"--unset=|-u(?=\w)", word)
            if head == "env" and word in {"-", "-i", "--ignore-environment"}:
                scope.variables.clear()
            elif head == "env" and (unset or word in {"-u", "--unset"}):
                name = word[unset.end() :] if unset else str(value)
                scope.drop(name, where, f"env -u {name}", 0)
            elif head == "env" and (word[:2] in {"-S", "-C"} or word.startswith(("--split", "--chdir"))):
                scope.anything(where, f"env {word} {value}".replace(RUN_TIME, "…"))
            keeps = keeps or word in {"-E", "--preserve-env"}
            words = words[1 + (word in valued.split()) :]
            if word == "--":
                break
        if not keeps:
            # What sudo lets through is a matter of its configuration.
            scope.anything(where, "sudo without -E")
        return words[operands:]

    def _inside(
        self,
        words: Sequence[Placed],
        scope: Scope,
        where: str,
        sure: bool,
        folder: Path | None,
        fed: Fed | None,
        named: bool,
    ) -> bool:
        """Read the script that the command names, if there is one; True if something was read."""
        program, name = str(words[0]), PurePath(words[0]).name
        if name in _SHELLS or PYTHON.fullmatch(name):
            return self._interpreter(words, scope, where, sure, folder, fed, named)
        if RUN_TIME in program:
            return False
        path = self.beside(program, scope, folder)
        if name.endswith((".sh", ".bash", ".py")) or ("/" in program and _is_script(path)):
            return self.file(path, scope.child(tuple(words[1:]), program), named=named and "/" in program, sure=sure)
        for at, word in enumerate(words[1:], 1) if name in LAUNCHERS else ():
            if name == "uv" and words[at - 1] in _UV_VALUED:
                continue
            rest = words[at + 1 :] if word == "--" else words[at:]
            inner = PurePath(rest[0] if rest else "").name
            if rest and (word == "--" or _starts_something(inner)):
                before = len(self.invocations)
                self.command(rest, scope.copy(), where, sure, folder=folder, named=named and name not in _ELSEWHERE)
                return len(self.invocations) > before
        return False

    def _interpreter(
        self,
        words: Sequence[Placed],
        scope: Scope,
        where: str,
        sure: bool,
        folder: Path | None,
        fed: Fed | None,
        named: bool,
    ) -> bool:
        python = PurePath(words[0]).name not in _SHELLS
        rest = list(words[1:])
        while rest and rest[0][:1] in {"-", "+"} and rest[0] != "-":
            option, rest = rest[0], rest[1:]
            if option == "--":
                break
            if re.fullmatch(r"-[a-zA-Z]*c", option):
                if not rest or RUN_TIME in rest[0]:
                    return False
                child = scope.child(tuple(rest[2:]), str(rest[1]) if len(rest) > 1 else str(words[0]))
                self.text(rest[0], child, where, 0, folder or Path(), sure, python=python)
                return True
            if python and option.startswith("-m"):
                return False
            takes = r"-[WX]" if python else r"[-+][a-zA-Z]*[oO]|--rcfile|--init-file"
            if re.fullmatch(takes, option):
                rest = rest[1:]
        if not rest or rest[0] == "-":
            if fed is None or RUN_TIME in fed.text:
                return False
            name = where.rpartition(":")[0] if fed.line else where
            child = scope.child(tuple(rest[1:]), str(words[0]))
            self.text(fed.text, child, name, fed.line, folder or Path(), sure, python=python)
            return True
        if RUN_TIME in rest[0]:
            return False
        child = scope.child(tuple(rest[1:]), str(rest[0]))
        return self.file(self.beside(rest[0], scope, folder), child, named=named, sure=sure, python=python)


def _folder(environ: Mapping[str, str]) -> str | None:
    """The working directory as a shell that starts here names it: by ``PWD`` where that is no stale one."""
    given = environ.get("PWD", "")
    try:
        if given.startswith("/") and Path(given).samefile("."):
            return given
    except (OSError, ValueError):
        pass
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _contained(words: Sequence[Placed], scope: Scope, where: str) -> None:
    """What ``docker run -e`` gives to a container, which inherits nothing of the command that starts it."""
    outside = dict(scope.variables)
    scope.variables.clear()
    scope.folder = None
    rest = list(words[1:])
    while rest and rest[0][:1] != "-" and rest[0] in {"run", "exec", "container", "compose", "create"}:
        rest = rest[1:]
    while rest and rest[0][:1] == "-":
        option, equals, value = rest[0].partition("=")
        attached = re.match(r"-[itdqP]*e(.+)", rest[0])
        if attached and not rest[0].startswith("--"):
            option, value = "-e", attached.group(1)
        elif not equals and not _FLAGS.fullmatch(rest[0]):
            value, rest = rest[1] if len(rest) > 1 else RUN_TIME, rest[1:]
        rest = rest[1:]
        if option == "--env-file" or (option in {"-e", "--env"} and RUN_TIME in value.partition("=")[0]):
            scope.anything(where, f"{option} {value}".replace(RUN_TIME, "…"))
        elif option == "--env" or re.fullmatch(r"-[itdqP]*e", option):
            name, given, text = value.partition("=")
            if given:
                scope.put(name, [known(text)], where, f"{option} {value}".replace(RUN_TIME, "…"), export=True)
            elif name in outside or ANY in outside:
                scope.variables[name] = outside.get(name) or outside[ANY]


def _submitted(words: Sequence[Placed], scope: Scope, where: str) -> None:
    """What ``ray job submit`` gives to a job, which runs with the environment of the cluster."""
    for name, ways in scope.variables.items():
        scope.variables[name] = tuple(one._replace(text=None) if one.exported else one for one in ways)
    for option, value in _pairs(words):
        if option == "--runtime-env-json":
            _runtime_env(value, scope, where, option)
        elif option == "--runtime-env" and value is not None:
            _runtime_env_file(Path(scope.folder or "", value), scope, where)


def _runtime_env(text: Argument, scope: Scope, where: str, found: str) -> None:
    try:
        variables = json.loads(text or "").get("env_vars") or {}
        pairs = [(str(name), str(value)) for name, value in variables.items()]
    except (ValueError, AttributeError, RecursionError):
        scope.put(ANY, [None], where, f"{found} (not readable as JSON)", export=True)
        return
    for name, value in pairs:
        scope.put(name, [known(value)], where, f'{found} "{name}": "{value}"', export=True)


def _runtime_env_file(path: Path, scope: Scope, where: str) -> None:
    """Plain ``NAME: value`` lines of Ray's YAML file; other lines leave the names in them unknown.

    A YAML parser is no dependency of ours, and this much needs none.
    """
    try:
        text = _text(path, named=False)
    except (OSError, ValueError):
        text = None
    if text is None:
        scope.put(ANY, [None], where, f"--runtime-env {path} (not readable here)", export=True)
        return
    pattern = re.compile(r"""^\s*["']?([A-Z][A-Z0-9_]*)["']?\s*:[ \t]*(["']?)([\w./:-]*)\2[ \t]*(#.*)?$""")
    for number, line in enumerate(text.split("\n"), 1):
        plain = pattern.match(line)
        names = [] if line.lstrip().startswith("#") else re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", line)
        for name in [plain.group(1)] if plain else names:
            scope.put(name, [plain.group(3) if plain else None], f"{path}:{number}", line.strip(), export=True)


def _starts_something(name: str) -> bool:
    return name in _SHELLS or name == "vllm" or bool(PYTHON.fullmatch(name)) or name.endswith((".py", ".sh"))


def _pairs(words: Sequence[Placed]) -> Iterable[tuple[str, Argument]]:
    """Long and short options with their values, in both spellings."""
    for at, word in enumerate(words):
        if word == "--":
            return
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            text = value if equals else (words[at + 1] if at + 1 < len(words) else RUN_TIME)
            yield option, known(text)


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except (OSError, ValueError):
        return False


def _text(path: Path, *, named: bool) -> str | None:
    """The text of a script; None where there is none, or the Problem if the caller named it."""
    hint = "give the shell or Python script that starts the run"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("too large to be a launch script")
        data = path.read_bytes()
        if b"\0" in data:
            raise ValueError("binary, not a launch script")
        if path.suffix == ".json" and named:
            raise ValueError("JSON, not a launch script")
    except (OSError, ValueError) as error:
        if not named:
            return None
        reason = getattr(error, "strerror", None) or str(error)
        raise Problem(Kind.USAGE, f"cannot read the launch script: {reason}", str(path), hint) from error
    # Bytes that are not UTF-8 stand in comments and messages; the switches are ASCII.
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n")
