"""What every command has: options under headings, values of a type, and one way in which it ends."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import click

from patcher.cli import spoken
from patcher.cli.nearest import ConfigurationFile, nearest
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem, failed
from patcher.messages.notes import Message, Warned, wrapped
from patcher.messages.report import CommandResult
from patcher.messages.text import Text, joined
from patcher.options.headings import HEADINGS, OUTPUT
from patcher.targets import versions
from patches.projects import projects

T = TypeVar("T")

_OF_OTHERS = {"help": "--help", "version": "--version", "remove": "revert", "restore": "revert", "undo": "revert"}
"""What other tools call a command of ours."""
STARTERS = ("bash", "sh", "python", "python3", "torchrun", "ray")
"""Programs that start a run, whether they are on this machine or not."""


class Option(click.Option):
    """An option that stands below a heading of the help, where its ``aliases`` are not shown."""

    def __init__(self, words: Sequence[str], *, heading: str, aliases: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__([*words, *aliases], **attributes)
        self.heading, self.aliases = heading, aliases

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """As click does, by the names that are shown."""
        every, self.opts = self.opts, [name for name in self.opts if name not in self.aliases]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every


COLORS = {"auto": None, "always": True, "never": False}
"""What ``--color`` says → whether a report is coloured; None: on a terminal, unless NO_COLOR or TERM=dumb is set."""


def switch(heading: str, about: str, *names: str) -> Option:
    """An option without a value."""
    return Option(names, heading=heading, is_flag=True, help=about)


class Group(Generic[T]):
    """Options of several commands that these take as one value: ``made`` of their values, as the parameter ``name``."""

    def __init__(self, name: str, made: Callable[[Mapping[str, Any]], T], *options: Option) -> None:
        self.name, self.made, self.options = name, made, options

    def taken(self, params: dict[str, Any]) -> T:
        """The value, made of those of the options in ``params``, which loses them."""
        return self.made({str(option.name): params.pop(str(option.name)) for option in self.options})


class OutputOptions(NamedTuple):
    """How a report is shown; ``color`` as in `COLORS`."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool | None = None


OUTPUT_OPTIONS = Group(
    "output",
    lambda values: OutputOptions(**{**values, "color": COLORS[values["color"]]}),
    switch(OUTPUT, "Print one JSON document on stdout.", "--json", "as_json"),
    switch(OUTPUT, "Print only errors and what you asked for: a diff, a JSON document.", "-q", "--quiet"),
    switch(OUTPUT, "Show details, and the traceback of an unexpected failure.", "-v", "--verbose"),
    Option(
        ["--color"],
        heading=OUTPUT,
        type=click.Choice([*COLORS]),
        default="auto",
        help="Default: on a terminal, unless NO_COLOR or TERM=dumb is set.",
    ),
)


