"""A file to edit: its syntax tree and its lines, whether it can be read, and how lines go in."""

from __future__ import annotations

import ast
import functools
import io
import symtable
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patcher.changes import lines, markers
from patcher.changes.change import PatchId
from patcher.digests import sha256
from patcher.messages import Kind, Problem, Text

Function = ast.FunctionDef | ast.AsyncFunctionDef
Owner = ast.Module | ast.ClassDef
"""Syntax nodes at whose end a block is inserted."""


class Piece(NamedTuple):
    """New `lines` for those from the index `first` up to, but without, `end`."""

    first: int
    end: int
    lines: Sequence[bytes]


class SourceFile(NamedTuple):
    """File of a target: bytes, encoding, lines in UTF-8, and syntax tree; `where` names it in messages.

    The tree is cached and shared: do not change it.
    """

    source: bytes
    where: str
    encoding: str
    lines: Sequence[bytes]
    tree: ast.Module

    def line_end(self, index: int) -> bytes:
        """Return the line ending of the line `index`, CR LF or LF."""
        return b"\r\n" if self.lines and self.lines[index].endswith(b"\r\n") else b"\n"

    def with_edits(self, pieces: Sequence[Piece], target: Owner, block: Sequence[str]) -> bytes:
        """Return the file's bytes with lines replaced by those of `pieces`, and with `block` at the end of `target`.

        `target` is a class or the module. The lines of `block` have four spaces a level, which become the indentation
        of the class. In a class, they go below the blocks of earlier patches. Line ends and encoding stay those of the
        file.
        """
        at = len(self.lines)
        level, outer = b"    ", b""
        if isinstance(target, ast.ClassDef):
            at = self._after_blocks(target)
            inner = self.lines[target.body[0].lineno - 1]
            level = outer = inner[: len(inner) - len(inner.lstrip())]
        block_lines = [_indented(line, level, outer) + self.line_end(at - 1) for line in block]
        after: list[bytes] = []
        start = 0
        for first, end, text in sorted([*pieces, Piece(at, at, block_lines)], key=lambda piece: piece[:2]):
            after += [*self.lines[start:first], *text]
            start = end
        after += self.lines[start:]
        whole = [line if line.endswith(b"\n") else line + self.line_end(0) for line in after]
        if self.lines and not self.lines[-1].endswith(b"\n"):
            whole[-1] = whole[-1].rstrip(b"\r\n")
        return b"".join(whole).decode().encode(self.encoding)

    def _after_blocks(self, target: ast.ClassDef) -> int:
        """Return the index of the first line after a class and after the blocks that earlier patches added to it."""
        at = target.end_lineno or 0
        for index in range(at, len(self.lines)):
            comment = self.lines[index].strip()
            if comment and not comment.startswith(b"#"):
                break
            if markers.closes(comment.decode()):
                at = index + 1
        return at


