"""Changing arguments of upstream's own calls: the lines that were there stay as comments, and come back from them.

What is changed is found in the syntax tree and edited at its place in the text, so that everything else on a line
stays as it is. The proof is in the outcome: the tree of the patched file has to be that of the file before with the
arguments changed and nothing else, and the marks have to give the file before, to the byte.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from patcher.changes import lines, markers
from patcher.changes.change import PatchId
from patcher.editing import source as sources
from patcher.editing.anchors import AnchorSearch
from patcher.editing.source import Piece, SourceFile
from patcher.messages import Kind, Problem, Text
from patcher.recipe import Call, Recipe

Arguments = Mapping[tuple[str, str], str]
"""(last part of the function's name, keyword) → code."""


class Setting(NamedTuple):
    """Argument of a call: its code before and after ("" if not given), and its line number afterwards."""

    function: str
    keyword: str
    before: str
    after: str
    line: int

    @property
    def changed(self) -> bool:
        """Whether the code of the argument changes."""
        return self.before != self.after


class Replaced(NamedTuple):
    """Patched bytes of a file, the requested settings, and all arguments that the recipe's calls then have."""

    after: bytes
    settings: tuple[Setting, ...]
    arguments: Arguments


def present_settings(source: bytes, recipe: Recipe, *, where: str) -> tuple[Setting, ...]:
    """Return the arguments that the recipe's calls have in `source`, as settings that change nothing.

    Arguments that are not given have no setting. Raises Problem (STRUCTURE) if the file does not fit the recipe.
    """
    search = AnchorSearch(recipe, sources.read(source, where))
    return tuple(
        Setting(call.name, keyword, ast.unparse(node), ast.unparse(node), node.lineno)
        for call, node_of_call in _calls(search)
        for keyword, node in _keywords(call, node_of_call, search).items()
    )


def replace(source: bytes, recipe: Recipe, arguments: Arguments, patch: PatchId, tool: str, *, where: str) -> Replaced:
    """Return the file with `arguments` in the calls of `recipe`, and the settings before and after.

    `arguments` maps (function, keyword) to code; functions that the recipe does not call are ignored. If the calls have
    these arguments already, the bytes are `source` itself. `tool` is the version of rlpatch in the marks of `patch`,
    `where` names the file in messages. Raises Problem (STRUCTURE) if the file does not fit the recipe, or if an
    argument's lines cannot become comments.
    """
    file = sources.read(source, where)
    file = file._replace(tree=ast.parse(source))  # its own tree, which becomes that of the patched file
    search = AnchorSearch(recipe, file)
    calls = _calls(search)
    text, edits, before = _Text(file), list[_Edit](), {}
    for call, node in calls:
        there = _keywords(call, node, search)
        for keyword, code in ((key[1], code) for key, code in arguments.items() if key[0] == call.name):
            old = there.get(keyword)
            before[call.name, keyword] = stands = ast.unparse(old) if old else call.defaults.get(keyword, "")
            if stands != ast.unparse(_value(code)):
                edits.append(text.value(old, code) if old else text.addition(node, keyword, code))
                _assign(node, old, keyword, code)
    after = source
    if edits:
        note = f"# rlpatch changed arguments above; `rlpatch revert {patch.target}` puts back what `# was` there."
        block = (markers.begin(patch, tool), note, markers.end(patch))
        after = markers.seal(file.with_edits(text.pieces(edits, patch), search.only_owner(), block), patch)
        _verify(file, after, patch, f"{where}:{calls[0][1].lineno}")
    now = {(setting.function, setting.keyword): setting for setting in present_settings(after, recipe, where=where)}
    settings = (
        Setting(*key, stands, ast.unparse(_value(arguments[key])), now[key].line if key in now else 0)
        for key, stands in before.items()
    )
    return Replaced(after, tuple(settings), {key: setting.after for key, setting in now.items()})


def _value(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


def _calls(search: AnchorSearch) -> list[tuple[Call, ast.Call]]:
    """Return the recipe's calls with their syntax nodes. Raises Problem (STRUCTURE) unless each occurs exactly once."""
    method = search.only_method(search.recipe.method)
    return [(call, search.only_call(call, method)) for call in search.recipe.calls]


def _keywords(call: Call, node: ast.Call, search: AnchorSearch) -> dict[str, ast.expr]:
    """Return the arguments of the call `node` by parameter name.

    Raises Problem (STRUCTURE) for `*args`, `**kwargs`, or more positional arguments than `call` has names for.
    """
    stars = any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords)
    if stars or len(node.args) > len(call.positional):
        actual = Text(
            "a call of {function} with {count} positional arguments; at most {limit} were expected",
            function=call.function,
            count=len(node.args),
            limit=len(call.positional),
        )
        if stars:
            actual = Text(
                "a call of {function} with *args or **kwargs, whose values are known only while the program runs",
                call.function,
            )
        raise search.mismatch(actual, node.lineno)
    by_name = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    return {**dict(zip(call.positional, node.args, strict=False)), **by_name}


def _assign(node: ast.Call, old: ast.expr | None, keyword: str, code: str) -> None:
    """Change the syntax node of a call in place, so that its argument `keyword` has the value `code`.

    `old` is the node of the present value, None without one. `replace` compares the changed tree with that of the
    patched file.
    """
    value = _value(code)
    if old is None:
        first = _first(node)
        at = node.keywords.index(first) if first else len(node.keywords)
        node.keywords.insert(at, ast.keyword(keyword, value))
    node.args = [value if arg is old else arg for arg in node.args]
    for argument in node.keywords:
        argument.value = value if argument.value is old else argument.value


def _first(node: ast.Call) -> ast.keyword | None:
    """Return the first keyword argument that is in the file, not added; None if there is none."""
    return next((keyword for keyword in node.keywords if hasattr(keyword, "lineno")), None)


def _verify(file: SourceFile, after: bytes, patch: PatchId, where: str) -> None:
    """Raise Problem (STRUCTURE) unless `after` parses to the tree of `file`, and a revert of `patch` gives its source.

    `file` has the source before the change, but the tree after it. `after` are the patched bytes. `where` names the
    file and line in the message.
    """
    cause = Text(
        "rlpatch cannot patch this call, because an argument shares a line with text that cannot be turned into a"
        " comment, such as a multi-line string"
    )
    hint = Text(
        "nothing was written, because rlpatch cannot change a call in this file: put each argument of the call on a"
        " line of its own, or reinstall the package"
    )
    try:
        same = ast.dump(sources.read(after, where).tree) == ast.dump(file.tree)
    except Problem:
        same = False
    if not same:
        raise Problem(Kind.STRUCTURE, cause, where, hint)
    sources.prove(file.source, after, [patch], where, cause, hint)


class _Edit(NamedTuple):
    """Replacement of the bytes from `start` to `end` by `text`; with `line`, a new line in front of that of `start`."""

    start: int
    end: int
    text: bytes
    line: bool = False


class _Text:
    """Text of a file with byte offsets for the positions that `ast` gives."""

    def __init__(self, file: SourceFile) -> None:
        self.file, self.lines = file, file.lines
        self.starts = [0, *accumulate(map(len, self.lines))]
        self.text = b"".join(self.lines)

    def _start(self, node: ast.expr | ast.keyword) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        return self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def value(self, old: ast.expr, code: str) -> _Edit:
        """Return the edit that replaces the expression `old` by `code`."""
        return _Edit(self._start(old), self._end(old), code.encode())

    def addition(self, node: ast.Call, keyword: str, code: str) -> _Edit:
        """Return the edit that adds the argument `keyword` with the value `code` to a call.

        It goes before the first argument given by name, on a line of its own if that one begins a line. Without such an
        argument, it goes after all others.
        """
        text = f"{keyword}={code}".encode()
        if first := _first(node):
            start = self._start(first)
            above = self.lines[first.lineno - 2].rstrip()
            alone = not self.lines[first.lineno - 1][: first.col_offset].strip() and not above.endswith(b"\\")
            return _Edit(start, start, text + (b"," if alone else b", "), alone)
        closing = self._end(node) - 1
        if not node.args:
            return _Edit(closing, closing, text if not node.keywords else b", " + text)
        position = self._end(node.args[-1])
        # Parentheses around the argument itself; white space, comments and continued lines may stand between.
        while (match := _CLOSES.match(self.text, position)) and match.end() <= closing:
            position = match.end()
        return _Edit(position, position, b", " + text)

    def pieces(self, edits: Sequence[_Edit], patch: PatchId) -> list[Piece]:
        """Return the changed parts of the file: the original lines as comments, then the lines with `edits` made.

        All of these lines bear marks of `patch`. Raises Problem (STRUCTURE) if another patch marked an original line.
        """
        mark = f"  {markers.tag(patch)}".encode()
        return [
            Piece(first, end, [*self._comments(first, end, patch), *(_tagged(line, mark) for line in new_lines)])
            for first, end, new_lines in (*self._new_lines(edits), *self._edited_lines(edits))
        ]

    def _comments(self, first: int, end: int, patch: PatchId) -> Iterator[bytes]:
        """Yield the lines from index `first` up to, but without, `end` as comments that a revert of `patch` restores.

        Raises Problem (STRUCTURE) if another patch marked one.
        """
        for index in range(first, end):
            try:
                yield markers.as_was_comment(self.lines[index], patch)
            except ValueError:
                cause = Text("another patch has already marked a line that this patch must replace")
                hint = Text(
                    "revert the other patch first (see `rlpatch status`); if you wrote the marker comment yourself,"
                    " reword it"
                )
                raise Problem(Kind.STRUCTURE, cause, f"{self.file.where}:{index + 1}", hint) from None

    def _line(self, at: int) -> int:
        return bisect_right(self.starts, at) - 1

    def _new_lines(self, edits: Sequence[_Edit]) -> Iterator[Piece]:
        """Yield the new line, and where it goes in, for each edit that puts an argument on a line of its own."""
        for edit in (edit for edit in edits if edit.line):
            index = self._line(edit.start)
            text = self.text[self.starts[index] : edit.start] + edit.text + self.file.line_end(index)
            yield Piece(index, index, [text])

    def _edited_lines(self, edits: Sequence[_Edit]) -> Iterator[Piece]:
        """Yield each range of lines that edits change, with its new lines; lines joined by a backslash become one.

        Edits that add a line of their own are left out.
        """
        inline = sorted((edit for edit in edits if not edit.line), key=lambda edit: edit.start)
        spans: list[tuple[int, int]] = []
        for edit in inline:
            first, last = self._line(edit.start), self._line(max(edit.start, edit.end - 1))
            while first and self._is_continued(first - 1):
                first -= 1
            while self._is_continued(last):
                last += 1
            if spans and first < spans[-1][1]:
                first, _ = spans.pop()
            spans.append((first, last + 1))
        for first, end in spans:
            at, text = self.starts[first], b""
            for edit in (e for e in inline if self.starts[first] <= e.start < self.starts[end]):
                text, at = text + self.text[at : edit.start] + edit.text, edit.end
            text += self.text[at : self.starts[end]]
            yield Piece(first, end, lines.split(_JOINED.sub(b" ", text)))

    def _is_continued(self, index: int) -> bool:
        """Tell whether a backslash joins a line to the next one."""
        return self.lines[index].rstrip(b"\r\n").endswith(b"\\")


_CLOSES = re.compile(rb"(?:\s|\\\r?\n|#[^\n]*)*\)")
_JOINED = re.compile(rb"[ \t]*\\\r?\n[ \t]*")


def _tagged(line: bytes, mark: bytes) -> bytes:
    """Return a line with ``mark`` before its line end."""
    bare = line.rstrip(b"\r\n")
    return bare + mark + line[len(bare) :]
