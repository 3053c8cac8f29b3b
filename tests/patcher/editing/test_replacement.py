"""Replacement: the arguments asked for and nothing else, in any layout, and every line back from its comment."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher import editing
from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Before, Insertion
from tests.patcher.editing.arguments import ARGUMENTS, PATCH, RECIPE, SOURCE, replaced

OTHER = PatchId("vllm-ascend", "rollout")
INSERTING = RECIPE._replace(
    method="run",
    calls=(),
    insertions=(Insertion("run", where=Before("output = self.runner.run(...)"), line="probe()", why="counts"),),
)
PATCHED = '''\
class Worker(Base):
    """A worker."""

    def run(self, batch):
        output = self.runner.run(batch)
        return output

    def build(self):
        config = prof.Config(
            # was: level=prof.Level.One,  # enough  # rlpatch: vllm-ascend builtin
            level=prof.Level.Two,  # enough  # rlpatch: vllm-ascend builtin
            metrics=None,
        )
        return prof.profile(
            shapes=True,  # rlpatch: vllm-ascend builtin
            # was: activities=[  # rlpatch: vllm-ascend builtin
                # was: prof.CPU,  # rlpatch: vllm-ascend builtin
                # was: prof.NPU,  # rlpatch: vllm-ascend builtin
            # was: ],  # rlpatch: vllm-ascend builtin
            activities=[prof.NPU],  # rlpatch: vllm-ascend builtin
            # was: stack=envs.\\  # rlpatch: vllm-ascend builtin
                # was: STACK,  # rlpatch: vllm-ascend builtin
            stack=True,  # rlpatch: vllm-ascend builtin
            config=config,
            ready=prof.handler(
                # was: folder))  # rlpatch: vllm-ascend builtin
                folder, parse=False))  # rlpatch: vllm-ascend builtin
    # >>> rlpatch vllm-ascend builtin 0.1.0 DIGEST
    # rlpatch changed arguments above; `rlpatch revert vllm-ascend` puts back what `# was` there.
    # <<< rlpatch vllm-ascend builtin


after = 1
'''
MEMBERS = ("def _probe(self):", "    pass")


def calls(source: bytes) -> dict[str, dict[str, str]]:
    """Function → argument → code, of every call in a file; those by position are called by their number."""

    def code(node: ast.expr) -> str:
        return "a call of " + ast.unparse(node.func) if isinstance(node, ast.Call) else ast.unparse(node)

    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            given = {str(i): code(arg) for i, arg in enumerate(node.args)}
            found[ast.unparse(node.func)] = given | {k.arg or "**": code(k.value) for k in node.keywords}
    return found


def test_replacing_changes_exactly_the_arguments_of_the_example() -> None:
    done = replaced(SOURCE)
    assert done.after.decode() == PATCHED.replace("DIGEST", markers.marked(done.after)[0].digest)
    assert [tuple(one) for one in done.settings] == [
        ("Config", "level", "prof.Level.One", "prof.Level.Two", 11),
        ("profile", "activities", "[prof.CPU, prof.NPU]", "[prof.NPU]", 20),
        ("profile", "stack", "envs.STACK", "True", 23),
        ("profile", "shapes", "False", "True", 15),
        ("handler", "parse", "True", "False", 27),
    ]
    assert done.arguments["Config", "metrics"] == "None"
    assert done.arguments["profile", "stack"] == "True"


@pytest.mark.parametrize(
    ("edit", "layout"),
    [
        (lambda text: text.replace("\n", "\r\n"), "CRLF"),
        (lambda text: text.replace("    ", "\t"), "tabs"),
        (lambda text: "\ufeff" + text, "BOM"),
        (lambda text: text.split("\n\n\nafter")[0], "no line end behind the class"),
        (lambda text: text.split("\n\n\nafter")[0].replace("\n", "\r\n"), "nor with CRLF"),
        (lambda text: text.replace("  # enough\n            metrics", " metrics"), "two on a line"),
        (lambda text: text.replace("prof.Level.One,", "prof.Level.One,  \t"), "blanks behind the code"),
        (lambda text: text.replace("# enough", "# was: a # hash  # rlpatch"), "a comment like ours"),
        (lambda text: text.replace("prof.Level.One", "'# was: x'"), "a text like ours"),
        (lambda text: text.replace("prof.Level.One", "prof.Level.One if a else (\n  # odd\n\n   b)"), "comments in it"),
        (lambda text: text.replace("config = prof", "config = \\\n            prof"), "continued before"),
        (lambda text: text.replace("level=prof", "level\\\n  =\\\n prof"), "continued in the middle"),
        (lambda text: text.replace(",  # enough", ", \\\n"), "continued behind"),
        (lambda text: text.replace("# enough", "# \u5de5\u4eba \u00e9"), "beyond ASCII"),
        (lambda text: "# coding: gbk\n" + text.replace("# enough", "# \u5de5\u4eba"), "gbk"),
        (lambda text: text.replace("prof.Level.One", "f('\u5de5\u4eba', prof.Level.One)"), "columns beyond ASCII"),
        (lambda text: text.replace("folder))", "(folder)  # one\n ,))"), "parentheses around the argument"),
        (lambda text: text.replace("\n                folder))", "folder, *(), ))").replace("*(), ", ""), "a comma"),
        (lambda text: text.replace("\n                folder))", "))"), "no argument"),
        (lambda text: text.replace("folder))", "folder, 'name', True))"), "by position"),
        (lambda text: text.replace("folder))", "folder, name=1))"), "by name on the same line"),
        (
            lambda text: text.replace("folder))", "folder,\n                name=1,\n            ),\n        )"),
            "on its own",
        ),
        (lambda text: text.replace("activities=[", "\x0cactivities=["), "a form feed"),
        (lambda text: text.replace("        return prof", "        x = 1; return prof"), "a statement before"),
        (lambda text: text.replace("after = 1", "x = '''\n# was: y\n'''"), "a text elsewhere"),
        (lambda text: text.replace("\n\n\nafter", "\n    # of the class\n# not of it\n\nafter"), "comments behind"),
        (lambda text: text.replace("    def build", "    @cached\n    def build"), "decorated"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_are_replaced_and_restored_in_any_layout(edit, layout: str) -> None:
    text = edit(SOURCE)
    before = text.encode("gbk" if layout == "gbk" else "utf-8")
    done = replaced(before)
    assert markers.strip(done.after) == before
    wanted = {function: dict(given) for function, given in calls(before).items() if function != "f"}
    for (function, keyword), code in ARGUMENTS.items():
        by_position = layout == "by position" and keyword == "parse"
        wanted[f"prof.{function}"]["2" if by_position else keyword] = code
    assert calls(done.after) == wanted
    ours = {index for found in markers.marked(done.after) for index in found.lines}
    theirs = [line for index, line in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", done.after)) if index not in ours]
    left = iter(re.findall(rb"[^\n]*\n|[^\n]+", before))
    assert all(any(line.strip() == other.strip() for other in left) for line in theirs), "no other line is touched"


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ({("Config", "level"): "prof.Level.One", ("Config", "metrics"): "None"}, ["prof.Level.One", "None"]),
        ({("profile", "shapes"): "False", ("handler", "parse"): "True"}, ["False", "True"]),
        ({("profile", "activities"): "[prof.CPU,prof.NPU]"}, ["[prof.CPU, prof.NPU]"]),
        ({("profile", "stack"): "envs . STACK"}, ["envs.STACK"]),
        ({}, []),
    ],
)
def test_what_is_there_already_changes_nothing(arguments, same: list[str]) -> None:
    done = replaced(SOURCE, arguments)
    assert done.after == SOURCE.encode()
    assert [(one.before, one.after, one.changed) for one in done.settings] == [(code, code, False) for code in same]


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (("class Worker(", "class Wrker("), "0 classes named Worker (classes in the file: Wrker)"),
        (("after = 1", "class Worker: pass"), "2 classes named Worker"),
        (("def build", "def make"), "0 methods named build (methods of the class: run, make)"),
        (("    def run", "    def build(self): pass\n    def run"), "2 methods named build"),
        (("prof.Config(", "prof.Settings("), "0 calls of prof.Config in build"),
        (("metrics=None", "metrics=prof.Config()"), "2 calls of prof.Config in build"),
        (("metrics=None", "**more"), "a call of prof.Config with *args or **kwargs"),
        (("folder))", "*folder))"), "a call of prof.handler with *args or **kwargs"),
        (
            ("level=prof.Level.One", "prof.Level.One, level=1"),
            "a call of prof.Config with 1 positional arguments; at most 0",
        ),
        (("metrics=None,", "metrics='''\n''', x='''\n''',"), ""),
        (
            ("level=prof.Level.One", "x='''\n''', level=prof.Level.One"),
            "cannot be turned into a comment",
        ),
        (("# enough", "# rlpatch: vllm-ascend rollout"), "another patch has already marked"),
        (("after = 1", "after = = 1"), "not valid Python"),
        (("after = 1", "after = 1\r\ra = 2"), "a carriage return without a line feed"),
        (("after = 1", "after = 1\0"), "null bytes"),
    ],
)
def test_any_other_structure_is_refused(edit: tuple[str, str], cause: str) -> None:
    if not cause:
        assert markers.strip(replaced(SOURCE.replace(*edit)).after) == SOURCE.replace(*edit).encode()
        return
    with pytest.raises(Problem, match=re.escape(cause)) as caught:
        replaced(SOURCE.replace(*edit))
    assert caught.value.kind is Kind.STRUCTURE
    assert caught.value.where.startswith("/x/worker.py")
    assert caught.value.hint


def test_a_python_that_cannot_read_the_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ast.Module:
        raise SyntaxError("later", ("<unknown>", 3, 1, ""))

    monkeypatch.setattr(ast, "parse", fail)
    with pytest.raises(Problem, match="not valid Python: later") as caught:
        replaced(SOURCE + "# of this test alone")
    assert caught.value.where == "/x/worker.py:3"
    assert "a newer Python" in caught.value.hint


def both(first: PatchId, source: str) -> bytes:
    """``source`` with a patch that inserts and one that replaces, ``first`` before the other."""
    data = source.encode()
    for patch in (first, OTHER if first == PATCH else PATCH):
        if patch == PATCH:
            data = replaced(data).after
        else:
            data = editing.insert(data, INSERTING, [(OTHER, MEMBERS)], "0.1.0", units=("decode",), where="/x/worker.py")
    return data


@pytest.mark.parametrize("source", [SOURCE, SOURCE.split("\n\n\nafter")[0] + "\n", SOURCE.split("\n\n\nafter")[0]])
@pytest.mark.parametrize("first", [PATCH, OTHER])
def test_two_patches_go_in_and_out_in_any_order(first: PatchId, source: str) -> None:
    alone = editing.insert(source.encode(), INSERTING, [(OTHER, MEMBERS)], "0.1.0", units=("decode",), where="")
    after = both(first, source)
    compile(after, "worker.py", "exec")
    assert {found.patch: found.intact for found in markers.marked(after)} == {PATCH: True, OTHER: True}
    assert markers.strip(after, [PATCH]) == alone
    assert markers.strip(after, [OTHER]) == replaced(source).after
    assert markers.strip(after) == source.encode()


def test_present_tells_the_arguments_and_their_lines() -> None:
    lines = {
        (one.function, one.keyword): one.line for one in editing.present_settings(SOURCE.encode(), RECIPE, where="")
    }
    assert lines["Config", "level"] == 10
    assert lines["handler", "folder"] == 22
    assert ("profile", "shapes") not in lines


@given(st.text(alphabet="abc =(),\n\t :#'\"\\\r\x0c\x00é中", max_size=40), st.integers(0, len(SOURCE)))
def test_any_text_anywhere_is_either_reversible_or_refused(text: str, at: int) -> None:
    before = (SOURCE[:at] + text + SOURCE[at:]).encode()
    try:
        after = replaced(before).after
    except Problem as problem:
        refused = problem.kind
    else:
        assert markers.strip(after) == before
        for (function, keyword), code in ARGUMENTS.items():
            assert calls(after)[f"prof.{function}"][keyword] == code
        return
    assert refused in (Kind.STRUCTURE, Kind.FOREIGN_EDIT)
