"""Programs that start another one, and the environment that they give it: ``env``, ``sudo``, containers, Ray jobs."""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path

from patcher.launches.invocation import ANY, RUN_TIME, Argument, Placed, known, quoted
from patcher.launches.program import CONTAINERS, is_started, name_of
from patcher.launches.scope import ASSIGNMENT, MANY, Scope, arguments

# Programs that start another: which of their options take a word, and how many words follow before its name.
_WRAPPERS = {
    "env": ("-[iv0]*[uCSa]|--(unset|chdir|split-string|argv0)", 0), "nohup": ("", 0), "setsid": ("", 0),
    "sudo": (
        "-[AbEHiknPSs]*[ughpCrtTUDR]|--(user|group|host|prompt|close-from|role|type|command-timeout|chdir|chroot)", 0
    ),
    "time": ("-[fo]|--(format|output)", 0), "nice": ("-n|--adjustment", 0), "taskset": ("", 1), "chrt": ("", 1),
    "ionice": ("-[cnp]|--class(data)?", 0), "stdbuf": ("-[ioe]|--(input|output|error)", 0),
    "timeout": ("-[sk]|--signal|--kill-after", 1),
    "numactl": ("-[NmCip]|--(cpunodebind|membind|physcpubind|interleave|preferred)", 0),
}  # fmt: skip
# Of the options of containers those take no word, in docker, podman, nerdctl and compose.
_FLAGS = (
    "rm|rmi|privileged|init|tty|interactive|detach|quiet|read-only|replace|no-.+|publish-all|oom-kill-disable|env-host"
    "|sig-proxy|tls-verify|disable-content-trust|debug|tls|tlsverify|remote|build|remove-orphans|service-ports"
    "|use-aliases|quiet-(pull|build)|http-proxy|passwd|read-only-tmpfs|rootfs|unsetenv-all"
)
_CONTAINER = f"-[itdqPT]*[^itdqPT-]|--(?!({_FLAGS})$).+"
# The long options of env that count, as it has them, too.
_SHORT = {"-": "-i", "--ignore-environment": "-i", "--unset": "-u", "--chdir": "-C", "--split-string": "-S"}
_VERBS = frozenset({"run", "exec", "container", "compose", "create"})
# Launchers with options that give variables to what they start, as NAME=VALUE in one word or in a list of those.
_GIVES = {
    "mpirun": "-x", "mpiexec": "-x", "srun": "--export", "sbatch": "--export", "nsys": "-e|--env-var",
    "apptainer": "--env", "singularity": "--env",
}  # fmt: skip
# What these give to the program that they start is read: of others, whatever they name may be given.
GIVING = CONTAINERS | {*_GIVES}
# Of their options these take a word, whatever it is: how many there are, where, and where it is written.
_COUNTED = r"-(np?|[NcGHwptJo])|--(np|host(file)?|machinefile|n(tasks|odes|odelist|num)(-per-\w+)?|output|trace|gpus)"
# Programs that start a text as a shell does: the option that it follows, or how options are told from it.
_TEXT_OPTIONS = {
    "su": "-[lmp]*c|--(session-)?command", "runuser": "-[lmp]*c|--(session-)?command", "sbatch": "--wrap",
    "flock": "-c|--command", "script": "-[qefa]*c|--command",
}  # fmt: skip
_LOGIN = re.compile("-|-[a-zA-Z]*l[a-zA-Z]*|--login")
# With these options they may keep the environment from what they start.
_WITHHOLDS = {
    **dict.fromkeys(("apptainer", "singularity"), re.compile("--(cleanenv|containall)|-[a-zA-Z]*[eC].*")),
    **dict.fromkeys(("mpirun", "mpiexec"), re.compile("-(genv|env)(none|list)")),
    "parallel": re.compile("-[a-zA-Z]*S.*|--(sshlogin|slf).*"),
}
# These variables decide what of the environment they hand on.
_FILTERS = {"srun": ("SLURM_EXPORT_ENV",), "sbatch": ("SBATCH_EXPORT",)}
_SSH = "-[46AaCfGgKkMNnqsTtVvXxYy]*[BbcDEeFIiJLlmOoPpQRSWw]"
_TERMINAL = "-[dmDRP]*[tsncFSLfxye]"
_JOB = "--(?!(no-wait|verbose|help)$).+"
_PATIENCE_S = 20
# The folder that a command is typed in may hold a yaml.py, which nobody asked to run.
_RUN = "import sys; sys.path[:] = filter(None, sys.path); exec(compile(sys.argv.pop(1), 'yaml_lines.py', 'exec'))"


