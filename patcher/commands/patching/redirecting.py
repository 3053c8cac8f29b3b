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
"""Stage → options of a window to propose if it was asked for without one."""


def redirected(words: Sequence[str], search: Search, request: ProfileRequest) -> Problem | None:
    """Return the problem that a target cannot record what was asked for, but its engine or its trainer can.

    Its hint is the command line with that engine or trainer. None if the targets `words` suit the request, if no engine
    or trainer would help, or for the stages builtin and timeline.
    """
    part = request.parts()[0]
    upstreams = dict(_named(words))
    if part.stage in (BUILTIN, TIMELINE) or len(upstreams) < len(set(words)):
        return None
    requests = [ProfileRequest((window,)) for window in part.windows] or [part]
    missing, unsuited = _lacking(requests, upstreams)
    if part is not request:  # each of them keeps a timeline
        unsuited = []
    partners = _partners(missing[0], upstreams.values()) if missing else []
    if len(missing) != bool(partners) or not (missing or unsuited):
        return None
    return _problem(search, part, (unsuited, requests if unsuited else missing), upstreams, partners)


def _problem(
    search: Search,
    part: ProfileRequest,
    lacking: tuple[Sequence[str], Sequence[ProfileRequest]],
    upstreams: Mapping[str, Upstream],
    partners: Sequence[str],
) -> Problem:
    """Return the problem with the command line for the installed one of `partners`, or for each if none is.

    `lacking` has the words to replace (none: a word is added), and the requests that they cannot record. `part` is the
    whole request, `partners` are names of engines or trainers that can record it.
    """
    unsuited, requests = lacking
    installed = {target.project.name for target in search.discover().targets}
    likely = [name for name in partners if name in installed]
    cause = _cause(requests, unsuited or [*upstreams], upstreams, likely or partners)
    hint = joined(OR, (_again(search, [*upstreams], unsuited, name, part) for name in likely[:1] or partners or [""]))
    absent = Text(
        "not installed here: {packages}; say where it is installed with --python EXE or --path DIR", ", ".join(partners)
    )
    notes = (absent,) if partners and not likely else ()
    return Problem(Kind.USAGE if part.windows else Kind.NO_RECIPE, cause, hint=hint, notes=notes)


def _named(words: Sequence[str]) -> Iterator[tuple[str, Upstream]]:
    """Yield each word that names a project, with the project."""
    for word in words:
        with suppress(Problem):  # the search for targets reports it
            yield word, parse_target(word)[0]


def _lacking(
    requests: Sequence[ProfileRequest], upstreams: Mapping[str, Upstream]
) -> tuple[list[ProfileRequest], list[str]]:
    """Return the requests that none of `upstreams` can record, and the words whose project can record none of them."""
    missing = [request for request in requests if not any(takes(request, upstream) for upstream in upstreams.values())]
    unsuited = [
        word for word, upstream in upstreams.items() if not any(takes(request, upstream) for request in requests)
    ]
    return missing, unsuited


def _partners(request: ProfileRequest, upstreams: Iterable[Upstream]) -> list[str]:
    """Return the names of the engines and trainers of `upstreams` that can record `request`."""
    names = {upstream.project.name for upstream in upstreams}
    engines = [projects.upstream(name) for upstream in upstreams for name in upstream.engines]
    trainers = [trainer for trainer in projects.upstreams() if not names.isdisjoint(trainer.engines)]
    return [*dict.fromkeys(other.project.name for other in (*engines, *trainers) if takes(request, other))]


def _cause(
    requests: Sequence[ProfileRequest], words: Sequence[str], upstreams: Mapping[str, Upstream], partners: Sequence[str]
) -> str:
    """Return the sentence that the targets `words` cannot record `requests`, and which `partners` can."""
    names = joined(AND, dict.fromkeys(upstreams[word].project.name for word in words))
    what = joined(AND, (request.window_flags or f"--stage {request.stage}" for request in requests))
    if not partners:
        return Text("{option} is not available for {targets}", what, names)
    (unit,) = [window.unit for window in requests[0].windows] or [""]
    if kind_of(unit) is TrainingStage or requests[0].stage in TrainingStage.NAMES:
        return Text(
            "{option} is not available for {targets}: the training runs in {trainers}",
            what,
            names,
            joined(OR, partners),
        )
    return Text(
        "{option} is not available for {targets}: the rollout runs in {engines}", what, names, joined(OR, partners)
    )


def _again(
    search: Search, words: Sequence[str], unsuited: Sequence[str], partner: str, part: ProfileRequest
) -> CommandLine:
    """Return the command line with `partner` ("" for none) in place of the `unsuited` words, or before the first word.

    A stage without a window gets an example of one.
    """
    example = () if part.windows or part.choices.get("on_demand") else _EXAMPLES.get(part.stage, ())
    added = (partner, *example) if partner else ()
    if not unsuited:
        return search.again({words[0]: (*added, words[0])})
    return search.again({word: added if word == unsuited[0] else () for word in unsuited})
