"""The common part of every stage: its tool, and the window, ranks and folder of ``probes.recorder``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patcher.config import OPEN_END, WHOLE, ProfileConfig, WholeStage, WindowedStage
from patcher.messages import COMMA, Text, joined
from patcher.options.notations import amount_text
from patcher.recipe import Probe
from patches.probes import facts, pieces, ranges
from patches.probes.pauses import NamedIterations, NotedPauses
from patches.probes.recorder import EveryRank, NumberedReplicas, ServingReplicas, Unnoted
from patches.probes.tools import GarbageCollections
from patches.tools import WINDOWS, probe_arguments, tool

CLOSE = '"close"'
"""Event by which a recorder of another stage, in the same process, ends a window."""


def settings(config: ProfileConfig[WindowedStage | WholeStage]) -> dict[str, object]:
    """Return the user's options as class attributes of `probes.recorder.Recorder`: name → value.

    Limits of pauses and sizes, and the pattern of modules, are left out if they are not used.
    """
    return {
        "STAGE": config.stage.name,
        "WINDOW": str(config.stage.window),
        "RANKS": numbers(config.ranks),
        "SAVE_PATH": config.save_path,
        **({"MAX_STALL": amount_text(config.max_stall)} if config.in_pieces else {}),
        **({"MAX_TRACE_GB": amount_text(config.max_trace_gb)} if config.max_trace_gb else {}),
        **({"MODULES": config.ranges.module_pattern} if config.ranges.module_ranges else {}),
    }


def in_replicas(config: ProfileConfig[Any]) -> dict[str, object]:
    """Return the chosen replicas as a class attribute of `probes.recorder.ReplicaRecorder`."""
    return {"REPLICAS": numbers(config.stage.replicas)}


def metadata_attributes(config: ProfileConfig[WindowedStage | WholeStage], *identity: str) -> dict[str, object]:
    """Return the class attributes ABOUT and IDENTITY of `probes.facts.StepMetadata`; {} if no metadata is written.

    `identity` are the names of the attributes by which recordings of this stage differ, such as "rollout".
    """
    if not config.facts:
        return {}
    stage = config.stage
    windowed = ("window", "request", "refused") if isinstance(stage, WindowedStage) and stage.on_demand else ("window",)
    world = ("world",) if config.ranks is None else ()
    identity = ("host", *identity, "rank", *world, "pid", "ranks", *(windowed if stage.UNITS else ()), "units")
    return {"ABOUT": {} if stage.window.unit == WHOLE else {"unit": stage.window.unit}, "IDENTITY": identity}


def replicas(config: ProfileConfig[Any]) -> type:
    """Return the probe part that tells whether a recorder's replica was chosen."""
    by_server = any(isinstance(replica, str) for replica in config.stage.replicas or ())
    return ServingReplicas if by_server else NumberedReplicas


def numbers(chosen: tuple[int | str, ...] | None) -> str:
    """Return numbers separated by commas, or "all" for None, as in an environment variable."""
    return "all" if chosen is None else ",".join(map(str, chosen))


def repeated(config: ProfileConfig[WindowedStage | WholeStage], _release: str = "") -> dict[str, object]:
    """Return the compile-time constant REPEAT if the window is repeated, else {}."""
    return {"REPEAT": config.stage.repeat} if config.stage.repeat > 1 else {}


def constants(config: ProfileConfig[WindowedStage | WholeStage], _release: str = "") -> dict[str, object]:
    """Return the constants that are compiled into a recorder, by name.

    They are the repeats if there are several; for a window, also the warm-up in steps and how many steps one trace may
    have. A window in pieces has the expected stall of a step (ms), too. If several windows may be given, there is the
    pattern that RLPATCH_WINDOW must match.
    """
    stage = config.stage
    constants = repeated(config)
    if isinstance(stage, WindowedStage):
        constants["WARMUP"] = stage.warmup
        if config.in_pieces:
            constants.update(FIRST_PIECE=config.first_piece, UNIT_STALL_MS=config.unit_stall_ms)
        else:
            constants["LONGEST"] = config.first_piece
        if stage.on_demand:
            constants["WINDOWS"] = r"(\d+:\d*(,\d+:\d*)*)?"
        elif stage.window.later:
            constants["WINDOWS"] = r"\d+:\d*(,\d+:\d*)*"
    return constants


