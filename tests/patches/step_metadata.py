"""Traces of a stand-in, and the files beside them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Traces:
    """For the backend: a trace that lies in the folder."""

    save_path: str
    name: str
    made: list[Any]

    def traces(self) -> set[str]:
        saved = [n for n, one in enumerate(self.made) if "stop" in one.calls and one.recorded]
        return {f"{self.save_path}/{self.name}_{n}_ascend_pt" for n in saved}


def states(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (folder / ".rlpatch").glob("*.json")}


def facts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.rlpatch.json"))]


def with_lists(one: Any, *names: str) -> Any:
    one.scheduled_cached_reqs = SimpleNamespace(
        req_ids=list(names), num_computed_tokens=[1] * len(names), resumed_req_ids=set()
    )
    return one
