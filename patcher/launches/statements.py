"""Shell statements: one after the other, in branches, loops and functions.

A statement leads from the ways through the script on which it is reached, each with a scope of its own, to those behind
it. What only the run tells makes two ways of one; what is not modelled and may set a variable leaves that variable, or
all of them, to the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from patcher.launches.grammar import Node, parsed
from patcher.launches.invocation import RUN_TIME
from patcher.launches.scope import (
    DEEP,
    MANY,
    MOST_NESTING,
    MOST_WAYS,
    Scope,
    Ways,
    bounded,
    divided,
    left,
    merged,
    started,
)
from patcher.launches.words import NUMBER, Expander

# From the ways on which something is reached to those behind it.
Run = Callable[[Ways], Ways]

_MOST_STEPS = 10_000
_MOST_ROUNDS = 64
_CHANGES = frozenset({"command", "declaration_command", "variable_assignment"})
_INNER = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "negation_expression"})
# With these in its text tree-sitter-bash 0.25 reads memory that is not its own, and now and then the process dies.
_CONTROL = re.compile(rb"[^\t\n\r\x20-\x7e\x80-\xff]")
# A word that goes on in the next line. tree-sitter-bash 0.25 takes it for two, but in these texts.
_SPLIT = re.compile(rb"[^\s;&|<>(){}\\](?:\\\\)*\\\n(?=[^\s;&|<>(){}#])")
_TEXTS = frozenset({"string_content", "raw_string", "ansi_c_string", "heredoc_body", "heredoc_content", "comment"})


class Statements(Expander):
    """Follows the statements of one text.

    The method ``_on_TYPE`` follows a statement of that type of node on all ways at once, ``_one_TYPE`` on one way.
    """

    def run(self, scope: Scope) -> Ways:
        """The ways on which the text ends."""
        if _CONTROL.search(self.source):
            return self.lost(parsed(b""), [scope], "it holds control characters")
        root = parsed(self.source)
        if root.type == "ERROR":
            return self.lost(root, [scope])
        for found in _SPLIT.finditer(self.source):
            node = root.descendant_for_byte_range(found.start(), found.start() + 1)
            if node and node.type not in _TEXTS:
                return self.lost(node, [scope], "a word goes on in the next line")
        ends = self.block(root.children, [scope])
        for end in ends:
            for body in end.traps:
                self.within((body, [end.copy(leaves=None, traps=())]), (list, [end]))
        return ends

    def lost(self, node: Node, scopes: Ways, reason: str = "it cannot be parsed") -> Ways:
        """Something that is not understood: it may have set everything, and have started anything."""
        where, found = self.where(node), self.text(node).strip()
        for scope in scopes:
            scope.anything(where, found)
            scope.functions = dict.fromkeys(scope.functions)
            scope.status = None
        self.reading.invocation(where, (None,), scopes[0], False, f"{reason}: {found[:80]}")
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
            self.reading.depth += doubt
            scopes = [*away, *self._next(node, following, bounded(live))]
            self.reading.depth -= doubt
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
        if len(taken) < 2:
            return bounded([end for run, scopes in taken for end in run(scopes)])
        self.reading.depth += 1
        ends = [end for run, scopes in taken for end in run(scopes)]
        self.reading.depth -= 1
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
            reason = "it cannot be parsed" if node.has_error else DEEP
            self.reading.invocation(self.where(node), (None,), scope, False, reason)
            return RUN_TIME
        self.reading.nesting += 1
        before = scope.status, scope.hoped
        _, text = self.apart(partial(self.block, node.children), scope, "")
        scope.status, scope.hoped = before
        self.reading.nesting -= 1
        direct = any(child.type == "file_redirect" for child in node.children)
        odd = direct or (self.text(node).lstrip()[0] == "`" and "\\" in self.text(node))
        return RUN_TIME if odd else text.rstrip("\n")

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

    # --- tests ---

    def _one_test_command(self, node: Node, scope: Scope) -> Ways:
        words = list(_leaves(node))
        if self.text(words[0]) == "((":
            number = self.arithmetic(node, scope)
            scope.status = None if number == RUN_TIME else number != "0"
        else:
            scope.status = self._tested(words[1:-1], scope, self.text(words[0]) == "[[")
        scope.hoped = False
        return [scope]

    def _tested(self, words: Sequence[Node], scope: Scope, double: bool) -> bool | None:
        signs = [self.text(word) for word in words]
        for sign in ("||", "&&") if double else ("-o", "-a"):
            if sign in signs and not {"(", ")"} & set(signs):
                at, decides = signs.index(sign), sign in {"||", "-o"}
                sides = [self._tested(part, scope, double) for part in (words[:at], words[at + 1 :])]
                scope.meant = None
                return decides if decides in sides else None if None in sides else not decides
        if signs[:1] == ["!"] and len(words) > 1:
            answer, scope.meant = self._tested(words[1:], scope, double), None
            return None if answer is None else not answer
        compared = len(words) == 3 and signs[1] in {"=", "==", "!="}
        if compared and signs[1] != "!=" and (double or signs[0][0] == '"'):
            self.means(words[0], words[2], scope)
        if compared and double:
            answer = self.pattern(words[2], scope)(self.scalar(words[0], scope))
            return answer if answer is None or signs[1] != "!=" else not answer
        texts = signs[:]
        for at, word in enumerate(words):
            if word.is_named:
                fields: Sequence[str] = (self.scalar(word, scope),) if double else self.fields(word, scope)
                texts[at] = fields[0] if len(fields) == 1 else MANY
        return tested(texts)

    def means(self, node: Node, pattern: Node, scope: Scope) -> None:
        """Where a variable of which nothing is known is the same as a plain text, it is that text from there on."""
        name = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*)\}?"?', self.text(node))
        text = re.fullmatch(r"""(["']?)([\w./:-]+)\1""", self.text(pattern))
        ways = scope.look(name[1]) if name else ()
        if name and text and len(ways) == 1 and ways[0].present and set(ways[0].text or RUN_TIME) == {RUN_TIME}:
            scope.meant = (name[1], text[2])

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
                    own.put(name, word, where, found, depth=self.reading.depth)
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
        endless = re.search(r";\s*;", head)

        def once(own: Scope) -> tuple[Ways, Ways]:
            for name in set(re.findall(r"[A-Za-z_]\w*", head)) - {"for"}:
                own.forget(name, self.where(node), head)
            return [] if endless else [own.copy()], self.block(body.children, [own])

        return self._looped(once, scope)

    def _looped(self, once: Callable[[Scope], tuple[Ways, Ways]], scope: Scope) -> Ways:
        """The ways behind a loop of which only the run tells how often it is gone through.

        ``once`` gives those that leave it before, and those behind, its body. At its begin everything may be what it is
        before the first time or behind any other, until going through it once more changes nothing else.
        """
        reading, mark, depth = self.reading, len(self.reading.invocations), self.reading.depth
        start, surely = scope.copy(loops=scope.loops + 1), False
        for _ in range(MOST_WAYS):
            del reading.invocations[mark:]
            reading.depth = depth + (not surely)
            leaves, ends = once(start.copy())
            reading.depth = depth
            if not surely and not leaves:
                surely = True  # nothing leaves it before its body, such as `while true`
                continue
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
        # Behind a loop without an end is nothing.
        return bounded(behind) or [start.copy(leaves=("exit", 0))]

    # --- functions ---

    def _one_function_definition(self, node: Node, scope: Scope) -> Ways:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return self.lost(node, [scope])
        scope.functions[self.text(name)] = (self, body)
        return [scope]


def _leaves(node: Node) -> Iterator[Node]:
    """The words and signs of a test, in their order."""
    for child in node.children:
        yield from _leaves(child) if child.type in _INNER else (child,)


def _changes(node: Node) -> bool:
    return node.type in _CHANGES or any(map(_changes, node.children))


def tested(words: Sequence[str]) -> bool | None:
    """What ``test`` says of one, two or three words; None if only the run tells."""
    if MANY in words or any(RUN_TIME in word for word in words):
        return None
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in {"-z", "-n"}:
        return bool(words[1]) == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in {"=", "==", "!="}:
        return (left == right) == (sign != "!=")
    if not NUMBER.fullmatch(left) or not NUMBER.fullmatch(right):
        return None
    a, b = int(left), int(right)
    return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(sign)
