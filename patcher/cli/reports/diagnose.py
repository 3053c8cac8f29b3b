"""``rlpatch diagnose``."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from patcher.cli import options, terminal
from patcher.cli.launch import LAUNCH
from patcher.cli.options import Group, Option, switch
from patcher.cli.reports.report import CSV, page_option, run_option
from patcher.cli.search import SEARCH
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import running
from patcher.config import TrainingStage, Window
from patcher.config.profilers import TorchNpuSettings, TorchSettings
from patcher.guards.result import Launch
from patcher.messages import CommandResult, Kind, Problem, Text, tables, usage
from patcher.messages.language import translate
from patcher.options.headings import PROFILERS, READ
from patcher.request import ProfileRequest
from patches import projects

STUDIED_SYNC = 2
"""The weight sync that is recorded: the first ones warm up."""

NEEDED = ("numpy",)
"""Packages that the diagnosis computes with; they come with the extra ``diagnose``."""


class DiagnoseOptions(NamedTuple):
    """Choices for `diagnose`; `tool` None is that of the target's environment, `page` and `csv` are files."""

    run: int | None
    rounds: int
    steps: int | None
    once: bool
    tool: str | None
    save_path: Path
    page: Path | None
    csv: Path | None


OPTIONS = Group(
    "chosen",
    lambda values: DiagnoseOptions(**values),
    run_option("Which run to read, if the folder has several. Default: the newest."),
    Option(
        ["--rounds"],
        heading=READ,
        type=click.IntRange(1, 20),
        default=3,
        metavar="N",
        help="Request windows from the workers at most N times in the run. Default: 3.",
    ),
    Option(
        ["--steps"],
        heading=READ,
        type=click.IntRange(1),
        metavar="N",
        help="End the command after N training steps, or after N rollouts if no trainer marks steps.",
    ),
    switch(READ, "Read only the existing data; do not ask running workers to record windows.", "--once"),
    Option(
        ["--tool"],
        heading=READ,
        type=click.Choice((TorchNpuSettings.TOOL, TorchSettings.TOOL)),
        help=(
            "Record the windows with this profiler. Default: torch_npu.profiler if the target's environment has"
            " torch_npu, otherwise torch.profiler."
        ),
    ),
    options.save_path("Write the timeline and the traces of the command to this folder. Default: rlpatch_traces."),
    page_option("Write a self-contained HTML page."),
    CSV,
)

FORCE = switch(PROFILERS, "Run the command even if another profiler is switched on.", "--force")


