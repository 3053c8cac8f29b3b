"""Insertion: exactly the lines asked for, at exactly one place, or a refusal that says what was looked for."""

from __future__ import annotations

import ast
import re
import symtable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher import editing
from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.editing import source as sources
from patcher.editing.source import SourceFile
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Around, Before, Head, Insertion, Loop, Recipe
from tests.patcher.editing.samples import MEMBERS, PATCH, RECIPE

SOURCE = '''\
class Other:
    def run(self): return 0


class Worker(Base):
    """A worker."""

    def run(self, batch):
        """Runs."""
        prepare()

        # the call
        output = self.runner.run(batch, None)
        return output

    def sleep(self, level=1):
        """Sleeps."""
        allocator.sleep()


after = 1
'''
PATCHED = '''\
class Other:
    def run(self): return 0


class Worker(Base):
    """A worker."""

    def run(self, batch):
        """Runs."""
        prepare()

        # the call
        probe(batch)  # rlpatch: vllm-ascend rollout
        output = self.runner.run(batch, None)
        return output

    def sleep(self, level=1):
        """Sleeps."""
        ends()  # rlpatch: vllm-ascend rollout
        allocator.sleep()
    # >>> rlpatch vllm-ascend rollout 0.1.0 DIGEST
    # Inserted by rlpatch; `rlpatch revert vllm-ascend` takes it out again.
    def _probe(self):
        pass
    # <<< rlpatch vllm-ascend rollout


after = 1
'''


def insert(source: str | bytes, recipe: Recipe = RECIPE) -> bytes:
    data = source.encode() if isinstance(source, str) else source
    return editing.insert(data, recipe, [(PATCH, MEMBERS)], "0.1.0", units=("decode",), where="/x/worker.py")


def test_inserting_adds_exactly_the_lines_of_the_example() -> None:
    after = insert(SOURCE)
    digest = markers.marked(after)[0].digest
    assert after.decode() == PATCHED.replace("DIGEST", digest)


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("\n", "\r\n"),
        "\ufeff" + SOURCE,
        SOURCE.replace("    ", "\t"),
        b"# -*- coding: gbk -*-\n" + SOURCE.replace("A worker", "\u5de5\u4eba").encode("gbk"),
        SOURCE.split("\n\n\nafter")[0],
        SOURCE.split("\n\n\nafter")[0].replace("\n", "\r\n"),
        SOURCE.replace(
            "        allocator.sleep()\n",
            "        allocator.sleep()\n        # trailing\n    # of the class\n",
        ),
        SOURCE.replace("    def sleep", "    @decorated\n    def sleep"),
        SOURCE.replace("self.runner.run(batch, None)", "self.runner.run(\n            batch,\n            *rest)"),
        SOURCE.replace("output =", "output="),
        SOURCE[: SOURCE.index("    def sleep")] + "\n\nafter = 1\n",
        SOURCE + "if after:\n    class Worker2:\n        pass\n",
        SOURCE.replace("after = 1", "x = '''\n# >>> not ours\n'''"),
    ],
)
def test_only_lines_are_added_whatever_the_layout(source: str | bytes) -> None:
    before = source.encode() if isinstance(source, str) else source
    after = insert(before)
    assert markers.strip(after) == before
    compile(after, "worker.py", "exec")
    assert after.count(b"# rlpatch:") == (2 if b"def sleep" in before else 1)


def test_the_same_patch_may_be_inserted_beside_another() -> None:
    other = PatchId("vllm-ascend", "graph-capture")
    once = insert(SOURCE)
    members = ("def _other(self):", "    pass")
    twice = editing.insert(once, RECIPE, [(other, members)], "0.1.0", units=("decode",), where="")
    compile(twice, "worker.py", "exec")
    assert markers.strip(twice, [PATCH]) == editing.insert(
        SOURCE.encode(), RECIPE, [(other, members)], "0.1.0", units=("decode",), where=""
    )
    assert markers.strip(twice) == SOURCE.encode()


BEHIND = SOURCE.replace("after = 1", "class After:\n    async def sync(self, step, *, mode): return step\n")


