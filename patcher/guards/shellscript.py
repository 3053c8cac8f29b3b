"""Shell scripts, statement by statement: what they do to the variables, and what they start.

A statement leads from one state to two: one where it succeeds and one where it fails, None where that cannot be. What
is not modelled and may set a variable leaves that variable, or all of them, to the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.guards.scope import (
    ABSENT,
    MANY,
    MOST_NESTING,
    MOST_WAYS,
    RUN_TIME,
    Argument,
    Assignment,
    Fed,
    Invocation,
    Placed,
    Scope,
    Words,
    bounded,
    collapsed,
    known,
    merged,
)
from patcher.guards.shell import Expander, parsed

if TYPE_CHECKING:
    from tree_sitter import Node

    from patcher.guards.launch import Reading

Outcome = tuple[Scope | None, Scope | None]

_MOST_STEPS = 30_000
_MOST_ROUNDS = 64
# With these in its text tree-sitter-bash 0.25 reads memory that is not its own, and now and then the process dies.
_CONTROL = re.compile(rb"[^\t\n\r\x20-\x7e\x80-\xff]")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Commands whose failure is an answer; of all others a person expects that they succeed.
_TESTS = frozenset({"grep", "egrep", "fgrep", "which", "type", "command", "test", "[", "diff", "cmp", "pgrep", "hash"})
_HARMLESS = frozenset({
    "trap", "alias", "unalias", "umask", "ulimit", "type", "jobs", "kill", "bg", "fg", "times", "hash", "help",
    "caller", "compgen", "disown", "complete", "compopt", "history", "bind", "suspend", "logout", "dirs",
})  # fmt: skip
_SILENT = frozenset({"mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "chown", "sleep", "kill", "wait", "ulimit"})
_SHOPTS = frozenset({"checkwinsize", "cmdhist", "expand_aliases_off", "histappend", "inherit_errexit", "huponexit"})
_DECLARES = frozenset({"export", "declare", "typeset", "readonly", "local"})


@dataclass
class _Frame:
    """A function that is running: where it returns to, and what its local variables hide."""

    function: bool = True  # False: a file that is sourced
    returns: list[tuple[Scope, bool | None]] = field(default_factory=list)
    hidden: dict[str, tuple[tuple[Assignment, ...] | None, tuple[Words, ...] | None]] = field(default_factory=dict)


@dataclass
class _Loop:
    leaves: list[Scope] = field(default_factory=list)
    goes_on: list[Scope] = field(default_factory=list)


@dataclass
class _Flow:
    """Where the shell is: in how many branches, in which functions and loops, and what it is fed."""

    depth: int = 0
    doubt: int = 0
    frames: list[_Frame] = field(default_factory=list)
    loops: list[_Loop] = field(default_factory=list)
    exits: list[Scope] = field(default_factory=list)
    fed: Fed | None = None
    hoped: bool = True


class _Call(NamedTuple):
    """A builtin with its words."""

    argv: Words
    node: Node
    scope: Scope


class Shell(Expander):
    """Follows one shell text; what it changes stays in the scope that it is given."""

    def __init__(self, reading: Reading, text: str, name: str, line: int, folder: Path, flow: _Flow | None = None):
        super().__init__(text, name, line)
        self.reading, self.folder, self.flow = reading, folder, flow or _Flow()

    def run(self, scope: Scope) -> Scope:
        """Follow the text to its end; gives the last state, which is that at the exits if all ways lead there."""
        end = self.join(self.evaluate(scope))
        return end or merged([*self.flow.exits, scope][: len(self.flow.exits) or 1], 0)

    def evaluate(self, scope: Scope) -> Outcome:
        """Follow the text as a part of another."""
        if _CONTROL.search(self.source):
            return self.lost(parsed(b""), scope, "it holds control characters")
        root = parsed(self.source)
        return self.lost(root, scope) if root.type == "ERROR" else self.block(root.children, scope)

    def sourced(self, scope: Scope) -> Outcome:
        """Follow the text as a file that another sources, where ``return`` ends it."""
        frame = _Frame(function=False)
        self.flow.frames.append(frame)
        outcome = self.evaluate(scope)
        self.flow.frames.pop()
        ok, fail = outcome
        returns = [one for one, _ in frame.returns]
        return (self.merge([ok, *returns]), self.merge([fail, *returns])) if returns else (ok, fail)

    @property
    def sure(self) -> bool:
        """Whether the run surely comes here, if no program before fails and no ``exit`` ends it."""
        return self.reading.sure and not self.flow.depth and not self.flow.doubt

    def join(self, outcome: Outcome) -> Scope | None:
        """The state after a statement, whether it succeeds or not."""
        ok, fail = outcome
        return self.merge([ok] if ok is fail else [ok, fail])

    def merge(self, scopes: Iterable[Scope | None]) -> Scope | None:
        """One state for several; None if there is none."""
        kept = [scope for scope in scopes if scope is not None]
        return merged(kept, self.flow.depth) if kept else None

    def block(self, nodes: Sequence[Node], scope: Scope) -> Outcome:
        """Statements one after the other."""
        outcome: Outcome = (scope, None)
        for at, node in enumerate(nodes):
            if not node.is_named or node.type in {"comment", "heredoc_body", "heredoc_end"}:
                if node.is_missing:
                    outcome = self.lost(node, scope)
                continue
            following = nodes[at + 1] if at + 1 < len(nodes) else None
            behind = self.slice(node.end_byte, following.start_byte if following is not None else node.end_byte + 2)
            if re.match(r"\s*\\[ \t]", behind):
                # The parser drops a blank behind a backslash, which is a word.
                outcome = self.lost(node, scope, "a blank behind a backslash")
            elif following is not None and following.type == "&":
                self.apart(lambda own, node=node: self.statement(node, own), scope)  # type: ignore[misc]
                outcome = (scope, None)
            else:
                outcome = self.statement(node, scope)
            one = outcome[0] is outcome[1] or None in outcome
            after = outcome[0] or outcome[1] if one and node.type in _SIMPLE else self.join(outcome)
            if after is None:
                return None, None
            if outcome[0] is outcome[1]:
                outcome = (after, after)
            scope = after
        return outcome

    def apart(self, run: Callable[[Scope], Outcome], scope: Scope, out: str | None = None) -> tuple[Outcome, str]:
        """Run something in a child shell; gives how it ended, and what it printed."""
        flow, self.flow = self.flow, _Flow(self.flow.depth, self.flow.doubt, fed=self.flow.fed)
        self.flow.frames = [_Frame(frame.function) for frame in flow.frames]
        own = scope.copy()
        own.out = out
        try:
            ok, fail = run(own)
        finally:
            ends, self.flow = self.flow.exits + [one for each in self.flow.frames for one, _ in each.returns], flow
        end = self.merge([ok, fail, *ends])
        return (
            ok or (ends and end) or None,
            fail or (ends and end) or None,
        ), RUN_TIME if end is None else end.out or ""

    def captured(self, node: Node, scope: Scope) -> str:
        """What the statements of a substitution print, without the line ends at its end."""
        if self.reading.nesting >= MOST_NESTING or node.has_error:
            return RUN_TIME
        self.reading.nesting += 1
        fed, hoped = self.flow.fed, self.flow.hoped
        direct = any(child.type == "file_redirect" for child in node.children)
        try:
            _, text = self.apart(lambda own: self.block(node.children, own), scope, "")
        finally:
            self.reading.nesting -= 1
            self.flow.fed, self.flow.hoped = fed, hoped
        if direct or (self.text(node).lstrip()[0] == "`" and "\\" in self.text(node)):
            return RUN_TIME
        return text.rstrip("\n")

    def lost(self, node: Node, scope: Scope, reason: str = "it cannot be parsed") -> Outcome:
        """Something that is not understood: it may have set everything, and have started anything."""
        where, found = self.where(node), self.text(node).strip()
        scope.anything(where, found)
        scope.functions = dict.fromkeys(scope.functions)
        self.reading.invocations.append(
            Invocation(where, (None,), dict(scope.variables), sure=False, reason=f"{reason}: {found[:80]}")
        )
        return scope, scope

    # --- statements ---

    def statement(self, node: Node, scope: Scope) -> Outcome:
        """The state after one statement."""
        self.reading.steps += 1
        # Of `> file <<< text` the parser makes `<<` and `< text`: what is read is not known.
        wrong = [child for child in node.children if child.type == "ERROR" or child.is_missing]
        broken = node.type == "ERROR" or any(self.text(child) != "<<" for child in wrong)
        if broken or self.reading.steps > _MOST_STEPS:
            return self.lost(node, scope, "it cannot be parsed" if broken else "the script is too long to follow")
        method = getattr(self, f"_{node.type}", None)
        return self.lost(node, scope) if method is None else method(node, scope)

    def _compound_statement(self, node: Node, scope: Scope) -> Outcome:
        if node.children[0].type != "((":
            return self.block(node.children, scope)
        number = self.arithmetic(node, scope)
        self.flow.hoped = False
        return self.decided(None if number == RUN_TIME else number != "0", scope)

    @staticmethod
    def decided(answer: bool | None, scope: Scope) -> Outcome:
        """The states after something that changes nothing."""
        return (None if answer is False else scope), (None if answer is True else scope)

    def _subshell(self, node: Node, scope: Scope) -> Outcome:
        (ok, fail), text = self.apart(lambda own: self.block(node.children, own), scope, scope.out)
        scope.out = text if scope.out is not None else None
        self.flow.hoped = True
        return (scope if ok or not fail else None), (scope if fail or not ok else None)

    def _negated_command(self, node: Node, scope: Scope) -> Outcome:
        ok, fail = self.statement(node.children[1], scope)
        self.flow.hoped = False
        return fail, ok

    def _pipeline(self, node: Node, scope: Scope) -> Outcome:
        return self.piped([child for child in node.children if child.is_named], scope)

    def piped(self, nodes: Sequence[Node], scope: Scope) -> Outcome:
        """Commands of a pipeline, each in a shell of its own."""
        fed = self.flow.fed
        for at, node in enumerate(nodes):
            last = at == len(nodes) - 1
            out = scope.out if last else ""
            _, text = self.apart(lambda own, node=node: self.statement(node, own), scope, out)  # type: ignore[misc]
            self.flow.fed = Fed(
                text, self.flow.fed.line if node.type == "redirected_statement" and self.flow.fed else 0
            )
            if last and out is not None:
                scope.out = text
        self.flow.fed, self.flow.hoped = fed, False
        return scope, scope

    def _list(self, node: Node, scope: Scope) -> Outcome:
        left, operator, right = node.children if len(node.children) == 3 else (None, None, None)
        if left is None or operator is None or right is None:
            return self.lost(node, scope)
        return self.chain(lambda own: self.statement(left, own), operator.type, right, scope)

    def chain(self, left: Callable[[Scope], Outcome], operator: str, right: Node, scope: Scope) -> Outcome:
        """``left && right`` and ``left || right``."""
        outcome = left(scope)
        goes_on, stays = outcome if operator == "&&" else outcome[::-1]
        if goes_on is None:
            return outcome
        unknown = stays is not None
        hoped = self.flow.hoped and operator == "&&"
        self.flow.depth += unknown and not hoped
        ok, fail = self.statement(right, goes_on.copy() if unknown else goes_on)
        self.flow.depth -= unknown and not hoped
        self.flow.hoped = self.flow.hoped and (hoped or not unknown)
        if not unknown:
            return ok, fail
        if ok is None and fail is None and not self._ends(right):
            self.flow.doubt += 1
        return (ok, self.merge([stays, fail])) if operator == "&&" else (self.merge([stays, ok]), fail)

    def _ends(self, node: Node) -> bool:
        """Whether it is the script that ends here, not just a loop or a function."""
        return not re.search(r"\b(break|continue|return)\b", self.text(node))

    def _if_statement(self, node: Node, scope: Scope) -> Outcome:
        clauses: list[tuple[list[Node] | None, list[Node]]] = []
        plain: list[Node] = []
        conditions: list[Node] | None = None
        for child in node.children[1:-1]:
            if child.type in {"elif_clause", "else_clause"}:
                clauses += [(conditions, plain)] if conditions is not None else []
                inner, conditions, plain = child.children[1:], None, []
                if child.type == "else_clause":
                    clauses.append((None, inner))
                    continue
                then = next((at for at, one in enumerate(inner) if one.type == "then"), len(inner))
                clauses.append((inner[:then], inner[then + 1 :]))
            elif child.type == "then":
                conditions, plain = plain, []
            else:
                plain.append(child)
        if conditions is not None:
            clauses.append((conditions, plain))
        outcome = self._clauses(clauses, scope)
        self.flow.hoped = True
        return outcome

    def _clauses(self, clauses: Sequence[tuple[list[Node] | None, list[Node]]], scope: Scope) -> Outcome:
        if not clauses:
            return scope, None
        conditions, body = clauses[0]
        if conditions is None:
            return self.block(body, scope)
        then, other = self.block(conditions, scope)
        if then is None or other is None:
            if then is not None:
                return self.block(body, then)
            return (None, None) if other is None else self._clauses(clauses[1:], other)
        return self.ways(
            [lambda own: self.block(body, own), lambda own: self._clauses(clauses[1:], own)], [then, other]
        )

    def ways(self, runs: Sequence[Callable[[Scope], Outcome]], scopes: Sequence[Scope]) -> Outcome:
        """The states after branches of which only the run tells which one is taken."""
        left = len(self.flow.exits)
        self.flow.depth += 1
        ends = [run(scope.copy()) for run, scope in zip(runs, scopes, strict=True)]
        self.flow.depth -= 1
        # A way that leads out of a function or a loop makes the rest of that unsure; one that ends the script does not.
        dead = sum(end == (None, None) for end in ends)
        self.flow.doubt += dead > 0 and len(self.flow.exits) - left < dead
        return self.merge(ok for ok, _ in ends), self.merge(fail for _, fail in ends)

    def _case_statement(self, node: Node, scope: Scope) -> Outcome:
        value = next(child for child in node.children[1:] if child.is_named)
        texts = self.scalar(value, scope)
        items = [child for child in node.children if child.type == "case_item"]
        runs: list[Callable[[Scope], Outcome]] = []
        complete = False
        for item in items:
            close = next((at for at, one in enumerate(item.children) if one.type == ")"), 0)
            patterns = [one for one in item.children[:close] if one.is_named]
            body = item.children[close + 1 :]
            if not close or any(child.type in {";&", ";;&"} for child in body):
                return self.lost(node, scope, "its items fall through")
            answers: set[bool | None] = set()
            for pattern in patterns:
                matches = self.pattern(pattern, scope)
                if self.text(pattern) == "*":
                    answers = {True}
                    break
                answers |= {matches(text) for text in texts} if len(patterns) == 1 else set()
            if len(patterns) > 1 and answers != {True}:
                checks = [self.pattern(pattern, scope) for pattern in patterns]
                answers = {_any([check(text) for check in checks]) for text in texts}
            if answers == {False}:
                continue
            runs.append(lambda own, body=body: self.block(body, own))  # type: ignore[misc]
            if answers == {True}:
                complete = True
                break
        self.flow.hoped = True
        if not complete:
            runs.append(lambda own: (own, None))
        return runs[0](scope) if len(runs) == 1 else self.ways(runs, [scope] * len(runs))

    # --- loops ---

    def _for_statement(self, node: Node, scope: Scope) -> Outcome:
        body = node.children[-1]
        variable = next((child for child in node.children if child.type == "variable_name"), None)
        if variable is None or body.type not in {"do_group", "compound_statement"}:
            return self.lost(node, scope)
        name, where = self.text(variable), self.where(variable)
        values = [child for child in node.children if child.is_named and child not in (variable, body)]
        listed = any(child.type == "in" for child in node.children)
        words = [word for value in values for word in collapsed(self.fields(value, scope))]
        if not listed:
            words = list(scope.args or ())

        def put(own: Scope, texts: Sequence[Argument]) -> Scope:
            own.put(
                name, texts, where, f"for {name} in {self.text(values[0]) if values else '…'}", depth=self.flow.depth
            )
            return own

        if (
            node.children[0].type == "select"
            or len(words) > _MOST_ROUNDS
            or any(word.maybe or word == MANY for word in words)
        ):
            return self.looped(lambda own: (own.copy(), self.block(body.children, put(own, [None]))), scope)
        loop, doubt = _Loop(), self.flow.doubt
        self.flow.loops.append(loop)
        for word in words:
            after = self.merge([*self.block(body.children, put(scope, [word])), *loop.goes_on])
            loop.goes_on.clear()
            if after is None:
                break
            scope = after
        else:
            loop.leaves.append(scope)
        self.flow.loops.pop()
        self.flow.doubt, self.flow.hoped = doubt, True
        end = self.merge(loop.leaves)
        return end, end

    def _while_statement(self, node: Node, scope: Scope) -> Outcome:
        until = node.children[0].type == "until"
        body = node.children[-1]
        conditions = [child for child in node.children[1:-1] if child.is_named]
        # Without arguments, a loop over them is not entered.
        if scope.args is None and "$#" in "".join(map(self.text, conditions)) and not until:
            return scope, None

        def once(own: Scope) -> tuple[Scope | None, Outcome]:
            outcome = self.block(conditions, own)
            inside, leaves = outcome[::-1] if until else outcome
            return leaves and leaves.copy(), (self.block(body.children, inside) if inside else (None, None))

        first = self.block(conditions, scope.copy()) if not any(map(_changes, conditions)) else (scope, scope)
        if first[until] is None:
            return scope, None
        return self.looped(once, scope)

    def _c_style_for_statement(self, node: Node, scope: Scope) -> Outcome:
        head = self.text(node).partition(")")[0]
        names = set(re.findall(r"[A-Za-z_]\w*", head)) - {"for"}
        body = node.children[-1]

        def once(own: Scope) -> tuple[Scope | None, Outcome]:
            for name in names:
                own.forget(name, self.where(node), head)
            return own.copy(), self.block(body.children, own)

        return self.looped(once, scope)

    def looped(self, once: Callable[[Scope], tuple[Scope | None, Outcome]], scope: Scope) -> Outcome:
        """The states after a loop of which only the run tells how often it is gone through.

        What its body changes is left to the run at its begin, until going through it once more changes nothing else.
        """
        changed: dict[str, Assignment] = {}
        doubt, mark = self.flow.doubt, len(self.reading.invocations)
        for _ in range(MOST_WAYS):
            del self.reading.invocations[mark:]
            start, loop = scope.copy(), _Loop()
            for name, one in changed.items():
                start.forget(name, one.where, one.found)
            start.args = (Placed(MANY, ""),) if "*args" in changed else start.args
            start.folder = None if "*folder" in changed else start.folder
            self.flow.loops.append(loop)
            self.flow.depth += 1
            leaves, outcome = once(start)
            end = self.merge([*outcome, *loop.goes_on])
            self.flow.depth -= 1
            self.flow.loops.pop()
            after = self.merge([scope, leaves, end, *loop.leaves]) or scope
            new = _differences(scope, after) - {*changed}
            if not new:
                break
            changed |= {name: after.look(name)[-1] for name in new}
        else:
            after.anything("", "a loop that changes more and more")
        if scope.out is not None and after.out != scope.out:
            after.out = RUN_TIME
        self.flow.doubt, self.flow.hoped = doubt, True
        left = self.merge([leaves, *loop.leaves, end if leaves else None])
        return left, left

    # --- functions ---

    def _function_definition(self, node: Node, scope: Scope) -> Outcome:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return self.lost(node, scope)
        scope.functions[self.text(name)] = (self, body)
        return scope, None

    def call(self, name: str, args: Words, scope: Scope, flow: _Flow) -> Outcome:
        """Run a function."""
        found = scope.functions[name]
        self.reading.nesting += 1
        try:
            if found is None or self.reading.nesting > MOST_NESTING:
                scope.anything(self.name, name)
                return scope, scope
            owner, body = found
            before, owner.flow = owner.flow, flow
            frame, loops, doubt, given = _Frame(), flow.loops, flow.doubt, scope.args
            flow.frames.append(frame)
            flow.loops = []
            scope.args = args
            scope.flags |= {"function"}
            ok, fail = owner.statement(body, scope)
            flow.frames.pop()
            flow.loops, flow.doubt, owner.flow = loops, doubt, before
        finally:
            self.reading.nesting -= 1
        ok = self.merge([ok, *(one for one, status in frame.returns if status is not False)])
        fail = self.merge([fail, *(one for one, status in frame.returns if status is not True)])
        for end in (ok, fail if fail is not ok else None):
            if end is not None:
                end.args = given if end.args == args or given is not None else None
                end.flags = end.flags if flow.frames else end.flags - {"function"}
                _restore(end, frame.hidden)
        return ok, fail

    # --- redirections ---

    def _redirected_statement(self, node: Node, scope: Scope) -> Outcome:
        body = node.child_by_field_name("body")
        redirects = [child for child in node.children if child is not body and child != body]
        if body is None:
            return self.redirected(redirects, lambda own: (own, None), scope)
        return self.redirected(redirects, lambda own: self.statement(body, own), scope)

    def redirected(self, redirects: Sequence[Node], run: Callable[[Scope], Outcome], scope: Scope) -> Outcome:
        """Run a statement with its redirections; behind a here-document stands the rest of the line."""
        fed, out, silent, tail, missing = self.flow.fed, scope.out, False, [], False
        for redirect in redirects:
            if redirect.type == "herestring_redirect":
                text = self.scalar(redirect.children[-1], scope)
                self.flow.fed = Fed((text[0] if len(text) == 1 else RUN_TIME) + "\n", self.row(redirect))
            elif redirect.type == "heredoc_redirect":
                body = next((one for one in redirect.children if one.type == "heredoc_body"), None)
                start = next((one for one in redirect.children if one.type == "heredoc_start"), None)
                self.flow.fed = self._heredoc(body, start, scope) if start is not None else Fed(RUN_TIME, 0)
                tail = [one for one in redirect.children if one.type not in _HEREDOC]
                silent = silent or any(one.type == "file_redirect" for one in tail)
                tail = [one for one in tail if one.type != "file_redirect"]
            elif redirect.type == "file_redirect":
                target = redirect.children[-1]
                words = self.scalar(target, scope) if target.is_named else (RUN_TIME,)
                sign = next((one.type for one in redirect.children if not one.is_named), "")
                number = redirect.child_by_field_name("descriptor")
                if sign == "<":
                    self.flow.fed = Fed(RUN_TIME, 0)
                    wrong = redirect.prev_sibling is not None and redirect.prev_sibling.type == "ERROR"
                    missing = missing or not (wrong or _there(words, scope))
                silent = silent or (sign[:1] in {">", "&"} and (number is None or self.text(number) == "1"))
            elif redirect.type != "ERROR":
                return self.lost(redirect, scope)
        if silent:
            scope.out = None
        if any(one.type == "pipeline" for one in tail):
            outcome = self._heredoc_pipe(run, tail, scope)
        elif missing:
            # A file that is not there: then nothing is run.
            outcome = self.ways([run, lambda own: (None, own)], [scope, scope])
        else:
            outcome = run(scope)
        self.flow.fed = fed
        if silent:
            for end in outcome:
                if end is not None:
                    end.out = out
        operator = next((one.type for one in tail if one.type in {"&&", "||"}), "")
        if operator:
            return self.chain(lambda _: outcome, operator, tail[-1], scope)
        return outcome

    def _heredoc_pipe(self, run: Callable[[Scope], Outcome], tail: Sequence[Node], scope: Scope) -> Outcome:
        fed = self.flow.fed
        _, text = self.apart(run, scope, "")
        self.flow.fed = Fed(text, fed.line if fed else 0)
        nodes = [child for one in tail if one.type == "pipeline" for child in one.children if child.is_named]
        return self.piped(nodes, scope)

    def _heredoc(self, body: Node | None, start: Node, scope: Scope) -> Fed:
        if body is None:
            return Fed("", 0)
        line = self.row(body)
        if re.search(r"['\"\\]", self.text(start)):
            text = self.text(body)
        else:
            texts = self.joined(self.region(body.children, body.start_byte, body.end_byte, scope, quoted=True))
            text = texts[0] if len(texts) == 1 else RUN_TIME
        dash = self.source[start.start_byte - 3 : start.start_byte].lstrip().startswith(b"<<-")
        return Fed(re.sub(r"(?m)^\t+", "", text) if dash else text, line)

    # --- commands ---

    def _variable_assignment(self, node: Node, scope: Scope) -> Outcome:
        self.flow.hoped = True
        self.assign(node, scope)
        return (scope, scope) if _changes(node, {"command_substitution"}) else (scope, None)

    def _variable_assignments(self, node: Node, scope: Scope) -> Outcome:
        outcome: Outcome = (scope, None)
        for child in node.children:
            outcome = self._variable_assignment(child, scope)
        return outcome

    def _declaration_command(self, node: Node, scope: Scope) -> Outcome:
        self.flow.hoped = True
        redirects = [child for child in node.children if child.type.endswith("_redirect")]
        if redirects:
            return self.redirected(redirects, lambda own: self._declared(node, own), scope)
        return self._declared(node, scope)

    def _declared(self, node: Node, scope: Scope) -> Outcome:
        kind, where = node.children[0].type, self.where(node)
        options, operands = "", []
        for child in node.children[1:]:
            if child.type == "word" and re.match(r"[-+][a-zA-Z]", self.text(child)):
                options += self.text(child)
            elif child.is_named and not child.type.endswith("_redirect"):
                operands.append(child)
        names: list[tuple[str, Callable[[Scope, bool], None] | None]] = []
        for operand in operands:
            if operand.type == "variable_assignment":
                target = operand.children[0]
                names.append(
                    (self.text(target).partition("[")[0], self.evaluated_assignment(operand, scope, declared=True))
                )
            else:
                for word in collapsed(self.fields(operand, scope)):
                    name, equals, text = word.partition("=")
                    if word.maybe or not _NAME.fullmatch(name):
                        scope.anything(where, self.text(node))
                    elif equals:
                        scope.put(name, [known(text)], word.where, str(word), export=kind == "export" or "x" in options)
                    names.append((name, None))
        if "f" in options.lower():
            scope.flags |= {f"export {name}" for name, _ in names} if kind == "export" else set()
            return scope, None
        functions = [frame for frame in self.flow.frames if frame.function]
        local = bool(functions) and kind not in {"export", "readonly"} and "g" not in options
        export = kind == "export" or re.search(r"-[a-zA-Z]*x", options) is not None
        remove = "+x" in options or (kind == "export" and "n" in options)
        for name, value in names:
            if local and name not in functions[-1].hidden:
                functions[-1].hidden[name] = (scope.variables.get(name), scope.arrays.get(name))
                if value is None and any(one.exported and one.present for one in scope.look(name)):
                    # Unset here, but passed on as it was.
                    scope.forget(name, where, self.text(node))
                elif value is None and name in scope.variables:
                    scope.variables[name] = tuple(
                        Assignment(None, where, self.text(node), present=False, exported=one.exported)
                        for one in scope.variables[name]
                    )
            if value is not None:
                value(scope, export and not remove)
            elif (export and not remove) or "allexport" in scope.flags:
                scope.variables[name] = tuple(one._replace(exported=True) for one in scope.look(name))
            if remove:
                scope.variables[name] = tuple(one._replace(exported=False) for one in scope.look(name))
            if kind == "readonly" or re.search(
                r"[iulcnrAt]", re.sub(r"n", "", options) if kind == "export" else options
            ):
                scope.flags |= {f"odd {name}"}
                if "n" in options and kind != "export":
                    scope.anything(where, self.text(node))
                elif value is not None and re.search(r"[iulcA]", options):
                    scope.forget(name, where, self.text(node))
        return scope, None

    def _unset_command(self, node: Node, scope: Scope) -> Outcome:
        words = [word for child in node.children[1:] for word in collapsed(self.fields(child, scope))]
        if words and words[0] == "-f":
            for word in words[1:]:
                scope.functions.pop(word, None)
            return scope, None
        for word in words:
            if RUN_TIME in word or word.maybe or word == "-n":
                # Any of them may be unset from here on.
                gone = ABSENT[0]._replace(where=self.where(node), found=self.text(node))
                scope.variables.update({name: (*ways, gone) for name, ways in scope.variables.items()})
                scope.arrays.update(dict.fromkeys(scope.arrays, ((Placed(MANY, gone.where),),)))
            elif f"odd {word}" in scope.flags or "[" in word:
                scope.forget(word.partition("[")[0], self.where(node), self.text(node))
            elif not word.startswith("-"):
                scope.drop(word, word.where, f"unset {word}", self.flow.depth)
        self.flow.hoped = True
        return scope, None

    def assign(self, node: Node, scope: Scope, *, export: bool = False) -> None:
        """``NAME=value``, ``NAME+=value`` and ``NAME=(…)``."""
        self.evaluated_assignment(node, scope)(scope, export)

    def evaluated_assignment(
        self, node: Node, scope: Scope, *, declared: bool = False
    ) -> Callable[[Scope, bool], None]:
        """What an assignment does, with its value taken now."""
        target, where = node.children[0], self.where(node)
        value = node.child_by_field_name("value")
        plus = node.children[1].type == "+="
        raw = self.text(node)
        found = raw if len(raw) <= 200 else raw[:200] + "…"
        name, _, index = self.text(target).partition("[")
        if value is not None and value.type == "array" and not index:
            elements: list[tuple[Words, ...]] = []
            for child in value.children:
                if child.is_named and child.type != "comment":
                    text = self.text(child)
                    odd = child.type == "ERROR" or (text.startswith("[") and "]" in text and "=" in text)
                    elements.append(((Placed(MANY, where),),) if odd else self.fields(child, scope))
            added = elements[0] if len(elements) == 1 else (tuple(word for one in elements for word in collapsed(one)),)
            return lambda own, _: self._store_array(name, added, plus, own, where, found)
        texts = self.scalar(value, scope, assigned=True) if value is not None else ("",)
        if declared and value is not None and self.braces(value):
            # There, and not in a plain assignment, braces may make several words of one.
            texts = (RUN_TIME,)
        if index or (node.has_error and value is None):
            return lambda own, _: self._element(name, index[:-1], texts, own, where, found)
        return lambda own, export: self._store(name, texts, plus, own, where, found, export)

    def _store_array(
        self, name: str, added: tuple[Words, ...], plus: bool, scope: Scope, where: str, found: str
    ) -> None:
        olds = scope.elements(name) if plus else ((),)
        if plus and name not in scope.arrays and name in scope.variables:
            olds = tuple((Placed(one, where),) for one in self.values(name, scope)[0]) or ((),)
        scope.array(name, bounded([old + new for old in olds for new in added]), where, found, self.flow.depth)

    def _store(
        self, name: str, texts: tuple[str, ...], plus: bool, scope: Scope, where: str, found: str, export: bool
    ) -> None:
        if plus:
            before, _, unset = self.values(name, scope)
            before += self._unset(name, scope, unset)
            texts = tuple(dict.fromkeys(old + text for old in before for text in texts))
        array = scope.arrays.get(name)
        if array and not any(word == MANY for way in array for word in way):
            self._element(name, "0", texts, scope, where, found)
            return
        if len(texts) == 1 and RUN_TIME not in texts[0] and re.search(r"[$`]", found):
            found = f"{found} ({texts[0][:200]})"
        unknown = len(texts) > MOST_WAYS or f"odd {name}" in scope.flags
        scope.put(name, [RUN_TIME] if unknown else texts, where, found, export=export, depth=self.flow.depth)
        if array:
            # It may be an array, of which this is the first element.
            scope.arrays[name] = ((Placed(MANY, where),),)

    def _element(self, name: str, index: str, texts: tuple[str, ...], scope: Scope, where: str, found: str) -> None:
        ways = scope.elements(name)
        at = int(index) if index.isdigit() and len(index) < 6 else -1
        plain = len(texts) == 1 and not any(word.maybe or word == MANY for way in ways for word in way)
        if plain and all(0 <= at <= len(way) for way in ways) and "+=" not in found:
            new = tuple((*way[:at], Placed(texts[0], where), *way[at + 1 :]) for way in ways)
            scope.array(name, new, where, found, self.flow.depth)
        else:
            scope.array(name, ((Placed(MANY, where),),), where, found, self.flow.depth)

    def _test_command(self, node: Node, scope: Scope) -> Outcome:
        self.flow.hoped = False
        words: list[Node] = []
        _leaves(node, words)
        if self.text(words[0]) == "((":
            number = self.arithmetic(node, scope)
            return self.decided(None if number == RUN_TIME else number != "0", scope)
        double = self.text(words[0]) == "[["
        return self.decided(self._tested(words[1:-1], scope, double), scope)

    def _tested(self, words: Sequence[Node], scope: Scope, double: bool) -> bool | None:
        signs = [self.text(word) for word in words]
        for sign in ("||", "&&") if double else ("-o", "-a"):
            if sign in signs and not {"(", ")"} & set(signs):
                at = signs.index(sign)
                sides = [self._tested(words[:at], scope, double), self._tested(words[at + 1 :], scope, double)]
                return _any(sides) if sign in {"||", "-o"} else _all(sides)
        if signs[:1] == ["!"] and len(words) > 1:
            answer = self._tested(words[1:], scope, double)
            return None if answer is None else not answer
        if not double:
            fields = [
                self.fields(word, scope) if word.is_named else ((Placed(self.text(word), ""),),) for word in words
            ]
            if any(len(way) != 1 or way[0] == MANY for ways in fields for way in ways):
                return None
            texts = [tuple(str(way[0]) for way in ways) for ways in fields]
        else:
            texts = [self.scalar(word, scope) if word.is_named else (self.text(word),) for word in words]
        if len(words) == 1:
            return _same([None if RUN_TIME in one else bool(one) for one in texts[0]])
        if len(words) == 2 and signs[0] in {"-z", "-n"}:
            return _same([None if RUN_TIME in one else bool(one) == (signs[0] == "-n") for one in texts[1]])
        if len(words) != 3:
            return None
        if double and signs[1] in {"=", "==", "!="}:
            matches = self.pattern(words[2], scope)
            answer = _same([matches(one) for one in texts[0]])
            return answer if answer is None or signs[1] != "!=" else not answer
        return _same([_compare(one, signs[1], other) for one in texts[0] for other in texts[2]])

    def _command(self, node: Node, scope: Scope) -> Outcome:
        redirects = [child for child in node.children if child.type.endswith("_redirect")]
        if redirects:
            return self.redirected(redirects, lambda own: self._called(node, own), scope)
        return self._called(node, scope)

    def _called(self, node: Node, scope: Scope) -> Outcome:
        assignments = [child for child in node.children if child.type == "variable_assignment"]
        words = [child for child in node.children if child.type not in {"variable_assignment", *_REDIRECTS}]
        heads: tuple[Words, ...] = ((),)
        rest: list[Placed] = []
        for at, word in enumerate(words):
            if at and words[at - 1].end_byte == word.start_byte:
                # The parser makes two of one word here.
                found: tuple[Words, ...] = ((Placed(MANY, self.where(word)),),)
                heads, rest = (heads, rest[:-1]) if rest else (found, rest)
            elif not word.is_named:
                found = ((Placed(self.text(word), self.where(word)),),)
            else:
                found = self.fields(word.children[0] if word.type == "command_name" else word, scope)
            if not at:
                heads = found
            else:
                rest += collapsed(found)
        if len(heads) == 1:
            return self.simple([*heads[0], *rest], assignments, node, scope)
        # The same start by different launchers is one: keep what all of them say.
        before, starts = len(self.reading.invocations), []

        def one(head: Words) -> Callable[[Scope], Outcome]:
            def run(own: Scope) -> Outcome:
                outcome = self.simple([*head, *rest], assignments, node, own)
                starts.append(self.reading.invocations[before:])
                del self.reading.invocations[before:]
                return outcome

            return run

        sure = self.sure
        outcome = self.ways([one(head) for head in heads], [scope] * len(heads))
        for start in [start for listed in starts for start in listed]:
            everywhere = all(any(_alike(start, other) for other in listed) for listed in starts)
            if not any(_alike(start, other) for other in self.reading.invocations[before:]):
                self.reading.invocations.append(start._replace(sure=sure and everywhere and not start.perhaps))
        return outcome

    def simple(self, argv: list[Placed], assignments: Sequence[Node], node: Node, scope: Scope) -> Outcome:
        """A command whose words are known, as far as they can be."""
        if not argv:
            outcome: Outcome = (scope, None)
            for assignment in assignments:
                outcome = self._variable_assignment(assignment, scope)
            return outcome
        head = str(argv[0])
        if head not in scope.functions and (head not in _METHODS or argv[0].maybe):
            return self.launch(argv, assignments, node, scope)
        if head in scope.functions and scope.functions[head] is None:
            return self.lost(node, scope, "which function this is, is only known when it runs")
        hidden: dict[str, Any] = {}
        for assignment in assignments:
            name = self.text(assignment.children[0]).partition("[")[0]
            hidden.setdefault(name, (scope.variables.get(name), scope.arrays.get(name)))
            self.assign(assignment, scope, export=True)
        self.flow.hoped = head not in _TESTS
        if head in scope.functions:
            outcome = self.call(head, tuple(argv[1:]), scope, self.flow)
            self.flow.hoped = False
        else:
            outcome = getattr(self, f"_do_{_METHODS[head]}")(_Call(tuple(argv), node, scope))
        for end in {id(end): end for end in outcome if end is not None}.values():
            _restore(end, hidden)
        return outcome

    def launch(self, argv: list[Placed], assignments: Sequence[Node], node: Node, scope: Scope) -> Outcome:
        """A program: what it inherits, and what it prints, which nobody knows."""
        own = scope.copy()
        own.out = None
        for assignment in assignments:
            self.assign(assignment, own, export=True)
        head = argv[0].rpartition("/")[2]
        where = self.where(node)
        words = [word for word in argv if not word.maybe]
        if argv[0].maybe:
            words = [Placed(MANY, where), *words]
        self.reading.command(
            [self._here(word) for word in words], own, where, self.sure, folder=self.folder, fed=self.flow.fed
        )
        perhaps = [word for word in argv[1:] if word.maybe]
        if perhaps:
            self.reading.invocations.append(Invocation(where, (words[0], *perhaps), {}, sure=False, perhaps=True))
        if scope.out is not None:
            if head == "cat" and len(argv) == 1 and self.flow.fed:
                scope.out += self.flow.fed.text
            elif head in {"dirname", "basename", "realpath", "readlink"}:
                scope.out += _path_of(head, argv[1:], scope)
            elif head not in _SILENT:
                scope.out += RUN_TIME
        self.flow.hoped = head not in _TESTS
        return scope, scope

    def _here(self, word: Placed) -> Placed:
        """``$HERE/other.sh``: what is not known is this script's folder, or nothing that is here."""
        tail = word.lstrip(RUN_TIME)
        there = (
            self.folder / tail.lstrip("/")
            if word[:1] == RUN_TIME and tail[:1] == "/" and RUN_TIME not in tail
            else None
        )
        return Placed(str(there), word.where) if there is not None and there.is_file() else word

    # --- builtins ---

    def prints(self, text: str, scope: Scope) -> Outcome:
        """The state after something that prints and succeeds."""
        if scope.out is not None:
            scope.out += text
        return scope, None

    def _do_true(self, call: _Call) -> Outcome:
        # `true` and `:`.
        scope = call.scope
        return scope, None

    def _do_false(self, call: _Call) -> Outcome:
        # `false`.
        scope = call.scope
        self.flow.hoped = False
        return None, scope

    def _do_echo(self, call: _Call) -> Outcome:
        # `echo`.
        argv, _, scope = call
        words = argv[1:]
        end = "\n"
        if words and words[0] == "-n":
            words, end = words[1:], ""
        lost = any(word.maybe or word == MANY or "\\" in word for word in words) or (words and words[0][:1] == "-")
        return self.prints(RUN_TIME if lost else " ".join(words) + end, scope)

    def _do_printf(self, call: _Call) -> Outcome:
        # `printf`.
        argv, node, scope = call
        words = [str(word) for word in argv[1:]]
        lost = any(word.maybe or MANY in word for word in argv)
        if words[:1] == ["-v"] and len(words) > 1 and not lost and _NAME.fullmatch(words[1]):
            plain = len(words) == 3 and not re.search(r"[%\\]|^-", words[2])
            texts = words[2:3] if plain else words[3:] if words[2:3] == ["%s"] and len(words) == 4 else []
            if texts:
                scope.put(words[1], texts, self.where(node), self.text(node)[:200], depth=self.flow.depth)
            else:
                scope.forget(words[1], self.where(node), self.text(node)[:200])
            return scope, None
        if lost or words[:1] == ["-v"]:
            scope.anything(self.where(node), self.text(node))
        if len(words) == 2 and words[0] in {"%s", "%s\\n"} and not lost:
            return self.prints(words[1] + words[0][2:].replace("\\n", "\n"), scope)
        plain = len(words) == 1 and not re.search(r"%|\\[^n]", words[0]) and not lost
        return self.prints(words[0].replace("\\n", "\n") if plain else RUN_TIME, scope)

    def _do_pwd(self, call: _Call) -> Outcome:
        # `pwd`.
        argv, _, scope = call
        return self.prints((scope.folder or RUN_TIME) + "\n" if len(argv) == 1 else RUN_TIME, scope)

    def _do_cd(self, call: _Call) -> Outcome:
        # `cd`: a folder that is not here may not be there.
        argv, _, scope = call
        words = [word for word in argv[1:] if word not in {"--", "-L"}]
        ways = (words[0],) if len(words) == 1 else self.values("HOME", scope)[0] if not words else (RUN_TIME,)
        target = ways[0] if len(ways) == 1 and not any(word.maybe for word in words) else RUN_TIME
        moved = scope.copy()
        moved.folder = None
        moved.variables.pop("PWD", None)
        odd = any(one.present for one in scope.look("CDPATH")) or target[:1] in {"-", RUN_TIME, ""}
        if RUN_TIME not in target and not odd and (scope.folder or target[0] == "/"):
            there = Path(_normal(target, scope.folder or ""))
            moved.folder = str(there)
            if there.is_dir():
                return moved, None
        elif moved.out is not None:
            moved.out += RUN_TIME
        return moved, scope

    def _do_moves(self, call: _Call) -> Outcome:
        # `pushd` and `popd`.
        scope = call.scope
        scope.folder = None
        scope.variables.pop("PWD", None)
        return self.prints(RUN_TIME, scope)[0], scope

    def _do_exit(self, call: _Call) -> Outcome:
        # `exit`.
        scope = call.scope
        self.flow.exits.append(scope)
        return None, None

    def _do_return(self, call: _Call) -> Outcome:
        # `return`, from a function or a file that is sourced.
        argv, _, scope = call
        status = None if len(argv) != 2 or not argv[1].isdigit() else int(argv[1][:6]) == 0
        if not self.flow.frames:
            return scope, scope
        self.flow.frames[-1].returns.append((scope, status))
        return None, None

    def _do_leave(self, call: _Call) -> Outcome:
        # `break` and `continue`.
        argv, node, scope = call
        size = int(argv[1]) if len(argv) == 2 and argv[1].isdigit() and len(argv[1]) < 3 else 1
        if not self.flow.loops or not size > 0 or (len(argv) > 1 and not argv[1].isdigit()):
            return (scope, None) if not self.flow.loops else self.lost(node, scope, "it may leave several loops")
        loop = self.flow.loops[-min(size, len(self.flow.loops))]
        (loop.leaves if argv[0] == "break" else loop.goes_on).append(scope)
        return None, None

    def _do_harmless(self, call: _Call) -> Outcome:
        # Builtins that change nothing that is looked at.
        argv, node, scope = call
        if argv[0] == "trap" and len(argv) > 2:
            if {"DEBUG", "ERR", "RETURN"} & set(argv[2:]):
                scope.anything(self.where(node), self.text(node))
            elif argv[1] != "-":
                own = scope.copy()
                self.ways([lambda scope: self.evaluated(str(argv[1]), node, scope)], [own])
        return self.prints(RUN_TIME if argv[0] not in {"trap", "ulimit", "umask"} else "", scope)[0], scope

    def _do_reads(self, call: _Call) -> Outcome:
        # `read` and others that set the variables that are named among their words.
        argv, node, scope = call
        where, found = self.where(node), self.text(node)[:200]
        names = {"read": ["REPLY"], "mapfile": ["MAPFILE"], "readarray": ["MAPFILE"], "getopts": ["OPTARG", "OPTIND"]}
        if any(word.maybe or RUN_TIME in word for word in argv[1:]):
            scope.anything(where, found)
        for word in argv[1:]:
            # With the option and its value in one word, or in an expression of `let`.
            names.setdefault(argv[0], []).extend(_NAME.findall(word))
        for name in names[argv[0]]:
            scope.forget(name, where, found)
        self.flow.hoped = False
        return scope, scope

    def _do_unknown(self, call: _Call) -> Outcome:
        # Builtins that are not modelled.
        _, node, scope = call
        scope.anything(self.where(node), self.text(node))
        return scope, scope

    def _do_loosely(self, call: _Call) -> Outcome:
        # `export` and its kin where they stand behind another word, so that other rules hold for their words.
        argv, node, scope = call
        for word in argv[1:]:
            name = word.partition("=")[0]
            if word.maybe or RUN_TIME in name or (word[:1] == "-" and argv[0] != "export"):
                scope.anything(self.where(node), self.text(node))
            elif _NAME.fullmatch(name):
                scope.forget(name, self.where(node), self.text(node)[:200])
        return scope, scope

    def _do_set(self, call: _Call) -> Outcome:
        # `set`: the arguments of the script, and what every assignment exports.
        argv, node, scope = call
        at = 1
        while at < len(argv):
            word = argv[at]
            if word in {"--", "-"} or word[:1] not in {"-", "+"} or word == MANY:
                words = tuple(argv[at + (word in {"--", "-"}) :])
                scope.args = (Placed(MANY, word.where),) if any(one.maybe for one in words) else words
                return scope, None
            options = word[1:].replace("o", "")
            named = argv[at + 1] if word[-1] == "o" and at + 1 < len(argv) else ""
            at += 1 + bool(named)
            if "a" in options or named == "allexport":
                flags = {"allexport"}
                scope.flags = scope.flags | flags if word[0] == "-" else scope.flags - flags
            odd = named and named not in {
                "allexport",
                "pipefail",
                "errexit",
                "nounset",
                "xtrace",
                "verbose",
                "errtrace",
            }
            if odd or word.maybe or not set(options) <= set("aeuxvEThbmBH"):
                scope.anything(self.where(node), self.text(node))
        return scope, None

    def _do_shift(self, call: _Call) -> Outcome:
        # `shift`.
        argv, _, scope = call
        size = (
            int(argv[1]) if len(argv) == 2 and argv[1].isdigit() and len(argv[1]) < 4 else 1 if len(argv) == 1 else -1
        )
        if scope.args is None:
            return scope, scope
        if size < 0 or any(word == MANY or word.maybe for word in scope.args):
            scope.args = (Placed(MANY, ""),)
            return scope, scope
        if size > len(scope.args):
            return None, scope
        scope.args = scope.args[size:]
        return scope, None

    def _do_shopt(self, call: _Call) -> Outcome:
        # `shopt`: of those that change how words or pipelines are read, everything behind is left to the run.
        argv, node, scope = call
        for word in argv[1:]:
            if "glob" in word:
                scope.flags |= {"glob"}
            elif word not in {"-s", "-u", "-q", "-p", *_SHOPTS}:
                scope.anything(self.where(node), self.text(node))
        return scope, scope

    def _do_source(self, call: _Call) -> Outcome:
        # `source file`; of a file that is not known nobody knows what it sets.
        argv, node, scope = call
        word = self._here(argv[1]) if len(argv) > 1 else Placed(MANY, "")
        if word.maybe or RUN_TIME in word:
            inside = [child for child in node.children if child.type == "process_substitution"]
            text = self.captured(inside[0], scope) if inside and len(argv) == 2 else RUN_TIME
            return self.evaluated(text, node, scope)
        given = scope.args
        scope.args = tuple(argv[2:]) or given
        outcome = self.reading.sourced(str(word), scope, self.folder, self)
        for end in outcome or (scope,):
            if end is not None and len(argv) > 2:
                end.args = given
        if outcome is None:
            if not word.startswith("/") and scope.folder in {self.reading.folder, None}:
                return self.lost(node, scope, "the file that it sources is not here")
            return scope, scope
        return outcome

    def _do_eval(self, call: _Call) -> Outcome:
        # `eval`.
        argv, node, scope = call
        lost = any(word.maybe or word == MANY for word in argv)
        return self.evaluated(RUN_TIME if lost else " ".join(argv[1:]), node, scope)

    def evaluated(self, text: str, node: Node, scope: Scope) -> Outcome:
        """Run a text as a part of this script."""
        if re.search(r"\b(conda|mamba|micromamba) .*shell\.\w+ hook", self.text(node)):
            # Defines functions of that name, and sets variables for itself alone.
            return scope, scope
        if RUN_TIME in text or self.reading.nesting >= MOST_NESTING:
            return self.lost(node, scope, "what it runs is only known when it runs")
        self.reading.nesting += 1
        where = self.where(node)
        try:
            return Shell(self.reading, text, where, 0, self.folder, self.flow).evaluate(scope)
        finally:
            self.reading.nesting -= 1

    def _do_prefix(self, call: _Call) -> Outcome:
        # `command`, `builtin`, `exec` and `time` before another command.
        argv, node, scope = call
        rest = [word for at, word in enumerate(argv) if at]
        while rest and rest[0][:1] == "-" and not rest[0].maybe:
            if argv[0] == "command" and rest[0] in {"-v", "-V"}:
                self.flow.hoped = False
                return self.prints(RUN_TIME, scope)[0], scope
            rest = rest[1 + (argv[0] == "exec" and rest[0] == "-a") :]
        if argv[0] == "exec":
            if not rest or re.fullmatch(r"\{\w+\}", rest[0]):
                for word in rest:
                    scope.forget(word[1:-1], self.where(node), self.text(node))
                return scope, None
            self.launch(rest, [], node, scope)
            return self._do_exit(call)
        if rest and rest[0] in {*_DECLARES, "unset"}:
            return self._do_loosely(_Call(tuple(rest), node, scope))
        if argv[0] == "time" and rest and "=" in rest[0]:
            return self.launch([Placed("env", rest[0].where), *rest], [], node, scope)
        if argv[0] == "time" or not rest or rest[0] not in scope.functions:
            return self.simple(rest, [], node, scope)
        own = dict(scope.functions)
        scope.functions = {}
        outcome = self.simple(rest, [], node, scope)
        for end in outcome:
            if end is not None:
                end.functions = {**own, **end.functions}
        return outcome

    def _do_test(self, call: _Call) -> Outcome:
        # `test`.
        argv, _, scope = call
        self.flow.hoped = False
        words = argv[1:]
        if any(word.maybe or word == MANY for word in words):
            return scope, scope
        if len(words) == 2 and words[0] in {"-z", "-n"}:
            return self.decided(None if RUN_TIME in words[1] else bool(words[1]) == (words[0] == "-n"), scope)
        return self.decided(_compare(*words) if len(words) == 3 else None, scope)


