"""The timeline, whatever the framework: where its recorder stands, and the lines that keep a span or count a unit.

A process imports the package first, whichever module it is after: so the recorder stands at the end of the package's
``__init__.py``, and each line at a call site looks for it there. Some of these functions are pickled by value (verl
makes classes of workers and sends them to others), and a name of the module would go with them. A process that imported
the package before it was patched, and a module of it afterwards, has lines without a recorder: they do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from patcher.config import WHOLE, ProfileConfig, TimelineStage
from patcher.messages.text import Text
from patcher.recipe import Anchor, Around, Head, Insertion, Loop, Probe, Recipe, Structure
from patches import recording
from patches.probes.timeline import TimelineRecorder
from patches.releases import Releases

(STAGE,) = TimelineStage.NAMES
_WHY = Text(
    "a whole run shows which process limited a step, and no trace of a profiler can be whole: a span costs two readings"
    " of the clock"
)
_HOW = Text(
    "one line at the head of each function: the span ends where the local name of it does, which is when the function"
    " returns, raises, or is closed. Loops run over their units wrapped"
)
_REMOVE = Text("the framework keeps such a timeline in a format that can be read without a server")


def summary(config: ProfileConfig[TimelineStage]) -> str:
    """One line for the reader of the patched file."""
    size = Text("at most {max_timeline_mb} MB", config.stage.max_timeline_mb)
    return Text("Keeps what this process does and when, without a profiler: {size}, in a file of its own.", size)


def settings(config: ProfileConfig[TimelineStage]) -> Mapping[str, object]:
    """What the user chose, as the class attributes of ``patches.probes.timeline.TimelineRecorder``."""
    return {
        "STAGE": STAGE,
        "SAVE_PATH": config.save_path,
        "RANKS": recording.numbers(config.ranks),
        "MAX_TIMELINE_MB": str(config.stage.max_timeline_mb),
    }


def recipes(
    package: str,
    releases: Releases,
    *sites: Recipe,
    logger: str,
    kind: type = TimelineRecorder,
    recorder_name: str = "_rlpatch_stage",
) -> tuple[Recipe, ...]:
    """The recipes of the stage in ``package``: of its recorder, an object of ``kind``, and of ``sites``.

    Neither goes in without the other. ``recorder_name`` is what the recorder is assigned to: a name of the module.
    """
    recorder = Recipe(
        name=Text("recorder of the timeline"),
        stage=STAGE,
        class_name="",
        method="",
        insertions=(),
        structures=(Structure("", releases, f"{package}/__init__.py", (), Text("imported before any other module")),),
        probe=Probe(
            summary=summary,
            recorder=kind,
            beside=f"{recorder_name} = _RlpatchStage()",
            callers=tuple(line for site in sites for one in site.insertions for line in one.lines),
            constants=lambda _config, _release: {"LOGGER": logger},
            settings=settings,
        ),
        windows=(WHOLE,),
        why=_WHY,
        how=Text("a class and one object of it at the end of the package, which does nothing before its first record"),
        upstream=f"{package}/__init__.py",
        remove_when=_REMOVE,
        needs=tuple(site.name for site in sites),
    )
    return (recorder, *(site._replace(needs=(recorder.name,)) for site in sites))


Site = tuple[str, str, str]
"""The path to a function, what it keeps as a call of the recorder, and why there."""


def sites(
    package: str, name: str, file: str, releases: Releases, heads: Iterable[Site], *loops: Insertion, needed: str = ""
) -> Recipe:
    """The recipe for the spans in one file; those of functions that a release does not have are left out.

    But ``needed`` has to be there: without it the file is another one, such as that of an older engine.
    """
    insertions = (*(_head(package, *one)._replace(optional=one[0] != needed) for one in heads), *loops)
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


def loop(package: str, method: str, unit: str, *names: str) -> Insertion:
    """The units of a loop over one of ``names``."""
    line = f'{{units}} = _rlpatch.units("{unit}", {{units}}) if {_found(package)} else {{units}}'
    return _insertion(method, Loop(names), line, Text("each turn is a span"))


def wait(package: str, method: str, call: str) -> Insertion:
    """One call of a collective in which the host waits for the other ranks; it stands alone in its statement."""
    name = call.rpartition(".")[2]
    why = Text("who comes late is not seen elsewhere: the others wait here")
    return around(package, method, f"{call}(...)", f'span("wait", "{name}")', why)


def around(package: str, method: str, statement: str, record: str, why: str) -> Insertion:
    """What the recorder keeps of one statement, which is a call."""
    where = Around(statement, "del _rlpatch_wait")
    return _insertion(method, where, f"_rlpatch_wait = {_found(package)} and _rlpatch.{record}", why)


def _head(package: str, method: str, call: str, why: str) -> Insertion:
    return _insertion(method, Head(), f"_rlpatch_span = {_found(package)} and _rlpatch.{call}", why)


def _insertion(method: str, where: Anchor, line: str, why: str) -> Insertion:
    return Insertion(method, where=where, line=line, why=why, optional=True)


def _found(package: str) -> str:
    return f'(_rlpatch := getattr(__import__("{package}"), "_rlpatch_stage", None))'
