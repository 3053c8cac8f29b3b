"""Number of cases to try: a few hundred that stand for all, or with ``--thorough`` every one."""

from __future__ import annotations

import pytest

from tests.patcher.cli.conftest import _quiet_environment, run  # noqa: F401  (fixtures)


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--thorough", default=False))