_METHODS = {
    ":": "true", ".": "source", "[": "test", "break": "leave", "continue": "leave", "pushd": "moves", "popd": "moves",
    "coproc": "unknown", "enable": "unknown", "fc": "unknown",
    **{name: name for name in ("true", "false", "echo", "printf", "pwd", "cd", "exit", "return", "set", "shift", "test",
                               "shopt", "source", "eval")},
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts", "let"), "reads"),
    **dict.fromkeys(("command", "builtin", "exec", "time"), "prefix"),
    **dict.fromkeys(_HARMLESS, "harmless"), **dict.fromkeys((*_DECLARES, "unset"), "loosely"),
}  # fmt: skip
_SIMPLE = frozenset({"command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments",
                     "test_command", "function_definition"})  # fmt: skip
_REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")
_HEREDOC = frozenset({"<<", "<<-", "heredoc_start", "heredoc_body", "heredoc_end", "comment", "file_descriptor"})


def _alike(one: Invocation, other: Invocation) -> bool:
    """Whether two invocations say the same."""
    return (one.where, one.argv, one.perhaps, one.reason) == (
        other.where,
        other.argv,
        other.perhaps,
        other.reason,
    ) and (one.variables == other.variables)


def _restore(scope: Scope, hidden: dict[str, tuple[tuple[Assignment, ...] | None, tuple[Words, ...] | None]]) -> None:
    """Give variables the values back that local ones have hidden."""
    for name, (variable, array) in hidden.items():
        if variable is None:
            scope.variables.pop(name, None)
        else:
            scope.variables[name] = variable
        if array is None:
            scope.arrays.pop(name, None)
        else:
            scope.arrays[name] = array


