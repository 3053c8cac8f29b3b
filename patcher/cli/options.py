"""The common part of every command: options under headings, values of a type, and one way in which it ends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

import click
from click.core import ParameterSource

from patcher.cli import reported, with_language
from patcher.cli.candidates import candidates
from patcher.messages import CommandResult, Kind, Text, problem_of, usage
from patcher.messages.language import translate
from patcher.messages.notes import wrapped
from patcher.options import Options, OptionSpec, flag, options_of
from patcher.options.headings import HEADINGS, OUTPUT
from patcher.options.notations import AnyText, FilePath, Flag, FolderPaths
from patcher.targets import versions
from patches.projects import projects, upstream, upstreams

if TYPE_CHECKING:
    from patcher.recipe import Recipe

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound=Options)


class Option(click.Option):
    """Command-line option with a heading for the help; its `aliases` work but are not shown."""

    def __init__(self, words: Sequence[str], *, heading: str, aliases: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__([*words, *aliases], **attributes)
        self.heading, self.aliases = heading, aliases

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's row of the help, as (words, description), without its aliases; None if it is hidden."""
        every, self.opts = self.opts, [name for name in self.opts if name not in self.aliases]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every


COLORS = {"auto": None, "always": True, "never": False}
"""Value of ``--color`` → whether a report is coloured; None: on a terminal, unless NO_COLOR or TERM=dumb is set."""


def switch(heading: str, about: str, *names: str) -> Option:
    """Return an option without a value."""
    return Option(names, heading=heading, is_flag=True, help=about)


class Group(Generic[T]):
    """Options that several commands share and receive as a single value, the parameter `name`.

    `build` makes that value from the options' values, by name. `check` may raise Problem for the typed words.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Mapping[str, Any]], T],
        *options: Option,
        check: Callable[[click.Command, Sequence[str]], None] = lambda _command, _typed: None,
    ) -> None:
        self.name, self.build, self.options, self.check = name, build, options, check

    def pop_value(self, params: dict[str, Any]) -> T:
        """Remove this group's options from `params`, and return the value made of them."""
        return self.build({str(option.name): params.pop(str(option.name)) for option in self.options})


