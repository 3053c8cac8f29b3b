"""The rollout stage, whatever the engine: the windows, the probe, and how the user's choice goes into it."""

from __future__ import annotations

from collections.abc import Mapping

from patcher.capture import UNITS, Capture
from patcher.recipe import Probe
from patches.profilers import BACKENDS, arguments

WINDOWS = UNITS

KINDS = {"decode": ("decode",), "prefill": ("prefill",), "iterations": ("decode", "prefill")}


def chosen(capture: Capture) -> Mapping[str, object]:
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


def probe(*parts: str, members: tuple[str, ...] = ("Calls",), logger: str) -> Probe:
    """The probe that counts what ``parts`` observe; ``members`` go into the target class beside it.

    ``logger`` is one that the engine shows.
    """
    return Probe(
        module="rollout",
        nested="_RlpatchRollout",
        parts=("Window", *parts),
        members=members,
        backends=BACKENDS,
        chosen=chosen,
        arguments=arguments,
        summary=summary,
        constants={"LOGGER": logger},
    )
