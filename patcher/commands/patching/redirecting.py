"""Windows that the engine of a trainer records, or the trainer of an engine: the command that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from patcher.commands.finding import Search, parse_target
from patcher.config import RolloutStage, TrainingStage, kind_of
from patcher.messages import AND, OR, CommandLine, Kind, Problem, Text, joined
from patcher.recipe import Upstream
from patcher.request import BUILTIN, TIMELINE, ProfileRequest, supports_any
from patches import projects

_EXAMPLES = dict.fromkeys(RolloutStage.NAMES, ("--decode", "30:60")) | dict.fromkeys(
    TrainingStage.NAMES, ("--micro-batch", "0:4")
)
"""Stage → options of a window to propose if it was asked for without one."""


def redirect_problem(words: Sequence[str], search: Search, request: ProfileRequest) -> Problem | None:
    """Return the problem that targets of `words` cannot record the request or a part of it, with a command that can.

    It adds their engine or trainer, puts it in their place, or drops targets if the others record all. None if nothing
    is wrong, or if no single engine or trainer can record the rest.
    """
    part = request.parts()[0]
    upstreams = dict(_projects_by_word(words))
    if part.stage in (BUILTIN, TIMELINE) or len(upstreams) < len(set(words)):
        return None
    requests = [ProfileRequest((window,)) for window in part.windows] or [part]
    missing = [request for request in requests if not _supporting([request], upstreams)]
    unsuited = [word for word in upstreams if word not in _supporting(requests, upstreams)]
    if part is not request:  # each of them keeps a timeline
        unsuited = []
    partners = _partners(missing[:1], upstreams.values())
    if len(missing) != bool(partners) or not (missing or unsuited):
        return None
    names = joined(AND, dict.fromkeys(upstreams[word].project.name for word in unsuited or upstreams))
    hint, likely = _hint(search, [*upstreams], unsuited, partners, part)
    absent = Text("not installed here: {packages}; type --python EXE or --path DIR to say where to find them")
    notes = (absent.filled(", ".join(partners)),) if partners and not likely else ()
    cause = _cause(requests if unsuited else missing, names, likely or partners)
    return Problem(Kind.USAGE if part.windows else Kind.NO_RECIPE, cause, hint=hint, notes=notes)


def _hint(
    search: Search, words: Sequence[str], unsuited: Sequence[str], partners: Sequence[str], request: ProfileRequest
) -> tuple[str, list[str]]:
    """Return the command line with an installed one of `partners`, else those with each; and the installed ones."""
    installed = {target.project.name for target in search.discover().targets}
    likely = [name for name in partners if name in installed]
    chosen = likely[:1] or partners or [""]
    return joined(OR, (_redirected_command(search, words, unsuited, name, request) for name in chosen)), likely


def _supporting(requests: Sequence[ProfileRequest], upstreams: Mapping[str, Upstream]) -> list[str]:
    """Return the keys of `upstreams` whose project can record any of `requests`."""
    return [word for word in upstreams if any(supports_any(request, upstreams[word]) for request in requests)]


def _projects_by_word(words: Sequence[str]) -> Iterator[tuple[str, Upstream]]:
    """Yield each word that names a project, with the project."""
    for word in words:
        with suppress(Problem):  # the search for targets reports it
            yield word, parse_target(word)[0]


def _partners(requests: Sequence[ProfileRequest], upstreams: Iterable[Upstream]) -> list[str]:
    """Return the names of the engines or trainers of `upstreams` that can record any of `requests`."""
    if not requests:
        return []  # to look at all projects imports their recipes
    names = {upstream.project.name for upstream in upstreams}
    engines = [projects.upstream(name) for upstream in upstreams for name in upstream.engines]
    trainers = [trainer for trainer in projects.upstreams() if not names.isdisjoint(trainer.engines)]
    partners = {other.project.name: other for other in (*engines, *trainers)}
    return _supporting(requests, partners)


def _cause(requests: Sequence[ProfileRequest], names: str, partners: Sequence[str]) -> str:
    """Return a sentence that the targets `names` cannot record `requests`, and which `partners` run that part."""
    options = joined(AND, (request.window_flags or f"--stage {request.stage}" for request in requests))
    if not partners:
        return Text("{option} is not available for {targets}", option=options, targets=names)
    (unit,) = [window.unit for window in requests[0].windows] or [""]
    values = {"option": options, "targets": names}
    if kind_of(unit) is TrainingStage or requests[0].stage in TrainingStage.NAMES:
        text = Text("{option} is not available for {targets}: the training runs in {trainers}")
        return text.filled(**values, trainers=joined(OR, partners))
    text = Text("{option} is not available for {targets}: the rollout runs in {engines}")
    return text.filled(**values, engines=joined(OR, partners))


def _redirected_command(
    search: Search, words: Sequence[str], unsuited: Sequence[str], partner: str, request: ProfileRequest
) -> CommandLine:
    """Return the typed command line with `partner` in place of the `unsuited` targets, or before the first target."""
    example = () if request.windows or request.choices.get("on_demand") else _EXAMPLES.get(request.stage, ())
    added = (partner, *example) if partner else ()
    if not unsuited:
        return search.again({words[0]: (*added, words[0])})
    return search.again({word: added if word == unsuited[0] else () for word in unsuited})
