"""Meaning of verl's keys, release by release: each declaration answers off at its first values and on at its last."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from fixtures import releases
from patcher.switches import ConfigSwitch, Release, State
from patches.shared_switches import NSYS
from patches.verl.profiling import MEGATRON, MEMORY, PROFILING, SERVER, VERL
from tests.matrix import ends, examples, thinned

OFF, ARMED, ON = State.OFF, State.ARMED, State.ON
ALL = [
    pytest.param(one, id=f"{one.profiler} {one.keys[0].name.rpartition('.')[2]} {one.releases}")
    for one in PROFILING.switches
]


def test_every_switch_is_documented() -> None:
    for switch in PROFILING.switches:
        assert len(switch.why) > 40
        assert re.search(r"verl/\S+\.py", switch.source), switch
        assert SpecifierSet(switch.releases)
        assert len({key.name for key in switch.keys}) == len(switch.keys), switch
        assert all(len(key.values) > 1 for key in switch.keys), switch


def test_the_first_values_are_off_and_the_last_ones_are_not() -> None:
    for switch in PROFILING.switches:
        assert switch.state(dict.fromkeys(key.name for key in switch.keys)) is OFF, switch
        assert switch.state({key.name: key.values[0] for key in switch.keys}) is OFF, switch
        last = switch.state({key.name: key.values[-1] for key in switch.keys})
        assert last is ON or (last is ARMED and "reference model" in switch.armed), switch


def test_armed_is_explained_where_it_happens() -> None:
    for switch in PROFILING.switches:
        names = [key.name for key in switch.keys]
        ways = itertools.product(*((key.values[0], key.values[-1]) for key in switch.keys))
        states = {switch.state(dict(zip(names, way, strict=True))) for way in ways}
        assert bool(switch.armed) == (ARMED in states), switch


@pytest.mark.parametrize("switch", ALL)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_no_value_makes_a_predicate_raise(switch: ConfigSwitch, data: st.DataObject) -> None:
    value = st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.lists(st.one_of(st.none(), st.integers())),
        st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
        *(st.sampled_from(key.values) for key in switch.keys),
    )  # fmt: skip
    assert switch.state({key.name: data.draw(value) for key in switch.keys}) in State


# Which profilers each release has: the table of the guard.
EXIST = {
    "0.2 0.2.0.post1 0.2.0.post2 0.3.0.post0 0.3.0.post1": set(),
    "0.4.0": {MEGATRON},
    "0.4.1 0.5.0": {VERL, MEGATRON, NSYS},
    "0.6.0 0.6.1 0.7.0": {VERL, MEGATRON, MEMORY, NSYS},
    "0.7.1 0.8.0 0.9.0 0.9.1 0.10.0.dev0": {VERL, SERVER, MEMORY, NSYS},
    # A development tree has at least the minor release before it, whose fixes come from a branch; and perhaps any later.
    "0.3.1.dev0 0.4.0.dev0 0.5.1.dev3 0.7.0.dev 0.8.0.dev0": {VERL, MEGATRON, MEMORY, SERVER, NSYS},
}


@pytest.mark.parametrize(
    ("release", "profilers"), [(release, found) for names, found in EXIST.items() for release in names.split()]
)
def test_which_profilers_exist(release: str, profilers: set[str]) -> None:
    found = {one.profiler for one in PROFILING.switches if Release(release, releases.VERL).has(one)}
    assert found == profilers


def test_every_release_is_in_the_table() -> None:
    assert set(releases.VERL) <= {release for names in EXIST for release in names.split()}


@pytest.mark.parametrize("release", thinned(releases.VERL, ends(releases.VERL)))
def test_the_code_of_a_release_has_the_switches_that_are_declared_for_it(release: str) -> None:
    by_code = Release("", package=releases.release(release, "verl") / "verl")
    for switch in PROFILING.switches:
        assert switch.code
        if "reward_model.profiler.tool" not in {key.name for key in switch.keys}:
            assert by_code.has(switch) == Release(release).has(switch), switch


def state(profiler: str, release: str, values: Mapping[str, object]) -> State:
    """The severest state of the switches of one release."""
    active = [
        one for one in PROFILING.switches if one.profiler == profiler and Release(release, releases.VERL).has(one)
    ]
    states = [one.state({key.name: values.get(key.name) for key in one.keys}) for one in active]
    return max(states, key=lambda one: one.severity, default=OFF)


STEPS = {"global_profiler.steps": [1]}
ROLLOUT = "actor_rollout_ref.rollout.profiler"
NPU = {f"{ROLLOUT}.tool": "npu", "actor_rollout_ref.rollout.name": "vllm"}
ENABLED = {f"{ROLLOUT}.enable": True}
DISCRETE = {f"{ROLLOUT}.tool_config.npu.discrete": True}
SGLANG = {"actor_rollout_ref.rollout.name": "sglang"}
ACTOR = {"actor_rollout_ref.actor.profiler.enable": True, "actor_rollout_ref.actor.profiler.tool": "torch"}
MCORE = {"actor_rollout_ref.actor.strategy": "megatron"}
ENGINE = {"trainer.use_legacy_worker_impl": "disable"}
OLD = {"actor_rollout_ref.actor.profile.use_profile": True}
OLD_REF = {"actor_rollout_ref.ref.profile.use_profile": True}
OLD_STEPS = {"trainer.profile_steps": [1]}
GAE = {"algorithm.adv_estimator": "gae"}


def ranks(role: str) -> dict[str, object]:
    return {f"{role}.profiler.ranks": [0]}


def tool(role: str, name: str) -> dict[str, object]:
    return {f"{role}.profiler.enable": True, f"{role}.profiler.tool": name}


FINE_TUNING = {"trainer.profile_interval": [1, 2]}


@pytest.mark.parametrize(
    ("profiler", "values", "states"),
    [
        (VERL, OLD_STEPS, {"0.4.0": OFF, "0.4.1": ARMED, "0.5.0": ARMED, "0.6.0": OFF}),
        (VERL, OLD_STEPS | ranks("actor_rollout_ref.actor"), {"0.4.0": OFF, "0.4.1": ON, "0.5.0": ARMED, "0.6.0": OFF}),
        (VERL, OLD_STEPS | ranks("actor_rollout_ref"), {"0.4.1": ARMED, "0.5.0": ON, "0.6.0": OFF}),
        (VERL, OLD_STEPS | ranks("critic"), {"0.4.1": ON, "0.5.0": ON, "0.6.0": OFF}),
        (VERL, OLD_STEPS | {"critic.profiler.all_ranks": True}, {"0.4.1": ON, "0.5.0": ON}),
        (VERL, {"trainer.profile_steps": []}, {"0.4.1": OFF, "0.5.0": OFF}),
        (VERL, STEPS, {"0.5.0": OFF, "0.6.0": ARMED, "0.9.1": ARMED}),
        (VERL, STEPS | ACTOR, {"0.5.0": OFF, "0.6.0": ON, "0.7.1": ON, "0.9.1": ON}),
        (VERL, STEPS | {"global_profiler.tool": "nsys"}, {"0.6.0": ARMED, "0.9.1": ARMED}),
        (VERL, STEPS | tool("actor_rollout_ref.actor", "nsys"), {"0.6.0": ARMED, "0.7.0": ARMED, "0.7.1": ON, "0.9.1": ON}),
        (VERL, STEPS | tool("actor_rollout_ref.actor", "npu"), {"0.6.0": ARMED, "0.7.0": ARMED, "0.7.1": ON, "0.9.1": ON}),
        (VERL, STEPS | tool("actor_rollout_ref.ref", "npu") | ranks("actor_rollout_ref.ref"), {"0.6.0": ON, "0.9.1": ON}),
        (VERL, STEPS | tool("critic", "torch") | GAE, {"0.6.0": ON, "0.9.1": ON}),
        (VERL, STEPS | tool("critic", "torch") | {"algorithm.adv_estimator": "grpo"}, {"0.6.0": ARMED, "0.9.1": ARMED}),
        (VERL, STEPS | tool("critic", "torch") | {"critic.enable": True}, {"0.6.0": ON, "0.9.1": ON}),
        (VERL, STEPS | tool("critic", "torch") | GAE | {"critic.enable": False}, {"0.6.0": ARMED, "0.9.1": ARMED}),
        (VERL, STEPS | tool("reward_model", "torch"), {"0.6.0": ARMED, "0.7.0": ARMED, "0.7.1": ARMED}),
        (VERL, STEPS | tool("reward_model", "torch") | {"reward_model.enable": True}, {"0.6.0": ON, "0.7.0": ON, "0.7.1": ARMED}),
        (VERL, STEPS | {"critic.profiler.enable": True}, {"0.6.0": ARMED}),
        (VERL, ACTOR, {"0.6.0": OFF, "0.7.1": OFF, "0.9.1": OFF}),
        (VERL, {"global_profiler.steps": []} | ACTOR, {"0.6.0": OFF, "0.9.1": OFF}),
        (VERL, FINE_TUNING, {"0.6.1": OFF, "0.7.0": ARMED, "0.9.1": ARMED}),
        (VERL, FINE_TUNING | {"profiler.enable": True, "profiler.tool": "npu"}, {"0.6.1": OFF, "0.7.0": ON}),
        (VERL, {"trainer.profile_interval": [-1, -1], "profiler.enable": True, "profiler.tool": "npu"}, {"0.9.1": OFF}),
        (MEGATRON, OLD | MCORE, {"0.3.0.post1": OFF, "0.4.0": ON, "0.4.1": ON, "0.5.0": ON, "0.6.0": OFF}),
        (MEGATRON, OLD, {"0.4.0": OFF, "0.5.0": OFF}),
        (MEGATRON, OLD_REF | MCORE, {"0.4.0": ARMED, "0.5.0": ARMED, "0.6.0": OFF}),
        (MEGATRON, ACTOR | MCORE, {"0.5.0": OFF, "0.6.0": ON, "0.6.1": ON, "0.7.0": ON, "0.7.1": OFF}),
        (MEGATRON, ACTOR | MCORE | ENGINE, {"0.6.0": ON, "0.6.1": ON, "0.7.0": OFF}),
        (MEGATRON, ACTOR, {"0.6.0": OFF, "0.7.0": OFF}),
        (SERVER, NPU, {"0.7.0": OFF, "0.7.1": ARMED, "0.8.0": ARMED, "0.9.0": ARMED, "0.9.1": OFF}),
        (SERVER, NPU | ENABLED, {"0.7.0": OFF, "0.7.1": ARMED, "0.9.0": ARMED, "0.9.1": OFF}),
        (SERVER, NPU | ENABLED | DISCRETE, {"0.7.0": OFF, "0.7.1": ARMED, "0.9.0": ARMED, "0.9.1": ARMED}),
        (SERVER, NPU | ENABLED | DISCRETE | STEPS, {"0.7.0": OFF, "0.7.1": ON, "0.9.0": ON, "0.9.1": ON}),
        (SERVER, NPU | ENABLED | STEPS, {"0.7.1": ARMED, "0.9.0": ARMED, "0.9.1": OFF}),
        (SERVER, NPU | ENABLED | DISCRETE | SGLANG, {"0.7.1": OFF, "0.9.0": OFF, "0.9.1": OFF}),
        (SERVER, NPU | ENABLED | DISCRETE | SGLANG | STEPS, {"0.7.1": ON, "0.9.0": ON, "0.9.1": ON}),
        (SERVER, {f"{ROLLOUT}.tool": "nsys"} | ENABLED | STEPS, {"0.7.1": OFF, "0.9.1": OFF}),
        (MEMORY, {"critic.profiler.tool": "torch_memory"} | GAE, {"0.5.0": OFF, "0.6.0": ON, "0.7.1": ON, "0.9.1": ON}),
        (MEMORY, {"critic.profiler.tool": "torch_memory"}, {"0.6.0": OFF, "0.9.1": OFF}),
        (MEMORY, {"actor_rollout_ref.actor.profiler.tool": "torch_memory"}, {"0.5.0": OFF, "0.6.0": ON, "0.7.1": ON, "0.9.1": ON}),
    ],
)  # fmt: skip
def test_values_of_the_settings_give_the_expected_state(
    profiler: str, values: dict[str, object], states: dict[str, State]
) -> None:
    assert {release: state(profiler, release, values) for release in states} == states
