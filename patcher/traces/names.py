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
"""Training stages, as trace names contain them."""

_ROLLOUT = re.compile(
    r"(?P<host>\w+?)(_(?P<stage>graph_capture))?(_replica(?P<replica>\d+))?_dp(?P<dp>\d+)_rank(?P<rank>\d+)_(?P<pid>\d+)(_\d+)?",
    re.ASCII,
)
_TRAINING = re.compile(
    rf"(?P<host>\w+)_(?P<stage>{'|'.join(STAGES)})_(?P<role>[a-z]+)_step(?P<step>\d+)_rank(?P<rank>\d+)_(?P<pid>\d+)(_\d+)?",
    re.ASCII,
)
_SYNC = re.compile(
    r"(?P<host>\w+)_(?P<stage>weight_sync)_(?P<role>[a-z]+)_sync(?P<sync>\d+)(_replica(?P<replica>\d+))?_rank(?P<rank>\d+)_(?P<pid>\d+)(_\d+)?",
    re.ASCII,
)
"""Name of a weight sync's trace; after the probe's process id follows torch_npu's own, except in its release 2.1."""

_NPU = re.compile(r"(?P<worker>.+?)_(?P<time>\d{14,17})_ascend_pt")
_TORCH = re.compile(r"(?P<worker>.+?)(\.(?P<time>\d+))?\.pt\.trace\.json(\.gz)?(?P<tmp>\.tmp)?")


_SNAPSHOT = re.compile(r".*(snapshot.*\.(pickle|pkl)|memory\.pickle)", re.ASCII | re.IGNORECASE | re.DOTALL)


def is_snapshot(name: str) -> bool:
    """Tell whether a file has the name of a memory snapshot of torch; in a folder, other names do not count."""
    return _SNAPSHOT.fullmatch(name) is not None


class Name(NamedTuple):
    """A name's ``fields``, when the trace ``ended`` (epoch seconds, 0: unknown), and whether it is ``temporary``."""

    fields: dict[str, Any]
    ended: float = 0.0
    temporary: bool = False

    @property
    def here(self) -> bool:
        """Whether the trace was recorded on this host."""
        name = os.uname().nodename
        return self.fields["host"] in (name, "".join(c if c.isalnum() else "_" for c in name))


def is_torch(name: str) -> bool:
    """Tell whether a file has a name as torch.profiler gives it."""
    return bool(_TORCH.fullmatch(name))


def is_npu(path: Path) -> bool:
    """Tell whether a folder has a name as torch_npu gives it."""
    return path.name.endswith("_ascend_pt")


def of(path: Path) -> Name:
    """Return the fields in the name of a trace of torch.profiler or torch_npu, with the time in it, if any.

    A name of another form only gives a host and a process, if it has the form ``HOST_PID``.
    """
    if match := _NPU.fullmatch(path.name):
        return Name(_fields(match["worker"]), _seconds(match["time"]))
    if match := _TORCH.fullmatch(path.name):
        return Name(_fields(match["worker"]), _seconds(match["time"] or ""), bool(match["tmp"]))
    return Name(_fields(path.name.partition(".")[0]))


def _fields(worker: str) -> dict[str, Any]:
    """Return the fields in the first part of a trace's name, as rlpatch's probe or torch (``HOST_PID``) writes it.

    ``ours`` is True for the probe's, which has host, stage, role, and those numbers of replica, rank, pid, step and
    sync that the name contains. The number within the data-parallel group stands for a missing replica. Torch's has
    host and pid, which is None if it is no number.
    """
    if match := _TRAINING.fullmatch(worker) or _SYNC.fullmatch(worker) or _ROLLOUT.fullmatch(worker):
        words = match.groupdict()
        # The number that verl gives the engine is more exact than its place in a data-parallel group.
        words["replica"] = words.get("replica") or words.get("dp")
        numbers = {key: int(words[key]) for key in ("replica", "rank", "pid", "step", "sync") if words.get(key)}
        stage = (words["stage"] or "rollout").replace("_", "-")
        return {"ours": True, "host": words["host"], "stage": stage, "role": words.get("role", ""), **numbers}
    host, _, pid = worker.rpartition("_")
    return {"ours": False, "host": host, "pid": int(pid) if pid.isdigit() else None}


def _seconds(text: str) -> float:
    """Return seconds since the epoch for the digits in a name: a local date and time, or a time since the epoch.

    0.0 for no digits, or no valid date.
    """
    if not text:
        return 0.0
    if re.match(r"20\d\d[01]\d[0-3]\d", text) and len(text) in (14, 17):
        try:
            return time.mktime(time.strptime(text[:14], "%Y%m%d%H%M%S")) + int(text[14:] or 0) / 1000
        except ValueError:
            return 0.0
    return float(int(text) / 10 ** max(len(text) - 10, 0))
