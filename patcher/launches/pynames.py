"""What the names of a Python file stand for, as far as its text tells."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import Counter
from collections.abc import Container

# Modules that are known by the names that they have themselves.
_MODULES = frozenset({"os", "subprocess"})
# What runs what stands elsewhere; the rest that is Python's own runs nothing but what it is given.
_LOADERS = frozenset({"importlib", "runpy", "pkgutil", "code", "exec", "eval", "__import__"})
_BUILT_IN = frozenset(dir(builtins)) - _LOADERS
_AWAITS = ("asyncio.run", "uvloop.run", "run_until_complete")
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "popitem"})
# What takes an environment: by which names, and the ends of the names of calls.
_PASSES = ("env", "env_vars", None)
_TAKES = ("update", "dict", "copy", "__ior__", "execve", "execle", "execvpe", "execlpe")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Names:
    """The names of a file.

    ``values`` has what each is set to, None for one of which nothing is known, and is filled on the way; ``changed``
    are the lists and dictionaries that are changed, ``passed`` the names that may stand for an environment somewhere.
    ``functions`` has what is run where a name is called, of a class its beginning, and ``followed`` the functions of
    which every call is seen; ``awaited`` are the calls that run what is asynchronous. ``local`` are the names that a
    function has for itself. ``alone`` tells whether nothing but Python's own is imported.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.values: dict[str, ast.expr | None] = dict.fromkeys(_bound(tree))
        self.changed, self.passed = set[str](), set[str]()
        self.functions: dict[str, list[Function]] = {}
        self.awaited = set[ast.AST]()
        self.alone = True
        self._own, self._aliases = set(_BUILT_IN), dict[str, str]()
        for node in ast.walk(tree):
            self._import(node)
            self._change(node)
            self._define(node)
            self._pass(node)
        self.local = self._scopes(tree)
        self.followed = {name for name, found in self.functions.items() if len(found) == 1} - _otherwise_used(tree)

    def _scopes(self, tree: ast.Module) -> dict[Function, set[str]]:
        """The names of each function that nothing else sees; of a name of several scopes nothing is known."""
        functions = [one for one in ast.walk(tree) if isinstance(one, Function)]
        local = {one: _stored(one) for one in functions}
        nested = {
            one for outer in functions for one in ast.walk(outer) if isinstance(one, Function) and one is not outer
        }
        crossing = {name.id for one in nested for name in ast.walk(one)
                    if isinstance(name, ast.Name) and name.id not in local[one]}  # fmt: skip
        often = Counter(name for names in local.values() for name in names)
        elsewhere = _stored(tree) | {name for name in crossing if often[name] > 1}
        self.values |= dict.fromkeys(name for name in often if name in elsewhere)
        return {one: names - crossing for one, names in local.items()}

    def _define(self, node: ast.AST) -> None:
        if isinstance(node, Function):
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            begins = [one for one in node.body if isinstance(one, Function) and one.name == "__init__"]
            self.functions.setdefault(node.name, []).extend(begins)
        elif isinstance(node, ast.Await):
            self.awaited.add(node.value)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(_AWAITS):
            self.awaited |= {*node.args}

    def _import(self, node: ast.AST) -> None:
        for one in node.names if isinstance(node, ast.Import | ast.ImportFrom) else []:
            inside = isinstance(node, ast.ImportFrom)
            module = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else one.name
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names and top not in _LOADERS:
                self._own.add(one.asname or one.name.partition(".")[0])
            else:
                self.alone = False
            if module in _MODULES and (inside or one.asname):
                self._aliases[one.asname or one.name] = f"{module}.{one.name}" if inside else module
        if isinstance(node, ast.Name) and node.id in _LOADERS:
            self.alone = False

    def _change(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) and node.attr in _CHANGES:
            self.changed.add(dotted(node.value))
        elif isinstance(node, ast.AugAssign):
            self.changed.add(dotted(node.target))
        elif isinstance(node, ast.Delete):
            self.changed |= {dotted(one.value) for one in node.targets if isinstance(one, ast.Subscript)}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            constant = isinstance(node.slice, ast.Constant)
            self.changed |= {dotted(node.value)} if not constant else set()

    def _pass(self, node: ast.AST) -> None:
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            given = [one.value for one in node.keywords if one.arg in _PASSES]
            given += node.args if dotted(node.func).endswith(_TAKES) else []
        elif isinstance(node, ast.Dict):
            keys = [one.value if isinstance(one, ast.Constant) else one for one in node.keys]
            given = [value for key, value in zip(keys, node.values, strict=True) if key in _PASSES]
        elif isinstance(node, ast.BinOp):
            given = [node.left, node.right]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            given = [node.value]
        self.passed |= {one.id for one in given if isinstance(one, ast.Name)}

    def full(self, node: ast.expr) -> str:
        """``a.b.c`` of an attribute, by the names that modules have themselves."""
        head, dot, rest = dotted(node).partition(".")
        return f"{self._aliases.get(head, head)}{dot}{rest}"

    def resolved(self, node: ast.expr, stop: Container[str] = ()) -> ast.expr:
        """What a name stands for, or the expression itself; the names at which to ``stop`` stand for themselves."""
        for _ in range(8):
            known = self.values.get(node.id) if isinstance(node, ast.Name) and node.id not in stop else None
            if known is None:
                break
            node = known
        return node

    def run_by(self, node: ast.Call) -> list[Function]:
        """The functions of the file that a call may run: by their names, or because it is given them."""
        inside = [*ast.walk(node.func), *node.args, *(one.value for one in node.keywords)]
        names = [one.id if isinstance(one, ast.Name) else one.attr for one in inside
                 if isinstance(one, ast.Name | ast.Attribute)]  # fmt: skip
        return [one for name in dict.fromkeys(names) for one in self.functions.get(name, [])]

    def is_plain(self, node: ast.AST, steps: int = 8) -> bool:
        """Whether nothing but Python's own is in an expression."""
        named = [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.id not in self._own]
        values = [self.values.get(name) for name in named]
        return steps > 0 and all(one is not None and self.is_plain(one, steps - 1) for one in values)


