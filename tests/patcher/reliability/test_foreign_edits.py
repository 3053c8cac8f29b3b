"""Others edit a patched file: a revert takes out our lines and keeps theirs, or refuses and changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patcher.changes import markers
from patcher.messages.errors import Kind, Problem
from tests.matrix import examples
from tests.patcher.editing import arguments
from tests.patcher.reliability import package
from tests.patcher.reliability.faulty import SECOND, second, second_lines
from tests.patcher.reliability.package import V0, V1, Picture

pytestmark = pytest.mark.hypothesis  # which pytest cannot see: it is used within the tests

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")
WORDS = {
    "apply": APPLY,
    "another window": ("apply", "vllm-ascend", "--prefill", "0:4", "--save-path", "/tmp/traces"),
    "revert rollout": ("revert", "--stage", "rollout"),
    "revert second": ("revert", "--stage", SECOND.stage),
    "revert": ("revert",),
}
FOREIGN = st.sampled_from(
    (
        b"# a comment of theirs",
        b"",
        b"        ",
        b"    LIMIT = 3",
        b"        print('debug')",
        b"import os",
        b"\x0c",
        b"\ttabbed = 1",
        b"# \xb9\xa4\xc8\xcb in gbk",
        b"# \xff\xfe",
        b"# about rlpatch: see the wiki",
        b"x = '# >>> rlpatch'",
        b'"""',
        b"def f(): return 1",
    )
)
OURS_KEPT = st.sampled_from((lambda line: b"  " + line, lambda line: line + b" \t", lambda line: b"\t" + line.lstrip()))
OURS_CHANGED = st.sampled_from(
    (
        lambda line: b"",
        lambda line: line + b"\n" + line,
        lambda line: line.replace(b"rlpatch", b"rIpatch", 1) if b"rlpatch" in line else line + b" + 1",
        lambda line: line + b"  # noqa",
    )
)


class Line(NamedTuple):
    """One line without its end, and the patch that it belongs to (None: theirs)."""

    text: bytes
    patch: object = None


class Edited(NamedTuple):
    """A file that others have edited: its lines, its line end, whether the last line has one.

    ``touched`` says that a line of ours is not as we wrote it, or that one of theirs stands inside our block.
    """

    lines: list[Line]
    end: bytes
    final: bool
    touched: bool

    def text(self, *, ours: bool) -> bytes:
        """The file as it is, or as it would be had the same edits been made to the original."""
        kept = [line.text for line in self.lines if ours or line.patch is None]
        return self.end.join(kept) + (self.end if self.final and kept else b"")


def lines_of(data: bytes) -> list[Line]:
    """The lines of a file that ends with a newline, each with its owner."""
    owner = {index: found.patch for found in markers.marked(data) for index in found.lines}
    return [Line(text, owner.get(index)) for index, text in enumerate(data.split(b"\n")[:-1])]


def inside(lines: list[Line], gap: int) -> bool:
    """Whether what is inserted at ``gap`` stands inside a block, which is where both neighbours are ours."""
    if not 0 < gap < len(lines):
        return False
    above, below = lines[gap - 1], lines[gap]
    # Blocks of two patches may touch; between them there is room for lines of others.
    return above.patch is not None and above.patch == below.patch and b"<<< rlpatch" not in above.text


@st.composite
def edited(draw: st.DrawFn, data: bytes) -> Edited:
    """Up to five edits of ``data``: lines inserted, deleted, replaced, ours changed, line ends converted."""
    lines, touched = lines_of(data), False
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(("insert", "insert", "touching", "delete", "replace", "indent", "change")))
        ours = [index for index, line in enumerate(lines) if line.patch is not None]
        theirs = [index for index, line in enumerate(lines) if line.patch is None]
        if kind == "insert":
            gap = draw(st.integers(0, len(lines)))
            touched |= inside(lines, gap)
            lines[gap:gap] = map(Line, draw(st.lists(FOREIGN, min_size=1, max_size=3)))
        elif kind == "touching" and ours:
            gap = draw(st.sampled_from(ours)) + draw(st.integers(0, 1))
            touched |= inside(lines, gap)
            lines.insert(gap, Line(draw(FOREIGN)))
        elif kind == "delete" and theirs:
            del lines[draw(st.sampled_from(theirs))]
        elif kind == "replace" and theirs:
            lines[draw(st.sampled_from(theirs))] = Line(draw(FOREIGN))
        elif kind == "indent" and ours:
            index = draw(st.sampled_from(ours))
            lines[index] = lines[index]._replace(text=draw(OURS_KEPT)(lines[index].text))
        elif kind == "change" and ours:
            index = draw(st.sampled_from(ours))
            lines[index] = lines[index]._replace(text=draw(OURS_CHANGED)(lines[index].text))
            touched = True
    return Edited(lines, draw(st.sampled_from((b"\n", b"\n", b"\r\n"))), draw(st.booleans()), touched)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Both workers with both stages, by the real command line."""
    site = package.install(tmp_path_factory.mktemp("edits") / "site")
    assert package.rlpatch(site, *APPLY).exit_code == 0
    return {file: second_lines((site / file).read_bytes()) for file in (V0, V1)}


def limited(request: pytest.FixtureRequest, few: int, many: int) -> settings:
    """Hypothesis' settings for this run."""
    thorough = request.config.getoption("--thorough", default=False)
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=many if thorough else examples(few), suppress_health_check=slow, deadline=None, database=None
    )


def stripped(data: bytes) -> bytes | Problem:
    """What a revert leaves of ``data``, or why it refuses."""
    try:
        return markers.strip(data)
    except Problem as problem:
        return problem


