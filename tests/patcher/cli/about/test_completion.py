"""Completion as a terminal does it: an interactive shell, keys, and what it then shows."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from patcher.cli import rlpatch
from tests.matrix import thinned

PROMPT = "ready to type: "
CLEAR = "\x15"  # Ctrl-U: the line is empty again
SPLIT = f'"{PROMPT[:5]}""{PROMPT[5:]}"'  # so that what is typed is not taken for it
SHELLS = {
    "bash": (("--norc", "--noprofile", "-i"), f'eval "$(rlpatch completion bash)"; PS1={SPLIT}\n'),
    "zsh": (("-f", "-i"), f'autoload -U compinit; compinit -u -D; eval "$(rlpatch completion zsh)"; PS1={SPLIT}\n'),
    "fish": (
        ("--no-config", "-i"),
        f"rlpatch completion fish | source; function fish_prompt; echo -n {SPLIT}; end\n",
    ),
}


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str, str], str]]:
    """Types keys into a shell that has the completion of rlpatch; gives what it shows until a text is there."""
    name = getattr(request, "param", "bash")
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"no {name} here")
    options, setup = SHELLS[name]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}
    pid, screen = pty.fork()
    if pid == 0:
        os.execve(shell, [name, *options], environ)

    def shown(keys: str, until: str) -> str:
        os.write(screen, keys.encode())
        text, latest = "", time.monotonic() + 30
        while until not in text and time.monotonic() < latest:
            if select.select([screen], [], [], 1)[0]:
                text += os.read(screen, 4096).decode(errors="replace").replace("\a", "")
        return text

    shown(setup, PROMPT)
    yield shown
    os.close(screen)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


COMPLETED = {
    "app": "apply ",
    "apply vllm-ascend==0.12.0": "vllm-ascend==0.12.0rc1 ",
    "apply sglang==0.4.6.post5 verl==0.5": "verl==0.5.0 ",
    "revert vllm-a": "revert vllm-ascend ",
    "revert vllm-ascend --stage gr": "--stage graph-capture ",
    "apply verl --stage upd": "--stage update-",
    "apply verl --stage=upd": "--stage=update-",
    "apply verl --strategy f": "--strategy fsdp ",
    "watch --stage rollout,update-p": "rollout,update-policy ",
    "analyse --export text,": "--export text,db ",
    "analyse --export=text,": "--export=text,db ",
    "apply vllm-ascend --path=/us": "--path=/usr/",
}
"""What is typed after ``rlpatch``, and what the tabulator makes of its end."""


@pytest.mark.parametrize(
    "terminal",
    thinned(["bash", "zsh", "fish"], []),
    indirect=True,
)
def test_a_shell_completes_commands_releases_and_values(terminal: Callable[[str, str], str]) -> None:
    for typed, completed in COMPLETED.items():
        assert completed in terminal(f"{CLEAR}rlpatch {typed}\t", completed)


def test_bash_lists_the_releases_behind_the_equals_signs(terminal: Callable[[str, str], str]) -> None:
    assert "0.11.0rc0" in terminal("rlpatch apply vllm-ascend==0.11.0rc\t\t", "0.11.0rc3")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("revert vllm-a", ["vllm-ascend"]),
        ("status vllm-a", ["vllm-ascend"]),
        ("apply vllm-a", ["vllm-ascend"]),
        ("explain vllm-ascend==0.12.0", ["vllm-ascend==0.12.0rc1"]),
        ("revert vllm-ascend --stage ", ["rollout", "graph-capture", "builtin", "timeline", "weight-sync"]),
        ("apply VLLM_Ascend==0.11.0rc1 sglang --decode 1:2 --stage r", ["rollout"]),
        ("apply mindspeed-rl --strategy ", ["megatron"]),
        ("apply verl --strategy f", ["fsdp"]),
        ("apply --strategy f", ["fsdp"]),
        ("apply --stage update-", ["update-policy", "update-critic"]),
        ("watch --stage rollout,update-p", ["rollout,update-policy"]),
        ("trigger sglang --stage ", ["rollout", "graph-capture", "timeline", "weight-sync"]),
        ("analyse --export text,", ["text,db"]),
    ],
)
def test_what_is_offered_is_what_the_command_takes(typed: str, offered: list[str]) -> None:
    *words, incomplete = typed.split(" ")
    found = ShellComplete(rlpatch, {}, "rlpatch", "_RLPATCH_COMPLETE").get_completions(words, incomplete)
    assert [one.value for one in found] == offered
