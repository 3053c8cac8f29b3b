"""``bundle``: the plans of ``apply`` in one file that machines without rlpatch can run."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from patcher import __version__
from patcher import plan as planning
from patcher.bundle import archive
from patcher.bundle import plans as bundles
from patcher.changes import markers
from patcher.commands.finding import SearchOptions, parse_target
from patcher.commands.patching import describing
from patcher.commands.patching.describing import PlanPayload
from patcher.commands.patching.planning import Planned, plan_targets, unrecorded_problems
from patcher.messages import COMMA, Kind, Note, Problem, Text, joined, usage
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patcher.plan import Plan
from patcher.request import ProfileRequest
from patcher.targets import versions
from patcher.targets.target import Target


class _Pristine(Target):
    """Target whose files read as if rlpatch had not patched them: a bundle is for other machines."""

    def read(self, path: PurePosixPath) -> bytes:
        """Return the file without inserted lines. Raises Problem for broken marks."""
        return markers.strip(super().read(path), where=str(self.root / path))


@dataclass(frozen=True)
class Bundled:
    """Result of `bundle`; `bytes` is the size of the written file, None if none was written."""

    output: str
    targets: tuple[PlanPayload, ...] = ()
    bytes: int | None = field(default=None, metadata=OMIT_NONE)


def bundle(
    words: Sequence[str], places: Sequence[SearchOptions], request: ProfileRequest, output: Path
) -> CommandResult:
    """Plan the targets `words` at each of `places`, and write all plans to the archive `output`.

    With any problem in a plan nothing is written. Raises Problem: USAGE if `output` is a folder or another file than a
    bundle, ENVIRONMENT if it cannot be written.
    """
    plans, step = _plan_everywhere(words, places, request)
    if step.problems:
        return CommandResult("bundle", step, data=Bundled(str(output)))
    bundled = dict.fromkeys(_bundled_plan(planned.plan) for planned in plans)
    projects = dict.fromkeys(planned.plan.target.project for planned in plans)
    content = archive.build(bundles.Bundle(__version__, tuple(projects), tuple(bundled)))
    archive.write(output, content)
    step += sum(
        (describing.describe(planned.upstream, planned.plan, describing.LENT) for planned in plans), StepResult()
    )
    if "save_path" not in request.choices and any(plan.save_path for plan in bundled):
        step += StepResult.noted([_SAVE_PATH])
    release, unknown = Text("{target} {version}"), Text("(unknown version)")
    releases = (release.filled(target=plan.patch.target, version=plan.version or unknown) for plan in bundled)
    wrote = Text("wrote {output} ({kilobytes:.0f} KB) for {releases}")
    lines = (
        wrote.filled(output=output, kilobytes=len(content) / 1000, releases=joined(COMMA, releases)),
        Text("next: run `python3 {bundle} apply` on each machine; --help lists more commands", output.name),
    )
    data = Bundled(str(output), tuple(describing.payload(planned.plan) for planned in plans), len(content))
    return CommandResult("bundle", step + StepResult(lines, done=(Text("wrote {output}", output),)), data=data)


_SAVE_PATH = Note(
    Text("every machine writes its traces to the folder shown above"), Text("--save-path DIR chooses another folder")
)


def _plan_everywhere(
    words: Sequence[str], places: Sequence[SearchOptions], request: ProfileRequest
) -> tuple[list[Planned], StepResult]:
    """Return the plans for `words` at all places, made as if the files were unpatched, and the problems.

    That a place lacks a target or has another version is a problem only if no place has it, or if nothing else was
    planned there. Raises Problem (ENVIRONMENT) for a damaged wheel.
    """
    plans: list[Planned] = []
    problems: list[Problem] = []
    absent: list[Problem] = []
    for place in places:
        with _unpacked_wheel(place) as search:
            planned, step = plan_targets(words, search, request, "bundle")
            plans += [plan._replace(plan=_plan_unpatched(plan, place)) for plan in planned]
        elsewhere = [problem for problem in step.problems if problem.kind in (Kind.NO_TARGET, Kind.VERSION)]
        problems += [problem for problem in step.problems if not planned or problem not in elsewhere]
        absent += elsewhere
    if not problems and not all(_is_planned(word, plans) for word in words):
        problems = absent
    return plans, StepResult(problems=tuple(problems or _bundle_problems(plans, request)))


def _bundle_problems(plans: Sequence[Planned], request: ProfileRequest) -> list[Problem]:
    """Return a problem for each reason why a bundle of these plans would be useless; [] if there is none."""
    problems = [*unrecorded_problems(request, plans)]
    if len(request.parts()) > 1:
        cause = Text("a bundle can have only one patch per target: a recording window or a timeline")
        problems.append(usage(cause, Text("make two bundles: put --timeline into a bundle of its own")))
    for plan in (planned.plan for planned in plans):
        if not any(place.marked for place in plan.places):
            cause = Text("the settings of {target} {version} are already those that this bundle would set")
            cause = cause.filled(target=plan.target.project.name, version=plan.target.version)
            problems.append(usage(cause, Text("this bundle would change nothing, so it was not written")))
    return problems


def _is_planned(word: str, plans: Sequence[Planned]) -> bool:
    """Tell whether one of the plans is for the target that `word` names, and for its version if there is one."""
    upstream, version = parse_target(word)
    targets = (planned.plan.target for planned in plans)
    of_project = (target for target in targets if target.project == upstream.project)
    return any(version is None or versions.satisfies(target.version, version) for target in of_project)


def _plan_unpatched(planned: Planned, place: SearchOptions) -> Plan:
    """Return the plan for the same target as if it were not patched yet; a wheel stays the root of its target."""
    target = planned.plan.target
    plan = planning.make_plan(planned.upstream, _Pristine._make(target), planned.plan.config)
    for wheel in (path for path in place.path if path.is_file()):
        target = target._replace(root=wheel, found_by=f"--path {wheel}")
    return plan._replace(target=target)


@contextlib.contextmanager
def _unpacked_wheel(place: SearchOptions) -> Iterator[SearchOptions]:
    """Yield `place`, or if it is a wheel, a search in a temporary folder with its Python files and metadata."""
    wheels = [path for path in place.path if path.suffix == ".whl" and zipfile.is_zipfile(path)]
    if not wheels:
        yield place
        return
    (wheel,) = wheels  # the command line gives each place one path
    with tempfile.TemporaryDirectory(prefix="rlpatch-") as folder:
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
                archive.extractall(folder, names)
        except (zipfile.BadZipFile, zlib.error) as error:
            cause = Text("the wheel is damaged: {error}", error)
            raise Problem(Kind.ENVIRONMENT, cause, str(wheel), Text("download the wheel again")) from None
        yield place.replace(path=(Path(folder),))


def _bundled_plan(plan: Plan) -> bundles.BundledPlan:
    """Return the part of a plan that a bundle stores: its changed files, options, summary and folder of traces."""
    changes = [change for change in plan.edit.changes if change.before != change.after]
    files = tuple(bundles.plan_file(str(change.path), change.before, change.after) for change in changes)
    summary = plan.places[0].recipe.probe.summary(plan.config)
    save_path = plan.config.save_path
    return bundles.BundledPlan(plan.patch, plan.target.version, tuple(plan.config.words), summary, save_path, files)
