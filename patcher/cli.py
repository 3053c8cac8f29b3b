"""The command line: options, help and exit codes. What the commands do stands in ``patcher.commands``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from patcher import __version__
from patcher.errors import Kind, Problem

if TYPE_CHECKING:
    from patcher.capture import Capture
    from patcher.commands.asked import Launch, Where
    from patcher.recipe import Upstream
    from patcher.report import Report

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Group(click.Group):
    """Keeps the words after ``--`` as they are: they are the command that starts the run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["launch"] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)  # in the order of use, not of the alphabet


@click.group(cls=_Group, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", prog_name="rlpatch")
def rlpatch() -> None:
    r"""Put an exact profiler window into installed vLLM, SGLang and verl sources, review it, take it out again.

    \b
    Examples:
      rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60
      rlpatch diff
      rlpatch status
      rlpatch revert
    """


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_output = _options(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an unexpected failure."),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Default: on a terminal, unless NO_COLOR is set.",
    ),
)
_where = _options(
    click.option(
        "--path",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Site-packages, unpacked wheel or checkout that holds the package.",
    ),
    click.option("--python", metavar="EXE", help="Look in the environment of this interpreter."),
)
_dry_run = click.option("-n", "--dry-run", is_flag=True, help="Say what would be done and write nothing.")
_launch = click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The launch script to look for other profilers in.",
)
_capture = _options(
    click.option("--stage", default="rollout", show_default=True, help="The part of the RL loop to record."),
    click.option("--role", default="", help="The role whose stage is recorded; for training stages."),
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
    click.option("--backend", type=click.Choice(["npu", "torch"]), help="torch_npu.profiler or torch.profiler."),
    click.option(
        "--level",
        type=click.Choice(["level_none", "level0", "level1", "level2"]),
        help="Default for npu: level1.",
    ),
    click.option(
        "--contents",
        metavar="LIST",
        default="npu,cpu",
        show_default=True,
        help="Of npu, cpu, memory, shapes, module, stack.",
    ),
    click.option("--export-type", type=click.Choice(["text", "db"]), help="Default for npu: text."),
    click.option("--aic-metrics", metavar="NAME", help="AI Core metrics; default from level1 on: pipe_utilization."),
    click.option("--l2-cache", is_flag=True, help="Record L2 cache hits."),
    click.option("--mstx", is_flag=True, help="Record mstx marks."),
    click.option("--analysis/--no-analysis", default=False, help="Parse the trace in the run; default: offline."),
    click.option("--save-path", metavar="DIR", help="Default: rlpatch_traces in the working directory."),
)
_UNITS = ("decode", "prefill", "iterations")


