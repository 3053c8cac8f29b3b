"""Values of options: those that are taken, and those that are refused with what they could be."""

from __future__ import annotations

import pytest

from patcher.messages.errors import Kind, Problem
from tests.choices import options


@pytest.mark.parametrize(
    ("words", "cause", "hint"),
    [
        ("--repeat 0", "--repeat 0 is not a whole number from 1 to", "--repeat 2"),
        ("--repeat x", "--repeat x is not a whole number from", "--repeat 2"),
        ("--rollout -1", "--rollout -1 is not a whole number from 0 to", "--rollout 1"),
        ("--warmup 1.5", "--warmup 1.5 is not a whole number from", "--warmup 1"),
        (f"--rollout {10**40}", "--rollout 1000", "--rollout 1"),
        (f"--ranks {'9' * 5000}", "(5000 characters) is not a whole number from 0 to", "--ranks 1"),
        (f"--training-steps 1,{10**20}", "not a whole number from 1", "--training-steps 2"),
        ("--level level3", "--level does not accept level3", "one of level_none, level0"),
        ("--role boss", "--role does not accept boss", "one of actor, ref, critic, all"),
        ("--tool cpu", "--tool does not accept cpu", "one of npu, torch"),
        ("--strategy ''", "--strategy does not accept ", "--strategy NAME"),
        ("--contents gpu", "gpu is not a valid value", "of npu, cpu"),
        ("--aic-metrics memory_access", "torch_npu 2.1 does not have these AI Core metrics", "one of none"),
    ],
)
def test_what_is_not_understood_is_said_with_what_is(words: str, cause: str, hint: str) -> None:
    with pytest.raises(Problem) as caught:
        options(f"--micro-batch 0:1 {words}")
    assert caught.value.kind is Kind.USAGE
    assert cause in caught.value.cause
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 300
