"""rlpatch on a real terminal, as a process of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from fixtures.cache import REPOSITORY


def start(
    *words: object, columns: int = 80, program: Sequence[str] = ("-m", "patcher"), environ: Mapping[str, str] = {}
) -> tuple[subprocess.Popen[bytes], int]:
    """rlpatch with its three streams on a terminal, and the other end of that; ``program`` is what Python starts."""
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "rows", "24"], stdin=follower, check=True)
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *program, *map(str, words)], stdin=follower, stdout=follower, stderr=follower,
        cwd=REPOSITORY, start_new_session=True, env={**known, "TERM": "xterm", **environ},
    )  # fmt: skip
    os.close(follower)
    return process, leader


def read(leader: int, until: Callable[[str], bool] = lambda _text: False) -> str:
    """What the terminal got until the process has ended, or ``until``."""
    text = b""
    while not until(text.decode(errors="replace")):
        try:
            part = os.read(leader, 65536)
        except OSError:  # what Linux says where the other end is closed
            break
        if not part:
            break
        text += part
    return text.decode()


def shown(
    *words: object, columns: int = 80, program: Sequence[str] = ("-m", "patcher"), environ: Mapping[str, str] = {}
) -> str:
    """All that the terminal gets of a command that ends with 0."""
    process, leader = start(*words, columns=columns, program=program, environ=environ)
    text = read(leader)
    os.close(leader)
    assert process.wait(60) == 0, text
    return text
