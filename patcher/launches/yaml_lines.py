"""The variables in a YAML file of Ray's: a program for a Python that has PyYAML, ours or that of the target.

It imports nothing of rlpatch, and prints JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def pairs(loader: Any, node: Any) -> list[tuple[Any, Any]]:
    """The nodes of a mapping, none where nothing stands. Ends the program for what else there is."""
    if node is None or node.value in ("", "~", "null"):
        return []
    if node.id != "mapping":
        sys.exit("no mapping")
    loader.flatten_mapping(node)
    return list(node.value)


def main(path: str) -> None:
    """Print names, lines and texts, null for what is none. Ends with a traceback where there is no PyYAML or YAML."""
    import yaml

    with open(path, "rb") as file:  # noqa: PTH123 - a name is what it is given
        loader = yaml.SafeLoader(file)
        found = {str(key.value): value for key, value in pairs(loader, loader.get_single_node())}
        rows = [
            (str(key.value), key.start_mark.line + 1, value.value if value.id == "scalar" else None)
            for key, value in pairs(loader, found.get("env_vars"))
        ]
        print(json.dumps(rows))  # noqa: T201 - its answer


if __name__ == "__main__":
    main(sys.argv[1])
