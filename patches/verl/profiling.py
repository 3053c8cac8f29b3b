"""verl's own profilers: which keys of its Hydra configuration switch them on, release by release.

Declarations and small predicates without any I/O; ``patcher.guards.configured`` holds the configuration of a run
against them. Read in ``verl/trainer/ppo/ray_trainer.py`` (who starts them), ``verl/utils/profiler/`` and
``verl/utils/debug/profile.py`` (what then happens), ``verl/workers/`` (which roles have one) and
``verl/trainer/config/`` (the keys and what they default to) of 0.2 to 0.9.1. verl 0.2 and 0.3 have none.
"""

from __future__ import annotations

from collections.abc import Mapping

from patcher.messages import Text
from patcher.switches import Application, ConfigSwitch, Key, State
from patches.shared_switches import NSYS

VERL = Text("verl's own profiler")
MEGATRON = Text("Megatron's profiler in verl")
SERVER = Text("the rollout server's profiler")
MEMORY = Text("verl's memory history")

_Values = Mapping[str, object]

_STEPS = "global_profiler.steps"
_ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic", "reward_model")
_ACTOR, _ROLLOUT, _REF = _ROLES[:3]
_OFF_OR_ON = (False, True)
_NO_STEPS_OR_ONE = (None, [1])


def _tools(recording_tool: str) -> tuple[object, ...]:
    """Return the values to try for a tool's key of the configuration: None, other tools, `recording_tool` last."""
    tools = ("nsys", "torch", "torch_memory", "precision_debugger", "npu")
    return (None, *(tool for tool in tools if tool != recording_tool), recording_tool)


# What makes a role run at all.
_ADVANTAGE = "algorithm.adv_estimator"
_RUNS = {
    "critic": (Key("critic.enable", (False, None, True)), Key(_ADVANTAGE, ("grpo", "gae"))),
    "reward_model": (Key("reward_model.enable", _OFF_OR_ON),),
}


def _has_workers(role: str, values: _Values) -> bool:
    """Tell whether a role has workers with these configuration `values`: key of the configuration → value.

    Roles without a key that switches them on always run. For the critic see `need_critic` in verl/trainer/ppo/utils.py.
    """
    by_advantage = role == "critic" and values["critic.enable"] is None
    return values[_ADVANTAGE] == "gae" if by_advantage else role not in _RUNS or bool(values[f"{role}.enable"])


# --- training steps ---

# Without a rank that is named, nsys and npu recorded none before 0.7.1, and rank 0 since.
_BY_ROLE = 'config.actor.get("profiler"'
_NO_RANKS_OR_ONE: tuple[object, ...] = ([], [0])


def _old_steps(role: str, releases: str, by_role: str) -> ConfigSwitch:
    """Return the switch that records training steps in a role, in verl 0.4.1 to 0.5.0.

    It is ON if the configuration lists steps and ranks, ARMED if it lists only steps, else OFF. `releases` is a version
    specifier, `by_role` the text in verl's code that tells these releases apart ("!TEXT": its absence).
    """
    ranks, every = f"{role}.profiler.ranks", f"{role}.profiler.all_ranks"

    def state(values: _Values) -> State:
        recorded = values[ranks] or values[every]
        return State.OFF if not values["trainer.profile_steps"] else State.ON if recorded else State.ARMED

    return ConfigSwitch(
        VERL,
        (Key("trainer.profile_steps", _NO_STEPS_OR_ONE), Key(ranks, _NO_RANKS_OR_ONE), Key(every, _OFF_OR_ON)),
        state,
        Text(
            "trainer.profile_steps lists the training steps that the configured ranks record with nsys or (from verl"
            " 0.5.0 on) with torch_npu"
        ),
        "verl/trainer/main_ppo.py and ppo/ray_trainer.py, verl/utils/debug/nvtx_profile.py, 0.4.1 and 0.5.0",
        releases=releases,
        armed=Text("the configuration lists training steps, but no ranks, so no worker records"),
        code=("trainer.profile_steps", by_role),
    )


