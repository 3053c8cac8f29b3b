"""A test's way to a Python of another version: where there is none, the test is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import interpreters


def interpreter(version: str) -> Path:
    """A Python ``version`` (``3.8``), found before a test changes PATH; skips the test where none answers."""
    python = interpreters.find(version)
    if python is None:
        pytest.skip(f"no Python {version} is on PATH, or among the versions of pyenv")
    return python
