"""Shell statements one after the other: from the ways on which one is reached to those behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from patcher.launches.assignments import Assigner
from patcher.launches.grammar import parsed
from patcher.launches.invocation import RUN_TIME, Invocation
from patcher.launches.scope import MOST_NESTING, Scope
from patcher.launches.ways import Ways, bounded, divided, started

if TYPE_CHECKING:
    from tree_sitter import Node

    from patcher.launches.reading import Reading

# From the ways on which something is reached to those behind it.
Run = Callable[[Ways], Ways]

_MOST_STEPS = 10_000
# With these in its text tree-sitter-bash 0.25 reads memory that is not its own, and now and then the process dies.
_CONTROL = re.compile(rb"[^\t\n\r\x20-\x7e\x80-\xff]")


class Statements(Assigner):
    """Follows the statements of one text.

    The method ``_on_TYPE`` follows a statement of that type of node on all ways at once, ``_one_TYPE`` on one way.
    """

    def __init__(self, reading: Reading, text: str, name: str, line: int, folder: Path) -> None:
        super().__init__(reading, text, name, line)
        self.folder = folder

    def run(self, scope: Scope) -> Ways:
        """The ways on which the text ends."""
        if _CONTROL.search(self.source):
            return self.lost(parsed(b""), [scope], "it holds control characters")
        root = parsed(self.source)
        return self.lost(root, [scope]) if root.type == "ERROR" else self.block(root.children, [scope])

    def lost(self, node: Node, scopes: Ways, reason: str = "it cannot be parsed") -> Ways:
        """Something that is not understood: it may have set everything, and have started anything."""
        where, found = self.where(node), self.text(node).strip()
        for scope in scopes:
            scope.anything(where, found)
            scope.functions = dict.fromkeys(scope.functions)
            scope.status = None
        start = Invocation(where, (None,), dict(scopes[0].variables), sure=False, reason=f"{reason}: {found[:80]}")
        self.reading.invocations.append(start)
        return scopes

    def block(self, nodes: Sequence[Node], scopes: Ways) -> Ways:
        """Statements one after the other."""
        for node, following in zip(nodes, [*nodes[1:], None], strict=False):
            if not node.is_named or node.type in {"comment", "heredoc_body", "heredoc_end"}:
                scopes = self.lost(node, scopes) if node.is_missing else scopes
                continue
            away = [scope for scope in scopes if scope.leaves]
            live = [scope for scope in scopes if not scope.leaves]
            for scope in live:
                scope.status, scope.feared = True, False
            if not live:
                break
            # What leaves a function or a loop makes the rest of that unsure; what ends the script does not.
            doubt = any(scope.leaves != ("exit", 0) for scope in away)
            self.reading.doubt += doubt
            scopes = [*away, *self._next(node, following, bounded(live))]
            self.reading.doubt -= doubt
        return bounded(scopes)

    def _next(self, node: Node, following: Node | None, scopes: Ways) -> Ways:
        # The parser drops a blank behind a backslash, which is a word.
        behind = self.slice(node.end_byte, following.start_byte if following is not None else node.end_byte + 2)
        if re.match(r"\s*\\[ \t]", behind):
            return self.lost(node, scopes, "a blank behind a backslash")
        if following is None or following.type != "&":
            return self.statement(node, scopes)

        def behind_it(scope: Scope) -> Ways:
            self.apart(partial(self.statement, node), scope)
            return [scope]

        return self.each(behind_it, scopes)

    def statement(self, node: Node, scopes: Ways) -> Ways:
        """The ways behind one statement."""
        self.reading.steps += len(scopes)
        for scope in scopes:
            scope.meant = None
        # Of `> file <<< text` the parser makes `<<` and `< text`: what is read is not known.
        wrong = [child for child in node.children if child.type == "ERROR" or child.is_missing]
        broken = node.type == "ERROR" or any(self.text(child) != "<<" for child in wrong)
        if broken:
            return self.lost(node, scopes)
        if self.reading.steps > _MOST_STEPS:
            for scope in scopes:
                scope.leaves = ("exit", 0)
            return self.lost(node, scopes, "the script is too long to follow")
        one: Callable[[Node, Scope], Ways] | None = getattr(self, f"_one_{node.type}", None)
        on: Callable[[Node, Ways], Ways] = getattr(self, f"_on_{node.type}", self.lost)
        return self.each(partial(one, node), scopes) if one else on(node, scopes)

    def each(self, run: Callable[[Scope], Ways], scopes: Ways) -> Ways:
        """Follow each way by itself; what is started on several of them is one start."""
        if len(scopes) == 1:
            return run(scopes[0])
        mark, listed, ends = len(self.reading.invocations), [], Ways()
        for scope in scopes:
            ends += run(scope)
            listed.append(self.reading.invocations[mark:])
            del self.reading.invocations[mark:]
        self.reading.invocations += started(listed)
        return ends

    def within(self, *runs: tuple[Run, Ways]) -> Ways:
        """Follow branches; if more than one can be taken, only the run tells which one."""
        taken = [(run, scopes) for run, scopes in runs if scopes]
        self.reading.depth += len(taken) > 1
        ends = [end for run, scopes in taken for end in run(scopes)]
        self.reading.depth -= len(taken) > 1
        for end in ends:
            end.settle(self.reading.depth)
        return bounded(ends)

    def chain(self, scopes: Ways, sign: str, right: Node) -> Ways:
        """``left && right`` and ``left || right`` from the ways behind the left one."""
        away, yes, no = divided(scopes)
        goes, stays = (yes, no) if sign == "&&" else (no, yes)
        run = partial(self.statement, right)
        if all(scope.feared for scope in stays):
            return [*away, *stays, *(run(goes) if goes else [])]
        return [*away, *self.within((list, stays), (run, goes))]

    def apart(self, run: Run, scope: Scope, out: str | None = None) -> tuple[bool | None, str]:
        """Run something in a child shell: how that ends, and what it prints."""
        fed, ends = self.reading.fed, run([scope.copy(out=out, loops=0)])
        self.reading.fed, scope.status, scope.hoped = fed, True, True
        statuses = {None if end.leaves else end.status for end in ends}
        texts = {end.out for end in ends}
        return statuses.pop() if len(statuses) == 1 else None, (texts.pop() or "") if len(texts) == 1 else RUN_TIME

    def captured(self, node: Node, scope: Scope) -> str:
        """What the statements of a substitution print, without the line ends at its end."""
        if self.reading.nesting >= MOST_NESTING or node.has_error:
            return RUN_TIME
        self.reading.nesting += 1
        before = scope.status, scope.hoped
        _, text = self.apart(partial(self.block, node.children), scope, "")
        scope.status, scope.hoped = before
        self.reading.nesting -= 1
        direct = any(child.type == "file_redirect" for child in node.children)
        odd = direct or (self.text(node).lstrip()[0] == "`" and "\\" in self.text(node))
        return RUN_TIME if odd else text.rstrip("\n")
