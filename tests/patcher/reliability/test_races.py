"""Eight processes at once on one target, with and without working locks, some of them killed (see ``races.py``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import faults

RACES = Path(__file__).with_name("races.py")


@pytest.mark.parametrize("options", [("kills",), ("lockless", "kills"), (), ("lockless",)], ids=" ".join)
def test_every_interleaving_ends_in_a_state_that_status_describes(
    tmp_path: Path, thorough: bool, options: tuple[str, ...]
) -> None:
    rounds = 40 if thorough else 1 + ("kills" in options)
    run = subprocess.run(
        [sys.executable, str(RACES), str(tmp_path), "rlpatch", str(rounds), *options],
        env={**os.environ, "LD_PRELOAD": str(faults.library())},
        capture_output=True,
        text=True,
    )
    *losses, last = run.stdout.splitlines() or [run.stderr]
    assert losses == [], run.stdout[:2000] + run.stderr[-2000:]
    seen = json.loads(last)
    assert seen["commands"] == rounds * 32
    assert seen["waits"] + seen["conflicts"] > 0  # else nothing has met, and nothing is proven
    assert bool(seen["killed"]) is ("kills" in options)