def window_text(config: ProfileConfig[WindowedStage | WholeStage], single: Text, several: Text) -> Text:
    """Return the window in words, such as "decode steps 30..59"; the last number is included.

    `single` and `several` are its templates, for one unit and for more of them, with `{numbers}` for the numbers.
    """
    windows = config.stage.window.all
    spans = (_span(first, end) for first, end in windows)
    is_single = [end - first for first, end in windows] == [1]
    return (single if is_single else several).filled(joined(COMMA, spans))


def _span(first: int, end: int) -> str:
    """Return the numbers of the units from `first` to before `end` in words, such as "30..59"."""
    if end == OPEN_END:
        return Text("{first} and later", first)
    return str(first) if end - first == 1 else f"{first}..{end - 1}"


def on_ranks(config: ProfileConfig[WindowedStage | WholeStage]) -> str:
    """Return the chosen ranks in words, such as "rank 0, 3 of every replica"; a choice of replica 0 is not named."""
    ranks = Text("every rank")
    if config.ranks is not None:
        ranks = Text("rank {ranks}", ", ".join(map(str, config.ranks)))
    replicas = getattr(config.stage, "replicas", (0,))
    if replicas == (0,):
        return ranks
    chosen = Text("every replica") if replicas is None else Text("replica {numbers}", numbers(replicas))
    return Text("{ranks} of {replicas}", ranks=ranks, replicas=chosen)


def parts(config: ProfileConfig[WindowedStage | WholeStage], _release: str = "") -> tuple[type, ...]:
    """Return the classes to merge into any recorder, as far as the options need them.

    They note pauses in the timeline, count the ranks (if all record), write metadata, and compress traces.
    """
    joined = (NotedPauses, *((NamedIterations,) if config.facts else ())) if config.beside_timeline else ()
    files = tool(config).metadata if config.facts else (Unnoted, *tool(config).without_metadata)
    ranks = (EveryRank,) if config.facts and config.ranks is None else ()
    return (*joined, *ranks, *files)


def saved_traces_layer(config: ProfileConfig[WindowedStage | WholeStage]) -> tuple[type, ...]:
    """Return a tuple with the subclass of the recorder that lists several traces in the step metadata.

    Return () if a worker writes only one trace, or no metadata.
    """
    stage = config.stage
    on_demand = isinstance(stage, WindowedStage) and stage.on_demand
    several = on_demand or stage.window.later or stage.repeat > 1 or config.in_pieces
    return (facts.SavedTraces,) if config.facts and several else ()


def layers(config: ProfileConfig[WindowedStage | WholeStage], markers: type | None = None) -> tuple[type, ...]:
    """Return the subclasses to put on top of any recorder, the lowest first, as far as the options need them.

    They list a recording's traces if there are several, save a window in pieces, limit its size, and mark ranges or
    garbage collections. `markers` is the one that marks the stage's units (None: there is none).
    """
    pieced: tuple[type, ...] = (pieces.Pieces,) if config.in_pieces else ()
    if config.max_trace_gb:
        pieced = (pieces.LimitedPieces,) if config.in_pieces else (pieces.LimitedCapture,)
    modules = (ranges.ModuleRanges,) if config.ranges.module_ranges else ()
    marks = (markers,) if markers and config.ranges.markers else ()
    recorded = (tool(config).ranges, *modules, *marks) if modules or marks else ()
    with_stacks = config.profiler.TOOL == "torch" and "stack" in config.profiler.contents
    collections = (GarbageCollections,) if with_stacks else ()
    return (*saved_traces_layer(config), *pieced, *recorded, *collections)


def probe(
    recorder: type,
    members: tuple[type, ...],
    *,
    settings: Callable[[ProfileConfig[Any]], Mapping[str, object]],
    constants: Callable[[ProfileConfig[Any], str], Mapping[str, object]],
    summary: Callable[[ProfileConfig[Any]], str],
    parts: Callable[[ProfileConfig[Any], str], tuple[type, ...]],
    layers: Callable[[ProfileConfig[Any], str], tuple[type, ...]],
    shared: tuple[type, ...] = (),
) -> Probe:
    """Return the probe that records the units that `recorder` counts; `members` go into the target class.

    `shared` are classes that the stages of a target class share. The functions are those of `Probe`: user settings,
    compile-time constants, a sentence for the reader, and the classes to flatten into the recorder or to put on top of
    it.
    """
    return Probe(
        summary=summary,
        members=members,
        recorder=recorder,
        shared=shared,
        tools=WINDOWS,
        constants=constants,
        settings=settings,
        arguments=probe_arguments,
        parts=parts,
        layers=layers,
        callers=(CLOSE,),
    )