@pytest.mark.parametrize("file", [V0, V1])
@pytest.mark.parametrize("stages", [1, 2])
def test_their_lines_stay_and_ours_go_or_nothing_changes(request, patched, file: str, stages: int) -> None:
    data = patched[file] if stages == 2 else markers.strip(patched[file], [SECOND])
    assert b"".join(line.text + b"\n" for line in lines_of(data) if line.patch is None).decode() == package.FILES[file]

    @limited(request, 100, 5000)
    @given(edited(data))
    def check(edit: Edited) -> None:
        left = stripped(edit.text(ours=True))
        if isinstance(left, Problem):
            assert left.kind is Kind.FOREIGN_EDIT
            assert edit.touched, left
        else:
            assert edit.touched or left == edit.text(ours=False)
            rest = iter(left.split(edit.end))
            assert all(line.text in rest for line in edit.lines if line.patch is None)

    check()


@st.composite
def edited_around(draw: st.DrawFn, data: bytes) -> tuple[bytes, bytes, bool]:
    """Edits of a file with replaced lines: the file, what it would be had they been made to the original, and whether
    a line of ours was changed.
    """
    (found,) = markers.marked(data)
    back = iter(markers.strip(data).split(b"\n"))
    lines: list[tuple[bytes, bytes | None]] = []
    for index, text in enumerate(data.split(b"\n")[:-1]):
        ours = index in found.lines and index not in found.replaced
        lines.append((text, None if ours else next(back)))
    block = {text.strip() for text, _ in lines if b"<<< rlpatch" in text or b"rlpatch changed" in text}
    touched = False
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        text, before = lines[at]
        kind = draw(st.sampled_from(("insert", "insert", "delete", "indent", "change")))
        if kind == "insert" and text.strip() not in block:
            line = draw(FOREIGN)
            lines.insert(at, (line, line))
        elif kind == "delete" and text == before:
            del lines[at]
        elif kind == "indent" and before is None:
            lines[at] = (b"  " + text + b" \t", None)
        elif kind == "change" and text != before:
            lines[at] = (text.replace(b"rlpatch", b"rIpatch", 1), before)
            touched = True
    end = draw(st.sampled_from((b"\n", b"\r\n")))
    shown, originals = [text for text, _ in lines], [before for _, before in lines if before is not None]
    return end.join(shown) + end, end.join(originals) + end, touched


def test_replaced_lines_come_back_among_their_edits_or_nothing_changes(request) -> None:
    @limited(request, 200, 5000)
    @given(edited_around(arguments.replaced(arguments.SOURCE).after))
    def check(edit: tuple[bytes, bytes, bool]) -> None:
        data, wanted, touched = edit
        left = stripped(data)
        if isinstance(left, Problem):
            assert left.kind is Kind.FOREIGN_EDIT
            assert touched, left
        else:
            assert left == wanted
            assert not touched

    check()


def test_the_command_line_reverts_exactly_or_refuses_and_writes_nothing(request, patched, tmp_path: Path) -> None:
    template = package.install(tmp_path / "template")
    assert package.rlpatch(template, *APPLY).exit_code == 0
    second(template)
    assert {file: (template / file).read_bytes() for file in patched} == patched

    @limited(request, 25, 1000)
    @given(st.tuples(edited(patched[V0]), edited(patched[V1])))
    def check(edits: tuple[Edited, Edited]) -> None:
        site = tmp_path / "site"
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(template, site)
        for file, edit in zip((V0, V1), edits, strict=True):
            (site / file).write_bytes(edit.text(ours=True))
        before, store = Picture(site), files_of(site / ".rlpatch")
        said = package.rlpatch(site, "revert")
        if said.exit_code == 0:
            for file, edit in zip((V0, V1), edits, strict=True):
                assert edit.touched or (site / file).read_bytes() == edit.text(ours=False)
            assert not (site / ".rlpatch").exists()
        else:
            assert said.exit_code == Kind.FOREIGN_EDIT.exit_code, said.output
            assert any(edit.touched for edit in edits)
            assert (Picture(site), files_of(site / ".rlpatch")) == (before, store)

    check()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


STEPS = ("edit V0", "edit V1", "apply", "another window", "second stage", "revert rollout", "revert second", "revert")


def test_edits_before_between_and_after_applies(request, tmp_path: Path) -> None:
    template = package.install(tmp_path / "template")

    @limited(request, 8, 300)
    @given(st.data(), st.lists(st.sampled_from(STEPS), min_size=3, max_size=9))
    def check(data: st.DataObject, steps: list[str]) -> None:
        site = tmp_path / "site"
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(template, site)
        theirs = {file: text.encode() for file, text in package.FILES.items() if file in (V0, V1)}
        for step in (*steps, "revert"):
            if step.startswith("edit"):
                file = V0 if step == "edit V0" else V1
                edit = data.draw(edited((site / file).read_bytes()).filter(lambda edit: harmless(edit)), label=step)
                (site / file).write_bytes(edit.text(ours=True))
                theirs[file] = edit.text(ours=False)
            elif step == "second stage":
                second(site)
            else:
                assert package.rlpatch(site, *WORDS[step]).exit_code in (0, 2, 4)  # 4: they have broken the class
            assert {file: markers.strip((site / file).read_bytes()) for file in theirs} == theirs, step
        assert {file: (site / file).read_bytes() for file in theirs} == theirs

    check()


def harmless(edit: Edited) -> bool:
    """Whether the next step can go on from here: our lines are as they were, and the lines can be told apart."""
    return not edit.touched and edit.final and edit.end == b"\n"
