"""Conditions behind which units are counted, in every engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def sglang(counts: list[int], context: int, mode: str = "DECODE", *, tensor: bool = False, late: int = 0) -> Any:
    """A ScheduleBatch of requests with ``context`` tokens, the one that is decoded now included."""
    requests = [
        SimpleNamespace(rid=str(n), origin_input_ids=[0] * 3, output_ids=[0] * (context - 3 - late)) for n in counts
    ]
    more: dict[str, Any] = {"seq_lens_sum": context * len(counts)}
    if tensor:
        more = {"seq_lens_sum": None, "seq_lens_cpu": SimpleNamespace(tolist=lambda: [context] * len(counts))}
    extended = {"prefix_lens": [0] * len(counts), "extend_lens": [context] * len(counts)}
    mode_of = SimpleNamespace(name=mode)
    return SimpleNamespace(forward_mode=mode_of, reqs=requests, extend_num_tokens=9, **more, **extended)
