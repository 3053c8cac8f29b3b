"""The request of a command as it was typed, and the configuration that it comes to in one target."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.config import (
    KINDS,
    PROFILERS,
    STAGES,
    TOOLS,
    WHOLE,
    BuiltinStage,
    NoProfiler,
    NsysSettings,
    ProfileConfig,
    RangeOptions,
    Stage,
    TimelineStage,
    Window,
    WindowedStage,
    kind_of,
    typed_as,
)
from patcher.messages import AND, OR, Kind, Problem, Text, joined, usage
from patcher.options import OptionSpec, flag, options_of
from patcher.options.headings import RECORDED, WINDOW
from patcher.options.notations import Choice, Flag

if TYPE_CHECKING:
    from patcher.recipe import Recipe, Upstream
    from patcher.targets.target import Target

_STAGE = f"What to record: {', '.join(STAGES)}."
_BUILTIN = (
    "Instead of inserting a recorder, change settings of the framework's own profiler. Only the settings that"
    " you type are changed."
)
_TIMELINE = (
    "Record what each process does and when, for `rlpatch timeline`, without a profiler and in a few KB per step."
)
_TOOL = (
    "The recording tool: torch_npu.profiler (npu), torch.profiler (torch), Nsight Systems (nsys, which must start"
    " the run) or the history of torch's allocator (memory)."
)
_STAGES = Choice(STAGES, accepts_unknown=True, same={"update-actor": "update-policy"})
_DECLARED = (
    OptionSpec(
        "stage", _STAGES, WINDOW, _STAGE, default_text="the target's first stage that supports the chosen window"
    ),
    OptionSpec("builtin", Flag(), WINDOW, _BUILTIN),
    OptionSpec("timeline", Flag(), WINDOW, _TIMELINE),
    OptionSpec(
        "tool",
        Choice(TOOLS),
        RECORDED,
        _TOOL,
        default_text="the profiler that the target's environment has",
        aliases=("backend",),
    ),
)
OPTIONS: Mapping[str, OptionSpec] = {
    **{spec.name: spec for spec in _DECLARED},
    **options_of(*KINDS, *PROFILERS.values(), RangeOptions, ProfileConfig, TimelineStage),
}
"""Every option that says what to record, by its name, but for those of the windows."""
BUILTIN, TIMELINE = BuiltinStage.NAMES[0], TimelineStage.NAMES[0]
SHARED = frozenset({"ranks", "save_path"})
"""Options of windows that the timeline takes, too."""
DEFAULT_FOLDER = "rlpatch_traces"
AllUpstreams = Callable[[], "Sequence[Upstream]"]
"""Gives every project there is: only an error has to know them."""


class ProfileRequest(NamedTuple):
    """Request as typed: the windows, and the values of other options in `OPTIONS`, by name.

    A command may patch several targets; a window or option applies to each stage that has it. `beside` are requests of
    a single stage each: a target takes one if it has the stage, and goes without it if the stage cannot be patched.
    `beside_timeline` marks the window of a request that has the timeline, too.
    """

    windows: tuple[Window, ...] = ()
    choices: Mapping[str, Any] = MappingProxyType({})
    beside: tuple[ProfileRequest, ...] = ()
    beside_timeline: bool = False

    @property
    def stage(self) -> str:
        """Chosen stage, "" for none: a requested built-in profiler, a timeline requested alone, else ``--stage``."""
        if "builtin" in self.choices:
            return BUILTIN
        alone = "timeline" in self.choices and not (self.windows or {"stage", "on_demand"} & self.choices.keys())
        return TIMELINE if alone else str(self.choices.get("stage", ""))

    @property
    def selects(self) -> bool:
        """Whether the request says what to record, and not only how."""
        return bool(self.windows or {"stage", "builtin", "timeline", "on_demand"} & self.choices.keys())

    def parts(self) -> list[ProfileRequest]:
        """Return a request for the window and one for the timeline, or [self] if only one of the two is requested."""
        if "timeline" not in self.choices or self.stage == TIMELINE:
            return [self]
        timeline_names = {"timeline", *options_of(TimelineStage)}
        timeline = {name: value for name, value in self.choices.items() if name in timeline_names | SHARED}
        window_choices = {name: value for name, value in self.choices.items() if name not in timeline_names}
        window = self._replace(choices=window_choices, beside=(), beside_timeline=True)
        return [window, ProfileRequest((), timeline)]

    def checked(self) -> ProfileRequest:
        """Return the request itself. Raises Problem (USAGE) if its options conflict, or if it has nothing to record."""
        if len({kind_of(window.unit) for window in self.windows}) < len(self.windows):
            cause = Text("{options}: a stage can have only one window", self.window_flags)
            raise usage(cause, Text("keep only one of these options"))
        if "max_timeline_mb" in self.choices and TIMELINE not in {*self.choices, self.stage}:
            raise usage(Text("--max-timeline-mb needs --timeline"), "add --timeline")
        if self.stage == BUILTIN:
            self.parts()[0]._check_builtin()
        elif self.stage == TIMELINE:
            self._check_timeline()
        elif not (self.windows or self.stage or self.choices.get("on_demand")):
            example = Text(
                "choose a window: --decode 30:60, --prefill 0:4, --iterations 10:20, --mini-batch 0:1 or --micro-batch"
                " 0:4"
            )
            raise usage(Text("no recording window was given"), example)
        return self

    def _check_builtin(self) -> None:
        """Raise Problem (USAGE) if `--builtin` is combined with a window, another stage, or an option that it lacks."""
        stage = self.choices.get("stage", BUILTIN)
        if stage != BUILTIN:
            cause = Text(
                "--builtin cannot be combined with --stage {stage}: --builtin configures the framework's own profiler"
            )
            raise usage(cause.filled(stage), Text("leave out --builtin or --stage"))
        if foreign := self._foreign({*options_of(BuiltinStage.PROFILER), "stage", "builtin"}):
            cause = Text(
                "{options} cannot be combined with --builtin: the framework's own profiler has no such setting"
            )
            hint = Text("leave out --builtin, or the options that the framework's profiler does not support")
            raise usage(cause.filled(joined(AND, foreign)), hint)

    def _check_timeline(self) -> None:
        """Raise Problem (USAGE) if a timeline alone is combined with options of a profiler or a window."""
        if foreign := self._foreign({*options_of(TimelineStage), *SHARED, "stage", "timeline"}):
            cause = Text(
                "with --timeline and no recording window, {options} cannot be used: --timeline uses neither a profiler"
                " nor a window",
                joined(AND, foreign),
            )
            raise usage(cause, Text("leave out {option}, or add a window: --decode 30:60 --timeline", foreign[0]))

    def _foreign(self, fitting: Collection[str]) -> list[str]:
        """Return the typed options, such as "--level", that are not in `fitting`; every window is among them."""
        chosen = [name for name in OPTIONS if name in self.choices and name not in fitting]
        return [*(f"--{window.unit}" for window in self.windows), *map(flag, chosen)]

    def config(self, stage: str, unit: str, tool: str) -> ProfileConfig[Stage]:
        """Return the configuration of `stage` in the window that counts `unit`; `tool` is the default tool.

        Raises Problem (USAGE) for an option that does not fit the stage or the tool.
        """
        if stage == BUILTIN:
            settings = self._chosen(BuiltinStage.PROFILER)
            return ProfileConfig(
                stage=BuiltinStage(changed_settings=tuple(settings)), profiler=BuiltinStage.PROFILER(**settings)
            )
        folder = {"save_path": os.path.realpath(DEFAULT_FOLDER), **self._chosen(ProfileConfig)}
        if stage == TIMELINE:
            return ProfileConfig(stage=TimelineStage(**self._chosen(TimelineStage)), profiler=NoProfiler(), **folder)
        part = self._stage(stage, unit)
        profiler = PROFILERS[self.choices.get("tool", tool)]
        if unknown := self._changed(options_of(*PROFILERS.values()).keys() - options_of(profiler).keys()):
            cause = Text("{option} is not supported by {profiler}", option=flag(unknown[0]), profiler=profiler.MODULE)
            tools = joined(OR, (kind.TOOL for kind in PROFILERS.values() if unknown[0] in options_of(kind)))
            raise usage(cause, Text("leave out {option}, or use --tool {tool}", option=flag(unknown[0]), tool=tools))
        tool_settings = profiler(**self._chosen(profiler))
        return ProfileConfig(stage=part, profiler=tool_settings, beside_timeline=self.beside_timeline, **folder)

    def _stage(self, name: str, unit: str) -> Stage:
        """Return the stage `name`, in the window that counts `unit`, with the options chosen for it."""
        kind = kind_of(unit, name)
        foreign = self._changed(options_of(*KINDS, RangeOptions).keys() - _options_of(kind).keys())
        # With two windows a choice belongs to the stage that knows it, with one it has to fit.
        if foreign and len(self.windows) < 2:
            owners = joined(AND, (other.KIND for other in KINDS if foreign[0] in _options_of(other)))
            where, option = f"--stage {name}" if unit == WHOLE else f"--{unit}", flag(foreign[0])
            cause = Text("{option} works only with {kinds} stages, but {selection} selects another kind of stage")
            cause = cause.filled(option=option, kinds=owners, selection=where)
            raise usage(cause, Text("leave out {option}", option))
        if not issubclass(kind, WindowedStage):
            return kind(name=name, **self._chosen(kind))
        window = next((window for window in self.windows if window.unit == unit), Window(unit, 0, 0, none=True))
        return kind(name=name, window=window, ranges=RangeOptions(**self._chosen(RangeOptions)), **self._chosen(kind))

    def _chosen(self, part: type) -> dict[str, Any]:
        """Return the chosen options that the class `part` declares, in the order of its fields."""
        return {name: self.choices[name] for name in options_of(part) if name in self.choices}

    def _changed(self, names: Collection[str]) -> list[str]:
        """Return the options among `names` that were chosen with another value than the default."""
        return [name for name in self.choices if name in names and self.choices[name] != OPTIONS[name].default]

    @property
    def window_flags(self) -> str:
        """Options of the windows, joined by "and", for messages."""
        return joined(AND, (f"--{window.unit}" for window in self.windows))


def _options_of(kind: type[Stage]) -> dict[str, OptionSpec]:
    """Return the options of a kind of stage, with those of ranges if the stage has a window."""
    return options_of(kind, RangeOptions) if issubclass(kind, WindowedStage) else options_of(kind)


def resolve(
    request: ProfileRequest, upstream: Upstream, target: Target, all_upstreams: AllUpstreams = tuple
) -> ProfileConfig[Stage]:
    """Return the configuration that the request means for `target`.

    Of several windows, the first that the target supports counts. The stage is the chosen one, else the default for the
    kind of window, else the first stage that has this kind. The tool follows from the packages in the target's
    environment. Raises Problem: USAGE for options that do not fit, NO_RECIPE for a stage that the project lacks.
    """
    on_demand = [kind.UNITS[0].name for kind in KINDS if kind.UNITS and request.choices.get("on_demand")]
    recipes: Sequence[Recipe] = upstream.recipes
    # In a command of several targets the stage may be that of another one.
    if request.stage in {recipe.stage for recipe in recipes} or not (request.windows or on_demand):
        recipes = recipes_of(upstream, request.stage, all_upstreams)
    tool = next((name for package, name in upstream.runs_on.items() if target.beside(package)), upstream.tool)
    _check_device(request, upstream, target)
    for unit in [window.unit for window in request.windows] or on_demand or [WHOLE]:
        counting = [recipe.stage for recipe in recipes if unit in recipe.windows]
        if counting:
            usual = kind_of(unit).NAMES[0]
            return request.config(usual if usual in counting else counting[0], unit, tool)
    raise _window_problem(request, upstream, recipes, all_upstreams)


def _check_device(request: ProfileRequest, upstream: Upstream, target: Target) -> None:
    """Raise Problem (USAGE) for `--tool nsys` if the target runs on NPUs, by its project or its environment."""
    on_npus = target.beside("torch_npu") or "torch" not in {upstream.tool, *upstream.runs_on.values()}
    if request.choices.get("tool") == NsysSettings.TOOL and on_npus:
        cause = Text("--tool nsys: {target} runs on Ascend NPUs here, and nsys records only NVIDIA GPUs")
        raise usage(cause.filled(upstream.project.name), "--tool npu")


def supports_any(request: ProfileRequest, upstream: Upstream) -> bool:
    """Tell whether `upstream` supports the stage of the request or at least one of its windows."""
    units = {window.unit for window in request.windows}
    if request.choices.get("on_demand") and not units:
        units |= {kind.UNITS[0].name for kind in KINDS if kind.UNITS}
    return any(recipe.stage == request.stage or not units.isdisjoint(recipe.windows) for recipe in upstream.recipes)


def has_stage(request: ProfileRequest, upstream: Upstream) -> bool:
    """Tell whether `upstream` has the very stage of the request, in its window if there is one."""
    units = {window.unit for window in request.windows}
    return any(recipe.stage == request.stage and units.issubset(recipe.windows) for recipe in upstream.recipes)


def _window_problem(
    request: ProfileRequest, upstream: Upstream, recipes: Sequence[Recipe], all_upstreams: AllUpstreams
) -> Problem:
    """Return the problem that `recipes` support none of the request's windows, or need one that it lacks."""
    where: str = upstream.project.name
    if request.stage:
        if request.stage not in {recipe.stage for recipe in recipes}:
            return stage_problem(request.stage, [upstream], all_upstreams)
        where = Text("stage {stage} of {target}", stage=request.stage, target=where)
    offered = dict.fromkeys(unit for recipe in recipes for unit in recipe.windows)
    windows = ", ".join(typed_as(unit) for unit in offered if unit != WHOLE)
    hint = windows or Text("leave out the window, because this stage is always recorded as a whole")
    cause = Text("{stage} needs a recording window", where)
    if request.windows:
        cause = Text("{stage} does not support {windows}", stage=where, windows=request.window_flags)
    units = {window.unit for window in request.windows}
    reasons = dict.fromkeys(gap.reason for gap in upstream.gaps if gap.unit in units)
    return usage(cause, hint, notes=tuple(line for reason in reasons for line in reason.lines))


