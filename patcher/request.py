"""What the user asked to record, and the capture that it comes to in one target."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.config import (
    BACKENDS,
    KINDS,
    PROFILERS,
    STAGES,
    WHOLE,
    Builtin,
    ProfileConfig,
    Ranges,
    Rollout,
    Stage,
    TorchNpu,
    Training,
    Window,
    Windowed,
    kind_of,
    typed_as,
)
from patcher.errors import Kind, Problem
from patcher.headings import RECORDED, WINDOW
from patcher.option import Flag, Option, Word, flag, options_of

if TYPE_CHECKING:
    from patcher.recipe import Recipe, Upstream
    from patcher.targets.target import Target

OPTIONS: Mapping[str, Option] = {
    "stage": Option(
        "stage",
        Word(STAGES, others=True, same={"update-actor": "update-policy"}),
        WINDOW,
        f"The part of the RL loop to record: {', '.join(STAGES)}.",
        shown="the target's first that has the window",
    ),
    "builtin": Option(
        "builtin",
        Flag(),
        WINDOW,
        "Change the settings of the framework's own profiler instead: those that are named, no others.",
    ),
    "backend": Option(
        "backend",
        Word(BACKENDS),
        RECORDED,
        "Record with torch_npu.profiler or torch.profiler.",
        shown="the one of the target's environment",
    ),
    **options_of(Rollout, Training, TorchNpu, Ranges, ProfileConfig),
}
"""Every option that says what to record, by its name, but for those of the windows."""
DEFAULT_FOLDER = "rlpatch_traces"
Everyone = Callable[[], "Sequence[Upstream]"]
"""Gives every project there is: only an error has to know them."""


class RecordOptions(NamedTuple):
    """What was typed: the windows, and every other option of :data:`OPTIONS` by its name."""

    windows: tuple[Window, ...] = ()
    choices: Mapping[str, Any] = MappingProxyType({})

    @property
    def asked(self) -> bool:
        """Whether it says what to record; else nothing is chosen, or only how."""
        return bool(self.windows or {"stage", "builtin", "on_demand"} & self.choices.keys())

    def request(self) -> Request:
        """What is asked for; :class:`Problem` (USAGE) where no target could record that."""
        if len({kind_of(window.unit) for window in self.windows}) < len(self.windows):
            said = " and ".join(f"--{window.unit}" for window in self.windows)
            raise Problem(Kind.USAGE, f"{said}: a stage has one window", hint="leave all but one out")
        others = {name: value for name, value in self.choices.items() if name not in ("stage", "builtin", "backend")}
        stage = self.choices.get("stage", "")
        if "builtin" in self.choices or stage in Builtin.NAMES:
            if stage and stage not in Builtin.NAMES:
                cause = f"--builtin and --stage {stage}: the framework's own profiler is a stage of its own"
                raise Problem(Kind.USAGE, cause, hint="leave out --builtin or --stage")
            settings = options_of(TorchNpu)
            foreign = [name for name in OPTIONS if name in self.choices and name not in (*settings, "stage", "builtin")]
            if said := " and ".join([*(f"--{window.unit}" for window in self.windows), *map(flag, foreign)]):
                cause = f"{said}: --builtin changes the framework's own profiler, which has nothing of the kind"
                hint = "leave out --builtin, or what is not a setting of that profiler"
                raise Problem(Kind.USAGE, cause, hint=hint)
            return Request((), Builtin.NAMES[0], "", others)
        if not self.windows and not stage and not self.choices.get("on_demand"):
            example = "one of --decode 30:60, --prefill 0:4, --iterations 10:20, --mini-batch 0:1, --micro-batch 0:4"
            raise Problem(Kind.USAGE, "no window is given", hint=example)
        return Request(self.windows, stage, self.choices.get("backend", ""), others)


class Request(NamedTuple):
    """What is asked for. ``choices`` are those beside the windows, the stage and the backend, by their names.

    One command may patch several targets, so a window and a choice belong to those stages that know them.
    """

    windows: tuple[Window, ...] = ()
    stage: str = ""
    backend: str = ""
    choices: Mapping[str, Any] = MappingProxyType({})

    def config(self, stage: str, unit: str, backend: str) -> ProfileConfig[Stage]:
        """The capture of a stage in the window of ``unit``; :class:`Problem` (USAGE) where a choice does not fit.

        ``backend`` is the one where none was asked for.
        """
        if stage in Builtin.NAMES:
            settings = {name: self.choices[name] for name in options_of(TorchNpu) if name in self.choices}
            return ProfileConfig(stage=Builtin(named=tuple(settings)), profiler=TorchNpu(**settings))
        without = Window.whole() if unit == WHOLE else Window.later_on(unit)
        window = next((window for window in self.windows if window.unit == unit), without)
        part = self._stage(stage, window)
        profiler = next(one for one in PROFILERS if (self.backend or backend) == one.BACKEND)
        if unknown := self._unlike(options_of(TorchNpu).keys() - options_of(profiler).keys()):
            cause = f"{flag(unknown[0])} does not exist in {profiler.MODULE}"
            hint = f"leave {flag(unknown[0])} out, or take --backend {TorchNpu.BACKEND}"
            raise Problem(Kind.USAGE, cause, hint=hint)
        return ProfileConfig(
            stage=part,
            profiler=profiler(**self._chosen(profiler)),
            **{"save_path": os.path.realpath(DEFAULT_FOLDER), **self._chosen(ProfileConfig)},
        )

    def _stage(self, name: str, window: Window) -> Stage:
        kind = kind_of(window.unit)
        parts = (kind, Ranges) if issubclass(kind, Windowed) else (kind,)
        foreign = self._unlike(options_of(*KINDS, Ranges).keys() - options_of(*parts).keys())
        # With two windows a choice belongs to the stage that knows it, with one it has to fit.
        if foreign and len(self.windows) < 2:
            raise _foreign(foreign[0], name, window)
        if issubclass(kind, Windowed):
            return kind(name=name, window=window, ranges=Ranges(**self._chosen(Ranges)), **self._chosen(kind))
        return kind(name=name, **self._chosen(kind))

    def _chosen(self, part: type) -> dict[str, Any]:
        """The choices that are options of ``part``."""
        return {name: self.choices[name] for name in options_of(part) if name in self.choices}

    def _unlike(self, names: Collection[str]) -> list[str]:
        """Those of ``names`` that were chosen, and otherwise than by default."""
        return [name for name in self.choices if name in names and self.choices[name] != OPTIONS[name].value]


def _foreign(name: str, stage: str, window: Window) -> Problem:
    """What is said of a choice that the kind of the stage does not know."""
    owners = [kind.KIND for kind in KINDS if name in options_of(kind)]
    if len(owners) == 1:
        where = f"--stage {stage}" if window.unit == WHOLE else f"--{window.unit}"
        cause = f"{flag(name)} belongs to {owners[0]} stages, and {where} to a stage of another kind"
    else:
        cause = f"{flag(name)}: {stage} is recorded as a whole, without a warm-up or ranges of ours"
    return Problem(Kind.USAGE, cause, hint=f"leave {flag(name)} out")


def resolve(request: Request, upstream: Upstream, target: Target, everyone: Everyone = tuple) -> ProfileConfig[Stage]:
    """The capture that the request comes to in ``target``: the window that one of its stages counts.

    The stage is the one that was named, else the default of the kind of window, else the first that counts it; the
    backend follows from the environment of the target. Raises :class:`Problem`: NO_RECIPE for a stage that the project
    does not have (``everyone`` are the projects among which to say who has it), USAGE for what does not fit.
    """
    stages = dict.fromkeys(recipe.stage for recipe in upstream.recipes)
    backend = next((one for package, one in upstream.runs_on.items() if target.beside(package)), upstream.backend)
    on_demand = [kind.UNITS[0].name for kind in KINDS if kind.UNITS and request.choices.get("on_demand")]
    # In a command of several targets the stage may be that of another one.
    if request.stage in stages or not (request.windows or on_demand):
        stages = dict.fromkeys(recipe.stage for recipe in recipes_of(upstream, request.stage, everyone))
    for unit in [window.unit for window in request.windows] or on_demand or [WHOLE]:
        counting = [recipe.stage for recipe in upstream.recipes if unit in recipe.windows and recipe.stage in stages]
        if counting:
            usual = kind_of(unit).NAMES[0]
            return request.config(usual if usual in counting else counting[0], unit, backend)
    if request.stage and request.stage not in stages:
        raise no_stage(request.stage, [upstream], everyone)
    named = request.stage in stages
    offered = dict.fromkeys(unit for recipe in upstream.recipes if recipe.stage in stages for unit in recipe.windows)
    windows = ", ".join(typed_as(unit) for unit in offered if unit != WHOLE)
    hint = windows or "leave the window out: the stage is recorded as a whole"
    where = f"the stage {request.stage} of {upstream.project.name}" if named else upstream.project.name
    if not request.windows:
        raise Problem(Kind.USAGE, f"{where} is recorded in a window, and none is given", hint=hint)
    said = " and ".join(f"--{window.unit}" for window in request.windows)
    raise Problem(Kind.USAGE, f"{where} has no {said}", hint=hint)


def recipes_of(upstream: Upstream, stage: str, everyone: Everyone = tuple) -> list[Recipe]:
    """The recipes of a stage; :class:`Problem` (NO_RECIPE) where the project has none, and who of ``everyone`` has."""
    found = [recipe for recipe in upstream.recipes if recipe.stage == stage]
    if not found:
        raise no_stage(stage, [upstream], everyone)
    return found


def no_stage(stage: str, asked: Sequence[Upstream], everyone: Everyone) -> Problem:
    """That none of the projects ``asked`` has the stage."""
    names = " and ".join(upstream.project.name for upstream in asked)
    has = "has" if len(asked) == 1 else "have"
    if stage in Builtin.NAMES:
        hint = "leave it out of this command; rlpatch list shows the targets that have the stage builtin"
        return Problem(Kind.NO_RECIPE, f"{names} {has} no --builtin: no recipe sets up its own profiler", hint=hint)
    theirs = dict.fromkeys(recipe.stage for upstream in asked for recipe in upstream.recipes)
    known = everyone()
    owners = [other.project.name for other in known if stage in {recipe.stage for recipe in other.recipes}]
    cause = f"{names} {has} no stage {stage}"
    if known:
        cause += f"; it is one of {', '.join(owners)}" if owners else ": no target has this stage"
    return Problem(Kind.NO_RECIPE, cause, hint=f"one of: {', '.join(theirs)}")
