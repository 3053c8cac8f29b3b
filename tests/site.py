"""The documentation and what its site runs when it is built."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from fixtures.cache import REPOSITORY

DOCS = REPOSITORY / "docs"


def hooks() -> ModuleType:
    """The hooks of mkdocs, loaded anew: a test may change them."""
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
