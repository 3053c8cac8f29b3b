"""The errors of a command line that cannot be read. Most can, so this is loaded only where one cannot."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import click

from patcher.cli import mistakes
from patcher.cli.options import COLORS, OutputOptions, print_and_exit
from patcher.messages import CommandLine, CommandResult, Message, Problem, Text, Warned, problem_of, usage


def report_and_exit(error: BaseException, ctx: click.Context, command: str) -> None:
    """Report a usage error, a Problem or Ctrl-C and end the process; return for any other error.

    The report includes the warnings of the configuration, and names its file if a word from it is wrong.
    """
    typed: Sequence[str] = ctx.meta.get("typed", ())
    notes: Sequence[Message] = ctx.meta.get("configured", ())
    if isinstance(error, click.UsageError):
        if type(error).__name__ == "NoArgsIsHelpError":  # click's own since 8.2: it is no error, and shows the help
            return
        problem = usage(_cause(error, typed), _hint(error, command, typed))
    elif isinstance(error, (Problem, KeyboardInterrupt)):
        problem = problem_of(error)
        word = problem.cause.split(" ")[0]
        added = [note.detail for note in notes if note.level == "note" and word in note.text.split()]
        if added and not problem.where:
            problem = problem.replace(where=added[0])
    else:
        return
    report = CommandResult(command, problems=[problem])
    report.notes += [note for note in notes if isinstance(note, Warned)]
    mistakes.correct(report, typed)
    print_and_exit(report, OutputOptions(as_json="--json" in typed, color=_color(typed)))


def _color(typed: Sequence[str]) -> bool | None:
    """Return the colour choice of `--color` in an unparsable command line; None if it is absent or "auto"."""
    before_separator = "\n".join(typed).partition("\n--\n")[0]
    colors = re.findall(r"^--color[=\n](.*)$", before_separator, re.MULTILINE)
    return COLORS.get(colors[-1]) if colors else None


def _cause(error: click.UsageError, typed: Sequence[str]) -> str:
    """Return what is wrong with a command line, as a translatable text for common errors, else in click's words."""
    if isinstance(error, click.NoSuchOption):
        return Text("No such option: {option}", error.option_name)
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        return Text("Missing argument {argument!r}.", error.param.human_readable_name)
    if error.ctx and isinstance(error.ctx.command, click.Group):
        word = _command_word(typed)
        if word not in error.ctx.command.list_commands(error.ctx):
            return Text("No such command {command!r}.", word)
    return error.format_message()


def _command_word(typed: Sequence[str]) -> str:
    return next((word for word in typed if not word.startswith("-")), "")


def _hint(error: click.UsageError, command: str, typed: Sequence[str]) -> str:
    """Return the command line that was probably meant, or a sentence with it, else the one that shows the help."""
    if error.ctx and isinstance(error.ctx.command, click.Group):
        word = _command_word(typed)
        near = difflib.get_close_matches(word, error.ctx.command.list_commands(error.ctx), 1)
        meant = mistakes.SYNONYMS.get(word) or next(iter(near), "--help")
        return CommandLine(meant) if meant.startswith("-") else _replace_word(typed, word, meant)
    if isinstance(error, click.NoSuchOption):
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, cutoff=0.75)
        return _replace_word(typed, error.option_name, near[0]) if near else CommandLine(command, "--help")
    if isinstance(error, click.MissingParameter) and "--ray" in typed:
        again = CommandLine(*(word for word in typed if word != "--ray"), "--ray")
        return Text("type --ray last, because the word after --ray was read as the cluster's address: {command}", again)
    return CommandLine(command, "--help")


def _replace_word(typed: Sequence[str], word: str, instead: str) -> CommandLine:
    """Return the typed command line with each `word`, perhaps an option with a value, replaced by `instead`."""
    return CommandLine(
        *(instead + part[len(word) :] if part == word or part.startswith(f"{word}=") else part for part in typed)
    )
