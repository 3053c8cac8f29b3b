"""The rollout stage of every engine that runs on vLLM or SGLang: from the user's choice to the probe's constants."""

from __future__ import annotations

from collections.abc import Mapping

from patcher.capture import Capture

KINDS = {"decode": ("decode",), "prefill": ("prefill",), "iterations": ("decode", "prefill")}


def constants(capture: Capture) -> Mapping[str, object]:
    """The class attributes of ``patches.probes.rollout.Window`` for this capture."""
    window = capture.window
    return {
        "KINDS": KINDS[window.unit],
        "WINDOW": str(window),
        "LOWEST": int(window.unit == "decode"),  # prefill produces token 0, so there is no decode step 0
        "WARMUP": capture.warmup,
        "ROLLOUT": str(capture.rollout),
        "REPEAT": capture.repeat,
        "RANKS": "all" if capture.ranks is None else ",".join(map(str, capture.ranks)),
        "SAVE_PATH": capture.save_path,
    }


def summary(capture: Capture) -> str:
    """One line for the reader of the patched file."""
    ranks = "every rank" if capture.ranks is None else f"rank {', '.join(map(str, capture.ranks))}"
    units = {"decode": "decode steps", "prefill": "prefill iterations", "iterations": "iterations"}[capture.window.unit]
    until = "" if capture.repeat == 1 else f" to {capture.rollout + capture.repeat - 1}"
    last = capture.window.end - 1
    return f"Records {units} {capture.window.first}..{last} of rollout {capture.rollout}{until} on {ranks}."
