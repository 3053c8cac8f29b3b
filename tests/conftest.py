"""What every test may ask for: environments built once, and how much of the release matrix to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from fixtures import environments, releases

# Two cores shared with engines that import torch: a slow example says nothing.
settings.register_profile("rlpatch", deadline=None)
settings.load_profile("rlpatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-releases",
        action="store_true",
        help="run the whole matrix: every release of every project instead of a sample, and the long lists of cases",
    )
    parser.addoption(
        "--thorough", action="store_true", help="try every point, fault and race of tests/patcher/reliability"
    )
    parser.addoption(
        "--mindspeed-rl",
        type=Path,
        metavar="DIR",
        help="run the tests of MindSpeed-RL on real checkouts, too: DIR/v2.1.0, v2.2.0, v2.3.0 and master",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ascend_release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("ascend_release", releases.VLLM_ASCEND if everything else releases.SAMPLE)


@pytest.fixture(scope="session")
def npu_python() -> Path:
    """A Python with torch_npu on the fake CANN; run it with ``environments.variables()``."""
    return environments.torch_npu_env()
