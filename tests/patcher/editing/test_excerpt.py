"""What LibCST is given of a file: what is left out of it changes no byte of what comes out."""

from __future__ import annotations

import ast
import re
from unittest import mock

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher import editing
from patcher.changes import markers
from patcher.editing import excerpt
from patcher.editing import source as sources
from patcher.messages.errors import Problem
from tests.patcher.editing.samples import MEMBERS, PATCH, RECIPE

SOURCE = '''\
"""A module."""
import os

# about it
if os.name:
    x = """
class Worker:
"""


class Worker(Base):
    """A worker."""

    kept: int = 0

    @property
    # of its own
    def first(self):
        return """
    def run(self, batch):
"""

    # in front
    @timed(
        deep=True,
    )
    def run(self, batch):
        # the call
        output = self.runner.run(batch, None)
        return output

    def sleep(self, level=1): pass

    # a last one
    last = (
        1,
    )  # behind it
    # in the class
# behind the class


@late
class Other:
    def run(self): return 0


after = 1

end = 2  # of the file'''
PART = """\



class Worker(Base):

    @timed(
        deep=True,
    )
    def run(self, batch):
        # the call
        output = self.runner.run(batch, None)
        return output


    last = (
        1,
    )  # behind it
    # in the class
# behind the class





end = 2  # of the file"""


def without_blanks(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def of(source: str) -> excerpt.Excerpt:
    return excerpt.of(source.encode(), ast.parse(source.encode()), "Worker", ["run"])


def test_what_something_goes_into_is_kept_and_the_last_of_each_block() -> None:
    part = of(SOURCE)
    assert without_blanks(part.text.decode()) == without_blanks(PART)
    assert part.put_back(part.text).decode() == SOURCE
    ours = part.text.replace(b"        # the call\n", b"        # the call\n        ours()\n") + b"\n# ours"
    assert part.put_back(ours).decode() == SOURCE.replace("# the call\n", "# the call\n        ours()\n") + "\n# ours"


@pytest.mark.parametrize(
    ("edit", "left"),
    [
        (("import os", "import os; import re"), "import os"),
        (("    kept: int = 0", "    kept = 0; more = 1"), "kept = 0"),
        (("class Other", "class Worker"), "def run(self): return 0"),
        (("    last = (", "    def run(self): pass\n    last = ("), "def run(self): pass"),
        (("class Worker(Base)", "class Other(Base)"), "end = 2"),
    ],
)
def test_what_decides_is_kept(edit: tuple[str, str], left: str) -> None:
    part = of(SOURCE.replace(*edit))
    assert left in part.text.decode()


@pytest.mark.parametrize("head", ["\ufeff", "# -*- coding: utf-8 -*-\n", "#!python\n# vim: encoding=utf-8\n"])
def test_a_file_that_declares_its_encoding_is_read_as_a_whole(head: str) -> None:
    assert of(head + SOURCE).text.decode() == head + SOURCE


def test_the_lines_that_are_left_out_stay() -> None:
    given: list[bytes] = []
    parse = sources.parse

    def parsed(part: bytes, where: str) -> cst.Module:
        given.append(part)
        return parse(part, where)

    with mock.patch.object(sources, "parse", parsed):
        after = insert(SOURCE.encode())
    assert given == [of(SOURCE).text]
    assert after == insert(SOURCE.encode(), whole=True)


def test_what_does_not_fit_is_told_of_the_whole_file() -> None:
    with pytest.raises(Problem) as caught:
        insert(SOURCE.replace("self.runner.run", "self.walk").replace("class Other", "class Worker").encode())
    assert caught.value.cause.endswith("found 2 classes of that name; the file has: Worker, Worker")
    with pytest.raises(Problem) as caught:
        insert(SOURCE.replace("def run(self, batch):\n", "def walk(self, batch):\n").encode())
    assert caught.value.cause.endswith("found 0 methods run; the class has: first, walk, sleep")
    with pytest.raises(Problem, match="_probe in the class already"):
        insert(SOURCE.replace("def first", "def _probe").encode())


def test_a_comment_as_deep_as_the_class_behind_another_one_does_not_draw_the_block_there() -> None:
    head, _, rest = SOURCE.partition("    def sleep")
    other = "def run(self):\n        return 0\n        # deep\n"
    source = (
        head.rstrip() + "\n\n\n" + rest[rest.index("@late") :].replace("def run(self): return 0\n", other)
    ).encode()
    after = insert(source)
    assert after == insert(source, whole=True)
    assert after.index(b"_probe") < after.index(b"class Other")


def test_a_block_that_another_class_drew_is_put_in_from_the_whole_file() -> None:
    """As if the excerpt had a flaw: the one that left a comment behind a class that it left out, say."""
    source = (
        b"class Worker:\n    def run(self, batch):\n        output = self.runner.run(batch)\n\n\n"
        b"class Other:\n    def run(self):\n        return 0\n        # deep\n\n\nend = 2\n"
    )
    expected, lines = insert(source, whole=True), source.splitlines(keepends=True)
    flawed = excerpt.Excerpt(lines, [at for at, line in enumerate(lines) if at < 3 or b"deep" in line or at > 8])
    with mock.patch.object(excerpt, "of", return_value=flawed):
        assert inserted(source) == expected


def insert(source: bytes, *, whole: bool = False) -> bytes:
    with mock.patch.object(excerpt, "of", (lambda source, *_: excerpt.whole(source)) if whole else excerpt.of):
        return inserted(source)


def inserted(source: bytes) -> bytes:
    recipe = RECIPE._replace(insertions=RECIPE.insertions[:1])
    return editing.insert(source, recipe, [(PATCH, MEMBERS)], "0.1.0", units=("decode",), where="/x/worker.py")


def alike(after: bytes, expected: bytes) -> bool:
    """But for the steps of our block, which are those of the first block that LibCST was given, and what they give."""
    ours, theirs = (re.sub(rb"(?m)^[ \t]+|rlpatch .* \w{16}$", b"", text) for text in (after, expected))
    return ours == theirs


@given(st.text(alphabet="abc =()\n\t :;@#'\"\\\x0cé", max_size=60), st.integers(0, len(SOURCE)))
def test_any_text_anywhere_gives_the_lines_of_the_whole_file(text: str, at: int) -> None:
    """With the steps of the first block of the excerpt, where the file begins with others."""
    before = (SOURCE[:at] + text + SOURCE[at:]).encode()
    try:
        expected = insert(before, whole=True)
    except Problem:
        return
    after = insert(before)
    assert markers.strip(after) == before
    assert alike(after, expected)


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
    try:
        expected = insert(before, whole=True)
    except Problem as problem:  # LibCST does not always write the last line of all back
        refused = problem.cause
    else:
        refused, after = "", insert(before)
        assert markers.strip(after) == before
        assert alike(after, expected)
        (worker,) = (node for node in ast.parse(after).body if isinstance(node, ast.ClassDef) and node.name == "Worker")
        assert "_probe" in [getattr(node, "name", "") for node in worker.body]
    assert not refused or "LibCST does not write this file back" in refused
