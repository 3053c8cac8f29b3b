"""Python launch scripts: the environment that they change, the programs and engines that they start."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.launches.invocation import RUN_TIME, Argument, Placed, known
from patcher.launches.program import SHELLS, is_python, is_quiet, name_of
from patcher.launches.scope import MANY, SETTING, Place, Scope, together

if TYPE_CHECKING:
    from patcher.launches.reading import Reading

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
_ENVIRON = frozenset({"os.environ", "environ"})
# Calls that only talk about what their words name.
_TALK = frozenset({
    "print", "log", "info", "warning", "warn", "error", "debug", "exception", "Exception", "add_argument", "getenv",
    "get", "",
})  # fmt: skip
_TEXTS = re.compile(r"os\.(system|popen)|(asyncio\.)?create_subprocess_shell|subprocess\.get(status)?output")
_LISTS = re.compile(r"subprocess\.(run|Popen|call|check_call|check_output)|os\.execvp?e?")
_WORDS = re.compile(r"(asyncio\.)?create_subprocess_exec|os\.execlp?")
_MODULES = frozenset({"os", "subprocess"})
_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "popitem"})
# Calls that run what stands elsewhere.
_READS = frozenset({"exec", "eval", "runpy.run_path", "runpy.run_module"})
# Calls behind which nothing is run.
_ENDS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})


def read_python(reading: Reading, text: str, scope: Scope, name: str, line: int, folder: Path) -> None:
    """Follow the statements; a text that is no Python leaves every variable that it names unknown."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the script, say, which is not ours
            tree = ast.parse(text)
        _Python(reading, scope, name, line, folder, tree).run()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        for number, row in enumerate(text.split("\n"), line):
            for variable in re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", row.partition("#")[0]):
                scope.put(variable, None, f"{name}:{number}", row.strip()[:200], export=True, depth=0)
        reading.invocation(f"{name}:{line}", (), scope)


