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

# Each round mends what is seen by then.
_ROUNDS = 100
_IN_A_LINE = frozenset({
    "command", "declaration_command", "unset_command", "test_command", "redirected_statement", "file_redirect",
})  # fmt: skip
_LINE_END = re.compile(rb"(?<!\\)\n")


def parsed(source: bytes) -> Node:
    """The tree of a shell text.

    Of signs beyond the first 65,536 tree-sitter-bash 0.25 reads memory that is not its own: other letters stand for
    them while it parses, since to the shell they are letters, too.
    """
    source = _FAR.sub(lambda sign: _NEAR[len(sign[0])], source)
    parser = Parser(Language(tree_sitter_bash.language()))
    for _ in range(_ROUNDS):
        root = parser.parse(source).root_node
        mended = bytearray(source)
        for at, sign in _faults(root, source):
            mended[at] = ord(sign)
        if mended == source:
            return root
        source = bytes(mended)
    return parser.parse(b"(").root_node  # for nobody knows what would be right


def _faults(node: Node, source: bytes) -> Iterable[tuple[int, str]]:
    """Where the grammar goes wrong, and what sign keeps it from that.

    Now and then it takes the next lines for words of a command, of a redirection behind it, or of a test:
    ``a | b | c``, or ``[ a ] && b > c``, and some lines behind it another ``]``.
    """
    if node.type in _IN_A_LINE and source[node.start_byte : node.start_byte + 2] not in {b"[[", b"(("}:
        for child, following in itertools.pairwise(node.children):
            start, end = child.end_byte, following.start_byte
            line_end = _LINE_END.search(source, start, end) if child.type != "heredoc_redirect" else None
            if line_end:  # that of a comment stays, or the comment would go on
                yield (child.start_byte if child.type == "comment" else line_end.end()) - 1, ";"
            elif child.type == "variable_assignment" and start == end and source[start - 1 : start] == b"$":
                yield start - 1, "_"  # it ends a value before a parameter, which is not known to whoever reads it
    for child in node.children:
        yield from _faults(child, source)
