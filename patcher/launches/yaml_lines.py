"""What a YAML file holds, with lines: a program for a Python that has PyYAML, ours or that of the target.

It imports nothing of rlpatch, and prints JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def nested(loader: Any, node: Any) -> Any:
    """A mapping as keys with their lines and values, a scalar as its text, None for nothing, False for what else is."""
    if node is None or node.id == "scalar":
        return node and node.value
    if node.id != "mapping":
        return False
    loader.flatten_mapping(node)
    return [[nested(loader, key), key.start_mark.line + 1, nested(loader, value)] for key, value in node.value]


def main(path: str) -> None:
    """Print what a file holds. Ends with a traceback where there is no PyYAML, or no YAML in it."""
    import yaml

    with open(path, "rb") as file:  # noqa: PTH123 - a name is what it is given
        loader = yaml.SafeLoader(file)
        print(json.dumps(nested(loader, loader.get_single_node())))  # noqa: T201 - its answer


if __name__ == "__main__":
    main(sys.argv[1])
