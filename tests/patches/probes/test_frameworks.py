"""Whose call a stage is, what a batch holds and which loops count, in the workers of each framework, as tables.

Real workers run the same classes in ``tests/patches/test_on_*``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes import areal, mindspeed, nemo_rl, openrlhf, sglang, slime, trl, verl, vllm
from patches.probes.recorder import ReplicaRecorder
from patches.probes.training import TrainingSteps


def probe(kind: Any, worker: Any = None, **fields: Any) -> Any:
    """Return a recorder that was not set up, with a worker and other fields."""
    made = kind.__new__(kind)
    made.worker, made.calls = worker, {}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a class of a framework tells the counting, in order."""
    log: list[str] = []

    def told(name: str) -> Callable[..., None]:
        return lambda _self, *words: log.append(" ".join([name, *map(str, words)]))

    for name in ("enter", "leave", "start", "stop", "pause", "finish", "exit"):
        monkeypatch.setattr(TrainingSteps, name, told(name))
    return log


def modules(**attributes: Any) -> Any:
    return Some(modules=lambda: iter([Some(), Some(**attributes)]))


class PolicyModelActor: ...


class ReferenceModelActor: ...


class CriticModelActor: ...


class Other: ...


OPTIMIZER = object()
LORA = {"no_lora_adapter": Some(data=True)}
ENGINE = Some(config=Some(model_type="language_model"), engine_config=Some(forward_only=False))
WHOSE: list[tuple[type[Any], Any, tuple[Any, ...], str]] = [
    (verl.DataParallelActor, Some(actor_optimizer=None), (), "ref"),
    (verl.DataParallelActor, Some(actor_optimizer=OPTIMIZER, actor_module=modules()), (), "actor"),
    (verl.DataParallelActor, Some(actor_optimizer=OPTIMIZER, actor_module=modules(_disable_adapters=True)), (), "ref"),
    (verl.DataParallelActor, Some(actor_optimizer=OPTIMIZER, actor_module=modules(_disable_adapters=False)), (), "actor"),
    (verl.MegatronActor, None, (), "actor"),
    (verl.MegatronLogProb, Some(actor_optimizer=None), (), "ref"),
    (verl.MegatronLogProb, Some(actor_optimizer=OPTIMIZER, actor_module=[modules(), modules()]), (), "actor"),
    (verl.MegatronLogProb, Some(actor_optimizer=OPTIMIZER, actor_module=[modules(), modules(_adapter_enabled=False)]), (), "ref"),
    (verl.MegatronLogProb, Some(actor_optimizer=OPTIMIZER, actor_module=[modules(_adapter_enabled=True)]), (), "actor"),
    (verl.Trainer, Some(config=Some(model_type="value_model")), ({},), "critic"),
    (verl.Trainer, ENGINE, ({},), "actor"), (verl.Trainer, ENGINE, (LORA,), "ref"),
    (verl.Trainer, ENGINE, ({"no_lora_adapter": True},), "ref"), (verl.Trainer, ENGINE, ({"no_lora_adapter": Some(data=False)},), "actor"),
    (verl.Trainer, Some(config=ENGINE.config, engine_config=Some(forward_only=True)), ({},), "ref"),
    (openrlhf.ReplayUpdate, None, (), "critic"),
    (openrlhf.Batches, PolicyModelActor(), ("forward",), "actor"), (openrlhf.Batches, ReferenceModelActor(), ("forward",), "ref"),
    (openrlhf.Batches, CriticModelActor(), ("forward",), "critic"), (openrlhf.Batches, Other(), ("forward",), ""),
    (openrlhf.Batches, PolicyModelActor(), ("fit",), ""),
    (slime.ModelSteps, Some(), ([Some(config=7)],), "actor"), (slime.ModelSteps, Some(), ([Some(config=7, role="critic")],), "critic"),
    (slime.ModelSteps, Some(), ([Some(config=7, role="actor")], "ref_"), "ref"),
    (areal.VersionedSteps, Some(config=Some(optimizer=OPTIMIZER)), (), "critic"),
    (trl.TrainerSteps, None, ("ref",), "ref"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "worker", "call", "role"), WHOSE)
