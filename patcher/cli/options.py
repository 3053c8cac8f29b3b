"""Click's options from declared ones (``patcher.options``), and the few that several commands declare here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from patcher.cli.command import Command, Group, Option
from patcher.cli.command import switch as switch
from patcher.messages.language import translate
from patcher.messages.report import CommandResult
from patcher.options import OptionSpec, flag, options_of
from patcher.options.headings import OUTPUT
from patcher.options.notations import AnyText, FilePath, Flag
from patcher.targets import versions
from patches.projects import projects, upstream, upstreams

if TYPE_CHECKING:
    from patcher.recipe import Recipe

T = TypeVar("T")

DRY_RUN = switch(OUTPUT, "Show what would be done; write nothing.", "-n", "--dry-run")


def click_option(spec: OptionSpec, **more: Any) -> Option:
    """The option of the command line, with ``more`` of click's attributes; None, or False for a flag, if not typed."""
    notation, names = spec.notation, [spec.flag]
    if isinstance(notation, Flag):
        if notation.negated:
            names = [f"{spec.flag}/{flag(f'no_{spec.name}')}"]
        return Option(names, heading=spec.heading, is_flag=True, default=False, help=spec.help)

    attributes: dict[str, Any] = {"type": lambda text: notation.read(spec.flag, text), "shell_complete": offer(spec)}
    if isinstance(notation, FilePath):
        attributes = {"type": click.Path(readable=False, path_type=Path)}
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


def offer(spec: OptionSpec) -> Complete:
    """What completes the last of several words with commas: what the targets that are typed have, or any target."""

    def complete(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        names = {versions.normalise(word.partition("==")[0]) for word in context.meta.get("typed", ())}
        chosen = [upstream(one.name) for one in projects() if one.name in names]
        words = spec.notation.words
        if spec.name in _OF_RECIPES and (chosen or not words):
            found = (_OF_RECIPES[spec.name](recipe) for one in chosen or upstreams() for recipe in one.recipes)
            words = tuple(dict.fromkeys(chain.from_iterable(found)))
        return [before + comma + word for word in words if word.startswith(last) and word not in before.split(",")]

    return complete


def click_options(*kinds: type) -> list[Option]:
    """Return the options that dataclasses declare."""
    return [click_option(spec) for spec in options_of(*kinds).values()]


def typed_values(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of ``names`` that stand on the command line, with their ``values``; the others keep their defaults."""
    context = click.get_current_context()
    typed = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return {name: values[name] for name in typed}


def build(kind: type[T], values: Mapping[str, Any], **more: Any) -> T:
    """A dataclass of options from what was typed, and ``more`` of its fields."""
    return kind(**typed_values(values, options_of(kind)), **more)


def typed_words() -> tuple[str, ...]:
    """The command line."""
    words: tuple[str, ...] = click.get_current_context().meta.get("typed", ())
    return words


def quiet() -> bool:
    """Whether nothing is to be said but errors, and what was asked for."""
    return not {"-q", "--quiet"}.isdisjoint(typed_words())


def command(
    name: str, *params: click.Parameter, groups: Sequence[Group[Any]] = ()
) -> Callable[[Callable[..., CommandResult]], Command]:
    """A command whose function takes ``params`` and the value of each of ``groups``, by their names."""
    return click.command(name, cls=Command, params=list(params), groups=groups)


def targets(metavar: str, *, nargs: int = -1, required: bool = False) -> click.Argument:
    """The argument for targets, which shells can complete: names, and releases where the ``metavar`` has ``==``."""

    def complete(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        known = projects()
        offered = [project.name for project in known]
        if "==" in metavar:
            offered += [f"{project.name}=={release}" for project in known for release in project.releases]
        return [text for text in offered if text.startswith(incomplete)]

    name = "target" if nargs == 1 else "targets"
    return click.Argument([name], nargs=nargs, required=required, metavar=metavar, shell_complete=complete)


def wait(message: str) -> None:
    """Tell the user whom the store waits for."""
    click.echo(translate(message), err=True)
