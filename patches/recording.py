"""What every stage has in common: the profilers, and the window, ranks and folder of ``probes.recorder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patcher.config import OPEN_END, WHOLE, ProfileConfig, RolloutStage, WholeStage, WindowedStage
from patcher.options.notations import amount_text
from patcher.recipe import Probe
from patches.probes import pieces, ranges
from patches.profilers import BACKENDS, differing


def settings(config: ProfileConfig[WindowedStage | WholeStage]) -> dict[str, object]:
    """What the user chose of any recorder, as the class attributes of ``probes.recorder.Recorder``."""
    return {
        "STAGE": config.stage.name,
        "WINDOW": str(config.stage.window),
        "RANKS": numbers(config.ranks),
        "SAVE_PATH": config.save_path,
        **({"MAX_STALL": amount_text(config.max_stall)} if config.in_pieces else {}),
        "ABOUT": {} if config.stage.window.unit == WHOLE else {"unit": config.stage.window.unit},
        **({"MAX_TRACE_GB": amount_text(config.max_trace_gb)} if config.max_trace_gb else {}),
        **({"MODULES": config.ranges.module_pattern} if config.ranges.module_ranges else {}),
    }


def in_replicas(config: ProfileConfig[Any]) -> dict[str, object]:
    """What the user chose of a recorder in one of several engines, ``probes.recorder.ReplicaRecorder``."""
    return {"REPLICAS": numbers(config.stage.replicas)}


def identity(config: ProfileConfig[WindowedStage | WholeStage], *more: str) -> tuple[str, ...]:
    """The attributes of a recorder that tell whose states and facts they are; ``more`` are those of its kind."""
    stage = config.stage
    windowed = ("window", "request", "refused") if isinstance(stage, WindowedStage) and stage.on_demand else ("window",)
    world = ("world",) if config.ranks is None else ()
    return ("host", *more, "rank", *world, "pid", "ranks", *(windowed if stage.UNITS else ()), "units")


def by_server(config: ProfileConfig[Any]) -> dict[str, object]:
    """The compile-time constant of such a recorder: whether what a server does for its replica decides."""
    return {"BY_SERVER": any(isinstance(one, str) for one in config.stage.replicas or ())}


def numbers(some: tuple[int | str, ...] | None) -> str:
    """Numbers, or all for None, as a variable of the environment has them."""
    return "all" if some is None else ",".join(map(str, some))


def constants(config: ProfileConfig[WindowedStage | WholeStage]) -> dict[str, object]:
    """The compile-time constants of any recorder."""
    stage = config.stage
    on_demand = isinstance(stage, WindowedStage) and stage.on_demand
    return {
        "WARMUP": stage.warmup if isinstance(stage, WindowedStage) else 0,
        "REPEAT": stage.repeat,
        "SEVERAL": bool(stage.window.later),
        "RELATIVE": isinstance(stage, RolloutStage) and (stage.relative or on_demand),
        "ON_DEMAND": on_demand,
        "METADATA": config.facts,
        "EVERY_RANK": config.facts and config.ranks is None,
        "LIVE": config.live,
        "PIECES": config.in_pieces,
        "LONG_SAVE_S": config.max_stall,
        **(_pieces(config) if isinstance(stage, WindowedStage) else {}),
    }


def _pieces(config: ProfileConfig[Any]) -> dict[str, object]:
    """The constants of a window that is saved in pieces, or the length up to which it is saved at once."""
    if config.in_pieces:
        return {"FIRST_PIECE": config.first_piece, "UNIT_STALL_MS": config.unit_stall_ms}
    return {"LONGEST": config.first_piece}


def units(config: ProfileConfig[WindowedStage | WholeStage], name: str) -> str:
    """The units of the window in words; ``name`` is what they are called."""
    spans = (
        f"{first} and all that follow" if end == OPEN_END else f"{first}..{end - 1}"
        for first, end in config.stage.window.all
    )
    return f"{name} {', '.join(spans)}"


def on_ranks(config: ProfileConfig[WindowedStage | WholeStage]) -> str:
    """The ranks in words, and the replicas where others than the first were chosen."""
    ranks = "every rank" if config.ranks is None else f"rank {', '.join(map(str, config.ranks))}"
    replicas = getattr(config.stage, "replicas", (0,))
    if replicas == (0,):
        return ranks
    return f"{ranks} of {'every replica' if replicas is None else f'replica {numbers(replicas)}'}"


def layers(
    config: ProfileConfig[WindowedStage | WholeStage], markers: tuple[type, ...]
) -> tuple[tuple[type, ...], ...]:
    """What is put on top of the recorder: ranges, pieces, a limit; ``markers`` are the classes that mark the stage."""
    modules = ((ranges.ModuleRanges,),) if config.ranges.module_ranges else ()
    marks = (markers,) if config.ranges.markers else ()
    backend = {"npu": ranges.NpuRanges, "torch": ranges.TorchRanges}[config.profiler.BACKEND]
    recorded = ((ranges.Recorded, backend), *modules, *marks) if modules or marks else ()
    windowed = ((pieces.Pieces,),) if config.in_pieces else ()
    limited = ((pieces.SizeLimit,),) if config.max_trace_gb else ()
    return (*recorded, *windowed, *limited)


def probe(
    recorder: type,
    members: tuple[type, ...],
    *,
    logger: str,
    settings: Callable[[ProfileConfig[Any]], Mapping[str, object]],
    constants: Callable[[ProfileConfig[Any], str], Mapping[str, object]],
    summary: Callable[[ProfileConfig[Any]], str],
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
        constants=lambda config, release: {"LOGGER": logger, **constants(config, release)},
        settings=settings,
        arguments=differing,
        layers=lambda config: layers(config, markers),
    )
