"""Settings of a profiler that cannot be combined."""

from __future__ import annotations

import pytest

from patcher.messages.errors import Kind, Problem
from tests.choices import config


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--aic-metrics memory --level level0", "collects them from level1 on"),
        ("--aic-metrics memory --level level_none", "collects them from level1 on"),
        ("--contents memory", "neither npu nor cpu"),
        ("--contents ''", "neither npu nor cpu"),
        ("--level level_none", "records nothing but marks"),
        ("--module-pattern MLP", "no ranges of modules"),
        ("--module-ranges --module-pattern (", "not a regular expression"),
        ("--module-ranges --module-pattern a{99999999999999999999}", "not a regular expression"),
        ("--module-ranges --export-type text", "module_statistic reads"),
        ("--module-ranges --contents cpu", "--module-ranges would leave nothing in the trace without npu"),
        ("--markers --contents cpu", "--markers would leave nothing in the trace without npu"),
        ("--markers --contents npu --tool torch", "--markers would leave nothing in the trace without cpu"),
        ("--contents npu,memory", "allocations are seen on the host"),
        ("--save-path ''", "no folder is named"),
        ("--live --no-facts", "without facts watch sees no worker"),
        ("--on-demand --no-facts", "without facts watch sees no worker"),
        ("--on-demand --repeat 2", "a request means one of them"),
        ("--save-path /tmp/it\\'s", "torch_npu refuses this path"),
        ('--save-path \'/tmp/"""\'', "torch_npu refuses this path"),
        ("--save-path '/tmp/{x}'", "torch_npu refuses this path"),
        ("--save-path '/tmp/a\nb'", "torch_npu refuses this path"),
        ("--save-path '/tmp/traces\n'", "torch_npu refuses this path"),
        ("--tool torch --level level1", "--level does not exist in torch.profiler"),
        ("--tool torch --export-type db", "--export-type does not exist"),
        ("--tool torch --aic-metrics none", "--aic-metrics does not exist"),
        ("--tool torch --l2-cache", "--l2-cache does not exist"),
        ("--tool torch --mstx", "--mstx does not exist"),
        ("--tool torch --analysis", "--analysis does not exist"),
    ],
)
def test_combinations_that_no_profiler_takes(words: str, cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        config(f"--decode 30:60 {words}")
    assert caught.value.kind is Kind.USAGE
    assert caught.value.hint