def _capture_for(words: dict[str, Any]) -> Callable[[Upstream], Capture]:
    """Turns the options into a capture, once the project is known; Problem (USAGE) for what cannot be recorded."""
    import os

    from patcher.capture import AIC_METRICS, CONTENTS, Capture, Window

    chosen = {unit: words[unit] for unit in _UNITS if words[unit] is not None}
    if len(chosen) != 1:
        said = "no window is given" if not chosen else f"{len(chosen)} windows are given, and a stage has one"
        raise Problem(Kind.USAGE, said, hint="one of --decode 30:60, --prefill 0:4, --iterations 10:20")
    window = Window.parse(*next(iter(chosen.items())))
    contents = _list(words["contents"], "contents", CONTENTS)
    metrics = words["aic_metrics"] or ""
    if metrics and metrics not in AIC_METRICS:
        missing = "" if metrics != "memory_access" else ", which torch_npu 2.1 does not have,"
        raise Problem(
            Kind.USAGE,
            f"--aic-metrics {metrics}{missing} is not offered",
            hint=f"one of {', '.join(AIC_METRICS)}",
        )
    same = ("stage", "role", "rollout", "repeat", "warmup", "l2_cache", "mstx", "analysis")

    def capture(upstream: Upstream) -> Capture:
        return Capture(
            window,
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


def _list(text: str, option: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
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


def _place(options: dict[str, Any]) -> Where:
    from patcher.commands.asked import Where

    return Where(options.pop("path"), options.pop("python"))


def _start(options: dict[str, Any]) -> Launch:
    import os

    from patcher.commands.asked import Launch

    return Launch(os.environ, options.pop("script"), click.get_current_context().find_root().meta.get("launch", ()))


def _run(command: str, options: dict[str, Any], work: Callable[[], Report]) -> NoReturn:
    """Run ``work``, show its report, and exit with its code; every failure ends as a report, too."""
    from patcher.report import Report

    as_json, quiet, verbose, color = (options.pop(name) for name in ("as_json", "quiet", "verbose", "color"))
    try:
        report = work()
    except Problem as problem:
        report = Report(command, problems=[problem])
    except KeyboardInterrupt:
        report = Report(command, problems=[Problem(Kind.INTERRUPTED, "nothing was changed")])
    except Exception as error:
        if verbose:
            raise
        cause = f"{type(error).__name__}: {error}"
        report = Report(
            command,
            problems=[Problem(Kind.UNEXPECTED, cause, hint="the same command with -v shows where; please report it")],
        )
    report.show(as_json=as_json, quiet=quiet, color={"always": True, "never": False}.get(color))
    sys.exit(report.exit_code)


def _wait(message: str) -> None:
    click.echo(message, err=True)


@rlpatch.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET[==VERSION]...")
@_capture
@_where
@_launch
@click.option("--force", is_flag=True, help="Patch although another profiler is switched on.")
@_dry_run
@_output
def apply(targets: tuple[str, ...], **options: Any) -> None:
    r"""Patch TARGETs, all of them or none. Words after `--` are the command that will start the run.

    \b
    Examples:
      rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60
      rlpatch apply vllm-ascend --prefill 0:4 --ranks all --rollout 2
      rlpatch apply vllm-ascend --decode 30:60 --path /vllm-workspace/vllm-ascend
      rlpatch apply vllm-ascend --decode 30:60 -- bash run_grpo.sh
    """
    from patcher.commands import applying

    def work() -> Report:
        place, launch = _place(options), _start(options)
        capture = _capture_for(options)
        return applying.apply(
            targets, place, capture, launch, dry_run=options["dry_run"], force=options["force"], on_wait=_wait
        )

    _run("apply", options, work)


@rlpatch.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@_capture
@_where
@_output
def diff(targets: tuple[str, ...], **options: Any) -> None:
    r"""Show what is applied, or with a window what would be, from pristine to patched; `git apply` takes it.

    \b
    Examples:
      rlpatch diff
      rlpatch diff vllm-ascend --decode 30:60
      rlpatch diff --path /vllm-workspace/vllm-ascend | git apply --check -R
    """
    from patcher.commands import looking

    def work() -> Report:
        asked = any(options[unit] is not None for unit in _UNITS)
        if asked and not targets:
            raise Problem(
                Kind.USAGE, "a window is given, but no target", hint="rlpatch diff vllm-ascend --decode 30:60"
            )
        return looking.diff(targets, _place(options), _capture_for(options) if asked else None)

    _run("diff", options, work)


@rlpatch.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--stage", help="Only this stage.")
@_where
@_dry_run
@_output
def revert(targets: tuple[str, ...], **options: Any) -> None:
    r"""Take every patch out again, or those of TARGETs; lines of others stay as they are.

    \b
    Examples:
      rlpatch revert
      rlpatch revert vllm-ascend --path /vllm-workspace/vllm-ascend
    """
    from patcher.commands import applying

    def work() -> Report:
        return applying.revert(targets, _place(options), options["stage"], dry_run=options["dry_run"], on_wait=_wait)

    _run("revert", options, work)


@rlpatch.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@_where
@_output
def status(targets: tuple[str, ...], **options: Any) -> None:
    r"""Say what is patched where, since when, and whether it is still intact.

    \b
    Examples:
      rlpatch status
      rlpatch status --python /opt/venv/bin/python --json
    """
    from patcher.commands import looking

    _run("status", options, lambda: looking.status(targets, _place(options)))


@rlpatch.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@_launch
@_where
@_output
def check(targets: tuple[str, ...], **options: Any) -> None:
    r"""Look for other profilers that are, or could be, switched on: environment, script, command after `--`.

    \b
    Examples:
      rlpatch check
      rlpatch check vllm-ascend --script run_grpo.sh
      rlpatch check vllm-ascend -- bash run_grpo.sh
    """
    from patcher.commands import guarding

    def work() -> Report:
        place, launch = _place(options), _start(options)
        return guarding.check(targets, place, launch)

    _run("check", options, work)


@rlpatch.command("list")
@_output
def list_(**options: Any) -> None:
    r"""Show the targets, releases, stages and windows that there are recipes for.

    \b
    Example:
      rlpatch list
    """
    from patcher import tables
    from patcher.commands import knowledge

    def work() -> Report:
        report = knowledge.listing()
        report.lines = tables.releases(report.data)
        return report

    _run("list", options, work)


@rlpatch.command()
@click.argument("target", metavar="TARGET[==VERSION]")
@_where
@_output
def explain(target: str, **options: Any) -> None:
    r"""Say where the code goes in for TARGET and why, and what the release can do by itself.

    \b
    Examples:
      rlpatch explain vllm-ascend
      rlpatch explain vllm-ascend==0.30.0rc2
    """
    from patcher.capture import Capture, Window
    from patcher.commands import knowledge

    def capture(upstream: Upstream) -> Capture:
        return Capture(Window("decode", 30, 60), "/tmp/rlpatch_traces", backend=upstream.backend)  # noqa: S108  (never opened)

    _run("explain", options, lambda: knowledge.explain(target, _place(options), capture))


@rlpatch.command()
@_where
@_output
def recover(**options: Any) -> None:
    r"""Finish or undo a run that was interrupted (kill -9, power cut); the next command does so by itself.

    \b
    Example:
      rlpatch recover
    """
    from patcher.commands import applying

    _run("recover", options, lambda: applying.recover(_place(options), _wait))


@rlpatch.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    r"""Print the completion script for a shell.

    \b
    Examples:
      eval "$(rlpatch completion bash)"
      rlpatch completion fish > ~/.config/fish/completions/rlpatch.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (the choice lists click's own shells)
    click.echo(kind(rlpatch, {}, "rlpatch", "_RLPATCH_COMPLETE").source())
