"""What the words of a shell script become: parameters, substitutions, arithmetic, splitting and file names.

tree-sitter-bash parses; this evaluates what it models as bash 5 does it, and everything else is RUN_TIME. Text between
the nodes of the tree is taken from the source, so that a word is right whatever the tree makes of its letters.
"""

from __future__ import annotations

import glob
import itertools
import os.path
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from patcher.guards.scope import MANY, MOST_TEXT, MOST_WAYS, RUN_TIME, Placed, Scope, Words, merged

if TYPE_CHECKING:
    from tree_sitter import Node

_LITERAL = frozenset({"word", "number", "regex", "extglob_pattern", "variable_name", "test_operator"})
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})
_QUOTES = frozenset({"string", "raw_string", "ansi_c_string"})
_NESTED = _EXPANSIONS | _QUOTES | {"process_substitution", "brace_expression", "concatenation", "translated_string"}
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}|\{[^{}]*\{")
_MAGIC = re.compile(r"[*?]|\[.*\]|[@+!]\(")
# A parameter, a substitution or a quote that the tree does not show.
_MISSED = re.compile(r"[`'\"]|\$[\w({@*#?!$-]")
_SETS = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
# Variables that bash itself gives values.
OWN = frozenset({
    "_", "BASHOPTS", "BASHPID", "BASH", "BASH_ARGC", "BASH_ARGV", "BASH_COMMAND", "BASH_LINENO", "BASH_SUBSHELL",
    "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID",
    "FUNCNAME", "GROUPS", "HISTCMD", "HOSTNAME", "HOSTTYPE", "LINENO", "MACHTYPE", "OLDPWD", "OPTERR", "OPTIND",
    "OSTYPE", "PIPESTATUS", "PPID", "PS4", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID", "COLUMNS",
    "LINES",
})  # fmt: skip


class Piece(NamedTuple):
    """A part of a word: the texts or the words that it may become, and how the shell treats them."""

    texts: tuple[str, ...] = ()
    quoted: bool = False
    literal: bool = False
    where: str = ""
    words: tuple[Words, ...] = ()
    alone: bool = False  # the whole of the word


# Signs beyond the first 65,536, emoji say, and surrogates; as many bytes of others stand for them.
_FAR = re.compile(rb"[\xf0-\xf7][\x80-\xbf]{3}|\xed[\xa0-\xbf][\x80-\xbf]")
_NEAR = {4: "\u00e9\u00e9".encode(), 3: "\u4e2d".encode()}


def parsed(source: bytes) -> Node:
    """The tree of a shell text.

    Of signs beyond the first 65,536 tree-sitter-bash 0.25 reads memory that is not its own: other letters stand for
    them while it parses, since to the shell they are letters, too.
    """
    import tree_sitter_bash  # a compiled grammar: only for who has a script or a command read
    from tree_sitter import Language, Parser

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


class Expander:
    """Evaluates the words of one text; its statements are the Shell's, who says what a substitution prints."""

    def __init__(self, text: str, name: str, line: int) -> None:
        # At the end of the text, a backslash has no line to go on with.
        self.source = (text + "\n" if text.endswith("\\\n") else text).encode("utf-8", "surrogatepass")
        self.name, self.line = name, line
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

    def braces(self, node: Node) -> bool:
        """Whether a word has an opening brace outside of quotes and of expansions."""
        if node.type in _QUOTES:
            return False
        if node.type == "concatenation":
            return any(self.braces(child) for child in node.children)
        return "{" in self.text(node).replace("${", "")

    # --- pieces ---

    def pieces(self, node: Node, scope: Scope, quoted: bool = False) -> list[Piece]:
        """The parts of a word."""
        kind = node.type
        if kind == "string":
            found = self.region(node.children, node.start_byte + 1, node.end_byte - 1, scope, quoted=True, inside=True)
            return found or [Piece(("",), True)]
        if kind == "raw_string":
            return [Piece((self.text(node)[1:-1],), True)]
        if kind == "ansi_c_string":
            text = self.text(node)[2:-1]
            plain = re.sub(r"\\([\\'\"])", r"\1", text)
            plain = plain.replace("\\n", "\n").replace("\\t", "\t") if "\\\\" not in text else plain
            return [Piece((RUN_TIME if "\\" in plain else plain,), True)]
        if kind == "simple_expansion":
            return [self._parameter(self.text(node).lstrip()[1:], scope, quoted)]
        if kind == "expansion":
            return self._expansion(node, scope, quoted)
        if kind == "command_substitution":
            return [Piece((self.captured(node, scope),), quoted)]
        if kind == "arithmetic_expansion":
            return [Piece((self.arithmetic(node, scope),), True)]
        if kind == "process_substitution":
            self.captured(node, scope)
            return [Piece((RUN_TIME,), True)]
        if kind == "concatenation" or kind in _LITERAL:
            return self.region(node.children, node.start_byte, node.end_byte, scope, quoted=quoted)
        if kind == "ERROR" and not node.children and not _MISSED.search(self.text(node)):
            return self.literal(self.text(node))
        return [Piece(words=((Placed(MANY, self.where(node)),),))]

    def region(
        self, nodes: Sequence[Node], start: int, end: int, scope: Scope, *, quoted: bool, inside: bool = False
    ) -> list[Piece]:
        """The parts of the word between two bytes, of which these are the nodes; ``inside`` a pair of double quotes."""
        found: list[Piece] = []
        at = start
        for child in nodes:
            # Within double quotes only these are not plain text; with double quotes of their own behind `:-`.
            nested = child.type in (_NESTED if not quoted else _EXPANSIONS if inside else _EXPANSIONS | {"string"})
            if nested and child.start_byte >= at and child.end_byte <= end:
                # Within double quotes, the blanks before a `$` are a part of its token.
                text = self.text(child) if child.type in _EXPANSIONS else ""
                found += self._gap(at, child.start_byte + len(text) - len(text.lstrip()), quoted)
                found += self.pieces(child, scope, quoted)
                at = child.end_byte
        return found + self._gap(at, end, quoted)

    def _gap(self, start: int, end: int, quoted: bool) -> list[Piece]:
        text = self.slice(start, end)
        if not text:
            return []
        if quoted:
            missed = _MISSED.search(re.sub(r"\\.|['\"]", "", text, flags=re.DOTALL))
            plain = re.sub(r"\\(\n|[$`\"\\])", lambda match: match[1].strip("\n"), text)
            return [Piece((RUN_TIME if missed else plain,), True)]
        if _MISSED.search(re.sub(r"\\.", "", text, flags=re.DOTALL)):
            return [Piece(words=((Placed(MANY, ""),),))]
        return self.literal(text)

    @staticmethod
    def literal(text: str) -> list[Piece]:
        """Letters without quotes, of which a backslash may quote one."""
        parts = re.split(r"\\(.)", text.replace("\\\n", ""), flags=re.DOTALL)
        return [Piece((part,), at % 2 == 1, at % 2 == 0) for at, part in enumerate(parts) if part]

    # --- parameters ---

    def values(self, name: str, scope: Scope) -> tuple[tuple[str, ...], str, bool]:
        """What a parameter may be, where it is set, and whether it may be unset where the script will run."""
        if name.isdigit():
            if name == "0":
                return (scope.program,), "", False
            given = scope.args if scope.args is not None else ()
            before = given[: int(name[:6])]
            if any(word == MANY or word.maybe for word in before):
                return (RUN_TIME,), "", False
            return ((str(before[-1]),), before[-1].where, False) if len(before) == int(name[:6]) else ((), "", True)
        if name == "#" and scope.args is not None and not any(word == MANY or word.maybe for word in scope.args):
            return (str(len(scope.args)),), "", False
        if name in OWN or not (name[0].isalpha() or name[0] == "_"):
            return (RUN_TIME,), "", False
        if name == "PWD" and not any(one.where for one in scope.look(name)):
            return (scope.folder or RUN_TIME,), "", False
        ways = scope.look(name)
        texts = tuple(dict.fromkeys(RUN_TIME if one.text is None else one.text for one in ways if one.present))
        last = next((one.where for one in reversed(ways) if one.present), "")
        return texts, "" if last == "environment" else last, any(not one.present for one in ways)

    def _parameter(self, name: str, scope: Scope, quoted: bool) -> Piece:
        if name in {"@", "*"}:
            return self._elements((scope.args or (),), name, quoted)
        texts, where, unset = self.values(name, scope)
        return Piece(texts + self._unset(name, scope, unset), quoted, where=where)

    @staticmethod
    def _unset(name: str, scope: Scope, unset: bool) -> tuple[str, ...]:
        """What the plain name of an unset parameter is: unset here, but perhaps not where the script will run."""
        if not unset:
            return ()
        return ("",) if all(one.where for one in scope.look(name) if not one.present) else (RUN_TIME,)

    @staticmethod
    def _elements(ways: tuple[Words, ...], sign: str, quoted: bool) -> Piece:
        if quoted and sign == "*":
            lost = any(word.maybe or word == MANY for way in ways for word in way)
            return Piece((RUN_TIME,) if lost else tuple(" ".join(way) for way in ways), True)
        if not quoted:
            # Each of them is split, and an empty one vanishes.
            ways = tuple(
                tuple(Placed(part, word.where, word.maybe) for word in way for part in _split(word)) for way in ways
            )
        return Piece(words=ways)

    def _expansion(self, node: Node, scope: Scope, quoted: bool) -> list[Piece]:
        unknown = [Piece((RUN_TIME,), quoted)]
        inner = node.children[1:-1]
        prefix = ""
        if len(inner) > 1 and inner[0].type in {"#", "!"}:
            prefix, inner = inner[0].type, inner[1:]
        if not inner or inner[0].type not in {"variable_name", "special_variable_name", "subscript"}:
            return unknown
        head, rest = inner[0], inner[1:]
        operator = rest[0].type if rest and not rest[0].is_named else ""
        begin = rest[0].end_byte if operator else head.end_byte
        beyond = self.slice(begin, node.end_byte - 1)
        if head.type == "subscript":
            return self._subscript(head, prefix, operator, beyond, scope, quoted)
        name = self.text(head)
        if prefix == "#" and not operator:
            texts, where, unset = self.values(name, scope)
            texts += self._unset(name, scope, unset)
            return [Piece(tuple(RUN_TIME if RUN_TIME in one else str(len(one)) for one in texts), True, where=where)]
        if prefix or (beyond and not operator):
            return unknown
        if not operator:
            return [self._parameter(name, scope, quoted)]
        if operator.lstrip(":") in {"-", "=", "+", "?"}:
            return self._default(node, rest[0], name, scope, quoted)
        if name in {"@", "*"}:
            return [Piece(words=((Placed(MANY, ""),) if scope.args else (),))]
        piece = self._parameter(name, scope, quoted)
        change = _change(operator, beyond)
        return [piece._replace(texts=tuple(RUN_TIME if RUN_TIME in one else change(one) for one in piece.texts))]

    def _subscript(
        self, head: Node, prefix: str, operator: str, beyond: str, scope: Scope, quoted: bool
    ) -> list[Piece]:
        name, _, index = self.text(head)[:-1].partition("[")
        if name == "BASH_SOURCE" and index == "0" and not prefix + operator and "function" not in scope.flags:
            return [Piece((scope.program,), quoted)]
        ways = scope.elements(name)
        if name not in scope.arrays and name in scope.variables:
            ways = tuple((Placed(one, ""),) for one in self.values(name, scope)[0]) or ((),)
        lost = any(word.maybe or word == MANY for way in ways for word in way) or f"odd {name}" in scope.flags
        if index in {"@", "*"} and not beyond and not operator and name not in OWN:
            if prefix == "#":
                return [Piece((RUN_TIME,) if lost else tuple(dict.fromkeys(str(len(way)) for way in ways)), True)]
            return [self._elements(ways, index, quoted)] if not prefix else [Piece(words=((Placed(MANY, ""),),))]
        if index.isdigit() and not prefix + operator + beyond and not lost and name not in OWN:
            at = int(index[:6])
            return [Piece(tuple(str(way[at]) if at < len(way) else "" for way in ways), quoted)]
        return [Piece((RUN_TIME,), quoted) if index not in {"@", "*"} else Piece(words=((Placed(MANY, ""),),))]

    def _default(self, node: Node, operator: Node, name: str, scope: Scope, quoted: bool) -> list[Piece]:
        """``${name:-text}`` and its kin."""
        texts, where, unset = self.values(name, scope)
        if name in {"@", "*"}:
            texts, unset = (RUN_TIME,), False
        kind = operator.type[-1]
        empty = operator.type[0] == ":"
        taken = tuple(one for one in texts if one or not empty)
        missing = unset or len(taken) < len(texts)
        open_ones = empty and any(one == RUN_TIME for one in taken)

        def other(where_in: Scope) -> list[Piece]:
            beyond = [child for child in node.children if child.start_byte >= operator.end_byte]
            found = self.region(beyond, operator.end_byte, node.end_byte - 1, where_in, quoted=quoted)
            # What is not quoted in there is split as a value is.
            return found if quoted else [one._replace(literal=False) for one in self.tilde(found, scope)]

        if kind == "+":
            if missing and not taken:
                return [Piece(("",), quoted)]
            found = other(scope)
            if not missing and not open_ones:
                return found
            return [Piece(("", *self.joined(found)), quoted)]
        value = Piece(taken, quoted, where=where)
        if kind == "?" or (not missing and not open_ones):
            return [value] if taken else [Piece((RUN_TIME,), quoted)]
        if taken:
            # On some ways only: the other text is not evaluated on the rest of them.
            there = scope.copy()
            found = other(there)
            both = merged([scope, there], 1 << 30)
            scope.variables, scope.arrays = both.variables, both.arrays
        else:
            found = other(scope)
        given = self.joined(found)
        if kind == "=":
            line = self.where(node)
            scope.put(name, (*taken, *given), line, f"{name}={self.text(node)}"[:200])
            return [Piece((*taken, *given), quoted, where=line)]
        if not taken:
            return found
        mixed = any(one.words or (one.quoted and not quoted and " " in "".join(one.texts)) for one in found)
        return [Piece((RUN_TIME,) if mixed else tuple(dict.fromkeys((*taken, *given))), quoted, where=where)]

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
        kind, text = node.type, self.text(node)
        if kind == "parenthesized_expression":
            return self._number(node.children[1], scope) if len(node.children) == 3 else None
        if kind == "unary_expression" and len(node.children) == 2:
            value = self._number(node.children[1], scope)
            signs: dict[str, Callable[[int], int]] = {"-": int.__neg__, "+": int, "!": lambda one: int(not one)}
            sign = signs.get(self.text(node.children[0]))
            return None if value is None or sign is None else sign(value)
        if kind == "binary_expression" and len(node.children) == 3:
            left, right = (self._number(node.children[at], scope) for at in (0, 2))
            return None if left is None or right is None else _operate(left, self.text(node.children[1]), right)
        if kind in {"word", "variable_name"} and re.fullmatch(r"[A-Za-z_]\w*", text):
            texts, _, unset = self.values(text, scope)
            texts += self._unset(text, scope, unset)
        elif kind in {"simple_expansion", "expansion", "number", "word", "string"}:
            texts = self.joined(self.pieces(node, scope, quoted=True))
        else:
            return None
        plain = texts[0].strip() or "0" if len(texts) == 1 else ""
        return int(plain) if re.fullmatch(r"-?(0|[1-9]\d{0,14})", plain) else None

    # --- words ---

    def tilde(self, pieces: list[Piece], scope: Scope, *, assigned: bool = False) -> list[Piece]:
        """The pieces with the home folder for a ``~`` at their begin; in an assignment also behind ``:``."""
        first = pieces[0] if pieces else Piece()
        if first.literal and first.texts[0].startswith("~"):
            name, slash, rest = first.texts[0][1:].partition("/")
            if name or not (slash or len(pieces) == 1):
                return [Piece((RUN_TIME,), True), *pieces[1:]] if name or slash else pieces
            home, _, unset = self.values("HOME", scope)
            return [Piece((RUN_TIME,) if unset else home, True), *self.literal(slash + rest), *pieces[1:]]
        if assigned and any(one.literal and ":~" in one.texts[0] for one in pieces):
            return [Piece((RUN_TIME,), True)]
        return pieces

    def joined(self, pieces: Iterable[Piece]) -> tuple[str, ...]:
        """Every text that pieces may become where nothing is split."""
        results: tuple[str, ...] = ("",)
        for piece in pieces:
            options = piece.texts
            if piece.words:
                lost = any(word == MANY or word.maybe for way in piece.words for word in way)
                options = (RUN_TIME,) if lost else tuple(" ".join(way) for way in piece.words)
            results = tuple(dict.fromkeys(left + right for left in results for right in options or ("",)))
            if len(results) > MOST_WAYS or any(len(one) > MOST_TEXT for one in results):
                return (RUN_TIME,)
        return results

    def scalar(self, node: Node, scope: Scope, *, assigned: bool = False) -> tuple[str, ...]:
        """Every text that a word may become, as in an assignment."""
        return self.joined(self.tilde(self.pieces(node, scope), scope, assigned=assigned))

    def fields(self, node: Node, scope: Scope) -> tuple[Words, ...]:
        """Every sequence of words that one word may become."""
        here, pieces = self.where(node), self.pieces(node, scope)
        named = re.match(r"[A-Za-z_]\w*\+?=(?=~)", pieces[0].texts[0]) if pieces and pieces[0].literal else None
        if named:
            value = self.literal(pieces[0].texts[0][named.end() :])
            pieces = [Piece((named.group(),), literal=True), *self.tilde([*value, *pieces[1:]], scope)]
        else:
            pieces = self.tilde(pieces, scope)
        if _BRACES.search("".join(one.texts[0] if one.literal else "q" for one in pieces)):
            return ((Placed(MANY, here),),)
        pieces = [one._replace(alone=len(pieces) == 1) for one in pieces]
        ways: list[tuple[Words, tuple[Piece, ...] | None]] = [((), None)]
        for piece in pieces:
            options: Sequence[Words | str] = piece.words or piece.texts
            ways = [self._add(way, piece, option, scope, here) for way, option in itertools.product(ways, options)]
            if len(ways) > MOST_WAYS or any(len(done) > MOST_TEXT for done, _ in ways):
                return ((Placed(MANY, here),),)
        found = [done if open_one is None else done + self._finish(open_one, scope, here) for done, open_one in ways]
        return tuple({tuple((word, word.maybe) for word in way): way for way in found}.values())

    def _add(
        self,
        way: tuple[Words, tuple[Piece, ...] | None],
        piece: Piece,
        option: Words | str,
        scope: Scope,
        here: str,
    ) -> tuple[Words, tuple[Piece, ...] | None]:
        done, current = way
        if isinstance(option, tuple):
            if not option:
                return way
            if len(option) > 1 or option[0] == MANY or option[0].maybe:
                if current is None and piece.alone:
                    return (*done, *option), None
                # "a$@b" and the like: what is joined to the first and the last of them.
                return done, (Piece((MANY,)),)
            return done, (*(current or ()), Piece((str(option[0]),), True, where=option[0].where))
        split = not (piece.quoted or piece.literal)
        parts = _split(option, ends=True) if split else [option]
        if split and any(one.present for one in scope.variables.get("IFS", ())):
            return done, (Piece((MANY,)),)
        for at, part in enumerate(parts):
            if at and current is not None:
                done, current = done + self._finish(current, scope, here), None
            if part or not split:
                current = (*(current or ()), piece._replace(texts=(part,)))
        return done, current

    def _finish(self, pieces: Sequence[Piece], scope: Scope, here: str) -> Words:
        if any(one.texts == (MANY,) for one in pieces):
            return (Placed(MANY, here),)
        text = re.sub(f"{RUN_TIME}+", RUN_TIME, "".join(one.texts[0] for one in pieces))
        sources = [at for at, one in enumerate(pieces) if one.where]
        if sources and sources[-1] == len(pieces) - 1 and len(sources) == 1:
            before = "".join(one.texts[0] for one in pieces[:-1])
            here = pieces[-1].where if not before or before.endswith("=") else here
        unquoted = "".join(one.texts[0] for one in pieces if not one.quoted)
        if set(text) == {RUN_TIME} and not all(one.quoted for one in pieces):
            return (Placed(MANY, here),)
        if _MAGIC.search(unquoted) and self._matches(pieces, text, scope):
            return (Placed(MANY, here),)
        return (Placed(text, here),)

    @staticmethod
    def _matches(pieces: Sequence[Piece], text: str, scope: Scope) -> bool:
        """Whether a pattern may be replaced by the names of files: not where none matches."""
        if RUN_TIME in text or scope.folder is None or "glob" in scope.flags:
            # A key of Hydra's before a list is no name of a file.
            return not re.match(r"[+~]{0,2}[\w./@:-]+=", text) or "glob" in scope.flags
        pattern = "".join(glob.escape(one.texts[0]) if one.quoted else one.texts[0] for one in pieces)
        if not glob.has_magic(pattern) and not re.search(r"[@+!]\(", pattern):
            return False
        try:
            return bool(glob.glob(os.path.join(glob.escape(scope.folder), pattern)))  # noqa: PTH118, PTH207
        except (OSError, ValueError, re.error):
            return True

    def pattern(self, node: Node, scope: Scope) -> Callable[[str], bool | None]:
        """Whether a text matches a pattern, None if only the run tells."""
        ways = []
        for piece in self.tilde(self.pieces(node, scope), scope):
            if len(piece.texts) != 1 or RUN_TIME in piece.texts[0]:
                return lambda _: None
            ways.append(glob.escape(piece.texts[0]) if piece.quoted else piece.texts[0])
        whole = "".join(ways)
        if re.search(r"[?*+@!]\(|\[\[:|\[[^\]]*\^", whole):
            return lambda _: None
        return lambda text: None if RUN_TIME in text else fnmatchcase(text, whole)


def _change(operator: str, beyond: str) -> Callable[[str], str]:
    """What ``${name%pattern}`` and its kin make of a text."""
    cases: dict[str, Callable[[str], str]] = {
        ",,": str.lower,
        "^^": str.upper,
        ",": lambda text: text[:1].lower() + text[1:],
        "^": lambda text: text[:1].upper() + text[1:],
    }
    if operator in cases and not beyond:
        return cases[operator]
    plain = not re.search(r"[$`'\"\\\[(]", beyond)
    if operator in {"%", "%%", "#", "##"} and plain:
        longest, ending = len(operator) > 1, operator[0] == "%"

        def cut(text: str) -> str:
            sizes = range(len(text), -1, -1) if longest else range(len(text) + 1)
            for size in sizes if len(text) < 1000 else ():
                if fnmatchcase(text[len(text) - size :] if ending else text[:size], beyond):
                    return text[: len(text) - size] if ending else text[size:]
            return text if len(text) < 1000 else RUN_TIME

        return cut
    old, _, new = beyond.partition("/")
    if operator in {"/", "//"} and plain and old and not re.search(r"[*?&#%~]", beyond) and "/" not in new:
        return lambda text: text.replace(old, new, -1 if operator == "//" else 1)
    numbers = re.fullmatch(r"\s*(\d+)(?::(\d+))?", beyond)
    if operator == ":" and numbers:
        start, size = int(numbers[1]), numbers[2]
        return lambda text: text[start:] if size is None else text[start : start + int(size)]
    return lambda _: RUN_TIME


def _split(text: str, *, ends: bool = False) -> list[str]:
    """The words of an unquoted value; with ``ends`` an empty one for a space at its begin and its end."""
    parts = re.split(r"[ \t\n]+", text)
    return parts if ends else [part for part in parts if part]


def _operate(left: int, sign: str, right: int) -> int | None:
    operations: dict[str, Callable[[int, int], int]] = {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "<": lambda a, b: int(a < b),
        "<=": lambda a, b: int(a <= b),
        ">": lambda a, b: int(a > b),
        ">=": lambda a, b: int(a >= b),
        "==": lambda a, b: int(a == b),
        "!=": lambda a, b: int(a != b),
    }
    if sign in {"/", "%"} and left >= 0 and right > 0:
        return left // right if sign == "/" else left % right
    return (
        operations[sign](left, right) if sign in operations and abs(left) < 1 << 31 and abs(right) < 1 << 31 else None
    )
