"""Programs by their names: what each of them is to somebody who follows a launch."""

from __future__ import annotations

import re
from pathlib import PurePath

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
# What these start may see other files and variables than this machine has.
ELSEWHERE = CONTAINERS | {"ray", "ssh", "kubectl", "apptainer", "singularity"}
LAUNCHERS = ELSEWHERE | {
    "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "msrun", "conda", "uv", "poetry", "xargs",
    "msprof", "nsys", "ncu", "strace", "perf", "coverage",
}  # fmt: skip
# Programs that neither run an engine nor ask one for anything: what they inherit does not matter.
QUIET = frozenset({
    "mkdir", "rm", "cp", "mv", "ln", "ls", "cat", "tee", "sleep", "wait", "kill", "pkill", "date", "chmod",
    "chown", "grep", "sed", "awk", "cut", "tr", "head", "tail", "sort", "wc", "find", "dirname", "basename",
    "realpath", "readlink", "touch", "hostname", "ip", "ifconfig", "npu-smi", "nvidia-smi", "pip", "pip3", "git",
    "wget", "tar", "unzip", "disown", "logger", "seq", "uname", "whoami", "id", "apt", "apt-get", "apt-cache",
    "which", "mktemp", "lsof", "uniq", "expr", "nproc",
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
    return name.endswith((".sh", ".bash"))


def starts_something(name: str) -> bool:
    """Whether a program of that name behind a launcher is what is launched."""
    return name in SHELLS or name == "vllm" or is_python(name) or name.endswith(".py") or is_script(name)
