"""The ways to start a run that nsys records: the command, and the settings of Ray, verl and NeMo-RL."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from patcher.messages import Text

_OPTIONS = {
    "trace": "cuda,nvtx", "sample": "none", "cpuctxsw": "none", "cuda-graph-trace": "node",
    "trace-fork-before-exec": "true", "capture-range": "cudaProfilerApi", "capture-range-end": "repeat",
}  # fmt: skip
"""Options of ``nsys profile``: every kernel of a replayed graph, workers that are forked, and as many windows as come.

Without ``capture-range-end=repeat`` nsys ends the process with the first window.
"""

_NEVER = "1000000000:1000000001"
"""Training steps of NeMo-RL's own captures, which both variables are needed for and a run does not reach."""


def nsys_lines(folder: str) -> Iterator[str]:
    """Yield lines on how to start the run so that nsys writes its reports to ``folder``, and how to read them.

    Keys and variables as in ray/_private/runtime_env/nsight.py, verl/trainer/main_ppo.py (``ray_init.runtime_env``,
    from 0.6.0 on) and nemo_rl/distributed/worker_group_utils.py.
    """
    output = f"{folder}/%h_%p"
    options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
    ray = {**_OPTIONS, "o": output}
    hydra = ",".join(f"{name}:{json.dumps(value)}" for name, value in ray.items())
    nemo = {name: ray[name] for name in ("trace-fork-before-exec", "capture-range-end", "o")}
    yield Text("  nsys records the window, and writes a report when the window ends. Start the run with:")
    yield f"    mkdir -p {shlex.quote(folder)}"
    yield f"    nsys profile {shlex.join([*options, f'--output={output}'])} COMMAND"
    yield Text(
        "  Ray starts its workers itself. Pass the nsys options as follows (the first line is for verl, the second for"
        " NeMo-RL, the third for other programs):"
    )
    yield f"    {shlex.quote(f'+ray_kwargs.ray_init.runtime_env.nsight={{{hydra}}}')}"
    yield (
        f"    NRL_NSYS_WORKER_PATTERNS='*' NRL_NSYS_PROFILE_STEP_RANGE={_NEVER}"
        f" NRL_NSYS_EXTRA_OPTIONS={shlex.quote(json.dumps(nemo))}"
    )
    yield f"    runtime_env={json.dumps({'nsight': ray})}"
    yield Text(
        "  then run `nsys export --type sqlite FILE.nsys-rep` and `rlpatch report {folder}`", shlex.quote(folder)
    )
