"""Fixtures of the tests of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patcher.store.tree import install


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return install(tmp_path / "site-packages")
