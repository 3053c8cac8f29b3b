"""Shell text as words and operators with their lines: what is quoted, expanded or fed as a here-document.

The standard library's shlex drops the difference between ``'$X'`` and ``"$X"``, here-documents and
substitutions; they decide whether a variable is really set. This reader keeps them and never fails: what is
not closed ends with the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPERATORS = (
    ";;&", "<<<", "&>>", "<<-", ";;", ";&", "&&", "||", "|&", "<<", ">>", "&>", ">&", "<&", "<>", ">|",
    ";", "&", "|", "(", ")", "<", ">", "\n",
)  # fmt: skip
_BEFORE_COMMAND = frozenset({"if", "while", "until", "for", "elif", "!", "then", "do", "else"})
REDIRECTS = frozenset({"<", ">", ">>", "&>", "&>>", ">&", "<&", "<>", ">|", "<<<"})
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_ASSIGNS_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$", re.ASCII)


class Parameter(NamedTuple):
    """``$name`` or ``${name…}``; ``rest`` is what follows the name inside the braces, as ``:-default``."""

    name: str
    rest: str = ""
    quoted: bool = False


class Substitution(NamedTuple):
    """The text inside ``$(…)`` or backticks, whose output nobody knows; empty where nothing is run."""

    text: str
    line: int


Piece = str | Parameter | Substitution


class Word(NamedTuple):
    """One word: its pieces, the text as it stands in the file, its line, and the elements of ``NAME=(…)``."""

    pieces: tuple[Piece, ...]
    raw: str
    line: int
    array: tuple[Word, ...] | None = None


class Operator(NamedTuple):
    """``;``, ``&&``, ``(``, a line end or a redirection."""

    text: str
    line: int


class Heredoc(NamedTuple):
    """The lines that a here-document feeds to the command before it, and the line where they begin."""

    body: str
    line: int


Token = Word | Operator | Heredoc


def tokens(text: str, line: int = 1) -> list[Token]:
    """Split shell text; ``line`` is the number of its first line."""
    return _Scanner(text, line).run()


class _Scanner:
    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.in_array = False
        self.out: list[Token] = []
        self.pending: list[tuple[int, str, bool]] = []

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self._advance(2)
            elif char in " \t\r\f\v":
                self._advance(1)
            elif char == "#":
                end = self.text.find("\n", self.at)
                self._advance((end if end >= 0 else len(self.text)) - self.at)
            elif self.text.startswith("((", self.at) and self._at_command():
                self._arithmetic()
            elif char in "<>" and self.text[self.at + 1 : self.at + 2] == "(":
                self.out.append(self._word())
            elif char in ";&|()<>\n":
                self._operator()
            else:
                self.out.append(self._word())
        return self.out

    def _advance(self, count: int) -> str:
        passed = self.text[self.at : self.at + count]
        self.at += count
        self.line += passed.count("\n")
        return passed

    def _at_command(self) -> bool:
        last = self.out[-1] if self.out else None
        return (
            last is None
            or (isinstance(last, Operator) and last.text not in REDIRECTS)
            or (isinstance(last, Word) and last.raw in _BEFORE_COMMAND)
        )

    def _arithmetic(self) -> None:
        line, end = self.line, self.text.find("))", self.at)
        size = (end + 2 if end >= 0 else len(self.text)) - self.at
        raw = self._advance(size)
        self.out.append(Word(("((",), raw, line))

    def _operator(self) -> None:
        line = self.line
        text = next(op for op in _OPERATORS if self.text.startswith(op, self.at))
        self._advance(len(text))
        last = self.out[-1] if self.out else None
        if text[0] in "<>" and isinstance(last, Word) and last.raw.isdigit():
            before = self.text[self.at - len(text) - 1 : self.at - len(text)]
            if before.isdigit():
                self.out.pop()
        if text in {"<<", "<<-"}:
            self._delimiter(text)
            return
        self.out.append(Operator(text, line))
        if text == "\n":
            self._heredocs()

    def _delimiter(self, operator: str) -> None:
        while self.text[self.at : self.at + 1] in {" ", "\t"}:
            self._advance(1)
        if self.at < len(self.text) and self.text[self.at] not in ";&|()<>\n":
            word = self._word()
            self.pending.append((len(self.out), re.sub(r"['\"\\]", "", word.raw), operator == "<<-"))

    def _heredocs(self) -> None:
        bodies: list[tuple[int, Heredoc]] = []
        for position, delimiter, strip in self.pending:
            first = self.line
            lines: list[str] = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self._advance((end + 1 if end >= 0 else len(self.text)) - self.at)
                if (line.lstrip("\t") if strip else line).rstrip("\r\n") == delimiter:
                    break
                lines.append(line.lstrip("\t") if strip else line)
            bodies.append((position, Heredoc("".join(lines), first)))
        # From the last to the first, so that the places of the others stay right.
        for position, body in reversed(bodies):
            self.out.insert(position, body)
        self.pending.clear()

    def _word(self) -> Word:
        start, line = self.at, self.line
        pieces: list[Piece] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\f\v\n;&|)":
                break
            if char in "<>(":
                if char == "(" and not self.in_array and _ASSIGNS_ARRAY.fullmatch(self.text[start : self.at]):
                    return self._array(start, line)
                if char == "(" or self.text[self.at + 1 : self.at + 2] != "(":
                    break
                self._advance(1)
                pieces.append(self._parenthesis())
            else:
                self._piece(pieces)
        return Word(tuple(pieces), self.text[start : self.at], line)

    def _array(self, start: int, line: int) -> Word:
        name = self.text[start : self.at]
        self._advance(1)
        self.in_array = True
        elements: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self._advance((end if end >= 0 else len(self.text)) - self.at)
            elif char in " \t\r\f\v\n;&|(<>":
                self._advance(1)
            elif self.text.startswith("\\\n", self.at):
                self._advance(2)
            else:
                elements.append(self._word())
        self._advance(1)
        self.in_array = False
        return Word((name,), self.text[start : self.at], line, tuple(elements))

    def _piece(self, pieces: list[Piece]) -> None:
        char = self.text[self.at]
        if char == "\\":
            passed = self._advance(2)
            if passed != "\\\n":
                pieces.append(passed[1:])
        elif char == "'":
            pieces.append(self._until_quote())
        elif char == '"':
            self._double(pieces)
        elif char in "$`":
            self._dollar(pieces, quoted=False)
        else:
            pieces.append(self._advance(1))

    def _until_quote(self) -> str:
        self._advance(1)
        end = self.text.find("'", self.at)
        text = self._advance((end if end >= 0 else len(self.text)) - self.at)
        self._advance(1)
        return text

    def _double(self, pieces: list[Piece]) -> None:
        self._advance(1)
        pieces.append("")
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\":
                passed = self._advance(2)
                if passed != "\\\n":
                    pieces.append(passed[1:] if passed[1:] in {"$", "`", '"', "\\"} else passed)
            elif char in "$`":
                self._dollar(pieces, quoted=True)
            else:
                pieces.append(self._advance(1))
        self._advance(1)

    def _dollar(self, pieces: list[Piece], *, quoted: bool) -> None:
        if self.text[self.at] == "`":
            line, end = self.line, self.text.find("`", self.at + 1)
            text = self._advance((end if end >= 0 else len(self.text)) - self.at)
            self._advance(1)
            pieces.append(Substitution(text[1:], line))
            return
        self._advance(1)
        following = self.text[self.at : self.at + 1]
        name = _NAME.match(self.text, self.at)
        if following == "(":
            pieces.append(self._parenthesis())
        elif following == "{":
            pieces.append(self._braces(quoted))
        elif following == "'" and not quoted:
            text = self._until_quote()
            pieces.append(Substitution("", self.line) if "\\" in text else text)
        elif following == '"' and not quoted:
            self._double(pieces)
        elif name:
            self._advance(len(name.group()))
            pieces.append(Parameter(name.group(), quoted=quoted))
        else:
            pieces.append("$")

    def _balanced(self, opening: str, closing: str) -> str:
        """The text up to the closing bracket, which is passed; quotes inside are respected."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "'" and opening == "(":
                self._until_quote()
                continue
            passed = self._advance(2 if char == "\\" else 1)
            if passed == opening:
                depth += 1
            elif passed == closing:
                depth -= 1
                if not depth:
                    return self.text[start + 1 : self.at - 1]
        return self.text[start + 1 :]

    def _parenthesis(self) -> Substitution:
        line = self.line
        text = self._balanced("(", ")")
        return Substitution("" if text.startswith("(") else text, line)

    def _braces(self, quoted: bool) -> Piece:
        line = self.line
        text = self._balanced("{", "}")
        name = _NAME.match(text)
        if not name:
            return Substitution("", line)
        return Parameter(name.group(), text[name.end() :], quoted)