@pytest.mark.parametrize("path", ["Other.run", "After.sync"])
@pytest.mark.parametrize("parameters", [(), ("self",), ("self", "mode"), ("batch",)], ids=str)
def test_a_line_may_go_into_another_class_where_that_takes_what_it_needs(
    path: str, parameters: tuple[str, ...]
) -> None:
    source = BEHIND.replace("(self): return 0", "(self):\n        return 0").replace(
        "mode): return", "mode):\n        return"
    )
    elsewhere = Insertion(path, where=Head(), line="seen()", why="", parameters=parameters, optional=True)
    after = insert(source, RECIPE._replace(insertions=(*RECIPE.insertions, elsewhere)))
    takes = parameters in [(), ("self",)] or (path, parameters) == ("After.sync", ("self", "mode"))
    lines = [line.strip() for line in after.decode().splitlines()]
    assert (lines[lines.index(f"return {'0' if path == 'Other.run' else 'step'}") - 1][:6] == "seen()") is takes
    assert markers.strip(after) == source.encode()


def test_a_line_for_another_class_that_must_be_there_is_looked_for() -> None:
    elsewhere = Insertion("Missing.run", where=Head(), line="seen()", why="")
    with pytest.raises(Problem, match=r"found 0 functions named Missing\.run"):
        insert(SOURCE, RECIPE._replace(insertions=(*RECIPE.insertions, elsewhere)))


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (("class Worker(", "class Wrker("), "0 classes named Worker (classes in the file: Other, Wrker)"),
        (("after = 1", "class Worker: pass"), "2 classes named Worker"),
        (
            ("    def run(self, batch)", "    def walk(self, batch)"),
            "0 methods named run (methods of the class: walk, sleep)",
        ),
        (("    def sleep", "    def run(self, batch): pass\n    def sleep"), "2 methods named run"),
        (("self, batch)", "self, request)"), "run has no parameter batch"),
        (("output = self", "result = self"), "0 top-level statements “output = self.runner.run(...)”"),
        (("self.runner.run", "self.runners.run"), "0 top-level statements"),
        (("        return output", "        output = self.runner.run(1)"), "2 top-level statements"),
        (("        output = ", "        if batch: output = "), "0 top-level statements"),
        (
            (':\n        """Sleeps."""\n        allocator.sleep()', ": allocator.sleep()"),
            "a function sleep whose body is on the same line as its `def`",
        ),
        (
            ("    def sleep", "    def _probe(self): pass\n\n    def sleep"),
            "names that the class already defines outside of the lines marked by rlpatch: _probe",
        ),
        (("after = 1", "after = = 1"), "not valid Python"),
        (("after = 1", "after = 1\r\ra = 2"), "a carriage return without a line feed"),
    ],
)
def test_any_other_structure_is_refused(edit: tuple[str, str], cause: str) -> None:
    with pytest.raises(Problem) as caught:
        insert(SOURCE.replace(*edit))
    assert caught.value.kind is Kind.STRUCTURE
    assert cause in caught.value.cause
    assert caught.value.where.startswith("/x/worker.py")
    assert caught.value.hint


UPDATE = '''\
class Worker:
    @timed
    def update(self, data):
        """Updates."""
        batches = split(data)
        with self.engine:
            for epoch in range(2):
                # every batch
                for index, batch in enumerate(batches):
                    train(batch)
                    for name in names:
                        log(name)
        return metrics
'''
LOOP = Insertion(
    "update",
    where=Loop(("batches", "b", "data.parts")),
    line='{units} = self._rlpatch_stage_units("mini-batch", {units})',
    why="turns",
)


