"""What vLLM's batches say of an iteration, as tables."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest

from patches.probes import vllm
from patches.probes.rollout import RolloutUnits


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a class of vLLM's tells the counting, in order."""
    log: list[str] = []
    monkeypatch.setattr(RolloutUnits, "begin_rollout", lambda _: log.append("begin"))

    def end(self: Any, why: str) -> None:
        log.append(f"end: {why}")
        self.forget()

    monkeypatch.setattr(RolloutUnits, "end_rollout", end)
    monkeypatch.setattr(RolloutUnits, "check_state", lambda _self, kind, load, _batch: log.append(f"{kind} {load}"))
    return log


def probe(kind: Any, **fields: Any) -> Any:
    made = kind.__new__(kind)
    made.done = False
    made.forget()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def inputs(*requests: str, prefills: int = 0, finished: tuple[str, ...] | None = ()) -> tuple[Any]:
    metadata = Some(
        num_prefills=prefills, num_prefill_tokens=9 * prefills, num_decode_tokens=2, max_prefill_seq_len=30, max_decode_seq_len=20
    )  # fmt: skip
    return (
        Some(finished_requests_ids=finished, request_ids_to_seq_ids=dict.fromkeys(requests), attn_metadata=metadata),
    )


FINISHED = "end: all requests have finished"
V0: dict[str, tuple[set[str], bool, tuple[Any], str, set[str], list[str]]] = {
    "a rollout begins": (set(), False, inputs("a", "b", prefills=2), "prefill", {"a", "b"}, ["begin", "prefill 3"]),
    "it goes on": ({"a", "b"}, False, inputs("a", "b"), "decode", {"a", "b"}, ["decode 3"]),
    "it goes on behind a sleep": (set(), False, inputs("a"), "decode", {"a"}, ["begin", "decode 3"]),
    "one has finished": ({"a", "b"}, False, inputs("b", finished=("a",)), "decode", {"b"}, ["decode 3"]),
    "all have finished": ({"a"}, False, inputs("b", prefills=1, finished=("a", "x")), "prefill", {"b"}, [FINISHED, "begin", "prefill 3"]),
    "nothing lives, and something finishes": (set(), False, inputs("b", finished=("a",)), "decode", {"b"}, ["begin", "decode 3"]),
    "a new one comes": ({"a"}, False, inputs("b", prefills=1), "prefill", {"a", "b"}, ["prefill 3"]),
    "none are told": ({"a"}, False, inputs("a", finished=None), "decode", {"a"}, ["decode 3"]),
    "nothing more is recorded": (set(), True, inputs("a"), "decode", {"a"}, ["decode 3"]),
}  # fmt: skip


@pytest.mark.parametrize("name", V0)
def test_a_model_input_tells_decode_from_prefill(name: str, events: list[str]) -> None:
    live, done, model_input, kind, after, told = V0[name]
    made = probe(vllm.ModelInputs, live={*live}, done=done)
    made.prepare(model_input)
    assert (made.observe(Some(num_seq_groups=3)), made.live, events) == (kind, after, told)


def test_without_requests_or_an_input_nothing_is_told(events: list[str]) -> None:
    made = probe(vllm.ModelInputs, live={"a"})
    made.prepare(inputs("a"))
    assert made.observe(Some(num_seq_groups=0)) is None
    with pytest.raises(RuntimeError, match="multi-step"):
        made.observe(Some(num_seq_groups=1))
    made.prepare(None)
    assert (events, made.live) == (["end: no request is left"], set())


@pytest.mark.parametrize(("prefill", "decode"), [(30, 20), (20, 30)])
def test_a_model_input_has_tokens_and_the_longest_context(prefill: int, decode: int, events: list[str]) -> None:
    made = probe(vllm.InputContexts)
    made.prepare(inputs("a", prefills=1))
    made.observe(Some(num_seq_groups=3))
    made.metadata.max_prefill_seq_len, made.metadata.max_decode_seq_len = prefill, decode
    assert made.contents(Some(num_seq_groups=3)) == {"requests": 3, "tokens": 11, "longest": 30}
    assert made.longest_context(None, 0, True) == 30


