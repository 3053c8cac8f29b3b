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


_NEXT = (  # a command goes on in the next line behind && || and |; what a scheduler reads is no comment
    r"""(?x)(?P<blank>(?:[ \t\r]|\\\n|\#(?!(?:SBATCH|PBS|BSUB|\$)\s)[^\n]*)+)
    |(?P<define>function[ \t]+[\w:.-]+(?:[ \t]*\([ \t]*\))?|[\w:.-]+[ \t]*\([ \t]*\))
    |(?P<redirect>(?:\d+|\{\w+\})?(?:<<<|<<-?|<&|>&|&>>?|>>|>\||<>|<(?!\()|>(?!\())[ \t]*)
    |(?P<operator>;;&|;&|;;|(?:&&|\|\||\|&?)(?:\s|\\\n|\#[^\n]*\n)*|[;&()\n])
    |(?P<word>\[\[\s(?:[^\]]|\](?!\]))*\]\])"""
)
_PLAIN = re.compile(r"[^ \t\r\n;&|()<>'\"\\`$]+")
_QUOTED = re.compile(r"[^\"\\`$]+")
_SIMPLE = r"(?as)'[^']*'|\$'(?:\\.|[^'\\])*'|\$(?:\d|[A-Za-z_]\w*|[@*#?$!-])?|\\.?"
_CLOSED_BY = {"if": "fi", "case": "esac", "{": "}", "(": ")"}
_CLOSED_BY.update(dict.fromkeys(("for", "select", "while", "until"), "done"))


def commands(text: str, line: int = 1) -> Iterator[SimpleCommand]:
    """The commands of a script that begins at a line, as they stand. Raises ValueError where it cannot be split."""
    words, redirects, blocks = list[Token](), list[Token](), list[str]()  # of a block the word that closes it
    conditional = piped = False
    for token in (*tokens(text, line), Token("\n", line, "operator")):
        if token.kind == "operator":
            operator = token.text[: 2 if token.text[:2] in ("&&", "||") else 1]
            is_pattern = operator == ")" and blocks[-1:] == ["esac"]
            if (words or redirects) and not is_pattern:
                outer, here = not conditional and not blocks, not piped and operator not in ("|", "&")
                yield SimpleCommand((*words,), (*redirects,), outer, here)
            _nest(blocks, "" if is_pattern else operator)
            conditional = operator in ("&&", "||") or (operator == "|" and conditional)
            words, redirects, piped = [], [], operator == "|"
        elif token.kind == "define":
            yield SimpleCommand((token,), outer=False)
        elif token.kind != "word":
            redirects.append(token)
        elif words or not _nest(blocks, token.text) or token.text in ("for", "select", "case"):
            words.append(token)
        elif token.text in ("while", "until"):
            yield SimpleCommand((token,), outer=False)
    if blocks:
        raise ValueError(f"{blocks[-1]} is missing")


def _nest(blocks: list[str], word: str) -> bool:
    """Whether a word that begins a command, or a bracket, is a keyword; it may open or close a block."""
    if blocks[-1:] == [word]:
        blocks.pop()
    elif word in _CLOSED_BY:
        blocks.append(_CLOSED_BY[word])
    elif word == ")":
        raise ValueError("a bracket is closed that is not open")
    else:
        return word in ("then", "do", "else", "elif", "!", "time", "-p")
    return True


def tokens(text: str, line: int = 1) -> Iterator[Token]:
    """The words, redirections and operators of a text; comments are left out. Raises ValueError."""
    at, behind = 0, 0  # `behind` is where the here-documents of the line end
    while at < len(text):
        start, document, found = at, "", re.compile(_NEXT).match(text, at)
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


def pieces(text: str, at: int = 0) -> Iterator[tuple[str, bool]]:
    """The pieces of the word that begins at a place: quotes, expansions, and whether each is in double quotes.

    Raises ValueError where a quote or an expansion has no end.
    """
    quoted = False
    while at < len(text):
        start, char, plain = at, text[at], (_QUOTED if quoted else _PLAIN).match(text, at)
        if plain:
            at = plain.end()
        elif char == '"':
            at, quoted = at + 1, not quoted
        elif char == "(" and at and text[at - 1] in "=@?*+!":
            at = _closing(text, at + 1, ")")  # an array, or a pattern
        elif char in "'\\`$" or text.startswith(("<(", ">("), at):
            at = _skipped(text, at)
        else:
            break
        yield text[start:at], quoted
    if quoted:
        raise ValueError("a quote is not closed")


def _word_end(text: str, at: int) -> int:
    return at + sum(len(piece) for piece, _ in pieces(text, at))


def _skipped(text: str, at: int) -> int:
    """Where the quote or the expansion ends that begins at a place."""
    if text[at] in '"`':
        return _closing(text, at + 1, text[at])
    if text.startswith(("$(", "<(", ">(", "${"), at):
        return _closing(text, at + 2, "}" if text[at + 1] == "{" else ")")
    if not (found := re.compile(_SIMPLE).match(text, at)):
        raise ValueError("a quote is not closed")
    return found.end()


def _closing(text: str, at: int, closed_by: str) -> int:
    while at < len(text):
        char = text[at]
        if char == closed_by:
            return at + 1
        if char in "\\`$" or (char in "'\"" and closed_by in ")}") or (char == '"' and closed_by == "`"):
            at = _skipped(text, at)
        elif char == "(" and closed_by == ")":
            at = _closing(text, at + 1, ")")
        elif char == "#" and closed_by == ")" and text[at - 1] in " \t\n(;":
            at = text.find("\n", at) + 1 or len(text)
        else:
            at += 1
    raise ValueError(f"{closed_by} is missing")
