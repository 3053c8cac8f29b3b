"""A file to edit: its syntax tree and its lines, whether it can be read, and how lines go in."""

from __future__ import annotations

import ast
import functools
import io
import symtable
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from patcher.changes import lines, markers
from patcher.changes.change import PatchId
from patcher.messages import Kind, Problem, Text

Function = ast.FunctionDef | ast.AsyncFunctionDef
Owner = ast.Module | ast.ClassDef
"""What a block goes to the end of."""


class Piece(NamedTuple):
    """``lines`` in the place of those from the index ``first`` up to ``end``, which stays."""

    first: int
    end: int
    lines: Sequence[bytes]


class SourceFile(NamedTuple):
    """A file of a target, which ``where`` names in messages: its tree, and its lines in UTF-8, as ``ast`` counts them.

    The tree is shared with others: nobody changes it.
    """

    source: bytes
    where: str
    encoding: str
    lines: Sequence[bytes]
    tree: ast.Module

    def line_end(self, index: int) -> bytes:
        """Return the characters that end a line."""
        return b"\r\n" if self.lines and self.lines[index].endswith(b"\r\n") else b"\n"

    def written(self, pieces: Sequence[Piece], target: Owner, block: Sequence[str]) -> bytes:
        """The bytes with ``pieces`` in their places, and ``block`` at the end of ``target``, behind earlier patches.

        ``block`` is indented by four spaces a step; it goes in with the margin of the class as step.
        """
        at, steps, step = len(self.lines), 0, b"    "
        if isinstance(target, ast.ClassDef):
            at, steps, inner = self._end(target), 1, self.lines[target.body[0].lineno - 1]
            step = inner[: len(inner) - len(inner.lstrip())]
        ours = [_indented(line, step, steps) + self.line_end(at - 1) for line in block]
        after: list[bytes] = []
        start = 0
        for first, end, text in sorted([*pieces, Piece(at, at, ours)], key=lambda piece: piece[:2]):
            after += [*self.lines[start:first], *text]
            start = end
        after += self.lines[start:]
        whole = [line if line.endswith(b"\n") else line + self.line_end(0) for line in after]
        if self.lines and not self.lines[-1].endswith(b"\n"):
            whole[-1] = whole[-1].rstrip(b"\r\n")
        return b"".join(whole).decode().encode(self.encoding)

    def _end(self, target: ast.ClassDef) -> int:
        """The index behind the last line of a class and behind the blocks of earlier patches."""
        at = target.end_lineno or 0
        for index in range(at, len(self.lines)):
            comment = self.lines[index].strip()
            if comment and not comment.startswith(b"#"):
                break
            if markers.closes(comment.decode()):
                at = index + 1
        return at


