"""Programs: what each is by its name to whoever follows a launch, and the Python programs among the words of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from patcher.launches.invocation import Argument, Invocation

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
# What these start may see other files and variables than this machine has.
ELSEWHERE = CONTAINERS | {"ray", "ssh", "kubectl", "apptainer", "singularity"}
LAUNCHERS = ELSEWHERE | {
    "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "msrun", "conda", "uv", "poetry", "xargs",
    "msprof", "nsys", "ncu", "strace", "perf", "coverage", "sbatch", "su", "runuser", "tmux", "screen", "parallel",
    "flock", "gosu", "chroot",
}  # fmt: skip
# These take what they start as a text for a shell, and some of them from what they are fed.
TEXTS = frozenset({"ssh", "su", "runuser", "tmux", "screen", "sbatch", "parallel", "flock", "script"})
LISTENERS = frozenset({"ssh", "su", "runuser", "sbatch", "chroot", "parallel"})
# These add words to what they start, which stand elsewhere.
ADDING = frozenset({"xargs", "parallel"})
# What these start, or the variables that they give to it, stands in a file of theirs, or is there already.
FROM_FILES = re.compile(
    r"(docker|podman|nerdctl)( -\S+( \S+)?)* (compose|stack)( .*)? (up|start|restart|create|deploy|run|exec)( .*)?"
    r"|(docker|podman|nerdctl)( -\S+( \S+)?)* (start|restart)( .*)?"
    r"|(docker|podman)-compose( .*)? (up|start|restart|create|run|exec)( .*)?"
    r"|(kubectl|oc|k|k3s)( .*)? (apply|create|replace|patch|scale|rollout|set|edit)( .*)?"
    r"|(helm|kustomize|skaffold|argocd|terraform|ansible|ansible-playbook|snakemake|nextflow|honcho|foreman|pm2)( .*)?"
    r"|(systemctl|service|supervisorctl|rc-service)( .*)? (start|restart|update|reload|enable)( .*)?|supervisord( .*)?"
    r"|(make|just|task|tox|nox|invoke|rake|npm|yarn|pnpm|pixi|pipenv|dotenv|op|direnv)( .*)?"
    r"|(qsub|bsub|condor_submit|crontab|at|batch|batch_submit)( .*)?|ray( .*)? (up|submit|exec)( .*)?"
    r"|(srun|mpirun|mpiexec|sbatch)( .*)? (--(multi-prog|app|tune|export-file|envfile)|-(envfile|configfile))([ =].*)?",
    re.DOTALL,
)
# They may write the files that their words name.
WRITING = frozenset(
    {
        "cp",
        "mv",
        "ln",
        "tee",
        "sed",
        "wget",
        "curl",
        "git",
        "rsync",
        "scp",
        "install",
        "dd",
        "patch",
        "perl",
        "awk",
        "envsubst",
        "hf",
        "aws",
        "gsutil",
    }
)
# What containers and clusters are told to do, beside starting something.
_VERBS = frozenset({"cp", "build", "buildx", "pull", "push", "login", "rm", "rmi", "stop", "kill", "ps", "logs", "get"})
# Programs that neither run an engine nor ask one for anything: what they inherit does not matter.
QUIET = frozenset({
    "mkdir", "rm", "cp", "mv", "ln", "ls", "cat", "tee", "sleep", "wait", "kill", "pkill", "date", "chmod",
    "chown", "grep", "sed", "awk", "cut", "tr", "head", "tail", "sort", "wc", "find", "dirname", "basename",
    "realpath", "readlink", "touch", "hostname", "ip", "ifconfig", "npu-smi", "nvidia-smi", "pip", "pip3", "git",
    "tar", "unzip", "disown", "logger", "seq", "uname", "whoami", "id", "apt", "apt-get", "apt-cache",
    "which", "mktemp", "lsof", "uniq", "expr", "nproc", "scp", "rsync", "diff", "cmp", "dos2unix", "md5sum",
    "sha256sum", "stat", "file", "du", "df", "free", "less", "more", "vi", "vim", "nano", "shellcheck",
    "aws", "hdfs", "gsutil", "ossutil", "hf", "huggingface-cli", "modelscope",
})  # fmt: skip
_PYTHON = re.compile(r"(python|pypy)[\d.]*")


def name_of(word: str | None) -> str:
    """The name of a program without its folder."""
    return PurePath(word or "").name


def is_python(name: str) -> bool:
    """Whether a program of that name is an interpreter of Python."""
    return bool(_PYTHON.fullmatch(name))


def is_script(name: str) -> bool:
    """Whether a file of that name is a program in the language of a shell."""
    return name.endswith((".sh", ".bash", ".slurm", ".sbatch"))


def is_quiet(words: Sequence[str]) -> bool:
    """Whether a command neither starts anything that matters nor asks for anything."""
    name = name_of(words[0])
    if name in QUIET:
        others = {"-exec", "-execdir", "-ok", "-okdir", "exec", "bisect", "foreach"}
        return others.isdisjoint(words) and not any("system(" in word for word in words)
    if name in {"conda", "mamba", "micromamba"}:
        return "run" not in words
    return name in CONTAINERS | {"kubectl"} and len(words) > 1 and words[1] in _VERBS


def is_started(name: str) -> bool:
    """Whether a program of that name behind a launcher is what is launched."""
    return name in SHELLS or name == "vllm" or is_python(name) or name.endswith(".py") or is_script(name)


# --- Python programs ---


class Program(NamedTuple):
    """A Python program that is started: a file, or a ``module`` by its dotted name, and the words behind it."""

    name: str
    module: bool
    words: tuple[Argument, ...]

    def file(self, folders: Sequence[Path]) -> Path | None:
        """The file of the program in the first of ``folders`` that has it, None if none of them has."""
        path = self.name.replace(".", "/")
        names = [f"{path}.py", f"{path}/__main__.py"] if self.module else [self.name]
        for file in (folder / name for folder in folders for name in names):
            with suppress(OSError, ValueError):
                if file.is_file():
                    return file.absolute()
        return None


def programs(invocation: Invocation) -> Iterator[Program]:
    """What may be a Python program among the words: behind ``-m``, or a file that Python or a launcher is given."""
    argv = invocation.argv
    head = name_of(argv[0]) if argv else ""
    for at, word in enumerate(argv):
        module = bool(at) and argv[at - 1] == "-m"
        takes_files = not at or is_python(head) or head in LAUNCHERS
        if word is not None and (module or (takes_files and word.endswith(".py"))):
            yield Program(word, module, argv[at + 1 :])


def decorator(text: str, name: str) -> dict[str | int, object] | None:
    """The constants that a decorator of that dotted name is given in a Python text, by keyword or place.

    None where no function of the module has it, or where the text is no Python.
    """
    try:
        functions = [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for call in (call for function in functions for call in function.decorator_list):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == name:
            given: list[tuple[str | int | None, ast.expr]] = [*enumerate(call.args)]
            given += [(keyword.arg, keyword.value) for keyword in call.keywords]
            return {key: one.value for key, one in given if key is not None and isinstance(one, ast.Constant)}
    return None