@options.command("diagnose", options.targets("[DIR | TARGET...]"), FORCE, groups=(OPTIONS, SEARCH, LAUNCH))
def command(
    targets: tuple[str, ...], chosen: DiagnoseOptions, search: SearchOptions, launch: Launch, force: bool
) -> CommandResult:
    """Estimate where the time of training steps goes, by kind of kernel, from a few recorded iterations.

    The timeline gives the duration of every iteration and micro-batch. A profiler records only a few iterations and
    micro-batches: they show what kinds of kernels take the time.

    If a command follows `--`, rlpatch runs the command with patched TARGETs. During the run, rlpatch chooses the
    windows and asks the workers to record them.

    Without a command, rlpatch reads DIR, the folder of the traces; default: rlpatch_traces in the working directory. If
    the run is still going, rlpatch asks the run's workers to record the windows that are missing. This needs a run that
    was patched with `--timeline --on-demand`.

    Ctrl-C ends the diagnosis, not the run, and shows the results so far. A second Ctrl-C ends rlpatch.

    The diagnosis checks itself: it leaves out shares of time for which the recorded windows are too little
    evidence.

    \b
    Examples:
      rlpatch diagnose vllm verl -- bash run_grpo.sh
      rlpatch diagnose vllm verl --steps 6 -o step.html -- bash run_grpo.sh
      rlpatch diagnose
      rlpatch diagnose /data/rlpatch_traces --once --json
    """
    _require_packages()
    if launch.command:
        return _diagnose_command(targets, chosen, search, launch, force=force)
    are_targets = bool(targets) and all(word in projects.names() and not Path(word).exists() for word in targets)
    if are_targets or len(targets) > 1:
        cause = Text("the command to run is missing: type it after `--`")
        raise usage(cause, f"{search.again({})} -- bash run.sh")
    example = "rlpatch diagnose vllm -- bash run.sh"
    if chosen.steps is not None:
        cause = Text("--steps needs a command after `--`, because --steps tells when to end that command")
        raise usage(cause, example)
    if chosen.tool is not None:
        raise usage(Text("--tool is for the command after `--`, but no command was typed"), example)
    folder = Path(targets[0]) if targets else chosen.save_path
    from patcher.commands.diagnosis import asked, following, reading

    notes: tuple[str, ...] = ()
    if not chosen.once and asked.has_live_on_demand_worker(folder):
        say = _progress_printer()
        follower = following.Follower(folder.resolve(), chosen.rounds, say)
        going_on = Text(
            "the run is still going: rlpatch asks the run's workers to record windows; Ctrl-C ends the diagnosis, not"
            " the run"
        )
        say(going_on)
        following.wait(follower)
        notes = tuple(follower.notes())
    output = reading.Output(chosen.page, chosen.csv)
    result = reading.diagnose(folder, chosen.run, terminal.reading, tables.room(), output)
    for note in notes:
        result.note(note)
    return result


def _diagnose_command(
    targets: tuple[str, ...], chosen: DiagnoseOptions, search: SearchOptions, launch: Launch, *, force: bool
) -> CommandResult:
    """Return a result whose `then` runs the command of `launch` and diagnoses it meanwhile."""
    from patcher.commands.diagnosis import following, reading
    from patcher.commands.diagnosis.beside import DiagnosisBeside

    folder, say = chosen.save_path.resolve(), _progress_printer()
    choices = {"save_path": str(folder)} | ({"tool": chosen.tool} if chosen.tool else {})
    request = ProfileRequest((), {"timeline": True, "save_path": str(folder)}, _optional_requests(choices))

    def meanwhile(show: running.Show) -> DiagnosisBeside:
        follower = following.Follower(folder, chosen.rounds, say, time.time(), chosen.steps)
        return DiagnosisBeside(follower, reading.Output(chosen.page, chosen.csv), show)

    return running.run(
        targets, search, request.checked(), launch, dry_run=False, force=force, require=False, meanwhile=meanwhile
    )


def _optional_requests(choices: Mapping[str, str]) -> tuple[ProfileRequest, ...]:
    """Return a request for each stage to record windows on demand, and one for a weight sync, with `choices` in each.

    Their windows are beside a timeline: they note their pauses there, and each step's iteration.
    """
    units = {"rollout": "iterations", **dict.fromkeys(TrainingStage.NAMES, "micro-batch")}
    on_demand = (
        ProfileRequest((Window(unit, 0, 0, none=True),), {"stage": stage, "on_demand": True, **choices})
        for stage, unit in units.items()
    )
    requests = (*on_demand, ProfileRequest((), {"stage": "weight-sync", "sync": STUDIED_SYNC, **choices}))
    return tuple(request._replace(beside_timeline=True) for request in requests)


def _progress_printer() -> Callable[[str], None]:
    """Return a function that prints a line of progress to stderr, from any thread; nothing with `-q`."""
    quiet = options.quiet()

    def say(text: str) -> None:
        if not quiet:
            click.echo(translate(Text("rlpatch diagnose: {message}", text)), err=True)

    return say


def _require_packages() -> None:
    """Raise Problem (ENVIRONMENT) unless the packages are installed that the diagnosis computes with."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        cause = Text("diagnose needs {packages}, which rlpatch's environment lacks", " and ".join(missing))
        raise Problem(Kind.ENVIRONMENT, cause, hint=f"pip install {' '.join(missing)}")
