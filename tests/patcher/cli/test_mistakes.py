"""Mistakes of a first hour: each is answered with the whole command line that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

MEANT = {
    "-q status": "status -q",
    "--path x status": "status --path x",
    "patch vllm-ascend": "apply vllm-ascend",
    "install vllm-ascend": "apply vllm-ascend",
    "insert vllm-ascend": "apply vllm-ascend",
    "record vllm-ascend": "apply vllm-ascend",
    "uninstall": "revert",
    "apply vllm-ascend --decode 60:30": "apply vllm-ascend --decode 30:60",
    "apply vllm-ascend --decode=60:30": "apply vllm-ascend --decode 30:60",
    "apply verl --mini-batch 1": "apply verl --mini-batch 1:2",
    "help apply": "apply --help",
    "apply vllm-ascend --decode 30~60": "apply vllm-ascend --decode 30:60",
    "apply vllm-ascend --decode 30\uff1a60\uff0c80\uff1a90": "apply vllm-ascend --decode 30:60,80:90",
    "apply vllm-ascend --decode 1k:2k": "apply vllm-ascend --decode 1000:2000",
    "apply vllm-ascend --decode 1:2 --decode 5:6": "apply vllm-ascend --decode 1:2,5:6",
    "apply vllm-ascend --decode 1:2 --ranks 0-3": "apply vllm-ascend --decode 1:2 --ranks 0,1,2,3",
    "apply vllm-ascend --decode 1:2 --at-context 8k": "apply vllm-ascend --decode 1:2 --at-context 8000",
    "apply vllm-ascend --decode 1:2 --max-trace-gb 500MB": "apply vllm-ascend --decode 1:2 --max-trace-gb 0.5",
    "apply vllm-ascend --decode 1:2 --max-stall 2s": "apply vllm-ascend --decode 1:2 --max-stall 2",
    "watch --timeout 10m": "watch --timeout 600",
    "timeline --steps 5": "timeline --steps 5:6",
    "timeline --steps 5:2": "timeline --steps 2:5",
    "apply verl[vllm] --mini-batch 0:1": "apply verl --mini-batch 0:1",
    "apply \u201cvllm-ascend\u201d --decode 1:2": "apply vllm-ascend --decode 1:2",
    "apply vllm-ascend\uff0cverl --decode 1:2 --mini-batch 0:1": "apply vllm-ascend verl --decode 1:2 --mini-batch 0:1",
    "apply verl --steps 2 --mini-batch 0:1": "apply verl --training-steps 2 --mini-batch 0:1",
    "apply verl --stage ref --micro-batch 0:1 --path site": (
        "apply verl --stage compute-log-prob --role ref --micro-batch 0:1 --path site"
    ),
    "explain verll": "explain verl",
    "explain verl update-policy": "explain verl --stage update-policy",
    "revert vllm-ascend --decode 1:2": "revert vllm-ascend",
    "status site": "status --path site",
    "apply vllm-ascend 0.11.0rc1 --decode 1:2 --path site": "apply vllm-ascend==0.11.0rc1 --decode 1:2 --path site",
    "apply vllm-ascend=0.11.0rc1 --decode 1:2": "apply vllm-ascend==0.11.0rc1 --decode 1:2",
    "apply vllm_ascend@v0.11.0rc1 --decode 1:2": "apply vllm_ascend==0.11.0rc1 --decode 1:2",
    "apply vllm-ascend --decode 1:2 --ranks al": "apply vllm-ascend --decode 1:2 --ranks all",
    "apply vllm-ascend --decode 1:2 --replicas al": "apply vllm-ascend --decode 1:2 --replicas all",
    "apply vllm-ascend \u2014decode 1:2": "apply vllm-ascend --decode 1:2",
    "apply vllm-ascend --path site --decode 1:2 --training-steps 2": "apply vllm-ascend --path site --decode 1:2 --rollout 1",
    "apply verl --path site --mini-batch 0:1 --rollout 1": "apply verl --path site --mini-batch 0:1 --training-steps 2",
    "run vllm-ascend --decode 1:2 --path site -- engine.py": (
        "run vllm-ascend --decode 1:2 --path site -- python3 engine.py"
    ),
    "run vllm-ascend --decode 1:2 --path site -- a.sh 5:2": "run vllm-ascend --decode 1:2 --path site -- bash a.sh 5:2",
}
NOT_MEANT = {
    "apply vllm-ascend --decode 5:9 --level 9:1 --path site": 2,
    "apply vllm-ascend --decode 5:9 --path nowhere --save-path 60:30": 3,
    "apply verl --mini-batch 0:1 --path site -- train.py": 3,
}
"""Command lines that are wrong in another way, or only behind `--`, and their exit codes."""


@pytest.mark.parametrize("typed", MEANT)
def test_a_frequent_mistake_is_answered_with_what_was_meant(run, site: Path, typed: str) -> None:
    (site / "verl").mkdir()
    (site / "verl/__init__.py").touch()
    code = (
        127
        if " -- " in typed
        else 3
        if " 0.11" in typed or typed.split()[1:2] in (["site"], ["verll"]) or "ref" in typed
        else 2
    )
    said = run(*typed.split(), code=code).stderr
    assert said.partition("next: ")[2].splitlines() == [f"rlpatch {MEANT[typed]}"]


@pytest.mark.parametrize("typed", NOT_MEANT)
def test_no_other_error_is_answered_with_a_rule_of_these(run, site: Path, typed: str) -> None:
    assert site.is_dir()
    hint = run(*typed.split(), code=NOT_MEANT[typed]).stderr.partition("next: ")[2]
    assert "1:9" not in hint
    assert "30:60" not in hint
    assert "python3" not in hint
