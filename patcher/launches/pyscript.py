"""Python launch scripts: the environment that they change, the programs and engines that they start."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.launches.invocation import RUN_TIME, Argument, Placed, Variables
from patcher.launches.program import SHELLS, is_python, is_quiet, name_of
from patcher.launches.pyenviron import Environments
from patcher.launches.pynames import Names, dotted, is_main
from patcher.launches.scope import MANY, SETTING, Place, Scope, together

if TYPE_CHECKING:
    from patcher.launches.reading import Reading

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
# Calls that only talk about what their words name.
_TALK = frozenset({
    "print", "log", "info", "warning", "warn", "error", "debug", "exception", "Exception", "add_argument", "getenv",
    "get", "",
})  # fmt: skip
_TEXTS = re.compile(r"os\.(system|popen)|(asyncio\.)?create_subprocess_shell|subprocess\.get(status)?output")
_LISTS = re.compile(r"subprocess\.(run|Popen|call|check_call|check_output)|os\.execvp?e?")
_WORDS = re.compile(r"(asyncio\.)?create_subprocess_exec|os\.execlp?")
_MOST_SEEN = 50  # states of the environment that are told apart
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


class _Python(Environments):
    def __init__(self, reading: Reading, scope: Scope, name: str, line: int, folder: Path, tree: ast.Module) -> None:
        super().__init__(reading, scope, Names(tree), name, line)
        self.folder, self.tree = folder, tree
        self.started = False  # whether another program is
        # The environment where something is called that may be an engine; in how many functions this is.
        self.seen, self.aside = list[Variables](), 0
        # The functions, and what was set where they stand: they may be called here, or behind anything that follows.
        self.later: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, dict[str, Any]]] | None = []

    def run(self) -> None:
        self._block(self.tree.body)
        later, self.later = self.later or [], None
        for node, before in later:
            if node.name in self.names.called:
                self._block(node.body)
            elif self.scope.variables != before:
                after, self.scope = self.scope, self.scope.copy()
                self.scope.perhaps(before)
                self._perhaps_called(node)
                self.scope = after
        last = self.line(self.tree.body[-1].lineno if self.tree.body else 1)
        if self.names.alone and self.started:
            return  # the engine is in what was started
        whole = self.scope.copy()
        whole.variables = together([*self.seen, self.scope.variables], _MOST_SEEN)
        if len(self.seen) >= _MOST_SEEN:
            whole.anything(last, "")
        self.reading.invocation(last, (), whole)

    # --- statements ---

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        depth, doubts = self.reading.depth, 0
        for node in statements:
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    self._expressions(child)
            self._assignment(node)
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
        return isinstance(call, ast.Call) and self.names.full(call.func) in _ENDS

    def _inside(self, node: ast.stmt) -> None:
        """The statements inside of one: whether and when a function is called, nobody knows."""
        body, other, last = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
        ways = [one.body for name in ("handlers", "cases") for one in getattr(node, name, [])]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if self.later is not None:
                self.later.append((node, dict(self.scope.variables)))
            if self.later is None or node.name not in self.names.called:
                self._perhaps_called(node)
        elif isinstance(node, ast.If) and not is_main(node.test):
            self._branches([body, other])
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._branches([body, []])
            self._block(other)
        else:
            self._block(body)
            cases = [ast.unparse(one.pattern) for one in getattr(node, "cases", []) if one.guard is None]
            self._branches([*ways, *([] if "_" in cases else [[]])] if ways else [])
            self._block([*other, *last] if not isinstance(node, ast.If) else [])

    def _perhaps_called(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """The statements of a function; where it is called the call is seen itself."""
        self.aside += 1
        self._branches([node.body, []])
        self.aside -= 1

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
            if isinstance(target, ast.Subscript):
                with self.changed(target.value) as scope:
                    self.put(scope, self.text(target.slice), whole, node, drop=isinstance(node, ast.Delete))
                if whole is not None and self.environment(target.value) != "":
                    # A copy of the environment for a child, say, or the settings of an engine.
                    self._mapping([(self.text(target.slice), whole)])
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
                with self.changed(node.target) as scope:
                    self.merge(scope, node.value, node)
            if isinstance(target, ast.Name) and target.id not in self.copies:
                self.named(target.id, whole)
            elif isinstance(target, ast.Name) and not isinstance(node, ast.AugAssign):
                with self.changed(target) as scope:
                    scope.anything(self.where(node), ast.unparse(node)[:200])

    # --- expressions ---

    def _expressions(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self._call(inner)
                given = {one.arg: one.value for one in inner.keywords}
            elif isinstance(inner, ast.Dict):
                if inner not in self.used:
                    self._mapping(self._pairs(inner))
                given = {self.text(key): value for key, value in zip(inner.keys, inner.values, strict=True) if key}
            else:
                continue
            whole = self.names.resolved(given.get("env_vars") or inner)
            if isinstance(whole, ast.Dict) and whole is not inner:
                self.used.add(whole)
                self._mapping(self._pairs(whole), sure=True)

    def _call(self, node: ast.Call) -> None:
        called = self.names.full(node.func)
        name, owner = called.rpartition(".")[2], node.func.value if isinstance(node.func, ast.Attribute) else None
        if called in {"os.putenv", "os.unsetenv"} or (owner and self.environment(owner) is not None):
            with self.changed(owner if name not in {"putenv", "unsetenv"} else None) as scope:
                self.method(scope, name, node)
        elif name == "load_dotenv" or called in _READS:
            self.scope.anything(self.where(node), ast.unparse(node)[:200])
        elif name not in _TALK:
            if any(kind.fullmatch(called) for kind in (_TEXTS, _LISTS, _WORDS)):
                self._starts(node, called)
            elif self.copied(node) is None:
                self._may_start(node, called)
                if called not in {*self.names.called, *_ENDS} and not self.names.is_plain(node):
                    self._see()
                for given in [*node.args, *(one.value for one in node.keywords)]:
                    if isinstance(given, ast.Name) and given.id in self.copies:  # which may change it
                        with self.changed(given) as scope:
                            scope.anything(self.where(node), ast.unparse(node)[:200])
            inside = (one for given in (*node.args, *node.keywords) for one in ast.walk(given))
            paths = (one.value for one in inside if isinstance(one, ast.Constant) and isinstance(one.value, str))
            self.reading.invocation(self.where(node), [called, *(one for one in paths if "/" in one)], None)
            self._mapping(self._pairs(node))

    def _see(self) -> None:
        """Keep what the environment is here, for this process may be an engine from now on."""
        if not self.aside and len(self.seen) < _MOST_SEEN and (not self.seen or self.seen[-1] != self.scope.variables):
            self.seen.append(dict(self.scope.variables))

    def _pairs(self, node: ast.Dict | ast.Call) -> list[tuple[Argument, ast.expr]]:
        """The names and values of a dictionary, or those that a call is given; None for a name that is not known."""
        if isinstance(node, ast.Call):
            return [(keyword.arg, keyword.value) for keyword in node.keywords]
        return [(self.text(key) if key else None, value) for key, value in zip(node.keys, node.values, strict=True)]

    def _starts(self, node: ast.Call, called: str) -> None:
        """``subprocess.run([...])``, ``os.system("…")`` and the like."""
        where = self.where(node)
        given = [*node.args, *(one.value for one in node.keywords if one.arg == "args")]
        given = given[1:] if called.startswith("os.exec") else given  # behind the program comes its own name
        shell = _TEXTS.fullmatch(called) or any(
            one.arg == "shell" and self.text(one.value) != "false" for one in node.keywords
        )
        if _WORDS.fullmatch(called):
            words = [self._word(element) for element in given]
        elif given and isinstance(whole := self.names.resolved(given[0]), ast.List | ast.Tuple):
            words = [self._word(element) for element in whole.elts]
            words += [Placed(MANY, where)] if dotted(given[0]) in self.names.changed else []
        elif given and (shell or self.text(given[0]) is not None):
            text = self.part(given[0])
            if RUN_TIME in text and is_quiet(text.split()):
                return
            words = [Placed(word, where) for word in ("sh", "-c", text)]
        else:
            words = [Placed(MANY, where)]
        self.started = True
        self._see()
        self.reading.command(words, self._given(node, called), Place(where, self.folder))

    def _may_start(self, node: ast.Call, called: str) -> None:
        """What a call may set, or start, that is not followed: what its texts name, like those of a command."""
        where = self.where(node)
        inside = [one for given in (*node.args, *node.keywords) for one in ast.walk(given)]
        pieces = {piece for one in inside if isinstance(one, ast.JoinedStr) for piece in one.values}
        texts = [one for one in inside if isinstance(one, ast.Constant | ast.JoinedStr) and one not in pieces]
        words = [Placed(called, where), *(Placed(self.part(text), where) for text in texts)]
        self.reading.named(words[1:], self.scope, where)
        names = {name_of(part) for word in words[1:] for part in word.split()}
        if names & {*SHELLS, "vllm"} or any(map(is_python, names)):  # a path alone is read more often than started
            self.reading.may_start(words, self.scope.copy(), Place(where, self.folder))

    def _given(self, node: ast.Call, called: str) -> Scope:
        """What a program inherits that a call starts: the environment, or what ``env`` is."""
        given = next((one.value for one in node.keywords if one.arg == "env"), None)
        if given is None and re.fullmatch(r"os\.exec[lv]p?e", called):
            given = node.args[-1] if node.args else None
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            return self.scope.copy()
        scope = self.copied(given)
        if scope is None:
            scope = self.scope.copy()
            scope.anything(self.where(node), f"env={ast.unparse(given)}"[:200])
        self.used.add(self.names.resolved(given))
        return scope

    def _word(self, node: ast.expr) -> Placed:
        """A word of a command; ``f"key={value}"`` keeps its key where the value is not known."""
        text = self.part(node)
        return Placed(text if RUN_TIME not in text or SETTING.match(text) else MANY, self.where(node))

    def _mapping(self, pairs: Iterable[tuple[Argument, ast.expr]], *, sure: bool = False) -> None:
        """Variables that a child may get, or gets for ``sure`` (``env_vars`` of Ray), and settings (``…_config=``)."""
        child, words = self.scope.copy(), list[Argument]()
        places, changed = list[str](), False
        for name, value in pairs:
            places += [self.where(value)] if name else []
            if name and _VARIABLE.fullmatch(name):
                found = f"{name}: {ast.unparse(value)[:200]}"
                depth = self.reading.depth if sure else max(1, self.reading.depth)
                child.put(name, self.text(value), self.where(value), found, export=True, depth=depth)
                changed = True
            elif name and name.endswith("_config"):
                words += self._options("--" + name.replace("_", "-"), value)
        if changed:
            self.reading.invocation(places[0], (), child, self.reading.sure)
        if words:
            self.reading.invocation(places[0], words, None)

    def _options(self, option: str, value: ast.expr) -> list[Argument]:
        """``profiler_config={"profiler": "torch"}`` as the words of a command line."""
        given = self.names.resolved(value)
        called = isinstance(given, ast.Call) and dotted(given.func).endswith(("Config", "dict")) and not given.args
        if not isinstance(given, ast.Dict | ast.Call) or not (called or isinstance(given, ast.Dict)):
            return [option, self.text(given)]
        pairs = self._pairs(given)
        words: list[Argument] = [] if pairs else [option, "{}"]
        for key, one in pairs:
            words += [option, None] if key is None else [f"{option}.{key}", self.text(one)]
        return words


def _each(target: ast.expr | None, value: ast.expr | None) -> list[tuple[ast.expr | None, ast.expr | None]]:
    """The targets of an assignment with their values; None for one that is not known."""
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    return [*zip(target.elts, values if len(values) == len(target.elts) else [None] * len(target.elts), strict=True)]
