"""Splits a shell script into commands and words. It knows quotes, expansions and here-documents, and no meaning."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
_TOKEN = rf"""(?xs)(?P<space>(?:[ \t\r]|\\(?:\n|\Z))+|\#(?!SBATCH|PBS|BSUB)[^\n]*)
    |(?P<document><<-?(?!<)[ \t]*\\?(?P<quote>['"]?)(?P<name>[A-Za-z_][\w.-]*)(?P=quote))
    |(?P<redirect>(?:\d+|\{{\w+\}}|&)?(?P<direction><<<|[<>]&|>>|>\||<>|[<>](?!\()))
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
            """Return a matched expansion, escape or quoted part of the word as it stands in the result."""
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
    """A simple command, its redirections to files or here-documents, and the operators (or ``tee``) around it."""

    words: tuple[Word, ...]
    redirects: tuple[tuple[str, Word], ...] = ()
    before: str = "\n"
    after: str = "\n"


def split(text: str, line: int = 1) -> list[ShellCommand]:
    """Split a script, whose first line has the number ``line``, into commands. Raises ValueError if it is malformed."""
    text = text.replace("\0", "") + "\n"
    ends = [match.end() for match in re.finditer("\n", text)]
    commands = list[ShellCommand]()
    words, redirects = list[Word](), list[tuple[str, Word]]()
    documents = dict[int, int]()  # from the ends of lines to those of the here-documents that follow them
    before, direction, depth, at = "\n", "", 0, 0
    token = re.compile(_TOKEN)
    while at < len(text):
        match = token.match(text, at)
        if match is None:
            raise ValueError("a quote or an expansion is not closed")
        word, at = Word(line + bisect_right(ends, at), match[0]), match.end()
        if match["document"]:
            redirects.append(("<<<", _document(text, match, documents, word.line)))
        elif match["operator"]:
            is_pattern = match[0] == ")" and not depth  # of `case`
            if (words or redirects) and not is_pattern:
                _append(commands, ShellCommand((*words,), (*redirects,), before, match[0]))
            depth = max(0, depth + {"(": 1, ")": -1}.get(match[0], 0))
            words, redirects, before = [], [], "(" if depth else match[0]
            at = documents.get(match.start(), at)
        elif match["direction"]:
            direction = match["direction"]
        elif match["word"] and direction:
            redirects.append((direction, word))
            direction = ""
        elif match["word"]:
            words.append(word)
    return commands


def _append(commands: list[ShellCommand], command: ShellCommand) -> None:
    """Append ``command``; if it is a tee that ends a pipe, set ``after`` of the command before it to "tee"."""
    is_tee = command.before == "|" and [word.raw for word in command.words[:1]] == ["tee"]
    if is_tee and commands and command.after in ("\n", ";", "&"):
        commands[-1] = commands[-1]._replace(after="tee")
    commands.append(command)


def _document(text: str, opening: re.Match[str], documents: dict[int, int], line: int) -> Word:
    """Return the here-document that ``opening`` starts, and add its end to ``documents``.

    ``documents`` maps the end of a line to that of the last here-document behind it. Raises ValueError if the document
    is not closed.
    """
    newline = text.find("\n", opening.end())
    begin = documents.get(newline, newline)
    closing = re.compile(rf"^\t*{re.escape(opening['name'])}$", re.MULTILINE).search(text, begin + 1)
    if newline < 0 or closing is None:
        raise ValueError("a here-document is not closed")
    documents[newline] = closing.end()
    return Word(line + 1, text[begin + 1 : closing.start()])
