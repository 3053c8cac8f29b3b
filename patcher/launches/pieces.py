"""Parts of a word of a shell script, and what the shell makes of texts: patterns, names of files, cuts."""

from __future__ import annotations

import glob
import os.path
import posixpath
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from patcher.launches.invocation import RUN_TIME, Assignment, Placed
from patcher.launches.scope import MANY, MOST_TEXT, Scope, Words

_MAGIC = re.compile(r"[*?]|\[.*\]|[@+!]\(")


class Piece(NamedTuple):
    """A part of a word: the text, or the words, that it becomes, and how the shell treats that."""

    text: str = ""
    quoted: bool = False
    literal: bool = False
    where: str = ""
    words: Words | None = None


def given(ways: Sequence[Assignment], *, empty: bool) -> bool | None:
    """Whether a parameter has a value, which an ``empty`` one is not; None if only the run tells."""
    texts = [one.text if one.present else "" for one in ways]
    full = {None if text is None or set(text) == {RUN_TIME} else bool(text) for text in texts}
    answers = full if empty else {one.present for one in ways}
    return answers.pop() if len(answers) == 1 else None


def literal(text: str) -> list[Piece]:
    """Letters without quotes, of which a backslash may quote one."""
    parts = re.split(r"\\(.)", text.replace("\\\n", ""), flags=re.DOTALL)
    return [Piece(part, at % 2 == 1, at % 2 == 0) for at, part in enumerate(parts) if part]


def joined(pieces: Sequence[Piece]) -> str:
    """The text that pieces become where nothing is split."""
    texts = [
        RUN_TIME if MANY in (one.words or ()) else one.text if one.words is None else " ".join(one.words)
        for one in pieces
    ]
    return "".join(texts) if sum(map(len, texts)) <= MOST_TEXT else RUN_TIME


def matching(pieces: Sequence[Piece]) -> Callable[[str], bool | None]:
    """Whether a text matches a pattern, None if only the run tells."""
    whole = "".join(glob.escape(one.text) if one.quoted else one.text for one in pieces)
    odd = RUN_TIME in whole or re.search(r"[?*+@!]\(|\[\[:|\[[^\]]*\^", whole) or any(one.words for one in pieces)
    return lambda text: None if odd or RUN_TIME in text else fnmatchcase(text, whole)


def many(where: str = "") -> Piece:
    """A part that may become any number of words."""
    return Piece(words=(Placed(MANY, where),))


def elements_of(words: Words, sign: str, quoted: bool, scope: Scope) -> Piece:
    """``$@``, ``$*`` and the elements of an array."""
    if words and scope.splits_oddly() and not (quoted and sign == "@"):
        return Piece(RUN_TIME, True) if quoted else many()
    if quoted and sign == "*":
        return Piece(RUN_TIME if MANY in words else " ".join(words), True)
    if not quoted:
        # Each of them is split, and an empty one vanishes.
        words = tuple(Placed(part, word.where) for word in words for part in re.split(r"[ \t\n]+", word) if part)
    return Piece(words=words)


def is_file_name(pieces: Sequence[Piece], text: str, scope: Scope) -> bool:
    """Whether a pattern may be replaced by the names of files: not where none matches."""
    if not _MAGIC.search("".join(one.text for one in pieces if not one.quoted)):
        return False
    if RUN_TIME in text or scope.folder is None or "glob" in scope.flags:
        # `key=[…]` is a setting: nobody has a file of that name.
        return not re.match(r"[+~]{0,2}[\w./@:-]+=", text) or "glob" in scope.flags
    pattern = "".join(glob.escape(one.text) if one.quoted else one.text for one in pieces)
    if not glob.has_magic(pattern) and not re.search(r"[@+!]\(", pattern):
        return False
    try:
        return bool(glob.glob(os.path.join(glob.escape(scope.folder), pattern)))  # noqa: PTH118, PTH207
    except (OSError, ValueError, re.error):
        return True


def changed(text: str, sign: str, beyond: str) -> str:
    """What ``${name%pattern}`` and its kin make of a text."""
    if sign in {",,", "^^"} and not beyond:
        return text.lower() if sign == ",," else text.upper()
    if re.search(r"[$`'\"\\\[(]", beyond) or len(text) >= 1000:
        return RUN_TIME
    if sign in {"%", "%%", "#", "##"}:
        cuts = [(text[:at], text[at:]) for at in range(len(text) + 1)]
        kept, gone = (0, 1) if sign[0] == "%" else (1, 0)
        cuts = cuts if sign in {"#", "%%"} else cuts[::-1]
        return next((cut[kept] for cut in cuts if fnmatchcase(cut[gone], beyond)), text)
    old, _, new = beyond.partition("/")
    if sign in {"/", "//"} and old and not re.search(r"[*?&#%~]", beyond) and "/" not in new:
        return text.replace(old, new, -1 if sign == "//" else 1)
    return RUN_TIME


def path_of(head: str, words: Sequence[str], scope: Scope) -> str:
    """What ``dirname`` and its kin print."""
    given = [word for word in words if word not in {"--", "-f", "-e", "-m", "-s"}]
    most = 2 if head == "basename" else 1
    if any(RUN_TIME in word for word in words) or not 0 < len(given) <= most or given[0][:1] in {"-", ""}:
        return RUN_TIME
    path = given[0].rstrip("/") or "/"
    if head == "basename":
        name, suffix = posixpath.basename(path) or "/", "".join(given[1:])
        return f"{name if name == suffix else name.removesuffix(suffix)}\n"
    if head == "dirname":
        folder, slash, _ = path.rpartition("/")
        return f"{folder.rstrip('/') or slash or '.'}\n"
    real = Path(scope.folder or "", given[0])
    known = scope.folder is not None and real.exists() and (head == "realpath" or "-f" in words)
    return f"{real.resolve()}\n" if known else RUN_TIME
