"""Maker of what probes leave in a save folder, without a run: states, requests, and facts beside traces."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from hypothesis import strategies as st

from patcher.workers import life
from patcher.workers.request import TriggerRequest

ROLLOUT: dict[str, Any] = {
    "format": 1, "rlpatch": "0.1.0", "target": "vllm", "release": "0.32.0", "stage": "rollout", "unit": "decode",
    "backend": "torch", "ranks": ["0"], "host": "node1", "replica": "", "dp": 0, "rank": 0, "world": 1, "pid": 4711,
    "window": "30:60", "load": 0, "tail": 0, "context": 0, "rollout": 0,
}  # fmt: skip
TRAINING = {name: value for name, value in ROLLOUT.items() if name not in ("dp", "rollout")} | {
    "target": "verl", "release": "0.6.1", "stage": "update-policy", "unit": "micro-batch", "window": "0:1", "step": 1,
    "role": "actor",
}  # fmt: skip
ON_DEMAND: dict[str, Any] = {"on_demand": True, "window": ""}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
"""Any value that JSON may have, for files that anybody may write."""


def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def here(**more: Any) -> dict[str, Any]:
    """That a worker is this process."""
    return {"host": life.host(), "pid": os.getpid(), **more}


class Saved:
    """A save folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path / ".rlpatch"
        self.folder.mkdir(parents=True)

    def state(self, state: str = "recording", **more: Any) -> Path:
        """The state of one worker, of a rollout by default; with a ``step`` of a training stage. None leaves a key out."""
        base = TRAINING if "step" in more or more.get("stage", "rollout") != "rollout" else ROLLOUT
        told = {
            **base, "state": state, "why": "", "at": time.time(), "number": 17, "traces": [], "on_demand": False,
            "request": "", **more,
        }  # fmt: skip
        if not told.pop("on_demand"):
            del told["request"]
        if isinstance(told["ranks"], str):
            told["ranks"] = told["ranks"].split(",") if told["ranks"] else []
        replica = f"_replica{told['replica']}" if told["replica"] else ""
        place = f"{replica}_dp{told['dp']}" if "dp" in told else ""
        role = f"_{told['role']}" if told.get("role") else ""
        name = f"{told['stage']}{role}_{told['host']}{place}_rank{told['rank']}_{told['pid']}.json"
        return self.write(name, {key: value for key, value in told.items() if value is not None})

    def request(self, stage: str = "rollout", **more: Any) -> Path:
        """A request that waits to be served."""
        asked = {"id": "abc123", "window": "30:60", "ranks": "0", "at": 1, "expires": time.time() + 3600, **more}
        form = asked.pop("format", 1)
        return self.write(f"{stage}.request", {**json.loads(TriggerRequest(**asked).text), "format": form})

    def write(self, name: str, content: object) -> Path:
        """Any file beside the states; what is no text is JSON."""
        file = self.folder / name
        adjacent = file.with_name(f".{name}.{os.getpid()}")
        adjacent.write_text(content if isinstance(content, str) else json.dumps(content))
        adjacent.replace(file)
        return file

    def trace(
        self, name: str = "node1_dp0_rank0_4711.1732262400.pt.trace.json", text: str = "", /, **facts: Any
    ) -> Path:
        """A trace of torch.profiler, with the facts beside it that say so."""
        path = self.path / name
        path.write_text(text or '{"traceEvents": [{"ph": "X", "name": "ProfilerStep#30", "ts": 1, "dur": 1}]}')
        self.facts(path, **facts)
        return path

    def facts(self, trace: Path, /, units: range = range(30, 60), **more: Any) -> Path:
        """The facts beside a trace: each unit decodes one token of 8 requests, whose contexts grow by 8 in all."""
        held = [
            {"number": number, "begin": 1_732_262_400_000_000_000 + at * 10_000_000, "end": 0, "clock": [0, 0],
             "uncounted": 0, "requests": 8, "tokens": 8, "drafts": 0, "longest": 1024 + at, "context": 8000 + 8 * at}
            for at, number in enumerate(units)
        ]  # fmt: skip
        told = {**ROLLOUT, "why": "complete, recorded", "units": held, **more}
        file = trace.with_name(f"{trace.name}.rlpatch.json")
        file.write_text(json.dumps({key: value for key, value in told.items() if value is not None}))
        return file


def live(content: bytes) -> IO[bytes]:
    """A file in memory without a name, such as a worker keeps the number of its next unit in."""
    file = tempfile.TemporaryFile(dir="/dev/shm")  # noqa: SIM115
    file.write(content)
    file.flush()
    return file
