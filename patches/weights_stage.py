"""The weight sync, whatever the framework: what records it, and the lines that say where it is and in which phase.

As of the timeline, the recorder stands at the end of the package: a sync goes through classes of several modules.
"""

from __future__ import annotations

from patcher.config import NsysSettings, ProfileConfig, SyncStage
from patcher.messages import Note, Text
from patcher.recipe import Around, Insertion, Probe, Recipe
from patches import recording
from patches.package_stage import PackageStage, Site, line
from patches.probes.nsys import NvtxPhases
from patches.probes.weight_sync import WeightSync
from patches.probes.windows import RepeatedSyncs
from patches.tools import WINDOWS, probe_arguments


def settings(config: ProfileConfig[SyncStage]) -> dict[str, object]:
    """Return the user's options as class attributes of `patches.probes.weight_sync.WeightSync`: name → value."""
    about = recording.metadata_attributes(config, "replica", "dp", "role", "sync")
    return {
        **recording.settings(config),
        **recording.in_replicas(config),
        "SYNC": str(config.stage.sync),
        **about,
    }


def _layers(config: ProfileConfig[SyncStage], _release: str) -> tuple[type, ...]:
    """Return the subclasses to put on top of the recorder: for repeats, those of any recorder, phases for nsys."""
    repeated = (RepeatedSyncs,) if config.stage.repeat > 1 else ()
    phases = (NvtxPhases,) if isinstance(config.profiler, NsysSettings) else ()
    return (*repeated, *recording.layers(config), *phases)


class Weights(PackageStage):
    """Recipes of the weight sync in a package."""

    (STAGE,) = SyncStage.NAMES
    WHY = Text(
        "between two rollouts all accelerators wait for the weights, and no stage of the training step includes"
        " this time. Often most of this time is spent on gathering the weights, and sending is short"
    )
    HOW = Text(
        "inserts one line at the start of each recorded function. The line opens a range in the trace; the range ends"
        " when the function returns or raises an exception. The profiler runs from the start of the outermost function"
        " to its end"
    )
    REMOVE_WHEN = Text(
        "the patch is no longer needed once the framework's own profiler can record the weight sync as a stage, and"
        " mark its phases"
    )
    AT_HEAD = "_rlpatch_range"
    AROUND = "_rlpatch_phase"
    RECORDER = (
        Text("recorder of weight syncs"),
        Text(
            "inserts a class at the end of the patched package's __init__.py, and a line that creates the only object"
            " of this class. The object does nothing until the first weight sync"
        ),
    )
    NOTES = (
        Note(
            Text("weight sync 0 can precede the first rollout: --sync N records a later sync"),
            Text(
                "a weight sync before the first training step counts as weight sync 0; in this case, weight sync 1"
                " carries the weights of training step 1"
            ),
        ),
    )

    @staticmethod
    def summary(config: ProfileConfig[SyncStage]) -> str:
        """Return a sentence on what is recorded, for the plan and for a comment in the patched file."""
        first, count = config.stage.sync, config.stage.repeat
        which = (
            Text("weight sync {first}", first)
            if count == 1
            else Text("weight syncs {first} to {last}", first=first, last=first + count - 1)
        )
        return Text(
            "Records {weight_syncs} of each process on {ranks}.", weight_syncs=which, ranks=recording.on_ranks(config)
        )

    def recipes(
        self,
        *sites: Recipe,
        replica: Probe | None = None,
        recorder_name: str = "_rlpatch_stage",
    ) -> tuple[Recipe, ...]:
        """Return the recipe of the recorder of weight syncs, followed by the recipes of its `sites`.

        Recorder and sites are only patched together. The probe `replica` goes in beside the recorder and tells a
        process which replica it is (None: nothing does). `recorder_name` is the module variable that the recorder is
        assigned to.
        """
        more = replica or Probe(summary=self.summary)
        assigned = f"{recorder_name} = _RlpatchStage.Syncs(_RlpatchStage)"
        probe = Probe(
            summary=self.summary,
            recorder=WeightSync,
            members=more.members,
            beside="\n".join(filter(None, (assigned, more.beside))),
            callers=(recording.CLOSE,),
            tools=WINDOWS,
            constants=recording.repeated,
            settings=settings,
            arguments=probe_arguments,
            parts=recording.parts,
            layers=_layers,
        )
        return self.with_recorder(sites, probe)

    def wrapped(self, *methods: str, weights: str = "weights") -> tuple[Insertion, ...]:
        """Return a line for each of `methods` that wraps the parameter `weights`: waiting for a tensor becomes a range.

        In a release whose function lacks the parameter, the line is left out.
        """
        wrapped = f"{weights} = _rlpatch.weights({weights}) if {self.recorder} else {weights}"
        why = Text("this iterator yields the weights: each tensor is gathered or received only when it is needed")
        return tuple(line(method, wrapped, why, parameters=(weights,)) for method in methods)

    def sync(self, method: str, why: str, role: str = "trainer") -> Site:
        """Return the site that makes `method` a weight sync, or a part of one, on the side `role`."""
        return method, f'sync(self, "{role}", "{method.rpartition(".")[2]}")', why

    def phase(self, method: str, name: str, why: str) -> Site:
        """Return the site that makes `method` the phase `name` of a weight sync."""
        return method, f'phase("{name}")', why

    def ended(self, method: str, why: str) -> Insertion:
        """Return the line in `method` that tells the recorder that a weight sync is over; `why` is the reason."""
        return line(method, f"{self.recorder} and _rlpatch.ended()", why)

    def socket(self, method: str, statement: str) -> Insertion:
        """Return lines in `method` that wrap `self.socket` after `statement`: each wait for an answer is a range."""
        where = Around(statement, "self.socket = _rlpatch.socket(self.socket) if _rlpatch else self.socket")
        why = Text("sending a bucket of weights takes as long as the receiver needs to load it")
        return line(method, f'_rlpatch = getattr(__import__("{self.package}"), "_rlpatch_stage", None)', why, where)
