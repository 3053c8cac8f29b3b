"""The timeline, whatever the framework: its recorder, and the lines that keep a span or count a unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from patcher.config import ProfileConfig, TimelineStage
from patcher.messages import Text
from patcher.recipe import Insertion, Loop, Probe, Recipe
from patches import recording
from patches.package_stage import PackageStage, Site, line
from patches.probes.timeline_recorder import TimelineRecorder


def settings(config: ProfileConfig[TimelineStage]) -> Mapping[str, object]:
    """Return the user's options as class attributes of `probes.timeline_recorder.TimelineRecorder`: name → value."""
    return {
        "STAGE": Timeline.STAGE,
        "SAVE_PATH": config.save_path,
        "RANKS": recording.numbers(config.ranks),
        "MAX_TIMELINE_MB": str(config.stage.max_timeline_mb),
    }


def span_site(path: str, kind: str, why: str, name: str = "") -> Site:
    """Return the site that records each call of the function `path` as a span of `kind`.

    The span is called `name`, or for "" as the function, without leading underscores. `why` is the reason, for users.
    """
    return path, f'span("{kind}", "{name or path.rpartition(".")[2].lstrip("_")}")', why


def span_sites(owner: str, kind: str, why: str, *methods: str) -> Iterator[Site]:
    """Yield a site for each of the `methods` of the class `owner`, which records it as `span_site` does.

    A `kind` is "sync", "sleep" or "work". `why` is the reason, for users.
    """
    return (span_site(f"{owner}.{method}", kind, why) for method in methods)


class Timeline(PackageStage):
    """Recipes of the timeline in a package."""

    (STAGE,) = TimelineStage.NAMES
    WHY = Text(
        "to see which process limits a training step, all processes must be recorded all the time, which is too much"
        " for a profiler. The timeline reads only the clock, at the start and end of some functions"
    )
    HOW = Text(
        "inserts one line at the start of each recorded function. Each call of the function is a span of the timeline;"
        " the span ends on return, on an exception, or when a generator is closed. To time the iterations of a loop,"
        " rlpatch wraps the iterable of the loop. If collectives block the host (gloo, MPI), rlpatch replaces the"
        " methods Work.wait and DTensor.full_tensor of torch.distributed in memory, to measure how long the"
        " collectives block"
    )
    REMOVE_WHEN = Text(
        "the patch is no longer needed once the framework itself writes a timeline of its processes, in a format that"
        " can be read without starting a server"
    )
    AT_HEAD = "_rlpatch_span"
    AROUND = "_rlpatch_wait"
    RECORDER = (
        Text("recorder of the timeline"),
        Text(
            "inserts a class at the end of the patched package's __init__.py, and a line that creates the only object"
            " of this class. The object does nothing until another inserted line calls it"
        ),
    )

    @staticmethod
    def summary(config: ProfileConfig[TimelineStage]) -> str:
        """Return a sentence on what is recorded, for the plan and for a comment in the patched file."""
        return Text(
            "Records what each process does and when, without a profiler: at most {max_timeline_mb} MB per process,"
            " in one or two files.",
            config.stage.max_timeline_mb,
        )

    def recipes(
        self,
        *sites: Recipe,
        recorder_class: type = TimelineRecorder,
        recorder_name: str = "_rlpatch_stage",
    ) -> tuple[Recipe, ...]:
        """Return the recipe of the timeline's recorder, followed by the recipes of its `sites`.

        The recorder, an instance of `recorder_class`, goes to the end of the package's ``__init__.py``, into the module
        variable `recorder_name`. Recorder and sites are only patched together.
        """
        probe = Probe(
            summary=self.summary,
            recorder=recorder_class,
            beside=f"{recorder_name} = _RlpatchStage()",
            settings=settings,
        )
        return self.with_recorder(sites, probe)

    def loop(self, method: str, unit: str, *variables: str) -> Insertion:
        """Return the line that records each iteration of a loop in `method` as a `unit`, such as "micro-batch".

        The loop is the one that runs over any of `variables`.
        """
        wrapped = f'{{units}} = _rlpatch.units("{unit}", {{units}}) if {self.recorder} else {{units}}'
        return line(
            method, wrapped, Text("each iteration of this loop becomes a span of the timeline"), Loop(variables)
        )

    def wait(self, method: str, call: str) -> Insertion:
        """Return the lines around the statement with `call`, a collective in which the host waits for other ranks."""
        name = call.rpartition(".")[2]
        why = Text("all ranks wait here for the slowest rank (straggler); only this span shows which rank is late")
        return self.around(method, f"{call}(...)", f'span("wait", "{name}")', why)
