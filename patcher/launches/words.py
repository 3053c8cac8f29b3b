"""What the words of a shell script become: parameters, substitutions, arithmetic, splitting and file names.

tree-sitter-bash parses; this evaluates what it models as bash 5 does it, and everything else is RUN_TIME. Text between
the nodes of the tree is taken from the source, so that a word is right whatever the tree makes of its letters.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patcher.launches.grammar import Node
from patcher.launches.invocation import RUN_TIME, Assignment, Placed
from patcher.launches.pieces import Piece, changed, elements_of, given, is_file_name, joined, literal, many, matching
from patcher.launches.scope import ABSENT, MANY, MOST_TEXT, MOST_WORDS, Scope, Words, merged

if TYPE_CHECKING:
    from patcher.launches.reading import Reading

_LITERAL = frozenset({"word", "number", "regex", "extglob_pattern", "variable_name", "test_operator"})
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})
_QUOTES = frozenset({"string", "raw_string", "ansi_c_string"})
_NESTED = _EXPANSIONS | _QUOTES | {"process_substitution", "brace_expression", "concatenation", "translated_string"}
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}|\{[^{}]*\{")
# A parameter, a substitution or a quote that the tree does not show.
_MISSED = re.compile(r"[`'\"]|\$[\w({@*#?!$-]")
_SETS = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})")
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
# Variables that bash itself gives values.
OWN = frozenset({
    "_", "BASHOPTS", "BASHPID", "BASH", "BASH_ARGC", "BASH_ARGV", "BASH_COMMAND", "BASH_LINENO", "BASH_SUBSHELL",
    "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID",
    "FUNCNAME", "GROUPS", "HISTCMD", "HOSTNAME", "HOSTTYPE", "LINENO", "MACHTYPE", "OLDPWD", "OPTERR", "OPTIND",
    "OSTYPE", "PIPESTATUS", "PPID", "PS4", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID", "COLUMNS",
    "LINES",
})  # fmt: skip


_OPEN = (Assignment(None, "", ""), *ABSENT)


def _told(ways: Sequence[Assignment]) -> tuple[str, str]:
    """The text of a parameter, and where it is set."""
    last, alike = ways[-1], len({(one.text, one.present) for one in ways}) == 1
    text = RUN_TIME if not alike else last.text if last.present else "" if last.where else None
    return RUN_TIME if text is None else text, "" if last.where == "environment" else last.where


def braced(pieces: Sequence[Piece]) -> bool:
    """Whether braces make several words of pieces."""
    return bool(_BRACES.search("".join(one.text if one.literal else "q" for one in pieces)))


class Expander:
    """Evaluates the words of one text in a scope; its statements are the Shell's, who says what a substitution prints.

    What an expansion sets or leaves to the run is changed in the scope.
    """

    def __init__(self, reading: Reading, text: str, name: str, line: int, folder: Path) -> None:
        # At the end of the text, a backslash has no line to go on with.
        self.source = (text + "\n" if text.endswith("\\\n") else text).encode("utf-8", "surrogatepass")
        self.reading, self.name, self.line, self.folder = reading, name, line, folder
        self._lines = [match.end() for match in re.finditer(rb"\n", self.source)]

    def captured(self, node: Node, scope: Scope) -> str:
        """What the statements of a substitution print."""
        raise NotImplementedError

    def where(self, node: Node) -> str:
        """The place of a node: the name of the text and the line."""
        return f"{self.name}:{self.row(node)}" if self.line else self.name

    def row(self, node: Node) -> int:
        """The line of a node."""
        return self.line + bisect(self._lines, node.start_byte)

    def text(self, node: Node) -> str:
        """The source of a node."""
        return self.slice(node.start_byte, node.end_byte)

    def slice(self, start: int, end: int) -> str:
        """A part of the source."""
        return self.source[start:end].decode("utf-8", "replace")

    # --- pieces ---

    def pieces(self, node: Node, scope: Scope, quoted: bool = False) -> list[Piece]:
        """The parts of a word."""
        kind, text = node.type, self.text(node)
        if kind == "string":
            found = self.region(node.children, node.start_byte + 1, node.end_byte - 1, scope, quoted=True, inside=True)
            return found or [Piece("", True)]
        if kind == "raw_string":
            return [Piece(text[1:-1], True)]
        if kind == "ansi_c_string":
            plain = re.sub(r"\\([\\'\"])", r"\1", text[2:-1])
            plain = plain.replace("\\n", "\n").replace("\\t", "\t") if "\\\\" not in text else plain
            return [Piece(RUN_TIME if "\\" in plain else plain, True)]
        if kind == "simple_expansion":
            return [self._plain(text.lstrip()[1:], scope, quoted)]
        if kind == "expansion":
            return self._expansion(node, scope, quoted)
        if kind == "command_substitution":
            return [Piece(self.captured(node, scope), quoted)]
        if kind == "arithmetic_expansion":
            return [Piece(self.arithmetic(node, scope), True)]
        if kind == "process_substitution":
            self.captured(node, scope)
            return [Piece(RUN_TIME, True)]
        if kind == "concatenation" or kind in _LITERAL:
            return self.region(node.children, node.start_byte, node.end_byte, scope, quoted=quoted)
        if kind == "ERROR" and not node.children and not _MISSED.search(text):
            return literal(text)
        return [many(self.where(node))]

    def region(
        self, nodes: Sequence[Node], start: int, end: int, scope: Scope, *, quoted: bool, inside: bool = False
    ) -> list[Piece]:
        """The parts of the word between two bytes, of which these are the nodes; ``inside`` a pair of double quotes."""
        found: list[Piece] = []
        for child in nodes:
            # Within double quotes only these are not plain text; with double quotes of their own behind `:-`.
            nested = child.type in (_NESTED if not quoted else _EXPANSIONS if inside else _EXPANSIONS | {"string"})
            if nested and child.start_byte >= start and child.end_byte <= end:
                # Within double quotes, the blanks before a `$` are a part of its token.
                text = self.text(child) if child.type in _EXPANSIONS else ""
                found += self._gap(start, child.start_byte + len(text) - len(text.lstrip()), quoted)
                found += self.pieces(child, scope, quoted)
                start = child.end_byte
        return found + self._gap(start, end, quoted)

    def _gap(self, start: int, end: int, quoted: bool) -> list[Piece]:
        text = self.slice(start, end)
        missed = _MISSED.search(re.sub(r"\\.|['\"]" if quoted else r"\\.", "", text, flags=re.DOTALL))
        if not text or (missed and not quoted):
            return [many()] if text else []
        if not quoted:
            return literal(text)
        return [Piece(RUN_TIME if missed else re.sub(r"\\(\n|[$`\"\\])", lambda one: one[1].strip("\n"), text), True)]

    # --- parameters ---

    def parameter(self, name: str, scope: Scope) -> tuple[Assignment, ...]:
        """Everything that a parameter may be, unset if it is so here: where the script will run it may be set."""
        args = scope.args or ()
        if name == "0":
            return (Assignment(scope.program, "", ""),)
        if name.isdecimal():
            before = args[: int(name[:6])]
            if MANY in before:
                return _OPEN
            return (Assignment(str(before[-1]), before[-1].where, ""),) if len(before) == int(name[:6]) else ABSENT
        if name == "#" and scope.args is not None and MANY not in args:
            return (Assignment(str(len(args)), "", ""),)
        if name in OWN or not (name[0].isalpha() or name[0] == "_"):
            return _OPEN if name in {"@", "*", "!"} else _OPEN[:1]
        ways = scope.look(name)
        return (Assignment(scope.folder, "", ""),) if name == "PWD" and not any(one.where for one in ways) else ways

    def value(self, name: str, scope: Scope) -> str:
        """What the plain name of a parameter stands for: of one that is just not set here, only the run tells."""
        return _told(self.parameter(name, scope))[0]

    def _plain(self, name: str, scope: Scope, quoted: bool) -> Piece:
        if name in {"@", "*"}:
            return elements_of(scope.args or (), name, quoted, scope)
        text, where = _told(self.parameter(name, scope))
        return Piece(text, quoted, where=where)

    def _expansion(self, node: Node, scope: Scope, quoted: bool) -> list[Piece]:
        inner, prefix = node.children[1:-1], ""
        if len(inner) > 1 and inner[0].type in {"#", "!"}:
            prefix, inner = inner[0].type, inner[1:]
        if not inner or inner[0].type not in {"variable_name", "special_variable_name", "subscript"}:
            return [Piece(RUN_TIME, quoted)]
        head, rest = inner[0], inner[1:]
        sign = rest[0].type if rest and not rest[0].is_named else ""
        beyond = self.slice(rest[0].end_byte if sign else head.end_byte, node.end_byte - 1)
        name = self.text(head)
        if head.type == "subscript":
            return [self._subscript(name, prefix, sign + beyond, scope, quoted)]
        if prefix == "#" and not sign:
            size = self.value(name, scope)
            return [Piece(RUN_TIME if RUN_TIME in size else str(len(size)), True)]
        if prefix or (beyond and not sign):
            return [Piece(RUN_TIME, quoted)]
        if not sign:
            return [self._plain(name, scope, quoted)]
        if sign.lstrip(":") in {"-", "=", "+", "?"}:
            return self._default(node, rest[0], name, scope, quoted)
        if name in {"@", "*"}:
            return [many()] if scope.args else [Piece(words=())]
        piece = self._plain(name, scope, quoted)
        return [piece._replace(text=RUN_TIME if RUN_TIME in piece.text else changed(piece.text, sign, beyond))]

    def _subscript(self, text: str, prefix: str, more: str, scope: Scope, quoted: bool) -> Piece:
        name, _, index = text[:-1].partition("[")
        if name == "BASH_SOURCE" and index == "0" and not prefix + more and not scope.frames:
            return Piece(scope.program, quoted)
        words = self.elements(name, scope)
        lost = MANY in words or f"odd {name}" in scope.flags or name in OWN or more or prefix == "!"
        if index in {"@", "*"}:
            if prefix == "#":
                return Piece(RUN_TIME if lost else str(len(words)), True)
            return many() if more or prefix or name in OWN else elements_of(words, index, quoted, scope)
        if not index.isdecimal() or prefix or lost:
            return Piece(RUN_TIME, quoted)
        return Piece(str(words[int(index[:6])]) if int(index[:6]) < len(words) else "", quoted)

    def elements(self, name: str, scope: Scope) -> Words:
        """The elements of an array; a variable that is none is its own first one."""
        if name in scope.arrays or name not in scope.variables:
            return scope.elements(name)
        ways = self.parameter(name, scope)
        text, where = _told(ways)
        present = {one.present for one in ways}
        return (Placed(text if len(present) == 1 else MANY, where),) if True in present else ()

    def _default(self, node: Node, sign: Node, name: str, scope: Scope, quoted: bool) -> list[Piece]:
        """``${name:-text}`` and its kin."""
        ways, kind = self.parameter(name, scope), sign.type[-1]
        has, (text, where) = given(ways, empty=sign.type[0] == ":"), _told(ways)
        if kind == "?" or (kind != "+" and has):
            return [Piece(text, quoted, where=where)]
        if kind == "+" and has is False:
            return [Piece("", quoted)]

        # Where only the run tells whether the other text counts, what that does to the variables may have been done.
        own = scope if has is not None else scope.copy()
        beyond = [child for child in node.children if child.start_byte >= sign.end_byte]
        other = self.region(beyond, sign.end_byte, node.end_byte - 1, own, quoted=quoted)
        # What is not quoted in there is split as a value is.
        other = other if quoted else [one._replace(literal=False) for one in self.tilde(other, own)]
        if own is not scope:
            vars(scope).update(vars(merged([scope, own], 1 << 30)))
            other = [Piece(RUN_TIME, quoted, where=where)]
        if kind == "=":
            where = self.where(node)
            scope.put(name, joined(other), where, f"{name}={self.text(node)}"[:200])
            return [Piece(joined(other), quoted, where=where)]
        return other

    # --- arithmetic ---

    def arithmetic(self, node: Node, scope: Scope) -> str:
        """The number of ``$((…))`` or ``((…))``; every variable that it changes is left to the run."""
        text = self.text(node)
        for inner in node.children:
            self._inner(inner, scope)
        if _SETS.search(text):
            for name in re.findall(r"[A-Za-z_]\w*", text):
                scope.forget(name, self.where(node), text[:200])
            return RUN_TIME
        inside = [child for child in node.children if child.is_named]
        number = self._number(inside[0], scope) if len(inside) == 1 and not node.has_error else None
        return RUN_TIME if number is None else str(number)

    def _inner(self, node: Node, scope: Scope) -> None:
        """Run the substitutions inside of an expression, for what they start."""
        if node.type == "command_substitution":
            self.captured(node, scope)
        for child in node.children if node.type != "command_substitution" else ():
            self._inner(child, scope)

    def _number(self, node: Node, scope: Scope) -> int | None:
        kind, text, children = node.type, self.text(node), node.children
        if kind == "parenthesized_expression":
            return self._number(children[1], scope) if len(children) == 3 else None
        if kind == "binary_expression" and len(children) == 3:
            left, right = (self._number(children[at], scope) for at in (0, 2))
            sign = self.text(children[1])
            if left is None or right is None or abs(left) >= 1 << 31 or abs(right) >= 1 << 31:
                return None
            if sign in {"/", "%"} and left >= 0 and right > 0:
                return left // right if sign == "/" else left % right
            return int(_OPERATIONS[sign](left, right)) if sign in _OPERATIONS else None
        if kind in {"word", "variable_name"} and re.fullmatch(r"[A-Za-z_]\w*", text):
            text = self.value(text, scope)
        elif kind in {"simple_expansion", "expansion", "number", "word", "string"}:
            text = joined(self.pieces(node, scope, quoted=True))
        else:
            return None
        return int(text.strip() or "0") if NUMBER.fullmatch(text.strip() or "0") else None

    # --- words ---

    def tilde(self, pieces: list[Piece], scope: Scope, *, assigned: bool = False) -> list[Piece]:
        """The pieces with the home folder for a ``~`` at their begin; in an assignment also behind ``:``."""
        first = pieces[0] if pieces else Piece()
        if first.literal and first.text.startswith("~"):
            name, slash, rest = first.text[1:].partition("/")
            if name or not (slash or len(pieces) == 1):
                return [Piece(RUN_TIME, True), *pieces[1:]] if name or slash else pieces
            home = self.value("HOME", scope) or RUN_TIME  # without one bash asks the system
            return [Piece(home, True), *literal(slash + rest), *pieces[1:]]
        if assigned and any(one.literal and ":~" in one.text for one in pieces):
            return [Piece(RUN_TIME, True)]
        return pieces

    def scalar(self, node: Node, scope: Scope) -> str:
        """The text that a word becomes where nothing is split."""
        return joined(self.tilde(self.pieces(node, scope), scope))

    def fields(self, node: Node, scope: Scope) -> Words:
        """The words that one word becomes; MANY if only the run tells how many."""
        here, pieces = self.where(node), self.pieces(node, scope)
        lost = (Placed(MANY, here),)
        named = re.match(r"[A-Za-z_]\w*\+?=(?=~)", pieces[0].text) if pieces and pieces[0].literal else None
        if named:
            value = literal(pieces[0].text[named.end() :])
            pieces = [Piece(named.group(), literal=True), *self.tilde([*value, *pieces[1:]], scope)]
        else:
            pieces = self.tilde(pieces, scope)
        if braced(pieces):
            return lost
        if len(pieces) == 1 and pieces[0].words is not None:
            return pieces[0].words
        done: list[Placed] = []
        current: list[Piece] = []
        for piece in pieces:
            words = piece.words
            if words is not None and (len(words) > 1 or MANY in words):
                return lost  # "a$@b" and the like: what is joined to the first and the last of them
            if words is not None:
                current += [Piece(str(word), True, where=word.where) for word in words]
                continue
            split = not (piece.quoted or piece.literal)
            if split and scope.splits_oddly():
                return lost
            for at, part in enumerate(re.split(r"[ \t\n]+", piece.text) if split else [piece.text]):
                if at and current:
                    done, current = [*done, self._finished(current, scope, here)], []
                if part or not split:
                    current.append(piece._replace(text=part))
        done += [self._finished(current, scope, here)] if current else []
        return tuple(done) if len(done) <= MOST_WORDS and sum(map(len, done)) <= MOST_TEXT else lost

    def _finished(self, pieces: Sequence[Piece], scope: Scope, here: str) -> Placed:
        text = re.sub(f"{RUN_TIME}+", RUN_TIME, "".join(one.text for one in pieces))
        before, last = "".join(one.text for one in pieces[:-1]), pieces[-1]
        if last.where and not any(one.where for one in pieces[:-1]) and (not before or before.endswith("=")):
            here = last.where
        open_ended = set(text) == {RUN_TIME} and not all(one.quoted for one in pieces)
        if open_ended or is_file_name(pieces, text, scope):
            return Placed(MANY, here)
        return Placed(text, here)

    def pattern(self, node: Node, scope: Scope) -> Callable[[str], bool | None]:
        """Whether a text matches a pattern, None if only the run tells."""
        return matching(self.tilde(self.pieces(node, scope), scope))
