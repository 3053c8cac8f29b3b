"""``check``, and the look for other profilers that ``apply`` begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from patcher.changes.change import Record
from patcher.commands.finding import SearchOptions, parse_target
from patcher.config import PROFILERS
from patcher.guards.detect import detect
from patcher.guards.result import Checked, GuardResult, Launch
from patcher.messages import COMMA, OR, SEMICOLON, CommandResult, Detail, Kind, Problem, StepResult, Text, joined
from patcher.messages.notes import WIDEST, Note
from patcher.recipe import Upstream
from patcher.store.folder import StoreFolder
from patcher.switches import Release, State
from patcher.targets.target import Target
from patches import projects


class TargetCheck(NamedTuple):
    """Result of `check` for a target: its version (None if unknown), and the state of each profiler."""

    version: str | None
    profilers: tuple[GuardResult, ...]


_AGAIN = Text("the patch checks for other profilers again before it records")
_UNSEEN = Text(
    "these targets are not installed here, so rlpatch checks only known profiler switches: those of the version in"
    " your command, or those of all versions if it names none. To check installed files, too, add --path DIR or"
    " --python EXE"
)


def check(words: Sequence[str], search: SearchOptions, launch: Launch) -> CommandResult:
    """Return the result of `rlpatch check`: every profiler that is, or could be, on besides rlpatch's own.

    A profiler that is on is a problem. `words` are the targets (none: all installed ones, and all others, too, if
    `launch` has a command or a script). A target that is not installed is checked by the switches of its releases,
    unless `search` has a path or an interpreter: then it is a problem if one of `words` or every target is missing.
    """
    placed = bool(search.path) or search.python is not None
    step, data = StepResult(), dict[str, TargetCheck]()
    absent: dict[str, Problem] = {}
    for word in words or [project.name for project in projects.projects()]:
        upstream, version = parse_target(word)
        target = None
        name = upstream.project.name
        try:
            target = search.find(word, "check")[1]
        except Problem as problem:
            if problem.kind is not Kind.NO_TARGET or (placed and words):
                step += StepResult(problems=(problem,))
                continue
            absent[word] = problem
            if placed or not (words or launch.command or launch.script):
                continue
        checked, data[name] = _check_target(upstream, version or "", target, launch)
        step += checked
    if not placed:
        step += _absent_note(absent, is_checked=bool(words or data))
    elif not (data or step.problems):
        step += StepResult(problems=tuple(absent.values())[:1])
    return CommandResult("check", step, data=data)


def _absent_note(absent: Mapping[str, Problem], *, is_checked: bool) -> StepResult:
    """Return a note that names the `absent` targets, or a line that none is installed if none was checked."""
    if not absent:
        return StepResult()
    if not is_checked:
        line = Text(
            "no target is installed here; to check a target without its installation, name it, as in: rlpatch check"
            " verl"
        )
        return StepResult((line,))
    return StepResult.noted([Note(Text("not installed here: {targets}", ", ".join(absent)), _UNSEEN)])


def _check_target(
    upstream: Upstream, version: str, target: Target | None, launch: Launch
) -> tuple[StepResult, TargetCheck]:
    """Look for profilers that would be on in a launch of a target; return the report and the data of `rlpatch check`.

    A profiler that is on is a problem, unless the applied patch records with it; then it is one if it is not started.
    """
    version = target.version if target else version
    results, step = _detect_profilers(upstream, version, target, launch, with_off=True)
    lines = [f"{upstream.project.name} {version}".rstrip()]
    recorder = _external_recorder(target)
    lines += [line for group in _group(results) for line in _group_lines(group, recorder)]
    problems = tuple(
        _problem(upstream, result, result.off)
        for result in results if result.state is State.ON and result.profiler != recorder
    )  # fmt: skip
    if recorder and _is_missing(recorder, results, launch):
        problems = (*problems, _recorder_problem(recorder))
    return step + StepResult(tuple(lines), problems=problems), TargetCheck(version or None, results)


def guard(
    upstream: Upstream,
    version: str,
    launch: Launch,
    *,
    force: bool,
    target: Target | None = None,
    profiler: str = "",
    recorder: str = "",
) -> StepResult:
    """Return a problem for each other profiler that is on, and a warning for each that may be on.

    `profiler` is the framework's own profiler if the patch only sets that up, else ""; it gets a note unless it is off.
    With `force` or such a `profiler`, others that are on get a warning instead of a problem. `recorder` is the program
    that records for rlpatch, "" for none: a launch that does not start it gets a warning.
    """
    results, step = _detect_profilers(upstream, version, target, launch, with_off=False)
    if recorder and _is_missing(recorder, results, launch):
        missing = _recorder_problem(recorder)
        step += StepResult.noted([Note(missing.cause, missing.hint)], "warning")
    results = tuple(result for result in results if result.profiler != recorder)
    doubtful = []
    for result in results:
        if result.state is State.OFF:
            continue
        if profiler and result.profiler == profiler:
            text = Text(
                "{profiler} is {state} ({place}), so the settings of the patch take effect",
                profiler=profiler,
                state=result.state.value,
                place=result.where,
            )
            step += StepResult.noted([Note(text, joined("\n", _evidence_lines(result)))])
        elif result.state is State.ON and not force and not profiler:
            hint = Text(
                "{instruction}; or add --force to skip this check: the inserted code then checks for other profilers"
                " while the engine runs",
                result.off,
            )
            step += StepResult(problems=(_problem(upstream, result, hint),))
        elif result.reason != result.where:  # else nothing was looked at, which `check` says
            doubtful.append(result)
    return step + StepResult.noted(map(_group_warning, _group(doubtful)), "warning")


def _is_missing(recorder: str, results: Iterable[GuardResult], launch: Launch) -> bool:
    """Tell whether a launch that can be read surely does not start the profiler `recorder`."""
    states = {result.state for result in results if result.profiler == recorder}
    return bool(launch.command or launch.script) and states <= {State.OFF}


def _recorder_problem(recorder: str) -> Problem:
    """Return the problem that the launch does not start `recorder`, which is nsys: it records the windows."""
    cause = Text("the launch command or script does not start {profiler}, so nothing would be recorded", recorder)
    hint = Text(
        "put `nsys profile …` in front of the command that starts the run: `rlpatch apply --dry-run` prints `nsys"
        " profile …` with all options"
    )
    return Problem(Kind.ENVIRONMENT, cause, hint=hint)


def _external_recorder(target: Target | None) -> str:
    """Return the program that records from outside for the applied patches, such as "Nsight Systems", or ""."""
    records: Sequence[Record] = ()
    with suppress(Problem):  # a store that cannot be read, as `status` says
        records = StoreFolder(target.folder).records() if target else ()
    words = {pair for record in records for pair in pairwise(record.options)}
    names = (kind.STARTED_BY for tool, kind in PROFILERS.items() if ("--tool", tool) in words)
    return next(filter(None, names), "")


def switched_on_by(upstream: Upstream, profiler: str, target: Target) -> str:
    """Return the switches that turn `profiler` on in the release of `target`, joined by "or"; "" if none does."""
    project = upstream.project
    release = Release(target.version, project.releases, target.root / project.package)
    active = [switch for switch in upstream.switches if switch.profiler == profiler and release.has(switch)]
    return joined(OR, dict.fromkeys(switch.name for switch in reversed(active)))


def _detect_profilers(
    upstream: Upstream, version: str, target: Target | None, launch: Launch, *, with_off: bool
) -> tuple[tuple[GuardResult, ...], StepResult]:
    """Return the state of each other profiler in a launch, and a note if the target ignores its Hydra options."""
    step, application = StepResult(), upstream.application
    if application is None and launch.config is not None:
        text = Text("--config has no effect for {target}, which does not use Hydra", upstream.project.name)
        step = StepResult.noted([Note(text)])
    package = target.root / upstream.project.package if target else None
    release = Release(version, upstream.project.releases, package)
    checked = Checked(upstream.switches, release, target.root if target else None, application)
    return detect(checked, launch, with_off=with_off), step


def _group(results: Iterable[GuardResult]) -> list[list[GuardResult]]:
    """Return the distinct `results` in groups: those that are UNKNOWN for the same reason, else each by itself."""
    groups: dict[object, list[GuardResult]] = {}
    for result in dict.fromkeys(results):
        groups.setdefault(result.reason if result.state is State.UNKNOWN else result, []).append(result)
    return [*groups.values()]


def _group_warning(results: Sequence[GuardResult]) -> Note:
    """Return one warning for results that are UNKNOWN for the same reason, or for a single result of another state."""
    first = results[0]
    details = [
        line for result in results for line in (_profiler_words(result), *_evidence_lines(result), *_off_lines(result))
    ]
    if first.state is State.UNKNOWN:
        names = {result.profiler for result in results}
        profilers = first.profiler if len(names) == 1 else Text("{count} profilers", len(names))
        reason = first.reason or first.where
        text = Text("{profiler} might be on: {reason}", profiler=profilers, reason=reason)
        return Note(text, joined("\n", [*details, _AGAIN]))
    text = Text("{profiler} is {state} ({place})", profiler=first.profiler, state=first.state.value, place=first.where)
    with_remedy = joined(SEMICOLON, (text, first.off))
    return Note(with_remedy if len(f"warning: {with_remedy}") <= WIDEST else text, joined("\n", details))


def _group_lines(results: Sequence[GuardResult], recorder: str) -> Iterator[str]:
    """Yield the lines on results that share a state: profilers and place, how to switch them off, evidence."""
    first = results[0]
    names = dict.fromkeys(result.profiler for result in results)
    place, *places = dict.fromkeys(result.where for result in results)
    if places:
        place = Text("{place} and {count} more places", place=place, count=len(places))
    yield Text("  {state} {profilers} ({place})", state=first.state.value, profilers=joined(COMMA, names), place=place)
    if first.state is State.OFF:
        if first.reason:  # it is set, and ignored
            yield Text("    {setting}: {reason}", setting=first.found, reason=first.reason)
        return
    unknown = first.state is State.UNKNOWN
    for result in results:
        heading = [_profiler_words(result)] if len(results) > 1 else []
        advice = _off_lines(result) if unknown else []
        yield from (Detail("    {line}", line) for line in (*heading, *_evidence_lines(result), *advice))
    if first.profiler == recorder:
        yield Text("    this is the profiler that the patch starts and stops")
    elif not unknown:
        yield from (Text("    {line}", line) for line in _off_lines(first))
    elif first.reason not in ("", first.where):
        yield Text("    {line}", first.reason)
        yield Detail("    {line}", _AGAIN)


def _profiler_words(result: GuardResult) -> Text:
    return Text("{profiler} ({place})", profiler=result.profiler, place=result.where)


def _evidence_lines(result: GuardResult) -> list[str]:
    """Return the lines on what was found, and why the state is unknown."""
    lines = ((result.found, Text("found: {setting}", result.found)), (result.why, Text("reason: {reason}", result.why)))
    return [line for text, line in lines if text]


def _off_lines(result: GuardResult) -> list[str]:
    """Return the line on how to switch the profiler off, [] if unknown."""
    return [Text("to switch the profiler off: {instruction}", result.off)] if result.off else []


def _problem(upstream: Upstream, result: GuardResult, hint: str) -> Problem:
    """Return the problem that the profiler of `result` is switched on; `hint` says what to do about it."""
    cause = Text(
        "{profiler} is switched on for {target}: {setting}",
        profiler=result.profiler,
        target=upstream.project.name,
        setting=result.found,
    )
    return Problem(Kind.PROFILER_ON, cause, result.where, hint, (result.why,))
