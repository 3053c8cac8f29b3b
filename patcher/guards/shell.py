"""Splits a shell script into commands and words. It knows quotes, expansions and here-documents, and no meaning."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Word(NamedTuple):
    """A word without its quotes, and the line on which it begins.

    ``coded`` has the number of each expansion in its place, ``expansions`` how these are written.
    """

    line: int
    coded: str
    expansions: list[str]

    @property
    def text(self) -> str:
        """The word with its expansions as they are written."""
        return _written(self.coded, self.expansions)

    def marked(self, value: Callable[[str], str]) -> str:
        """Return the word with a value for each expansion."""
        return _CODE.sub(lambda code: value(_written(code[0], self.expansions)), self.coded)

    def commands(self) -> Iterator[str]:
        """Yield the texts that are run to expand the word."""
        return _substituted(self.coded, self.expansions)


class ShellCommand(NamedTuple):
    """A simple command, the operators before and behind it, and its redirections: the operator and the file or text."""

    words: tuple[Word, ...]
    redirects: tuple[tuple[str, Word], ...]
    before: str
    after: str


_DEPTH = 9  # of expansions in expansions
_CODE = re.compile("\0(\\d+)\0")
_COMMENT = r"(?m)^([^'\"\n#]*[ \t;])?(#.*)"
_DOCUMENT = r"(?<!<)<<-?[ \t]*\\?(?P<quote>['\"]?)(?P<name>[A-Za-z_][\w.-]*)(?P=quote)"
# Bounds keep the time linear in what is read.
_EXPANSION = (  # the innermost; what a command in brackets or a test says is one, too
    r"""(?x)(?<!\\)(?:
        '(?:[^'\"`$\n]|\$\d){0,300}[()](?:[^'\"`$\n]|\$\d){0,300}'
        | \$?\(\((?:[^()$]|\$(?!\()|\([^()]*\))*\)\) | [$<>]\([^()]*\) | (?<==)\([^()]*\) | \$\{[^{}]*\} | `[^`]*`
        | \$'(?:\\.|[^'\\])*' | \$(?:[A-Za-z_]\w*|[0-9@*\#?$!-])
        | \{[^\s{}'\"$`]{0,200}(?:,|\.\.)[^\s{}'\"$`]{0,200}\} | \[\[\s(?:[^\n;`$]|\$(?!\()){0,500}?\s\]\]
    )"""
)
# What a scheduler reads is no comment.
_LEXICAL = r"""(?xs)(?P<space>(?:[ \t\r]|\\(?:\n|\Z))+|\#(?!SBATCH|PBS|BSUB)[^\n]*)
    |(?P<redirect>(?:\d+|\{\w+\}|&)?(?P<direction><<<|[<>]&|>>|>\||<>|[<>])[ \t]*)
    |(?P<operator>;;&|;&|;;|&&|\|\||\|&|\([ \t]*\)|[|&;()\n])
    |(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^ \t\r\n;&|()<>'"\\])+)"""
_QUOTES = r"(?s)'([^']*)'|\"((?:\\.|[^\"\\])*)\"|\\(.)"


def split(text: str, line: int = 1) -> list[ShellCommand]:
    """Return the commands of a script that begins at a line. Raises ValueError where it cannot be split."""
    expansions = list[str]()
    coded = _coded(text, expansions)
    ends = [match.end() for match in re.finditer("\n", coded)]
    commands = list[ShellCommand]()
    words, redirects = list[Word](), list[tuple[str, Word]]()
    before, direction, depth, at = "\n", "", 0, 0
    token = re.compile(_LEXICAL)
    while at < len(coded):
        match = token.match(coded, at)
        if match is None:
            raise ValueError("a quote is not closed")
        word = Word(line + bisect_right(ends, at), re.sub(_QUOTES, _unquoted, match[0]), expansions)
        at = match.end()
        if match.lastgroup == "operator":
            if match[0] == ")" and not depth:  # behind a pattern of `case`
                while commands and commands[-1].after == "|":
                    commands.pop()
            elif words or redirects:
                commands.append(ShellCommand((*words,), (*redirects,), before, match[0]))
            depth = max(0, depth + {"(": 1, ")": -1}.get(match[0], 0))
            words, redirects, before = [], [], "(" if depth else match[0]
        elif match["direction"]:
            direction = match["direction"]
        elif match.lastgroup == "word" and direction:
            redirects.append((direction, word))
            direction = ""
        elif match.lastgroup == "word":
            words.append(word)
    if words or redirects:
        commands.append(ShellCommand((*words,), (*redirects,), before, "\n"))
    return commands


def _coded(text: str, expansions: list[str]) -> str:
    """Return a script with the numbers of its expansions and here-documents. Raises ValueError."""
    text = re.sub(_COMMENT, _without_quotes, text.replace("\0", ""))
    pieces, at = list[str](), 0
    while head := re.compile(_DOCUMENT).search(text, at):
        begin = text.find("\n", head.end()) + 1 or len(text)
        end = re.compile(rf"^\t*{re.escape(head['name'])}$", re.MULTILINE).search(text, begin)
        if end is None:
            raise ValueError("a here-document is not closed")
        document = _expanded(text[begin : end.start()], expansions)
        expansions.append(document)
        pieces += [text[at : head.start()], f"<<<\0{len(expansions) - 1}\0", text[head.end() : begin]]
        pieces.append("\n" * text.count("\n", begin, end.start()))
        at = end.end()
    return _expanded("".join(pieces) + text[at:], expansions)


def _expanded(text: str, expansions: list[str]) -> str:
    """Return a text with the numbers of its expansions. Raises ValueError."""

    def code(match: re.Match[str]) -> str:
        expansions.append(match[0])
        return f"\0{len(expansions) - 1}\0" + "\\\n" * match[0].count("\n")

    for _ in range(_DEPTH):
        text, count = re.subn(_EXPANSION, code, text)
        if not count:
            break
    if re.search(r"(?<!\\)(\$[({]|`)", text):
        raise ValueError("an expansion is not closed")
    return text


def _substituted(coded: str, expansions: list[str]) -> Iterator[str]:
    for code in _CODE.finditer(coded):
        expansion = expansions[int(code[1])]
        if re.match(r"\$\((?!\()|[<>]\(", expansion):
            yield _written(expansion[2:-1], expansions)
        elif expansion.startswith("`"):
            yield _written(expansion[1:-1].replace("\\`", "`"), expansions)
        else:
            yield from _substituted(expansion, expansions)


def _without_quotes(comment: re.Match[str]) -> str:
    return (comment[1] or "") + re.sub(r"[\"'`(){}\\<$]", "", comment[2])


def _written(coded: str, expansions: list[str]) -> str:
    """Return a text with its expansions as they are written."""
    return _CODE.sub(lambda code: _written(expansions[int(code[1])], expansions), coded)


def _unquoted(quoted: re.Match[str]) -> str:
    if quoted[1] is not None:
        return quoted[1]
    if quoted[2] is not None:
        return re.sub(r"(?s)\\([$`\"\\\n])", lambda escaped: escaped[1].strip("\n"), quoted[2])
    return quoted[3].strip("\n")
