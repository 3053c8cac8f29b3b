"""Commands as they are typed, in Chinese: what people read is, what programs read is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fixtures.timeline.small import small
from patcher.cli import COMMANDS
from patcher.messages.columns import width

CHINESE = re.compile(r"[\u4e00-\u9fff]")
ENGLISH = re.compile(r"[a-z]{3,} [a-z]{2,} [a-z]{3,}")
TYPED = re.compile(r"`.*?`|rlpatch .*|--[\w-]+|graph-capture|weight-sync")
"""What is typed as it stands, in every language: commands, options and stages."""


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_is_chinese_from_head_to_foot(run: Callable[..., Result], command: str) -> None:
    said = run(*filter(None, (command, "--help")), RLPATCH_LANG="zh").stdout
    english = run(*filter(None, (command, "--help"))).stdout
    assert said.startswith("用法：rlpatch")
    assert "显示此帮助并退出。" in said
    assert [line for line in said.splitlines() if width(line) > 80 and "rlpatch " not in line] == []
    sentences = (line.strip() for line in said.splitlines() if not line.lstrip().startswith(("rlpatch ", "eval ")))
    assert [line for line in sentences if ENGLISH.search(line) and not CHINESE.search(line)] == []
    options = re.compile(r"^  (?:-\w, )?--[\w-]+", re.M)
    assert {*options.findall(said)} == {*options.findall(english)}
    examples = re.compile(r"^    (?:eval.*)?rlpatch .*$", re.M)
    assert examples.findall(said) == examples.findall(english)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("status --path site", 0, "没有"),
        ("apply vllm-ascend==9.9.9 --decode 30:60 --path site", 3, "下一步："),
        ("apply vllm-ascend --path site", 2, "错误：用法错误："),
        ("apply vllm-ascend --decode 30:20", 2, "窗口为空"),
        ("apply --decod 30:60", 2, "没有选项"),
        ("apply", 2, "缺少参数"),
        ("aply", 2, "这个命令"),
        ("apply vllm-ascend --decode 30:60 --path site", 0, "已打补丁 vllm_ascend/worker/worker_v1.py"),
        ("traces missing", 3, "错误：没有 trace："),
        ("report missing", 3, "错误：没有 trace："),
        ("watch missing --once", 3, "错误：没有 worker："),
        ("list", 0, "目标"),
        ("list vllm-ascend", 0, "rollout"),
        ("explain vllm-ascend", 0, "原因："),
        ("check vllm-ascend --path site", 0, "profiler"),
        ("config", 0, "没有 rlpatch 配置"),
        ("revert --path site", 0, "没有"),
        ("recover --path site", 0, "没有"),
        ("timeline missing", 3, "错误："),
        ("trigger --decode 30:60", 3, "错误："),
    ],
)
def test_what_a_command_says_is_chinese(run, site, words: str, code: int, said: str) -> None:
    shown = run(*words.split(), code=code, RLPATCH_LANG="zh")
    assert said in shown.stdout + shown.stderr
    if code:
        assert "下一步：" in shown.stderr
    english = run(*words.split(), code=code)
    assert not CHINESE.search(english.stdout + english.stderr)


@pytest.mark.parametrize(
    "words", [("timeline", "run"), ("explain", "vllm-ascend"), ("list",), ("apply", "vllm-ascend", "--decode", "1:2", "--path", "site", "-v")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_no_line_of_a_long_report_is_english_alone(run, site, words: tuple[str, ...]) -> None:
    small(Path("run"), slow={4: 500}, stale={2: 1.5})
    shown = run(*words, RLPATCH_LANG="zh")
    lines = [line for line in (shown.stdout + shown.stderr).splitlines() if not CHINESE.search(line)]
    assert [line for line in lines if ENGLISH.search(TYPED.sub("", line))] == []


@pytest.mark.parametrize("name", ["a b", "[x]", "{0}", "%s %d", "empty", "new\nline", "目录", "`x", "a; b", "is there"])
def test_odd_names_stay_as_they_are(run, site, name: str) -> None:
    folder = Path(name)
    site.rename(folder)
    for words in (("apply", "vllm-ascend", "--decode", "30:60"), ("status",), ("revert",)):
        shown = run(*words, "--path", folder, RLPATCH_LANG="zh")
        assert name in shown.stdout + shown.stderr
    assert name in run("traces", folder, RLPATCH_LANG="zh", code=3).stderr


def test_the_language_is_no_variable_of_the_run(run) -> None:
    shown = run("config", RLPATCH_LANG="zh", RLPATCH_RANKS="all")
    assert "当前 shell 设置了 RLPATCH_RANKS=all" in shown.stdout
    assert "RLPATCH_LANG" not in shown.stdout


@pytest.mark.parametrize(
    "words", ["status --path site", "list", "explain vllm-ascend", "apply vllm-ascend --path site", "traces missing"]
)
def test_json_is_the_same_byte_for_byte(run, site, words: str) -> None:
    code = 2 if words.startswith("apply") else 3 if "missing" in words else 0
    one, other = (run(*words.split(), "--json", code=code, RLPATCH_LANG=language).stdout for language in ("en", "zh"))
    assert one == other


def test_the_diff_is_the_same_byte_for_byte(run, site) -> None:
    words = ("diff", "vllm-ascend", "--decode", "30:60", "--path", "site")
    assert run(*words, RLPATCH_LANG="zh").stdout == run(*words).stdout