def _indented(line: str, level: bytes, outer: bytes) -> bytes:
    """Return a line behind the indentation `outer`, with `level` in place of each four spaces; b"" for an empty one."""
    bare = line.lstrip(" ")
    return outer + level * ((len(line) - len(bare)) // 4) + bare.encode() if bare else b""


def read(source: bytes, where: str) -> SourceFile:
    """Parse `source`; `where` names the file in messages.

    Raises Problem (STRUCTURE) if it is no valid Python, or if its line ends or encoding could not be restored.
    """
    if b"\r" in source.replace(b"\r\n", b""):
        cause = Text(
            "the file has a carriage return without a line feed. Python and diff disagree on whether a line ends"
            " there, so rlpatch does not patch the file"
        )
        raise Problem(
            Kind.STRUCTURE, cause, where, Text("convert the file's line ends to LF, or reinstall the package")
        )
    tree = _parsed(source)
    if not isinstance(tree, ast.Module):
        raise _unreadable(tree, where)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError as error:  # in a comment, of which ast reads no byte
        raise _unreadable(error, where) from None
    text = source.decode(encoding, "replace")
    if text.encode(encoding, "replace") != source:
        cause = Text("the file is encoded in {encoding}, so a revert would not restore it byte for byte", encoding)
        raise Problem(Kind.STRUCTURE, cause, where, Text("reinstall the package"))
    return SourceFile(source, where, encoding, lines.split(text.encode()), tree)


def _unreadable(error: Exception, where: str) -> Problem:
    """Return the problem that a file cannot be parsed: nested too deeply, or not valid Python (with the line)."""
    if isinstance(error, RecursionError | MemoryError) or "too many" in str(error):
        return nested_too_deeply(where)
    message, line = (error.msg, error.lineno) if isinstance(error, SyntaxError) else (str(error), None)
    hint = Text("repair the file, reinstall the package, or run rlpatch with a newer Python")
    cause = Text("the file is not valid Python: {error}", message)
    return Problem(Kind.STRUCTURE, cause, f"{where}:{line}" if line else where, hint)


def nested_too_deeply(where: str) -> Problem:
    """Return the problem that a file is nested deeper than Python can parse."""
    cause = Text("the code is nested too deeply for Python to parse it")
    return Problem(Kind.STRUCTURE, cause, where, Text("split the expression into several statements"))


@functools.lru_cache(maxsize=2)
def _parsed(source: bytes) -> ast.Module | Exception:
    """Return the syntax tree of `source`, or the exception that parsing raised; two answers are cached."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python finds odd in somebody else's code is no news here
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return error.with_traceback(None)


def first_line(node: ast.stmt) -> int:
    """Return the number of a statement's first line, decorators included."""
    line: int = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return line


def classes(tree: ast.Module) -> list[ast.ClassDef]:
    """Return the classes at the top level."""
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def methods(node: Owner, path: str = "") -> list[Function]:
    """Return the functions named `path` in the body of a class or module, or all functions there for "".

    `outer.inner` is a function within a function, or a method of a class.
    """
    *outer, last = path.split(".")
    nodes: list[ast.AST] = [node]
    for name in outer:
        nodes = [inner for scope in nodes for inner in scope.body if getattr(inner, "name", "") == name]  # type: ignore[attr-defined]
    bodies = (getattr(scope, "body", ()) for scope in nodes)
    functions = (node for body in bodies for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function for function in functions if function.name == last or not path]


def defined(tree: ast.Module, class_name: str, method: str) -> Iterator[ast.ClassDef | Function]:
    """Yield the first class named `class_name`, then its methods named `method`.

    For the class name "", yield the module's functions at the dotted path `method`.
    """
    if not class_name:
        yield from methods(tree, method)
    for node in [node for node in classes(tree) if node.name == class_name][:1]:
        yield node
        yield from methods(node, method)


def defined_names(node: Owner) -> Iterator[str]:
    """Yield the names of functions, classes and plain assignments directly in the body of a class or module."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield inner.name
        elif isinstance(inner, ast.Assign):
            yield from (target.id for target in inner.targets if isinstance(target, ast.Name))


def assigned_names(source: bytes, class_name: str) -> set[str] | None:
    """Return the names that the top-level class `class_name` ("": the module) defines or assigns, but not imports.

    The set is empty without such a class. Return None if `source` does not compile.
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
    """Return 12 hex digits of a hash of `class_name.method` that ignores comments and layout.

    Return "" if the method is missing or `source` cannot be parsed. For the class name "", it is the module's function.
    The hash is the same under every Python version: empty fields, which new releases of `ast` add, are left out.
    """
    tree = _parsed(source)
    function = [*defined(tree, class_name, method)][bool(class_name) :] if isinstance(tree, ast.Module) else []
    return sha256(_canonical(function[0]).encode()).hexdigest()[:12] if function else ""


def _canonical(value: object) -> str:
    """Return a text of a syntax tree, node or field, without positions and empty fields."""
    if isinstance(value, ast.AST):
        fields = (f"{key}={_canonical(field)}" for key, field in ast.iter_fields(value) if field not in (None, []))
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return repr(value)


def prove(source: bytes, after: bytes, patches: Sequence[PatchId], where: str, cause: str, hint: str) -> None:
    """Raise Problem (STRUCTURE) with `cause` and `hint` unless removing `patches` from `after` gives `source`."""
    if markers.strip(after, patches, where=where) != source:
        raise Problem(Kind.STRUCTURE, cause, where, hint)
