"""``rlpatch report``."""

from __future__ import annotations

from pathlib import Path

from patcher.cli import options
from patcher.cli.reports.reporting import READING, paths
from patcher.commands.reports import reporting
from patcher.commands.reports.reporting import ReadOptions
from patcher.messages.report import CommandResult


@options.command("report", paths("PATH..."), groups=(READING,))
def command(paths: tuple[Path, ...], options: ReadOptions) -> CommandResult:
    """Say where the time of the recorded units went, and what there is to gain.

    PATH is a trace of torch.profiler (.json, .json.gz), a parsed *_ascend_pt folder, a database of it, or a folder that
    holds such. Several ranks of one run make one report.

    \b
    Examples:
      rlpatch report rlpatch_traces
      rlpatch report rlpatch_traces -o report.html
      rlpatch report rank0_ascend_pt rank1_ascend_pt --units 30:60 --json
    """
    return reporting.report(paths, options)
