"""Language of the output: the reader's in what is printed, never in what programs read."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import re
import subprocess
import sys

import pytest

from fixtures.cache import REPOSITORY
from patcher.commands.about import knowledge
from patcher.messages import columns, language, tables
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import WIDEST
from patcher.messages.report import CommandResult, Detail
from patcher.messages.text import COMMA, Text, joined, lines, sentences

SHELL = ("RLPATCH_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
NEXT = Text("next: {hint}", "x")


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
def test_the_locale_and_rlpatch_lang_choose_the_language(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], chinese: bool
) -> None:
    for name in SHELL:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(language.translations()) == chinese


@pytest.mark.usefixtures("in_chinese")
def test_a_terminal_without_chinese_letters_gets_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    assert language.translate(Text("next: {hint}", "x")) == "next: x"
    monkeypatch.setattr(sys, "stderr", None)
    assert language.translate(Text("next: {hint}", "x")) == "下一步：x"


TRANSLATIONS = {
    "a plain text": "一句话",
    "{name} is there": "{name} 在",
    "{name} was {state} for {seconds:.1f} s": "{seconds:.1f} 秒内 {name} 为 {state}",
    "{what} is {what!r}": "{what!r}",
    ", ": "，",
}


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        (Text("a plain text"), "一句话"),
        (Text("nobody knows {name}", "x"), "nobody knows x"),
        (Text("{name} is there", "a plain text"), "a plain text 在"),  # a value is no text
        (Text("{name} is there", Text("a plain text")), "一句话 在"),
        (Text("{name} was {state} for {seconds:.1f} s", name="a", state=Text("b"), seconds=2), "2.0 秒内 a 为 b"),
        (Text("{what} is {what!r}", "x"), "'x'"),
        (Text("{literal} %s \\1"), "{literal} %s \\1"),
        (Text("{name} is there", "{0} %s {name}"), "{0} %s {name} 在"),
        (joined(COMMA, (Text("a plain text"), "", "b")), "一句话，b"),
        (joined(", ", ("a", "b")), "a, b"),
        (joined(COMMA, ()), ""),
    ],
)
def test_a_text_is_rendered_by_its_template_and_its_values(text: Text, chinese: str) -> None:
    assert text.rendered(TRANSLATIONS) == chinese


def test_a_text_is_its_english_and_survives_copies() -> None:
    text = Text("{name} is there", Text("{count:,} units", 1000))
    assert text == "1,000 units is there"
    for copied in (pickle.loads(pickle.dumps(text)), copy.deepcopy(text), Text(text), Detail(text)):
        assert (copied, copied.template, copied.values) == (text, text.template, text.values)
    assert json.dumps([text]) == '["1,000 units is there"]'


def test_texts_are_put_together_without_losing_what_they_are() -> None:
    text = sentences(Text("a plain text"), "", Text("b"))
    assert (text, text.rendered({**TRANSLATIONS, "{sentences} {sentence}": "{sentences}{sentence}"})) == (
        "a plain text b",
        "一句话b",
    )
    assert lines(joined("\n", (text, Text("b")))) == [text, "b"]
    assert [type(line) for line in lines(joined("\n", (text, "b")))] == [Text, str]
    assert (lines("a\nb"), lines("a"), lines("")) == (["a", "b"], ["a"], [])


@pytest.mark.parametrize(
    ("template", "only_value", "values"),
    [
        ("{one} and {two}, {one}", ("a",), {}),
        ("{one} and {two}, {one}", ("a", "b"), {}),
        ("{one} and {two}, {one}", ("a",), {"two": "b"}),
        ("{one} and {two}, {one}", (), {"one": "a"}),
        ("{one} and {two}, {one}", (), {"one": "a", "two": "b", "three": "c"}),
        ("{one}", ("a", "b"), {}),
        ("nothing", ("a",), {}),
    ],
)
def test_several_values_are_given_by_the_names_of_their_template(
    template: str, only_value: tuple[str, ...], values: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="name"):
        Text(template, *only_value, **values)


def test_lines_end_between_characters_and_never_before_a_comma() -> None:
    text = "只要有一个节点版本不同、没有目标、文件被人改得无法匹配，命令就会在修改任何东西之前停止，rlpatch 会一次列出这些节点。"
    for width in range(20, 60):
        lines = columns.wrapped(text, "- ", "  ", width)
        assert max(map(columns.width, lines)) <= width
        assert not [line for line in lines if line.lstrip()[0] in "，。、"]
        assert re.sub(r"\s", "", "".join(lines)) == "-" + text.replace(" ", "")


@pytest.mark.usefixtures("in_chinese")
def test_what_a_report_prints_is_chinese_and_its_json_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult(
        "apply", problems=[Problem(Kind.USAGE, Text("no recording window was given"), "/a/b", "rlpatch apply --help")]
    )
    report.note(Text("add -v for details"), NEXT)
    report.lines += [Text("  {line}", NEXT), Detail("  {line}", NEXT)]
    report.show(as_json=False, quiet=False, color=None, verbose=True)
    out, err = capsys.readouterr()
    assert out == "  下一步：x\n  下一步：x\n"
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
    assert WIDEST - 4 < columns.width(line) <= WIDEST


@pytest.mark.usefixtures("in_chinese")
def test_lines_of_others_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("revert")
    report.lines += ["    next: x", Text("next: {hint}", "x" * 4000)]
    report.show(as_json=False, quiet=False, color=None)
    assert capsys.readouterr().out.splitlines() == ["    next: x", "下一步：" + "x" * 4000]


@pytest.mark.usefixtures("in_chinese")
def test_a_word_that_opens_a_line_keeps_its_colour(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.lines.append(Text("next: {hint}", "rlpatch status"))
    report.show(as_json=False, quiet=False, color=True)
    assert capsys.readouterr().out == "\x1b[36m下一步\x1b[0m：rlpatch status\n"


@pytest.mark.usefixtures("in_chinese")
@pytest.mark.parametrize("width", [60, 80, 132])
def test_tables_line_up(width: int) -> None:
    lines = tables.targets(knowledge.stages(), width)
    assert CHINESE.search(lines[0])
    assert max(map(columns.width, lines)) <= width
    assert "{:>8}|{:8}|".format(*map(language.cell, (NEXT, NEXT))) == "下一步：x|下一步：x|"


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
    assert {"patcher.messages.catalogue", "patcher.messages.columns", "patcher.cli.translated"}.isdisjoint(
        modules.split()
    )
    assert not CHINESE.search(done.stdout + said)
