"""Shell scripts: what they do to the variables, and what they start.

A statement leads from the ways through the script on which it is reached, each with a scope of its own, to those behind
it. What only the run tells makes two ways of one; what is not modelled and may set a variable leaves that variable, or
all of them, to the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from patcher.launches.commands import Commands
from patcher.launches.scope import MANY, MOST_WAYS, Scope
from patcher.launches.statements import Run
from patcher.launches.ways import Ways, bounded, divided, left, merged

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_ROUNDS = 64
_CHANGES = frozenset({"command", "declaration_command", "variable_assignment"})


class Shell(Commands):
    """Follows one shell text: its branches, loops and functions."""

    # --- branches ---

    def _on_compound_statement(self, node: Node, scopes: Ways) -> Ways:
        if node.children[0].type == "((":
            return self.each(partial(self._one_test_command, node), scopes)
        return self.block(node.children, scopes)

    def _on_negated_command(self, node: Node, scopes: Ways) -> Ways:
        ends = self.statement(node.children[1], scopes)
        for end in ends:
            if not end.leaves:
                end.status, end.hoped, end.meant = None if end.status is None else not end.status, False, None
        return ends

    def _on_list(self, node: Node, scopes: Ways) -> Ways:
        if len(node.children) != 3:
            return self.lost(node, scopes)
        first, sign, right = node.children
        return self.chain(self.statement(first, scopes), sign.type, right)

    def _on_if_statement(self, node: Node, scopes: Ways) -> Ways:
        clauses: list[tuple[Run, list[Node] | None]] = []
        for clause in [node, *(one for one in node.children if one.type in {"elif_clause", "else_clause"})]:
            parts = [one for one in clause.children[1:] if one.type not in {"elif_clause", "else_clause", "fi"}]
            then = next((at for at, one in enumerate(parts) if one.type == "then"), None)
            body = parts[then + 1 :] if then is not None else None
            clauses.append((partial(self.block, parts[:then]), body))
        return self._branches(clauses, scopes)

    def _branches(self, clauses: Sequence[tuple[Run, list[Node] | None]], scopes: Ways) -> Ways:
        """Conditions, each with what is run where it is met; the last one without that for what is run else."""
        for scope in scopes:
            scope.status, scope.hoped, scope.meant = True, True, None
        if not clauses or not scopes:
            return scopes
        condition, body = clauses[0]
        if body is None:
            return condition(scopes)
        away, yes, no = divided(condition(scopes))
        return [*away, *self.within((partial(self.block, body), yes), (partial(self._branches, clauses[1:]), no))]

    def _on_case_statement(self, node: Node, scopes: Ways) -> Ways:
        value = next(child for child in node.children[1:] if child.is_named)
        clauses: list[tuple[Run, list[Node] | None]] = []
        for item in (child for child in node.children if child.type == "case_item"):
            close = next((at for at, one in enumerate(item.children) if one.type == ")"), 0)
            body = item.children[close + 1 :]
            if not close or any(child.type in {";&", ";;&"} for child in body):
                return self.lost(node, scopes, "its items fall through")
            patterns = [one for one in item.children[:close] if one.is_named]
            clauses.append((partial(self._matched, value, patterns), body))
        return self._branches(clauses, scopes)

    def _matched(self, value: Node, patterns: Sequence[Node], scopes: Ways) -> Ways:
        for scope in scopes:
            text = self.scalar(value, scope)
            answers = [self.text(one) == "*" or self.pattern(one, scope)(text) for one in patterns]
            scope.status, scope.hoped = True if True in answers else None if None in answers else False, False
            if len(patterns) == 1:
                self.means(value, patterns[0], scope)
        return scopes

    # --- loops ---

    def _one_for_statement(self, node: Node, scope: Scope) -> Ways:
        body = node.children[-1]
        variable = next((child for child in node.children if child.type == "variable_name"), None)
        if variable is None or body.type not in {"do_group", "compound_statement"}:
            return self.lost(node, [scope])
        name, where = self.text(variable), self.where(variable)
        values = [child for child in node.children if child.is_named and child not in (variable, body)]
        listed = any(child.type == "in" for child in node.children)
        words = [word for value in values for word in self.fields(value, scope)] if listed else list(scope.args or ())
        found = f"for {name} in {self.text(values[0]) if values else '…'}"

        def once(word: str | None, scopes: Ways) -> Ways:
            for own in scopes:
                if not own.leaves:
                    own.put(name, [word], where, found, depth=self.reading.depth)
            return self.block(body.children, scopes)

        if node.children[0].type == "select" or len(words) > _MOST_ROUNDS or MANY in words:
            return self._looped(lambda own: ([own.copy()], once(None, [own])), scope)
        scope.loops += 1
        ends = [scope]
        for word in words:
            ends = once(word, ends)
            for end in ends:
                end.leaves = None if end.leaves == ("continue", 1) else end.leaves
        return list(map(left, ends))

    def _one_while_statement(self, node: Node, scope: Scope) -> Ways:
        until, body = node.children[0].type == "until", node.children[-1]
        conditions = [child for child in node.children[1:-1] if child.is_named]
        # Without arguments, a loop over them is not entered.
        if scope.args is None and "$#" in "".join(map(self.text, conditions)) and not until:
            return [scope]

        def once(own: Scope) -> tuple[Ways, Ways]:
            away, yes, no = divided(self.block(conditions, [own]))
            inside, leaves = (no, yes) if until else (yes, no)
            return leaves, [*away, *self.block(body.children, inside)]

        if not any(map(_changes, conditions)):
            first = self.block(conditions, [scope.copy()])
            if all(end.status is until for end in first):
                return [scope]
        return self._looped(once, scope)

    def _one_c_style_for_statement(self, node: Node, scope: Scope) -> Ways:
        head, body = self.text(node).partition(")")[0], node.children[-1]

        def once(own: Scope) -> tuple[Ways, Ways]:
            for name in set(re.findall(r"[A-Za-z_]\w*", head)) - {"for"}:
                own.forget(name, self.where(node), head)
            return [own.copy()], self.block(body.children, [own])

        return self._looped(once, scope)

    def _looped(self, once: Callable[[Scope], tuple[Ways, Ways]], scope: Scope) -> Ways:
        """The ways behind a loop of which only the run tells how often it is gone through.

        ``once`` gives those that leave it before, and those behind, its body. At its begin everything may be what it is
        before the first time or behind any other, until going through it once more changes nothing else.
        """
        reading, mark, depth = self.reading, len(self.reading.invocations), self.reading.depth
        start = scope.copy(loops=scope.loops + 1)
        for _ in range(MOST_WAYS):
            del reading.invocations[mark:]
            reading.depth = depth + 1
            leaves, ends = once(start.copy())
            reading.depth = depth
            behind = [*leaves, *(end for end in ends if end.leaves not in {None, ("continue", 1)})]
            again = [end for end in ends if end not in behind]
            for end in again:
                end.leaves, end.status, end.hoped, end.feared, end.meant = None, start.status, True, False, None
            after = merged([start, *again], 1 << 30)
            if len(bounded([start, after])) == 1:
                break
            start = after
        else:
            for end in behind:
                end.anything("", "a loop that changes more and more")
        for end in map(left, behind):
            end.settle(depth)
        return bounded(behind)

    # --- functions ---

    def _one_function_definition(self, node: Node, scope: Scope) -> Ways:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return self.lost(node, [scope])
        scope.functions[self.text(name)] = (self, body)
        return [scope]


def _changes(node: Node) -> bool:
    return node.type in _CHANGES or any(map(_changes, node.children))