TOKENS, EMBEDS, PREFILL = [1, 2, 3], [0.0] * 4, [1] * 5
PROMPTS: list[tuple[type[Any], dict[str, Any], int]] = [
    (vllm.PromptTokens, {"prompt_token_ids": TOKENS}, 3),
    (vllm.PromptEmbeds, {"prompt_token_ids": TOKENS, "prompt_embeds": EMBEDS}, 3),
    (vllm.PromptEmbeds, {"prompt_token_ids": None, "prompt_embeds": EMBEDS}, 4),
    (vllm.PrefillTokens, {"prompt_token_ids": TOKENS, "prompt_embeds": None, "prefill_token_ids": PREFILL}, 5),
    (vllm.PrefillTokens, {"prompt_token_ids": TOKENS, "prompt_embeds": EMBEDS, "prefill_token_ids": None}, 3),
    (vllm.PrefillTokens, {"prompt_token_ids": None, "prompt_embeds": EMBEDS, "prefill_token_ids": None}, 4),
    (vllm.AnyPrompt, {"prompt_token_ids": TOKENS, "prompt_embeds": EMBEDS}, 3),
    (vllm.AnyPrompt, {"prompt_token_ids": None, "prompt_embeds": EMBEDS}, 4),
    (vllm.AnyPrompt, {"prompt_token_ids": TOKENS, "prompt_embeds": None, "prefill_token_ids": PREFILL}, 5),
]


@pytest.mark.parametrize(("kind", "request_fields", "length"), PROMPTS)
def test_a_prompt_has_a_length_in_each_form(kind: type[Any], request_fields: dict[str, Any], length: int) -> None:
    assert probe(kind).prompt_length(Some(**request_fields)) == length


COUNTS = {"a": 1, "b": 4, "n": 7}
NEW = Some(req_id="n", num_computed_tokens=10)
OBJECTS = [Some(req_id="a", num_computed_tokens=20, resumed_from_preemption=False), Some(req_id="b", num_computed_tokens=30, resumed_from_preemption=True)]  # fmt: skip
LISTS: dict[str, Any] = {"req_ids": ["a", "b"], "num_computed_tokens": [20, 30]}
CACHED: list[tuple[type[Any], Any, list[int], list[str]]] = [
    (vllm.ResumedRequests, OBJECTS, [17, 21, 34], ["b"]),
    (vllm.ResumedSomehow, OBJECTS, [17, 21, 34], ["b"]),
    (vllm.ResumedNames, Some(**LISTS, resumed_req_ids={"b"}), [17, 21, 34], ["b"]),
    (vllm.ResumedFlags, Some(**LISTS, resumed_from_preemption=[False, True]), [17, 21, 34], ["b"]),
    (vllm.ResumedSomehow, Some(**LISTS, resumed_req_ids={"b"}), [17, 21, 34], ["b"]),
    (vllm.ResumedSomehow, Some(**LISTS, resumed_from_preemption=[False, True]), [17, 21, 34], ["b"]),
    (vllm.ResumedSomehow, Some(req_ids=["a"], resumed_req_ids={"a"}), [], ["a"]),
]


@pytest.mark.parametrize(("kind", "cached", "contexts", "resumed"), CACHED)
def test_cached_requests_have_contexts_and_resume_in_each_form(
    kind: type[Any], cached: Any, contexts: list[int], resumed: list[str]
) -> None:
    batch = Some(num_scheduled_tokens=COUNTS, scheduled_cached_reqs=cached, scheduled_new_reqs=[NEW])
    made = probe(kind)
    assert sorted(made.context_lengths(batch)) == contexts
    made.add_resumed(batch)
    assert made.prefilling == dict.fromkeys(resumed, -1)


@pytest.mark.parametrize(
    ("live", "names", "warms_up"),
    [(set(), ["_x_warmup_0"], True), (set(), ["x_warmup_0"], False), (set(), ["_x_0"], False), ({"a"}, ["_x_warmup_0"], False), (set(), [], False)],
)  # fmt: skip
def test_a_warm_up_of_the_model_runner_is_no_iteration(
    live: set[str], names: list[str], warms_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm.SchedulerOutputs, "observe", lambda *_: "decode")
    made = probe(vllm.WarmUps, live=live)
    assert made.observe(Some(num_scheduled_tokens=dict.fromkeys(names, 1))) == (None if warms_up else "decode")


