"""The options that say what to record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from patcher.capture import (
    AIC_METRICS,
    BACKENDS,
    BUILTIN,
    CONTENTS,
    EXPORT_TYPES,
    LEVELS,
    ROLES,
    ROLLOUT_UNITS,
    TRAINING_UNITS,
    UNITS,
    WHOLE,
    Capture,
    Window,
    option,
)
from patcher.cli import options
from patcher.errors import Kind, Problem

if TYPE_CHECKING:
    from patcher.commands.asked import Choice
    from patcher.recipe import Upstream
    from patcher.targets.target import Target

window = options.together(
    click.option("--stage", help="The part of the RL loop to record; default: the target's first that has the window."),
    click.option(
        "--builtin",
        is_flag=True,
        help="Change the settings of the framework's own profiler instead: those that are named, no others.",
    ),
    click.option("--decode", metavar="A:B", help="Record decode steps A to B-1; step n produces response token n."),
    click.option("--prefill", metavar="A:B", help="Record iterations that still prefill something, counted from 0."),
    click.option("--iterations", metavar="A:B", help="Record iterations of any kind, counted from 0."),
    click.option("--micro-batch", metavar="A:B", help="Record micro-batches A to B-1 of a training stage, from 0."),
    click.option("--mini-batch", metavar="A:B", help="Record mini-batches A to B-1 of an update, from 0."),
    click.option(
        "--role",
        type=click.Choice([*ROLES, "all"]),
        default="all",
        show_default=True,
        help="For whom a training stage works.",
    ),
    click.option(
        "--strategy",
        metavar="NAME",
        help="Patch only the classes of fsdp, megatron, ...; default: of all where the window can be had.",
    ),
    click.option(
        "--training-steps",
        metavar="LIST",
        default="1",
        show_default=True,
        help="Which training steps, counted from 1 in each process, such as 2,5.",
    ),
    click.option("--ranks", default="0", show_default=True, metavar="LIST", help="Global ranks, such as 0,8, or all."),
    click.option(
        "--rollout",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Which rollout, counted from 0.",
    ),
    click.option(
        "--repeat",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Record the window in this many rollouts or training steps in a row.",
    ),
    click.option(
        "--warmup",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        help="Units of warm-up before the window.",
    ),
    click.option("--backend", type=click.Choice(BACKENDS), help="torch_npu.profiler or torch.profiler."),
    click.option(
        "--level",
        type=click.Choice(LEVELS),
        help="Default for npu: level1.",
    ),
    click.option(
        "--contents",
        metavar="LIST",
        default="npu,cpu",
        show_default=True,
        help=f"Of {', '.join(CONTENTS)}.",
    ),
    click.option("--export-type", metavar="LIST", help="Of text, db; default for npu: text, with --module-ranges db."),
    click.option("--aic-metrics", metavar="NAME", help="AI Core metrics; default from level1 on: pipe_utilization."),
    click.option("--l2-cache/--no-l2-cache", default=False, help="Record L2 cache hits."),
    click.option("--mstx/--no-mstx", default=False, help="Record mstx marks."),
    click.option(
        "--markers",
        is_flag=True,
        help="Mark the rollout or training step and every unit of it: with --level level_none the cheapest look.",
    ),
    click.option("--module-ranges", is_flag=True, help="Mark every call of an nn.Module, for module_statistic."),
    click.option("--module-pattern", metavar="REGEX", help="Only modules whose class name matches."),
    click.option("--analysis/--no-analysis", default=False, help="Parse the trace in the run; default: offline."),
    click.option("--save-path", metavar="DIR", help="Default: rlpatch_traces in the working directory."),
)


def given() -> list[str]:
    """The names of the options of this module that stand on the command line."""
    context = click.get_current_context()
    ours = {*(_word(unit) for unit in UNITS), *(field.name for field in fields(Capture))}
    typed = click.core.ParameterSource.COMMANDLINE
    return [name for name in context.params if name in ours and context.get_parameter_source(name) is typed]


def _word(unit: str) -> str:
    return unit.replace("-", "_")


def choice(words: dict[str, Any]) -> Choice:
    """The choice that the options make; Problem (USAGE) for what cannot be recorded.

    Each target takes the window that one of its stages counts, so one command may patch a rollout and an update.
    """
    import os

    from patcher.commands.asked import Choice

    windows = [Window.parse(unit, words[_word(unit)]) for unit in UNITS if words[_word(unit)] is not None]
    for family in (ROLLOUT_UNITS, TRAINING_UNITS):
        if len([window for window in windows if window.unit in family]) > 1:
            said = " and ".join(f"--{window.unit}" for window in windows)
            raise Problem(Kind.USAGE, f"{said}: a stage has one window", hint="leave all but one out")
    builtin = words["builtin"] or words["stage"] == BUILTIN
    if builtin and (foreign := [name for name in given() if name not in (*Capture.SETTINGS, "builtin", "stage")]):
        said = " and ".join(f"--{name.replace('_', '-')}" for name in foreign)
        cause = f"{said}: --builtin changes the framework's own profiler, which has nothing of the kind"
        raise Problem(Kind.USAGE, cause, hint="leave out --builtin, or what is not a setting of that profiler")
    if builtin and words["stage"] not in (None, BUILTIN):
        cause = f"--builtin and --stage {words['stage']}: the framework's own profiler is a stage of its own"
        raise Problem(Kind.USAGE, cause, hint="leave out --builtin or --stage")
    stage = BUILTIN if builtin else words["stage"]
    if not windows and stage:
        windows = [Window.whole()]
    if not windows:
        example = "one of --decode 30:60, --prefill 0:4, --iterations 10:20, --mini-batch 0:1, --micro-batch 0:4"
        raise Problem(Kind.USAGE, "no window is given", hint=example)
    contents = _listed(words["contents"], "contents", CONTENTS)
    metrics = words["aic_metrics"] or ""
    if metrics and metrics not in AIC_METRICS:
        missing = "" if metrics != "memory_access" else ", which torch_npu 2.1 does not have,"
        raise Problem(
            Kind.USAGE,
            f"--aic-metrics {metrics}{missing} is not offered",
            hint=f"one of {', '.join(AIC_METRICS)}",
        )
    plain = ("rollout", "repeat", "warmup", "l2_cache", "mstx", "analysis", "markers", "module_ranges")
    chosen: dict[str, Any] = {
        **{name: words[name] for name in plain},
        **{name: words[name] or "" for name in ("strategy", "level", "module_pattern")},
        "export_type": _listed(words["export_type"] or "", "export-type", EXPORT_TYPES),
        "ranks": _ranks(words["ranks"]),
        "training_steps": _training_steps(words["training_steps"]),
        "role": "" if words["role"] == "all" else words["role"],
        "contents": contents,
        "aic_metrics": metrics,
        "settings": tuple(name for name in Capture.SETTINGS if name in given()) if builtin else (),
    }
    both = len(windows) > 1

    def capture(upstream: Upstream, target: Target) -> Capture:
        window, named = _stage(upstream, windows, stage)
        # With two windows an option belongs to the stage that knows it, with one it has to fit.
        foreign = Capture.TRAINING_ONLY if window.unit in ROLLOUT_UNITS else Capture.ROLLOUT_ONLY
        return Capture(
            window,
            os.path.realpath(words["save_path"] or "rlpatch_traces"),  # torch_npu refuses a symbolic link
            stage=named,
            backend=words["backend"] or _backend(upstream, target),
            **{name: value for name, value in chosen.items() if not (both and name in foreign)},
        )

    return Choice(stage, tuple(windows), capture)


def _backend(upstream: Upstream, target: Target) -> str:
    """The one that the environment of the target decides for, else the project's default."""
    return next((name for package, name in upstream.runs_on.items() if target.beside(package)), upstream.backend)


