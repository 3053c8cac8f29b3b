"""The options that say what to record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from patcher.capture import AIC_METRICS, BACKENDS, CONTENTS, EXPORT_TYPES, LEVELS, UNITS, Capture, Window
from patcher.cli import options
from patcher.errors import Kind, Problem

if TYPE_CHECKING:
    from patcher.recipe import Upstream

window = options.together(
    click.option("--stage", default="rollout", show_default=True, help="The part of the RL loop to record."),
    click.option("--decode", metavar="A:B", help="Record decode steps A to B-1; step n produces response token n."),
    click.option("--prefill", metavar="A:B", help="Record iterations that still prefill something, counted from 0."),
    click.option("--iterations", metavar="A:B", help="Record iterations of any kind, counted from 0."),
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
        help="Record the window in this many rollouts.",
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
    click.option("--export-type", type=click.Choice(EXPORT_TYPES), help="Default for npu: text."),
    click.option("--aic-metrics", metavar="NAME", help="AI Core metrics; default from level1 on: pipe_utilization."),
    click.option("--l2-cache", is_flag=True, help="Record L2 cache hits."),
    click.option("--mstx", is_flag=True, help="Record mstx marks."),
    click.option("--analysis/--no-analysis", default=False, help="Parse the trace in the run; default: offline."),
    click.option("--save-path", metavar="DIR", help="Default: rlpatch_traces in the working directory."),
)


def given() -> list[str]:
    """The names of the options of this module that stand on the command line."""
    context = click.get_current_context()
    ours = {*UNITS, *(field.name for field in fields(Capture))}
    typed = click.core.ParameterSource.COMMANDLINE
    return [name for name in context.params if name in ours and context.get_parameter_source(name) is typed]


def capture_for(words: dict[str, Any]) -> Callable[[Upstream], Capture]:
    """Turns the options into a capture, once the project is known; Problem (USAGE) for what cannot be recorded."""
    import os

    chosen = {unit: words[unit] for unit in UNITS if words[unit] is not None}
    if len(chosen) != 1:
        said = "no window is given" if not chosen else f"{len(chosen)} windows are given, and a stage has one"
        raise Problem(Kind.USAGE, said, hint="one of --decode 30:60, --prefill 0:4, --iterations 10:20")
    chosen_window = Window.parse(*next(iter(chosen.items())))
    contents = _listed(words["contents"], "contents", CONTENTS)
    metrics = words["aic_metrics"] or ""
    if metrics and metrics not in AIC_METRICS:
        missing = "" if metrics != "memory_access" else ", which torch_npu 2.1 does not have,"
        raise Problem(
            Kind.USAGE,
            f"--aic-metrics {metrics}{missing} is not offered",
            hint=f"one of {', '.join(AIC_METRICS)}",
        )
    same = ("stage", "rollout", "repeat", "warmup", "l2_cache", "mstx", "analysis")

    def capture(upstream: Upstream) -> Capture:
        return Capture(
            chosen_window,
            os.path.realpath(words["save_path"] or "rlpatch_traces"),  # torch_npu refuses a symbolic link
            ranks=_ranks(words["ranks"]),
            backend=words["backend"] or upstream.backend,
            level=words["level"] or "",
            contents=contents,
            export_type=words["export_type"] or "",
            aic_metrics=metrics,
            **{name: words[name] for name in same},
        )

    return capture


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
