"""Recipes that a capture takes, and what a plan does to the files of an earlier capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patcher import plan
from patcher.changes import markers
from patcher.config import ProfileConfig
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.recipe import Gap, Insertion, Loop, Recipe, Structure, Upstream
from patcher.targets.target import Project, Target
from patches import training
from tests.choices import config as recorded
from tests.choices import typed

PROJECT = Project("toy", "toy", ("toy",), releases=("1.0", "2.0"))
WORKER = (
    "class Worker:\n    def run(self, data):\n        for batch in batches:\n            use(batch)\n        return 1\n"
)


def recipe(name: str, stage: str = "update", **other: Any) -> Recipe:
    loop = Insertion(
        "run",
        where=Loop(("batches",)),
        line='{units} = self._rlpatch_stage_units("micro-batch", {units})',
        why="turns",
    )
    defaults: dict[str, Any] = {
        "class_name": "Worker", "method": "run", "insertions": (loop,), "probe": training.FOREIGN_LOOPS,
        "structures": (Structure("one", ("1.0",), f"toy/{name}.py", (), "a loop"),), "windows": ("micro-batch",),
        "why": "w", "how": "h", "upstream": "u", "needed_until": "r", "roles": ("actor", "ref"), "strategies": (name,),
    }  # fmt: skip
    return Recipe(name, stage, **{**defaults, **other})


RECIPES = (
    recipe("fsdp", marks=("mini-batch",)),
    recipe("megatron", windows=("mini-batch",)),
    recipe("later", structures=(Structure("one", ("2.0",), "toy/later.py", (), "a loop"),)),
    recipe(
        "worker", strategies=("fsdp", "later"), needs=("fsdp", "later"), notes=(Note("mind the worker", "it bites"),)
    ),
    recipe("values", "values", roles=("critic",)),
)
GAP = Gap("megatron", "micro-batch", ("update",), "", Note("its schedule has them", "and interleaves them"))
GAPS = (GAP, GAP._replace(strategy="newer", releases=">=2"), GAP._replace(strategy="speed"))
UPSTREAM = Upstream(PROJECT, RECIPES, (), tool="npu", gaps=GAPS)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    (tmp_path / "toy").mkdir()
    for one in RECIPES:
        (tmp_path / "toy" / f"{one.name}.py").write_text(WORKER)
    return Target(PROJECT, "1.0", tmp_path, "unpacked", "", "")


def config(unit: str = "micro-batch", **other: Any) -> ProfileConfig[Any]:
    return recorded((f"--{unit}", "0:1", *typed(**{"stage": "update", **other})))


@pytest.mark.parametrize(
    ("choice", "files", "notes"),
    [
        (
            {},
            ["fsdp", "worker"],
            [
                "mind the worker: it bites",
                "the classes for --strategy megatron, speed stay unpatched (its schedule has them): and interleaves them",
            ],
        ),
        ({"strategy": "fsdp"}, ["fsdp", "worker"], ["mind the worker: it bites"]),
        ({"unit": "mini-batch"}, ["megatron"], []),
        ({"unit": "mini-batch", "strategy": "megatron"}, ["megatron"], []),
        ({"unit": "mini-batch", "markers": True}, ["fsdp", "megatron"], []),
        ({"unit": "mini-batch", "strategy": "megatron", "markers": True}, ["megatron"], []),
        ({"stage": "values"}, ["values"], []),
    ],
)
def test_every_recipe_that_counts_the_unit(target: Target, choice: Any, files: list[str], notes: list[str]) -> None:
    made = plan.make_plan(UPSTREAM, target, config(**choice))
    assert [change.path.stem for change in made.edit.changes] == files
    assert [": ".join(note) for note in made.notes if "warm-up" not in note.text] == notes


@pytest.mark.parametrize(
    ("choice", "kind", "cause", "hint", "notes"),
    [
        ({"stage": "sleep"}, Kind.NO_RECIPE, "toy: the stage sleep is not available", "choose one of update, values", ()),
        ({"stage": "values", "unit": "mini-batch"}, Kind.USAGE, "values does not support --mini-batch", "--micro-batch A:B", ()),
        ({"role": "critic"}, Kind.USAGE, "--role critic: the stage update runs only for actor and ref", "--role actor", ()),
        ({"strategy": "megatron"}, Kind.USAGE, "with --strategy megatron, the stage update does not support --micro-batch", "--mini-batch A:B", GAP.reason.lines),
        ({"strategy": "fdsp"}, Kind.USAGE, "with --strategy fdsp, the stage update does not support --micro-batch", "--strategy fsdp, --strategy later", ()),
        ({"strategy": "later"}, Kind.NO_RECIPE, "no place to record --micro-batch windows of update with --strategy later was found in toy 1.0", "rlpatch explain toy", ("skipped Worker: to record in these classes, rlpatch also needs Worker, and did not find its code",)),
    ],
)  # fmt: skip
def test_what_cannot_be_had(target: Target, choice: Any, kind: Kind, cause: str, hint: str, notes: Any) -> None:
    with pytest.raises(Problem) as caught:
        plan.make_plan(UPSTREAM, target, config(**choice))
    assert (caught.value.kind, caught.value.notes) == (kind, notes)
    assert cause in caught.value.cause
    assert hint in caught.value.hint


def test_a_neighbour_is_spoken_of_where_it_is(target: Target, tmp_path: Path) -> None:
    upstream = UPSTREAM._replace(neighbours={"toy_plugin": Note("it replaces the worker")})
    assert Note("it replaces the worker") not in plan.make_plan(upstream, target, config()).notes
    (tmp_path / "site" / "toy_plugin").mkdir(parents=True)
    near = target._replace(search=(tmp_path / "site",))
    assert Note("it replaces the worker") in plan.make_plan(upstream, near, config()).notes


def test_a_role_makes_a_patch_of_its_own_where_there_are_several(target: Target) -> None:
    assert str(plan.make_plan(UPSTREAM, target, config(role="ref")).patch) == "toy update ref"
    assert str(plan.make_plan(UPSTREAM, target, config(stage="values", role="critic")).patch) == "toy values"


def test_a_role_leaves_the_recipes_of_others_alone(target: Target) -> None:
    upstream = UPSTREAM._replace(recipes=(RECIPES[0], RECIPES[3]._replace(roles=("ref",))))
    found = {role: plan.make_plan(upstream, target, config(role=role)).places for role in ("", "actor", "ref")}
    names = {role: [place.recipe.name for place in places] for role, places in found.items()}
    assert names == {"": ["fsdp", "worker"], "actor": ["fsdp"], "ref": ["fsdp", "worker"]}


@pytest.mark.parametrize("version", ["1.0", "3.0"])
def test_recipes_that_go_together_go_together_or_not_at_all(target: Target, version: str) -> None:
    both = tuple(one._replace(together=True) for one in (RECIPES[0], RECIPES[3]))
    upstream, here = UPSTREAM._replace(recipes=both), target._replace(version=version)
    assert len(plan.make_plan(upstream, here, config()).places) == 2
    (target.root / "toy" / "worker.py").unlink()
    with pytest.raises(Problem) as caught:
        plan.make_plan(upstream, here, config())
    assert caught.value.kind is Kind.STRUCTURE
    assert "worker" in "\n".join((caught.value.cause, *caught.value.notes))


def test_a_recipe_that_needs_another_is_not_enough_for_an_unknown_release(target: Target) -> None:
    unknown = target._replace(version="3.0")
    for name in ("fsdp", "later"):
        (target.root / "toy" / f"{name}.py").write_text(WORKER.replace("batches", "others"))
    with pytest.raises(Problem, match="is not a release that rlpatch knows") as caught:
        plan.make_plan(UPSTREAM, unknown, config())
    assert any("0 loops over batches" in note for note in caught.value.notes)


def test_what_would_record_nothing_alone_is_left_out_of_an_unknown_release_and_the_rest_stays(target: Target) -> None:
    engine = recipe("later", class_name="Engine", needs=("driver",))
    alone = recipe("values", needs=("later",))  # fits, and needs one that fits and is left out itself
    driver = recipe("worker", needs=())._replace(name="driver", class_name="Driver")
    upstream = UPSTREAM._replace(recipes=(recipe("fsdp"), engine, alone, driver))
    (target.root / "toy" / "later.py").write_text(WORKER.replace("Worker", "Engine"))
    (target.root / "toy" / "worker.py").unlink()
    made = plan.make_plan(upstream, target._replace(version="3.0"), config())
    assert [change.path.stem for change in made.edit.changes] == ["fsdp"]
    assert made.edit.add[0].files == ("toy/fsdp.py",)
    assert [note.text for note in made.notes if note.text.startswith("skipped ")][:2] == [
        "skipped Engine: to record in these classes, rlpatch also needs Driver, and did not find its code",
        "skipped Worker: to record in these classes, rlpatch also needs Engine, and did not find its code",
    ]


@pytest.mark.parametrize(
    ("version", "said"), [("0.9", True), ("1.0.dev1", True), ("1.5", True), ("", True), ("3.0", False)]
)
def test_a_file_that_no_recipe_fits_is_left_out_and_said(target: Target, version: str, said: bool) -> None:
    """If a release before or behind it has it: in those that come after 2.0 it is meant to be another one."""
    upstream = UPSTREAM._replace(recipes=(recipe("fsdp"), recipe("worker"), RECIPES[2], *OF_ONE_FILE))
    (target.root / "toy" / "worker.py").write_text(WORKER.replace("def run", "def go"))
    made = plan.make_plan(upstream, target._replace(version=version), config())
    assert [change.path.stem for change in made.edit.changes] == ["fsdp", "later", "values"]
    assert [note for note in made.notes if "toy/" in note.text] == [
        Note(
            "skipped toy/worker.py: the file matches no known release",
            "found 0 methods named run (methods of the class: go)",
        )
    ] * said


OF_ONE_FILE = (recipe("values"), recipe("values", class_name="Other")._replace(name="values of another release"))


def test_an_unknown_release_needs_more_than_what_marks_its_units(target: Target) -> None:
    unknown = target._replace(version="3.0")
    (target.root / "toy" / "megatron.py").write_text(WORKER.replace("batches", "others"))
    assert plan.make_plan(UPSTREAM, unknown, config(strategy="fsdp")).places
    with pytest.raises(Problem, match="is not a release that rlpatch knows"):
        plan.make_plan(UPSTREAM, unknown, config("mini-batch", markers=True))


def test_another_window_takes_its_lines_out_of_the_files_that_only_the_first_needed(target: Target) -> None:
    first = plan.make_plan(UPSTREAM, target, config())
    for change in first.edit.changes:
        (target.root / change.path).write_bytes(change.after)
    second = plan.make_plan(UPSTREAM, target, config("mini-batch"), first.edit.add)
    assert [change.path.stem for change in second.edit.changes] == ["megatron", "fsdp", "worker"]
    assert [change.after.decode() for change in second.edit.changes[1:]] == [WORKER, WORKER]
    assert markers.marked(second.edit.changes[0].after)
    assert second.edit.add[0].files == ("toy/megatron.py",)
    assert second.replaces == first.edit.add[0]
    assert second.cleared == second.edit.changes[1:]


def test_a_file_of_the_first_window_without_a_line_of_it_is_compared_at_the_commit(target: Target) -> None:
    first = plan.make_plan(UPSTREAM, target, config())
    second = plan.make_plan(UPSTREAM, target, config("mini-batch"), first.edit.add)
    assert [change.path.stem for change in second.edit.changes] == ["megatron", "fsdp", "worker"]
    assert {(change.before, change.after) for change in second.edit.changes[1:]} == {(WORKER.encode(), WORKER.encode())}
    assert second.cleared == ()


def test_what_is_replaced_is_another_choice_or_another_release(target: Target) -> None:
    first = plan.make_plan(UPSTREAM, target, config())
    assert first.replaces is None
    again = target._replace(version="1.0+local")
    assert plan.make_plan(UPSTREAM, target, config(), first.edit.add).replaces is None
    assert plan.make_plan(UPSTREAM, target, config(ranks=None), first.edit.add).replaces == first.edit.add[0]
    assert plan.make_plan(UPSTREAM, again, config(), first.edit.add).replaces == first.edit.add[0]
    assert plan.make_plan(UPSTREAM, target, config(stage="values"), first.edit.add).replaces is None
