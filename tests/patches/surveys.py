"""The command line of the survey."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(folder: Path, *words: object, code: int = 0) -> str:
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
