"""What the name of a trace tells: a probe of ours writes stage and place into it, torch the host and the process."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

OUTPUT = "ASCEND_PROFILER_OUTPUT"
"""The folder into which torch_npu parses, within that of a rank."""

JSON = (".json", ".json.gz")
"""How files end that may hold a trace in Chrome's format."""

_ROLLOUT = re.compile(
    r"(?P<host>\w+?)(?P<capture>_graph_capture)?(_replica(?P<told>\d+))?_dp(?P<replica>\d+)_rank(?P<rank>\d+)_(?P<pid>\d+)",
    re.ASCII,
)
_TRAINING = re.compile(
    r"(?P<host>\w+)_(?P<stage>compute_log_prob|update_policy|compute_values|update_critic)"
    r"_(?P<role>[a-z]+)_step(?P<step>\d+)_rank(?P<rank>\d+)_(?P<pid>\d+)",
    re.ASCII,
)
_NPU = re.compile(r"(?P<worker>.+?)(_(?P<pid>\d+))?_(?P<time>\d{14,17})_ascend_pt")
_TORCH = re.compile(r"(?P<worker>.+?)(\.(?P<time>\d+))?\.pt\.trace\.json(?P<gz>\.gz)?(?P<tmp>\.tmp)?")


class Name(NamedTuple):
    """``known`` are fields of a trace, ``ended`` is its time (0: not told); a ``temporary`` one is being written."""

    known: dict[str, Any]
    ended: float = 0.0
    temporary: bool = False

    @property
    def here(self) -> bool:
        """Whether it is of this host."""
        name = os.uname().nodename
        return self.known["host"] in (name, "".join(c if c.isalnum() else "_" for c in name))


def is_torch(name: str) -> bool:
    """Whether torch.profiler gives such names."""
    return bool(_TORCH.fullmatch(name))


def of(path: Path) -> Name:
    """What the name of a trace tells, of whichever of the two profilers."""
    if path.name.endswith("_ascend_pt"):
        npu = _NPU.fullmatch(path.name)
        if not npu:
            return Name(_named(path.name, None))
        worker, pid = npu["worker"], npu["pid"]
        known = _named(worker, pid)
        if pid and not known["ours"]:  # 2.1 writes no process of its own behind the name
            whole = _named(f"{worker}_{pid}", pid)
            known = whole if whole["ours"] else known
        return Name(known, _stamp(npu["time"]))
    torch = _TORCH.fullmatch(path.name)
    if not torch:
        return Name(_named(path.name, None))
    return Name(_named(torch["worker"], None), _stamp(torch["time"] or ""), bool(torch["tmp"]))


def _named(worker: str, pid: str | None) -> dict[str, Any]:
    """What a probe of ours writes into the name of a trace, or what torch writes: ``HOST_PID``."""
    for pattern in (_TRAINING, _ROLLOUT):
        match = pattern.fullmatch(worker)
        if match:
            words = match.groupdict()
            stage = "graph-capture" if words.get("capture") else (words.get("stage") or "rollout").replace("_", "-")
            # Which engine verl says that it is tells more than the place among those that know of each other.
            replica = words.get("told") or words.get("replica")
            return {
                "ours": True, "host": words["host"], "stage": stage, "role": words.get("role", ""),
                "rank": int(words["rank"]), "pid": int(words["pid"]),
                "replica": None if replica is None else int(replica),
                "step": int(words["step"]) if "step" in words else None,
            }  # fmt: skip
    host, _, number = worker.rpartition("_")
    known = pid or (number if number.isdigit() else "")
    return {"ours": False, "host": worker if pid else host, "pid": int(known) if known else None}


def _stamp(text: str) -> float:
    """Seconds since the epoch for what profilers write into names: milliseconds or more of them, or a date."""
    if not text:
        return 0.0
    if re.match(r"20\d\d[01]\d[0-3]\d", text) and len(text) in (14, 17):
        try:
            return time.mktime(time.strptime(text[:14], "%Y%m%d%H%M%S")) + int(text[14:] or 0) / 1000
        except ValueError:
            return 0.0
    return float(int(text) / 10 ** max(len(text) - 10, 0))
