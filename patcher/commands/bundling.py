"""``bundle``: the plans of ``apply`` in one file that machines without rlpatch can run."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from patcher import __version__, markers
from patcher import plan as planning
from patcher.bundle import archive
from patcher.bundle import plans as bundles
from patcher.commands.applying import LENT, describe, plans_for, unused
from patcher.commands.finding import SearchOptions, parse_target
from patcher.errors import Kind, Problem
from patcher.report import Report
from patcher.targets import versions
from patcher.targets.target import Target

if TYPE_CHECKING:
    from patcher.plan import Plan
    from patcher.recipe import Upstream
    from patcher.request import ProfileRequest

Planned = list[tuple["Upstream", "Plan"]]


class _Pristine(Target):
    """A target as it was before anything of ours: what is applied here is nothing to the machines of a bundle."""

    def read(self, path: PurePosixPath) -> bytes:
        return markers.strip(super().read(path), where=str(self.root / path))


def bundle(words: Sequence[str], places: Sequence[SearchOptions], request: ProfileRequest, output: Path) -> Report:
    """Plan ``words`` at each of ``places``, several releases of one target too, and write them to ``output``."""
    entries: list[dict[str, object]] = []
    report = Report("bundle", data={"output": str(output), "targets": entries})
    found = _planned(report, words, places, request)
    if report.problems:
        return report
    bundled = dict.fromkeys(_bundled(plan) for _, plan in found)
    projects = dict.fromkeys(plan.target.project for _, plan in found)
    content = archive.made(bundles.Bundle(__version__, tuple(projects), tuple(bundled)))
    archive.write(output, content)
    report.done.append(f"wrote {output}")
    entries.extend(describe(report, upstream, plan, LENT) for upstream, plan in found)
    report.data["bytes"] = len(content)
    if "save_path" not in request.choices and any(plan.save_path for plan in bundled):
        report.note("on each machine the traces go to the folder that is named above", "another one: --save-path DIR")
    releases = ", ".join(f"{plan.patch.target} {plan.version or '(unknown version)'}" for plan in bundled)
    report.lines += [f"wrote {output}: {len(content) / 1000:.0f} KB for {releases}",
                     f"next: on each machine python3 {output.name} apply; --help says what else it can"]  # fmt: skip
    return report


def _planned(report: Report, words: Sequence[str], places: Sequence[SearchOptions], request: ProfileRequest) -> Planned:
    """The plans of all places from pristine files; of several places each needs to have one target only."""
    found: Planned = []
    absent: list[Problem] = []
    for place in places:
        tried = Report("bundle")
        with _unpacked(place) as search:
            planned = [
                (upstream, _from_pristine(upstream, plan, place))
                for upstream, plan in plans_for(tried, words, search, request, "bundle")
            ]
        report.notes += [note for note in tried.notes if note not in report.notes and len(places) == 1]
        elsewhere = [problem for problem in tried.problems if problem.kind in (Kind.NO_TARGET, Kind.VERSION)]
        if len(places) == 1 or not planned or len(elsewhere) < len(tried.problems):
            report.problems += tried.problems
        absent += elsewhere
        found += planned
    if not report.problems and not all(_satisfied(word, found) for word in words):
        report.problems += absent
    return found if report.problems else _checked(report, found, request)


def _checked(report: Report, found: Planned, request: ProfileRequest) -> Planned:
    report.problems += unused(request, found)
    for _, plan in found:
        if not any(place.marked for place in plan.places):
            cause = f"{plan.target.project.name} {plan.target.version} has already all that is asked for"
            report.problems.append(Problem(Kind.USAGE, cause, hint="there is nothing that a bundle could change"))
    return found


def _satisfied(word: str, found: Planned) -> bool:
    upstream, version = parse_target(word)
    there = [plan.target.version for _, plan in found if plan.target.project == upstream.project]
    return any(version is None or versions.holds(one, version) for one in there)


def _from_pristine(upstream: Upstream, plan: Plan, place: SearchOptions) -> Plan:
    """The same plan for a target that nobody has patched."""
    made = planning.apply(upstream, _Pristine._make(plan.target), plan.config)
    root = place.path if place.path and place.path.is_file() else plan.target.root
    found_by = f"--path {place.path}" if root == place.path else plan.target.found_by
    return made._replace(target=plan.target._replace(root=root, found_by=found_by))


@contextlib.contextmanager
def _unpacked(place: SearchOptions) -> Iterator[SearchOptions]:
    """``place``, or the folder into which the sources of the wheel there were unpacked for this while."""
    wheel = place.path
    if wheel is None or wheel.suffix != ".whl" or not zipfile.is_zipfile(wheel):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="rlpatch-") as folder:
        try:
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".py") or ".dist-info/" in name:
                        archive.extract(name, folder)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise Problem(Kind.ENVIRONMENT, f"the wheel is damaged: {error}", str(wheel), "get it again") from None
        yield replace(place, path=Path(folder))


def _bundled(plan: Plan) -> bundles.BundledPlan:
    changes = [change for change in plan.edit.changes if change.before != change.after]
    files = tuple(bundles.planned(str(change.path), change.before, change.after) for change in changes)
    summary = plan.places[0].recipe.probe.summary(plan.config)
    save_path = "" if plan.profiler else plan.config.save_path
    return bundles.BundledPlan(plan.patch, plan.target.version, tuple(plan.config.words), summary, save_path, files)
