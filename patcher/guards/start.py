"""A command of a launch after expansion: its program and variables, and what programs mean for what follows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import dropwhile
from pathlib import Path
from posixpath import basename

OUTSIDE, INSIDE = "\0", "\1"
"""Stand in a word for an expansion: of what only the run tells, and of whole names that stand among the texts."""
KEPT = "\2"
"""Stands before what PYTHONPATH expands to, which has what a run added to it."""

SHELL = r"(ba|da|z|k)?sh"
RUNS_FILES = r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed"
PROFILERS = r"msprof|nsys|ncu|rocprof\S*"
PROGRAM = rf"{RUNS_FILES}|vllm|sglang|{PROFILERS}"
_CARRIES = (
    r"srun|mpi(run|exec)|torchrun|accelerate|deepspeed|ray|docker|podman|nerdctl|singularity|apptainer|enroot|kubectl"
    r"|ssh|pdsh|sudo|conda|mamba|micromamba|uv|poetry|pixi|command"
)
HARMLESS = (  # they start nothing, set nothing, and go on, whatever words they get
    r"|:|\[\[?|test|true|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|git|e?grep|sed|awk"
    r"|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|tee|basename|dirname|realpath|hostname|nvidia-smi|npu-smi|which|type|pwd"
    r"|seq|tr|cut|find|df|du|free|uname|apt(-get)?|hf|huggingface-cli|ps|#\w+"
)
ENDS = r"curl|wget|unset|wait|p?kill|exit|return|break|continue|shift|for|select|case|function|in|done|fi|esac|else|\}"
EXPORTS = r"(export|unset|(declare|typeset|local|readonly) -[gaA]*x[gaA]*) [^-+].*"
_LOCAL = rf"(?!/(usr|s?bin|opt)/|(.*/)?({PROGRAM}|{SHELL})$).*/"
assigns = partial(re.match, r"(?a)([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
wraps = partial(  # what may stand before the program, or behind these
    re.match,
    r"(.*/)?(nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env)$|-|\d[\d.,:-]*[smhd]?$|\w+=\S*$",
)


def is_known(text: str) -> bool:
    """Tell whether ``text`` contains no part that is known only at run time."""
    return OUTSIDE not in text and INSIDE not in text


def is_hidden(word: str) -> bool:
    """Tell whether ``word`` may set any key: the part before = is unknown or joined from expansions."""
    key = word.partition("=")[0].strip("[]'\",")
    is_path = re.match(r"[\0\1]+/", key)
    return not is_path and (OUTSIDE in key or (INSIDE in key and key != INSIDE))


def carries(words: Sequence[str]) -> bool:
    """Tell whether the first of ``words`` is a launcher that certainly runs the program behind its options."""
    return bool(words) and bool(re.fullmatch(_CARRIES, basename(words[0])))


def shown(text: object) -> str:
    """Return ``text`` for people, with … for each part that is known only at run time."""
    return re.sub("[\0\1]+", "…", str(text).replace(KEPT, ""))


@dataclass(frozen=True)
class Start:
    """A command; ``sure`` tells that the launch certainly runs it. Files that it names are in ``folders``."""

    where: str
    words: tuple[str, ...]
    sure: bool
    folders: tuple[Path, ...] = ()

    @cached_property
    def texts(self) -> Sequence[str]:
        """Words behind the leading assignments."""
        return [*dropwhile(assigns, self.words)]

    @cached_property
    def own(self) -> Sequence[str]:
        """Words from the program on, behind wrappers such as nohup."""
        return [*dropwhile(wraps, self.texts)]

    @cached_property
    def name(self) -> str:
        """Name of the program, with its path if it is a local one."""
        first = "".join(self.own[:1])
        return first if re.match(_LOCAL, first) else basename(first)

    @cached_property
    def shape(self) -> str:
        """Words of the program, with OUTSIDE for each that may set any key."""
        return " ".join(OUTSIDE if is_hidden(word) else word for word in (self.name, *self.own[1:]))

    @property
    def is_python(self) -> bool:
        """Tell whether it starts Python or a launcher of Python."""
        return bool(re.fullmatch(PROGRAM, self.name))

    @property
    def is_emptied(self) -> bool:
        """Tell whether its program gets no environment, or replaces the shell under another name."""
        return bool(re.search(r"(^|[\s/])(env|exec) -", " ".join(self._before)))

    @property
    def program(self) -> str:
        """Name of Python or of a launcher of Python; "" for another program, which may run elsewhere."""
        return self.name if self.is_python and not self.is_emptied else ""

    @property
    def is_export(self) -> bool:
        """Tell whether it changes what the programs after it get."""
        return bool(re.fullmatch(rf"(?s){EXPORTS}", " ".join(self.own)))

    @cached_property
    def variables(self) -> Mapping[str, str | None]:
        """Variables that it sets for itself or for what follows; None: it unsets the variable."""
        words = self.own[1:] if self.is_export else filter(assigns, self._before)
        parts = (word.partition("=") for word in words)
        return {name: value if equals else None for name, equals, value in parts}

    @property
    def _before(self) -> Sequence[str]:
        return self.words[: len(self.words) - len(self.own)]


def may_start(start: Start) -> bool:
    """Tell whether a start may lead to a Python process: it is more than an assignment or an end of the script."""
    return bool(start.texts) and not re.fullmatch(
        rf"{ENDS}|{HARMLESS}|export|declare|typeset|local|readonly|ray stop", start.texts[0]
    )
