"""What every stage has in common: the profilers, and the window, ranks and folder of ``probes.recorder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patcher.capture import OPEN_END, WHOLE, Capture, Rollout, Whole, Windowed
from patcher.recipe import Probe
from patches.probes import ranges
from patches.profilers import BACKENDS, asked


def chosen(capture: Capture[Windowed | Whole]) -> dict[str, object]:
    """What the user chose of any recorder, as the class attributes of ``probes.recorder.Recorder``."""
    return {
        "STAGE": capture.stage.name,
        "WINDOW": str(capture.stage.window),
        "RANKS": numbers(capture.ranks),
        "SAVE_PATH": capture.save_path,
        "ABOUT": {} if capture.stage.window.unit == WHOLE else {"unit": capture.stage.window.unit},
        **({"MAX_TRACE_GB": str(capture.max_trace_gb)} if capture.max_trace_gb else {}),
        **({"MODULES": capture.ranges.module_pattern} if capture.ranges.module_ranges else {}),
    }


def in_replicas(capture: Capture[Any]) -> dict[str, object]:
    """What the user chose of a recorder in one of several engines, ``probes.recorder.Placed``."""
    return {"REPLICAS": numbers(capture.stage.replicas)}


def told(capture: Capture[Windowed | Whole], *more: str) -> tuple[str, ...]:
    """The attributes of a recorder that tell whose states and facts they are; ``more`` are those of its kind."""
    stage = capture.stage
    windowed = ("window", "request") if isinstance(stage, Windowed) and stage.on_demand else ("window",)
    world = ("world",) if capture.ranks is None else ()
    return ("host", *more, "rank", *world, "pid", "ranks", *(windowed if stage.UNITS else ()), "units")


def numbers(chosen: tuple[int, ...] | None) -> str:
    """Numbers, or all for None, as a variable of the environment has them."""
    return "all" if chosen is None else ",".join(map(str, chosen))


def settled(capture: Capture[Windowed | Whole]) -> dict[str, object]:
    """What the capture settles of any recorder."""
    stage = capture.stage
    on_demand = isinstance(stage, Windowed) and stage.on_demand
    return {
        "WARMUP": stage.warmup if isinstance(stage, Windowed) else 0,
        "REPEAT": stage.repeat,
        "SEVERAL": bool(stage.window.later),
        "RELATIVE": isinstance(stage, Rollout) and (stage.relative or on_demand),
        "ON_DEMAND": on_demand,
        "FACTS": capture.facts,
        "EVERY_RANK": capture.facts and capture.ranks is None,
        "LIVE": capture.live,
        "LIMITED": bool(capture.max_trace_gb),
    }


def units(capture: Capture[Windowed | Whole], name: str) -> str:
    """The units of the window in words; ``name`` is what they are called."""
    spans = (
        f"{first} and all that follow" if end == OPEN_END else f"{first}..{end - 1}"
        for first, end in capture.stage.window.all
    )
    return f"{name} {', '.join(spans)}"


def on_ranks(capture: Capture[Windowed | Whole]) -> str:
    """The ranks in words, and the replicas where others than the first were chosen."""
    ranks = "every rank" if capture.ranks is None else f"rank {', '.join(map(str, capture.ranks))}"
    replicas = getattr(capture.stage, "replicas", (0,))
    if replicas == (0,):
        return ranks
    return f"{ranks} of {'every replica' if replicas is None else f'replica {numbers(replicas)}'}"


def layers(capture: Capture[Windowed | Whole], markers: tuple[type, ...]) -> tuple[tuple[type, ...], ...]:
    """What is put on top of the recorder for ranges; ``markers`` are the classes that mark the stage."""
    modules = ((ranges.ModuleRanges,),) if capture.ranges.module_ranges else ()
    marks = (markers,) if capture.ranges.markers else ()
    backend = {"npu": ranges.NpuRanges, "torch": ranges.TorchRanges}[capture.profiler.BACKEND]
    return ((ranges.Recorded, backend), *modules, *marks) if modules or marks else ()


def probe(
    recorder: type,
    members: tuple[type, ...],
    *,
    logger: str,
    chosen: Callable[[Capture[Any]], Mapping[str, object]],
    settled: Callable[[Capture[Any], str], Mapping[str, object]],
    summary: Callable[[Capture[Any]], str],
    markers: tuple[type, ...] = (),
    shared: tuple[type, ...] = (),
) -> Probe:
    """A probe that records what ``recorder`` counts; ``members`` go into the target class beside it.

    ``logger`` is one that the framework shows, ``markers`` mark what is counted, if anything is, and ``shared`` is
    what the stages of one class have in common.
    """
    return Probe(
        summary=summary,
        members=members,
        recorder=recorder,
        shared=shared,
        backends=BACKENDS,
        settled=lambda capture, release: {"LOGGER": logger, **settled(capture, release)},
        chosen=chosen,
        arguments=asked,
        layers=lambda capture: layers(capture, markers),
    )
