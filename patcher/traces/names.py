"""The fields in the name of a trace: a probe of ours writes stage and rank into it, torch the host and the process."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

OUTPUT = "ASCEND_PROFILER_OUTPUT"
"""The folder into which torch_npu parses, within that of a rank."""

JSON = (".json", ".json.gz")
"""The ends of names of files that may hold a trace in Chrome's format."""

STAGES = ("compute_log_prob", "update_policy", "compute_values", "update_critic")
"""Of training, as names of traces have them."""

_ROLLOUT = re.compile(
    r"(?P<host>\w+?)(?P<capture>_graph_capture)?(_replica(?P<engine>\d+))?_dp(?P<replica>\d+)_rank(?P<rank>\d+)_(?P<pid>\d+)",
    re.ASCII,
)
_TRAINING = re.compile(
    rf"(?P<host>\w+)_(?P<stage>{'|'.join(STAGES)})_(?P<role>[a-z]+)_step(?P<step>\d+)_rank(?P<rank>\d+)_(?P<pid>\d+)",
    re.ASCII,
)
_STAGE = re.compile(rf"_({'|'.join(STAGES)})_|_dp\d+_rank\d+_|_(graph_capture)")
_NPU = re.compile(r"(?P<worker>.+?)(_(?P<pid>\d+))?_(?P<time>\d{14,17})_ascend_pt")
_TORCH = re.compile(r"(?P<worker>.+?)(\.(?P<time>\d+))?\.pt\.trace\.json(?P<gz>\.gz)?(?P<tmp>\.tmp)?")


class Name(NamedTuple):
    """``fields`` of a trace, the time at which it ``ended`` (0: unknown); a ``temporary`` one is being written."""

    fields: dict[str, Any]
    ended: float = 0.0
    temporary: bool = False

    @property
    def here(self) -> bool:
        """Whether it is of this host."""
        name = os.uname().nodename
        return self.fields["host"] in (name, "".join(c if c.isalnum() else "_" for c in name))


def is_torch(name: str) -> bool:
    """Whether torch.profiler gives such names."""
    return bool(_TORCH.fullmatch(name))


def is_npu(path: Path) -> bool:
    """Whether torch_npu gives such names to the folder of a rank."""
    return path.name.endswith("_ascend_pt")


def of(path: Path) -> Name:
    """The fields in the name of a trace, of whichever of the two profilers."""
    torch, npu = _TORCH.fullmatch(path.name), _NPU.fullmatch(path.name)
    if is_npu(path) and npu:
        worker, pid = npu["worker"], npu["pid"]
        found = _fields(worker, pid)
        if pid and not found["ours"]:  # 2.1 writes no process of its own behind the name
            whole = _fields(f"{worker}_{pid}", pid)
            found = whole if whole["ours"] else found
        return Name(found, _seconds(npu["time"]))
    if torch and not is_npu(path):
        return Name(_fields(torch["worker"], None), _seconds(torch["time"] or ""), bool(torch["tmp"]))
    return Name(_fields(path.name, None))


def stage_of(name: str) -> str:
    """The stage in a name that a probe of ours gives; "" where there is none."""
    found = _STAGE.search(name)
    return (found[1] or found[2] or "rollout").replace("_", "-") if found else ""


def _fields(worker: str, pid: str | None) -> dict[str, Any]:
    """The fields that a probe of ours writes into a name, or those that torch does: ``HOST_PID``."""
    match = _TRAINING.fullmatch(worker) or _ROLLOUT.fullmatch(worker)
    if match:
        words = match.groupdict()
        stage = "graph-capture" if words.get("capture") else (words.get("stage") or "rollout").replace("_", "-")
        # The number that verl gives the engine is more exact than its place in a data-parallel group.
        replica = words.get("engine") or words.get("replica")
        return {
            "ours": True, "host": words["host"], "stage": stage, "role": words.get("role", ""),
            "rank": int(words["rank"]), "pid": int(words["pid"]),
            "replica": None if replica is None else int(replica),
            "step": int(words["step"]) if "step" in words else None,
        }  # fmt: skip
    host, _, number = worker.rpartition("_")
    known = pid or (number if number.isdigit() else "")
    return {"ours": False, "host": worker if pid else host, "pid": int(known) if known else None}


def _seconds(text: str) -> float:
    """Seconds since the epoch for what profilers write into names: milliseconds or more of them, or a date."""
    if not text:
        return 0.0
    if re.match(r"20\d\d[01]\d[0-3]\d", text) and len(text) in (14, 17):
        try:
            return time.mktime(time.strptime(text[:14], "%Y%m%d%H%M%S")) + int(text[14:] or 0) / 1000
        except ValueError:
            return 0.0
    return float(int(text) / 10 ** max(len(text) - 10, 0))
