"""Changing arguments of upstream's own calls: the lines that were there stay as comments, and come back from them.

What is changed is found in the syntax tree and edited at its place in the text, so that everything else on a line
stays as it is. The proof is in the outcome: the tree of the patched file has to be that of the file before with the
arguments changed and nothing else, and the marks have to give the file before, to the byte.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from patcher.changes import lines, markers
from patcher.changes.change import PatchId
from patcher.editing import anchors
from patcher.editing import source as sources
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Call, Recipe

Arguments = Mapping[tuple[str, str], str]
"""(last part of the function's name, keyword) → code."""


class Setting(NamedTuple):
    """One argument: its code before and after ("" where it is not given), and the line on which it stands after."""

    function: str
    keyword: str
    before: str
    after: str
    line: int

    @property
    def changed(self) -> bool:
        """Whether the argument means something else after than before."""
        return self.before != self.after


class Replaced(NamedTuple):
    """The bytes of the file after, the arguments that were asked for, and all that the recipe's calls have after."""

    after: bytes
    settings: tuple[Setting, ...]
    arguments: Arguments


def present(source: bytes, recipe: Recipe, *, where: str) -> tuple[Setting, ...]:
    """The arguments that the recipe's calls have in ``source``; Problem as from ``replace``."""
    tree, search = _read(source, where)[0], anchors.AnchorSearch(recipe, source, where)
    return tuple(
        Setting(call.name, keyword, _code(node), _code(node), node.lineno)
        for call, found in _calls(tree, search)
        for keyword, node in _given(call, found, search).items()
    )


def replace(source: bytes, recipe: Recipe, arguments: Arguments, patch: PatchId, tool: str, *, where: str) -> Replaced:
    """``source`` with ``arguments`` in the calls of ``recipe``; as it is, if all of them are there already.

    Raises :class:`Problem` (STRUCTURE) where the file is not what the recipe describes, and where the lines of an
    argument cannot be kept as comments.
    """
    tree, text, encoding = _read(source, where)
    search = anchors.AnchorSearch(recipe, source, where)
    calls = _calls(tree, search)
    file, edits, before = _Text(text), [], {}
    for call, found in calls:
        given = _given(call, found, search)
        for keyword, code in ((key[1], code) for key, code in arguments.items() if key[0] == call.name):
            old = given.get(keyword)
            before[call.name, keyword] = stands = _code(old) if old else call.defaults.get(keyword, "")
            if stands != _code(_value(code)):
                edits.append(file.value(old, code) if old else file.added(found, keyword, code))
                _assign(found, old, keyword, code)
    after = source
    if edits:
        target = search.only_class(sources.classes(tree))
        after = markers.seal(file.written(edits, target, patch, tool, where).decode().encode(encoding), patch)
        _verify(source, after, tree, patch, f"{where}:{calls[0][1].lineno}")
    now = {(one.function, one.keyword): one for one in present(after, recipe, where=where)}
    settings = (
        Setting(*key, stands, _code(_value(arguments[key])), now[key].line if key in now else 0)
        for key, stands in before.items()
    )
    return Replaced(after, tuple(settings), {key: one.after for key, one in now.items()})


def _read(source: bytes, where: str) -> tuple[ast.Module, bytes, str]:
    """The tree, the text in the encoding in which the tree counts columns, and the file's own encoding."""
    sources.readable(source, where)
    sources.parse(source, where)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = source.decode(encoding)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        cause = f"the Python that runs rlpatch cannot read the file: {error.msg}"
        raise Problem(Kind.STRUCTURE, cause, f"{where}:{error.lineno}", "run rlpatch with a newer Python") from None
    if text.encode(encoding) != source:
        cause = f"its encoding, {encoding}, does not give the file back to the byte"
        raise Problem(Kind.STRUCTURE, cause, where, "reinstall the package")
    return tree, text.encode(), encoding


def _code(node: ast.expr) -> str:
    return ast.unparse(node)


def _value(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


def _calls(tree: ast.Module, search: anchors.AnchorSearch) -> list[tuple[Call, ast.Call]]:
    """Each of the recipe's calls, which stands in its method exactly once."""
    method = search.only_method(search.recipe.method, sources.methods(search.only_class(sources.classes(tree))))
    return [(call, search.only_call(call, method)) for call in search.recipe.calls]


def _given(call: Call, found: ast.Call, search: anchors.AnchorSearch) -> dict[str, ast.expr]:
    """The arguments of ``found`` by their names."""
    stars = any(isinstance(arg, ast.Starred) for arg in found.args) or any(k.arg is None for k in found.keywords)
    if stars or len(found.args) > len(call.positional):
        what = "arguments that only the run knows" if stars else f"{len(found.args)} arguments by position"
        raise search.unlike(f"{call.function} with {what}", found.lineno)
    by_name = {keyword.arg: keyword.value for keyword in found.keywords if keyword.arg}
    return {**dict(zip(call.positional, found.args, strict=False)), **by_name}


def _assign(found: ast.Call, old: ast.expr | None, keyword: str, code: str) -> None:
    """Make ``found`` the call that is wanted, for the comparison at the end."""
    value = _value(code)
    if old is None:
        first = _first(found)
        at = found.keywords.index(first) if first else len(found.keywords)
        found.keywords.insert(at, ast.keyword(keyword, value))
    found.args = [value if arg is old else arg for arg in found.args]
    for one in found.keywords:
        one.value = value if one.value is old else one.value


def _first(found: ast.Call) -> ast.keyword | None:
    """The first keyword argument that stands in the file."""
    return next((keyword for keyword in found.keywords if hasattr(keyword, "lineno")), None)


def _verify(source: bytes, after: bytes, wanted: ast.Module, patch: PatchId, where: str) -> None:
    try:
        same = ast.dump(ast.parse(after)) == ast.dump(wanted)
    except SyntaxError:
        same = False
    cause = "an argument shares its lines with something that cannot become a comment, such as a text of several lines"
    hint = "nothing was written; put the arguments on lines of their own, or reinstall the package"
    if not same:
        raise Problem(Kind.STRUCTURE, cause, where, hint)
    sources.prove(source, after, [patch], where, cause, hint)


class _Edit(NamedTuple):
    """``text`` for the bytes from ``start`` to ``end``; a ``line`` is one of its own, in front of that of ``start``."""

    start: int
    end: int
    text: bytes
    line: bool = False


class _Piece(NamedTuple):
    """``lines`` for the lines from ``first`` on, ``end`` not among them; those are kept as comments."""

    first: int
    end: int
    lines: list[bytes]


class _Text:
    """A file in UTF-8, whose places are given as ``ast`` has them."""

    def __init__(self, text: bytes) -> None:
        self.lines = lines.split(text)
        self.starts = [0, *accumulate(map(len, self.lines))]
        self.text = text

    def _at(self, line: int | None, column: int | None) -> int:
        return self.starts[(line or 1) - 1] + (column or 0)

    def value(self, old: ast.expr, code: str) -> _Edit:
        """``code`` for the expression ``old``."""
        start, end = self._at(old.lineno, old.col_offset), self._at(old.end_lineno, old.end_col_offset)
        return _Edit(start, end, code.encode())

    def added(self, found: ast.Call, keyword: str, code: str) -> _Edit:
        """One more argument: before the first that is given by name, else behind the others."""
        text = f"{keyword}={code}".encode()
        if first := _first(found):
            start = self._at(first.lineno, first.col_offset)
            above = self.lines[first.lineno - 2].rstrip()
            alone = not self.lines[first.lineno - 1][: first.col_offset].strip() and not above.endswith(b"\\")
            return _Edit(start, start, text + (b"," if alone else b", "), alone)
        closing = self._at(found.end_lineno, found.end_col_offset) - 1
        if not found.args:
            return _Edit(closing, closing, text if not found.keywords else b", " + text)
        last = found.args[-1]
        behind = self._at(last.end_lineno, last.end_col_offset)
        # Parentheses around the argument itself; white space, comments and continued lines may stand between.
        while (match := _CLOSES.match(self.text, behind)) and match.end() <= closing:
            behind = match.end()
        return _Edit(behind, behind, b", " + text)

    def written(self, edits: Sequence[_Edit], target: ast.ClassDef, patch: PatchId, tool: str, where: str) -> bytes:
        """The file with ``edits``, every line of ours tagged, and the block of ``patch`` at the end of ``target``."""
        mark = f"  {markers.tag(patch)}".encode()
        pieces = sorted([*self._alone(edits), *self._replaced(edits)], key=lambda piece: piece[:2])
        tagged = [piece._replace(lines=[_tagged(line, mark) for line in piece.lines]) for piece in pieces]
        after: list[bytes] = []
        at = 0
        for first, end, ours in [*tagged, self._block(target, patch, tool)]:
            after += [*self.lines[at:first], *self._comments(first, end, patch, where), *ours]
            at = end
        after += self.lines[at:]
        line_end = self._end_of(0)
        whole = [line if line.endswith(b"\n") else line + line_end for line in after]
        if not self.lines[-1].endswith(b"\n"):
            whole[-1] = whole[-1].rstrip(b"\r\n")
        return b"".join(whole)

    def _end_of(self, index: int) -> bytes:
        return b"\r\n" if self.lines[index].endswith(b"\r\n") else b"\n"

    def _comments(self, first: int, end: int, patch: PatchId, where: str) -> Iterator[bytes]:
        for index in range(first, end):
            try:
                yield markers.was(self.lines[index], patch)
            except ValueError:
                cause = "a line that would be replaced carries the mark of another patch"
                hint = "revert that patch first (rlpatch status), or word the comment otherwise if it is your own"
                raise Problem(Kind.STRUCTURE, cause, f"{where}:{index + 1}", hint) from None

    def _line(self, at: int) -> int:
        return bisect_right(self.starts, at) - 1

    def _alone(self, edits: Sequence[_Edit]) -> Iterator[_Piece]:
        for edit in (edit for edit in edits if edit.line):
            index = self._line(edit.start)
            yield _Piece(index, index, [self.text[self.starts[index] : edit.start] + edit.text + self._end_of(index)])

    def _replaced(self, edits: Sequence[_Edit]) -> Iterator[_Piece]:
        """The lines that are edited, those that a backslash joins to them along with them."""
        inline = sorted((edit for edit in edits if not edit.line), key=lambda edit: edit.start)
        spans: list[tuple[int, int]] = []
        for edit in inline:
            first, last = self._line(edit.start), self._line(max(edit.start, edit.end - 1))
            while first and self._joined(first - 1):
                first -= 1
            while self._joined(last):
                last += 1
            if spans and first < spans[-1][1]:
                first, _ = spans.pop()
            spans.append((first, last + 1))
        for first, end in spans:
            at, text = self.starts[first], b""
            for edit in (e for e in inline if self.starts[first] <= e.start < self.starts[end]):
                text, at = text + self.text[at : edit.start] + edit.text, edit.end
            text += self.text[at : self.starts[end]]
            yield _Piece(first, end, lines.split(_JOINED.sub(b" ", text)))

    def _joined(self, index: int) -> bool:
        return self.lines[index].rstrip(b"\r\n").endswith(b"\\")

    def _block(self, target: ast.ClassDef, patch: PatchId, tool: str) -> _Piece:
        """The block at the end of ``target``, behind those of earlier patches."""
        at = target.end_lineno or 0
        for index in range(at, len(self.lines)):
            comment = self.lines[index].strip()
            if comment and not comment.startswith(b"#"):
                break
            if markers.closes(comment.decode()):
                at = index + 1
        first = self.lines[target.body[0].lineno - 1]
        indent, end = first[: len(first) - len(first.lstrip())], self._end_of(at - 1)
        note = f"# rlpatch changed arguments above; `rlpatch revert {patch.target}` puts back what `# was` there."
        texts = (markers.begin(patch, tool), note, markers.end(patch))
        return _Piece(at, at, [indent + text.encode() + end for text in texts])


_CLOSES = re.compile(rb"(?:\s|\\\r?\n|#[^\n]*)*\)")
_JOINED = re.compile(rb"[ \t]*\\\r?\n[ \t]*")


def _tagged(line: bytes, mark: bytes) -> bytes:
    bare = line.rstrip(b"\r\n")
    return bare + mark + line[len(bare) :]
