"""Settings of a profiler that cannot be combined."""

from __future__ import annotations

import pytest

from patcher.messages.errors import Kind, Problem
from tests.choices import config


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--aic-metrics memory --level level0", "has no effect below --level level1"),
        ("--aic-metrics memory --level level_none", "has no effect below --level level1"),
        ("--contents memory", "neither npu nor cpu"),
        ("--contents ''", "neither npu nor cpu"),
        (
            "--level level_none",
            "records only marks",
        ),
        ("--module-pattern MLP", "--module-pattern needs --module-ranges"),
        ("--module-ranges --module-pattern (", "not a regular expression"),
        ("--module-ranges --module-pattern a{99999999999999999999}", "not a regular expression"),
        ("--module-ranges --export-type text", "reads a database"),
        ("--module-ranges --contents cpu", "--module-ranges adds nothing to the trace: add npu"),
        ("--markers --contents cpu", "--markers adds nothing to the trace: add npu"),
        ("--markers --contents npu --tool torch", "--markers adds nothing to the trace: add cpu"),
        (
            "--contents npu,memory",
            "--contents npu,memory has memory, but not cpu; allocations are recorded on the host, so memory needs cpu",
        ),
        ("--save-path ''", "needs the path of a folder, not ''"),
        ("--live --no-facts", "needs step metadata, which --no-facts switches off"),
        ("--on-demand --no-facts", "needs step metadata, which --no-facts switches off"),
        (
            "--on-demand --repeat 2",
            "--on-demand cannot be combined with --repeat",
        ),
        ("--save-path /tmp/it\\'s", "torch_npu does not accept this path"),
        ('--save-path \'/tmp/"""\'', "torch_npu does not accept this path"),
        ("--save-path '/tmp/{x}'", "torch_npu does not accept this path"),
        ("--save-path '/tmp/a\nb'", "torch_npu does not accept this path"),
        ("--save-path '/tmp/traces\n'", "torch_npu does not accept this path"),
        ("--tool torch --level level1", "--level is not supported by torch.profiler"),
        ("--tool torch --export-type db", "--export-type is not supported"),
        ("--tool torch --aic-metrics none", "--aic-metrics is not supported"),
        ("--tool torch --l2-cache", "--l2-cache is not supported"),
        ("--tool torch --mstx", "--mstx is not supported"),
        ("--tool torch --analysis", "--analysis is not supported"),
    ],
)
def test_combinations_that_no_profiler_takes(words: str, cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        config(f"--decode 30:60 {words}")
    assert caught.value.kind is Kind.USAGE
    assert caught.value.hint
