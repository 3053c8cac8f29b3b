"""What every stage has in common: the profilers, and the window, ranks and folder of ``probes.recorder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from patcher.capture import WHOLE, Capture
from patcher.recipe import Probe
from patches.profilers import BACKENDS, arguments


def chosen(capture: Capture) -> dict[str, object]:
    """The class attributes of ``patches.probes.recorder.Recorder`` for this capture."""
    return {
        "STAGE": capture.stage,
        "WINDOW": str(capture.window),
        "STEERED": capture.window.unit != WHOLE,  # one without a window has none that a variable could replace
        "LOWEST": int(capture.window.unit == "decode"),  # prefill produces token 0, so there is no decode step 0
        "WARMUP": capture.warmup,
        "REPEAT": capture.repeat,
        "RANKS": "all" if capture.ranks is None else ",".join(map(str, capture.ranks)),
        "SAVE_PATH": capture.save_path,
        **({"MODULES": capture.module_pattern} if capture.module_ranges else {}),
    }


def units(capture: Capture, name: str) -> str:
    """The units of the window in words; ``name`` is what they are called."""
    window = capture.window
    return f"{name} {window.first} and all that follow" if window.open else f"{name} {window.first}..{window.end - 1}"


def ranks(capture: Capture) -> str:
    """The ranks in words."""
    return "every rank" if capture.ranks is None else f"rank {', '.join(map(str, capture.ranks))}"


def layers(capture: Capture, markers: str) -> tuple[tuple[str, ...], ...]:
    """What is put on top of the recorder for ranges; ``markers`` is the part that marks the stage."""
    modules = (("ranges.ModuleRanges",),) if capture.module_ranges else ()
    marks = (("ranges.Markers", markers),) if capture.markers else ()
    ranges = {"npu": "ranges.NpuRanges", "torch": "ranges.TorchRanges"}[capture.backend]
    return (("ranges.Recorded", ranges), *modules, *marks) if modules or marks else ()


def probe(
    parts: tuple[str, ...],
    members: tuple[str, ...],
    *,
    logger: str,
    markers: str = "",
    chosen: Callable[[Capture], Mapping[str, object]],
    summary: Callable[[Capture], str],
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