def options(
    words: Sequence[Placed], valued: str, verbs: Collection[str] = (), signs: str = "-"
) -> Iterator[tuple[str, str, Sequence[Placed]]]:
    """The options at the begin of ``words``, each with its value and the words behind it, up to ``--`` or an operand.

    ``valued`` is a pattern of those that take the next word where they have no ``=``; between them may stand ``verbs``.
    """
    while words and (words[0] in verbs or (words[0][:1] in [*signs] and words[0] != "-")):
        option, equals, value = words[0].partition("=") if words[0][:2] == "--" else (str(words[0]), "", "")
        takes = not equals and option not in verbs and bool(re.fullmatch(valued, option))
        value = (words[1] if len(words) > 1 else RUN_TIME) if takes else value
        words = words[1 + takes :]
        yield option, value, words
        if option == "--":
            break


def unwrapped(words: Sequence[Placed], scope: Scope, where: str, pythons: Sequence[str] = ()) -> Sequence[Placed]:
    """The command behind ``env``, ``nohup`` and the like; its scope is what they make of this one.

    ``pythons`` may have PyYAML, for the files that ``ray job submit`` is given.
    """
    count = len(words)
    while words:
        assigned, head = ASSIGNMENT.match(words[0]), name_of(words[0])
        if assigned:
            _give(scope, assigned[1], words[0][assigned.end() :], where, words[0])
            words = words[1:]
        elif head in _WRAPPERS:
            words = _wrapper(head, words[1:], scope, where)
        else:
            break
    if words and words[0][:1] == RUN_TIME and len(words) < count:
        # Perhaps another `NAME=value` behind `env`; at the begin it is taken for a program.
        scope.anything(where, quoted(arguments(words)))
    head = name_of(words[0]) if words else ""
    own = [*takewhile(lambda word: word != "--" and not is_started(name_of(word)), words)]
    if head in _WITHHOLDS and any(map(_WITHHOLDS[head].fullmatch, own)):
        scope.drop_any(where, quoted(arguments(words)))
    if head in CONTAINERS:
        words = _contained(words, scope, where)
    elif head in {"ssh", "kubectl"} or (head in {"su", "runuser"} and any(map(_LOGIN.fullmatch, own))):
        scope.variables.clear()
    elif head == "tmux":
        scope.anything(where, "tmux, whose server may have been started elsewhere")
    elif head in _GIVES:
        _handed_on(head, words, scope, where)
    elif head == "ray" and list(words[1:3]) == ["job", "submit"]:
        _submitted(words, scope, where, pythons)
    elif head == "uv" and any(word.startswith("--env-file") for word in words):
        scope.anything(where, "uv run --env-file")
    return words


def _give(scope: Scope, name: str, text: Argument, where: str, found: str) -> None:
    scope.put(name, known(text), where, found.replace(RUN_TIME, "…"), export=True)


