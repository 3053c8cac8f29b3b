"""The places of top-level packages, by the finders of the interpreter that would import them.

The text of this module is also sent to other interpreters with ``-c``, so it runs alone, on Python 3.7 or
newer, and knows nothing of the rest of rlpatch.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import Any

# What sitecustomize or a .pth file prints comes before this script's answer on the same stream.
MARKER = "<<rlpatch-locate>>"


def locate(names: list[str], path: list[str]) -> dict[str, dict[str, Any]]:
    """Return where this interpreter finds each of the packages `names` along `path`; missing ones are left out.

    "origin" is the module or `__init__.py` (None for a folder without), "locations" are the package's folders. Nothing
    is imported.
    """
    packages = {}
    for name in names:
        spec = _spec(name, path)
        if spec is not None:
            origin = spec.origin if spec.has_location else None
            packages[name] = {"origin": origin, "locations": [str(p) for p in spec.submodule_search_locations or ()]}
    return packages


def _spec(name: str, path: list[str]) -> Any:
    """Return the import spec of a top-level name, searched along `path`; None if no finder has it."""
    for finder in list(sys.meta_path):
        try:
            # The hooks of editable installs are finders of their own; only that for sys.path takes this path.
            spec = finder.find_spec(name, None) if finder is not PathFinder else finder.find_spec(name, path)
        except Exception:  # noqa: S112  (somebody else's hook; the import system asks the next one)
            continue
        if spec is not None:
            return spec
    return None


def main() -> None:
    """Locate the packages named on the command line; print `MARKER` and JSON on a line of stdout."""
    import json  # noqa: PLC0415  (rlpatch itself, which calls `locate`, needs none)

    # `-c` puts '' first: the working directory would shadow what is installed.
    path = [entry for entry in sys.path if entry]
    answer = {
        "prefix": sys.prefix,
        "path": [os.path.abspath(entry) for entry in path if os.path.exists(entry)],  # noqa: PTH100, PTH110
        "found": locate(sys.argv[1:], path),
    }
    # Past sys.stdout, which a sitecustomize may have replaced.
    os.write(1, ("\n" + MARKER + json.dumps(answer) + "\n").encode("ascii"))


if __name__ == "__main__":
    main()
