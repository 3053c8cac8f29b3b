"""What each command does: from the user's words to a report. Nothing here prints, and only the store writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from patcher import store, targets
from patcher.change import Edit, PatchId, Record
from patcher.errors import Kind, Problem
from patcher.recipe import Upstream
from patcher.report import Report
from patcher.targets import Target

if TYPE_CHECKING:
    from patcher.capture import Capture
    from patcher.plan import Plan

CaptureFor = Callable[[Upstream], "Capture"]
"""The user's choice, completed by what is the default for a project."""


@dataclass(frozen=True)
class Where:
    """Where to look for targets: ``--path``, ``--python``, or neither."""

    path: Path | None = None
    python: str | None = None

    @property
    def words(self) -> str:
        """The option as it would be typed again, with a space before it."""
        import shlex

        return (
            f" --path {shlex.quote(str(self.path))}"
            if self.path
            else f" --python {shlex.quote(self.python)}"
            if self.python
            else ""
        )


@dataclass(frozen=True)
class Launch:
    """How the run will be started, as far as the user says."""

    environ: Mapping[str, str]
    script: Path | None = None
    command: tuple[str, ...] = ()


def upstreams() -> tuple[Upstream, ...]:
    """Every project that there are recipes for."""
    from patches.registry import UPSTREAMS

    return UPSTREAMS


def _upstream(word: str) -> tuple[Upstream, str | None]:
    known = {upstream.project.name: upstream for upstream in upstreams()}
    name, version = targets.parse(word, [upstream.project for upstream in known.values()])
    return known[name], version


def _find(word: str, where: Where, command: str) -> tuple[Upstream, Target]:
    upstream, version = _upstream(word)
    known = [other.project for other in upstreams()]
    found = targets.find(
        upstream.project, path=where.path, python=where.python, version=version, known=known, command=command
    )
    return upstream, found


def _plans(report: Report, words: Sequence[str], where: Where, capture: CaptureFor) -> list[tuple[Upstream, Plan]]:
    """A plan for every target; what fails is put into the report, all of it, so that the user sees it at once."""
    from patcher import plan

    plans = []
    for word in dict.fromkeys(words):
        try:
            upstream, target = _find(word, where, "apply")
            plans.append((upstream, plan.apply(upstream, target, capture(upstream), store.records(target.root))))
        except Problem as problem:
            report.problems.append(problem)
    if report.problems and len(words) > 1:
        report.messages.append("note: nothing was written, because not every target can be patched")
    return plans


def apply(
    words: Sequence[str],
    where: Where,
    capture: CaptureFor,
    launch: Launch,
    *,
    dry_run: bool,
    force: bool,
    on_wait: Callable[[str], None],
) -> Report:
    """Patch every target of ``words`` or none; with ``dry_run`` say only what would be done."""
    report = Report("apply")
    plans = _plans(report, words, where, capture)
    if report.problems:
        return report
    for upstream, plan in plans:
        _guard(report, upstream, plan.target.version, launch, force=force)
    if report.problems:
        return report
    outcome = store.Outcome() if dry_run else store.commit([plan.edit for _, plan in plans], on_wait=on_wait)
    _recovered(report, outcome.recovered)
    for _, plan in plans:
        _describe(report, plan, dry_run=dry_run)
    changed = any(plan.changed for _, plan in plans)
    again = f"rlpatch {{}} {' '.join(dict.fromkeys(plan.target.project.name for _, plan in plans))}{where.words}"
    if dry_run:
        report.lines.append(
            "next: the same without --dry-run; add the same options to `rlpatch diff` to see every line"
        )
    else:
        report.lines.append(f"next: {again.format('diff')} shows every line, {again.format('revert')} takes it out")
    if changed and not dry_run:
        _restart(report, [upstream for upstream, _ in plans])
    report.data["dry_run"] = dry_run
    return report