class OutputOptions(NamedTuple):
    """Choices for showing a report; `color` None means: on a terminal only."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool | None = None


OUTPUT_OPTIONS = Group(
    "output",
    lambda values: OutputOptions(**{**values, "color": COLORS[values["color"]]}),
    switch(OUTPUT, "Print one JSON document on stdout.", "--json", "as_json"),
    switch(OUTPUT, "Print only errors and the requested output, such as a diff or JSON.", "-q", "--quiet"),
    switch(OUTPUT, "Show details, and the traceback of an unexpected error.", "-v", "--verbose"),
    Option(
        ["--color"],
        heading=OUTPUT,
        type=click.Choice([*COLORS]),
        default="auto",
        help="When to use colours. Default: on a terminal, unless NO_COLOR or TERM=dumb is set.",
    ),
)


class Command(click.Command):
    """Click command whose function takes the value of each of its `groups` and returns a CommandResult."""

    def __init__(self, *arguments: Any, groups: Sequence[Group[Any]] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.groups = groups
        self.params += [option for group in (*groups, OUTPUT_OPTIONS) for option in group.options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, with those of the configuration in front; on an error, report it and end the process."""
        with reported(ctx, str(self.name)):
            if ctx.resilient_parsing:
                return super().parse_args(ctx, args)
            for group in self.groups:
                group.check(self, ctx.meta.get("typed", ()))
            self._refuse_repeated(ctx, args)
            return super().parse_args(ctx, self._with_configuration(ctx, args))

    def _refuse_repeated(self, ctx: click.Context, args: Sequence[str]) -> None:
        """Raise Problem (USAGE) for an option whose second value would silently replace the first."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in {param for param in order if order.count(param) > 1}:
            if isinstance(param, click.Option) and not (param.multiple or param.is_flag):
                name = param.opts[0]
                hint = Text("type {option} only once; separate several values with commas", name)
                raise usage(Text("{option} is given {count} times", option=name, count=order.count(param)), hint)

    def _with_configuration(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return `args` with the words of the folder's configuration in front, if the command searches for targets."""
        searches = {"--path", "--python"} <= {name for param in self.params for name in param.opts}
        if not (searches and candidates()):
            return args
        # Most folders have no configuration: it takes 5 ms to look into one, and more to read it.
        source = importlib.import_module("patcher.cli.nearest").nearest()
        if source is None:
            return args
        configured = importlib.import_module("patcher.cli.configured")
        with_configuration: list[str] = configured.add_configuration(self, ctx, args, source)
        return with_configuration

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run the command, print its report or its error, and exit; with `--verbose` re-raise an unexpected error."""
        output = OUTPUT_OPTIONS.pop_value(ctx.params)
        try:
            ctx.params |= {group.name: group.pop_value(ctx.params) for group in self.groups}
            report = super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            problem = problem_of(error)
            if output.verbose and problem.kind is Kind.UNEXPECTED:
                raise
            report = CommandResult(str(self.name), problems=[problem])
        report.notes[:0] = ctx.meta.get("configured", ())
        if report.problems:
            importlib.import_module("patcher.cli.mistakes").correct(report, ctx.meta.get("typed", ()))
        print_and_exit(report, output)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help in the language of the user."""
        return super().get_help(with_language(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings, in the order of `HEADINGS`."""
        by_heading: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None and not isinstance(param, click.Argument):
                by_heading[param.heading if isinstance(param, Option) else OUTPUT].append(row)
        for heading, rows in by_heading.items():
            if rows:
                with formatter.section(heading):
                    formatter.write("".join(help_lines(rows, formatter.width)))


def help_lines(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield lines of help in two columns: each term, such as an option, beside its translated description."""
    first = max(len(option) for option, _ in rows) + 2
    for option, about in rows:
        texts = wrapped(Text(about), further="", width=width - 2 - first) or [""]
        yield f"  {option:{first}}{texts[0]}\n"
        yield from (f"  {'':{first}}{text}\n" for text in texts[1:])


def print_and_exit(report: CommandResult, output: OutputOptions) -> NoReturn:
    """Print `report`, call its `then` if it has one and no problem, and exit with the code of the last of the two."""

    def show(report: CommandResult) -> int:
        return report.show(**output._asdict())

    code = show(report)
    sys.exit(report.then(show) if report.then and not report.problems else code)


def save_path(about: str) -> Option:
    """Return the option for the folder of traces."""
    kind = click.Path(path_type=Path)
    return Option(["--save-path"], heading=OUTPUT, type=kind, default="rlpatch_traces", metavar="DIR", help=about)


DRY_RUN = switch(OUTPUT, "Show what would be done; write nothing.", "-n", "--dry-run")


def click_option(spec: OptionSpec, **more: Any) -> Option:
    """Return a click option for `spec`, with `more` attributes for click; a flag ignores these."""
    notation, names = spec.notation, [spec.flag]
    if isinstance(notation, Flag):
        if notation.negated:
            names = [f"{spec.flag}/{flag(f'no_{spec.name}')}"]
        return Option(names, heading=spec.heading, is_flag=True, default=False, help=spec.help)

    attributes: dict[str, Any] = {
        "type": lambda text: notation.read(spec.flag, text),
        "shell_complete": value_completion(spec),
    }
    if isinstance(notation, (FilePath, FolderPaths)):
        attributes = {"type": click.Path(readable=False, path_type=Path), "multiple": isinstance(notation, FolderPaths)}
    if isinstance(notation, AnyText) and notation.alone is not None:
        attributes |= {"is_flag": False, "flag_value": notation.alone}
    attributes |= {"metavar": notation.metavar, "help": spec.help, "aliases": [*map(flag, spec.aliases)]}
    return Option(names, heading=spec.heading, **attributes | more)


Complete = Callable[[click.Context, click.Parameter, str], list[str]]
_OF_RECIPES: Mapping[str, Callable[[Recipe], Iterable[str]]] = {
    "stage": lambda recipe: (recipe.stage,),
    "strategy": lambda recipe: recipe.strategies,
}
"""The options whose words a target decides."""


def value_completion(spec: OptionSpec) -> Complete:
    """Return the shell completion of an option: the words of its notation, or those in recipes of the typed targets."""

    def complete(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        names = {versions.normalise(word.partition("==")[0]) for word in context.meta.get("typed", ())}
        chosen = [upstream(project.name) for project in projects() if project.name in names]
        words = spec.notation.words
        if spec.name in _OF_RECIPES and (chosen or not words):
            recipes = (recipe for project in chosen or upstreams() for recipe in project.recipes)
            words = tuple(dict.fromkeys(chain.from_iterable(map(_OF_RECIPES[spec.name], recipes))))
        return [before + comma + word for word in words if word.startswith(last) and word not in before.split(",")]

    return complete


def click_options(*kinds: type[Options]) -> list[Option]:
    """Return the click options that the classes `kinds` declare."""
    return [click_option(spec) for spec in options_of(*kinds).values()]


def typed_values(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of `names` that were typed on the command line, with their `values`; drop defaults."""
    context = click.get_current_context()
    typed = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return {name: values[name] for name in typed}


def build(kind: type[OptionsT], values: Mapping[str, Any], **more: Any) -> OptionsT:
    """Return an instance of the options class `kind` from typed values; others keep the defaults of the class."""
    return kind(**typed_values(values, options_of(kind)), **more)


def typed_words() -> tuple[str, ...]:
    """Return all words of the command line after `rlpatch`."""
    words: tuple[str, ...] = click.get_current_context().meta.get("typed", ())
    return words


def quiet() -> bool:
    """Tell whether `-q` is typed: only errors and requested output are printed."""
    return not {"-q", "--quiet"}.isdisjoint(typed_words())


def command(
    name: str, *params: click.Parameter, groups: Sequence[Group[Any]] = ()
) -> Callable[[Callable[..., CommandResult]], Command]:
    """Return a decorator that makes a click command of a function, which takes `params` and `groups` by name."""
    return click.command(name, cls=Command, params=list(params), groups=groups)


def targets(metavar: str, *, nargs: int = -1, required: bool = False) -> click.Argument:
    """Return click's argument for targets; if `metavar` has `==`, the shell completes releases after `==`, too."""

    def complete(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        all_projects = projects()
        offered = [project.name for project in all_projects]
        if "==" in metavar and "==" in incomplete:
            offered += [f"{project.name}=={release}" for project in all_projects for release in project.releases]
        return [text for text in offered if text.startswith(incomplete)]

    name = "target" if nargs == 1 else "targets"
    return click.Argument([name], nargs=nargs, required=required, metavar=metavar, shell_complete=complete)


def wait(message: str) -> None:
    """Print to stderr whose lock the command is waiting for."""
    click.echo(translate(message), err=True)
