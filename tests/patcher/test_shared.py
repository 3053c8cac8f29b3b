"""Stages that meet in one class share one recorder, and each of them comes and goes by itself."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fixtures import releases
from patcher import plan
from patcher.changes import edits, markers
from patcher.changes.change import PatchId, Record
from patcher.targets import find
from patches.projects import upstreams
from tests.choices import config
from tests.matrix import of_releases, thinned

VERL = next(upstream for upstream in upstreams() if upstream.project.name == "verl")
ACTOR, WORKERS = "verl/workers/actor/dp_actor.py", "verl/workers/engine_workers.py"
CHOICES = {
    "update": "--stage update-policy --micro-batch 0:2",
    "actor": "--stage compute-log-prob --role actor --micro-batch 0:2",
    "ref": "--stage compute-log-prob --role ref --micro-batch 0:2",
    "critic": "--stage update-critic --micro-batch 0:2",
    "values": "--stage compute-values --micro-batch 0:2",
}
MARK = b"# >>> rlpatch verl recorder"
ORDERS = [*itertools.permutations(("update", "actor", "ref"))]


class Insertion:
    """A release of verl in which plans are carried out without a store."""

    def __init__(self, root: Path, release: str, file: str) -> None:
        self.root, self.file = root, root / file
        self.file.parent.mkdir(parents=True)
        tree = releases.release(release, "verl")
        for path in (file, "verl/__init__.py", "verl/version/version"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / path, root / path)
        for path in VERL.project.files:
            if (tree / path).exists():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree / path, root / path)
        self.pristine = self.file.read_bytes()
        self.records: dict[PatchId, Record] = {}

    def apply(self, words: str) -> PatchId:
        target = find.find(VERL.project, paths=[self.root])
        made = plan.make_plan(VERL, target, config(words), tuple(self.records.values()))
        self._write(made.edit)
        self.records[made.patch] = made.edit.add[0] if made.edit.add else self.records[made.patch]
        return made.patch

    def revert(self, patch: PatchId) -> None:
        def read(path: PurePosixPath) -> bytes:
            return (self.root / path).read_bytes()

        self._write(edits.revert(self.root, read, [self.records.pop(patch)], [patch]))

    def _write(self, edit: Any) -> None:
        for change in edit.changes:
            (self.root / change.path).write_bytes(change.after)

    @property
    def text(self) -> bytes:
        return self.file.read_bytes()

    @property
    def inserted(self) -> int:
        return self.text.count(b"\n") - self.pristine.count(b"\n")


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str, str], Insertion]:
    return lambda release, file: Insertion(tmp_path / "site", release, file)


@pytest.mark.parametrize(
    ("release", "file", "names"),
    of_releases(
        ["0.7.1"],
        [
            ("0.6.1", ACTOR, ("update", "actor", "ref")),
            ("0.9.1", WORKERS, tuple(CHOICES)),
            ("0.7.1", ACTOR, ("update", "actor", "ref")),
        ],
    ),
)
def test_all_stages_and_roles_of_a_class_are_less_than_635_lines(
    site: Any, release: str, file: str, names: tuple[str, ...]
) -> None:
    verl = site(release, file)
    patches = [verl.apply(CHOICES[name]) for name in names]
    assert verl.text.count(MARK) == 1
    assert verl.inserted < 635
    for patch in patches:
        verl.revert(patch)
    assert verl.text == verl.pristine


@pytest.mark.parametrize("out", thinned(ORDERS, ORDERS[1:2]), ids=" ".join)
def test_they_come_and_go_in_any_order(site: Any, out: tuple[str, ...]) -> None:
    verl = site("0.6.1", ACTOR)
    patches = {name: verl.apply(CHOICES[name]) for name in ("ref", "update", "actor")}
    for number, name in enumerate(out, 1):
        verl.revert(patches[name])
        assert verl.text.count(MARK) == (number < 3), "the last one takes it along"
        compile(verl.text, ACTOR, "exec")
    assert verl.text == verl.pristine


def test_the_same_again_changes_nothing(site: Any) -> None:
    verl = site("0.6.1", ACTOR)
    verl.apply(CHOICES["update"])
    before = verl.text
    verl.apply(CHOICES["update"])
    assert verl.text == before


def test_who_records_other_things_brings_a_recorder_of_his_own(site: Any) -> None:
    verl = site("0.6.1", ACTOR)
    plain = verl.apply(CHOICES["update"])
    other = verl.apply(f"{CHOICES['actor']} --level level2")
    same = verl.apply(f"{CHOICES['ref']} --level level2")
    assert [found.patch.role for found in markers.marked(verl.text) if found.patch.shared] == ["", "2"]
    assert b"class _RlpatchComputeLogProbActor(_RlpatchRecorder2):" in verl.text
    for patch in (plain, other, same):
        verl.revert(patch)
    assert verl.text == verl.pristine


def test_a_recorder_that_another_rlpatch_wrote_is_left_to_its_patches(site: Any) -> None:
    verl = site("0.6.1", ACTOR)
    old = verl.apply(CHOICES["update"])
    text = verl.text.replace(b"if not probe:", b"if probe is None:")
    assert text != verl.text
    (shared,) = (found for found in markers.marked(text) if found.patch.shared)
    verl.file.write_bytes(text.replace(shared.digest.encode(), shared.actual.encode(), 1))
    new = verl.apply(CHOICES["actor"])
    found = {one.patch: one for one in markers.marked(verl.text)}
    assert found[old].uses == {PatchId("verl", "recorder")}
    assert found[new].uses == {PatchId("verl", "recorder", "2")}
    verl.revert(old)
    assert b"class _RlpatchRecorder:" not in verl.text
    assert b"class _RlpatchComputeLogProbActor(_RlpatchRecorder2):" in verl.text
    verl.revert(new)
    assert verl.text == verl.pristine


def test_lines_of_the_recorder_that_were_edited_are_seen_by_those_who_share_it(site: Any) -> None:
    from patcher.changes.state import file_state

    verl = site("0.6.1", ACTOR)
    patch = verl.apply(CHOICES["update"])
    edited = verl.text.replace(b"if not probe:", b"if False:")
    assert edited != verl.text
    assert file_state(edited, verl.pristine, patch, ACTOR).state == "tampered"
    assert file_state(verl.text, verl.pristine, patch, ACTOR).state == "intact"