def _describe(report: Report, plan: Plan, *, dry_run: bool) -> None:
    target = plan.target
    report.lines.append(
        f"{target.project.name} {target.version or '(unknown version)'}: {target.kind} in {target.root}"
    )
    report.lines.append(f"  found by {target.found_by}, version from {target.version_from or 'nowhere'}")
    for change, place in zip(plan.edit.changes, plan.places, strict=True):
        added = change.after.count(b"\n") - change.pristine.count(b"\n")
        verb = "unchanged" if change.before == change.after else "would patch" if dry_run else "patched"
        shape = f", structure {place.structure.name}" if place.structure else ", by structure"
        report.lines.append(f"  {verb} {change.path} (+{added} lines: {place.recipe.name}{shape})")
    recipe = plan.places[0].recipe
    report.lines.append(f"  {recipe.summary(plan.capture)}")
    report.lines.append(f"  traces go to {plan.capture.save_path} (RLPATCH_SAVE_PATH changes it for a run)")
    report.messages += [f"warning: {text}" for text in plan.warnings] + [f"note: {text}" for text in plan.notes]
    patched = [
        {"path": str(c.path), "changed": c.before != c.after, "recipe": p.recipe.name,
         "structure": p.structure.name if p.structure else None}
        for c, p in zip(plan.edit.changes, plan.places, strict=True)
    ]  # fmt: skip
    entry = {
        "target": target.project.name, "version": target.version, "root": str(target.root), "kind": target.kind,
        "found_by": target.found_by, "stage": plan.patch.stage, "role": plan.patch.role,
        "options": list(plan.capture.words), "save_path": plan.capture.save_path, "files": patched,
        "warnings": list(plan.warnings), "notes": list(plan.notes),
    }  # fmt: skip
    report.data.setdefault("targets", []).append(entry)  # type: ignore[attr-defined]


def _guard(report: Report, upstream: Upstream, version: str, launch: Launch, *, force: bool) -> None:
    from patcher import guards

    findings = guards.look(
        upstream.switches,
        version=version,
        environ=launch.environ,
        script=launch.script,
        command=launch.command,
    )
    for finding in findings:
        if finding.state is guards.State.ON and not force:
            report.problems.append(
                Problem(
                    Kind.PROFILER_ON,
                    f"{finding.profiler} is switched on for {upstream.project.name}: {finding.found}",
                    finding.where,
                    f"{finding.off}; or --force, and the inserted code decides when the run has started",
                    (finding.why,),
                )
            )
        elif finding.state is not guards.State.OFF:
            report.messages.append(
                f"warning: {finding.profiler} is {finding.state.value}: {finding.found} in {finding.where};"
                f" to switch it off: {finding.off}"
            )


def check(words: Sequence[str], where: Where, launch: Launch) -> Report:
    """Look for every other profiler that is, or could be, switched on beside ours."""
    from patcher import guards

    report = Report("check")
    for word in words or [upstream.project.name for upstream in upstreams()]:
        upstream, version = _upstream(word)
        try:
            version = _find(word, where, "check")[1].version
        except Problem as problem:
            if problem.kind is Kind.VERSION:
                raise
            report.messages.append(f"note: {upstream.project.name} is not installed here, so every known switch counts")
        findings = guards.look(
            upstream.switches,
            version=version or "",
            environ=launch.environ,
            script=launch.script,
            command=launch.command,
        )
        report.lines.append(f"{upstream.project.name} {version or ''}".rstrip())
        for finding in findings:
            report.lines.append(f"  {finding.state.value:8} {finding.profiler} ({finding.where})")
            if finding.state is not guards.State.OFF:
                report.lines += [
                    f"           found: {finding.found}",
                    f"           to switch it off: {finding.off}",
                    f"           why: {finding.why}",
                ]
        entries = [{**asdict(finding), "state": finding.state.value} for finding in findings]
        report.data[upstream.project.name] = {"version": version, "profilers": entries}
        _guard(report, upstream, version or "", launch, force=False)
    report.messages = [message for message in report.messages if message.startswith("note")]
    return report