class Command(click.Command):
    """A command whose function gets the value of each of its ``groups`` and gives a report.

    The report is shown and decides the exit code; every failure ends as one, too.
    """

    def __init__(self, *arguments: Any, groups: Sequence[Group[Any]] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.groups = groups
        self.params += [option for group in (*groups, OUTPUT_OPTIONS) for option in group.options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with an error of ours for what cannot be read."""
        typed = ctx.meta.get("typed", ())
        notes: list[Message] = ctx.meta.setdefault("configured", [])
        with reported(str(self.name), typed, notes):
            if not ctx.resilient_parsing:
                self._check_separator(typed)
                args = self._configured(ctx, args, notes)
            try:
                return super().parse_args(ctx, args)
            except Problem as problem:
                word = problem.cause.split(" ")[0]
                added = [note for note in notes if note.level == "note" and word in note.text.split()]
                if added and not problem.where:
                    raise problem.replace(where=added[0].detail) from None
                raise

    def _configured(self, ctx: click.Context, args: list[str], notes: list[Message]) -> list[str]:
        """``args`` behind the options and the targets that the configuration of the folder has for this command.

        What is added, or why nothing is, goes to ``notes``. Raises Problem (USAGE) for a file that cannot be used, but
        for the commands that go on without.
        """
        if not {"--path", "--python"} <= {name for param in self.params for name in param.opts}:
            return args
        source = nearest()
        if source is None:
            return args
        from patcher.cli import configured  # noqa: PLC0415  (it knows all options, and most folders have no table)

        typed, preset = self._typed(ctx, args)
        try:
            configuration = configured.read(source)
        except Problem as problem:
            if preset is None and configured.goes_on(source, str(self.name), typed):
                notes.append(_going_on(problem, Text("the command goes on without this file")))
                return args
            raise
        options, targets = configuration.before(str(self.name), typed, preset)
        if configured.PYTHON in options and not self._consented(source, options[configured.PYTHON][1], notes):
            options = {name: words for name, words in options.items() if name != configured.PYTHON}
        ctx.meta["presets"] = True
        added = [word for option in options.values() for word in option]
        if added or targets:
            notes.append(_adding(source, (*targets, *added)))
        return [*added, *targets, *args]

    def _typed(self, ctx: click.Context, args: list[str]) -> tuple[set[str], str | None]:
        """The options that are typed, ``targets`` among them where some are, and the preset that is asked for."""
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        typed = {name for param in order if isinstance(param, click.Option) for name in param.opts}
        if isinstance(targets := values.get("targets"), tuple) and targets:
            typed.add("targets")
        return typed, values.get("preset")

    def _consented(self, source: ConfigurationFile, interpreter: str, notes: list[Message]) -> bool:
        """Look whether the user trusts an interpreter of the configuration; a command that only looks warns if not.

        Raises Problem (USAGE) for every other command.
        """
        from patcher.cli import configured, consent  # noqa: PLC0415  (it loads what reads other interpreters)

        try:
            consent.require(source, interpreter)
        except Problem as problem:
            if self.name not in configured.LOOKING:
                raise
            notes.append(_going_on(problem, Text("the command goes on without this interpreter")))
            return False
        return True

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run the command, show its report, and exit with its code."""
        output = OUTPUT_OPTIONS.taken(ctx.params)
        try:
            ctx.params |= {group.name: group.taken(ctx.params) for group in self.groups}
            report = super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            problem = failed(error)
            if output.verbose and problem.kind is Kind.UNEXPECTED:
                raise
            report = CommandResult(str(self.name), problems=[problem])
        report.notes[:0] = ctx.meta.get("configured", ())
        end(report, output)

    def get_help(self, ctx: click.Context) -> str:
        """As click does, in the language of the reader."""
        return super().get_help(spoken(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options below their headings."""
        found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None and not isinstance(param, click.Argument):
                found[param.heading if isinstance(param, Option) else OUTPUT].append(row)
        for heading, rows in found.items():
            if rows:
                with formatter.section(heading):
                    formatter.write("".join(rows_of(rows, formatter.width - formatter.current_indent)))

    def _check_separator(self, typed: Sequence[str]) -> None:
        """Raise Problem (USAGE) for a command line in which ``--`` is missing before the command of the run."""
        if "--" in typed or all(group.name != "launch" for group in self.groups):
            return
        options = (param for param in self.params if isinstance(param, Option) and not param.is_flag)
        valued = {*chain.from_iterable(option.opts for option in options)}
        words = (at for at in range(1, len(typed)) if typed[at - 1] not in valued and not typed[at].startswith("-"))
        at = next((at for at in words if _starts_a_run(typed[at])), None)
        if at is None:
            return
        cause = Text("{word} is not a target: put `--` before the command that starts the run", typed[at])
        while re.match(r"\w+=(?!=)", typed[at - 1]):  # variables of the run
            at -= 1
        raise Problem(Kind.USAGE, cause, hint=shlex.join(["rlpatch", *typed[:at], "--", *typed[at:]]))


def _adding(source: ConfigurationFile, words: Iterable[str]) -> Message:
    """Note of what a configuration adds to a command line."""
    return Message("note", Text("{name} adds: {words}", source.file.name, shlex.join(words)), str(source.file))


def _going_on(problem: Problem, said: str) -> Warned:
    """Warn that a command goes on without what a configuration says."""
    _, *detail = problem.lines
    return Warned("warning", problem.cause, joined("\n", (said, *detail)))


def rows_of(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Options and what they do side by side, with no name broken at a hyphen, as click would break it."""
    first = max(len(option) for option, _ in rows) + 2
    for option, about in rows:
        texts = wrapped(Text(about), further="", width=width - first) or [""]
        yield f"  {option:{first}}{texts[0]}\n"
        yield from (f"  {'':{first}}{text}\n" for text in texts[1:])


def _starts_a_run(word: str) -> bool:
    names = {versions.normalise(name) for project in projects() for name in (project.name, *project.distributions)}
    if versions.normalise(word.partition("==")[0]) in names:
        return False
    return word in STARTERS or word.endswith((".sh", ".py")) or ("=" not in word and bool(shutil.which(word)))


@contextmanager
def reported(command: str, typed: Sequence[str], notes: Sequence[Message] = ()) -> Iterator[None]:
    """End the process with a report of ours for what click, or a type of ours, says of a wrong command line.

    It has the warnings among ``notes``.
    """
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click's own since 8.2: it is no error, and shows the help
            raise
        problem = Problem(Kind.USAGE, _cause(error, typed), hint=_meant(error, command, typed))
    except (Problem, KeyboardInterrupt) as error:
        problem = failed(error)
    else:
        return
    report = CommandResult(command, problems=[problem])
    report.notes += [note for note in notes if isinstance(note, Warned)]
    end(report, OutputOptions(as_json="--json" in typed, color=_color(typed)))


def _color(typed: Sequence[str]) -> bool | None:
    """What ``--color`` says in a command line that cannot be read."""
    ours = "\n".join(typed).partition("\n--\n")[0]
    found = re.findall(r"^--color[=\n](.*)$", ours, re.MULTILINE)
    return COLORS.get(found[-1]) if found else None


def _cause(error: click.UsageError, typed: Sequence[str]) -> str:
    """Return what is wrong: a Text for the errors of click that have fields, else click's own words."""
    if isinstance(error, click.NoSuchOption):
        return Text("No such option: {name}", error.option_name)
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        return Text("Missing argument {name!r}.", error.param.human_readable_name)
    if error.ctx and isinstance(error.ctx.command, click.Group):
        word = _command_word(typed)
        if word not in error.ctx.command.list_commands(error.ctx):
            return Text("No such command {name!r}.", word)
    return error.format_message()


def _command_word(typed: Sequence[str]) -> str:
    return next((word for word in typed if not word.startswith("-")), "")


def _meant(error: click.UsageError, command: str, typed: Sequence[str]) -> str:
    """What to type instead of a wrong command line: what was probably meant, else the help."""
    if error.ctx and isinstance(error.ctx.command, click.Group):
        word = _command_word(typed)
        near = difflib.get_close_matches(word, error.ctx.command.list_commands(error.ctx), 1)
        meant = _OF_OTHERS.get(word) or next(iter(near), "--help")
        return CommandLine(meant) if meant.startswith("-") else _again(typed, word, meant)
    if isinstance(error, click.NoSuchOption):
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, cutoff=0.75)
        return _again(typed, error.option_name, near[0]) if near else CommandLine(command, "--help")
    if isinstance(error, click.MissingParameter) and "--ray" in typed:
        again = CommandLine(*(word for word in typed if word != "--ray"), "--ray")
        return Text("{again}: the word after --ray is the address of the cluster", again)
    return CommandLine(command, "--help")


def _again(typed: Sequence[str], word: str, instead: str) -> CommandLine:
    """The command line with another word, which may be an option with its value."""
    return CommandLine(
        *(instead + one[len(word) :] if one == word or one.startswith(f"{word}=") else one for one in typed)
    )


def end(report: CommandResult, output: OutputOptions) -> NoReturn:
    """Show ``report``, go on with what it leads to, and exit with the code of that."""

    def show(report: CommandResult) -> int:
        return report.show(**output._asdict())

    code = show(report)
    sys.exit(report.then(show) if report.then and not report.problems else code)
