"""Marks: found, checked and taken out, in files of any encoding."""

from __future__ import annotations

import pytest

from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.messages.errors import Kind, Problem
from tests.patcher.marked import BODY, ONE, TWO, marked


def test_strip_is_the_inverse() -> None:
    assert markers.strip(marked(BODY)) == BODY.encode()


@pytest.mark.parametrize("first", [ONE, TWO])
def test_one_patch_of_two_goes_and_the_other_stays(first: PatchId) -> None:
    both = marked(marked(BODY).decode(), TWO)
    second = TWO if first == ONE else ONE
    assert markers.strip(both, [first]) == marked(BODY, second)
    assert markers.strip(markers.strip(both, [first]), [second]) == BODY.encode()


@pytest.mark.parametrize(
    ("convert", "name"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), "CRLF"),
        (lambda data: b"\xef\xbb\xbf" + data, "BOM"),
        (lambda data: data.replace(b"X = 1", "X = '\u4e2d'".encode("gbk")), "gbk"),
        (lambda data: data.replace(b"X = 1", b"X = '\xff\xfe'"), "not UTF-8"),
        (lambda data: data.replace(b"\n\nX", b"\n\x0c\nX"), "form feed"),
        (lambda data: b"import os\n" + data + b"Y = 2\n", "foreign lines above and below"),
        (
            lambda data: data.replace(b"        return 1", b"        h()\n        return 1"),
            "a foreign line between ours",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_others_did_stays(convert, name) -> None:
    assert markers.strip(convert(marked(BODY))) == convert(BODY.encode())


def replacing(text: str, line: bytes, patch: PatchId = ONE) -> bytes:
    """``text`` with another line for ``line``, and the block of ``patch`` behind it."""
    end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
    block = b"".join(mark.encode() + end for mark in (markers.begin(patch, "0.1.0"), markers.end(patch)))
    new = b"        return 2  " + markers.tag(patch).encode() + end
    return markers.seal(
        text.encode().replace(b"        return 1\n", markers.as_was_comment(line, patch) + new) + block, patch
    )


LINES = (
    *(
        b"        return 1\n",
        b"        return 1\r\n",
        b"\treturn 1 \t\n",
        b"x\n",
        b"\n",
        b"   \t\n",
        b"\r\n",
        b"  \x0c x\n",
    ),
    *(
        b"  # was: x\n",
        b"  # was: x  # rlpatch\n",
        b"  x  # a  # b  \n",
        b"'\xff\xfe'\n",
        b"  '\xb9\xa4'\\\n",
        b"# was: \n",
    ),
)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_was_replaced_comes_back(line: bytes) -> None:
    after = replacing(BODY, line)
    assert markers.strip(after) == BODY.encode().replace(b"        return 1\n", line)
    (found,) = markers.marked(after)
    assert (found.intact, found.replaced, len(found.lines)) == (True, (2,), 4)


def test_a_line_has_one_mark() -> None:
    with pytest.raises(ValueError, match="rlpatch: verl"):
        markers.as_was_comment(markers.as_was_comment(b"x = 1\n", TWO), ONE)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.replace(b"return 1", b"return 9"),
        lambda data: data.replace(b"# was: return", b"# was:  return"),
        lambda data: data.replace(b"# was: ", b"# "),
        lambda data: data.replace(b"# \xe9", b"# \xe8"),
        lambda data: data.replace(b"return 2", b"return 3"),
        lambda data: data.replace(b"  # \xe9  # rlpatch: vllm-ascend rollout\n", b"\n"),
        lambda data: b"".join(line for line in data.splitlines(keepends=True) if b"# was" not in line),
    ],
    ids=range(7),
)
def test_a_line_that_would_come_back_otherwise_is_refused(edit) -> None:
    after = replacing(BODY, b"        return 1  # \xe9\n")
    assert edit(after) != after
    with pytest.raises(Problem, match="somebody changed the lines of the patch “"):
        markers.strip(edit(after))


def test_the_order_of_lines_that_come_back_counts() -> None:
    lines = [markers.as_was_comment(f"    f({n},\n".encode(), ONE) for n in range(2)]
    block = f"{markers.begin(ONE, '0.1.0')}\n{markers.end(ONE)}\n".encode()
    after = markers.seal(b"".join(lines) + block, ONE)
    assert markers.strip(after) == b"    f(0,\n    f(1,\n"
    with pytest.raises(Problem, match="somebody changed the lines of the patch “"):
        markers.strip(after.replace(b"".join(lines), b"".join(lines[::-1])))


