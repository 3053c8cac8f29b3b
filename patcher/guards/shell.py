"""Splits a shell script into its commands: quotes, comments, here-documents and blocks are known, nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Token(NamedTuple):
    """A word as it is written, an operator, ``NAME ()``, or a redirection (``kind``) with file and here-document."""

    text: str
    line: int
    kind: str = "word"
    document: str = ""


class SimpleCommand(NamedTuple):
    """One simple command, or a word of the kind ``define`` where a function begins.

    ``outer`` says that it is in no block and behind no ``&&`` or ``||``; ``here`` that what it assigns stays: it is in
    no pipeline and not in the background.
    """

    words: tuple[Token, ...]
    redirects: tuple[Token, ...] = ()
    outer: bool = True
    here: bool = True


_TOKEN = re.compile(  # a command goes on in the next line behind && || and |
    r"""(?P<blank>(?:[ \t\r]|\\\n|\#[^\n]*)+)
    |(?P<define>function[ \t]+[\w:.-]+(?:[ \t]*\([ \t]*\))?|[\w:.-]+[ \t]*\([ \t]*\))
    |(?P<redirect>(?:\d+|\{\w+\})?(?:<<<|<<-?|<&|>&|&>>?|>>|>\||<>|<(?!\()|>(?!\())[ \t]*)
    |(?P<operator>;;&|;&|;;|(?:&&|\|\||\|&?)(?:\s|\\\n|\#[^\n]*\n)*|[;&()\n])
    |(?P<word>\[\[\s(?:[^\]]|\](?!\]))*\]\])""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"[^ \t\r\n;&|()<>'\"\\`$]+")
_SIMPLE = re.compile(r"'[^']*'|\$'(?:\\.|[^'\\])*'|\$(?:\d|[A-Za-z_]\w*|[@*#?$!-])?|\\.?", re.ASCII | re.DOTALL)
_CLOSED_BY = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_SKIPPED = {"then", "do", "else", "elif", "!", "time", "-p"}


def commands(text: str, line: int = 1) -> list[SimpleCommand]:
    """The commands of a script that begins at a line, as they stand. Raises ValueError where it cannot be split."""
    parser = _Parser()
    for token in tokens(text, line):
        parser.take(token)
    parser.end()
    if parser.blocks:
        raise ValueError(f"{parser.blocks[-1]} is missing")
    return parser.found


def tokens(text: str, line: int = 1) -> Iterator[Token]:
    """The words, redirections and operators of a text; comments are left out. Raises ValueError."""
    at, behind = 0, 0  # `behind` is where the here-documents of the line end
    while at < len(text):
        start, document, found = at, "", _TOKEN.match(text, at)
        kind, first = (found.lastgroup or "" if found else "word"), at
        at = found.end() if found else max(_word_end(text, at), start + 1)
        if kind == "redirect":
            kind, first, at = text[start:at].strip(), at, _word_end(text, at)
            if re.fullmatch(r"\d*<<-?", kind):
                delimiter = re.escape(re.sub(r"['\"\\]", "", text[first:at]))
                begin = behind or text.find("\n", at) + 1 or len(text)
                end = re.compile(rf"^\t*{delimiter}$", re.MULTILINE).search(text, begin)
                document = text[begin : end.start() if end else len(text)]
                behind = end.end() + 1 if end else len(text)
        if kind != "blank":
            yield Token(text[first:at], line, kind, document)
        if behind and kind == "operator" and "\n" in text[start:at]:
            at, behind = min(behind, len(text)), 0
        line += text.count("\n", start, at)


def _word_end(text: str, at: int) -> int:
    while at < len(text):
        if found := _PLAIN.match(text, at):
            at = found.end()
        elif text[at] in "'\"\\`$" or text.startswith(("<(", ">("), at):
            at = skipped(text, at)
        elif text[at] == "(" and text[at - 1] in "=@?*+!":
            at = _closing(text, at + 1, ")")  # an array, or a pattern
        else:
            break
    return at


def skipped(text: str, at: int) -> int:
    """Where the quote or the expansion ends that begins at ``at``. Raises ValueError where it does not."""
    if text[at] in '"`':
        return _closing(text, at + 1, text[at])
    if text.startswith(("$(", "<(", ">(", "${"), at):
        return _closing(text, at + 2, "}" if text[at + 1] == "{" else ")")
    if not (found := _SIMPLE.match(text, at)):
        raise ValueError("a quote is not closed")
    return found.end()


def _closing(text: str, at: int, closed_by: str) -> int:
    while at < len(text):
        char = text[at]
        if char == closed_by:
            return at + 1
        if char in "\\`$" or (char in "'\"" and closed_by in ")}") or (char == '"' and closed_by == "`"):
            at = skipped(text, at)
        elif char == "(" and closed_by == ")":
            at = _closing(text, at + 1, ")")
        elif char == "#" and closed_by == ")" and text[at - 1] in " \t\n(;":
            at = text.find("\n", at) + 1 or len(text)
        else:
            at += 1
    raise ValueError(f"{closed_by} is missing")


class _Parser:
    def __init__(self) -> None:
        self.found: list[SimpleCommand] = []
        self.blocks: list[str] = []  # what closes each
        self.words: list[Token] = []
        self.redirects: list[Token] = []
        self.conditional = self.piped = False
        self.pattern = False  # of a branch of `case`

    def take(self, token: Token) -> None:
        if self.pattern and token.text not in (")", "esac"):
            return
        if token.kind == "operator":
            self.operator(token.text)
        elif token.kind == "define":
            self.found.append(SimpleCommand((token,), outer=False))
        elif token.kind == "word":
            self.word(token)
        else:
            self.redirects.append(token)

    def word(self, token: Token) -> None:
        word = token.text
        if self.words:
            self.words.append(token)
            if word == "in" and self.words[0].text == "case" and len(self.words) > 2:
                self.end()
                self.pattern = True
        elif self.blocks[-1:] == [word]:
            self.blocks.pop()
            self.pattern = False
        elif word in _CLOSED_BY:
            self.blocks.append(_CLOSED_BY[word])
            self.words += [token] if word in ("for", "select", "case") else []
            self.found += [SimpleCommand((token,), outer=False)] if word in ("while", "until") else []
        elif word not in _SKIPPED:
            self.words.append(token)

    def operator(self, text: str) -> None:
        if self.pattern:
            self.pattern = False
            return
        pipe = text[0] == "|" and text[:2] != "||"
        self.end(away=pipe or text == "&")
        if text == "(":
            self.blocks.append(text)
        elif text == ")" and (not self.blocks or self.blocks.pop() != "("):
            raise ValueError("a bracket is closed that is not open")
        self.conditional = text[:2] in ("&&", "||") or (pipe and self.conditional)
        self.piped = pipe
        self.pattern = text[:2] in (";;", ";&")

    def end(self, *, away: bool = False) -> None:
        """The words up to here are a command; ``away`` in a pipeline or in the background."""
        if self.words or self.redirects:
            outer, here = not self.conditional and not self.blocks, not self.piped and not away
            self.found.append(SimpleCommand((*self.words,), (*self.redirects,), outer, here))
        self.words.clear()
        self.redirects.clear()
