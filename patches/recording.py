"""What every stage has in common: the profilers, and the window, ranks and folder of ``probes.recorder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patcher.capture import Capture, Whole, Windowed
from patcher.recipe import Probe
from patches.profilers import BACKENDS, arguments


def chosen(capture: Capture[Windowed | Whole]) -> dict[str, object]:
    """The class attributes of ``patches.probes.recorder.Recorder`` for this capture."""
    stage = capture.stage
    return {
        "STAGE": stage.name,
        "WINDOW": str(stage.window),
        "STEERED": isinstance(stage, Windowed),  # one without a window has none that a variable could replace
        "LOWEST": int(stage.window.unit == "decode"),  # prefill produces token 0, so there is no decode step 0
        "WARMUP": stage.warmup if isinstance(stage, Windowed) else 0,
        "REPEAT": stage.repeat,
        "RANKS": "all" if capture.ranks is None else ",".join(map(str, capture.ranks)),
        "SAVE_PATH": capture.save_path,
        **({"MODULES": capture.ranges.module_pattern} if capture.ranges.module_ranges else {}),
    }


def units(capture: Capture[Windowed | Whole], name: str) -> str:
    """The units of the window in words; ``name`` is what they are called."""
    window = capture.stage.window
    return f"{name} {window.first} and all that follow" if window.open else f"{name} {window.first}..{window.end - 1}"


def ranks(capture: Capture[Windowed | Whole]) -> str:
    """The ranks in words."""
    return "every rank" if capture.ranks is None else f"rank {', '.join(map(str, capture.ranks))}"


def layers(capture: Capture[Windowed | Whole], markers: str) -> tuple[tuple[str, ...], ...]:
    """What is put on top of the recorder for ranges; ``markers`` is the part that marks the stage."""
    modules = (("ranges.ModuleRanges",),) if capture.ranges.module_ranges else ()
    marks = (("ranges.Markers", markers),) if capture.ranges.markers else ()
    ranges = {"npu": "ranges.NpuRanges", "torch": "ranges.TorchRanges"}[capture.profiler.BACKEND]
    return (("ranges.Recorded", ranges), *modules, *marks) if modules or marks else ()


def probe(
    parts: tuple[str, ...],
    members: tuple[str, ...],
    *,
    logger: str,
    markers: str = "",
    chosen: Callable[[Capture[Any]], Mapping[str, object]],
    summary: Callable[[Capture[Any]], str],
) -> Probe:
    """A probe that records what ``parts`` count; ``members`` go into the target class beside it.

    ``logger`` is one that the framework shows, ``markers`` the part that marks what is counted, if anything is.
    """
    return Probe(
        parts=("recorder.Recorder", *parts),
        members=("recorder.Calls", *members),
        backends=BACKENDS,
        chosen=chosen,
        arguments=arguments,
        summary=summary,
        constants={"LOGGER": logger},
        layers=lambda capture: layers(capture, markers),
    )
