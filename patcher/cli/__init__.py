"""The command line: which commands there are. Each is a module here; what it does stands in ``patcher.commands``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from patcher import __version__
from patches import projects

COMMANDS = {
    "apply": ("patching.apply", "Apply the patches of all targets, or of none."),
    "run": ("patching.run", "Run a command with patched targets, without changing any file."),
    "bundle": ("patching.bundle", "Write one file that patches targets on machines without rlpatch."),
    "diff": ("patching.diff", "Show every line that a patch has inserted or would insert."),
    "revert": ("patching.revert", "Remove patches."),
    "status": ("patching.status", "Show which files are patched, and whether they are intact."),
    "check": ("patching.check", "Look for other profilers that are switched on."),
    "list": ("about.listing", "Show targets, releases, stages and windows."),
    "explain": ("about.explain", "Show where rlpatch inserts code, and why."),
    "config": ("about.config", "Show the rlpatch configuration that applies in this folder."),
    "trust": ("about.trust", "Trust the interpreters that this folder's configuration names."),
    "recover": ("patching.recover", "Finish or undo an interrupted command."),
    "watch": ("workers.watch", "Show the state of every worker, and wait for the traces."),
    "trigger": ("workers.trigger", "Ask running workers to record a window."),
    "traces": ("reports.traces", "Show what was recorded, and whether it is complete."),
    "analyse": ("reports.analyse", "Parse what torch_npu recorded."),
    "report": ("reports.report", "Show from traces where the time of the recorded steps went."),
    "timeline": ("reports.timeline", "Show from a timeline where the time of each training step went."),
    "diagnose": ("reports.diagnose", "Estimate where step time went, from a sample of a few iterations."),
    "compare": ("reports.compare", "Show what changed between two recordings."),
    "demo": ("about.demo", "Patch a copy of a published release, and revert the patch."),
    "skill": ("about.skill", "Print instructions for a coding assistant."),
    "completion": ("about.completion", "Print the completion script for a shell."),
}
"""Name → module and a line of help; the module is imported when its command is used, which keeps the help quick."""

SECTIONS = ("Targets", "Commands")
"""The headings of the help of the whole."""

LAUNCHING = ("apply", "run", "check", "diagnose")
"""The commands that take the command of the run behind ``--``; to the others it means what it means everywhere."""


@contextmanager
def reported(ctx: click.Context, command: str = "") -> Iterator[None]:
    """Report a usage error, Problem or Ctrl-C of the body and end the process; re-raise other errors."""
    try:
        yield
    except click.exceptions.Exit:  # behind the help
        raise
    except (Exception, KeyboardInterrupt) as error:
        importlib.import_module("patcher.cli.usage").report_and_exit(error, ctx, command)
        raise


def with_language(ctx: click.Context) -> click.Context:
    """Return `ctx`, set to format help in Chinese if an environment variable asks for that language."""
    if any(value.lower().startswith("zh") for value in os.environ.values()):
        ctx.formatter_class = importlib.import_module("patcher.cli.translated").formatter()
    return ctx


class _Root(click.Group):
    """Command group that imports a command when it is used, and keeps the words after `--` for the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, and keep them as typed in `ctx.meta["typed"]`.

        For the commands of LAUNCHING, the words after a `--` are kept in `ctx.meta["launch"]`.
        """
        ctx.meta["typed"] = tuple(args)
        name = next((arg for arg in args if not arg.startswith("-")), "")
        if "--" in args and name in LAUNCHING:
            at = args.index("--")
            ctx.meta["launch"] = tuple(args[at + 1 :])
            args = args[:at]
        with reported(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with reported(ctx):
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, None if there is none with this name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"patcher.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(with_language(ctx))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the text of the help, then the list of targets."""
        import textwrap  # noqa: PLC0415  (the help alone needs it)

        super().format_help_text(ctx, formatter)
        with formatter.section(SECTIONS[0]):
            width = formatter.width - formatter.current_indent  # click alone would break names at their hyphens
            lines = textwrap.wrap(", ".join(projects.names()), width, break_on_hyphens=False)
            formatter.write_text("\b\n" + "\n".join(lines))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section(SECTIONS[1]):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, no_args_is_help=True
)
@click.version_option(__version__, "-V", "--version", prog_name="rlpatch")
def rlpatch() -> None:
    """Insert an exact profiler window into installed sources, review it, and remove it again.

    \b
    Examples:
      rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60
      rlpatch diff
      rlpatch status
      rlpatch revert
    """
