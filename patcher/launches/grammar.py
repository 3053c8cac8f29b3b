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
        # The grammar takes a line of several assignments for those of the command on the next one.
        ends = [at for at in _unended(root) if source[at : at + 1] in b" \t\n"]
        if not ends:
            break
        mended = bytearray(source)
        for at in ends:
            mended[at] = ord(";")
        source = bytes(mended)
    return root


def _unended(node: Node) -> Iterable[int]:
    if node.type == "command":
        for child, following in itertools.pairwise(node.children):
            between = (node.text or b"")[child.end_byte - node.start_byte : following.start_byte - node.start_byte]
            if child.type == "variable_assignment" and b"\n" in between.replace(b"\\\n", b""):
                yield child.end_byte
    for child in node.children:
        yield from _unended(child)
