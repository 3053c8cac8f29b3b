"""Choice of a bundle's plan for a target: all its files decide, or none of them is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.bundle import plans
from patcher.bundle.fitting import fit
from patcher.bundle.plans import Bundle, BundledPlan
from patcher.changes.change import PatchId
from patcher.messages.errors import Kind, Problem
from patcher.targets.target import Project, Target

TOY = Project("toy", "toy", ("toy",))
FILES = ("toy/one.py", "toy/two.py")
NEW, OLD = {name: f"# {name} of 1.0\n" for name in FILES}, {name: f"# {name} of 0.9\n" for name in FILES}


def bundled(version: str, texts: dict[str, str]) -> BundledPlan:
    files = tuple(plans.plan_file(name, text.encode(), f"{text}# ours\n".encode()) for name, text in texts.items())
    return BundledPlan(PatchId("toy", "rollout"), version, ("--decode", "1:2"), "Records.", "/x", files)


BUNDLE = Bundle("0.1", (TOY,), (bundled("1.0", NEW), bundled("0.9", OLD)))


def target(root: Path, texts: dict[str, str], version: str) -> Target:
    (root / "toy").mkdir(parents=True)
    for name, text in texts.items():
        (root / name).write_text(text)
    return Target(TOY, version, root, "wheel", "", "")


@pytest.mark.parametrize(
    ("texts", "version", "taken"),
    [
        (NEW, "1.0", "1.0"),
        (NEW, "1.0+local", "1.0"),
        (OLD, "0.9", "0.9"),
        (OLD, "1.0", "0.9"),
        (NEW, "", "1.0"),
    ],
    ids=["the newer", "built here", "the older", "what its version says is not so", "nothing says its version"],
)
def test_the_plan_whose_files_are_there_is_taken(
    tmp_path: Path, texts: dict[str, str], version: str, taken: str
) -> None:
    found = fit(BUNDLE, target(tmp_path, texts, version))
    assert (found.plan.version, found.changed, found.replaces) == (taken, True, None)
    assert [(str(change.path), change.after) for change in found.edit.changes] == [
        (name, f"{text}# ours\n".encode()) for name, text in texts.items()
    ]
    (record,) = found.edit.add
    assert (record.version, record.files, record.tool) == (version or taken, FILES, "0.1")


UNFIT = {
    "the first is another": ({**NEW, FILES[0]: "# mine\n"}, "1.0", Kind.FOREIGN_EDIT, "one.py differs from the file of toy 1.0"),
    "the second is another": ({**NEW, FILES[1]: "# mine\n"}, "1.0", Kind.FOREIGN_EDIT, "two.py differs from the file of toy 1.0"),
    "the second is not there": ({FILES[0]: NEW[FILES[0]]}, "1.0", Kind.FOREIGN_EDIT, "two.py of toy 1.0 is missing"),
    "one of each": ({**NEW, FILES[1]: OLD[FILES[1]]}, "0.9", Kind.FOREIGN_EDIT, "one.py differs from the file of toy 0.9"),
    "another release": (dict.fromkeys(FILES, "# mine\n"), "0.8", Kind.VERSION, "toy is 0.8 here, but this bundle was made for 1.0 and 0.9"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_where_not_all_its_files_are_there_no_plan_is_taken(tmp_path: Path, case: str) -> None:
    texts, version, kind, why = UNFIT[case]
    with pytest.raises(Problem) as caught:
        fit(BUNDLE, target(tmp_path, texts, version))
    assert (caught.value.kind, why in caught.value.cause) == (kind, True), caught.value
