"""What a launch starts, and with which environment: read from commands and the scripts that they name.

Nothing is run. Every variable holds the variables that it may have at a point, so that a branch, a loop or a
value that is only known at run time is told apart from a plain ``export``. Files that the given script names
are read too, as far as they exist here; two levels down reading stops.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from patcher.errors import Kind, Problem
from patcher.guards.scope import (
    ASSIGNMENT,
    MOST_NESTING,
    RUN_TIME,
    Argument,
    Assignment,
    Invocation,
    Placed,
    Scope,
    Variables,
    known,
)
from patcher.guards.shell import Heredoc, tokens

_MOST_FILES = 3  # the named script, one that it calls, and the Python program behind that
_MOST_BYTES = 4 << 20


def read(environ: Mapping[str, str], script: Path | None = None, command: Sequence[str] = ()) -> tuple[Invocation, ...]:
    """Every invocation of a script and a command; without any, one invocation with the environment alone.

    Raises Problem(USAGE) if a script that the caller names is missing, unreadable, or not a script.
    """
    base = Scope({name: (Assignment(text, "environment", f"{name}={text}"),) for name, text in environ.items()})
    reading = Reading()
    if script is not None:
        reading.file(script, base.copy(), named=True)
    if command:
        where = "command after --"
        reading.command([Placed(word, where) for word in command], base.copy(), where, reading.sure, named=True)
    if not reading.invocations:
        reading.invocations.append(Invocation("environment", (), base.variables))
    return tuple(reading.invocations)


_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
PYTHON = re.compile(r"(python|pypy)[\d.]*")
_WRAPPERS = frozenset(
    {"nohup", "time", "exec", "command", "builtin", "sudo", "nice", "ionice", "stdbuf", "timeout", "setsid",
     "taskset", "numactl", "chrt", "env"}
)  # fmt: skip
_AMOUNT = re.compile(r"[\d.,:-]+[smhdkKMG]?")
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
# What these start may see other files than this machine has.
_ELSEWHERE = _CONTAINERS | {"ray", "ssh", "kubectl", "apptainer", "singularity"}
LAUNCHERS = _CONTAINERS | {
    "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "msrun", "ray", "conda", "uv",
    "poetry", "ssh", "apptainer", "singularity", "xargs", "msprof", "nsys", "ncu", "strace", "perf",
    "coverage", "kubectl",
}  # fmt: skip
# Programs that neither run an engine nor ask one for anything: what they inherit does not matter.
_QUIET = frozenset({
    "[", "[[", "((", "test", "echo", "printf", "cd", "pushd", "popd", "mkdir", "rm", "cp", "mv", "ln", "ls",
    "cat", "tee", "sleep", "wait", "kill", "pkill", "trap", "true", "false", ":", "return", "break",
    "continue", "read", "pwd", "date", "which", "type", "hash", "ulimit", "umask", "shopt", "alias",
    "chmod", "chown", "grep", "sed", "awk", "cut", "tr", "head", "tail", "sort", "wc", "find", "dirname",
    "basename", "realpath", "readlink", "touch", "hostname", "ip", "ifconfig", "npu-smi", "nvidia-smi",
    "pip", "pip3", "git", "wget", "tar", "unzip", "let", "getopts", "jobs", "disown", "exit", "logger",
    "seq", "uname", "whoami", "id", "apt", "apt-get", "apt-cache",
})  # fmt: skip


class Reading:
    """Collects the invocations while it follows commands and scripts."""

    def __init__(self) -> None:
        self.invocations: list[Invocation] = []
        self.open_files: list[Path] = []
        self.nesting = 0
        self.sure = True

    @staticmethod
    def beside(name: str, folder: Path | None) -> Path:
        """A script's path: in the folder of the script that calls it, else as it stands."""
        path = Path(name)
        try:
            if folder is not None and not path.is_absolute() and (folder / path).is_file():
                return folder / path
        except (OSError, ValueError):
            pass
        return path

    def invocation(self, where: str, argv: Sequence[Argument], variables: Variables, sure: bool) -> None:
        """Note a start; the variables are copied."""
        self.invocations.append(Invocation(where, tuple(argv), dict(variables), sure))

    def file(
        self,
        path: Path,
        scope: Scope,
        *,
        named: bool = False,
        sure: bool = True,
        python: bool | None = None,
        sourced: bool = False,
    ) -> bool:
        """Read a script file into ``scope``; False if it was not read, which is a Problem if it is ``named``.

        A ``sourced`` file that starts nothing is no invocation of its own: the one that sources it goes on.
        """
        try:
            text = _text(path, named=named)
            resolved = path.resolve()
        except (OSError, ValueError):
            text = None
        if text is None or resolved in self.open_files or len(self.open_files) >= _MOST_FILES:
            return False
        first = text.split("\n", 1)[0]
        if python is None:
            python = path.suffix == ".py" or (first.startswith("#!") and "python" in first)
        self.open_files.append(resolved)
        before, self.sure = self.sure, sure
        try:
            self.text(text, scope, str(path), 1, path.parent, python=python, sourced=sourced)
        finally:
            self.open_files.pop()
            self.sure = before
        return True

    def text(
        self,
        text: str,
        scope: Scope,
        name: str,
        line: int,
        folder: Path,
        *,
        python: bool,
        sourced: bool = False,
    ) -> None:
        """Read the text of a script; ``name`` and ``line`` say where it stands."""
        if self.nesting >= MOST_NESTING:
            return
        self.nesting += 1
        before = len(self.invocations)
        try:
            if python:
                # Imported here because ast costs start-up time that only Python scripts need.
                from patcher.guards.pyscript import read_python

                read_python(self, text, scope, name, line, folder)
            else:
                from patcher.guards.shellscript import Shell  # most runs name no script

                Shell(self, scope, name, folder).run(tokens(text, line))
            if len(self.invocations) == before and not sourced:
                self.invocation(f"{name}:{line}", (), scope.variables, self.sure)
        finally:
            self.nesting -= 1

    def command(
        self,
        argv: list[Argument],
        scope: Scope,
        where: str,
        sure: bool,
        *,
        folder: Path | None = None,
        fed: Heredoc | None = None,
        named: bool = False,
    ) -> None:
        """Follow one command: strip wrappers, read the script behind it, else note the invocation."""
        argv, scope = self._unwrap(argv, scope, where)
        if not argv:
            return
        read_inside = self._inside(argv, scope, where, sure, folder, fed, named)
        if not (PurePath(argv[0] or "?").name in _QUIET and not read_inside):
            self.invocation(where, argv, {} if read_inside else scope.variables, sure)

    def _unwrap(self, argv: list[Argument], scope: Scope, where: str) -> tuple[list[Argument], Scope]:
        """The command behind ``env``, ``nohup`` and the like, and the scope that it gets."""
        scope = scope.copy()
        while argv:
            head = PurePath(argv[0] or "").name
            assigned = ASSIGNMENT.match(argv[0] or "")
            if assigned and argv[0] is not None:
                value, found = known(argv[0][assigned.end() :]), argv[0].replace(RUN_TIME, "…")
                scope.put(assigned.group(1), [value], where, found, export=True, depth=0)
                argv = argv[1:]
            elif head in _WRAPPERS:
                argv = self._options(head, argv[1:], scope, where)
            else:
                break
        if argv and PurePath(argv[0] or "").name in {*_CONTAINERS, "ray"}:
            self._handed_over(argv, scope, where)
        return argv, scope

    @staticmethod
    def _options(head: str, argv: list[Argument], scope: Scope, where: str) -> list[Argument]:
        while argv and argv[0] is not None:
            word = argv[0]
            if head == "env" and word in {"-", "-i", "--ignore-environment"}:
                scope.variables.clear()
            elif head == "env" and word in {"-u", "--unset"} and len(argv) > 1:
                scope.drop(argv[1] or "", where, f"env -u {argv[1]}", 0)
                argv = argv[1:]
            elif head == "env" and (word.startswith("--unset=") or re.fullmatch(r"-u\w+", word)):
                scope.drop(re.sub(r"--unset=|-u", "", word, count=1), where, f"env {word}", 0)
            elif head != "env" and _AMOUNT.fullmatch(word):
                pass
            elif not word.startswith("-"):
                break
            argv = argv[1:]
        return argv

    def _handed_over(self, argv: list[Argument], scope: Scope, where: str) -> None:
        """Variables that ``docker run -e`` and ``ray job submit --runtime-env…`` give to what they start."""
        outside = dict(scope.variables)
        container = PurePath(argv[0] or "").name in _CONTAINERS
        if container:
            # A container does not inherit the environment of the command that starts it.
            scope.variables.clear()
        for option, value in _pairs(argv):
            if container and option in {"-e", "--env"} and value is not None:
                name, equals, text = value.partition("=")
                if equals:
                    found = f"{option} {value}".replace(RUN_TIME, "…")
                    scope.put(name, [known(text)], where, found, export=True, depth=0)
                elif name in outside:
                    scope.variables[name] = outside[name]
            elif option == "--runtime-env-json":
                self._runtime_env(value, scope, where, option)
            elif option == "--runtime-env" and value is not None:
                self._runtime_env_file(Path(value), scope, where)

    @staticmethod
    def _runtime_env(text: Argument, scope: Scope, where: str, found: str) -> None:
        try:
            loaded = json.loads(text or "")
            variables = loaded.get("env_vars") or {}
            pairs = [(str(name), str(value)) for name, value in variables.items()]
        except (ValueError, AttributeError, RecursionError):
            scope.put("*", [None], where, f"{found} (not readable as JSON)", export=True, depth=0)
            return
        for name, value in pairs:
            scope.put(name, [value], where, f'{found} "{name}": "{value}"', export=True, depth=0)

    def _runtime_env_file(self, path: Path, scope: Scope, where: str) -> None:
        """Plain ``NAME: value`` lines of Ray's YAML file; other lines leave the names in them unknown.

        A YAML parser is no dependency of ours, and this much needs none.
        """
        try:
            text = _text(path, named=False)
        except (OSError, ValueError):
            text = None
        if text is None:
            scope.put("*", [None], where, f"--runtime-env {path} (not readable here)", export=True, depth=0)
            return
        pattern = re.compile(r"""^\s*["']?([A-Z][A-Z0-9_]*)["']?\s*:[ \t]*(["']?)([\w./:-]*)\2[ \t]*(#.*)?$""")
        for number, line in enumerate(text.split("\n"), 1):
            plain = pattern.match(line)
            if plain:
                here = f"{path}:{number}"
                scope.put(plain.group(1), [plain.group(3)], here, line.strip(), export=True, depth=0)
                continue
            if line.lstrip().startswith("#"):
                continue
            for name in re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", line):
                scope.put(name, [None], f"{path}:{number}", line.strip(), export=True, depth=0)

    def _inside(
        self,
        argv: list[Argument],
        scope: Scope,
        where: str,
        sure: bool,
        folder: Path | None,
        fed: Heredoc | None,
        named: bool,
    ) -> bool:
        """Read the script that the command names, if there is one; True if something was read."""
        program = argv[0]
        if program is None:
            return False
        name = PurePath(program).name
        if name in _SHELLS or PYTHON.fullmatch(name):
            return self._interpreter(argv, scope, where, sure, folder, fed, named)
        if name.endswith((".sh", ".bash", ".py")) or ("/" in program and _is_script(self.beside(program, folder))):
            child = scope.copy()
            child.args = tuple(argv[1:])
            return self.file(self.beside(program, folder), child, named=named and "/" in program, sure=sure)
        if name not in LAUNCHERS:
            return False
        for at, word in enumerate(argv[1:], 1):
            rest = argv[at + 1 :] if word == "--" else argv[at:]
            inner = PurePath((rest[0] if rest else None) or "").name
            if rest and (word == "--" or _starts_something(inner)):
                before = len(self.invocations)
                self.command(rest, scope, where, sure, folder=folder, named=named and name not in _ELSEWHERE)
                return len(self.invocations) > before
        return False

    def _interpreter(
        self,
        argv: list[Argument],
        scope: Scope,
        where: str,
        sure: bool,
        folder: Path | None,
        fed: Heredoc | None,
        named: bool,
    ) -> bool:
        python = PurePath(argv[0] or "").name not in _SHELLS
        rest, child = argv[1:], scope.copy()
        while rest and rest[0] is not None and rest[0][:1] in {"-", "+"} and rest[0] != "-":
            option, rest = rest[0], rest[1:]
            if option == "--":
                break
            if re.fullmatch(r"-[a-zA-Z]*c", option):
                if not rest or rest[0] is None:
                    return False
                child.args = tuple(rest[2:])
                self._string(rest[0], child, where, sure, folder, python=python)
                return True
            if python and option.startswith("-m"):
                return False
            takes = r"-[WX]" if python else r"[-+][a-zA-Z]*[oO]|--rcfile|--init-file"
            if re.fullmatch(takes, option):
                rest = rest[1:]
        if not rest or rest[0] in {"-", None}:
            if fed is None or rest[:1] == [None]:
                return False
            name, _, _ = where.rpartition(":")
            self._string(fed.body, child, name or where, sure, folder, python=python, line=fed.line)
            return True
        child.args = tuple(rest[1:])
        return self.file(self.beside(rest[0] or "", folder), child, named=named, sure=sure, python=python)

    def _string(
        self,
        text: str,
        scope: Scope,
        where: str,
        sure: bool,
        folder: Path | None,
        *,
        python: bool,
        line: int | None = None,
    ) -> None:
        before, self.sure = self.sure, sure
        try:
            self.text(text, scope, where, line or 0, folder or Path(), python=python)
        finally:
            self.sure = before


def _starts_something(name: str) -> bool:
    return name in _SHELLS or name == "vllm" or bool(PYTHON.fullmatch(name)) or name.endswith((".py", ".sh"))


def _pairs(argv: Sequence[Argument]) -> Iterable[tuple[str, Argument]]:
    """Long and short options with their values, in both spellings."""
    for at, word in enumerate(argv):
        if word == "--":
            return
        if word is not None and word.startswith("-"):
            option, equals, value = word.partition("=")
            yield option, value if equals else (argv[at + 1] if at + 1 < len(argv) else None)


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
