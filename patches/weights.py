"""The weight sync, whatever the framework: what records it, and the lines that say where it is and in which phase.

As of the timeline, the recorder stands at the end of the package's ``__init__.py``, and each line at a call site looks
for it there: a sync goes through classes of several modules.
"""

from __future__ import annotations

from collections.abc import Iterable

from patcher.config import WHOLE, ProfileConfig, SyncStage
from patcher.messages.notes import Note
from patcher.messages.text import Text
from patcher.recipe import Around, Head, Insertion, Probe, Recipe, Structure
from patches import recording
from patches.probes.weights import WeightSync
from patches.probes.windows import RepeatedSyncs
from patches.releases import Releases
from patches.tools import WINDOWS, differing

(STAGE,) = SyncStage.NAMES
_WHY = Text(
    "between two rollouts all accelerators wait for the weights, and no stage of a training step has them: most of the"
    " time may go into gathering what is then sent in no time"
)
_HOW = Text(
    "one line at the head of each function: its range ends where the local name of it does, which is when the function"
    " returns or raises. The profiler runs from the beginning of the outermost one to its end"
)
_REMOVE = Text("the framework's own profiler has the weight sync as a stage, and marks its phases")
_FIRST = Note(
    Text("sync 0 may be the one before the first rollout: --sync N chooses another"),
    Text("a trainer that syncs before its first step has the weights of step 1 in sync 1"),
)


def summary(config: ProfileConfig[SyncStage]) -> str:
    """One line for the reader of the patched file."""
    first, count = config.stage.sync, config.stage.repeat
    which = (
        Text("weight sync {first}", first)
        if count == 1
        else Text("weight syncs {first} to {last}", first, first + count - 1)
    )
    return Text("Records {which} of this process on {on_ranks}.", which, recording.on_ranks(config))


def settings(config: ProfileConfig[SyncStage]) -> dict[str, object]:
    """What the user chose, as the class attributes of ``patches.probes.weights.WeightSync``."""
    about = recording.about(config, "replica", "dp", "role", "sync")
    return {
        **recording.settings(config),
        **recording.in_replicas(config),
        "SYNC": str(config.stage.sync),
        **about,
    }


def _layers(config: ProfileConfig[SyncStage], release: str) -> tuple[type, ...]:  # noqa: ARG001
    repeated = (RepeatedSyncs,) if config.stage.repeat > 1 else ()
    return (*repeated, *recording.several_traces(config))


def recipes(
    package: str, releases: Releases, *sites: Recipe, logger: str, replica: Probe | None = None
) -> tuple[Recipe, ...]:
    """The recipes of the stage in ``package``: of its recorder and of ``sites``; neither goes in without the other.

    ``replica`` goes in beside the recorder: it tells a process which replica it is.
    """
    more = replica or Probe(summary=summary)
    recorder = Recipe(
        name=Text("recorder of weight syncs"),
        stage=STAGE,
        class_name="",
        method="",
        insertions=(),
        structures=(Structure("", releases, f"{package}/__init__.py", (), Text("imported before any other module")),),
        probe=Probe(
            summary=summary,
            recorder=WeightSync,
            members=more.members,
            beside="\n".join(filter(None, ("_rlpatch_stage = _RlpatchStage.Syncs(_RlpatchStage)", more.beside))),
            callers=(*(line for site in sites for one in site.insertions for line in one.lines), recording.INTERRUPT),
            tools=WINDOWS,
            constants=lambda config, _release: {"LOGGER": logger, **recording.repeated(config)},
            settings=settings,
            arguments=differing,
            parts=lambda config, _release: recording.parts(config),
            layers=_layers,
        ),
        windows=(WHOLE,),
        why=_WHY,
        how=Text("a class and one object of it at the end of the package, which does nothing before the first sync"),
        upstream=f"{package}/__init__.py",
        remove_when=_REMOVE,
        notes=(_FIRST,),
        needs=tuple(site.name for site in sites),
    )
    return (recorder, *(site._replace(needs=(recorder.name,)) for site in sites))


Site = tuple[str, str, str]
"""The path to a function, what its line calls, and why there."""


def sites(package: str, name: str, file: str, releases: Releases, heads: Iterable[Site], *more: Insertion) -> Recipe:
    """The recipe for the lines in one file; those of functions that a release does not have are left out."""
    insertions = (*(head(package, *one) for one in heads), *more)
    return Recipe(
        name=name,
        stage=STAGE,
        class_name="",
        method=insertions[0].method,
        insertions=insertions,
        structures=(Structure("", releases, file, (), Text("the function is there")),),
        probe=Probe(summary=summary, beside=f"# What these lines call stands at the end of {package}/__init__.py."),
        windows=(WHOLE,),
        why=_WHY,
        how=_HOW,
        upstream=f"{file}, from {releases[0]} on",
        remove_when=_REMOVE,
    )


def head(package: str, method: str, call: str, why: str) -> Insertion:
    """A range that lasts as long as the function does."""
    return _insertion(method, f"_rlpatch_range = {_found(package)} and _rlpatch.{call}", why)


def weights(package: str, method: str) -> Insertion:
    """The function's parameter of that name, what is waited for being a range."""
    line = f"weights = _rlpatch.weights(weights) if {_found(package)} else weights"
    return _insertion(method, line, Text("each tensor is gathered, or received, when it is asked for"), ("weights",))


def ended(package: str, method: str, why: str) -> Insertion:
    """Where no sync goes on any more."""
    return _insertion(method, f"{_found(package)} and _rlpatch.ended()", why)


def around(package: str, method: str, call: str, phase: str, why: str) -> Insertion:
    """One call that is a phase."""
    where = Around(call, "del _rlpatch_phase")
    line = f'_rlpatch_phase = {_found(package)} and _rlpatch.phase("{phase}")'
    return Insertion(method, where=where, line=line, why=why, optional=True)


def socket(package: str, method: str, behind: str) -> Insertion:
    """The socket that buckets are handed over by, which is there ``behind`` a call."""
    where = Around(behind, "self.socket = _rlpatch.socket(self.socket) if _rlpatch else self.socket")
    line = f'_rlpatch = getattr(__import__("{package}"), "_rlpatch_stage", None)'
    why = Text("to hand a bucket over takes as long as the other side takes to load it")
    return Insertion(method, where=where, line=line, why=why, optional=True)


def _insertion(method: str, line: str, why: str, parameters: tuple[str, ...] = ()) -> Insertion:
    return Insertion(method, where=Head(), line=line, why=why, parameters=parameters, optional=True)


def _found(package: str) -> str:
    return f'(_rlpatch := getattr(__import__("{package}"), "_rlpatch_stage", None))'