def recipes_of(upstream: Upstream, stage: str, all_upstreams: AllUpstreams = tuple) -> list[Recipe]:
    """Return the recipes of a stage in a project. Raises Problem (NO_RECIPE) if there are none."""
    recipes = [recipe for recipe in upstream.recipes if recipe.stage == stage]
    if not recipes:
        raise stage_problem(stage, [upstream], all_upstreams)
    return recipes


def stage_problem(stage: str, upstreams: Sequence[Upstream], all_upstreams: AllUpstreams) -> Problem:
    """Return the Problem (NO_RECIPE) that no project of `upstreams` has the stage, and which others do."""
    names = joined(AND, dict.fromkeys(upstream.project.name for upstream in upstreams))
    if stage == BUILTIN:
        cause = Text("--builtin is not available for {targets}", names)
        hint = Text(
            "leave this target out; the targets that support --builtin have the stage “builtin” in the output of"
            " `rlpatch list`"
        )
        return Problem(Kind.NO_RECIPE, cause, hint=hint)
    offered = dict.fromkeys(recipe.stage for upstream in upstreams for recipe in upstream.recipes)
    offering = all_upstreams()
    owners = [other.project.name for other in offering if stage in {recipe.stage for recipe in other.recipes}]
    cause = Text("{targets}: the stage {stage} is not available", targets=names, stage=stage)
    if owners:
        cause = Text("{targets}: the stage {stage} is not available; targets with this stage: {others}")
        cause = cause.filled(targets=names, stage=stage, others=", ".join(owners))
    elif offering:
        cause = Text("no target has the stage {stage}", stage)
    import difflib  # noqa: PLC0415  (1 ms, only where a stage is wrong)

    near = difflib.get_close_matches(stage, offered, 1)
    choice = Text("choose one of {stages}", ", ".join(offered))
    return Problem(Kind.NO_RECIPE, cause, hint=f"--stage {near[0]}" if near else choice)