def updated(source: str, *sites: Insertion, patch: PatchId = PATCH, unit: str = "mini-batch") -> str:
    recipe = RECIPE._replace(method="update", insertions=sites or (LOOP,))
    return editing.insert(
        source.encode(), recipe, [(patch, MEMBERS)], "0.1.0", units=(unit,), where="/x/worker.py"
    ).decode()


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (("", ""), "                # every batch\n                batches = self._rlpatch_rollout_units("),
        (("enumerate(batches)", "batches"), "\n                batches = self."),
        (("batches", "b"), "\n                b = self."),
        (("enumerate(batches)", "data.parts"), "\n                data.parts = self."),
        (
            ("        with self.engine:\n            for", "        try:\n            for"),
            "\n                batches = self.",
        ),
        (
            ("                        log(name)", "                        for x in f(batches): log(name)"),
            "batches = self.",
        ),
        (
            ("        return", "        def inner():\n            for x in batches: pass\n        return"),
            "batches = self.",
        ),
    ],
    ids=range(7),
)
def test_a_loop_is_found_at_any_depth(edit: tuple[str, str], line: str) -> None:
    source = UPDATE.replace(*edit) if edit[0] else UPDATE
    if "try" in edit[1]:
        source = source.replace("        return", "        finally:\n            pass\n        return")
    after = updated(source)
    assert line in after
    assert after.count("# rlpatch:") == 1
    assert markers.strip(after.encode()).decode() == source
    compile(after, "worker.py", "exec")


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (("enumerate(batches)", "zip(batches, names)"), "0 loops over batches or b or data.parts in update"),
        (("in names", "in batches"), "2 loops over batches or b or data.parts in update"),
        (("enumerate(batches)", "enumerate()"), "0 loops"),
        (("in enumerate(batches)", "in self.batches"), "0 loops"),
    ],
)
def test_any_other_number_of_loops_is_refused(edit: tuple[str, str], cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        updated(UPDATE.replace(*edit))
    assert (caught.value.kind, caught.value.where) == (Kind.STRUCTURE, "/x/worker.py:3")


START = """\
class Worker:
    def start(self) -> int:
        for size in sizes:
            self.runner.dummy(size)

        used = 0
        if not self.eager:
            # the graphs
            used = self.runner.capture()
        # what is left
        return used
"""
AROUND = Insertion("start", where=Around("self.runner.capture(...)", after="leave()"), line="enter()", why="captures")
PAIR = [
    "enter()  # rlpatch: vllm-ascend rollout",
    "used = self.runner.capture()",
    "leave()  # rlpatch: vllm-ascend rollout",
]


def started(source: str, site: Insertion = AROUND) -> str:
    recipe = RECIPE._replace(method="start", insertions=(site,))
    return editing.insert(
        source.encode(), recipe, [(PATCH, MEMBERS)], "0.1.0", units=("whole",), where="/x/worker.py"
    ).decode()


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        (("", ""), PAIR),
        (("used = self.runner.capture()", "self.runner.capture()"), [PAIR[0], "self.runner.capture()", PAIR[2]]),
        (("used = self", "used: int = self"), [PAIR[0], "used: int = self.runner.capture()", PAIR[2]]),
        (("used = self", "self.used = used = self"), [PAIR[0], "self.used = used = self.runner.capture()", PAIR[2]]),
        (
            ("capture()", "capture(sizes, deep=True)"),
            [PAIR[0], "used = self.runner.capture(sizes, deep=True)", PAIR[2]],
        ),
        (("        if not self.eager:", "        with context():"), PAIR),
        (("        if not self.eager:\n            # the graphs\n    ", ""), PAIR),
        (("            # the graphs", "            more()\n\n            # the graphs"), PAIR),
        (("capture()\n", "capture()\n            # done\n\n            more()\n"), PAIR),
        (("capture()\n", "capture()  # all\n"), [PAIR[0], "used = self.runner.capture()  # all", PAIR[2]]),
        (("used = 0", "used: int"), PAIR),
        (("return used", "def later():\n            self.runner.capture()\n        return used"), PAIR),
    ],
    ids=range(12),
)
def test_a_line_goes_in_front_of_a_call_at_any_depth_and_one_behind_it(edit: tuple[str, str], lines: list[str]) -> None:
    source = START.replace(*edit) if edit[0] else START
    after = started(source)
    at = after.splitlines().index(next(line for line in after.splitlines() if line.strip() == PAIR[0]))
    assert [line.strip() for line in after.splitlines()[at : at + 3]] == lines
    assert after.count("# rlpatch:") == 2
    assert markers.strip(after.encode()).decode() == source
    compile(after, "worker.py", "exec")


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (
            ("capture()", "record()"),
            "0 statements of the form “self.runner.capture(...)” or “x = self.runner.capture(...)” in start",
        ),
        (("used = self.runner.capture()", "return self.runner.capture()"), "0 statements of the form “"),
        (("capture()", "capture().bytes"), "0 statements of the form “"),
        (("used = self.runner.capture()", "used = 1 + self.runner.capture()"), "0 statements of the form “"),
        (("used = self.runner.capture()", "used = 1; self.runner.capture()"), "0 statements of the form “"),
        (("used = self.runner.capture()", "used += self.runner.capture()"), "0 statements of the form “"),
        (
            (
                "        if not self.eager:\n            # the graphs\n            used",
                "        if not self.eager: used",
            ),
            "0 stat",
        ),
        (("self.runner.dummy(size)", "self.runner.capture(size)"), "2 statements of the form “"),
    ],
)
def test_any_other_number_of_calls_is_refused(edit: tuple[str, str], cause: str) -> None:
    with pytest.raises(Problem, match=re.escape(cause)) as caught:
        started(START.replace(*edit))
    assert (caught.value.kind, caught.value.where) == (Kind.STRUCTURE, "/x/worker.py:2")


