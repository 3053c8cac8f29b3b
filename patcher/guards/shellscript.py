"""Shell scripts: the variables that they change, branch by branch, and the commands that they start."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from patcher.guards.scope import (
    ASSIGNMENT,
    MOST_ASSIGNMENTS,
    MOST_NESTING,
    MOST_TEXT,
    MOST_WORDS,
    OVERRIDE,
    RUN_TIME,
    Argument,
    Invocation,
    Placed,
    Scope,
    merged,
)
from patcher.guards.shell import REDIRECTS, Heredoc, Operator, Parameter, Substitution, Token, Word, tokens

if TYPE_CHECKING:
    from patcher.guards.launch import Reading

_OPTION = re.compile(r"(--[\w.-]+)=")
_TESTS = frozenset({"[", "[[", "((", "test", "grep", "command", "which", "type", "!"})


@dataclass
class _Frame:
    construct: str
    entry: Scope
    ends: list[Scope] = field(default_factory=list)
    complete: bool = False
    pattern: bool = False


_OPENS = {
    "if": "if",
    "for": "loop",
    "select": "loop",
    "while": "loop",
    "until": "loop",
    "case": "case",
    "{": "group",
}
_CLOSES = {"fi": {"if"}, "done": {"loop"}, "esac": {"case"}, "}": {"group", "function"}}
_PLAIN = frozenset({"group", "subshell"})


class Shell:
    """Follows one shell text through its branches; what it changes stays in the scope it was given."""

    def __init__(self, reading: Reading, scope: Scope, name: str, folder: Path) -> None:
        self.reading = reading
        self.scope = scope
        self.name = name
        self.folder = folder
        self.frames: list[_Frame] = []
        self.words: list[Word] = []
        self.fed: Heredoc | None = None
        self.piped: Heredoc | None = None
        self.defines = False
        self.last_test = False
        self.stopped = False

    @property
    def depth(self) -> int:
        """How many branches, loops and functions are open."""
        return sum(frame.construct not in _PLAIN for frame in self.frames)

    def run(self, stream: list[Token]) -> None:
        """Follow the words to the end of the text, or to an ``exit`` that stands in no branch."""
        skip_word = False
        inside_test = False
        for token in stream:
            if self.stopped:
                break
            if skip_word:
                skip_word = False
                if isinstance(token, Word):
                    continue
            top = self.frames[-1] if self.frames else None
            if top is not None and top.construct == "case" and top.pattern:
                self._pattern(top, token)
            elif inside_test:
                inside_test = not (isinstance(token, Word) and token.raw == "]]")
            elif isinstance(token, Heredoc):
                self.fed = token
            elif isinstance(token, Operator):
                if token.text in REDIRECTS:
                    skip_word = True
                else:
                    self._operator(token)
            elif not self.words and token.raw == "[[":
                inside_test = True
                self.words.append(token)
            elif not self._reserved(token):
                self.words.append(token)
        self._finish()
        while self.frames:
            self._close(self.frames[-1].construct)

    # --- structure ---

    def _open(self, construct: str) -> None:
        # Beyond this the text is no script that anybody wrote.
        if len(self.frames) < 200:
            self.frames.append(_Frame(construct, self.scope.copy()))

    def _close(self, *constructs: str) -> None:
        if not self.frames or self.frames[-1].construct not in constructs:
            return
        frame = self.frames.pop()
        if frame.construct == "subshell":
            self.scope = self._same(frame.entry)
        elif frame.construct in {"loop", "function", "chain"}:
            self.scope = self._same(merged([frame.entry, self.scope], self.depth))
        elif frame.construct in {"if", "case"}:
            ends = [*frame.ends, self.scope] if frame.construct == "if" or not frame.pattern else frame.ends
            if not frame.complete:
                ends = [frame.entry, *ends]
            self.scope = self._same(merged(ends or [self.scope], self.depth))

    def _same(self, result: Scope) -> Scope:
        """Keep the caller's object, since ``source`` and ``eval`` change the caller's variables."""
        self.scope.variables = result.variables
        self.scope.arrays = result.arrays
        self.scope.perhaps = result.perhaps
        return self.scope

    def _branch(self) -> None:
        frame = self.frames[-1]
        frame.ends.append(self.scope.copy())
        self._same(frame.entry.copy())

    def _pattern(self, frame: _Frame, token: Token) -> None:
        if isinstance(token, Word):
            if token.raw == "esac":
                self._close("case")
            elif token.raw == "*":
                frame.complete = True
        elif isinstance(token, Operator) and token.text == ")":
            frame.pattern = False

    def _operator(self, token: Operator) -> None:
        text = token.text
        top = self.frames[-1] if self.frames else None
        if text == "(":
            if len(self.words) == 1:  # name () …
                self.words.clear()
                self.defines = True
            elif self.defines and not self.words:
                pass
            else:
                self._finish()
                self._open("subshell")
            return
        if text == ")" and self.defines and not self.words:
            return
        self._finish(pipe=text in {"|", "|&"})
        if text == ")":
            self._close("chain")
            self._close("subshell")
        elif text in {"&&", "||"}:
            # Scripts chain steps with && and mean all of them; a test before it, or ||, means perhaps.
            if (text == "||" or self.last_test) and not (top is not None and top.construct == "chain"):
                self._open("chain")
        elif text in {";;", ";&", ";;&"}:
            self._close("chain")
            if self.frames and self.frames[-1].construct == "case":
                self._branch()
                self.frames[-1].pattern = True
        elif text not in {"|", "|&"}:
            self._close("chain")

    def _reserved(self, word: Word) -> bool:
        """Handle a reserved word; True if it was one."""
        raw, top = word.raw, self.frames[-1] if self.frames else None
        if self.words:
            first = self.words[0].raw
            if first == "case" and raw == "in":
                self.words.clear()
                if top is not None and top.construct == "case":
                    top.pattern = True
                return True
            if first == "function":
                self.words.clear()
                self.defines = True
                return True
            return False
        if self.defines and raw == "{":
            self._open("function")
            self.defines = False
            return True
        if raw in _OPENS:
            self._open(_OPENS[raw])
            if raw in {"for", "select", "case"}:
                self.words.append(word)
            return True
        if raw in {"else", "elif"}:
            if top is not None and top.construct == "if":
                self._branch()
                top.complete = raw == "else"
            return True
        if raw in _CLOSES:
            self._close(*_CLOSES[raw])
            return True
        return raw in {"then", "do", "!", "time", "in"}

    # --- commands ---

    def _finish(self, *, pipe: bool = False) -> None:
        words, self.words = self.words, []
        fed, self.fed = self.fed or self.piped, None
        self.piped = fed if pipe and words and words[0].raw == "cat" else None
        if not words:
            return
        first = words[0].raw
        self.last_test = first in _TESTS
        if first in {"for", "select"} and len(words) > 1:
            self._assign_texts(words[1].raw, [None], words[1], export=False)
            return
        if first == "case":
            return
        self._substitutions(words)
        self._simple(words, fed)

    def _where(self, line: int) -> str:
        return f"{self.name}:{line}" if line else self.name

    def _sure(self) -> bool:
        return self.reading.sure and self.depth == 0

    def _substitutions(self, words: list[Word]) -> None:
        for word in words:
            for piece in word.pieces:
                if isinstance(piece, Substitution) and piece.text and self.reading.nesting < MOST_NESTING:
                    self._nested(piece.text, piece.line, self.scope.copy())

    def _nested(self, text: str, line: int, scope: Scope) -> None:
        reading, before = self.reading, self.reading.sure
        reading.nesting += 1
        reading.sure = self._sure()
        try:
            shell = Shell(reading, scope, self.name, self.folder)
            shell.run(tokens(text, line))
        finally:
            reading.nesting -= 1
            reading.sure = before

    def _simple(self, words: list[Word], fed: Heredoc | None) -> None:
        count = 0
        while count < len(words) and ASSIGNMENT.match(words[count].raw):
            count += 1
        assignments, rest = words[:count], words[count:]
        if not rest:
            for word in assignments:
                self._assign(word, export=False)
            return
        line = rest[0].line
        argv = [text for word in rest for text in self._expand(word)]
        head = argv[0] if argv else None
        if head in {"export", "declare", "typeset", "readonly", "local"}:
            self._declare(str(head), rest[1:])
        elif head == "unset":
            for word, name in zip(rest[1:], argv[1:], strict=False):
                if name and not name.startswith("-") and argv[1] != "-f":
                    self.scope.drop(name, self._where(word.line), f"unset {name}", self.depth)
        elif head == "set":
            self._set(argv[1:])
        elif head == "shift":
            self.scope.args = self.scope.args[1:] if self.scope.args else self.scope.args
        elif head in {"source", "."} and len(argv) > 1:
            self._source(rest[1], argv[1])
        elif head == "eval" and self.reading.nesting < MOST_NESTING:
            if all(text is not None for text in argv):
                self.reading.nesting += 1
                Shell(self.reading, self.scope, self.name, self.folder)._evaluate(argv, line)
                self.reading.nesting -= 1
        elif head == "command" and argv[1:2] in (["-v"], ["-V"]):
            pass
        elif head == "exit" and not self.frames:
            self.stopped = True
        elif argv:
            self._launch(assignments, rest, argv, fed)
            self.stopped = head == "exec" and len(argv) > 1 and not self.frames

    def _evaluate(self, argv: list[Argument], line: int) -> None:
        self.run(tokens(" ".join(text or "" for text in argv[1:]), line))

    def _launch(self, assignments: list[Word], rest: list[Word], argv: list[Argument], fed: Heredoc | None) -> None:
        scope, own = self.scope.copy(), self.scope
        self.scope = scope
        for word in assignments:
            self._assign(word, export=True)
        self.scope = own
        for at, word in enumerate(rest):
            # "$(dirname "$0")/other.sh": what is not known is this script's folder, or nothing that is here.
            tail = _tail(word)
            if tail and len(argv) == len(rest) and argv[at] is None and (self.folder / tail).is_file():
                argv[at] = str(self.folder / tail)
        where = self._where(rest[0].line)
        self.reading.command(argv, scope, where, self._sure(), folder=self.folder, fed=fed)
        perhaps = [text for word in rest for text in self._perhaps(word)]
        if perhaps:
            self.reading.invocations.append(Invocation(where, (argv[0], *perhaps), {}, sure=False, perhaps=True))

    def _declare(self, head: str, words: list[Word]) -> None:
        export, remove = head == "export", False
        for word in words:
            if word.raw[:1] in {"-", "+"}:
                export = export or (word.raw[0] == "-" and "x" in word.raw)
                remove = remove or (head == "export" and "n" in word.raw)
                if word.raw in {"-f", "-p"}:
                    return
                continue
            if ASSIGNMENT.match(word.raw):
                self._assign(word, export=export and not remove)
            names = [text.partition("=")[0] for text in self._expand(word) if text]
            for name in names:
                variables = self.scope.variables.get(name)
                if variables and (export or remove):
                    self.scope.variables[name] = tuple(
                        one._replace(exported=not remove and (one.exported or one.present)) for one in variables
                    )

    def _set(self, argv: list[Argument]) -> None:
        for at, word in enumerate(argv):
            if word == "--":
                self.scope.args = tuple(argv[at + 1 :])
                return
            if word == "allexport" and at:
                self.scope.export_all = argv[at - 1] != "+o"
            elif word is not None and re.fullmatch(r"[-+][a-zA-Z]*a[a-zA-Z]*", word):
                self.scope.export_all = word[0] == "-"

    def _source(self, word: Word, name: Argument) -> None:
        tail = _tail(word)
        path = Path(name) if name is not None else self.folder / tail if tail else None
        if path is not None:
            path = self.reading.beside(str(path), self.folder)
            self.reading.file(path, self.scope, sure=self._sure(), python=False, sourced=True)

    # --- values ---

    def _assign(self, word: Word, *, export: bool) -> None:
        match = ASSIGNMENT.match(word.raw)
        if match is None:
            return
        name, plus = match.group(1), bool(match.group(2))
        if word.array is not None:
            for known, read in ((self.scope.arrays, self._expand), (self.scope.perhaps, self._perhaps)):
                added = tuple(text for one in word.array for text in read(one))
                known[name] = ((known.get(name, ()) if plus else ()) + added)[:MOST_WORDS]
            return
        texts = self._texts(_without_name(word))
        if plus:
            olds = self._values(name) or ("",)
            texts = tuple(None if old is None or text is None else old + text for old in olds for text in texts)
        self._assign_texts(name, texts, word, export=export)

    def _assign_texts(self, name: str, texts: Iterable[Argument], word: Word, *, export: bool) -> None:
        known = tuple(dict.fromkeys(texts))[:MOST_ASSIGNMENTS]
        found = word.raw if len(word.raw) <= 200 else word.raw[:200] + "…"
        if len(known) == 1 and known[0] is not None and any(mark in found for mark in "$`"):
            found = f"{found} ({known[0][:200]})"
        self.scope.put(name, known, self._where(word.line), found, export=export, depth=self.depth)

    def _values(self, name: str) -> tuple[Argument, ...]:
        """What a parameter may be; empty if nothing here sets it."""
        if name.isdigit():
            args = self.scope.args
            if args is None or name == "0":
                return (None,)
            return (args[int(name[:6]) - 1],) if int(name[:6]) <= len(args) else ()
        if not name[:1].isalpha() and name[:1] != "_":
            return (None,)
        variables = self.scope.variables.get(name, ())
        if not any(one.present for one in variables):
            return ()
        return tuple(one.text if one.present else "" for one in variables)

    def _parameter(self, piece: Parameter) -> tuple[Argument, ...]:
        values = self._values(piece.name)
        operator = re.match(r":?[-=+]", piece.rest)
        if not piece.rest:
            # Unset here, but perhaps not where the script will run.
            return values or (None,)
        if operator is None or self.reading.nesting >= MOST_NESTING:
            return (None,)
        other = piece.rest[operator.end() :]
        self.reading.nesting += 1
        try:
            parts = [one for one in tokens(other.replace("\n", " ")) if isinstance(one, Word)]
            fallback = self._texts(parts[0]) if len(parts) == 1 else (other if not parts else None,)
        finally:
            self.reading.nesting -= 1
        if operator.group()[-1] == "+":
            return fallback if values and all(values) else ("",) if not values else (None,)
        empty = operator.group().startswith(":")
        if not values:
            return fallback
        return tuple(text for value in values for text in (fallback if value == "" and empty else (value,)))

    def _texts(self, word: Word) -> tuple[Argument, ...]:
        """Every text that a word may become."""
        results: tuple[Argument, ...] = ("",)
        for piece in word.pieces:
            if isinstance(piece, str):
                options: tuple[Argument, ...] = (piece,)
            elif isinstance(piece, Parameter):
                options = self._parameter(piece)
            else:
                options = (None,)
            results = tuple(
                dict.fromkeys(
                    None if left is None or right is None or len(left) > MOST_TEXT else left + right
                    for left in results
                    for right in options
                )
            )
            if len(results) > MOST_ASSIGNMENTS:
                return (None,)
        return results

    def _expand(self, word: Word) -> list[Argument]:
        """The words that one word becomes: arrays, ``"$@"`` and unquoted variables become several."""
        where = self._where(word.line)
        return [text if text is None or isinstance(text, Placed) else Placed(text, where) for text in self._words(word)]

    def _words(self, word: Word) -> list[Argument]:
        lone = [piece for piece in word.pieces if piece != ""]
        if len(lone) == 1 and isinstance(lone[0], Parameter):
            piece = lone[0]
            if piece.name in {"@", "*"} and not piece.rest:
                return list(self.scope.args or ())
            if piece.rest in {"[@]", "[*]"}:
                return list(self.scope.arrays.get(piece.name, ()))
            if not piece.quoted:
                texts = self._parameter(piece)
                if len(texts) == 1 and texts[0] is not None:
                    return list(texts[0].split())
        texts = self._texts(word)
        if texts == (None,) and isinstance(word.pieces[0], str):
            # --option=$X keeps its name.
            option = _OPTION.match(word.raw)
            if option:
                return [option.group(1), None]
        if len(texts) == 1 and texts[0] is not None:
            return [texts[0]]
        partly = self._partly(word)
        return [partly if OVERRIDE.match(partly) else None]

    def _partly(self, word: Word) -> str:
        """The text of a word, with RUN_TIME for each part that is not known."""
        parts = []
        for piece in word.pieces:
            texts = self._parameter(piece) if isinstance(piece, Parameter) else ()
            only = texts[0] if len(texts) == 1 else None
            parts.append(piece if isinstance(piece, str) else RUN_TIME if only is None else only)
        return "".join(parts)

    def _perhaps(self, word: Word) -> list[Argument]:
        """The words that one word becomes on some way through the branches, but not on all."""
        lone = [piece for piece in word.pieces if piece != ""]
        only = lone[0] if len(lone) == 1 and isinstance(lone[0], Parameter) else None
        if only is not None and only.rest in {"[@]", "[*]"}:
            return list(self.scope.perhaps.get(only.name, ()))
        texts = self._texts(word)
        known = [text for text in texts if text] if len(texts) > 1 else []
        if only is not None and not only.quoted:
            return [part for text in known for part in text.split()]
        return list(known)


def _without_name(word: Word) -> Word:
    """The value of ``NAME=value``: the name is written out letter by letter in the first pieces."""
    pieces = list(word.pieces)
    while pieces:
        piece = pieces.pop(0)
        if isinstance(piece, str) and "=" in piece:
            return word._replace(pieces=(piece.partition("=")[2], *pieces))
    return word._replace(pieces=())


def _tail(word: Word) -> str:
    """What follows the part of a word that nobody knows: ``other.sh`` of ``$HERE/other.sh``."""
    text = ""
    for piece in reversed(word.pieces):
        if not isinstance(piece, str):
            return text.lstrip("/") if text.startswith("/") and len(text) > 1 else ""
        text = piece + text
    return ""
