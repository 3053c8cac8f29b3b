"""The form of what is carried: any bytes come out as they were planned, and nothing else passes for them."""

from __future__ import annotations

import pytest

from patcher.bundle import plans
from patcher.bundle.plans import Bundle, BundledPlan
from patcher.changes.change import PatchId
from patches.vllm_ascend import PROJECT

CASES = {
    "inserted": (b"a\nb\n", b"a\nours\nb\n"),
    "at both ends": (b"a\n", b"ours\na\nours\n"),
    "no newline at the end": (b"a\nb", b"a\nb\n# ours"),
    "replaced": (b"a\nb\nc\n", b"a\n# was: b\nB\nc\n"),
    "line ends of DOS": (b"a\r\nb\r\n", b"a\r\nours\r\nb\r\n"),
    "form feeds and lone carriage returns": (b"a\x0cb\rc\n", b"a\x0cb\rc\nours\n"),
    "bytes that are no UTF-8": (b"\xff\xfe\n\xb0\xa1\n", b"\xff\xfe\n# was: \xb0\xa1\n\xb0\xa1\n"),
    "nothing was there": (b"", b"ours\n"),
    "nothing changes": (b"a\n", b"a\n"),
    "many lines are alike": (b"\n" * 500 + b"a\n" + b"\n" * 500, b"\n" * 500 + b"ours\na\n" + b"\n" * 500),
}


@pytest.mark.parametrize("case", CASES)
def test_any_file_comes_out_as_it_was_planned(case: str) -> None:
    before, after = CASES[case]
    file = plans.plan_file("a.py", before, after)
    made = BundledPlan(PatchId("vllm-ascend", "rollout"), "0.11.0rc1", ("--decode", "1:2"), "Records.", "/x", (file,))
    there = Bundle("0.1", (PROJECT,), (made,))
    again = plans.read(plans.text_of(there))
    assert again == there._replace(projects=(PROJECT._replace(releases=()),))
    assert again.plans[0].files[0].applied(before) == after
    if before != after:
        with pytest.raises(ValueError, match=r"a\.py"):
            file.applied(b"another line\n" + before)


def test_a_file_is_told_by_what_is_inserted_alone() -> None:
    before = b"".join(b"line %d\n" % number for number in range(5000))
    file = plans.plan_file("a.py", before, before.replace(b"line 77\n", b"line 77\nours\n"))
    assert file.script == ((78, 0, "ours\n"),)
