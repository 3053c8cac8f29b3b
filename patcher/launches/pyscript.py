"""Python launch scripts: the environment that they change, the programs and engines that they start."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patcher.launches.invocation import RUN_TIME, Argument, Placed, Variables
from patcher.launches.program import SHELLS, is_python, is_quiet, name_of
from patcher.launches.pyenviron import PROCESS, Environments, State
from patcher.launches.pynames import Function, Names, dotted, is_main
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
_MOST_RUNNING = 20  # functions that call one another
_MOST_AGAIN = 300  # functions and loops that are followed more than once
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
    except (SyntaxError, ValueError):
        for number, row in enumerate(text.split("\n"), line):
            for variable in re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", row.partition("#")[0]):
                scope.put(variable, None, f"{name}:{number}", row.strip()[:200], export=True, depth=0)
        reading.invocation(f"{name}:{line}", (), scope)
    except (RecursionError, MemoryError):
        # It may set and start anything, also what stands behind names that lead round in a circle.
        scope.anything(f"{name}:{line}", "")
        reading.invocation(f"{name}:{line}", (), scope)


class _Python(Environments):
    def __init__(self, reading: Reading, scope: Scope, name: str, line: int, folder: Path, tree: ast.Module) -> None:
        super().__init__(reading, scope, Names(tree), name, line)
        self.folder, self.tree = folder, tree
        self.started = False  # whether another program is
        # The environment where something is called that may be an engine; in how many functions this is.
        self.seen, self.aside = list[Variables](), 0
        # The functions that may be called unseen, here or behind anything that follows, and what was set here.
        self.later: list[tuple[Function, State]] | None = []
        # The functions that run, with what it was where they called themselves; those that ran, with what they made of
        # it; how often that may be.
        self.running: dict[Function, State | None] = {}
        self.ran: dict[tuple[Function, bool, bool], list[tuple[State, State]]] = {}
        self.again = _MOST_AGAIN
        self.doubtful: dict[ast.stmt, bool] = {}
        # What a child may get, and of which dictionary or copy.
        self.given = list[tuple[ast.AST | str | None, str, Scope]]()
        # The environment at the ways out of the innermost function and loop.
        self.returns, self.breaks = list[State](), list[State]()

    def run(self) -> None:
        self._block(self.tree.body)
        later, self.later = self.later or [], None
        for node, before in later:
            after, scope = self.now(), self.scope
            if after != before:
                self.scope = scope.copy()
                self.scope.perhaps(before[PROCESS])
                self._unseen(node)
                self.scope = scope
                self.become(after)
        for of, where, child in self.given:
            if of is None or of not in self.used:
                self.reading.invocation(where, (), child, sure=False)
        last = self.line(self.tree.body[-1].lineno if self.tree.body else 1)
        if self.names.alone and self.started:
            return  # the engine is in what was started
        whole = self.scope.copy()
        whole.variables = together([*self.seen, self.scope.variables], 1)  # what is set in a branch stays so
        if len(self.seen) >= _MOST_SEEN:
            whole.anything(last, "")
        self.reading.invocation(last, (), whole)

    # --- statements ---

    def _block(self, statements: Sequence[ast.stmt], between: list[State] | None = None) -> None:
        """Follow statements, and keep what the environments are ``between`` them."""
        depth, doubts = self.reading.depth, 0
        for node in statements:
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    self._expressions(child)
            self._assignment(node)
            self._inside(node)
            if between is not None:
                between.append(self.now())
            if isinstance(node, ast.Return):
                self.returns.append(self.now())
            if isinstance(node, ast.Break | ast.Continue):
                self.breaks.append(self.now())
            if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue) or self._ends(node):
                break  # what stands behind is never reached
            if not isinstance(node, Function | ast.ClassDef):
                doubts += self._may_end(node)
                self.reading.depth = depth + bool(doubts)
        self.reading.depth = depth

    def _may_end(self, node: ast.stmt) -> bool:
        """Whether there are ways out in a statement."""
        if node not in self.doubtful:
            inside = [one for one in ast.walk(node) if one is not node]
            self.doubtful[node] = any(isinstance(one, ast.Return | ast.Raise) or self._ends(one) for one in inside)
        return self.doubtful[node]

    def _ends(self, node: ast.AST) -> bool:
        """Whether the program ends here."""
        call = node.value if isinstance(node, ast.Expr) else None
        return isinstance(call, ast.Call) and self.names.full(call.func) in _ENDS

    def _inside(self, node: ast.stmt) -> None:
        """The statements inside of one: whether and when a function is called unseen, nobody knows."""
        body, other, last = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
        if isinstance(node, Function):
            if node.name not in self.names.followed:
                if self.later is not None:
                    self.later.append((node, self.now()))
                self._unseen(node)
        elif isinstance(node, ast.If) and not is_main(node.test):
            self._branches([body, other])
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loop(node)
        elif isinstance(node, ast.Match):
            whole = any(ast.unparse(one.pattern) == "_" and one.guard is None for one in node.cases)
            self._branches([*(one.body for one in node.cases), *([] if whole else [[]])])
        elif isinstance(node, ast.Try | ast.TryStar):
            between = [self.now()]
            self._block(body, between if node.handlers else None)
            self._block(other)
            if node.handlers:
                end = self.now()
                self.become_any(between)
                self._branches([one.body for one in node.handlers], [end])
            self._block(last)
        else:
            self._block(body)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        """What is run any number of times, and begins again with what it left."""
        outer, self.breaks, before = self.breaks, [], self.now()
        self._branches([node.body, []])
        if self.now() != before and self._may_again(node):
            self._branches([[*([node.test] if isinstance(node, ast.While) else []), *node.body], []])
        breaks, self.breaks = self.breaks, outer
        self.become_any([*breaks, self.now()])
        self._block(node.orelse)
        self.become_any([*breaks, self.now()])

    def _may_again(self, node: ast.stmt) -> bool:
        """Whether to follow once more what was followed already; too much of that may set anything."""
        self.again -= 1
        if self.again < 0:
            self.lose(node)
        return self.again >= 0

    def _unseen(self, node: Function) -> None:
        """A function that may be called unseen; where it is called the call is seen itself."""
        self.aside += 1
        self._perhaps(node)
        self.aside -= 1

    def _perhaps(self, node: Function) -> None:
        self.reading.depth += 1
        before = self.now()
        self._called(node)
        self.reading.depth -= 1
        self.become_any([before, self.now()])

    def _called(self, node: Function) -> None:
        """The statements of a function, up to any way out of it; the copies of its callers are not its own."""
        if node in self.running:
            # What it changes is not known yet; if it changes anything it is followed again, with that.
            state = self.running[node]
            self.become_any([*([state] if state else []), self.now()])
            self.running[node] = self.now()
            return
        if len(self.running) > _MOST_RUNNING:
            self.lose(node)
            return
        local, now = self.names.local[node].union(*(self.names.local[one] for one in self.running)), self.now()
        before = {name: one for name, one in now.items() if name not in local}
        known = self.ran.setdefault((node, bool(self.reading.depth), bool(self.aside)), [])
        after = next((after for state, after in known if state == before), None)
        if after is None and (not known or self._may_again(node)):
            self.running[node] = None
            after = self._statements(node, before)
            if self.running[node] is not None and after != before and self._may_again(node):
                self.running[node] = after
                after = self._statements(node, before)
            del self.running[node]
            known.append((before, after))
        if after is not None:
            self.become({**now, **{name: one for name, one in after.items() if name not in local}})

    def _statements(self, node: Function, before: State) -> State:
        outer, self.returns, breaks, self.breaks = self.returns, [], self.breaks, []
        self.become(before)
        self._block(node.body)
        self.become_any([*self.returns, self.now()])
        self.returns, self.breaks = outer, breaks
        return self.now()

    def _branches(self, ways: Sequence[Sequence[ast.AST]], others: Sequence[State] = ()) -> None:
        """Follow several ways, of which one is run, or one of the ``others`` that were followed already."""
        entry, ends = self.now(), [*others]
        self.reading.depth += 1
        for way in ways:
            self.become(entry)
            for node in way:
                if not isinstance(node, ast.stmt):
                    self._expressions(node)
            self._block([node for node in way if isinstance(node, ast.stmt)])
            ends.append(self.now())
        self.reading.depth -= 1
        self.become_any(ends)

    def _assignment(self, node: ast.stmt) -> None:
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target, whole in (pair for one in targets for pair in _each(one, value)):
            if isinstance(target, ast.Subscript):
                with self.changed(target.value) as scope:
                    self.put(scope, self.text(target.slice), whole, node, drop=isinstance(node, ast.Delete))
                if whole is not None and self.environment(target.value) != PROCESS:
                    # A copy of the environment for a child, say, or the settings of an engine.
                    self._mapping([(self.text(target.slice), whole)], self.environment(target.value))
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
                with self.changed(node.target) as scope:
                    self.merge(scope, node.value, node)
            if isinstance(target, ast.Name) and not (isinstance(node, ast.AugAssign) and target.id in self.copied):
                self.named(target.id, whole, node)

    # --- expressions ---

    def _expressions(self, node: ast.AST) -> None:
        dictionaries = list[ast.Dict]()
        self._evaluate(node, dictionaries)
        for one in dictionaries:
            self._mapping(self._pairs(one), one)

    def _evaluate(self, node: ast.AST, dictionaries: list[ast.Dict]) -> None:
        """What an expression does, from the inside out; its dictionaries are looked at when all is known of them."""
        if isinstance(node, ast.IfExp):
            self._evaluate(node.test, dictionaries)
            self._branches([[node.body], [node.orelse]])
        elif isinstance(node, ast.BoolOp):
            self._evaluate(node.values[0], dictionaries)
            self._branches([node.values[1:], []])
        elif isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            self._branches([[*ast.iter_child_nodes(node)], []])
        else:
            for child in ast.iter_child_nodes(node):
                self._evaluate(child, dictionaries)
        given: dict[str | None, ast.expr] = {}
        if isinstance(node, ast.Call):
            self._call(node)
            given = {one.arg: one.value for one in node.keywords}
        elif isinstance(node, ast.Dict):
            dictionaries.append(node)
            given = {self.text(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
        variables = given.get("env_vars")
        if variables is not None and self.made(variables) is not None:
            worker = self.scope.copy()
            self.merge(worker, variables, variables)
            self.used.add(self.environment(variables))
            self.reading.invocation(self.where(variables), (), worker, self.reading.sure)

    def _call(self, node: ast.Call) -> None:
        called = self.names.full(node.func)
        name, owner = called.rpartition(".")[2], node.func.value if isinstance(node.func, ast.Attribute) else None
        followed = isinstance(node.func, ast.Name) and name in self.names.followed
        for function in self.names.run_by(node):
            begins = isinstance(function, ast.FunctionDef) or node in self.names.awaited
            if followed and begins and function.name == name:
                self._called(function)
            else:
                self._perhaps(function)
        if called in {"os.putenv", "os.unsetenv"} or (owner and self.environment(owner) is not None):
            with self.changed(owner if name not in {"putenv", "unsetenv"} else None) as scope:
                self.method(scope, name, node)
        elif name == "load_dotenv" or called in _READS:
            self.scope.anything(self.where(node), ast.unparse(node)[:200])
        elif name not in _TALK:
            if any(kind.fullmatch(called) for kind in (_TEXTS, _LISTS, _WORDS)):
                self._starts(node, called)
            elif self.made(node) is None:
                self._may_start(node, called)
                if not followed and called not in _ENDS and not self.names.is_plain(node):
                    self._see()
                for given in [*node.args, *(one.value for one in node.keywords)]:
                    if isinstance(given, ast.Name) and given.id in self.copied:  # which may change it
                        with self.changed(given) as scope:
                            scope.anything(self.where(node), ast.unparse(node)[:200])
            inside = (one for given in (*node.args, *node.keywords) for one in ast.walk(given))
            paths = (one.value for one in inside if isinstance(one, ast.Constant) and isinstance(one.value, str))
            self.reading.invocation(self.where(node), [called, *(one for one in paths if "/" in one)], None)
            self._mapping(self._pairs(node), node)

    def _see(self) -> None:
        """Keep what the environment is here, for this process may be an engine from now on."""
        now = dict(self.scope.variables)
        if not self.aside and len(self.seen) < _MOST_SEEN and now not in self.seen:
            self.seen.append(now)

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
        scope = self.made(given)
        if scope is None:
            scope = self.scope.copy()
            scope.anything(self.where(node), f"env={ast.unparse(given)}"[:200])
        self.used |= {self.names.resolved(given), self.environment(given)}
        return scope

    def _word(self, node: ast.expr) -> Placed:
        """A word of a command; ``f"key={value}"`` keeps its key where the value is not known."""
        text = self.part(node)
        return Placed(text if RUN_TIME not in text or SETTING.match(text) else MANY, self.where(node))

    def _mapping(self, pairs: Iterable[tuple[Argument, ast.expr]], of: ast.AST | str | None) -> None:
        """Variables that a child may get, and settings (``…_config=``).

        Those ``of`` a dictionary or a copy of the environment may be seen where a child gets it.
        """
        child, words = self.scope.copy(), list[Argument]()
        places, changed = list[str](), False
        for name, value in pairs:
            places += [self.where(value)] if name else []
            if name and _VARIABLE.fullmatch(name):
                found = f"{name}: {ast.unparse(value)[:200]}"
                depth = max(1, self.reading.depth)
                child.put(name, self.text(value), self.where(value), found, export=True, depth=depth)
                changed = True
            elif name and name.endswith("_config"):
                words += self._options("--" + name.replace("_", "-"), value)
        if changed:
            self.given.append((of, places[0], child))
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
