"""verl's published configurations, and scripts of our own over them: off, armed, on and unknown in each release."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fixtures import releases
from patcher.guards.result import GuardResult
from patcher.messages.errors import Kind, Problem
from patcher.switches import Release, State
from patches.shared_switches import MSMONITOR, NSYS
from patches.verl.profiling import MEGATRON, MEMORY, PROFILING, SERVER, VERL
from patches.verl.verl_switches import SWITCHES as VARIABLES
from tests.matrix import ends, every, examples, thinned, thinned_rows
from tests.patcher.guards.detecting import detect

OFF, ARMED, UNKNOWN, ON = State.OFF, State.ARMED, State.UNKNOWN, State.ON
PPO = "python3 -m verl.trainer.main_ppo "
MCORE = PPO + "--config-path=config --config-name='ppo_megatron_trainer.yaml' "
# Where something changes, and both ends; `--all-releases` composes every script in all of them.
BORDERS = ("0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.7.0", "0.7.1", "0.9.0", "0.9.1")
SHORT = ("0.9.1",)
"""The borders that the short run looks at: in the last release most profilers can be switched on."""


def guard(
    version: str,
    script: Path | None = None,
    command: str = "",
    config: Path | None = None,
    environ: dict[str, str] | None = None,
    root: Path | None = None,
) -> dict[str, GuardResult]:
    found = detect(
        VARIABLES,
        version=version,
        published=releases.VERL,
        package="verl",
        environ=environ or {},
        script=script,
        command=shlex.split(command),
        root=root or releases.release(version, "verl"),
        config=config,
        application=PROFILING,
    )
    severest: dict[str, GuardResult] = {}
    for one in found:
        severest.setdefault(one.profiler, one)
    return severest


def states(found: dict[str, GuardResult]) -> dict[str, State]:
    return {name: one.state for name, one in found.items() if one.state is not OFF}


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(text)
    return path


@pytest.mark.parametrize("version", thinned(releases.VERL, ends(releases.VERL)))
def test_what_a_release_packages_leaves_every_profiler_off(version: str) -> None:
    """So a launch that names no profiler is off without composing anything."""
    root = releases.release(version, "verl")
    active = [switch for switch in PROFILING.switches if Release(version, releases.VERL).has(switch)]
    names = [name for name in PROFILING.defaults if (root / PROFILING.folder / f"{name}.yaml").is_file()]
    assert names
    for name in names if active else ():
        with initialize_config_dir(str(root / PROFILING.folder), version_base=None):
            config = compose(name)
        for switch in active:
            values = {}
            for key in switch.keys:
                with suppress(OmegaConfBaseException):
                    value = OmegaConf.select(config, key.name)
                    values[key.name] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            assert switch.state({key.name: values.get(key.name) for key in switch.keys}) is OFF, (name, switch)
    found = guard(version)
    assert states(found) == {}
    assert {one.profiler for one in PROFILING.switches} <= set(found)


def test_a_project_that_is_not_here_is_unknown_until_a_launch_names_no_profiler(tmp_path: Path) -> None:
    def of(command: str) -> set[State]:
        found = detect((), version="", environ={}, command=command.split(), application=PROFILING)
        return {one.state for one in found}

    assert of("") == {UNKNOWN}
    assert of(PPO) == {OFF}
    assert of(PPO + ON_061) == {UNKNOWN}


# What a script adds, and what is then not off in each release; what is not named is off.
STEPS, NPU = "global_profiler.steps=[1,2] ", "global_profiler.tool=npu "
ENABLED = "actor_rollout_ref.actor.profiler.enable=True "
DISCRETE = "actor_rollout_ref.actor.profiler.tool_config.npu.discrete=True "
RANKS = "actor_rollout_ref.actor.profiler.all_ranks=True "
CRITIC = "critic.profiler.tool=npu critic.profiler.enable=True critic.profiler.ranks=[0] "
GRPO = "algorithm.adv_estimator=grpo "
TRAP = "global_profiler.steps=null " + NPU + ENABLED
OLD_STEPS = "trainer.profile_steps=[1,2] "
OLD_MEGATRON = "actor_rollout_ref.actor.profile.use_profile=True "
TORCH = "global_profiler.tool=torch "

SCRIPTS: dict[str, dict[str, dict[str, State]]] = {
    PPO: {},
    PPO + OLD_STEPS: {"0.4.1": {VERL: ARMED, NSYS: ON}, "0.5.0": {VERL: ARMED, NSYS: ON}},
    MCORE + OLD_STEPS: {"0.4.1": {VERL: ARMED, NSYS: ON}, "0.5.0": {VERL: ARMED, NSYS: ON}},
    PPO + OLD_STEPS + RANKS: {"0.4.1": {VERL: ON, NSYS: ON}, "0.5.0": {VERL: ARMED, NSYS: ON}},
    MCORE + OLD_STEPS + "actor_rollout_ref.profiler.ranks=[0] ": {
        "0.4.1": {VERL: ARMED, NSYS: ON}, "0.5.0": {VERL: ON, NSYS: ON},
    },
    PPO + "trainer.profile_steps=[]": {"0.4.1": {NSYS: ON}, "0.5.0": {NSYS: ON}},  # none is needed for Ray's nsight
    MCORE + OLD_MEGATRON: {"0.4.0": {MEGATRON: ON}, "0.4.1": {MEGATRON: ON}, "0.5.0": {MEGATRON: ON}},
    MCORE + "actor_rollout_ref.ref.profile.use_profile=True": {
        "0.4.0": {MEGATRON: ARMED}, "0.4.1": {MEGATRON: ARMED}, "0.5.0": {MEGATRON: ARMED},
    },
    PPO + STEPS: {version: {VERL: ARMED} for version in BORDERS[3:]},
    PPO + STEPS + NPU + ENABLED + RANKS: {
        **{version: {VERL: ON} for version in ("0.6.0", "0.7.0", "0.9.1")},
        **{version: {VERL: ON, SERVER: ARMED} for version in ("0.7.1", "0.9.0")},
    },
    PPO + STEPS + NPU + ENABLED: {
        **{version: {VERL: ARMED} for version in ("0.6.0", "0.7.0")},
        **{version: {VERL: ON, SERVER: ARMED} for version in ("0.7.1", "0.9.0")},
        "0.9.1": {VERL: ON},
    },
    PPO + STEPS + "global_profiler.tool=nsys ": {version: {VERL: ARMED, NSYS: ON} for version in BORDERS[3:]},
    PPO + "global_profiler.tool=nsys ": {},
    PPO + "+ray_kwargs.ray_init.runtime_env.nsight=default": {version: {NSYS: ON} for version in BORDERS[3:]},
    PPO + STEPS + CRITIC: {version: {VERL: ON} for version in BORDERS[3:]},
    PPO + STEPS + CRITIC + GRPO: {version: {VERL: ARMED} for version in BORDERS[3:]},
    PPO + STEPS + CRITIC + GRPO + "critic.enable=True": {version: {VERL: ON} for version in BORDERS[3:]},
    PPO + GRPO + "critic.profiler.tool=torch_memory": {},
    PPO + STEPS + NPU + ENABLED + DISCRETE: {
        **{version: {VERL: ARMED} for version in ("0.6.0", "0.7.0")},
        **{version: {VERL: ON, SERVER: ON} for version in ("0.7.1", "0.9.0", "0.9.1")},
    },
    PPO + TRAP: {"0.7.1": {SERVER: ARMED}, "0.9.0": {SERVER: ARMED}},
    PPO + TRAP + DISCRETE: {version: {SERVER: ARMED} for version in ("0.7.1", "0.9.0", "0.9.1")},
    PPO + TRAP + DISCRETE + "actor_rollout_ref.rollout.name=sglang": {},
    MCORE + TORCH + ENABLED: {
        **{version: {MEGATRON: ON} for version in ("0.6.0", "0.7.0")},
        **{version: {SERVER: ARMED} for version in ("0.7.1", "0.9.0")},
    },
    MCORE + TORCH + ENABLED + "trainer.use_legacy_worker_impl=disable": {
        "0.6.0": {MEGATRON: ON},
        **{version: {SERVER: ARMED} for version in ("0.7.1", "0.9.0")},
    },
    PPO + "global_profiler.tool=torch_memory": {version: {MEMORY: ON} for version in BORDERS[3:]},
    PPO + STEPS + "global_profiler.tool=$TOOL": {
        **{version: {VERL: ARMED, MEMORY: UNKNOWN, NSYS: UNKNOWN} for version in ("0.6.0", "0.7.0")},
        **{version: {VERL: ARMED, SERVER: UNKNOWN, MEMORY: UNKNOWN, NSYS: UNKNOWN} for version in ("0.7.1", "0.9.0")},
        "0.9.1": {VERL: ARMED, MEMORY: UNKNOWN, NSYS: UNKNOWN},
    },
    PPO + "+ray_kwargs.ray_init.runtime_env.env_vars.MSMONITOR_USE_DAEMON=1": {
        version: {MSMONITOR: UNKNOWN} for version in BORDERS
    },
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "over" not in metafunc.fixturenames:
        return
    pairs = [(text, version) for text in SCRIPTS for version in BORDERS]
    if not metafunc.config.getoption("--all-releases"):
        # The predicates are proven for all; what is composed is where a script begins to mean something else.
        before = dict(zip(BORDERS[1:], BORDERS, strict=False))
        pairs = [(text, version) for text, version in pairs
                 if SCRIPTS[text].get(version, {}) != SCRIPTS[text].get(before.get(version, ""), {})]  # fmt: skip
    short = [pair for pair in pairs if pair[1] in SHORT]
    metafunc.parametrize("over", thinned(pairs, short), ids=[f"{version} {text[12:]}" for text, version in pairs])


def test_scripts_over_the_published_configurations(tmp_path: Path, over: tuple[str, str]) -> None:
    text, version = over
    found = guard(version, script(tmp_path, text.replace(" ", " \\\n    ").rstrip("\\\n ") + "\n"))
    assert states(found) == SCRIPTS[text].get(version, {})


DEVELOPMENT = (
    ("0.3.1.dev0", "0.4.0", MCORE + OLD_MEGATRON),
    ("0.4.0.dev", "0.4.1", PPO + OLD_STEPS + RANKS),
    ("0.4.1.dev0", "0.5.0", MCORE + OLD_STEPS + "actor_rollout_ref.profiler.ranks=[0] "),
    ("0.5.1.dev3", "0.6.0", PPO + STEPS + NPU + ENABLED + RANKS),
    ("0.5.1.dev3+gabcdef1", "0.6.0", PPO + STEPS + NPU + ENABLED),
    ("0.7.0.dev", "0.7.1", MCORE + TORCH + ENABLED),
    ("0.7.0.dev", "0.7.0", MCORE + TORCH + ENABLED),
    ("0.8.0.dev0", "0.9.1", PPO + TRAP),
    ("0.8.0.dev0", "0.9.0", PPO + TRAP),
    ("", "0.6.0", PPO + STEPS + NPU + ENABLED),
)


@pytest.mark.parametrize(
    ("version", "code", "text"),
    thinned_rows(DEVELOPMENT, [row for row in DEVELOPMENT if row[1] in SHORT]),
)
def test_a_development_tree_is_judged_by_its_code_whatever_its_version_says(version: str, code: str, text: str) -> None:
    found = guard(version, command=text, root=releases.release(code, "verl"))
    assert states(found) == SCRIPTS[text].get(code, {})


ADVISED = [text for text in SCRIPTS if "$" not in text and SCRIPTS[text]]
ADVISED_FIRST = [text for text in ADVISED[::6] if [*SCRIPTS[text]][-1] in SHORT]


# Each of them composes several times; these have every profiler, and what is advised for several of its keys.
@pytest.mark.parametrize("text", thinned(ADVISED, ADVISED_FIRST))
def test_what_is_said_to_switch_it_off_switches_it_off(text: str) -> None:
    version = list(SCRIPTS[text])[-1]
    severe = [one for one in guard(version, command=text).values() if one.state is not OFF]
    assert severe
    for one in severe if MSMONITOR not in {one.profiler for one in severe} else ():
        overrides, _, place = one.off.removeprefix("set ").partition(" at ")
        assert (one.where, place) == ("command after --", "the command after --")
        assert guard(version, command=f"{text} {overrides}")[one.profiler].state is OFF


ON_061 = STEPS + NPU + ENABLED + RANKS
ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic", "reward_model")
UNSET = {VERL: UNKNOWN, MEGATRON: UNKNOWN, MEMORY: UNKNOWN, NSYS: UNKNOWN}


@pytest.mark.parametrize(
    ("text", "expected"),
    every(7, [  # each composes a configuration
        # quotes, signs, variables that the script sets
        (PPO + "'global_profiler.steps=[1, 2]' \"global_profiler.tool=npu\" " + ENABLED + RANKS, {VERL: ON}),
        (PPO + "++global_profiler.steps=[1] +global_profiler.tool=npu " + ENABLED + RANKS, {VERL: ON}),
        ("S='[1,2]'\nT=npu\n" + PPO + "global_profiler.steps=$S global_profiler.tool=${T} " + ENABLED + RANKS, {VERL: ON}),
        ("A=(" + ON_061 + ")\n" + PPO + '"${A[@]}"', UNSET),
        ("S=${S:-null}\n" + PPO + NPU + ENABLED + "global_profiler.steps=$S", {}),
        (PPO + ON_061 + "global_profiler.steps=null", {}),
        (PPO + ON_061 + "global_profiler.steps=[]", {}),
        ("# " + PPO + ON_061 + "\n" + PPO, {}),
        (PPO + STEPS + ENABLED + RANKS + "'global_profiler.tool=${oc.env:T}'", UNSET),
        # other ways to start it
        ("nohup " + PPO + ON_061 + "> log 2>&1 &", {VERL: ON}),
        (PPO + ON_061 + " 2>&1 | tee log", {VERL: ON}),
        ("ray job submit --working-dir . --no-wait -- " + PPO + ON_061, UNSET),
        ("docker exec box bash -c '" + PPO + ON_061 + "'", UNSET),
        (PPO + "--config-name _generated_ppo_trainer " + ON_061, {VERL: ON}),
        # only the run tells: that key, or everything
        (PPO + ON_061 + "trainer.nnodes=$N data.train_files=\"['$H/a']\" trainer.default_local_dir=$(pwd)/x", {VERL: ON}),
        (PPO + NPU + ENABLED + RANKS + "global_profiler.steps=$S", {VERL: UNKNOWN}),
        (PPO + NPU + ENABLED + RANKS + "global_profiler.steps=[$S]", {VERL: UNKNOWN}),
        (PPO + STEPS + NPU + RANKS + "actor_rollout_ref.actor.profiler.enable=$E", {VERL: UNKNOWN}),
        (PPO + "actor_rollout_ref.actor.profiler.enable=$E", {}),
        (PPO + TORCH + "actor_rollout_ref.actor.profiler.enable=$E actor_rollout_ref.actor.strategy=megatron", {MEGATRON: UNKNOWN}),
        (PPO + "trainer.nnodes=$(x) $EXTRA", UNSET),
        (PPO + "trainer.nnodes=$(x) $@", {}),
        (PPO + "--config-path=$(pwd)/config --config-name=mine", UNSET),
        (PPO + "+critic@critic.x=none", UNSET),
        ("python3 -m recipe.dapo.main_dapo " + ON_061, {VERL: ON}),
        # branches and loops
        ("if x; then " + PPO + ON_061 + "; fi", UNSET),
        ("for i in 1 2; do " + PPO + ON_061 + "; done", UNSET),
        ("for i in 1 2; do " + PPO + "; done", {}),
        ("if x; then S=[1]; else S=null; fi\n" + PPO + NPU + ENABLED + RANKS + "global_profiler.steps=$S", UNSET),
        ("A=()\nif x; then A+=(global_profiler.steps=null); fi\n" + PPO + ON_061 + '"${A[@]}"', UNSET),
        ("A=()\nif x; then A+=(trainer.nnodes=2); fi\n" + PPO + '"${A[@]}"', {}),
        ("set -e\nfalse\n" + PPO + ON_061, UNSET),
        ("[ -d x ] || exit 0\n" + PPO + ON_061, UNSET),
        (PPO + "\n" + PPO + ON_061, {VERL: ON}),
    ]),
)  # fmt: skip
def test_what_a_script_says(tmp_path: Path, text: str, expected: dict[str, State]) -> None:
    assert states(guard("0.6.1", script(tmp_path, text + "\n"))) == expected


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer trainer.profile_interval=[1,2]", "0.9.1", ARMED),
        ("python3 -m verl.experimental.one_step_off_policy.main_ppo --config-name=one_step_off_ppo_megatron_trainer "
         + ON_061, "0.9.1", ON),
    ],
)  # fmt: skip
def test_other_programs_of_verl(tmp_path: Path, text: str, version: str, expected: State) -> None:
    assert guard(version, script(tmp_path, text + "\n"))[VERL].state in (expected, UNKNOWN)


def test_the_place_and_the_override_are_named(tmp_path: Path) -> None:
    run = script(
        tmp_path, f"set -x\n{PPO}\\\n  {NPU}\\\n  {ENABLED}\\\n  {RANKS}\\\n  global_profiler.steps=[1,2] $@\n"
    )
    found = guard("0.6.1", run)[VERL]
    assert (found.state, found.where) == (ON, f"{run}:6")
    assert "global_profiler.steps=[1,2] " in found.found
    assert found.off == f"set global_profiler.steps=null at {run}:6"
    last = guard("0.6.1", command=f"bash {run} global_profiler.steps=null")[VERL]
    assert last.state is UNKNOWN  # which words a script gets is not followed
    assert guard("0.6.1", command=f"{PPO}{ON_061}global_profiler.steps=null")[VERL].state is OFF


PATHS = ("pkg://verl.trainer.config", "file://verl/trainer/config")
MINE = """\
hydra:
  searchpath:
    - {path}
