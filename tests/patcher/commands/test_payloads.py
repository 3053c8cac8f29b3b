"""Documents that `--json` prints for each command, against their reference."""

from __future__ import annotations

import inspect
import re

import pytest

from fixtures.cache import REPOSITORY
from patcher.cli.about import completion
from patcher.commands import applied, guarding
from patcher.commands.about import demonstrating, knowledge
from patcher.commands.patching import applying, bundling, describing, running, status
from patcher.messages.report import OMIT_NONE

PAYLOADS = {
    "`apply`": applying.Applied,
    "… each target": describing.PlanPayload,
    "… each of its files": describing.FilePayload,
    "… `replaces`": describing.ReplacedPayload,
    "`revert`": applied.Reverted,
    "… each file": applied.RevertedFile,
    "`status`": status.Status,
    "… each patch": applied.PatchPayload,
    "`diff`": applied.Diff,
    "`check`": guarding.TargetCheck,
    "`run`": running.RunPlan,
    "`bundle`": bundling.Bundled,
    "`list`": knowledge.KnownStructure,
    "`explain`": knowledge.Explanation,
    "`completion`": completion.Completion,
    "`demo`": demonstrating.Demonstration,
}
"""Row of the reference → its class; a row of `list` says first where its entries stand."""


@pytest.mark.parametrize("row", PAYLOADS)
def test_the_reference_names_the_fields_and_which_may_be_left_out(row: str) -> None:
    text = (REPOSITORY / "docs" / "reference" / "json.md").read_text()
    (cell,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", text, re.MULTILINE)
    cell = re.sub(r"^`targets`: |; at its end .*| as `apply` has them|\(.*?\)", "", cell)
    named = {name: bracket == "[" for bracket, name in re.findall(r"(\[?)`(\w+)`", cell)}
    payload = PAYLOADS[row]
    omitted = {
        field.name for field in getattr(payload, "__dataclass_fields__", {}).values() if field.metadata == OMIT_NONE
    }
    assert named == {name: name in omitted for name in inspect.get_annotations(payload)}