def _steps(role: str, *, ranks_needed: bool) -> ConfigSwitch:
    """Return the switch that records training steps in a role: in verl 0.6.0 to 0.7.0 with `ranks_needed`, else later.

    In those releases, nsys and npu record nothing unless ranks are chosen.
    """
    enable, tool, ranks, every = (f"{role}.profiler.{key}" for key in ("enable", "tool", "ranks", "all_ranks"))
    keys = [Key(_STEPS, _NO_STEPS_OR_ONE), Key(tool, _tools("npu")), Key(enable, _OFF_OR_ON)]
    keys += [Key(ranks, _NO_RANKS_OR_ONE), Key(every, _OFF_OR_ON)] if ranks_needed else []

    def state(values: _Values) -> State:
        """Return ON if steps are chosen and the role records, ARMED if only steps are chosen, else OFF."""
        if not values[_STEPS]:
            return State.OFF
        chosen = not ranks_needed or values[tool] not in ("npu", "nsys") or values[ranks] or values[every]
        return State.ON if values[enable] and values[tool] and chosen and _has_workers(role, values) else State.ARMED

    return ConfigSwitch(
        VERL,
        (*keys, *_RUNS.get(role, ())),
        state,
        Text(
            "each role with an enabled profiler uses its own tool to record the training steps that"
            " global_profiler.steps lists"
        ),
        "verl/trainer/ppo/ray_trainer.py _start_profiling, verl/utils/profiler/profile.py DistProfiler, "
        "mstx_profile.py and nvtx_profile.py, from 0.6.0",
        releases=">=0.6.0.dev0,<0.7.1.dev0" if ranks_needed else ">=0.7.1.dev0",
        armed=Text(
            "the configuration lists training steps to profile, but nothing is recorded: no role of this run has an"
            " enabled profiler whose `tool` and `ranks` are set"
        )
        if ranks_needed
        else Text(
            "the configuration lists training steps to profile, but nothing is recorded: no role of this run has an"
            " enabled profiler whose `tool` is set"
        ),
        code=("global_profiler.steps", "!check_this_rank" if ranks_needed else "check_this_rank"),
    )


def _interval(values: _Values) -> State:
    """Return ON if fine-tuning lists its steps and enables the profiler, ARMED if it only lists steps, else OFF."""
    interval, enabled = values["trainer.profile_interval"], values["profiler.enable"] and values["profiler.tool"]
    begins = isinstance(interval, list) and bool(interval) and isinstance(interval[0], int) and interval[0] >= 0
    return State.ON if begins and enabled else State.ARMED if begins else State.OFF


_STEP_SWITCHES = (
    *(_old_steps(role, ">=0.4.1.dev0,<0.5.0.dev0", _BY_ROLE) for role in _ROLES),
    *(_old_steps(role, ">=0.5.0.dev0,<0.6.0.dev0", f"!{_BY_ROLE}") for role in ("actor_rollout_ref", *_ROLES[3:])),
    *(_steps(role, ranks_needed=True) for role in _ROLES),
    *(_steps(role, ranks_needed=False) for role in _ROLES[:-1]),
    ConfigSwitch(
        VERL,
        (
            Key("trainer.profile_interval", ([-1, -1], [0, 0])),
            Key("profiler.enable", _OFF_OR_ON),
            Key("profiler.tool", _tools("npu")),
        ),
        _interval,
        Text("trainer.profile_interval gives the first and the last training step that supervised fine-tuning records"),
        "verl/trainer/sft_trainer.py and sft_trainer_ray.py, from 0.7.0",
        releases=">=0.7.0.dev0",
        armed=Text("the configuration lists training steps, but does not enable the profiler, so nothing is recorded"),
        code=("trainer.profile_interval",),
    ),
)

# --- Megatron's actor, up to 0.7.0 ---

_STRATEGY = Key(f"{_ACTOR}.strategy", ("fsdp", "megatron"))
_LEGACY = Key("trainer.use_legacy_worker_impl", ("disable", "auto"))


