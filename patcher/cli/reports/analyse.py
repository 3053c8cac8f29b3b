"""``rlpatch analyse``."""

from __future__ import annotations

from pathlib import Path

import click

from patcher.cli import options, terminal
from patcher.cli.options import Group, Option
from patcher.cli.reports.traces import folder as traces_folder
from patcher.commands.reports import tracing
from patcher.commands.reports.tracing import ParseOptions
from patcher.messages import CommandResult
from patcher.options.headings import PARSED

PARSE = Group(
    "parse",
    lambda values: options.build(ParseOptions, values, patience=values["patience"]),
    *options.click_options(ParseOptions),
    Option(
        ["--timeout", "patience"],
        heading=PARSED,
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        metavar="SECONDS",
        help="Stop a parsing process that hangs: one that neither computes nor writes for this many seconds."
        " Default: 600.",
    ),
)


@options.command("analyse", traces_folder(), groups=(PARSE,))
def command(folder: Path, parse: ParseOptions) -> CommandResult:
    """Parse what torch_npu recorded, with the same torch_npu, and show how to open the result.

    DIR is a single trace, or the folder with the traces; default: rlpatch_traces in the working directory. Traces of
    torch.profiler need no parsing. If parsing fails, an earlier result stays as it was.

    \b
    Examples:
      rlpatch analyse
      rlpatch analyse /data/traces --python /opt/venv/bin/python
      rlpatch analyse --export text,db
    """
    return tracing.analyse(folder, parse, terminal.working, terminal.reading)