def test_a_line_may_go_behind_a_statement_of_the_top_level_too() -> None:
    top = START.replace("        for size in sizes:\n            self", "        self")
    site = Insertion(
        "start",
        where=Around("self.runner.dummy(...)", after="leave()", nested=False),
        line="enter()",
        why="captures",
    )
    after = started(top, site)
    assert (
        "enter()  # rlpatch: vllm-ascend rollout\n        self.runner.dummy(size)\n        leave()  # rlpatch" in after
    )
    assert markers.strip(after.encode()).decode() == top
    with pytest.raises(Problem, match=r"0 top-level statements of the form “.*” or “x = .*” in start"):
        started(START, site)  # it is nested there


MODULE = """\
def train(batches):
    step = 0

    def forward(batch):
        return batch

    return [forward(batch) for batch in batches]
"""


def test_lines_go_into_functions_of_a_module_and_into_those_within_them() -> None:
    heads = [Insertion(path, where=Head(), line=f"{name}()", why="") for path, name in
             (("train", "begins"), ("train.forward", "starts"))]  # fmt: skip
    ends = Insertion("train", where=Before("return ..."), line="ends()", why="")
    for sites in ((*heads, ends), (ends, *reversed(heads))):
        recipe = RECIPE._replace(class_name="", method="train", insertions=sites)
        after = editing.insert(
            MODULE.encode(), recipe, [(PATCH, ["pass"])], "1", units=(), where="/x/steps.py"
        ).decode()
        ours = [line.strip() for line in after.splitlines() if line.endswith("# rlpatch: vllm-ascend rollout")]
        assert [line.partition("  ")[0] for line in ours] == ["begins()", "starts()", "ends()"]
        assert "        starts()  # rlpatch: vllm-ascend rollout\n        return batch\n" in after
        assert markers.strip(after.encode()).decode() == MODULE


def test_a_line_carries_the_name_of_its_patch() -> None:
    after = updated(UPDATE, patch=PatchId("verl", "compute-log-prob", "ref"))
    assert (
        'batches = self._rlpatch_compute_log_prob_ref_units("mini-batch", batches)  # rlpatch: verl compute-log-prob ref'
        in after
    )


def test_a_site_may_be_for_some_windows_only() -> None:
    leave = Insertion("update", where=Before("return ..."), line="leave()", why="ends", windows=("micro-batch",))
    assert "leave()  # rlpatch" not in updated(UPDATE, LOOP, leave)
    assert "        leave()  # rlpatch: vllm-ascend rollout\n        return metrics" in updated(
        UPDATE, LOOP, leave, unit="micro-batch"
    )


@pytest.mark.parametrize(
    ("edit", "cause"),
    [(("return metrics", "pass"), "0 top-level statements"), (("    @timed", "    @timed"), "")],
)
def test_any_return_is_one_only_if_it_is_the_only_one(edit: tuple[str, str], cause: str) -> None:
    leave = Insertion("update", where=Before("return ..."), line="leave()", why="ends")
    source = UPDATE.replace(*edit)
    if cause:
        with pytest.raises(Problem, match=cause):
            updated(source, leave)
    else:
        updated(source, leave)
        updated(source.replace("return metrics", "return metrics, 1"), leave)