defaults:
  - ppo_trainer
  - _self_

global_profiler:
  tool: npu
  steps: [2]
actor_rollout_ref:
  actor:
    profiler:
      enable: true
"""


@pytest.mark.parametrize("path", thinned(PATHS, PATHS[:1]))
@pytest.mark.parametrize(
    ("command", "expected"),
    every(2, [
        ("", ON),
        ("bash {run}", ON),
        (PPO + "global_profiler.steps=null", OFF),
        (PPO + "actor_rollout_ref.actor.profiler.enable=False", ARMED),
        ("bash {run} global_profiler.steps=null", UNKNOWN),
    ]),
)  # fmt: skip
def test_a_configuration_of_the_user(tmp_path: Path, path: str, command: str, expected: State) -> None:
    config = tmp_path / "my_trainer.yaml"
    config.write_text(MINE.format(path=path))
    run = script(tmp_path, PPO + '--config-path="$PWD/cfg" --config-name=my_trainer "$@"\n')
    found = guard("0.9.1", command=command.format(run=run), config=config)[VERL]
    assert found.state is expected
    if expected is ON:
        assert found.where == f"{config}:10"
        assert found.off == f"set global_profiler.steps=null on the command line, or at {config}:10"


@pytest.mark.parametrize(("tool", "expected"), [("torch_memory", ON), ("nsys", OFF)])
def test_a_configuration_that_is_made_of_others(tmp_path: Path, tool: str, expected: State) -> None:
    """It names no profiler itself."""
    (tmp_path / "more.yaml").write_text(f"global_profiler:\n  tool: {tool}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults:\n  - ppo_trainer\n  - more\n  - _self_\ntrainer:\n  nnodes: 2\n")
    assert guard("0.9.1", command=PPO, config=mine)[MEMORY].state is expected


@pytest.mark.parametrize(("name", "cause"), [("no.yaml", "this file does not exist"), ("a.json", "end in .yaml")])
def test_a_configuration_that_is_none(tmp_path: Path, name: str, cause: str) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(Problem, match=cause) as caught:
        guard("0.9.1", config=tmp_path / name)
    assert caught.value.kind is Kind.USAGE


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["=", "+a=", "~global_profiler", "a@b=c", "a/b=c", "global_profiler.steps=[", "x={", "${", "--cfg",
                     "-m", "-cn", "--config-path=", "actor@actor_rollout_ref.actor=x", "hydra.searchpath=3", "--help",
                     "global_profiler.steps=${a.b}", "global_profiler={tool: npu}", "global_profiler=3", "critic=null",
                     "trainer.profile_interval=x", "hydra/launcher=none", "a=glob(*)", "a=1,2", "$X", "a=$X", "a='"]),
)  # fmt: skip


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, max_size=4))
def test_no_words_make_it_raise_anything_but_a_problem(tmp_path: Path, words: list[str]) -> None:
    with suppress(Problem):
        (tmp_path / "run.sh").write_bytes((PPO + " ".join(words)).encode("utf-8", "surrogatepass"))
        assert guard("0.6.1", tmp_path / "run.sh")
