"""Splits a shell script into commands and words. It knows quotes and expansions, and no meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from patcher.guards.programs import KEYWORDS

_NESTING = 5  # of brackets in brackets; a bound keeps the time linear in what is read
_INSIDE = _BRACES = r"[^(){}]*"
for _ in range(_NESTING):
    _INSIDE = (
        rf"""(?:[^()'"\\#]|'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<=[\s;])\#[^\n]*(?![^\n])|(?<![\s;])\#|\({_INSIDE}\))*"""
    )
    _BRACES = rf"(?:[^{{}}\\]|\\.|\{{{_BRACES}\}})*"
_NUMBER = r"\$?\(\((?:[^()$]|\$(?!\()|\([^()]*\))*\)\)"
_RUN = rf"(?s){_NUMBER}|[$<>]\(({_INSIDE})\)|`((?:\\.|[^`\\])*)`"
# No text matches two alternatives, so that nothing is tried twice where a quote is not closed.
_NAME = r"\$(?:[A-Za-z_]\w*(?!\w)|[0-9@*\#?$!-])"
_DOLLAR = rf"{_NUMBER}|(?!{_NUMBER})\$\({_INSIDE}\)|\$\{{{_BRACES}\}}|`(?:\\.|[^`\\])*`|{_NAME}"
_EXPANSION = (  # what a command in brackets or a test says is one, too
    rf"{_DOLLAR}|[<>]\({_INSIDE}\)|(?<==)\({_INSIDE}\)|\$'(?:\\.|[^'\\])*'"
    r"|\{[^\s{}'\"$`]{0,200}(?:,|\.\.)[^\s{}'\"$`]{0,200}\}|\[\[\s(?:[^\n;`$]|\$(?!\()){0,500}?\s\]\]"
)
_DOUBLE = rf'"((?:\\.|(?!\(){_DOLLAR}|[^"\\$`]|\$(?![\w({{@*\#?$!-]))*)"'
_PIECE = rf"(?s)({_EXPANSION})|\\(.)|'([^']*)'|{_DOUBLE}"
_IN_DOUBLE = rf"(?s)((?!\(){_DOLLAR})|\\([$`\"\\\n])"
# What a scheduler reads is no comment.
_TOKEN = rf"""(?xs)((?:[ \t\r]|\\(?:\n|\Z))+|\#(?!SBATCH|PBS|BSUB)[^\n]*)
    |(?:\d+|\{{\w+\}}|&)?(?P<direction><<<|[<>]&|>>|>\||<>|>(?!\()|<(?![(<]))
    |(?P<operator>;;&|;&|;;|&&|\|\||\|&|\([ \t]*\)|[|&;)\n]|\((?!\())
    |(?P<word>(?:{_EXPANSION}|'[^']*'|{_DOUBLE}|\\.|\$(?![({{])|[^ \t\r\n;&|()<>'"\\`$])+)"""


def normal(text: str) -> str:
    """Return ``text`` without quotes, backslashes and line continuations, so that a name is in one piece."""
    return re.sub(r"\\\n|[\"'\\]", "", text)


class Word(NamedTuple):
    """A word as written in a script, and its line."""

    line: int
    raw: str

    @property
    def text(self) -> str:
        """Return the word without quotes, with expansions as written."""
        return self.expanded(str)

    def expanded(self, value: Callable[[str], str]) -> str:
        """Return the word without quotes, with ``value(expansion)`` in place of each expansion, such as ``${HOME}``."""

        def unquoted(match: re.Match[str]) -> str:
            """Return what replaces a matched expansion, escape or quoted part of the word."""
            expansion, escaped, *quoted = match.groups()
            if quoted and quoted[1] is not None:
                return re.sub(_IN_DOUBLE, unquoted, quoted[1])
            text = "" if escaped == "\n" else escaped  # the line goes on in the next one
            return value(expansion) if expansion else "".join(filter(None, (text, *quoted)))

        return re.sub(_PIECE, unquoted, self.raw)

    def commands(self) -> Iterator[str]:
        """Yield the commands within the word's command substitutions."""
        return ((run[1] or run[2] or "").replace("\\`", "`") for run in re.finditer(_RUN, self.raw))


class ShellCommand(NamedTuple):
    """A simple command, its redirections, and the operators around it; keywords such as ``then`` are in ``before``.

    ``after`` is "" for the rest of a script that cannot be split, which is its only word.
    """

    words: tuple[Word, ...]
    redirects: tuple[tuple[str, Word], ...]
    before: str
    after: str


def split(text: str, line: int = 1) -> Iterator[ShellCommand]:
    """Yield the commands of a script whose first line has the number ``line``, with empty ones between operators.

    The last one is the rest of the text from a here-document on, or from a quote or an expansion that is not closed.
    """
    text = text.replace("\0", "") + "\n"
    words, redirects = list[Word](), list[tuple[str, Word]]()
    before, direction, depth, at = "\n", "", 0, 0
    token = re.compile(_TOKEN)
    while at < len(text):
        match = token.match(text, at)
        if match is None:
            yield ShellCommand((Word(line, text[at:]),), (), before, "")
            return
        word = Word(line, match[0])
        at, line = match.end(), line + match[0].count("\n")
        if match["operator"]:
            if match[0] != ")" or depth:  # else it ends a pattern of `case`
                yield ShellCommand((*words,), (*redirects,), before, match[0])
            depth = max(0, depth + {"(": 1, ")": -1}.get(match[0], 0))
            words, redirects, before = [], [], "(" if depth else match[0]
        elif match["direction"]:
            direction = match["direction"]
        elif match["word"] and direction:
            redirects.append((direction, word))
            direction = ""
        elif match[0] in KEYWORDS and not words:
            before += match[0]
        elif match["word"]:
            words.append(word)