def _wrapper(head: str, words: Sequence[Placed], scope: Scope, where: str) -> Sequence[Placed]:
    valued, operands = _WRAPPERS[head]
    keeps = head != "sudo"
    for option, value, behind in options(words, valued, verbs=("-",)):
        words = behind
        keeps = keeps or bool(re.match("-[AbHiknPSs]*E", option)) or (option == "--preserve-env" and not value)
        if head != "env":
            continue
        # Letters that stand for themselves, and one that takes the rest of the word, or else the next one.
        letters, letter, rest = re.findall("-([iv0]*)([uCSa]?)(.*)", _SHORT.get(option, option), re.DOTALL)[0]
        text = rest or value
        if "i" in letters:
            scope.variables.clear()
        if letter == "u":
            scope.drop(text, where, f"env -u {text}", 0)
        elif letter == "C":
            scope.anything(where, f"env -C {text}".replace(RUN_TIME, "…"))
        elif letter == "S":
            return _wrapper(head, [*_split(text, where), *words], scope, where)
    if not keeps:
        # What sudo lets through is a matter of its configuration.
        scope.anything(where, "sudo without -E")
    return words[operands:]


def _split(text: str, where: str) -> list[Placed]:
    """The words of ``env -S``; of a text with variables or signs of its own only the run tells them."""
    with suppress(ValueError):
        if not re.search(r"[$\\#]", text) and RUN_TIME not in text:
            return [Placed(word, where) for word in shlex.split(text)]
    return [Placed(MANY, where)]


def _contained(words: Sequence[Placed], scope: Scope, where: str) -> Sequence[Placed]:
    """What ``docker run -e`` gives to a container, which inherits nothing of the command that starts it.

    Returns the words with what the container runs in the place of its image, if an option says what that is.
    """
    outside, rest, entry = dict(scope.variables), words[1:], ""
    scope.variables.clear()
    if "compose" in words:
        scope.anything(where, quoted(arguments(words)))  # its file may set variables
    scope.folder = None
    for option, given, behind in options(rest, _CONTAINER, _VERBS):
        rest, short = behind, re.match(r"-[itdqPT]*e=?(.*)", option, re.DOTALL)
        value = (short[1] if short else "") or given
        name, equals, text = value.partition("=")
        variable = short or option == "--env"
        entry = value if option == "--entrypoint" else entry
        if option == "--env-host":
            scope.variables = outside | scope.variables
        elif option == "--env-file" or (variable and RUN_TIME in name):
            scope.anything(where, f"{option} {value}".replace(RUN_TIME, "…"))
        elif variable and equals:
            _give(scope, name, text, where, f"-e {value}" if short else f"{option} {value}")
        elif variable and (name in outside or ANY in outside):
            scope.variables[name] = outside.get(name) or outside[ANY]
    if rest and rest[0][:1] == RUN_TIME:  # perhaps an image, perhaps options
        scope.anything(where, quoted(arguments(words)))
    return [words[0], Placed(entry, words[0].where), *rest[1:]] if entry else words


def _handed_on(head: str, words: Sequence[Placed], scope: Scope, where: str) -> None:
    """What ``mpirun -x``, ``srun --export`` and ``apptainer --env`` give to the program that they start."""
    for name in _FILTERS.get(head, ()):
        if any(one.present and known(one.text) != "ALL" for one in scope.look(name)):
            scope.drop_any(where, name)
    for name in [name for name in scope.variables if name.startswith(("APPTAINERENV_", "SINGULARITYENV_"))]:
        if head in {"apptainer", "singularity"}:
            scope.variables[name.partition("_")[2]] = scope.variables[name]
    for at, word in enumerate(words[1:], 2):
        if is_started(name_of(word)):
            break
        option, equals, value = word.partition("=") if word[:2] == "--" else (str(word), "", "")
        value = value if equals else next(iter(words[at:]), "")
        if option in {"-genv", "-env"} and len(words) > at + 1:  # of MPICH
            _give(scope, words[at], words[at + 1], where, f"{option} {words[at]} {words[at + 1]}")
        elif re.fullmatch(_GIVES[head], option):
            given = [value] if head.startswith("mpi") else value.split(",")
            if head in {"srun", "sbatch"} and "ALL" not in given and RUN_TIME not in value:
                scope.variables = {name: scope.look(name) for name in given if name in scope.variables | {ANY: ()}}
            for one in given:
                name, equals, text = one.partition("=")
                if RUN_TIME in name:
                    scope.anything(where, f"{option} {one}".replace(RUN_TIME, "…"))
                elif equals:
                    _give(scope, name, text, where, f"{option} {one}")
        elif option == "--env-file" or (MANY in word and not re.fullmatch(_COUNTED, words[at - 2])):
            scope.anything(where, quoted(arguments(words)))