def _stage(upstream: Upstream, windows: list[Window], stage: str | None) -> tuple[Window, str]:
    """The one of ``windows`` that ``upstream`` counts, and its stage: the named one, else the first that has it."""
    name = upstream.project.name
    stages = dict.fromkeys(recipe.stage for recipe in upstream.recipes)
    wanted = (stage,) if stage in stages else ()  # in a command of several targets it may be that of another one
    for window in windows:
        # A stage without a window is named: another one of its kind cannot stand in for it.
        fitting = stages if not wanted and window.unit != WHOLE else wanted
        for recipe in upstream.recipes:
            if window.unit in recipe.windows and recipe.stage in fitting:
                return window, recipe.stage
    if stage == BUILTIN and not wanted:
        hint = "leave it out of this command; rlpatch list shows the targets that have the stage builtin"
        raise Problem(Kind.NO_RECIPE, f"{name} has no --builtin: no recipe sets up its own profiler", hint=hint)
    if stage and not wanted:
        raise Problem(Kind.NO_RECIPE, f"{name} has no stage {stage}", hint=f"one of: {', '.join(stages)}")
    offered = dict.fromkeys(
        unit for recipe in upstream.recipes if recipe.stage in (wanted or stages) for unit in recipe.windows
    )
    where = f"the stage {stage} of {name}" if wanted else name
    if windows == [Window.whole()]:
        raise Problem(Kind.USAGE, f"{where} is recorded in a window, and none is given", hint=_offered(offered))
    said = " and ".join(f"--{window.unit}" for window in windows)
    raise Problem(Kind.USAGE, f"{where} has no {said}", hint=_offered(offered))


def _offered(units: Iterable[str]) -> str:
    windows = [option(unit) for unit in units if unit != WHOLE]
    return ", ".join(windows) or "leave the window out: the stage is recorded as a whole"


def _training_steps(text: str) -> tuple[int, ...]:
    try:
        steps = tuple(sorted({int(item) for item in text.split(",")}))
    except ValueError:
        steps = (0,)
    if steps[0] < 1:
        cause = f"--training-steps {text}: not a list of training steps, which are counted from 1"
        raise Problem(Kind.USAGE, cause, hint="--training-steps 1 or --training-steps 2,5")
    return steps


def _listed(text: str, option: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    items = tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if unknown := [item for item in items if item not in allowed]:
        raise Problem(
            Kind.USAGE,
            f"--{option} {text}: {', '.join(unknown)} is not known",
            hint=f"of {', '.join(allowed)}",
        )
    return tuple(item for item in allowed if item in items)


def _ranks(text: str) -> tuple[int, ...] | None:
    if text.strip() == "all":
        return None
    try:
        ranks = tuple(sorted({int(item) for item in text.split(",")}))
    except ValueError:
        ranks = (-1,)
    if ranks[0] < 0:
        raise Problem(Kind.USAGE, f"--ranks {text}: not a list of ranks", hint="--ranks 0,8 or --ranks all")
    return ranks
