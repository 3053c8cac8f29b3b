"""Splits a shell script into its commands: quotes, comments, here-documents and blocks are known, nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple


class Word(NamedTuple):
    """A word as it is written, quotes and expansions included; ``stdin`` is the here-document of a redirection."""

    text: str
    line: int
    kind: str = "word"
    stdin: str = ""


class Command(NamedTuple):
    """One simple command.

    ``outer`` says that it is in no block and behind no ``&&`` or ``||``; ``here`` that what it assigns stays: it is in
    no pipeline and not in the background. The words of a function's definition are ``function NAME``. ``writes`` are
    the files that its output goes to.
    """

    words: tuple[Word, ...]
    line: int
    outer: bool = True
    here: bool = True
    function: bool = False
    stdin: str = ""
    writes: tuple[str, ...] = ()


_BLANK = re.compile(r"(?:(?:[ \t\r]|\\\n)+|#[^\n]*)+")
_REDIRECT = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-|<<|<&|>&|&>>|&>|>>|>\||<>|<(?!\()|>(?!\())[ \t]*")
_OPERATOR = re.compile(r"\([ \t]*\)|;;&|;&|;;|&&|\|\||\|&|[;&|()\n]")
_PLAIN = re.compile(r"[^ \t\r\n;&|()<>'\"\\`$]+")
_SINGLE = re.compile(r"'[^']*'|\$'(?:\\.|[^'\\])*'", re.DOTALL)
_SHORT = re.compile(r"\$(?:\d|[A-Za-z_]\w*|[@*#?$!-])?", re.ASCII)
_CLOSED_BY = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_SKIPPED = {"then", "do", "else", "elif", "!", "time", "-p"}


def commands(text: str) -> list[Command]:
    """The commands of a script in the order in which they stand. Raises ValueError where it cannot be split."""
    parser, read = _Parser(), tokens(text)
    for token in read:
        if token.kind == "redirect":
            parser.redirects.append(token)
        elif token.kind == "word":
            parser.word(token, read)
        else:
            parser.operator(token.text)
    parser.end()
    if parser.blocks:
        raise ValueError(f"{parser.blocks[-1][0]} is missing")
    return parser.found


def tokens(text: str, line: int = 1) -> Iterator[Word]:
    """The words, redirections and operators of a text; comments are left out. Raises ValueError."""
    at, behind = 0, 0  # where the here-documents of the line end
    while at < len(text):
        start, kind, stdin = at, "word", ""
        if found := _BLANK.match(text, at):
            kind, at = "", found.end()
        elif found := _REDIRECT.match(text, at):
            kind, at = "redirect", _word_end(text, found.end())
            if found[1] in ("<<", "<<-"):
                delimiter = re.escape(re.sub(r"['\"\\]", "", text[found.end() : at]))
                begin = behind or text.find("\n", at) + 1 or len(text)
                tabs = "\t*" if found[1] == "<<-" else ""
                end = re.compile(f"^{tabs}{delimiter}$", re.MULTILINE).search(text, begin)
                stdin, behind = text[begin : end.start() if end else len(text)], end.end() + 1 if end else len(text)
        elif found := _OPERATOR.match(text, at):
            kind, at = "operator", found.end()
        else:
            at = max(_word_end(text, at), start + 1)
        if kind:
            yield Word(text[start:at], line, kind, stdin)
        if behind and kind == "operator" and text[start] == "\n":
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
    if text[at] == "'" or text.startswith("$'", at):
        if not (found := _SINGLE.match(text, at)):
            raise ValueError(text[at : at + 20])
        return found.end()
    if text[at] in '"`':
        return _closing(text, at + 1, text[at])
    if text.startswith(("$(", "<(", ">(", "${"), at):
        return _closing(text, at + 2, "}" if text[at + 1] == "{" else ")")
    found = _SHORT.match(text, at)
    return found.end() if found else min(at + 2, len(text))


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
        self.found: list[Command] = []
        self.blocks: list[tuple[str, bool]] = []  # what closes it, and whether it is the body of a function
        self.words: list[Word] = []
        self.redirects: list[Word] = []
        self.conditional = self.piped = self.continued = self.defines = self.pattern = False

    def word(self, token: Word, read: Iterator[Word]) -> None:
        word, first = token.text, self.words[0].text if self.words else ""
        self.continued = False
        if not first and self.blocks and word == self.blocks[-1][0]:
            self.blocks.pop()
            self.pattern = False
        elif not first and word in _CLOSED_BY and not self.pattern:
            self.open(_CLOSED_BY[word])
            self.words += [token] if word in ("for", "select", "case") else []
            self.found += [Command((token,), token.line, outer=False)] if word in ("while", "until") else []
        elif first == "case" and word == "in" and len(self.words) > 1:
            self.end()
            self.pattern = True
        elif first or word not in _SKIPPED:
            self.words.append(token)
            if first == "function":
                self.define(token)
            elif not first and word == "[[":  # its operators are words
                self.words += takewhile(lambda one: one.text != "]]", read)

    def operator(self, text: str) -> None:
        if text == ")" and self.pattern:
            self.words.clear()
            self.pattern = False
        elif text == "(" and not self.pattern:
            self.end()
            self.open(")")
        elif text == ")":
            self.end()
            if not self.blocks or self.blocks.pop()[0] != ")":
                raise ValueError("a bracket is closed that is not open")
            self.pattern = False
        elif text[0] == "(" != text:
            self.define(*self.words[:1])
        elif not (self.pattern and text == "|") and not (text == "\n" and self.continued):
            pipe = text in ("|", "|&")
            self.end(away=pipe or text == "&")
            self.conditional = text in ("&&", "||") or (pipe and self.conditional)
            self.piped, self.continued = pipe, pipe or self.conditional
            self.pattern = self.pattern or text in (";;", ";&", ";;&")

    def define(self, *name: Word) -> None:
        for one in name:
            self.found.append(Command((Word("function", one.line), one), one.line, outer=False, function=True))
        self.words.clear()
        self.defines = True

    def open(self, closed_by: str) -> None:
        self.blocks.append((closed_by, self.defines))
        self.conditional = self.piped = self.defines = self.pattern = False

    def end(self, *, away: bool = False) -> None:
        """The words up to here are a command; ``away`` in a pipeline or in the background."""
        if self.words or self.redirects:
            outer = not self.conditional and not self.blocks
            function = any(function for _, function in self.blocks)
            writes = tuple(re.sub(r"^[^<>]*[<>&|]+[ \t]*", "", one.text) for one in self.redirects if ">" in one.text)
            stdin = "".join(one.stdin for one in self.redirects)
            line, here = (self.words or self.redirects)[0].line, not (self.piped or away)
            self.found.append(Command((*self.words,), line, outer, here, function, stdin, writes))
        self.words.clear()
        self.redirects.clear()
