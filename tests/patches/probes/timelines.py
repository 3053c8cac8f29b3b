"""Processes that keep a timeline, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
PRELUDE = """
import asyncio, contextlib, os, sys, threading, time
from types import SimpleNamespace as Some
from patches.probes.timeline_recorder import *
recorder = TimelineRecorder()
span, units, step = recorder.span, recorder.units, recorder.step
"""


class Left(NamedTuple):
    """What a process leaves: its exit status, what it printed, and its files as lines."""

    status: int
    output: str
    files: Sequence[Sequence[dict[str, Any]]]

    @property
    def rows(self) -> list[list[Any]]:
        """The spans of all files but garbage collections, each filled up to nine columns, as they were written."""
        return [row for lines in self.files for row in rows_of(lines) if row[2] != "gc"]

    @property
    def ended(self) -> list[str]:
        """The names of the spans that have ended, in this order."""
        return [row[3] for row in self.rows if row[5] is not None]


def rows_of(lines: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """The spans of a file, each filled up to nine columns."""
    return [[*row, *[None] * (9 - len(row))] for line in lines[1:] for row in line.get("spans", ())]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, also of one that was not ended, or is cut off."""
    text = zlib.decompressobj(31).decompress(path.read_bytes())
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def files_of(folder: Path) -> list[list[dict[str, Any]]]:
    """The lines of all files, the oldest first."""
    return [
        lines_of(path) for path in sorted((folder / "timeline").glob("*"), key=lambda path: path.stat().st_mtime_ns)
    ]


def start(code: str, folder: Path, **environ: str) -> subprocess.Popen[str]:
    """A process that runs ``code`` behind :data:`PRELUDE` and keeps its timeline below ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        cwd=ROOT,
        env={**os.environ, "RLPATCH_SAVE_PATH": str(folder), "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_by(code: str, folder: Path, **environ: str) -> Left:
    """What a process leaves that runs ``code`` to its end."""
    process = start(code, folder, **environ)
    output, _ = process.communicate(timeout=60)
    return Left(process.returncode, output, files_of(folder))
