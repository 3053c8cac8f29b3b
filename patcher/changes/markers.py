"""The marks around every line that rlpatch inserts, and the way back from a marked file to the one before.

A block begins with ``# >>> rlpatch ID VERSION DIGEST`` and ends with ``# <<< rlpatch ID``; a line outside of it ends
with ``# rlpatch: ID``. A line that the patch replaces stays above its successor as a comment, ``# was: LINE  # rlpatch:
ID``, which becomes that line again. The digest covers all other lines of the patch, so that the marks alone are enough
to take them out, or to see that somebody has changed them. Everything works on bytes: the files of a target come in
any encoding, with any line ends, and what rlpatch inserts is ASCII, except for the lines that were there before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from patcher.changes import lines as lines_of
from patcher.changes.change import PatchId
from patcher.digests import sha256
from patcher.messages import Kind, Problem, Text

_ID = rb"(?P<id>[\w.-]+ [\w.-]+(?: [\w.-]+)?)"
_BEGIN = re.compile(rb"[ \t]*# >>> rlpatch %s \d\S* (?P<digest>[0-9a-f]{16})[ \t]*\r?\n?" % _ID)
_END = re.compile(rb"[ \t]*# <<< rlpatch %s[ \t]*\r?\n?" % _ID)
_LINE = re.compile(rb".*  # rlpatch: %s[ \t]*\r?\n?" % _ID, re.DOTALL)
_WAS = re.compile(rb"(?P<indent>[ \t\f]*)# was: (?P<line>.*)  # rlpatch: %s[ \t]*(?P<end>\r?\n?)" % _ID, re.DOTALL)
_UNSEALED = "0" * 16
REINSTALL = Text("reinstall the package (pip install --force-reinstall --no-deps), or restore the file (git checkout)")


def begin(patch: PatchId, tool: str) -> str:
    """Return the comment that opens the block of ``patch`` from release ``tool``; ``seal`` fills in the digest."""
    return f"# >>> rlpatch {patch} {tool} {_UNSEALED}"


def end(patch: PatchId) -> str:
    """Return the comment that closes the block of ``patch``."""
    return f"# <<< rlpatch {patch}"


def closes(comment: str) -> bool:
    """Tell whether ``comment`` closes the block of some patch."""
    return _END.fullmatch(comment.encode()) is not None


def tag(patch: PatchId) -> str:
    """Return the comment at the end of each line of ``patch`` outside of its block."""
    return f"# rlpatch: {patch}"


def as_was_comment(line: bytes, patch: PatchId) -> bytes:
    """Return ``line`` as a ``# was:`` comment, which ``strip`` turns back into the line.

    Raises ``ValueError`` if the line carries a mark: of two patches on one line, neither could be reverted first.
    """
    if _LINE.fullmatch(line):
        raise ValueError(line)
    bare = line.rstrip(b"\r\n")
    code = bare.lstrip(b" \t\f")
    indent, end = bare[: len(bare) - len(code)], line[len(bare) :]
    return indent + b"# was: " + code + f"  {tag(patch)}".encode() + end


def _digest(block: Iterable[bytes], lines: Iterable[bytes], replaced: Iterable[bytes]) -> str:
    """Return 16 hexadecimal digits over all lines of one patch; blanks around a line do not count."""
    inserted = [*(line.strip() for line in block), *sorted(line.strip() for line in lines)]
    return sha256(b"\n".join([*inserted, *(line.strip() for line in replaced)])).hexdigest()[:16]


class Marked(NamedTuple):
    """One patch with its marks in a file.

    ``lines`` are the indices of its lines, the opening mark first; ``replaced`` are the indices of its ``# was:``
    comments. ``digest`` is read from the opening mark, ``actual`` computed from the present lines. ``uses`` are the
    shared blocks from whose class the block derives.
    """

    patch: PatchId
    lines: tuple[int, ...]
    replaced: tuple[int, ...]
    digest: str
    actual: str
    uses: frozenset[PatchId] = frozenset()

    @property
    def intact(self) -> bool:
        """Tell whether nobody has changed the lines of the patch."""
        return self.digest == self.actual


def _name(match: re.Match[bytes]) -> PatchId:
    return PatchId(*match["id"].decode("ascii", "replace").split(" ", 2))


class _Block(NamedTuple):
    """A block of lines with the indices ``first`` to ``last``, and the patch and digest of its opening mark."""

    patch: PatchId
    first: int
    last: int
    digest: str


def marked(data: bytes, expected: Collection[PatchId] = ()) -> tuple[Marked, ...]:
    """Return every patch and shared block whose marks (rlpatch's comments) are in ``data``, in the order of the file.

    ``expected`` are the patches that the store has for the file. A mark outside of a block whose patch has no block is
    somebody else's comment, unless the patch is expected or code of it is in ``data``. Raises :class:`Problem`
    (FOREIGN_EDIT, at the line number) if the marks do not pair.
    """
    if b"rlpatch" not in data:
        return ()
    lines = lines_of.split(data)
    blocks, calls = _paired(data, ((at, line) for at, line in enumerate(lines) if b"rlpatch" in line), expected)
    for patch, indices in calls.items():
        is_mark = patch in expected or any(_named(lines[at], patch) or _WAS.fullmatch(lines[at]) for at in indices)
        if is_mark and patch not in blocks:
            cause = Text(
                "an rlpatch marker comment names a block of inserted lines that is not in the file: was the file edited"
                " by hand?"
            )
            raise _unpaired(indices[0], cause)
    shared = [patch for patch in blocks if patch.shared]
    return tuple(_marked(block, lines, calls.get(block.patch, []), shared) for block in blocks.values())


def _paired(
    data: bytes, lines: Iterable[tuple[int, bytes]], expected: Collection[PatchId]
) -> tuple[dict[PatchId, _Block], dict[PatchId, list[int]]]:
    """Return each patch's block, and each patch's indices of marked lines outside of blocks.

    ``lines`` are the lines of ``data`` that contain ``rlpatch``, with their indices. A closing mark that no block has
    is an error inside blocks; outside, only if its patch is ``expected`` in the file or code of it is in ``data``.
    """
    blocks: dict[PatchId, _Block] = {}
    calls: dict[PatchId, list[int]] = {}
    opened: _Block | None = None
    for index, line in lines:
        if start := _BEGIN.fullmatch(line):
            if opened or _name(start) in blocks:
                cause = Text(
                    "a start marker of rlpatch lies inside another block of inserted lines, or a block has two start"
                    " markers"
                )
                raise _unpaired(index, cause)
            opened = _Block(_name(start), index, index, start["digest"].decode())
        elif stop := _END.fullmatch(line):
            patch = _name(stop)
            if opened and opened.patch == patch:
                blocks[patch], opened = opened._replace(last=index), None
            elif opened or patch in {*expected, *blocks} or _named(data, patch):
                raise _unpaired(index, Text("an end marker of rlpatch has no start marker before it"))
        elif not opened and (call := _LINE.fullmatch(line)):
            calls.setdefault(_name(call), []).append(index)
        elif _BEGIN.search(line):
            cause = Text("an rlpatch marker comment is in the middle of a line: were the line endings converted?")
            raise _unpaired(index, cause)
    if opened:
        cause = Text("an rlpatch marker comment begins a block of inserted lines, but no comment ends it")
        raise _unpaired(opened.first, cause)
    return blocks, calls


def _marked(block: _Block, lines: Sequence[bytes], outside: Sequence[int], shared: Iterable[PatchId]) -> Marked:
    """Return where in a file the lines of one patch are, whether they are unchanged, and the shared blocks they use."""
    patch, first, last, digest = block
    replaced = tuple(index for index in outside if _WAS.fullmatch(lines[index]))
    added = [lines[index] for index in outside if index not in replaced]
    inner = lines[first + 1 : last + 1]
    actual, text = _digest(inner, added, [lines[index] for index in replaced]), b"".join(inner)
    uses = (other for other in shared if other != patch and other.rename("(_RlpatchStage):").encode() in text)
    return Marked(patch, (*range(first, last + 1), *outside), replaced, digest, actual, frozenset(uses))


def _named(text: bytes, patch: PatchId) -> bool:
    """Tell whether ``text`` contains a name or the note that only inserted code of ``patch`` contains."""
    names = (patch.rename("_rlpatch_stage"), patch.rename("_RlpatchStage"), note(patch))
    return any(name.encode() in text for name in names)


def holds(mark: Marked, block: Iterable[str]) -> bool:
    """Tell whether the shared block of ``mark`` has exactly the lines ``block`` between note and closing mark."""
    note, closing = (text.encode() for text in (_NOTE_SHARED, end(mark.patch)))
    return mark.actual == _digest([note, *(line.encode() for line in block), closing], (), ())


_NOTE_SHARED = "# Shared by patches of this class; the last one that is reverted takes it out again."


def note(patch: PatchId) -> str:
    """Return the comment below the opening mark of ``patch``, which says how to remove the block."""
    text = f"# Inserted by rlpatch; `rlpatch revert {patch.target}` takes it out again."
    return _NOTE_SHARED if patch.shared else text


def seal(data: bytes, patch: PatchId) -> bytes:
    """Return ``data`` with the digest of the lines of ``patch`` in place of the placeholder that ``begin`` writes."""
    actual = next(mark.actual for mark in marked(data) if mark.patch == patch)
    mark = begin(patch, "").rstrip(_UNSEALED).encode()
    start = data.index(_UNSEALED.encode(), data.index(mark.rstrip()))
    return data[:start] + actual.encode() + data[start + len(actual) :]


def strip(data: bytes, patches: Iterable[PatchId] | None = None, *, where: str = "") -> bytes:
    """Return ``data`` without the lines of ``patches`` (None: of all), and with the lines that they replaced.

    A shared block goes with the last patch that uses it; edits of other people stay. Raises :class:`Problem`
    (FOREIGN_EDIT, at ``where`` and the line) if the marks do not pair, or if somebody edited a line to remove.
    """
    chosen = None if patches is None else set(patches)
    try:
        marks = marked(data, chosen or ())
    except Problem as problem:
        raise problem.replace(where=f"{where}:{problem.where}") from None
    to_remove = _marks_to_remove(marks, chosen)
    for mark in to_remove:
        if not mark.intact:
            cause = Text("somebody changed the lines of the patch “{patch}”", mark.patch)
            hint = Text("undo the edit, or {reinstall}", REINSTALL)
            raise Problem(Kind.FOREIGN_EDIT, cause, f"{where}:{mark.lines[0] + 1}", hint)
    return _without(data, to_remove) if to_remove else data


def unmarked(data: bytes) -> bytes:
    """Return ``data`` without any marked line, even edited lines; unchanged if the marks do not pair."""
    try:
        return _without(data, marked(data))
    except Problem:
        return data


def _marks_to_remove(marks: Sequence[Marked], patches: Collection[PatchId] | None) -> list[Marked]:
    """Return the ``marks`` of ``patches`` (None: all), and of shared blocks that no remaining patch uses."""
    if patches is None:
        return [*marks]
    needed = {shared for mark in marks if mark.patch not in patches for shared in mark.uses}
    lonely = [mark for mark in marks if mark.patch.shared and mark.patch not in {*patches, *needed}]
    return [*(mark for mark in marks if mark.patch in patches), *lonely]


def _without(data: bytes, marks: Sequence[Marked]) -> bytes:
    """Return ``data`` without the lines of ``marks``, and with the original lines of their ``# was:`` comments."""
    lines, back = lines_of.split(data), {index for mark in marks for index in mark.replaced}
    removed = {index for mark in marks for index in mark.lines} - back
    before = {index: _WAS.sub(rb"\g<indent>\g<line>\g<end>", lines[index]) for index in back}
    remaining = b"".join(before.get(index, line) for index, line in enumerate(lines) if index not in removed)
    if len(lines) - 1 in removed and not lines[-1].endswith(b"\n"):
        remaining = remaining[: -2 if remaining.endswith(b"\r\n") else -1]
    return remaining


def _unpaired(index: int, cause: Text) -> Problem:
    hint = Text("{reinstall}, or delete the marked lines by hand", REINSTALL)
    return Problem(Kind.FOREIGN_EDIT, cause, str(index + 1), hint)