def _differences(before: Scope, after: Scope) -> set[str]:
    """The names of what is not the same in two states."""
    names = {name for name in {*before.variables, *after.variables} if before.look(name) != after.look(name)}
    names |= {name for name in {*before.arrays, *after.arrays} if before.elements(name) != after.elements(name)}
    names |= {"*args"} if before.args != after.args else set()
    return names | ({"*folder"} if before.folder != after.folder else set())


def _changes(node: Node, kinds: Iterable[str] = ("command", "declaration_command", "variable_assignment")) -> bool:
    """Whether there is one of the kinds of nodes inside of a node."""
    return node.type in kinds or any(_changes(child, kinds) for child in node.children)


def _leaves(node: Node, found: list[Node]) -> None:
    """The words and signs of a test, in their order."""
    for child in node.children:
        inner = child.type in {
            "binary_expression",
            "unary_expression",
            "parenthesized_expression",
            "negation_expression",
        }
        _leaves(child, found) if inner else found.append(child)


def _any(answers: Sequence[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False


def _all(answers: Sequence[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def _same(answers: Sequence[bool | None]) -> bool | None:
    return answers[0] if len(set(answers)) == 1 else None


def _compare(left: str, sign: str, right: str) -> bool | None:
    if RUN_TIME in left or RUN_TIME in right:
        return None
    if sign in {"=", "==", "!="}:
        return (left == right) == (sign != "!=")
    if not re.fullmatch(r"-?(0|[1-9]\d{0,14})", left) or not re.fullmatch(r"-?(0|[1-9]\d{0,14})", right):
        return None
    a, b = int(left), int(right)
    return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(sign)


def _there(words: Sequence[str], scope: Scope) -> bool:
    """Whether a file that is read from is here."""
    if len(words) != 1 or RUN_TIME in words[0] or scope.folder is None:
        return False
    return Path(scope.folder, words[0]).exists()


def _normal(path: str, folder: str) -> str:
    """A path as the shell's ``cd`` takes it: ``..`` goes back by the name, not by the link."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{folder}/{path}").split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/" + "/".join(parts)


def _path_of(head: str, words: Sequence[Placed], scope: Scope) -> str:
    """What ``dirname`` and its kin print."""
    given = [str(word) for word in words if word not in {"--", "-f", "-e", "-m", "-s"}]
    if any(word.maybe or RUN_TIME in word for word in words) or not 0 < len(given) < 3 or given[0][:1] in {"-", ""}:
        return RUN_TIME
    path = given[0].rstrip("/") or "/"
    if head == "basename":
        name = path.rpartition("/")[2] or "/"
        suffix = given[1] if len(given) == 2 else ""
        return (name[: -len(suffix)] if suffix and name.endswith(suffix) and name != suffix else name) + "\n"
    if len(given) == 2:
        return RUN_TIME
    if head == "dirname":
        folder, slash, _ = path.rpartition("/")
        return (folder.rstrip("/") or ("/" if slash else ".")) + "\n"
    real = Path(scope.folder or "", given[0])
    if scope.folder is None or not real.exists() or (head == "readlink" and "-f" not in words):
        return RUN_TIME
    return str(real.resolve()) + "\n"