def test_a_call_is_of_the_role_whose_weights_it_uses(
    kind: type[Any], worker: Any, call: Sequence[Any], role: str
) -> None:
    assert probe(kind, worker, ROLES=("critic",)).role_of_call(*call) == role
    assert kind is not slime.ModelSteps or worker.tf_config == 7


@pytest.mark.parametrize(("optimizer", "role"), [(OPTIMIZER, "actor"), (None, "ref")])
def test_an_actor_of_areal_without_an_optimizer_is_the_reference(optimizer: object, role: str) -> None:
    steps = probe(areal.VersionedSteps, Some(config=Some(optimizer=optimizer)), ROLES=("actor", "ref"))
    assert steps.role_of_call() == role


@pytest.mark.parametrize(
    ("version", "before", "calls"), [(0, {}, 0), (5, {}, 5), (3, {"actor": 4}, 4), (5, {"actor": 4}, 5)]
)
def test_the_steps_of_areal_are_its_versions_or_calls(
    version: int, before: dict[str, int], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(TrainingSteps, "begin_call", lambda _self, role: begun.append(role))
    steps = probe(areal.VersionedSteps, Some(engine=Some(get_version=lambda: version)))
    steps.calls = dict(before)
    steps.begin_call("actor")
    assert (steps.calls, begun) == ({"actor": calls}, ["actor"])


@pytest.mark.parametrize(
    ("reached", "chosen", "window"),
    [(0, True, (2, "waiting")), (3, True, (3, "waiting")), (4, True, (4, "waiting")), (5, True, (2, None)), (3, False, (2, None))],
)  # fmt: skip
def test_a_call_of_verl_that_goes_on_in_a_step_has_what_is_left_of_the_window(
    reached: int, chosen: bool, window: tuple[int, str | None]
) -> None:
    notes: list[str] = []
    values = {
        "goes_on": True,
        "role": "actor",
        "reached": {"actor": reached, "ref": 9},
        "first": 2,
        "open_at": None,
        "window": "2:5",
    }
    steps = probe(verl.LoggedSteps, **values, is_chosen=lambda: chosen, write_state=notes.append)
    steps.begin_step()
    assert (steps.unit, steps.first, next(iter(notes), None)) == (reached, *window)
    assert (steps.open_at is not None) == bool(notes)


def test_a_call_of_nemo_rl_has_mini_batches_until_none_is_left(events: list[str]) -> None:
    steps = probe(nemo_rl.PolicyUpdate, ROLES=("actor",))
    steps.begin(False)
    steps.go_on(True)
    steps.go_on(False)
    assert events == ["enter False", "start mini-batch None", "start mini-batch None", "leave"]
    assert [steps.role_of_call(evaluates) for evaluates in (False, True)] == ["actor", ""]
    log_probs = probe(nemo_rl.PolicyLogProbs)
    assert log_probs.role_of_call() == "actor"
    log_probs.reference()
    assert [log_probs.role_of_call(), log_probs.role_of_call()] == ["ref", "actor"]


ROLES = {"actor": "train_actor", "ref": "reference", "critic": "critic"}


@pytest.mark.parametrize(("stages", "chunks", "unit", "refused"), [
    (1, 1, "micro-batch", False), (2, 1, "micro-batch", True), (1, 2, "micro-batch", True), (2, 2, "mini-batch", False),
])  # fmt: skip
@pytest.mark.parametrize("role", ROLES)
def test_a_worker_of_mindspeed_rl_has_an_engine_for_each_role(
    role: str, stages: int, chunks: int, unit: str, refused: bool
) -> None:
    engines = {name: Some(model=[name] * chunks) for name in ROLES.values()}
    worker = Some(
        actor_hybrid=Some(train_actor=engines["train_actor"]), reference=engines["reference"], critic=engines["critic"],
        _rlpatch_stage_units="units", parallel_state=Some(get_pipeline_model_parallel_world_size=lambda: stages),
    )  # fmt: skip
    steps = probe(mindspeed.StageOfWorker, worker, UNIT=unit)
    assert steps.role_of_call(role) == role
    assert steps.engine is engines[ROLES[role]]
    assert steps.engine._rlpatch_stage_units == "units"
    assert bool(steps.framework_conflict()) == refused


@pytest.mark.parametrize(("engine", "rank", "dp"), [("1", 5, 2), ("1", 1, 0), ("0", 0, None)])
def test_a_replica_of_mindspeed_rl_is_a_part_of_the_training_s_world(
    engine: str, rank: int, dp: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = ModuleType("torch.distributed")
    dist.get_rank, dist.get_world_size = lambda: rank, lambda: 8  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.distributed = dist  # type: ignore[attr-defined]
    for name, module in (("torch", torch), ("torch.distributed", dist)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("VLLM_USE_V1", engine)
    monkeypatch.setattr(ReplicaRecorder, "__init__", lambda *_: None)
    worker = Some(_rlpatch_stage_worker=Some(vllm_config=Some(parallel_config=Some(world_size=2))))
    if dp is None:
        with pytest.raises(RuntimeError, match="VLLM_USE_V1=0"):
            mindspeed.HostedRanks(worker)
        return
    ranks = mindspeed.HostedRanks(worker)
    assert (ranks.rank, ranks.dp, ranks.count_ranks(worker)) == (rank, dp, 8)


def test_an_engine_of_mindspeed_rl_sees_each_iteration_of_its_worker_first() -> None:
    log: list[Any] = []

    def execute_model(*args: Any, **options: Any) -> str:
        log.append((args, options))
        return "output"

    engine: Any = mindspeed.HostedWorker.__new__(mindspeed.HostedWorker)
    engine._rlpatch_stage = lambda *words: log.append(words)
    worker = Some(execute_model=execute_model)
    engine._rlpatch_stage_attend(worker)
    assert worker.execute_model("batch", 7, more=1) == "output"
    assert log == [("step", "batch"), (("batch", 7), {"more": 1})]
    assert engine._rlpatch_stage_worker is worker


@pytest.mark.parametrize(("speculative", "growth"), [(None, 1), (Some(num_speculative_tokens=3), 4)])
def test_a_step_of_mindspeed_rl_adds_a_token_and_its_drafts(speculative: Any, growth: int) -> None:
    worker = Some(_rlpatch_stage_worker=Some(vllm_config=Some(speculative_config=speculative)))
    assert probe(mindspeed.HostedRanks).context_growth(worker) == growth


@pytest.mark.parametrize(("attention", "more", "world", "ranks"), [
    (False, {"dp_size": 4}, 2, 8), (True, {"dp_size": 4}, 2, 2), (False, {}, 2, 2), (False, {"dp_size": 3}, 0, 3),
])  # fmt: skip
def test_the_ranks_of_sglang_are_those_of_all_replicas(
    attention: bool, more: dict[str, int], world: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, dist = ModuleType("torch"), ModuleType("torch.distributed")
    dist.is_available, dist.is_initialized = lambda: True, lambda: bool(world)  # type: ignore[attr-defined]
    dist.get_world_size = lambda: world  # type: ignore[attr-defined]
    torch.distributed = dist  # type: ignore[attr-defined]
    for name, module in (("torch", torch), ("torch.distributed", dist)):
        monkeypatch.setitem(sys.modules, name, module)
    dist.get_rank = lambda: 0  # type: ignore[attr-defined]
    monkeypatch.setattr(ReplicaRecorder, "__init__", lambda self, _: setattr(self, "done", False))
    for draft in (None, False, True):  # None: before 0.4.1.post4
        worker = Some(server_args=Some(enable_dp_attention=attention, **more))
        if draft is not None:
            worker.is_draft_worker = draft
        runner = sglang.TargetModel(worker)
        assert (runner.done, runner.count_ranks(worker)) == (bool(draft), ranks)


@pytest.mark.parametrize(("world", "parallel", "rank", "dp", "ranks"), [
    (0, {"data_parallel_index": 2, "data_parallel_rank": 1}, 5, 2, 6), (0, {}, 1, 0, 6), (2, {"data_parallel_rank": 1}, 9, 1, 6),
    (12, {"data_parallel_index": 1}, 7, 1, 12),
])  # fmt: skip
def test_the_ranks_of_vllm_are_those_of_all_replicas(
    world: int, parallel: dict[str, int], rank: int, dp: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica has two ranks; the worker is rank 1 of its engine, and rank 7 of torch's world."""
    torch, dist = ModuleType("torch"), ModuleType("torch.distributed")
    dist.is_available, dist.is_initialized = lambda: True, lambda: bool(world)  # type: ignore[attr-defined]
    dist.get_world_size = lambda: world  # type: ignore[attr-defined]
    torch.distributed = dist  # type: ignore[attr-defined]
    for name, module in (("torch", torch), ("torch.distributed", dist)):
        monkeypatch.setitem(sys.modules, name, module)
    dist.get_rank = lambda: 7  # type: ignore[attr-defined]
    monkeypatch.setattr(ReplicaRecorder, "__init__", lambda *_: None)
    config = Some(parallel_config=Some(world_size=2, data_parallel_size=3, **parallel))
    worker = Some(rank=1, vllm_config=config)
    made = vllm.VllmWorker(worker)
    assert (made.rank, made.dp, made.count_ranks(worker)) == (rank, dp, ranks)


@pytest.mark.parametrize("cached", [
    Some(resumed_req_ids=["b"]), [Some(req_id=name, resumed_from_preemption=name == "b") for name in "abc"],
    Some(req_ids=[*"abc"], resumed_from_preemption=[False, True, False]),
])  # fmt: skip
def test_requests_that_resumed_are_found_in_each_form_of_a_batch(cached: Any) -> None:
    requests = probe(vllm.ResumedSomehow, prefilling={})
    requests.add_resumed(Some(scheduled_cached_reqs=cached))
    assert requests.prefilling == {"b": -1}


def test_a_step_of_sglang_adds_a_token_and_its_drafts_and_serves_what_its_mode_says() -> None:
    batches = probe(sglang.SglangRollout)
    for drafts, growth in (
        ({}, 1),
        ({"speculative_num_draft_tokens": None}, 1),
        ({"speculative_num_draft_tokens": 5}, 6),
    ):
        assert batches.context_growth(Some(server_args=Some(**drafts))) == growth
    for mode, serves in ((Some(value="prefill"), "prefill"), ("none", ""), (None, "")):
        assert batches.serves(Some(disaggregation_mode=mode)) == serves
    assert batches.serves(Some()) == ""
    runner = probe(sglang.TargetModel)
    assert [runner.serves(Some(server_args=args)) for args in (Some(disaggregation_mode="decode"), Some())] == [
        "decode",
        "",
    ]


# ---------------------------------------------------------------- profilers of the frameworks


@pytest.mark.parametrize(("kind", "worker", "name", "module", "refused"), [
    (verl.MegatronActor, Some(), "none", None, False), (verl.MegatronActor, Some(prof=Some(check=lambda: False)), "none", None, False),
    (verl.MegatronActor, Some(prof=Some(check=lambda: True)), "none", None, True),
    (verl.Trainer, None, "none", None, False),
    (verl.Trainer, None, "verl.utils.profiler.torch_profile", Some(Profiler=Some(_active_prof=None)), False),
    (verl.Trainer, None, "verl.utils.profiler.torch_profile", Some(Profiler=Some(_active_prof=1)), True),
    (areal.VersionedSteps, None, "none", None, False),
    (areal.VersionedSteps, None, "areal.utils.perf_tracer", Some(_profiler_active=Some(get=lambda default: default)), False),
    (areal.VersionedSteps, None, "areal.utils.perf_tracer", Some(_profiler_active=Some(get=lambda _default: True)), True),
    (openrlhf.Batches, None, "none", None, False),
])  # fmt: skip
def test_nothing_is_recorded_beside_a_profiler_of_the_framework(
    kind: type[Any], worker: Any, name: str, module: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, module)
    assert bool(probe(kind, worker).framework_conflict()) == refused


# ---------------------------------------------------------------- what a batch holds


class Tensor:
    is_nested = False

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def size(self, at: int) -> int:
        return self.shape[at]

    def numel(self) -> int:
        return self.shape[0]


def chunk(offset: int) -> Any:
    return Some(micro_batch_indices=[[0, 2], [1]], offset=offset, rollout_data={"total_lengths": [10, 20, 40]})


ROLLOUT = {"input_ids": Tensor(3, 9), "prompt_ids": Tensor(3, 9), "completion_ids": Tensor(3, 5)}
HOLDS: list[tuple[type[Any], Any, dict[str, Any]]] = [
    (slime.ModelSteps, chunk(0), {"sequences": 2, "tokens": 50}), (slime.ModelSteps, chunk(1), {"sequences": 1, "tokens": 20}),
    (slime.ModelSteps, chunk(2), {}), (slime.ModelSteps, {"input_ids": Tensor(2, 7)}, {"sequences": 2, "padded": [2, 7]}),
    (areal.VersionedSteps, Some(orig_mb={"cu_seqlens": [0, 4, 9], "input_ids": Tensor(9)}), {"sequences": 2, "tokens": 9}),
    (areal.VersionedSteps, {"input_ids": Tensor(2, 7)}, {"sequences": 2, "padded": [2, 7]}), (areal.VersionedSteps, 7, {}),
    (trl.TrainerUpdate, ROLLOUT, {"sequences": 3, "padded": [3, 14]}),
    (trl.TrainerUpdate, {"input_ids": Tensor(2, 7)}, {"sequences": 2, "padded": [2, 7]}), (trl.TrainerUpdate, None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "batch", "contents"), HOLDS)
def test_a_batch_holds_sequences_and_tokens(kind: type[Any], batch: Any, contents: dict[str, Any]) -> None:
    assert probe(kind).contents(batch) == contents


# ---------------------------------------------------------------- which loops count


@pytest.mark.parametrize(("accumulated", "dynamic", "minis"), [
    (2, None, ["12.", "34.", "5"]), (0, None, ["1.", "2.", "3.", "4.", "5."]), (9, None, ["12345"]),
    (1, [0, 1, 1], ["12.", "3.", "45."]), (1, [], ["1.", "2.", "3.", "4.", "5."]),
])  # fmt: skip
def test_the_optimizer_of_openrlhf_steps_behind_a_mini_batch(
    accumulated: int, dynamic: list[int] | None, minis: list[str], events: list[str]
) -> None:
    """A point stands for the step of the optimizer."""
    buffer = Some() if dynamic is None else Some(dynamic_optimizer_step=dynamic)
    worker = Some(replay_buffer=buffer, strategy=Some(accumulated_gradient=accumulated))
    steps = probe(openrlhf.ReplayUpdate, worker)
    steps.enter()
    for number in range(1, 6):
        steps.start("micro-batch", number)
        steps.stop("micro-batch")
    expected = ["enter"]
    for mini in minis:
        expected.append("start mini-batch None")
        for micro in mini:
            stops = ["stop mini-batch"] if micro == "." else [f"start micro-batch {micro}", "stop micro-batch"]
            expected += stops
    assert events == expected
    steps.enter()
    assert steps.taken == 0


def trl_worker(step: int = 4, *, sync: bool = False, **args: Any) -> Any:
    settings = Some(**{"gradient_accumulation_steps": 2, **args})
    return Some(state=Some(global_step=step), args=settings, accelerator=Some(sync_gradients=sync))


@pytest.mark.parametrize(("unit", "more", "refused"), [
    ("mini-batch", {}, False), ("mini-batch", {"steps_per_generation": 1}, True), ("mini-batch", {"steps_per_generation": 2}, False),
    ("mini-batch", {"steps_per_generation": None}, False), ("micro-batch", {"steps_per_generation": 1}, False),
])  # fmt: skip
def test_trl_generates_within_a_mini_batch_of_several_generations(
    unit: str, more: dict[str, Any], refused: bool
) -> None:
    assert bool(probe(trl.TrainerUpdate, trl_worker(**more), UNIT=unit).framework_conflict()) == refused


def test_a_training_step_of_trl_is_the_one_of_its_log(events: list[str]) -> None:
    worker = trl_worker(4)
    steps = probe(trl.TrainerUpdate, worker, UNIT="micro-batch", prof=None, unit=3, first=1)
    steps.prepared("eval", training=False)
    steps.prepared("a")
    assert steps.calls == {"actor": 4}
    steps.calls["actor"] = 5  # as the counting does
    steps.prepared("b")
    steps.computed()
    steps.prof = object()
    steps.computed()
    steps.unit = 1  # the first one of the window has not begun
    steps.computed()
    worker.accelerator.sync_gradients = True
    steps.computed()
    steps.updated()
    assert events == [
        "enter actor", "start mini-batch None", "start micro-batch a", "start micro-batch b", "stop micro-batch",
        "stop micro-batch", "pause", "stop micro-batch", "stop micro-batch", "leave the training step ends", "stop mini-batch",
        "leave the training step ends",
    ]  # fmt: skip
    events.clear()
    probe(trl.TrainerUpdate, worker, UNIT="micro-batch", prof=object(), unit=1, first=1).computed()
    probe(trl.TrainerUpdate, worker, UNIT="mini-batch", prof=object(), unit=9, first=1).computed()
    assert events == ["stop micro-batch", "leave the training step ends", "stop micro-batch"]


TRAINED, REFERENCE = object(), object()


@pytest.mark.parametrize(("model", "trained", "role"), [
    (None, modules(), "actor"), (REFERENCE, modules(), "ref"), (None, modules(_disable_adapters=True), "ref"),
    (None, Some(active_adapter="ref", modules=list), "ref"), (None, Some(active_adapter="default", modules=list), "actor"),
    (None, modules(_disable_adapters=False), "actor"),
])  # fmt: skip
def test_log_probs_of_trl_are_of_the_model_that_is_asked(model: Any, trained: Any, role: str) -> None:
    assert probe(trl.LogProbs, Some(model=trained, ref_model=REFERENCE)).role_of(model or trained) == role


@pytest.mark.parametrize(
    ("grad", "training", "counts"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_log_probs_of_trl_count_once_a_step_and_without_gradients(
    grad: bool, training: bool, counts: bool, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")
    torch.is_grad_enabled = lambda: grad  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    model = Some(modules=list, training=training)
    steps = probe(trl.LogProbs, Some(model=model, ref_model=None, state=Some(global_step=0)))
    steps.parts(model)
    steps.calls["actor"] = 1
    steps.parts(model)
    assert events == ["enter actor", "start micro-batch None"] * counts
    steps.go_on(True)
    steps.go_on(False)
    assert events[-2:] == ["start micro-batch None", "leave"]


def test_what_transformers_loop_calls_is_told_and_still_done() -> None:
    log: list[str] = []

    class Trainer:
        def floating_point_ops(self, inputs: int) -> int:
            return 2 * inputs

        def _maybe_log_save_evaluate(self, *words: str, **options: str) -> None:
            log.extend([*words, *options])

    class Patched(trl.TransformersLoop, Trainer):
        def _rlpatch_stage(self, event: str) -> None:
            log.append(event)

    patched = Patched()
    assert patched.floating_point_ops(21) == 42
    patched._maybe_log_save_evaluate("loss", start="now")
    assert log == ["computed", "updated", "loss", "start"]


def test_log_probs_that_no_role_computed_are_told_at_the_end(events: list[str]) -> None:
    steps = probe(trl.LogProbs, ROLES=("ref", "actor"), steps={7, 3})
    steps.exit()
    assert (steps.role, steps.step) == ("ref", 3)
    assert events == ["finish not recorded: the process ends, and ref and actor computed no log-probs"]
    steps.exit()
    assert events[1:] == ["exit"]


@pytest.mark.parametrize(
    ("unit", "prof", "last", "called"),
    [(3, "open", False, ["pause"]), (2, "open", False, []), (3, None, False, []), (3, "open", True, ["leave"])],
)
def test_between_the_micro_batches_of_an_open_window_there_is_a_pause(
    unit: int, prof: str | None, last: bool, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window begins with number 2, before which there is nothing to tell apart."""
    calls: list[str] = []
    for kind in (trl.TrainerUpdate, TrainingSteps):
        monkeypatch.setattr(kind, "stop", lambda *_: None, raising=False)
        monkeypatch.setattr(kind, "leave", lambda *_: calls.append("leave"), raising=False)
        monkeypatch.setattr(kind, "pause", lambda *_: calls.append("pause"), raising=False)
    fields = {"UNIT": "micro-batch", "unit": unit, "first": 2, "prof": prof, "pid": os.getpid()}
    probe(trl.TrainerUpdate, Some(accelerator=Some(sync_gradients=last)), **fields).computed()
    probe(TrainingSteps, None, **fields).end_loop("micro-batch", last, True)
    assert calls == called * 2
