"""Workers that wait for a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.patches.rollout_workers import V1Worker, batch

WAITING: dict[str, Any] = {"ON_DEMAND": True, "METADATA": True, "WINDOW": ""}


CONDITIONS = ("load", "tail", "context")


STATES: dict[str, Any] = {
    "AT": dict.fromkeys(CONDITIONS, "0"),
    **dict.fromkeys(["RELATIVE", "BY_LOAD", "BY_TAIL", "BY_CONTEXT"], True),
}


def rollout(worker: V1Worker, steps: int = 6) -> None:
    worker.iterate(listed({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, steps + 1):
        worker.iterate(listed({"a": 1}, tokens=n), f"decode {n}")
    worker.iterate(listed({}, done=("a",)), "empty")


def listed(counts: dict[str, int], new: dict[str, int] | None = None, tokens: int = 0, **more: Any) -> Any:
    one = batch(counts, new, **more)
    known = [name for name in counts if name not in (new or {})]
    one.scheduled_cached_reqs = SimpleNamespace(
        req_ids=known, num_computed_tokens=[tokens] * len(known), resumed_req_ids=set()
    )
    return one
