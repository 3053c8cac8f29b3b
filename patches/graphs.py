"""The capture of an engine's graphs, whatever the engine: the probe, and how the user's choice goes into it."""

from __future__ import annotations

from patcher.config import WHOLE, ProfileConfig, WholeStage
from patcher.messages import Note, Text
from patcher.recipe import Around, Insertion, Probe
from patches import recording
from patches.probes.graphs import VllmGraphCapture
from patches.probes.members import Calls, Inherited
from patches.probes.windows import RepeatedCaptures

STAGE = "graph-capture"
WINDOWS = (WHOLE,)

MANY_SIZES = Note(
    Text("to make the trace smaller, capture graphs for fewer batch sizes"),
    Text(
        "the warm-up run of each batch size is in the trace, too. To set the batch sizes, use"
        " cudagraph_capture_sizes in --compilation-config"
    ),
)
"""Note on the length of a trace, for vLLM and vllm-ascend."""

WHY_IN_VLLM = Text(
    "a replayed graph shows one launch and no operators. Only the capture of a graph shows which operator launched"
    " which kernel, and with which shapes (--contents npu,cpu,shapes). Common guides start the profiler in"
    " EngineCore._initialize_kv_caches() (vllm/v1/engine/core.py), but a profiler that is started there records"
    " nothing if the worker runs in another process"
)
REMOVE_IN_VLLM = Text(
    "the patch is no longer needed with a release whose worker can start the engine's own profiler before the graph"
    " capture"
)


def summary(config: ProfileConfig[WholeStage]) -> str:
    """Return a sentence on what is recorded, for the plan and for a comment in the patched file."""
    which = Text("graph capture") if config.stage.repeat == 1 else Text("{count} graph captures", config.stage.repeat)
    return Text(
        "Records the first {captures} of each worker on {ranks}.", captures=which, ranks=recording.on_ranks(config)
    )


def settings(config: ProfileConfig[WholeStage]) -> dict[str, object]:
    """Return the user's options as class attributes of `patches.probes.graphs.GraphCapture`: name → value."""
    about = recording.metadata_attributes(config, "replica", "dp")
    return {**recording.settings(config), **recording.in_replicas(config), **about}


def probe(recorder: type = VllmGraphCapture) -> Probe:
    """Return the probe of graph captures; its class is `recorder`, with the events "enter" and "leave" of a capture."""

    def layers(config: ProfileConfig[WholeStage], _release: str) -> tuple[type, ...]:
        """Return the subclasses to put on top of the recorder: for repeated captures, then those of any recorder."""
        return (*((RepeatedCaptures,) if config.stage.repeat > 1 else ()), *recording.layers(config))

    return recording.probe(
        recorder,
        (Calls,),
        settings=settings,
        constants=recording.repeated,
        summary=summary,
        parts=lambda config, _release: (*recording.parts(config), recording.replicas(config)),
        layers=layers,
    )


INHERITED = Probe(members=(Inherited,), summary=summary)
"""Probe for a worker whose base class has the rest."""


def around(method: str, function: str, why: str, *, nested: bool = True) -> Insertion:
    """Return the lines before and after the call of `self.model_runner.FUNCTION()` in `method`, to record that call.

    `why` is their reason, for users. With `nested` the call may be at any depth, otherwise it is a statement of the
    method itself.
    """
    return enclosing(method, f"self.model_runner.{function}()", function, why, nested=nested)


def enclosing(method: str, statement: str, name: str, why: str, *, nested: bool = True) -> Insertion:
    """Return the lines before and after the only `statement` in `method`, to record what it runs.

    `name` is the name of the recording in the log, `why` the reason of the lines, for users. With `nested` the
    statement may be at any depth, otherwise it is one of the method itself.
    """
    return Insertion(
        method,
        where=Around(statement, after='self._rlpatch_stage("leave")', nested=nested),
        line=f'self._rlpatch_stage("enter", "{name}")',
        why=why,
    )
