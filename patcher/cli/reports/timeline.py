"""``rlpatch timeline``."""

from __future__ import annotations

from pathlib import Path

import click

from patcher.cli import options, terminal
from patcher.cli.options import Group, Option, typed_words
from patcher.cli.reports.report import CSV, half_open, page_option, run_option
from patcher.cli.reports.traces import folder
from patcher.cli.search import CLUSTER, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.reports import timelines
from patcher.commands.reports.timelines import TimelineOptions
from patcher.messages import CommandResult, StepResult, tables
from patcher.options.headings import OUTPUT, READ

FILE = click.Path(dir_okay=False, path_type=Path)

READING = Group(
    "options",
    lambda values: TimelineOptions(**values),
    Option(["--steps"], heading=READ, callback=half_open, metavar="A:B", help="Show only these training steps."),
    run_option("Which run to show, if the folder has several."),
    page_option("Write a self-contained HTML page, below 2 MB."),
    CSV,
    Option(["--perfetto"], heading=OUTPUT, type=FILE, metavar="FILE.json", help="Write a trace for ui.perfetto.dev."),
)


@options.command("timeline", folder(), groups=(READING, CLUSTER))
def command(folder: Path, options: TimelineOptions, cluster: ClusterOptions) -> CommandResult:
    """Join the records that the processes of a run wrote with --timeline. Show where the time of each step went and
    what limited the step.

    DIR is the folder of the traces; default: rlpatch_traces in the working directory. The folder can be read
    while the run goes on, and may contain the folders of several machines. --ray first copies DIR from all nodes to
    this machine.

    \b
    Examples:
      rlpatch timeline
      rlpatch timeline /data/rlpatch_traces --steps 10:20 -v
      rlpatch timeline --run 2 --json
      rlpatch timeline -o step.html --perfetto step.json
      rlpatch timeline /data/rlpatch_traces --ray
    """
    with cluster.connected(SearchOptions(typed=typed_words())) as nodes:
        copied = nodes.gather(folder.absolute(), folder.absolute()) if nodes else StepResult()
    result = timelines.timeline(folder, options, terminal.reading, tables.room())
    result.add(copied._replace(lines=()))
    if not timelines.has_trainer(result.data):
        result.add(timelines.patch_trainer_lines(result.data, SearchOptions(typed=typed_words())))
    for line in copied.lines:
        result.note(line)
    return result
