"""The line in which somebody edited what rlpatch inserted, and what it was: the patch is planned again and compared."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from patcher import plan as planning
from patcher.changes import lines as lines_of
from patcher.changes import markers
from patcher.commands.applied import restore_hint
from patcher.messages import Kind, Problem, Text
from patcher.request import request_of_record, resolve
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery, Target
from patches import projects


def explain_foreign_edit(problem: Problem, target: Target) -> Problem:
    """Return a FOREIGN_EDIT problem with the first edited line if it is known; any other problem is unchanged."""
    roots = patched(Discovery((target,), (target.root,), (), ())) if problem.kind is Kind.FOREIGN_EDIT else []
    return with_edited_line(problem, roots[0], restore_hint(roots[0])) if roots else problem


def with_edited_line(problem: Problem, root: PatchedRoot, hint: str = "") -> Problem:
    """Return `problem` with the first edited line, as expected and as it is now, if it is a FOREIGN_EDIT in `root`.

    A non-empty `hint` then replaces that of the problem. Anything else is returned unchanged.
    """
    place = Path(problem.where.rpartition(":")[0] if ":" in problem.where else problem.where)
    if problem.kind is not Kind.FOREIGN_EDIT or not place.is_relative_to(root.path) or root.mirror:
        return problem
    path = PurePosixPath(place.relative_to(root.path))
    try:
        actual = lines_of.split(root.read(path) or b"")
        difference = _first_edited_line(lines_of.split(_bytes_when_patched(root, path)), actual)
    except (Problem, LookupError, StopIteration):
        return problem
    if difference is None:
        return problem
    at, expected = difference
    notes = (
        Text("expected line: {line}", _shown([expected])) if expected else Text("expected line: none"),
        Text("actual line: {line}", _shown(actual[at : at + 1])),
    )
    return problem.replace(where=f"{place}:{at + 1}", notes=notes, hint=hint or problem.hint)


def _bytes_when_patched(root: PatchedRoot, path: PurePosixPath) -> bytes:
    """Return the bytes that `path` had when it was patched, by planning all patches of `root` on the backups.

    Raises Problem, LookupError or StopIteration if they cannot be planned again.
    """
    files = {PurePosixPath(file) for record in root.records for file in record.files}
    ahead = {file: backup for file in files if (backup := root.backup(file)) is not None}
    for record in root.records:
        upstream = projects.upstream(record.patch.target)
        target = next(target for target in root.targets if target.project.name == record.patch.target)
        config = resolve(request_of_record(record.options), upstream, target)
        plan = planning.make_plan(upstream, target._replace(ahead=ahead), config, ())
        ahead.update((change.path, change.after) for change in plan.edit.changes)
    return ahead[path]


def _first_edited_line(expected: list[bytes], actual: list[bytes]) -> tuple[int, bytes] | None:
    """Return (index in `actual`, expected line) of the first inserted line that was edited; b"" if none is expected.

    None, too, if the first edit is in the head of a block, as when another release of rlpatch inserted it.
    """
    import difflib  # noqa: PLC0415  (1 ms, only where somebody edited inserted lines)

    marks = markers.marked(b"".join(expected))
    inserted = {at for mark in marks for at in mark.lines}
    heads = {expected[min(mark.lines)] for mark in marks}
    matcher = difflib.SequenceMatcher(None, expected, actual, autojunk=False)
    for tag, first, last, at, _ in matcher.get_opcodes():
        if tag != "equal" and inserted.intersection(range(first, max(last, first + 1))):
            return None if expected[first] in heads else (at, expected[first] if last > first else b"")
    return None


def _shown(lines: list[bytes]) -> str:
    """Return lines of a file as text for a message."""
    return b"".join(lines).decode("utf-8", "replace").strip() or Text("an empty line")
