"""The frame or range that launched most of the copies of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.traces import analysis, formats
from tests.patcher.traces.recorded import MS, Range, Run, Task

US = 1000
COPY = "Memcpy DtoH (Device -> Pinned)"
SWAP = "cache_engine.py(118): swap_out"
COPIES = tuple(Task(at * MS + 5 * US, at * MS + 900 * US, "copy", COPY, launch=at * MS) for at in range(2, 6))

LAUNCHED: dict[str, tuple[tuple[Range, ...], str | None]] = {
    "the innermost of those around most": (
        (Range("core.py(9): step", MS, 9 * MS), Range(SWAP, 2 * MS, 6 * MS), Range("a.py(1): one", 2 * MS, 3 * MS)), SWAP,
    ),
    "none has over half": ((Range(SWAP, 4 * MS, 6 * MS),), None),
    "a little more": ((Range(SWAP, 3 * MS, 6 * MS),), SWAP),
    "around the whole step": ((Range("train.py(3): main", 0, 10 * MS),), None),
    "of a library": ((Range(SWAP, MS, 6 * MS), Range("torch/_ops.py(1116): __call__", 2 * MS, 6 * MS)), SWAP),
    "a wrapper of the call": ((Range(SWAP, MS, 6 * MS), Range("wrapper.py(7): cudaMemcpy", 2 * MS, 6 * MS)), SWAP),
    "of the standard library": ((Range(SWAP, MS, 6 * MS), Range("contextlib.py(7): __exit__", 2 * MS, 6 * MS)), SWAP),
    "another thread": ((Range(SWAP, 2 * MS, 6 * MS, thread=2),), None),
    "no frames": ((), None),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "name"), LAUNCHED.values(), ids=LAUNCHED)
def test_the_innermost_frame_around_most_copies_launched_them(
    tmp_path: Path, functions: tuple[Range, ...], name: str | None
) -> None:
    run = Run((Task(5 * US, MS, launch=0), *COPIES), (Range("ProfilerStep#1", 0, 10 * MS),), functions=functions)
    (trace,) = formats.read(run.torch(tmp_path / "a.json"))
    profile = analysis.attributed(trace).profile
    launch = profile.copy_launches.get(1)
    assert (launch and launch.name) == name
    if launch is not None:
        assert launch.copy == COPY
        found = next(finding for finding in analysis.reported([profile]).findings if finding.id == "copies")
        assert found.title.endswith(f"device to host, launched in {SWAP}")


def test_a_slow_step_is_named_with_what_launched_its_copies(tmp_path: Path) -> None:
    """The copies of step 5 are launched before its first kernel, so on the device they lie in step 4."""
    tasks: list[Task] = []
    functions: list[Range] = []
    marks: list[Range] = []
    for number, (begin, copies) in enumerate([(0, 0), (2, 0), (4, 0), (6, 0), (8, 0), (10, 8), (20, 0), (22, 0)]):
        at = begin * MS
        tasks += [
            Task(at + k * MS + 5 * US, at + (k + 1) * MS, "copy", COPY, launch=at + k * MS) for k in range(copies)
        ]
        tasks.append(Task(at + copies * MS + 5 * US, at + (copies + 2) * MS, launch=at + copies * MS))
        functions += [Range(SWAP, at + 1, at + copies * MS)] * bool(copies)
        marks.append(Range(f"ProfilerStep#{number}", at, at + (copies + 2) * MS - US))
    run = Run(tuple(tasks), tuple(marks), functions=tuple(functions))
    (trace,) = formats.read(run.torch(tmp_path / "a.json"))
    profile = analysis.attributed(trace).profile
    found = next(finding for finding in analysis.reported([profile]).findings if finding.id == "outlier")
    assert found.title.endswith(f"most of the additional time is copying, device to host, launched in {SWAP}")
    assert found.advice.startswith(f"check whether {SWAP} has to copy in this step")
    assert found.evidence.startswith("Step 5 took 10.00 ms on the host.")