def _old_megatron(role: str, enabled_state: State) -> ConfigSwitch:
    """Return the switch for Megatron's profiler in a role, in verl 0.4.0 to 0.5.0.

    `enabled_state` is its state if the configuration enables it.
    """
    key = f"{role}.profile.use_profile"
    return ConfigSwitch(
        MEGATRON,
        (Key(key, _OFF_OR_ON), _STRATEGY),
        lambda values: enabled_state if values[key] and values[_STRATEGY.name] == "megatron" else State.OFF,
        Text("update_policy starts torch.profiler for its first mini-batches"),
        "verl/workers/actor/megatron_actor.py and verl/utils/debug/profile.py, 0.4.0 to 0.5.0",
        releases=">=0.4.0.dev0,<0.6.0.dev0",
        armed=Text("the reference model's worker creates a torch.profiler, but nothing starts it")
        if enabled_state is State.ARMED
        else "",
        code=("config.use_profile",),
    )


def _megatron(values: _Values) -> State:
    """Return ON if the old Megatron actor runs and its torch profiler is enabled, else OFF."""
    torch = values[f"{_ACTOR}.profiler.enable"] and values[f"{_ACTOR}.profiler.tool"] == "torch"
    legacy = values[_STRATEGY.name] == "megatron" and values.get(_LEGACY.name) != "disable"
    return State.ON if torch and legacy else State.OFF


_MEGATRON = ConfigSwitch(
    MEGATRON,
    (Key(f"{_ACTOR}.profiler.enable", _OFF_OR_ON), Key(f"{_ACTOR}.profiler.tool", _tools("torch")), _STRATEGY),
    _megatron,
    Text("update_policy starts torch.profiler regardless of global_profiler.steps"),
    "verl/workers/actor/megatron_actor.py use_torch_profiler, 0.6.0 to 0.7.0",
    releases=">=0.6.0.dev0,<0.7.0.dev0",
    code=("use_torch_profiler", "!self.use_legacy_worker_impl"),
)
_MEGATRON_SWITCHES = (
    _old_megatron(_ACTOR, State.ON),
    _old_megatron(_REF, State.ARMED),
    _MEGATRON,
    _MEGATRON._replace(
        keys=(*_MEGATRON.keys, _LEGACY),
        releases=">=0.7.0.dev0,<0.7.1.dev0",
        code=("use_torch_profiler", "self.use_legacy_worker_impl"),
    ),
)

# --- the rollout server, from 0.7.1 on ---

_PROFILER = f"{_ROLLOUT}.profiler"
_SERVER_KEYS = (
    Key(f"{_PROFILER}.tool", _tools("npu")),
    Key(_STEPS, _NO_STEPS_OR_ONE),
    Key(f"{_PROFILER}.enable", _OFF_OR_ON),
    *(Key(f"{_PROFILER}.tool_config.{tool}.discrete", _OFF_OR_ON) for tool in ("npu", "torch")),
    Key(f"{_ROLLOUT}.name", ("sglang", "vllm")),
)


def _is_discrete(values: _Values) -> bool:
    """Tell whether the rollout's profiler (npu or torch) is enabled, with a separate profile for each stage."""
    tool = values[f"{_PROFILER}.tool"]
    is_known = tool in ("npu", "torch")
    return is_known and bool(values[f"{_PROFILER}.enable"] and values[f"{_PROFILER}.tool_config.{tool}.discrete"])


def _server(values: _Values) -> State:
    """Return ON if the rollout's server records chosen steps, ARMED if its workers make a profiler, else OFF."""
    if _is_discrete(values) and values[_STEPS]:
        return State.ON
    built = values[f"{_PROFILER}.tool"] in ("npu", "torch") and values[f"{_ROLLOUT}.name"] in (None, "vllm")
    return State.ARMED if built else State.OFF


def _chosen_server(values: _Values) -> State:
    """Return the state of a server whose profiler is only set up for the replicas that are to record."""
    # The directory is only given to replicas that will be asked to record.
    return _server(values) if _is_discrete(values) else State.OFF


