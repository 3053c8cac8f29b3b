"""What vLLM hands to its workers, release by release; vllm-ascend follows the numbers of vLLM."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version


def scheduler(release: str) -> Mapping[str, object]:
    """What is settled of ``probes.rollout.SchedulerOutputs`` in a published release; nothing for "".

    From vllm/v1/core/sched/output.py and vllm/v1/worker/gpu/warmup.py, 0.8.5 to 0.33.0.
    """
    if not release:
        return {}
    version = Version(release)
    by_object, by_list = version < Version("0.9.2rc0"), version < Version("0.11.1rc0")
    return {
        "RESUMED": "objects" if by_object else "lists" if by_list else "ids",
        "EMBEDS": version >= Version("0.11.0rc0"),
        "PREFILL_TOKENS": version >= Version("0.12.0rc0"),
        "WARMS_UP": version >= Version("0.17.0rc0"),
    }


def parallel(release: str) -> Mapping[str, object]:
    """What is settled of ``probes.rollout.VllmWorker`` (vllm/config/parallel.py)."""
    return {"DATA_PARALLEL_INDEX": Version(release) >= Version("0.14.0rc0")} if release else {}


def worker(release: str) -> Mapping[str, object]:
    """What is settled of a worker of the V1 engine."""
    return {**scheduler(release), **parallel(release)}