@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        ((b"\n", b"\r\n"), (b"\n", b"\r\n")),
        ((b"        ", b"    "), (b"        ", b"    ")),
        ((b"        return 2", b"        print()\n        return 2"), (b"return 1\n", b"return 1\n        print()\n")),
        ((b"X = 1", b"X = 2\nY = 3"), (b"X = 1", b"X = 2\nY = 3")),
    ],
)
def test_what_others_did_around_a_line_that_was_replaced_stays(theirs, left) -> None:
    after = replacing(BODY, b"        return 1\n").replace(*theirs)
    assert markers.strip(after) == BODY.encode().replace(*left)


def test_a_file_without_a_newline_at_its_end_gets_it_neither_lost_nor_added() -> None:
    for end in ("\n", "\r\n"):
        text = f"class A:{end}    x = 1"
        block = f"{end}    {markers.begin(ONE, '0')}{end}    y = 2{end}    {markers.end(ONE)}"
        assert markers.strip(markers.seal((text + block).encode(), ONE)) == text.encode()


@pytest.mark.parametrize(
    ("edit", "cause", "line"),
    [
        ((b"y = 2", b"y = 3"), "somebody changed the lines of the patch “", 5),
        ((b"    y = 2\n", b""), "somebody changed the lines of the patch “", 5),
        ((b"        g()  # rlpatch: vllm-ascend rollout\n", b""), "somebody changed the lines of the patch “", 4),
        ((b"    # <<< rlpatch vllm-ascend rollout\n", b""), "but no comment ends it", 5),
        (
            (b"    y = 2\n", b"    # >>> rlpatch verl x 0.1 0123456789abcdef\n"),
            "lies inside another block of inserted lines",
            6,
        ),
        ((b"X = 1", b"# <<< rlpatch vllm-ascend rollout"), "has no start marker before it", 10),
        ((b"X = 1", b"self._rlpatch_x()  # rlpatch: verl x"), "names a block", 10),
        ((b"X = 1", b"# was: X = 1  # rlpatch: verl x"), "names a block", 10),
        (
            (b"X = 1", b"class _RlpatchX:\n    # <<< rlpatch verl x"),
            "has no start marker before it",
            11,
        ),
        ((b"\n", b"\r"), "is in the middle of a line: were the line endings converted?", 1),
    ],
)
def test_edits_of_our_own_lines_are_refused_with_the_line(edit: tuple[bytes, bytes], cause: str, line: int) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        markers.strip(marked(BODY).replace(*edit), where="/x/worker.py")
    assert caught.value.kind is Kind.FOREIGN_EDIT
    assert caught.value.where == f"/x/worker.py:{line}"
    assert caught.value.hint


def test_a_file_that_only_speaks_of_rlpatch_is_left_alone() -> None:
    data = b"# rlpatch is a tool\nx = 'rlpatch'\n"
    assert markers.strip(data) is data
    assert markers.marked(data) == ()


FOREIGN = (
    "x = 1  # rlpatch: todo",
    "x = 1  # rlpatch: todo  ",
    "x = 1  # rlpatch: two words",
    "x = 1  # rlpatch: not any more, please",
    "x = 1  # rlpatch: three more words",
    "x = 1  # rlpatch: a whole sentence without a comma",
    "# >>> rlpatch two words\nx = 1\n# <<< rlpatch two words",
)


@pytest.mark.parametrize("text", FOREIGN)
def test_a_comment_of_somebody_that_looks_like_a_mark_is_theirs(text: str) -> None:
    theirs = BODY.replace("X = 1", text)
    assert markers.strip(theirs.encode()) == theirs.encode()
    assert markers.strip(marked(theirs)) == theirs.encode()
    assert [found.patch for found in markers.marked(marked(theirs))] == [ONE]


@pytest.mark.parametrize(
    ("left", "cause"),
    [
        ("g()  # rlpatch: verl x y", "names a block of inserted lines that"),
        ("# <<< rlpatch verl x y", "an end marker of rlpatch has no start marker before it"),
    ],
)
def test_a_mark_of_a_patch_that_is_known_to_be_applied_is_not_taken_for_a_comment(left: str, cause: str) -> None:
    data = BODY.replace("X = 1", left).encode()
    assert markers.marked(data) == ()
    with pytest.raises(Problem, match=cause):
        markers.marked(data, (PatchId("verl", "x", "y"),))
    with pytest.raises(Problem, match=cause):
        markers.strip(data, [PatchId("verl", "x", "y")])


def test_what_is_found_names_patch_and_release() -> None:
    (found,) = markers.marked(marked(BODY, TWO))
    assert (found.patch, found.intact, found.lines) == (TWO, True, (4, 5, 6, 2))
