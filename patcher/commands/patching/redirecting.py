"""Windows that the engine of a trainer records, or the trainer of an engine: the command that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from patcher.commands.finding import Search, parse_target
from patcher.config import RolloutStage, TrainingStage, kind_of
from patcher.messages import AND, OR, CommandLine, Kind, Problem, Text, joined
from patcher.recipe import Upstream
from patcher.request import BUILTIN, TIMELINE, ProfileRequest, takes
from patches import projects

_EXAMPLES = dict.fromkeys(RolloutStage.NAMES, ("--decode", "30:60")) | dict.fromkeys(
    TrainingStage.NAMES, ("--micro-batch", "0:4")
)
"""Window to propose for a stage that was asked for without one."""


def redirected(words: Sequence[str], search: Search, request: ProfileRequest) -> Problem | None:
    """Return the Problem that some of `words` have no part in `request`, with the command line that has.

    None if every word has one and no window is left over, or if no engine or trainer of them has that window.
    """
    part = request.parts()[0]
    upstreams = dict(_named(words))
    if part.stage in (BUILTIN, TIMELINE) or len(upstreams) < len(set(words)):
        return None
    pieces = [ProfileRequest((window,)) for window in part.windows] or [part]
    missing, idle = _lacking(pieces, upstreams)
    if part is not request:  # each of them keeps a timeline
        idle = []
    partners = _partners(missing[0], upstreams.values()) if missing else []
    if len(missing) != bool(partners) or not (missing or idle):
        return None
    return _problem(search, part, (idle, pieces if idle else missing), upstreams, partners)


def _problem(
    search: Search,
    part: ProfileRequest,
    lacking: tuple[Sequence[str], Sequence[ProfileRequest]],
    upstreams: Mapping[str, Upstream],
    partners: Sequence[str],
) -> Problem:
    """Return the Problem with the command line for the installed one of `partners`, or for each if none is.

    `lacking` are the words to replace (none: a word is added), and the pieces that they lack.
    """
    idle, pieces = lacking
    installed = {target.project.name for target in search.discover().targets}
    likely = [name for name in partners if name in installed]
    cause = _cause(pieces, idle or [*upstreams], upstreams, likely or partners)
    hint = joined(OR, (_again(search, [*upstreams], idle, name, part) for name in likely[:1] or partners or [""]))
    absent = Text(
        "not installed here: {names}; type --python EXE or --path DIR to say where it is installed", ", ".join(partners)
    )
    notes = (absent,) if partners and not likely else ()
    return Problem(Kind.USAGE if part.windows else Kind.NO_RECIPE, cause, hint=hint, notes=notes)


def _named(words: Sequence[str]) -> Iterator[tuple[str, Upstream]]:
    """Yield each word that names a project, with the project."""
    for word in words:
        with suppress(Problem):  # the search for targets reports it
            yield word, parse_target(word)[0]


def _lacking(
    pieces: Sequence[ProfileRequest], upstreams: Mapping[str, Upstream]
) -> tuple[list[ProfileRequest], list[str]]:
    """Return the pieces that none of `upstreams` takes, and the words whose project takes no piece."""
    missing = [piece for piece in pieces if not any(takes(piece, upstream) for upstream in upstreams.values())]
    idle = [word for word, upstream in upstreams.items() if not any(takes(piece, upstream) for piece in pieces)]
    return missing, idle


def _partners(piece: ProfileRequest, upstreams: Iterable[Upstream]) -> list[str]:
    """Return the engines and trainers of `upstreams` that take `piece`."""
    names = {upstream.project.name for upstream in upstreams}
    engines = [projects.upstream(name) for upstream in upstreams for name in upstream.engines]
    trainers = [trainer for trainer in projects.upstreams() if not names.isdisjoint(trainer.engines)]
    return [*dict.fromkeys(other.project.name for other in (*engines, *trainers) if takes(piece, other))]


def _cause(
    pieces: Sequence[ProfileRequest], words: Sequence[str], upstreams: Mapping[str, Upstream], partners: Sequence[str]
) -> str:
    """Return the text that `words` lack `pieces`, and which `partners` have them."""
    names = joined(AND, dict.fromkeys(upstreams[word].project.name for word in words))
    what = joined(AND, (piece.window_flags or f"--stage {piece.stage}" for piece in pieces))
    if not partners:
        return Text("{what} is not available for {names}", what, names)
    (unit,) = [window.unit for window in pieces[0].windows] or [""]
    if kind_of(unit) is TrainingStage or pieces[0].stage in TrainingStage.NAMES:
        return Text(
            "{what} is not available for {names}: the training runs in {trainers}", what, names, joined(OR, partners)
        )
    return Text("{what} is not available for {names}: the rollout runs in {engines}", what, names, joined(OR, partners))


def _again(
    search: Search, words: Sequence[str], idle: Sequence[str], partner: str, part: ProfileRequest
) -> CommandLine:
    """Return the command line with `partner` ("" for none) in place of the `idle` words, or before the first word."""
    example = () if part.windows or part.choices.get("on_demand") else _EXAMPLES.get(part.stage, ())
    added = (partner, *example) if partner else ()
    if not idle:
        return search.again({words[0]: (*added, words[0])})
    return search.again({word: added if word == idle[0] else () for word in idle})
