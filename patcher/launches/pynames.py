"""What the names of a Python file stand for, as far as its text tells."""

from __future__ import annotations

import ast
import builtins
import sys

# Modules that are known by the names that they have themselves.
_MODULES = frozenset({"os", "subprocess"})
# What runs what stands elsewhere; the rest that is Python's own runs nothing but what it is given.
_LOADERS = frozenset({"importlib", "runpy", "pkgutil", "code", "exec", "eval", "__import__"})
_BUILT_IN = frozenset(dir(builtins)) - _LOADERS
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "popitem"})


class Names:
    """The names of a file.

    ``values`` has what each is set to, None for one of which nothing is known, and is filled on the way; ``changed``
    are the lists and dictionaries that are changed, ``called`` the functions that are surely called, and ``alone``
    tells whether nothing but Python's own is imported.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.values: dict[str, ast.expr | None] = dict.fromkeys(_bound(tree))
        self.changed = set[str]()
        self.called = _surely_called(tree)
        self.alone = True
        self._own, self._aliases = set(_BUILT_IN), dict[str, str]()
        for node in ast.walk(tree):
            self._import(node)
            self._change(node)

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

    def full(self, node: ast.expr) -> str:
        """``a.b.c`` of an attribute, by the names that modules have themselves."""
        head, dot, rest = dotted(node).partition(".")
        return f"{self._aliases.get(head, head)}{dot}{rest}"

    def resolved(self, node: ast.expr, steps: int = 8) -> ast.expr:
        """What a name stands for, or the expression itself."""
        while isinstance(node, ast.Name) and steps:
            known = self.values.get(node.id)
            if known is None:
                break
            node, steps = known, steps - 1
        return node

    def is_plain(self, node: ast.AST, steps: int = 8) -> bool:
        """Whether nothing but Python's own is in an expression."""
        named = [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.id not in self._own]
        values = [self.values.get(name) for name in named]
        return steps > 0 and all(one is not None and self.is_plain(one, steps - 1) for one in values)


def _surely_called(tree: ast.Module) -> set[str]:
    """The functions that are called once, at the end of a module or behind its ``__name__``, by nothing but statements.

    Of these everything is surely run that stands in no branch; what is set behind the call is not set in them.
    """
    last = tree.body[-1:]
    if last and isinstance(last[0], ast.If) and is_main(last[0].test):
        last = last[0].body
    calls = [one.value for one in last if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
    names = [one.func.id for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
    return {call.func.id for call in calls[-1:] if isinstance(call.func, ast.Name) and names.count(call.func.id) == 1}


def _bound(tree: ast.Module) -> set[str]:
    """The names that get their values by other means than an assignment: parameters, loops and the like."""
    nodes = list(ast.walk(tree))
    assigned = {one for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                for one in ast.walk(target)}  # fmt: skip
    stored = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
              and one not in assigned}  # fmt: skip
    return stored | {one.arg for one in nodes if isinstance(one, ast.arg)}


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