class _Python:
    def __init__(self, reading: Reading, scope: Scope, name: str, line: int, folder: Path, tree: ast.Module) -> None:
        self.reading, self.scope, self.name, self.folder, self.tree = reading, scope, name, folder, tree
        self.first = max(line, 1) if line else 0
        self.names: dict[str, ast.expr | None] = {}
        # What os, subprocess and their parts are called here; the names whose lists are changed.
        self.aliases: dict[str, str] = {}
        self.changed = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.aliases |= {one.asname: one.name for one in node.names if one.asname and one.name in _MODULES}
            elif isinstance(node, ast.ImportFrom) and node.module in _MODULES:
                self.aliases |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            elif isinstance(node, ast.Attribute) and node.attr in _CHANGES:
                self.changed.add(_dotted(node.value))
            elif isinstance(node, ast.AugAssign):
                self.changed.add(_dotted(node.target))
            elif isinstance(node, ast.Delete):
                self.changed |= {_dotted(one.value) for one in node.targets if isinstance(one, ast.Subscript)}
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                constant = isinstance(node.slice, ast.Constant)
                self.changed |= {_dotted(node.value)} if not constant else set()
        self.called = _surely_called(tree)
        # The functions, and what was set where they stand: they may be called here, or behind anything that follows.
        self.later: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, dict[str, Any]]] | None = []

    def run(self) -> None:
        self._block(self.tree.body)
        later, self.later = self.later or [], None
        for node, before in later:
            if node.name in self.called:
                self._block(node.body)
            elif self.scope.variables != before:
                after, self.scope = self.scope, self.scope.copy()
                self.scope.perhaps(before)
                self._branches([node.body, []])
                self.scope = after
        last = self.tree.body[-1].lineno if self.tree.body else 1
        self.reading.invocation(self._line(last), (), self.scope)

    def _where(self, node: ast.expr | ast.stmt) -> str:
        return self._line(node.lineno)

    def _line(self, number: int) -> str:
        return f"{self.name}:{number + self.first - 1}" if self.first else self.name

    # --- statements ---

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        depth, doubts = self.reading.depth, 0
        for node in statements:
            self._assignment(node)
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    self._expressions(child)
            self._inside(node)
            if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue) or self._ends(node):
                break  # what stands behind is never reached
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = [one for one in ast.walk(node) if one is not node]
                doubts += any(isinstance(one, ast.Return | ast.Raise) or self._ends(one) for one in inside)
                self.reading.depth = depth + bool(doubts)
        self.reading.depth = depth

    def _ends(self, node: ast.AST) -> bool:
        """Whether the program ends here."""
        call = node.value if isinstance(node, ast.Expr) else None
        return isinstance(call, ast.Call) and self._called(call.func) in _ENDS

    def _inside(self, node: ast.stmt) -> None:
        """The statements inside of one: whether and when a function is called, nobody knows."""
        body, other, last = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
        ways = [one.body for name in ("handlers", "cases") for one in getattr(node, name, [])]
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self.later is not None:
            self.later.append((node, dict(self.scope.variables)))
            if node.name in self.called:
                return
        if isinstance(node, ast.If) and not _is_main(node.test):
            self._branches([body, other])
        elif function or isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._branches([body, []])
            self._block(other)
        else:
            self._block(body)
            cases = [ast.unparse(one.pattern) for one in getattr(node, "cases", []) if one.guard is None]
            self._branches([*ways, *([] if "_" in cases else [[]])] if ways else [])
            self._block([*other, *last] if not isinstance(node, ast.If) else [])

    def _branches(self, blocks: Sequence[Sequence[ast.stmt]]) -> None:
        entry, ends = self.scope.copy(), []
        self.reading.depth += 1
        for block in blocks:
            self.scope.variables = dict(entry.variables)
            self._block(block)
            ends.append(self.scope.variables)
        self.reading.depth -= 1
        self.scope.variables = together(ends, self.reading.depth) if ends else self.scope.variables

    def _assignment(self, node: ast.stmt) -> None:
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target, whole in (pair for one in targets for pair in _each(one, value)):
            if isinstance(target, ast.Subscript) and self._is_environ(target.value):
                self._put(self._text(target.slice), whole, node, drop=isinstance(node, ast.Delete))
            elif isinstance(node, ast.AugAssign) and self._is_environ(node.target):
                self._update([node.value], [], node)
            elif isinstance(target, ast.Subscript) and whole is not None:
                # A copy of the environment for a child, say, or the settings of an engine.
                self._mapping([(self._text(target.slice), whole)])
            elif isinstance(target, ast.Name):
                # Of a name that is set anew nothing is known.
                self.names[target.id] = whole if target.id not in self.names else None

    # --- expressions ---

    def _expressions(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self._call(inner)
            elif isinstance(inner, ast.Dict):
                self._mapping(self._pairs(inner))

    def _call(self, node: ast.Call) -> None:
        dotted = self._called(node.func)
        name, owner = dotted.rpartition(".")[2], node.func.value if isinstance(node.func, ast.Attribute) else None
        if (owner and self._is_environ(owner)) or dotted in {"os.putenv", "os.unsetenv"}:
            self._environ_call(name, node)
        elif name == "load_dotenv" or dotted in _READS:
            self.scope.anything(self._where(node), ast.unparse(node)[:200])
        elif name not in _TALK:
            if any(kind.fullmatch(dotted) for kind in (_TEXTS, _LISTS, _WORDS)):
                self._starts(node, dotted)
            else:
                self._may_start(node, dotted)
            inside = (one for given in (*node.args, *node.keywords) for one in ast.walk(given))
            paths = (one.value for one in inside if isinstance(one, ast.Constant) and isinstance(one.value, str))
            self.reading.invocation(self._where(node), [dotted, *(one for one in paths if "/" in one)], None)
            self._mapping(self._pairs(node))

    def _pairs(self, node: ast.Dict | ast.Call) -> list[tuple[Argument, ast.expr]]:
        """The names and values of a dictionary, or those that a call is given; None for a name that is not known."""
        if isinstance(node, ast.Call):
            return [(keyword.arg, keyword.value) for keyword in node.keywords]
        return [(self._text(key) if key else None, value) for key, value in zip(node.keys, node.values, strict=True)]

    def _environ_call(self, name: str, node: ast.Call) -> None:
        """A method of the environment; one that is given what only the run tells may set anything."""
        match name, node.args:
            case "clear", _:
                self.scope.variables.clear()
            case "pop" | "unsetenv", [key, *_]:
                self._put(self._text(key), None, node, drop=True)
            case "putenv" | "__setitem__", [key, value]:
                self._put(self._text(key), value, node)
            case "setdefault", [key, value]:
                variable = self._text(key)
                ways = self.scope.look(variable or "")
                kept = tuple(one for one in ways if one.present)
                if kept != ways:
                    self._put(variable, value, node)
                    if variable:
                        self.scope.variables[variable] = (*kept, *self.scope.look(variable))
            case "update", given:
                self._update(given, self._pairs(node), node)

    def _update(
        self, mappings: Sequence[ast.expr], pairs: list[tuple[Argument, ast.expr]], node: ast.stmt | ast.expr
    ) -> None:
        for one in map(self._resolved, mappings):
            pairs = [*(self._pairs(one) if isinstance(one, ast.Dict) else [(None, one)]), *pairs]
        for name, value in pairs:
            if name is not None or not self._is_environ(value):  # what it holds already changes nothing
                self._put(name, value, node)

    def _starts(self, node: ast.Call, dotted: str) -> None:
        """``subprocess.run([...])``, ``os.system("…")`` and the like."""
        where = self._where(node)
        given = [*node.args, *(one.value for one in node.keywords if one.arg == "args")]
        given = given[1:] if dotted.startswith("os.exec") else given  # behind the program comes its own name
        shell = _TEXTS.fullmatch(dotted) or any(
            one.arg == "shell" and self._text(one.value) != "false" for one in node.keywords
        )
        if _WORDS.fullmatch(dotted):
            words = [self._word(element) for element in given]
        elif given and isinstance(whole := self._resolved(given[0]), ast.List | ast.Tuple):
            words = [self._word(element) for element in whole.elts]
            words += [Placed(MANY, where)] if _dotted(given[0]) in self.changed else []
        elif given and (shell or self._text(given[0]) is not None):
            text = self._part(given[0])
            if RUN_TIME in text and is_quiet(text.split()):
                return
            words = [Placed(word, where) for word in ("sh", "-c", text)]
        else:
            words = [Placed(MANY, where)]
        self.reading.command(words, self._given(node, dotted), Place(where, self.folder))

    def _may_start(self, node: ast.Call, dotted: str) -> None:
        """What a call may set, or start, that is not followed: what its texts name, like those of a command."""
        where = self._where(node)
        inside = [one for given in (*node.args, *node.keywords) for one in ast.walk(given)]
        pieces = {piece for one in inside if isinstance(one, ast.JoinedStr) for piece in one.values}
        texts = [one for one in inside if isinstance(one, ast.Constant | ast.JoinedStr) and one not in pieces]
        words = [Placed(dotted, where), *(Placed(self._part(text), where) for text in texts)]
        self.reading.named(words[1:], self.scope, where)
        names = {name_of(part) for word in words[1:] for part in word.split()}
        if names & {*SHELLS, "vllm"} or any(map(is_python, names)):  # a path alone is read more often than started
            self.reading.may_start(words, self.scope.copy(), Place(where, self.folder))

    def _given(self, node: ast.Call, dotted: str) -> Scope:
        """What a program inherits that a call starts: the environment, or what ``env`` is."""
        given = next((one.value for one in node.keywords if one.arg == "env"), None)
        if given is None and re.fullmatch(r"os\.exec[lv]p?e", dotted):
            given = node.args[-1] if node.args else None
        scope, where = self.scope.copy(), self._where(node)
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            return scope
        whole = self._resolved(given)
        if _dotted(given) in self.changed or not (self._copies(whole) or isinstance(whole, ast.Dict)):
            scope.anything(where, f"env={ast.unparse(given)}"[:200])
        elif isinstance(whole, ast.Dict):
            copies = [key is None and self._copies(value) for key, value in zip(whole.keys, whole.values, strict=True)]
            scope.variables = scope.variables if any(copies) else {}
            for (name, value), copied in zip(self._pairs(whole), copies, strict=True):
                if name is None and not copied:
                    scope.anything(where, f"env={ast.unparse(given)}"[:200])
                elif name is not None:
                    found = f"{name}: {ast.unparse(value)[:200]}"
                    scope.put(name, self._text(value), self._where(value), found, export=True, depth=self.reading.depth)
        return scope

    def _copies(self, node: ast.expr) -> bool:
        """Whether this is the environment, or a copy of it."""
        node = self._resolved(node)
        if isinstance(node, ast.Call):
            owner = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "copy" else None
            given = [owner] if owner is not None else node.args if _dotted(node.func) in {"dict", "copy"} else []
            return len(given) == 1 and not node.keywords and self._copies(given[0])
        return self._is_environ(node)

    def _part(self, node: ast.expr) -> str:
        """The text of an expression, in which RUN_TIME stands for what only the run tells."""
        text, node = self._text(node), self._resolved(node)
        if text is not None:
            return text
        parts = map(self._text, node.values) if isinstance(node, ast.JoinedStr) else [None]
        return "".join(RUN_TIME if part is None else part for part in parts)

    def _word(self, node: ast.expr) -> Placed:
        """A word of a command; ``f"key={value}"`` keeps its key where the value is not known."""
        text = self._part(node)
        return Placed(text if RUN_TIME not in text or SETTING.match(text) else MANY, self._where(node))

    def _mapping(self, pairs: Iterable[tuple[Argument, ast.expr]]) -> None:
        """Variables for a child (``env=``, Ray's ``env_vars``) and engine settings (``…_config=``)."""
        child, words = self.scope.copy(), list[Argument]()
        places, changed = list[str](), False
        for name, value in pairs:
            places += [self._where(value)] if name else []
            if name and _VARIABLE.fullmatch(name):
                found = f"{name}: {ast.unparse(value)[:200]}"
                child.put(name, self._text(value), self._where(value), found, export=True, depth=self.reading.depth)
                changed = True
            elif name and name.endswith("_config"):
                words += self._options("--" + name.replace("_", "-"), value)
        if changed:
            self.reading.invocation(places[0], (), child, self.reading.sure)
        if words:
            self.reading.invocation(places[0], words, None)

    def _options(self, option: str, value: ast.expr) -> list[Argument]:
        """``profiler_config={"profiler": "torch"}`` as the words of a command line."""
        given = self._resolved(value)
        called = isinstance(given, ast.Call) and _dotted(given.func).endswith(("Config", "dict")) and not given.args
        if not isinstance(given, ast.Dict | ast.Call) or not (called or isinstance(given, ast.Dict)):
            return [option, self._text(given)]
        pairs = self._pairs(given)
        words: list[Argument] = [] if pairs else [option, "{}"]
        for key, one in pairs:
            words += [option, None] if key is None else [f"{option}.{key}", self._text(one)]
        return words

    # --- values ---

    def _put(self, name: Argument, value: ast.expr | None, node: ast.stmt | ast.expr, *, drop: bool = False) -> None:
        where, found = self._where(node), ast.unparse(node)[:200]
        if name is None:
            (self.scope.drop_any if drop else self.scope.anything)(where, found)
        elif drop:
            self.scope.drop(name, where, found, self.reading.depth)
        else:
            text = self._text(value) if value else None
            self.scope.put(name, text, where, found, export=True, depth=self.reading.depth)

    def _resolved(self, node: ast.expr, steps: int = 8) -> ast.expr:
        while isinstance(node, ast.Name) and steps:
            known = self.names.get(node.id)
            if known is None:
                break
            node, steps = known, steps - 1
        return node

    def _text(self, node: ast.expr, steps: int = 8) -> Argument:
        """The text of an expression, as far as it can be told without running it."""
        node = self._resolved(node)
        if isinstance(node, ast.Constant):
            return json.dumps(node.value) if node.value is None or isinstance(node.value, bool) else str(node.value)
        if not steps:
            return None
        if isinstance(node, ast.JoinedStr):
            parts = [self._text(part, steps - 1) for part in node.values]
            return None if None in parts else "".join(map(str, parts))
        if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
            return self._text(node.value, steps - 1)
        if isinstance(node, ast.Subscript) and self._is_environ(node.value):
            return self._variable(self._text(node.slice, steps - 1))
        return self._call_text(node, steps) if isinstance(node, ast.Call) else None

    def _call_text(self, node: ast.Call, steps: int) -> Argument:
        dotted = self._called(node.func)
        texts = [self._text(argument, steps - 1) for argument in node.args]
        if dotted == "str" and len(texts) == 1:
            return texts[0]
        if dotted in {"json.dumps", "dumps"} and len(node.args) == 1:
            try:
                return json.dumps(ast.literal_eval(self._resolved(node.args[0])))
            except (ValueError, TypeError):
                return None
        if dotted.endswith(("environ.get", "getenv")) and texts and texts[0] is not None:
            if any(one.present for one in self.scope.look(texts[0])):
                return self._variable(texts[0])
            return texts[1] if len(texts) > 1 else None
        return None

    def _is_environ(self, node: ast.expr) -> bool:
        return self._called(self._resolved(node)) in _ENVIRON

    def _called(self, node: ast.expr) -> str:
        """``a.b.c`` of an attribute, by the names that modules have themselves."""
        head, dot, rest = _dotted(node).partition(".")
        return f"{self.aliases.get(head, head)}{dot}{rest}"

    def _variable(self, name: Argument) -> Argument:
        ways = self.scope.look(name or "")
        return known(ways[0].text) if len(ways) == 1 else None


def _surely_called(tree: ast.Module) -> set[str]:
    """The functions that are called at the end of a module, or behind its ``__name__``, by nothing but statements.

    Of these everything is surely run that stands in no branch; what is set behind the call is not set in them.
    """
    last = tree.body[-1:]
    if last and isinstance(last[0], ast.If) and _is_main(last[0].test):
        last = last[0].body
    calls = [one.value for one in last if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
    return {call.func.id for call in calls[-1:] if isinstance(call.func, ast.Name)}


def _each(target: ast.expr | None, value: ast.expr | None) -> list[tuple[ast.expr | None, ast.expr | None]]:
    """The targets of an assignment with their values; None for one that is not known."""
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    return [*zip(target.elts, values if len(values) == len(target.elts) else [None] * len(target.elts), strict=True)]


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute; a call or subscript in between ends it: ``.c``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
