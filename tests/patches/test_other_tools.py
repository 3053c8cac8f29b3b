"""Windows of nsys and of memory: what goes in at both ends of each project loads, and comes out again.

With --all-releases at both ends of each structure: the lines at the call sites are those of the other tools.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.recipe import Upstream
from patches.projects import upstreams
from patches.sglang import recipes as sglang
from patches.trl import recipes as trl
from patches.verl import recipes as verl
from patches.vllm import recipes as vllm
from tests.matrix import ends, thinned
from tests.patches.command_line import ends_of_structures, install, there_and_back, windows_of

ON_GPUS = (vllm.UPSTREAM, sglang.UPSTREAM, verl.UPSTREAM, trl.UPSTREAM)
BUILT = (
    "slime",
    "miles",
    "mindspeed-rl",
    "nemo-rl",
    "verl-omni",
)  # their releases need sources that tests build for them alone
UPSTREAMS = [upstream for upstream in upstreams() if upstream.project.name not in BUILT]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = [(upstream, release) for upstream in UPSTREAMS for release in dict.fromkeys(ends(upstream.releases))]
    if metafunc.config.getoption("--all-releases"):
        cases = ends_of_structures(UPSTREAMS)
    short = [(vllm.UPSTREAM, vllm.UPSTREAM.releases[-1])]
    names = [f"{upstream.project.name}-{release}" for upstream, release in cases]
    metafunc.parametrize("case", thinned(cases, short), ids=names)


@pytest.mark.usefixtures("unwatched")
def test_what_goes_in_loads_and_comes_out_again(case: tuple[Upstream, str], tmp_path: Path) -> None:
    upstream, release = case
    root = install(upstream, release, tmp_path / "site")
    for tool in ("nsys", "memory") if upstream in ON_GPUS else ("memory",):
        for stage, unit in windows_of(upstream, release):
            there_and_back(upstream, release, stage, unit, root, tmp_path / tool, options=("--tool", tool))
