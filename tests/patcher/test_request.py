"""Conversion of the words that a user types to a configuration, and back to words that mean the same."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fixtures import releases
from patcher import plan
from patcher.config import (
    AIC_METRICS,
    CONTENTS,
    EXPORT_TYPES,
    LEVELS,
    OPEN_END,
    STAGES,
    UNITS,
    BuiltinStage,
    NoProfiler,
    ProfileConfig,
    RangeOptions,
    RolloutStage,
    Stage,
    SyncStage,
    TimelineStage,
    TorchNpuSettings,
    TorchSettings,
    TrainingStage,
    WholeStage,
    Window,
    kind_of,
)
from patcher.messages.errors import Kind, Problem
from patcher.options.notations import MOST
from patcher.recipe import Recipe, Upstream
from patcher.request import resolve
from patcher.targets.target import Target
from patches.projects import upstreams
from tests.choices import options
from tests.matrix import every, examples

KNOWN = {upstream.project.name: upstream for upstream in upstreams()}
NUMBERS = st.integers(0, 99) | st.integers(0, MOST)
COUNTS = st.integers(1, 99) | st.integers(1, MOST)
BOOLEANS = st.booleans()


def some(words: tuple[str, ...], least: int = 0) -> st.SearchStrategy[tuple[str, ...]]:
    chosen = st.sets(st.sampled_from(words), min_size=least)
    return chosen.map(lambda names: tuple(word for word in words if word in names))


def numbers(one: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(one, min_size=1).map(lambda found: tuple(sorted(found)))


def pattern(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


PATTERNS = st.sampled_from(("", "Attention|MLP$", "--", "-x", "--decode", "a b", "it's", '"')) | st.text().filter(
    pattern
)
FOLDERS = st.lists(st.from_regex(r"[A-Za-z0-9_~ -][A-Za-z0-9_.~ -]*", fullmatch=True), min_size=1).map("/".join)
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "level": st.sampled_from(LEVELS),
    "contents": some(CONTENTS),
    "export_type": some(EXPORT_TYPES, 1),
    "aic_metrics": st.sampled_from(AIC_METRICS),
    "l2_cache": BOOLEANS,
    "mstx": BOOLEANS,
    "analysis": BOOLEANS,
}


def drawn(draw: Any, recipe: Recipe) -> ProfileConfig[Stage]:
    """Any configuration that the recipe takes; Problem for what cannot be combined, and so is no value."""
    settings = draw(st.fixed_dictionaries({}, optional=SETTINGS))
    if recipe.calls:
        named = tuple(name for name in SETTINGS if name in settings)
        return ProfileConfig(stage=BuiltinStage(changed_settings=named), profiler=TorchNpuSettings(**settings))
    if recipe.stage == "timeline":
        return ProfileConfig(
            stage=TimelineStage(max_timeline_mb=draw(COUNTS)),
            profiler=NoProfiler(),
            ranks=draw(st.none() | numbers(NUMBERS)),
            save_path=f"/rlpatch_nowhere/{draw(FOLDERS)}",
        )
    return ProfileConfig(
        stage=stage(draw, recipe),
        profiler=TorchNpuSettings(**settings) if draw(BOOLEANS) else TorchSettings(contents=draw(some(CONTENTS))),
        ranks=draw(st.none() | numbers(NUMBERS)),
        save_path=f"/rlpatch_nowhere/{draw(FOLDERS)}",
    )


def stage(draw: Any, recipe: Recipe) -> Stage:
    if recipe.windows == ("whole",):
        whole = {"name": recipe.stage, "repeat": draw(COUNTS), "replicas": draw(st.none() | numbers(NUMBERS))}
        return SyncStage(**whole, sync=draw(NUMBERS)) if recipe.stage in SyncStage.NAMES else WholeStage(**whole)
    unit = draw(st.sampled_from(recipe.windows))
    first = draw(NUMBERS.filter(lambda number: UNITS[unit].first <= number < MOST))
    modules = draw(BOOLEANS)
    common: dict[str, Any] = {
        "name": recipe.stage,
        "window": Window(unit, first, draw(st.integers(first + 1, MOST) | st.just(OPEN_END))),
        "repeat": draw(COUNTS),
        "warmup": draw(NUMBERS),
        "ranges": RangeOptions(
            markers=draw(BOOLEANS), module_ranges=modules, module_pattern=draw(PATTERNS) if modules else ""
        ),
    }
    if kind_of(unit) is RolloutStage:
        servers = draw(st.sampled_from(((), ("prefill",), ("prefill", "decode"))))
        replicas = draw(st.none() | numbers(NUMBERS).map(lambda some: (*some, *servers)))
        return RolloutStage(rollout=draw(NUMBERS), replicas=replicas, **common)
    role, strategy = (draw(st.sampled_from(("", *words))) for words in (recipe.roles, recipe.strategies))
    return TrainingStage(role=role, strategy=strategy, training_steps=draw(numbers(COUNTS)), **common)


def target(upstream: Upstream, root: Path = Path("/nowhere"), version: str = "") -> Target:
    return Target(upstream.project, version or upstream.releases[-1], root, "unpacked", "", "")


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=examples(200))
@given(st.data())
def test_what_is_printed_means_the_same_configuration(name: str, data: st.DataObject) -> None:
    try:
        config = drawn(data.draw, data.draw(st.sampled_from(KNOWN[name].recipes)))
    except Problem:
        assume(False)
    again = resolve(options(config.words).checked(), KNOWN[name], target(KNOWN[name]))
    assert again == config
    assert again.words == config.words


@pytest.mark.parametrize(
    ("name", "version"),
    every(5, [
        ("vllm-ascend", "0.11.0rc1"), ("verl", "0.9.1"), ("vllm", "0.33.0"), ("sglang", "0.5.23"), ("verl", "0.7.1"),
    ]),
)  # fmt: skip
@settings(max_examples=examples(8), deadline=None)  # of 0.5 s each
@given(st.data())
def test_what_is_printed_makes_the_same_bytes(name: str, version: str, data: st.DataObject) -> None:
    upstream = KNOWN[name]
    there = target(upstream, releases.release(version, name), version)
    recipes = [recipe for recipe in upstream.recipes if recipe.structure(version)]
    try:
        config = drawn(data.draw, data.draw(st.sampled_from(recipes)))
        if isinstance(config.stage, TrainingStage):  # whose summary names each step
            assume(config.stage.repeat < 100)
        planned = plan.make_plan(upstream, there, config)
    except Problem:
        assume(False)
    typed = options(shlex.join(config.words)).checked()  # as status prints it, and a shell reads it
    again = plan.make_plan(upstream, there, resolve(typed, upstream, there))
    assert [change.after for change in again.edit.changes] == [change.after for change in planned.edit.changes]
    assert again.edit.add[0].options == planned.edit.add[0].options if planned.edit.add else not again.edit.add


@pytest.mark.parametrize("name", KNOWN)
def test_every_stage_has_words_of_its_own(name: str) -> None:
    """So that what `status` prints is recorded again, and not the stage that the window alone would mean."""
    upstream = KNOWN[name]
    for recipe in (recipe for recipe in upstream.recipes if not recipe.calls):
        for unit in recipe.windows:
            words = ("--stage", recipe.stage, *(() if unit == "whole" else (f"--{unit}", "2:4")))
            config = resolve(options(words).checked(), upstream, target(upstream))
            again = resolve(options(config.words).checked(), upstream, target(upstream))
            assert (again.stage.name, again.stage.window.unit) == (recipe.stage, unit)


def test_the_stages_of_the_help_are_those_of_the_recipes() -> None:
    assert set(STAGES) == {recipe.stage for upstream in upstreams() for recipe in upstream.recipes}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--strategy fsdp2", "--strategy fsdp"),
        ("--strategy fsdp_turbo", "--strategy fsdp"),
        ("--strategy FSDP", "--strategy fsdp"),
        ("--strategy TorchTitan", "--strategy torchtitan"),
        ("--stage update_policy", "--stage update-policy"),
        ("--stage Update_Policy", "--stage update-policy"),
        ("--stage update_actor", "--stage update-policy"),
        ("--stage compute_log_prob --role Ref", "--stage compute-log-prob --role ref"),
        ("--role Actor", "--role actor"),
        ("--role ALL", "--role all"),
        ("--level Level1", "--level level1"),
        ("--level LEVEL_NONE --mstx", "--level level_none --mstx"),
        ("--contents NPU,Cpu", "--contents npu,cpu"),
        ("--contents cuda,cpu", "--contents npu,cpu"),
        ("--export-type DB", "--export-type db"),
        ("--aic-metrics PipeUtilization", "--aic-metrics pipe_utilization"),
        ("--aic-metrics pipe-utilization", "--aic-metrics pipe_utilization"),
        ("--aic-metrics AiCoreNone", "--aic-metrics none"),
        ("--aic-metrics L2Cache", "--aic-metrics l2_cache"),
        ("--tool NPU", "--tool npu"),
        ("--ranks ALL", "--ranks all"),
    ],
)
def test_upstream_s_own_words_and_any_case_are_understood(typed: str, meant: str) -> None:
    upstream = KNOWN["verl"]
    one, other = (
        resolve(options(f"--micro-batch 0:1 {words}").checked(), upstream, target(upstream)) for words in (typed, meant)
    )
    assert one == other


@pytest.mark.parametrize(
    ("words", "cause", "hint"),
    [
        ("", "no recording window was given", "--decode 30:60, --prefill 0:4"),
        ("--role actor", "no recording window was given", "--decode 30:60, --prefill 0:4"),
        (
            "--decode 1:2 --prefill 0:1",
            "--decode and --prefill: a stage can have only one window",
            "keep only one of these options",
        ),
        (
            "--builtin --stage rollout --level level2",
            "--builtin cannot be combined with --stage rollout",
            "leave out --builtin or --stage",
        ),
        (
            "--builtin --decode 1:2",
            "--decode cannot be combined with --builtin: the framework's own profiler has no such setting",
            "leave out --builtin, or",
        ),
        (
            "--builtin --mini-batch 0:1 --warmup 2 --level level2",
            "--mini-batch and --warmup cannot be combined with --builtin: the framework's own profiler has no such setting",
            "leave out --builtin, or",
        ),
    ],
)
def test_what_no_target_could_record_is_refused_before_one_is_looked_for(words: str, cause: str, hint: str) -> None:
    with pytest.raises(Problem) as caught:
        options(words).checked()
    assert caught.value.kind is Kind.USAGE
    assert caught.value.cause.startswith(cause)
    assert hint in caught.value.hint


@pytest.mark.parametrize("words", ["--decode 1:2 --mini-batch 0:1", "--on-demand", "--stage graph-capture"])
def test_what_can_be_asked_for(words: str) -> None:
    """A window each of two stages, no window yet, and a stage that is recorded as a whole."""
    request = options(words).checked()
    assert (len(request.windows), request.stage) == (words.count(":"), "graph-capture" * ("stage" in words))


def test_a_stage_that_others_have_is_said_to_be_theirs() -> None:
    verl = KNOWN["verl"]
    with pytest.raises(Problem) as caught:
        resolve(options("--stage rollout").checked(), verl, target(verl), upstreams)
    assert caught.value.kind is Kind.NO_RECIPE
    assert (
        caught.value.cause
        == "verl: the stage rollout is not available; targets with this stage: mindspeed-rl, sglang, vllm, vllm-ascend"
    )
    assert caught.value.hint == (
        "choose one of update-policy, compute-log-prob, update-critic, compute-values, timeline, weight-sync"
    )


def test_the_profiler_of_the_framework_is_one_of_torch_npu_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    ascend = KNOWN["vllm-ascend"]._replace(runs_on={"torch": "torch"})
    config = resolve(options("--builtin --level level2").checked(), ascend, target(ascend, tmp_path))
    assert config.profiler == TorchNpuSettings(level="level2")
    assert resolve(options("--decode 1:2").checked(), ascend, target(ascend, tmp_path)).profiler == TorchSettings()
