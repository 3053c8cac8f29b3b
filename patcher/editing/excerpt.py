"""The part of a file that an insertion is about: LibCST takes its time over each line, and the others stay as they are.

Of a class and of the module those statements are kept that something goes into, and the last one, behind which the
class ends, and the file. What is left out takes along the comments and blank lines behind it.
"""

from __future__ import annotations

import ast
import codecs
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from patcher.changes import lines as lines_of


class Excerpt(NamedTuple):
    """Some of the ``lines`` of a file: ``kept`` are their indices."""

    lines: Sequence[bytes]
    kept: Sequence[int]

    @property
    def text(self) -> bytes:
        """What is kept."""
        return b"".join(self.lines[index] for index in self.kept)

    def put_back(self, after: bytes) -> bytes:
        """The file with the lines that ``after`` has more than :attr:`text`."""
        found: list[bytes] = []
        at, kept = 0, iter([*self.kept, len(self.lines)])
        index = next(kept)
        for line in lines_of.split(after):
            # The last line of a file may have got a line end.
            if index < len(self.lines) and line.rstrip(b"\r\n") == self.lines[index].rstrip(b"\r\n"):
                found += self.lines[at:index]
                at, index = index + 1, next(kept)
            found.append(line)
        return b"".join([*found, *self.lines[at:]])


def whole(source: bytes) -> Excerpt:
    """All lines of ``source``."""
    lines = lines_of.split(source)
    return Excerpt(lines, range(len(lines)))


def of(source: bytes, tree: ast.Module, class_name: str, methods: Collection[str]) -> Excerpt:
    """The lines for ``methods`` of the class in ``source``, of which ``tree`` is the tree.

    All lines where an encoding is declared: what does so stands at the head of the file.
    """
    lines = lines_of.split(source)
    if source.startswith(codecs.BOM_UTF8) or b"coding" in b"".join(lines[:2]):
        return whole(source)
    gone = {*_gone(tree.body, [class_name])}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            gone.update(_gone(node.body, methods))
    return Excerpt(lines, [index for index in range(len(lines)) if index not in gone])


def _gone(block: Sequence[ast.stmt], names: Collection[str]) -> Iterator[int]:
    """The indices of the lines of a block but for those of the statements that define ``names``, and the last one."""
    spans = [
        (min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]), node.end_lineno or 0)
        for node in block
    ]
    if any(end >= start for (_, end), (start, _) in pairwise(spans)):
        return  # two statements on one line
    for node, ((start, _), (following, _)) in zip(block, pairwise(spans), strict=False):
        if getattr(node, "name", "") not in names:
            # With the comments behind it: those as deep as what is kept LibCST would take for a part of that.
            yield from range(start - 1, following - 1)