def _indented(line: str, step: bytes, steps: int) -> bytes:
    bare = line.lstrip(" ")
    return step * (steps + (len(line) - len(bare)) // 4) + bare.encode() if bare else b""


def read(source: bytes, where: str) -> SourceFile:
    """The file of that content; :class:`Problem` (STRUCTURE) where it cannot be read, or not given back to the byte."""
    if b"\r" in source.replace(b"\r\n", b""):
        cause = Text("a carriage return without a line feed, which Python and diff take for different things")
        raise Problem(Kind.STRUCTURE, cause, where, Text("convert the file's line ends, or reinstall the package"))
    tree = _parsed(source)
    if not isinstance(tree, ast.Module):
        raise _unreadable(tree, where)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError as error:  # in a comment, of which ast reads no byte
        raise _unreadable(error, where) from None
    text = source.decode(encoding, "replace")
    if text.encode(encoding, "replace") != source:
        cause = Text("its encoding, {encoding}, does not restore the file byte for byte", encoding)
        raise Problem(Kind.STRUCTURE, cause, where, Text("reinstall the package"))
    return SourceFile(source, where, encoding, lines.split(text.encode()), tree)


def _unreadable(error: Exception, where: str) -> Problem:
    if isinstance(error, RecursionError | MemoryError) or "too many" in str(error):
        return nested_too_deeply(where)
    message, line = (error.msg, error.lineno) if isinstance(error, SyntaxError) else (str(error), None)
    hint = Text("repair or reinstall the file, or run rlpatch with a newer Python")
    cause = Text("not valid Python: {message}", message)
    return Problem(Kind.STRUCTURE, cause, f"{where}:{line}" if line else where, hint)


def nested_too_deeply(where: str) -> Problem:
    """A file that is nested deeper than Python can follow."""
    cause = Text("its code is nested too deeply to be read")
    return Problem(Kind.STRUCTURE, cause, where, Text("write the expression in steps"))


@functools.lru_cache(maxsize=2)
def _parsed(source: bytes) -> ast.Module | Exception:
    """The tree of ``source``, or why there is none; a file is asked for before it is patched, and for its hash."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python finds odd in somebody else's code is not our news
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return error.with_traceback(None)


def first_line(node: ast.stmt) -> int:
    """The line on which a statement begins, its decorators included."""
    line: int = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return line


def classes(tree: ast.Module) -> list[ast.ClassDef]:
    """The classes at the top level."""
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def methods(node: Owner, path: str = "") -> list[Function]:
    """Return the methods of a class or the functions of a module; with a dotted ``path`` those that it leads to.

    ``outer.inner`` is a function within another one, or a method of a class.
    """
    *outer, last = path.split(".")
    nodes: list[ast.AST] = [node]
    for name in outer:
        nodes = [inner for scope in nodes for inner in scope.body if getattr(inner, "name", "") == name]  # type: ignore[attr-defined]
    bodies = (getattr(scope, "body", ()) for scope in nodes)
    functions = (node for body in bodies for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function for function in functions if function.name == last or not path]


def defined(tree: ast.Module, class_name: str, method: str) -> Iterator[ast.ClassDef | Function]:
    """The first class of that name, then its methods of that name, as far as they are there."""
    if not class_name:
        yield from methods(tree, method)
    for node in [node for node in classes(tree) if node.name == class_name][:1]:
        yield node
        yield from methods(node, method)


def names(node: Owner) -> Iterator[str]:
    """Yield the names that the statements of a class or module define."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield inner.name
        elif isinstance(inner, ast.Assign):
            yield from (target.id for target in inner.targets if isinstance(target, ast.Name))


def bound(source: bytes, class_name: str) -> set[str] | None:
    """The names in the class of that name outside of functions and classes; None where ``source`` does not compile.

    Those of the module, where no class is named.

    To make a tree, as :func:`read` does, would take twice as long.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = symtable.symtable(source, "", "exec")  # type: ignore[arg-type]  # bytes may declare their encoding
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    scopes = [scope for scope in module.get_children() if (scope.get_type(), scope.get_name()) == ("class", class_name)]
    scopes = scopes if class_name else [module]
    return {symbol.get_name() for scope in scopes for symbol in scope.get_symbols() if symbol.is_assigned()}


def fingerprint(source: bytes, class_name: str, method: str) -> str:
    """A hash of ``class_name.method`` in ``source`` that ignores comments and layout.

    "" if it is not there, or if this Python cannot read the file.

    It is the same under every Python that runs rlpatch: fields that are empty are left out, because each release
    of ``ast`` adds new ones.
    """
    tree = _parsed(source)
    function = [*defined(tree, class_name, method)][bool(class_name) :] if isinstance(tree, ast.Module) else []
    return sha256(_canonical(function[0]).encode()).hexdigest()[:12] if function else ""


def _canonical(value: object) -> str:
    if isinstance(value, ast.AST):
        fields = (f"{key}={_canonical(field)}" for key, field in ast.iter_fields(value) if field not in (None, []))
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return repr(value)


def prove(source: bytes, after: bytes, patches: Sequence[PatchId], where: str, cause: str, hint: str) -> None:
    """Raise :class:`Problem` (STRUCTURE, of ``cause``) where the marks do not give ``source`` back to the byte."""
    if markers.strip(after, patches, where=where) != source:
        raise Problem(Kind.STRUCTURE, cause, where, hint)