@dataclass(frozen=True)
class _Root:
    """One root with a patch or the traces of one: its targets, its records, the files that carry marks."""

    path: Path
    targets: tuple[tuple[Upstream, Target], ...]
    records: tuple[Record, ...]
    files: tuple[str, ...]

    def read(self, path: PurePosixPath) -> bytes | None:
        try:
            return (self.path / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def marked(self) -> dict[str, tuple[PatchId, ...]]:
        """File → patches whose marks stand in it; a file with broken marks counts for what the store knows."""
        from patcher import markers

        found = {}
        for file in self.files:
            data = self.read(PurePosixPath(file)) or b""
            try:
                found[file] = tuple(m.patch for m in markers.marked(data))
            except Problem:
                found[file] = tuple(r.patch for r in self.records if file in r.files)
        return found


def _roots(words: Sequence[str], where: Where) -> tuple[list[_Root], targets.Discovery]:
    """Every root that was found and holds records or marks of the wanted targets."""
    wanted = {_upstream(word)[0].project.name for word in words}
    known = {upstream.project.name: upstream for upstream in upstreams()}
    found = targets.discover([u.project for u in known.values()], path=where.path, python=where.python, git=False)
    roots = []
    for path in dict.fromkeys([*found.stores, *(target.root for target in found.targets)]):
        here = tuple((known[t.project.name], t) for t in found.targets if t.root == path)
        records = tuple(r for r in store.records(path) if not wanted or r.patch.target in wanted)
        places = (
            s.file for u, _ in here if not wanted or u.project.name in wanted for r in u.recipes for s in r.structures
        )
        files = dict.fromkeys([*(file for record in records for file in record.files), *places])
        roots.append(_Root(path, here, records, tuple(file for file in files if (path / file).is_file())))
    return [root for root in roots if root.records or any(root.marked().values()) or store.pending(root.path)], found


def _nothing(report: Report, words: Sequence[str], found: targets.Discovery) -> None:
    what = f"no patch of {', '.join(words)}" if words else "nothing is patched"
    report.lines.append(f"{what}; looked in: {'; '.join(found.looked)}")
    report.messages += [f"warning: {problem}" for problem in found.problems]


def status(words: Sequence[str], where: Where) -> Report:
    """What is patched where, since when, and whether it is still as rlpatch left it."""
    from patcher import plan

    report = Report("status", data={"patches": []})
    roots, found = _roots(words, where)
    if not roots:
        _nothing(report, words, found)
    for root in roots:
        versions = {target.project.name: target.version for _, target in root.targets}
        if store.pending(root.path):
            report.messages.append(f"warning: {root.path} holds an interrupted run; next: rlpatch recover{where.words}")
        for record in (*root.records, *_unregistered(root, words)):
            now = versions.get(record.patch.target)
            states = []
            for file in record.files:
                path = PurePosixPath(file)
                states.append(
                    plan.file_state(
                        root.read(path),
                        store.backup(root.path, path) if (root.path / path).exists() else None,
                        record.patch,
                        file,
                    )
                )
            since = f"since {record.applied_at}" if record.applied_at else "not in the store (was .rlpatch removed?)"
            report.lines.append(f"{record.patch} on {record.version or '(unknown version)'} in {root.path}, {since}")
            if record.options:
                report.lines.append(f"  rlpatch apply {record.patch.target} {' '.join(record.options)}")
            if now is not None and record.version and now != record.version:
                report.lines.append(f"  note: {now or 'another version'} is installed there now")
            report.lines += [
                f"  {state.state} {state.path}" + (f" ({state.detail})" if state.detail else "") for state in states
            ]
            entry = {
                "target": record.patch.target, "stage": record.patch.stage, "role": record.patch.role,
                "root": str(root.path), "version": record.version, "installed": now, "since": record.applied_at,
                "options": list(record.options), "files": [asdict(state) for state in states],
            }  # fmt: skip
            report.data["patches"].append(entry)  # type: ignore[attr-defined]
    return report


def _unregistered(root: _Root, words: Sequence[str]) -> list[Record]:
    """Records made up for patches whose marks stand in a file while the store does not know them."""
    wanted = {_upstream(word)[0].project.name for word in words}
    known = {(record.patch, file) for record in root.records for file in record.files}
    lost: dict[PatchId, list[str]] = {}
    for file, patches in root.marked().items():
        for patch in patches:
            if (patch, file) not in known and (not wanted or patch.target in wanted):
                lost.setdefault(patch, []).append(file)
    return [Record(patch, "", (), tuple(files), "", "") for patch, files in lost.items()]


def diff(words: Sequence[str], where: Where, capture: CaptureFor | None) -> Report:
    """A diff from pristine to patched: of what is applied, or with ``capture`` of what would be."""
    from patcher import markers, plan

    report = Report("diff")
    by_root: dict[Path, list[tuple[str, bytes, bytes]]] = {}
    if capture:
        plans = _plans(report, words, where, capture)
        for _, made in plans:
            by_root.setdefault(made.target.root, []).extend(
                (str(c.path), c.pristine, c.after) for c in made.edit.changes
            )
        report.messages += [f"warning: {text}" for _, made in plans for text in made.warnings]
    else:
        roots, found = _roots(words, where)
        for root in roots:
            for file, patches in root.marked().items():
                data = root.read(PurePosixPath(file)) or b""
                if patches:
                    pristine = markers.strip(data, where=str(root.path / file))
                    by_root.setdefault(root.path, []).append((file, pristine, data))
        if not by_root:
            _nothing(report, words, found)
            report.messages += report.lines
    if len(by_root) > 1:
        choose = " or ".join(f"--path {root}" for root in by_root)
        raise Problem(Kind.USAGE, "the patched files lie below several roots, and a diff has only one", hint=choose)
    report.raw = b"".join(plan.diff(*file) for files in by_root.values() for file in files)
    report.data = {"root": str(next(iter(by_root), "")), "diff": report.raw.decode("utf-8", "replace")}
    return report


def revert(
    words: Sequence[str], where: Where, stage: str | None, *, dry_run: bool, on_wait: Callable[[str], None]
) -> Report:
    """Take the patches of ``words`` (none: all) out of every root that was found, all or nothing."""
    from patcher import plan

    report = Report("revert", data={"files": []})
    roots, found = _roots(words, where)
    edits: list[Edit] = []
    for root in roots:
        records = [r for r in (*root.records, *_unregistered(root, words)) if stage in (None, r.patch.stage)]
        patches = [record.patch for record in records]
        try:
            edits.append(plan.revert(root.path, root.read, records, patches))
        except Problem as problem:
            report.problems.append(problem)
    if report.problems:
        return report
    edits = [edit for edit in edits if edit.changes or edit.remove or store.pending(edit.root)]
    outcome = store.Outcome() if dry_run else store.commit(edits, on_wait=on_wait)
    _recovered(report, outcome.recovered)
    if not edits:
        _nothing(report, words, found)
    for edit in edits:
        changed = {str(change.path): change for change in edit.changes}
        for record in (
            r
            for root in roots
            if root.path == edit.root
            for r in (*root.records, *_unregistered(root, words))
            if r.patch in edit.remove
        ):
            for file in record.files:
                change = changed.get(file)
                text = (
                    "  forgotten {}: the file was replaced meanwhile and has no line of ours" if change is None
                    else "  {} {}: as before the patch" if change.after == change.pristine
                    else "  {} {}: another patch of ours stays in it"
                )  # fmt: skip
                report.lines.append(f"{record.patch} in {edit.root}")
                report.lines.append(
                    text.format(*((file,) if change is None else ("would revert" if dry_run else "reverted", file)))
                )
                report.data["files"].append({"root": str(edit.root), "path": file, "reverted": change is not None})  # type: ignore[attr-defined]
    if edits and not dry_run:
        _restart(report, [upstream for root in roots for upstream, _ in root.targets])
    return report


def recover(where: Where, on_wait: Callable[[str], None]) -> Report:
    """End the runs that were interrupted below every root that was found."""
    report = Report("recover")
    found = targets.discover([u.project for u in upstreams()], path=where.path, python=where.python, git=False)
    ended = store.recover(found.stores, on_wait=on_wait)
    _recovered(report, ended)
    if not ended:
        report.lines.append(f"nothing to recover; looked in: {'; '.join(found.looked)}")
    report.data["roots"] = [{"root": str(e.root), "forward": e.forward, "left": list(e.left)} for e in ended]
    return report


def _recovered(report: Report, ended: Sequence[store.Recovered]) -> None:
    for one in ended:
        state = "finished" if one.forward else "undone"
        report.lines.append(f"an interrupted run in {one.root} was {state}")
        report.messages += [
            f"warning: {one.root / left} was changed by someone else since and was left alone" for left in one.left
        ]


def _restart(report: Report, patched: Sequence[Upstream]) -> None:
    from patcher import processes

    words = {word for upstream in patched for word in upstream.processes}
    running = processes.running(words)
    if running:
        report.lines.append(f"note: these processes may hold the code as it was; restart them: {'; '.join(running)}")
    else:
        report.lines.append("note: an engine that runs already holds the code as it was; restart it")
    report.data["restart"] = list(running)


def listing() -> Report:
    """Targets, releases, stages and windows, from the recipes themselves."""
    report = Report("list", data={"targets": []})
    for upstream in upstreams():
        for recipe in upstream.recipes:
            for structure in recipe.structures:
                row = {
                    "target": upstream.project.name, "stage": recipe.stage, "recipe": recipe.name,
                    "structure": structure.name, "file": structure.file, "releases": list(structure.releases),
                    "windows": [f"--{unit}" for unit in recipe.windows],
                }  # fmt: skip
                report.data["targets"].append(row)  # type: ignore[attr-defined]
    return report


def explain(word: str, where: Where, capture: CaptureFor) -> Report:
    """Where the code goes in for one target, and why there."""
    from packaging.specifiers import SpecifierSet

    from patcher import plan

    upstream, version = _upstream(word)
    report = Report("explain")
    lines = report.lines
    there: dict[str, list[str]] = {}
    try:
        _, target = _find(word, where, "explain")
        version = version or target.version
        made = plan.apply(upstream, target, capture(upstream))
        there = {str(c.path): _call_sites(c.after) for c in made.edit.changes}
        lines.append(f"{upstream.project.name} {version} in {target.root}")
    except Problem as problem:
        if problem.kind is Kind.VERSION or version is None:
            report.messages.append(f"note: {problem.cause}")
        lines.append(f"{upstream.project.name} {version or '(every release)'}")
    release = plan.published(upstream, version or "")
    if version and not release:
        report.messages.append(
            f"note: {version} is not a published release that rlpatch knows; it is patched by structure"
        )
    for recipe in upstream.recipes:
        structures = [s for s in recipe.structures if not release or release in s.releases]
        if not structures:
            continue
        lines += [
            "",
            f"{recipe.stage}: {recipe.name}, {recipe.class_name}",
            f"  why: {recipe.why}",
            f"  how: {recipe.how}",
        ]
        lines += [f"  upstream: {recipe.upstream}", f"  remove when: {recipe.remove_when}"]
        lines.append(f"  windows: {', '.join(f'--{unit} A:B' for unit in recipe.windows)}")
        lines += [
            f"  structure {s.name} ({s.releases[0]} to {s.releases[-1]}, {s.file}): {s.shape}" for s in structures
        ]
        for site in recipe.sites:
            place = f"before `{site.before}`" if site.before else "at the head"
            lines += [f"  in {site.method}(), {place}: {site.line}", f"    {site.why}"]
        for file in dict.fromkeys(s.file for s in structures):
            lines += [f"  here: {file}:{text}" for text in there.get(file, [])]
        for releases, text in recipe.builtin.items():
            if not release or SpecifierSet(releases).contains(release, prereleases=True):
                lines.append(f"  the built-in window of {upstream.project.name} {releases}: {text}")
    lines += ["", *_STEERING]
    report.data = {"target": upstream.project.name, "version": version, "text": lines}
    return report


def _call_sites(after: bytes) -> list[str]:
    tagged = [
        (n, line) for n, line in enumerate(after.decode("utf-8", "replace").splitlines(), 1) if "  # rlpatch: " in line
    ]
    return [f"{number} {line.strip()}" for number, line in tagged]


_STEERING = (
    "For one run, without patching again (read once, at the first call; a bad value switches the probe off):",
    "  RLPATCH=0                   no recording",
    "  RLPATCH_WINDOW=A:B          another window in the unit that was chosen",
    "  RLPATCH_RANKS=0,8 or all    other ranks",
    "  RLPATCH_ROLLOUT=N           another rollout, counted from 0",
    "  RLPATCH_SAVE_PATH=/x/y      another folder for the traces",
)