def _otherwise_used(tree: ast.Module) -> set[str]:
    """The names of functions that may be called unseen: methods, what is decorated or generates, what is passed on.

    One that is never called may be called from elsewhere.
    """
    nodes = list(ast.walk(tree))
    names = [one for one in nodes if isinstance(one, ast.Name)]
    called = {one.func for one in nodes if isinstance(one, ast.Call)}
    methods = {one for node in nodes if isinstance(node, ast.ClassDef) for one in node.body}
    unseen = {one.name for one in nodes if isinstance(one, ast.ClassDef)}
    for one in nodes:
        if isinstance(one, Function):
            generates = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(one))
            unseen |= {one.name} if one in methods or one.decorator_list or generates else set()
    unseen |= {one.name for one in nodes if isinstance(one, Function)} - {one.id for one in names}
    return unseen | {one.id for one in names if one not in called}


def _bound(tree: ast.Module) -> set[str]:
    """The names that get their values by other means than an assignment: parameters, loops and the like."""
    nodes = list(ast.walk(tree))
    assigned = {one for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                for one in ast.walk(target)}  # fmt: skip
    stored = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
              and one not in assigned}  # fmt: skip
    return stored | {one.arg for one in nodes if isinstance(one, ast.arg)}


def _stored(scope: ast.AST) -> set[str]:
    """The names that are set in a function, or a module, itself."""
    found, declared, todo = set[str](), set[str](), [*ast.iter_child_nodes(scope)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            declared |= {*node.names}
        todo += [] if isinstance(node, Function) else ast.iter_child_nodes(node)
    return found - declared


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute; a call or subscript in between ends it: ``.c``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def is_main(test: ast.expr) -> bool:
    """``if __name__ == …``."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
