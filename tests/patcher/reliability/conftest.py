"""Fixtures of the command line, for the tests of what attackers, crashes and races leave."""

from __future__ import annotations

from tests.patcher.cli.conftest import _quiet_environment, run  # noqa: F401  (fixtures)
