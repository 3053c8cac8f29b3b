"""What is printed is in the language of the reader; what programs read never is."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.cache import REPOSITORY
from patcher.commands.about import knowledge
from patcher.messages import catalogue, language, tables
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import WIDEST
from patcher.messages.report import CommandResult, Detail, Verbatim
from tests.alarms import at_most
from tests.matrix import examples

SHELL = ("RLPATCH_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture
def in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPATCH_LANG", "zh")


@pytest.mark.parametrize(
    ("variables", "chinese"),
    [
        ({}, False),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, True),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, True),
        ({"LANG": "zh_CN.UTF-8", "RLPATCH_LANG": "en"}, False),
        ({"LANG": "C", "RLPATCH_LANG": "zh"}, True),
        ({"LANG": "zh_CN.UTF-8", "RLPATCH_LANG": "fr"}, False),
    ],
    ids=str,
)
def test_which_language_that_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], chinese: bool) -> None:
    for name in SHELL:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(language.catalogue()) == chinese


@pytest.mark.usefixtures("in_chinese")
def test_a_terminal_without_chinese_letters_gets_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    assert language.translate("next: x") == "next: x"
    monkeypatch.setattr(sys, "stderr", None)
    assert language.translate("next: x") == "下一步：x"


TEXTS = catalogue.Catalogue(
    {
        "a plain text": "一句话",
        "{0} is there": "{0} 在",
        "the folder {0} is there": "目录 {0} 在",
        "{0} was {1} for {2} s": "{2} 秒内 {0} 为 {1}",
        "next: {0}": "下一步：{0}",
        "First one.": "第一句。",
        "at": "于",
        "its state is {0}": "状态为 {0!a}",
        "the file is {0}": "文件为 {0!s}",
        "{n} units": "{n} 个单元",
        "{0} and more": "{0} 等",
        "unit {n}": "单元 {n}",
    }
)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("a plain text", "一句话"),
        ("  a plain text\n", "  一句话\n"),
        ("x is there", "x 在"),
        ("the folder x is there", "目录 x 在"),
        ("a was b for 3 s", "3 秒内 a 为 b"),
        ("next: the folder /x is there", "下一步：目录 /x 在"),
        ("next: {0} %s %(a)d [b] \\1 is there", "下一步：{0} %s %(a)d [b] \\1 在"),
        ("first\nsecond is there", "first\nsecond 在"),
        ("a plain text\n\tx is there", "一句话\n\tx 在"),
        ("First one. [default: a]", "第一句。[default: a]"),
        (" is there", " is there"),
        ("nobody knows this", "nobody knows this"),
        ("at is there", "at 在"),  # a word alone may be a name
        ("its state is at", "状态为 于"),
        ("the file is a plain text", "文件为 a plain text"),
        ("3 units", "3 个单元"),
        ("no units", "no units"),
        ("a plain text, unit 3", "一句话，单元 3"),
        ("a plain text, and this", "a plain text, and this"),
        ("rlpatch x; a plain text", "rlpatch x；一句话"),
        ("A row (of one. And two) and more", "A row (of one. And two) and more"),
        ("(half and more", "(half and more"),
        ("", ""),
        ("\n", "\n"),
    ],
)
def test_a_text_is_found_by_itself_or_by_the_template_with_the_most_words(english: str, chinese: str) -> None:
    assert TEXTS.translate(english) == chinese


CHINESE_TEXTS = catalogue.chinese()
TEMPLATES = [template for templates in CHINESE_TEXTS.templates.values() for template in templates]
FRAGMENTS = [text for text in CHINESE_TEXTS.texts if len(text) < 60] + [
    part.strip() for template in TEMPLATES for part in template.parts if 3 < len(part) < 60
]
SEGMENTS = [text for text in FRAGMENTS if re.fullmatch(r"[^\s/,;:.']+( [^\s/,;:.']+){1,3}", text)]
"""Texts of ours that may be the name of a folder, and have the blanks without which no value is translated."""

NO_SEGMENT = re.compile(r"\b(and|or|in|into|is|of|to|from|as|with|by|for|at|on|has|was|are|does|cannot) ")


@st.composite
def filled(draw: st.DrawFn) -> tuple[str, str]:
    """A template with a path or a command among its values, and that value."""
    template = draw(st.sampled_from(TEMPLATES))
    if draw(st.booleans()):
        segment = draw(st.sampled_from([text for text in SEGMENTS if not NO_SEGMENT.search(text)]))
        value = f"/data/rollout/{segment}/x"
    else:
        path = f"/data/{draw(st.sampled_from(FRAGMENTS))} x"
        value = (
            f"rlpatch {draw(st.sampled_from(['report', 'status --path', 'revert verl --path']))} {shlex.quote(path)}"
        )
        value = value if "'\"'" not in value else "rlpatch status --path '/a b'"
    values = ["3" for _ in template.names]
    values[draw(st.integers(0, len(values) - 1))] = value
    pairs = zip(values, template.parts[1:], strict=True)
    return template.parts[0] + "".join(text for pair in pairs for text in pair), value


@given(filled())
@settings(max_examples=examples(1_000), deadline=None)
@example(("next: rlpatch report '/data/rollout/not recorded/x'", "rlpatch report '/data/rollout/not recorded/x'"))
@example(("  at /data/rollout/not recorded/x", "/data/rollout/not recorded/x"))
@example(("/data/rollout/not recorded/x does not exist", "/data/rollout/not recorded/x"))
def test_paths_and_commands_come_out_as_they_are(text_and_value: tuple[str, str]) -> None:
    text, value = text_and_value
    assert value in CHINESE_TEXTS.translate(text)


@pytest.mark.parametrize(
    "piece",
    ["x ", "a, ", "(", ". A", "; a", ": A", "  [", "] #", ", a: B. C; ", ". 1, ", "note: ", "; next: ", "'a b' ", "/a b/c ",
     "\ue000"],
)  # fmt: skip
@pytest.mark.parametrize("length", [990, 4_000])
def test_a_long_text_is_looked_up_in_time(piece: str, length: int) -> None:
    text = (piece * length)[:length]
    with at_most(5):
        assert CHINESE_TEXTS.translate(text)


def test_text_with_the_characters_that_stand_for_values_stays_as_it_is() -> None:
    assert TEXTS.translate("\ue000 is there") == "\ue000 is there"


def test_lines_end_between_characters_and_never_before_a_comma() -> None:
    text = "只要有一个节点版本不同、没有目标、文件被人改得无法匹配，命令就会在修改任何东西之前停止，rlpatch 会一次列出这些节点。"
    for columns in range(20, 60):
        lines = catalogue.Catalogue.wrapped(text, "- ", "  ", columns)
        assert max(map(catalogue.width, lines)) <= columns
        assert not [line for line in lines if line.lstrip()[0] in "，。、"]
        assert re.sub(r"\s", "", "".join(lines)) == "-" + text.replace(" ", "")


@pytest.mark.usefixtures("in_chinese")
def test_what_a_report_prints_is_chinese_and_its_json_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult(
        "apply", problems=[Problem(Kind.USAGE, "no window is given", "/a/b", "rlpatch apply --help")]
    )
    report.note("details: -v", "next: x")
    report.lines += ["  next: x", Detail("  next: y")]
    report.show(as_json=False, quiet=False, color=None, verbose=True)
    out, err = capsys.readouterr()
    assert out == "  下一步：x\n  下一步：y\n"
    first, second, *problem = err.splitlines()
    assert (first[:3], second) == ("说明：", "  下一步：x")
    assert problem[0].startswith("错误：用法错误：")
    assert problem[1:] == ["  位置：/a/b", "  下一步：rlpatch apply --help"]
    assert not CHINESE.search(json.dumps(report.envelope(), ensure_ascii=False))


@pytest.mark.usefixtures("in_chinese")
def test_a_note_is_cut_at_the_same_columns(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.note("一句很长的话" * 20)
    report.show(as_json=False, quiet=False, color=None)
    line = capsys.readouterr().err.splitlines()[0]
    assert line.endswith(" …")
    assert WIDEST - 4 < catalogue.width(line) <= WIDEST


@pytest.mark.usefixtures("in_chinese")
def test_lines_of_others_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("revert")
    report.lines += [Verbatim("    next: x"), "next: " + "x" * 4000]
    report.show(as_json=False, quiet=False, color=None)
    assert capsys.readouterr().out.splitlines() == ["    next: x", "next: " + "x" * 4000]


@pytest.mark.usefixtures("in_chinese")
def test_a_word_that_opens_a_line_keeps_its_colour(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.lines.append("next: rlpatch status")
    report.show(as_json=False, quiet=False, color=True)
    assert capsys.readouterr().out == "\x1b[36m下一步\x1b[0m：rlpatch status\n"


@pytest.mark.usefixtures("in_chinese")
@pytest.mark.parametrize("width", [60, 80, 132])
def test_tables_line_up(width: int) -> None:
    lines = tables.targets(knowledge.stages(), width)
    assert CHINESE.search(lines[0])
    assert max(map(catalogue.width, lines)) <= width
    assert "{:>8}|{:8}|".format(*map(language.cell, ("next: a", "next: b"))) == "下一步：a|下一步：b|"


def rlpatch(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = "import atexit, sys\natexit.register(lambda: print('\\0', *sys.modules, file=sys.stderr))\n"
    program += "from patcher.__main__ import main\nmain()"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1", "XDG_STATE_HOME": os.devnull}
    return subprocess.run(
        [sys.executable, "-c", program, *words], env={**environ, **variables}, capture_output=True, text=True
    )


@pytest.mark.parametrize("words", [("--help",), ("apply", "--help"), ("status", "--path", "/nowhere")], ids=" ".join)
def test_english_loads_nothing_for_it(words: tuple[str, ...]) -> None:
    done = rlpatch(*words, RLPATCH_LANG="en", LANG="de_DE.UTF-8")
    said, _, modules = done.stderr.partition("\0")
    assert {"patcher.messages.catalogue", "patcher.cli.translated", "gettext.zh"}.isdisjoint(modules.split())
    assert not CHINESE.search(done.stdout + said)