def texts(words: Sequence[Placed]) -> list[Placed]:
    """What ``ssh``, ``su``, ``tmux`` and their kin give to a shell, as far as it is among these words."""
    head, rest = name_of(words[0]), words[1:]
    if head == "ssh":
        for *_, behind in options(rest, _SSH):
            rest = behind
        hosts = 1 + (len(rest) > 2 and MANY in rest[0])  # what is not known may be options, and the host follows
        found = []
        for behind in (rest[at:] for at in range(1, 1 + hosts)):
            for *_, after in options(behind, _SSH):
                behind = after
            found += [Placed(" ".join(behind), behind[0].where)] if behind else []
        return found
    if head in _TEXT_OPTIONS:
        pairs = ((*word.partition("="), behind) for word, behind in pairwise([*rest, Placed(RUN_TIME, "")]))
        return [
            Placed(value if equals else behind, words[0].where)
            for option, equals, value, behind in pairs
            if re.fullmatch(_TEXT_OPTIONS[head], option)
        ]
    behind_option = [re.fullmatch(_TERMINAL, word) for word in words]
    return [
        word
        for word, valued in zip(rest, behind_option, strict=False)
        if not valued and (re.search(r"\s", word) or word[:1] == RUN_TIME)
    ]


# --- jobs of Ray ---


def _submitted(words: Sequence[Placed], scope: Scope, where: str, pythons: Sequence[str]) -> None:
    """What ``ray job submit`` gives to a job, which runs with the environment of the cluster."""
    for name, ways in scope.variables.items():
        scope.variables[name] = tuple(one._replace(text=None) if one.exported else one for one in ways)
    for option, given, _ in options(words[3:], _JOB):
        value = known(given)
        try:
            if option == "--runtime-env-json":
                for name, text in (json.loads(value or "").get("env_vars") or {}).items():
                    _give(scope, name, str(text), where, f'{option} "{name}": "{text}"')
            elif option == "--runtime-env":
                if value is None or (scope.folder is None and not value.startswith("/")):
                    raise ValueError("only the run tells which file")
                file = Path(scope.folder or "/", value)
                for name, line, text in _env_vars(file, (*pythons, sys.executable)):
                    _give(scope, name, text, f"{file}:{line}", f"{name}: {'…' if text is None else text}")
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            reason = error if isinstance(error, ValueError) else "no mapping"
            scope.put(ANY, None, where, f"{option} (not readable: {reason})"[:200], export=True)


def _env_vars(file: Path, pythons: Sequence[str]) -> list[tuple[str, int, Argument]]:
    """The variables in a YAML file of Ray's, each with its line, by the first of ``pythons`` that has PyYAML.

    Raises ValueError where nobody can read it, or where it is no mapping of mappings.
    """
    program = (pkgutil.get_data(__package__, "yaml_lines.py") or b"").decode()
    reason = "no PyYAML here: --python EXE leads to one that has it"
    for python in dict.fromkeys(pythons):
        command = [python, "-c", _RUN, program, str(file)]
        try:
            done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_PATIENCE_S, check=False)
        except OSError:
            continue
        except subprocess.SubprocessError as error:
            reason = str(error)
            continue
        if done.returncode == 0:
            return [(name, line, text) for name, line, text in json.loads(done.stdout)]
        if "No module named 'yaml'" not in done.stderr:
            reason = done.stderr.strip().rpartition("\n")[2] or f"{python} ended with {done.returncode}"
    raise ValueError(reason)
