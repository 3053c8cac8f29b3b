"""Killed or failing at any change of the file system, the real command line loses nothing (see ``faulty.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import faults
from tests.matrix import CRASH
from tests.patcher.reliability.faulty import FAULTS, SCENES

FAULTY = Path(__file__).with_name("faulty.py")
KILLS = ("kill, recover", "kill, again")
ERRORS = tuple(name for name in FAULTS if name != "kill")
TWICE = ("twice, kill", "twice, EIO lasting")

# Every point of one scene; of the others a few, so that each scene and each fault is seen in each run.
DEFAULT = [
    ("second stage", "kill, recover", 1, ""),
    *((scene, "kill, recover", 30, "") for scene in ("apply", "re-apply", "revert one stage", "revert")),
    *((scene, "kill, again", 40, "") for scene in ("apply", "second stage", "revert one stage", "revert")),
    *(("re-apply" if "lasting" in fault else "revert", fault, 20, "") for fault in ERRORS),
    *(("revert", fault, 100, "") for fault in TWICE),
]
SHORT = (("apply", "kill, recover", 30),)
THOROUGH = [
    *((scene, fault, 1, "") for scene in SCENES for fault in (*KILLS, *ERRORS)),
    *((scene, fault, 1, "0.9.2rc1") for scene in SCENES for fault in KILLS),
    *((scene, fault, 1, "") for scene in ("apply", "revert") for fault in TWICE),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--thorough", default=False)
        cases = [
            pytest.param(*case, marks=[] if case[:3] in SHORT else CRASH)
            for case in (THOROUGH if everything else DEFAULT)
        ]
        metafunc.parametrize(("scene", "fault", "every", "released"), cases)


def test_every_file_is_before_or_after_and_a_revert_is_exact(
    tmp_path: Path, scene: str, fault: str, every: int, released: str
) -> None:
    run = subprocess.run(
        [sys.executable, str(FAULTY), str(tmp_path), scene, fault, str(every), released],
        env={**os.environ, "LD_PRELOAD": str(faults.library())},
        capture_output=True,
        text=True,
    )
    *losses, last = run.stdout.splitlines() or [run.stderr]
    assert losses == [], run.stdout[:2000] + run.stderr[-2000:]
    words = last.split()
    assert words[::2] == ["points", "tried"], run.stderr[-2000:]
    points, tried = int(words[1]), int(words[3])
    assert points > 60  # else the calls are not counted, and nothing is proven
    assert tried >= len(range(every // 2, points, every))
