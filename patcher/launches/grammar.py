"""The trees of shell texts, by tree-sitter-bash, whose faults are kept from those who read them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

__all__ = ["Node", "parsed"]

# Signs beyond the first 65,536, emoji say, and surrogates; as many bytes of others stand for them.
_FAR = re.compile(rb"[\xf0-\xf7][\x80-\xbf]{3}|\xed[\xa0-\xbf][\x80-\xbf]")
_NEAR = {4: "\u00e9\u00e9".encode(), 3: "\u4e2d".encode()}


def parsed(source: bytes) -> Node:
    """The tree of a shell text.

    Of signs beyond the first 65,536 tree-sitter-bash 0.25 reads memory that is not its own: other letters stand for
    them while it parses, since to the shell they are letters, too.
    """
    source = _FAR.sub(lambda sign: _NEAR[len(sign[0])], source)
    parser = Parser(Language(tree_sitter_bash.language()))
    for _ in range(3):
        root = parser.parse(source).root_node
        mended = bytearray(source)
        for at, sign in _faults(root, source):
            mended[at] = ord(sign)
        if mended == source:
            break
        source = bytes(mended)
    return root


def _faults(node: Node, source: bytes) -> Iterable[tuple[int, str]]:
    """Where the grammar goes wrong behind assignments, and what sign keeps it from that."""
    if node.type == "command":
        for child, following in itertools.pairwise(node.children):
            start, end = child.end_byte, following.start_byte
            if child.type != "variable_assignment":
                continue
            if b"\n" in source[start:end].replace(b"\\\n", b"") and source[start : start + 1] in b" \t\n":
                yield start, ";"  # it takes a line of several assignments for those of the command on the next one
            elif start == end and source[start - 1 : start] == b"$":
                yield start - 1, "_"  # it ends a value before a parameter, which is not known to whoever reads it
    for child in node.children:
        yield from _faults(child, source)