_SERVER = ConfigSwitch(
    SERVER,
    _SERVER_KEYS,
    _server,
    Text("the rollout server records the training steps that global_profiler.steps lists"),
    "verl/workers/rollout/vllm_rollout/vllm_async_server.py and verl/utils/profiler/config.py "
    "build_vllm_profiler_args, 0.7.1 to 0.9.0",
    releases=">=0.7.1.dev0,<0.9.1.dev0",
    armed=Text(
        "vLLM's workers get a profiler directory and create a profiler, regardless of the configuration keys `steps`"
        " and `enable`"
    ),
    code=("build_vllm_profiler_args", "!def _should_profile("),
)
_SERVER_SWITCHES = (
    _SERVER,
    _SERVER._replace(
        state=_chosen_server,
        source="verl/workers/rollout/vllm_rollout/vllm_async_server.py _should_profile, 0.9.1",
        releases=">=0.9.1.dev0",
        armed=Text(
            "vLLM's workers get a profiler directory and create a profiler, regardless of the configuration key `steps`"
        ),
        code=("def _should_profile(",),
    ),
)

# --- memory ---


def _memory(role: str) -> ConfigSwitch:
    """Return the switch for verl's memory history in a role, from verl 0.6.0 on (the reward model's: before 0.7.1).

    It is ON if the role has workers and their tool is "torch_memory".
    """
    tool = f"{role}.profiler.tool"
    return ConfigSwitch(
        MEMORY,
        (Key(tool, _tools("torch_memory")), *_RUNS.get(role, ())),
        lambda values: State.ON if values[tool] == "torch_memory" and _has_workers(role, values) else State.OFF,
        Text(
            "every worker records the history of its memory allocations from its start, regardless of the"
            " configuration keys `steps` and `enable`; on NPUs, this needs verl 0.9.1 or later"
        ),
        "verl/utils/profiler/profile.py and torch_memory_profile.py TorchMemoryProfiler, from 0.6.0",
        # Then the reward model has no profiler any more, and an override of it would be refused.
        releases=">=0.6.0.dev0,<0.7.1.dev0" if role == "reward_model" else ">=0.6.0.dev0",
        code=("TorchMemoryProfiler",),
    )


_MEMORY_SWITCHES = tuple(_memory(role) for role in _ROLES)

# --- Ray's nsight ---

_RAY_NSIGHT = "ray_kwargs.ray_init.runtime_env.nsight"
_NSYS = ConfigSwitch(
    NSYS,
    (Key(_STEPS, _NO_STEPS_OR_ONE), Key("global_profiler.tool", _tools("nsys"))),
    lambda values: State.ON if values["global_profiler.tool"] == "nsys" and values[_STEPS] is not None else State.OFF,
    Text(
        "Ray starts verl's workers with nsys profile; CUPTI allows only one subscriber per process, so torch.profiler"
        " gets no kernels in these workers"
    ),
    "verl/trainer/ppo/ray_trainer.py worker_nsight_options and single_controller/ray/base.py, from 0.6.0",
    releases=">=0.6.0.dev0",
    code=("global_tool_config.nsys",),
)
_NSYS_SWITCHES = (
    _NSYS,
    _NSYS._replace(
        keys=(Key("trainer.profile_steps", _NO_STEPS_OR_ONE),),
        state=lambda values: State.OFF if values["trainer.profile_steps"] is None else State.ON,
        source="verl/trainer/ppo/ray_trainer.py worker_nsight_options, 0.4.1 to 0.5.0",
        releases=">=0.4.1.dev0,<0.6.0.dev0",
        code=("worker_nsight_options", "trainer.profile_steps"),
    ),
    _NSYS._replace(
        keys=(Key(_RAY_NSIGHT, (None, "default")),),
        state=lambda values: State.ON if values[_RAY_NSIGHT] else State.OFF,
        source="verl/trainer/main_ppo.py ray_init, from 0.6.0; ray/_private/runtime_env/nsight.py",
        code=("ray_kwargs",),
    ),
)

PROFILING = Application(
    packages=("verl", "recipe"),
    folder="verl/trainer/config",
    defaults=("ppo_trainer", "ppo_megatron_trainer", "sft_trainer_engine"),
    names=r"(?<!torch\.)(?<!utils\.)profiler\s*[]@.=:{[]|profile_(steps|interval)|use_profile|\btorch_memory\b"
    r"|profiler\.tool=nsys|runtime_env\.nsight\b|^\s*nsight\s*:",
    switches=(*_STEP_SWITCHES, *_MEGATRON_SWITCHES, *_SERVER_SWITCHES, *_MEMORY_SWITCHES, *_NSYS_SWITCHES),
)
