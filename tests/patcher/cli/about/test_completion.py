"""Completion as a terminal does it: an interactive bash, keys, and what it then shows."""

from __future__ import annotations

import os
import pty
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROMPT = "ready to type: "


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[[str, str], str]]:
    """Types keys into a bash that has the completion of rlpatch; gives what it shows until a text is there."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}
    pid, screen = pty.fork()
    if pid == 0:
        os.execve(bash, ["bash", "--norc", "--noprofile", "-i"], environ)

    def shown(keys: str, until: str) -> str:
        os.write(screen, keys.encode())
        text, latest = "", time.monotonic() + 30
        while until not in text and time.monotonic() < latest:
            if select.select([screen], [], [], 1)[0]:
                text += os.read(screen, 4096).decode().replace("\a", "")
        return text

    shown(f'eval "$(rlpatch completion bash)"; PS1="{PROMPT[:5]}""{PROMPT[5:]}"\n', PROMPT)
    yield shown
    os.close(screen)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("rlpatch app", "apply "),
        ("rlpatch apply vllm-ascend==0.12.0", "vllm-ascend==0.12.0rc1 "),
        ("rlpatch apply sglang==0.4.6.post5 verl==0.5", "verl==0.5.0 "),
        ("rlpatch apply verl --stage upd", "--stage update-"),
    ],
)
def test_bash_completes_commands_releases_and_values(
    terminal: Callable[[str, str], str], typed: str, completed: str
) -> None:
    assert completed in terminal(f"{typed}\t", completed)


def test_bash_lists_the_releases_behind_the_equals_signs(terminal: Callable[[str, str], str]) -> None:
    assert "0.11.0rc0" in terminal("rlpatch apply vllm-ascend==0.11.0rc\t\t", "0.11.0rc3")
