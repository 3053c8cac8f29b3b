"""Programs that start another one, and the environment that they give it: ``env``, ``sudo``, containers, Ray jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from patcher.launches.invocation import ANY, RUN_TIME, Argument, Placed, known, quoted
from patcher.launches.names import CONTAINERS, name_of
from patcher.launches.scope import ASSIGNMENT, Scope, arguments

# Programs that start another with the same environment: their options that take a word, and how many words follow.
_WRAPPERS = {
    "env": ("-u -C --unset --chdir", 0), "nohup": ("", 0), "setsid": ("", 0), "time": ("-f -o", 0),
    "sudo": ("-u -g -h -p -C -r -t -T -U -D -R", 0), "nice": ("-n", 0), "ionice": ("-c -n -p", 0),
    "stdbuf": ("-i -o -e", 0), "timeout": ("-s -k --signal --kill-after", 1), "taskset": ("", 1), "chrt": ("", 1),
    "numactl": ("-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave --preferred", 0),
}  # fmt: skip
_FLAGS = re.compile(r"-[itdqP]+|--(rm|privileged|init|tty|interactive|detach|quiet|read-only|no-healthcheck)|--\w.*=.*")


def unwrapped(words: list[Placed], scope: Scope, where: str) -> list[Placed]:
    """The command behind ``env``, ``nohup`` and the like; its scope is what they make of this one."""
    count = len(words)
    while words:
        head = name_of(words[0])
        assigned = ASSIGNMENT.match(words[0])
        if assigned:
            text = words[0][assigned.end() :]
            found = words[0].replace(RUN_TIME, "…")
            scope.put(assigned.group(1), [known(text)], where, found, export=True)
            words = words[1:]
        elif head in _WRAPPERS:
            words = _wrapper(head, words[1:], scope, where)
        else:
            break
    if words and words[0][:1] == RUN_TIME and len(words) < count:
        # Perhaps another `NAME=value` behind `env`; at the begin it is taken for a program.
        scope.anything(where, quoted(arguments(words))[:200])
    head = name_of(words[0]) if words else ""
    if head in CONTAINERS:
        _contained(words, scope, where)
    elif head in {"ssh", "kubectl"}:
        scope.variables.clear()
    elif head == "ray" and words[1:3] == ["job", "submit"]:
        _submitted(words, scope, where)
    elif head == "uv" and any(word.startswith("--env-file") for word in words):
        scope.anything(where, "uv run --env-file")
    return words


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
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        scope.put(ANY, [None], where, f"--runtime-env {path} (not readable here)", export=True)
        return
    pattern = re.compile(r"""^\s*["']?([A-Z][A-Z0-9_]*)["']?\s*:[ \t]*(["']?)([\w./:-]*)\2[ \t]*(#.*)?$""")
    for number, line in enumerate(text.split("\n"), 1):
        plain = pattern.match(line)
        names = [] if line.lstrip().startswith("#") else re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", line)
        for name in [plain.group(1)] if plain else names:
            scope.put(name, [plain.group(3) if plain else None], f"{path}:{number}", line.strip(), export=True)


def _pairs(words: Sequence[Placed]) -> Iterable[tuple[str, Argument]]:
    """Long and short options with their values, in both spellings."""
    for at, word in enumerate(words):
        if word == "--":
            return
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            text = value if equals else (words[at + 1] if at + 1 < len(words) else RUN_TIME)
            yield option, known(text)