@pytest.mark.parametrize(
    ("live", "done", "begun"), [(set(), False, True), ({"a"}, False, False), (set(), True, False), ({"a"}, True, False)]
)
def test_a_dummy_batch_begins_a_rollout_where_none_goes_on(
    live: set[str], done: bool, begun: bool, events: list[str]
) -> None:
    made = probe(vllm.AlignedOutputs, live=live, done=done)
    assert (made.observe(None), events) == ("dummy", ["begin"] * begun)
    assert made.OTHERS in made.live
    assert made.contents(None) == {"requests": 0, "tokens": 0}


@pytest.mark.parametrize("live", [set(), {"a"}])
def test_a_rank_with_requests_waits_for_those_of_others(live: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.SchedulerOutputs, "observe", lambda *_: "decode")
    made = probe(vllm.AlignedOutputs, live={*live})
    monkeypatch.setattr(vllm.SchedulerOutputs, "contents", lambda *_: {"requests": 3})
    assert made.contents(Some()) == {"requests": 3}
    assert made.observe(Some()) == "decode"
    assert made.live == {*live, *([made.OTHERS] if live else [])}


BOUNDS: dict[str, tuple[dict[str, Any], dict[str, Any], int, tuple[int, bool]]] = {
    "a bound that is too short": ({"longest_bound": 10, "bound_known": True}, {"threshold": 99}, 12, (12, True)),
    "a bound that is just too short": ({"longest_bound": 96, "bound_known": True}, {"threshold": 99}, 98, (98, True)),
    "it decides nothing": ({"longest_bound": 200, "bound_known": True}, {"threshold": 99, "exact": False}, 202, (202, True)),
    "it may decide": ({"longest_bound": 97, "bound_known": True}, {"threshold": 99}, 50, (55, True)),
    "it is unknown": ({"longest_bound": 10}, {"threshold": 99}, 50, (55, True)),
    "not all are in the batch": ({"longest_bound": 10, "live": {"a", "b", "c"}}, {"threshold": 99}, 50, (12, False)),
    "one may come back": ({"longest_bound": 10, "prefilling": {"a": -1, "b": 5}}, {"threshold": 99}, 50, (12, False)),
    "no context is told": ({"longest_bound": 10, "contents": {}}, {"threshold": 99}, 0, (5, True)),
    "one has nothing left": ({"longest_bound": 10, "prefilling": {"a": 0}}, {"threshold": 99}, 50, (50, True)),
    "nobody prefills": ({"longest_bound": 10, "prefilling": {}}, {"threshold": 99}, 50, (50, True)),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_the_longest_context_is_looked_up_where_it_may_decide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields, words, longest, after = BOUNDS[name]
    defaults = {"growth": 2, "live": {"a", "b"}, "prefilling": {"b": 5, "a": 3}}
    contents = fields.get("contents", {"longest": 50})
    made = probe(vllm.OutputContexts, **{**defaults, **fields, "contents": lambda _batch: contents})
    batch = Some(num_scheduled_tokens={"a": 1, "b": 1})
    assert made.longest_context(batch, **{"exact": True, **words}) == longest
    assert (made.longest_bound, made.bound_known) == after
    made.forget()
    assert (made.longest_bound, made.bound_known, made.live) == (0, False, set())


@pytest.mark.parametrize(
    ("speculative", "role", "growth", "serves"),
    [
        (None, None, 1, ""), (Some(num_speculative_tokens=3), "kv_producer", 4, "prefill"), (None, "kv_consumer", 1, "decode"),
        (None, "kv_both", 1, ""),
    ],
)  # fmt: skip
def test_a_worker_tells_its_drafts_and_what_it_serves(
    speculative: Any, role: str | None, growth: int, serves: str
) -> None:
    transfer = {"kv_transfer_config": Some(kv_role=role)} if role else {}
    worker = Some(vllm_config=Some(speculative_config=speculative, **transfer))
    made = vllm.VllmV1Rollout.__new__(vllm.VllmV1Rollout)
    assert (made.context_growth(worker), made.serves(worker)) == (growth, serves)