@pytest.mark.parametrize(
    "source",
    [
        b"\x00",
        b"# coding: nonsense\n",
        b"\xff\xfe=1\n",
        b"class Worker: pass\n",
        b"x = 1\n   ",
        b"# \xe9\n" + SOURCE.encode(),
        SOURCE.encode() + b"# \xe9\n",
        SOURCE.replace("return output", "return output \\\n").encode(),
        SOURCE.encode() + b"x = [" * 300,
    ],
    ids=range(9),
)
def test_a_file_that_cannot_be_read_or_written_back_is_refused(source: bytes) -> None:
    with pytest.raises(Problem) as caught:
        insert(source)
    assert caught.value.kind is Kind.STRUCTURE


def test_a_file_is_parsed_once_before_and_once_after(monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{SOURCE}\n# of this test alone".encode()
    parsed: list[object] = []

    def counted(read: Any) -> Any:
        def reading(text: str | bytes, *words: Any, **options: Any) -> Any:
            parsed.extend([text] if isinstance(text, bytes) else [])
            return read(text, *words, **options)

        return reading

    monkeypatch.setattr(ast, "parse", counted(ast.parse))
    monkeypatch.setattr(symtable, "symtable", counted(symtable.symtable))
    after = insert(source)
    editing.fingerprint(source, "Worker", "run")
    assert parsed == [source, after]


def test_what_would_not_be_python_is_not_written() -> None:
    broken = [(PATCH, ["def _probe(self):", "    return ="])]
    with pytest.raises(Problem) as caught:
        editing.insert(SOURCE.encode(), RECIPE, broken, "0.1.0", units=("decode",), where="/x/worker.py")
    assert caught.value.kind is Kind.STRUCTURE
    assert caught.value.where.startswith("/x/worker.py")


@pytest.mark.parametrize("head", ["def late():\n    x = 1\n    global x\n\n\n", "from __future__ import of_tomorrow\n"])
def test_what_python_parses_and_does_not_compile_is_refused(head: str) -> None:
    with pytest.raises(Problem) as caught:
        insert(head + SOURCE)
    assert caught.value.kind is Kind.STRUCTURE


def test_what_would_not_stand_in_the_class_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever draws it elsewhere: into another class, where nothing finds it."""
    with_edits = SourceFile.with_edits

    def elsewhere(file: SourceFile, _pieces: object, _target: object, block: list[str]) -> bytes:
        other = sources.classes(file.tree)[0]
        return with_edits(file, (), other, block)

    monkeypatch.setattr(SourceFile, "with_edits", elsewhere)
    with pytest.raises(Problem, match="with _probe added to Worker, the file would not be valid Python") as caught:
        insert(SOURCE.replace("return 0", "\n        return 0").encode())
    assert caught.value.kind is Kind.STRUCTURE


def test_a_fingerprint_ignores_layout_and_comments_and_sees_code() -> None:
    base = editing.fingerprint(SOURCE.encode(), "Worker", "run")
    layout = SOURCE.replace("        # the call\n", "").replace("(batch, None)", "(\n  batch, None)")
    assert editing.fingerprint(layout.encode(), "Worker", "run") == base
    assert editing.fingerprint(SOURCE.replace("None", "1").encode(), "Worker", "run") != base
    assert editing.fingerprint(SOURCE.encode(), "Worker", "walk") == ""
    # A constant of this test: the value must not depend on the Python that runs rlpatch.
    assert (
        editing.fingerprint(b"class A:\n def f(self, a=1, *, b: int = 2) -> str:\n  return f'{a!r}{b:>3}'\n", "A", "f")
        == "1fa79d79ba3b"
    )


@given(st.text(alphabet="abc =()\n\t :#'\"\\\r\x0c\x00é中", max_size=60), st.integers(0, len(SOURCE)))
def test_any_text_anywhere_is_either_reversible_or_refused(text: str, at: int) -> None:
    before = (SOURCE[:at] + text + SOURCE[at:]).encode()
    try:
        after = insert(before)
    except Problem as problem:
        refused = problem.kind
    else:
        assert markers.strip(after) == before
        ast.parse(after)
        return
    assert refused in (Kind.STRUCTURE, Kind.FOREIGN_EDIT)


CODE = [
    "x = 1\n",
    "class Other:\n    def run(self):\n        return 0\n",
    "class Other:\n  if 1:\n    def run(self):\n        return 0\n",
    "class Other: pass\n",
    "def run():\n    def run():\n            return 0\n",
    "if x:\n    class Worker:\n        def run(self): return 0\n",
]
WORKER = "class Worker:\n"
METHODS = [
    "    x = 1\n",
    "    def walk(self):\n        if self:\n                return 0\n",
    "    class Worker:\n        def run(self):\n            return 0\n",
]
RUN = "    def run(self, batch):\n        output = self.runner.run(batch, None)\n        return output\n"
comments = st.lists(
    st.builds(lambda n, end: " " * n + "# odd\n" + end, st.integers(0, 14), st.sampled_from(["", "\n"]))
)


@st.composite
def modules(draw: st.DrawFn) -> str:
    """A class to patch between others, with comments of any depth between any two of their parts and at the end."""

    def some(parts: list[str]) -> list[str]:
        return draw(st.lists(st.sampled_from(parts), max_size=2))

    parts = [*some(CODE), WORKER, *some(METHODS), RUN, *some(METHODS), *some(CODE)]
    text = "".join(part + "".join(draw(comments)) for part in parts)
    return text if draw(st.booleans()) else text.rstrip("\n")


@given(modules())
def test_comments_of_any_depth_draw_the_block_nowhere_else(text: str) -> None:
    before = text.encode()
    after = insert(before, RECIPE._replace(insertions=RECIPE.insertions[:1]))
    assert markers.strip(after) == before
    (worker,) = (node for node in ast.parse(after).body if isinstance(node, ast.ClassDef) and node.name == "Worker")
    assert "_probe" in [getattr(node, "name", "") for node in worker.body]


@pytest.mark.parametrize("rest", ["", "        else:\n            used = 1\n"])
def test_a_line_may_go_behind_a_statement_with_a_body(rest: str) -> None:
    source = START.replace("        # what is left\n", f"{rest}        # what is left\n")
    site = Insertion(
        "start", where=Around("if not self.eager: ...", after="leave()", nested=False), line="enter()", why="captures"
    )
    after = started(source, site)
    assert "enter()  # rlpatch: vllm-ascend rollout\n        if not self.eager:\n" in after
    assert f"{rest}        leave()  # rlpatch: vllm-ascend rollout\n        # what is left\n" in after
    assert markers.strip(after.encode()).decode() == source


def test_what_meets_at_a_statement_is_nested_and_the_last_head_is_the_first() -> None:
    first, last = (Insertion("update", where=Head(), line=f"head{n}()", why="") for n in (1, 2))
    outer, inner = (
        Insertion("update", where=Around("split(...)", f"out{n}()"), line=f"in{n}()", why="") for n in (1, 2)
    )
    ours = [
        line.partition("  # rlpatch")[0].strip() for line in updated(UPDATE, first, outer, inner, last).splitlines()
    ]
    at = ours.index("batches = split(data)")
    assert ours[at - 4 : at + 3] == [
        "head2()", "head1()", "in1()", "in2()", "batches = split(data)", "out2()", "out1()",
    ]  # fmt: skip


def test_what_goes_behind_a_body_goes_behind_its_comments() -> None:
    source = UPDATE.replace(
        "        return metrics\n", "            # of the body\n        # of the next one\n        return metrics\n"
    )
    around = Insertion("update", where=Around("with self.engine: ...", "left()"), line="entered()", why="")
    lines = [line.partition("  # rlpatch")[0].strip() for line in updated(source, around).splitlines()]
    assert lines[lines.index("# of the body") : lines.index("return metrics")] == [
        "# of the body", "left()", "# of the next one",
    ]  # fmt: skip
