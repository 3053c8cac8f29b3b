"""Output of a report: on which stream, and what happens if nobody takes it."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest

from patcher.messages import report as report_module
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import WIDEST, Note
from patcher.messages.report import OMIT_NONE, CommandResult, Detail, StepResult, Verbatim, json_of

LONG = "a text with the path " + "/".join(["folder"] * 20) + " in it"


def shown(
    report: CommandResult, capsys: pytest.CaptureFixture[str], *, as_json: bool = False, verbose: bool = False,
    color: bool | None = None,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """The lines on stderr and on stdout."""
    report.show(as_json=as_json, quiet=False, color=color, verbose=verbose)
    out, err = capsys.readouterr()
    return err.splitlines(), out.splitlines()


def test_a_note_is_one_line_and_its_detail_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.note("short", "first\nsecond")
    report.warn("alone")
    report.lines += ["result", Detail("    what is behind it")]
    assert shown(report, capsys) == (["note: short", "warning: alone", "add -v for details"], ["result"])
    said, lines = shown(report, capsys, verbose=True)
    assert said == ["note: short", "  first", "  second", "warning: alone"]
    assert lines == ["result", "    what is behind it"]


def test_where_nothing_is_behind_a_note_no_details_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.note("short")
    assert shown(report, capsys) == (["note: short"], [])


def test_a_report_that_tells_all_needs_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("explain")
    report.tells_all = True
    report.note("short", "the detail")
    assert shown(report, capsys) == (["note: short", "  the detail"], [])


def test_what_several_targets_have_in_common_is_said_once() -> None:
    report = CommandResult("apply")
    for detail in ("of one", "of the other", "of one", ""):
        report.note("the same", detail)
    report.warn("the same")
    assert report.messages == ("note: the same", "warning: the same")
    assert report.notes[0].detail == "of one\nof the other"


def test_no_note_is_wider_than_a_line_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.warn(LONG, "more")
    (line, hint), _ = shown(report, capsys)
    assert line == "warning: a text with the path …"
    assert hint == "add -v for details"
    said, _ = shown(report, capsys, verbose=True)
    assert LONG in " ".join(part.strip() for part in said)
    assert said[-1] == "  more"


@pytest.mark.parametrize("columns", ["60", "200"])
def test_details_are_wrapped_at_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    report = CommandResult("apply")
    report.note("short", "some words " * 30)
    report.lines.append(Detail("    " + "other words " * 30))
    said, lines = shown(report, capsys, verbose=True)
    width = min(int(columns), WIDEST)
    assert max(map(len, said)) in range(width - 12, width + 1)
    assert max(map(len, lines)) in range(width - 12, width + 1)
    assert all(line.startswith("    ") for line in lines)


def test_json_has_the_notes_in_short_and_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    report = CommandResult("apply")
    report.note(LONG, "more")
    said, lines = shown(report, capsys, as_json=True)
    document = json.loads("\n".join(lines))
    assert document["schema"] == 1
    assert document["messages"] == [f"note: {LONG}"]
    assert document["notes"] == [{"level": "note", "text": LONG, "detail": "more"}]
    assert "add -v for details" not in said


def test_a_problem_that_does_not_stop_the_command_is_a_note() -> None:
    problem = Problem(Kind.ENVIRONMENT, "the cause", "/a/b", "do that", ("seen there",))
    assert problem.note == Note("not possible in this environment: the cause", "at /a/b\nseen there\nnext: do that")
    assert str(problem) == "not possible in this environment: the cause\n  at /a/b\n  seen there\n  next: do that"


def test_steps_are_put_together_in_their_order() -> None:
    first = StepResult(("a",), done=("patched a",)) + StepResult.noted([Note("short", "first")])
    second = StepResult(("b",), problems=(Problem(Kind.USAGE, "x"),)) + StepResult.noted([Note("short", "more")])
    report = CommandResult("apply", first + second)
    assert (report.lines, report.done, report.exit_code) == (["a", "b"], ["patched a"], 2)
    assert report.notes == [("note", "short", "first\nmore")]


def test_payloads_are_objects_of_their_fields_and_some_are_left_out_where_nothing_is_known() -> None:
    @dataclass(frozen=True)
    class Payload:
        version: str | None
        files: tuple[Path | dict[str, int], ...] = ()
        nodes: tuple[str, ...] | None = field(default=None, metadata=OMIT_NONE)

    assert json_of(Payload(None, ({"size": 1},))) == {"version": None, "files": [{"size": 1}]}
    assert json_of({"one": Payload("1", nodes=("n1",))}) == {"one": {"version": "1", "files": [], "nodes": ["n1"]}}


@pytest.mark.parametrize(
    ("done", "problems", "failure", "code", "said"),
    [
        (
            [],
            [],
            errno.ENOSPC,
            5,
            "the output could not be written: No space left on device\n  next: redirect the output to a disk with free space (> FILE), or into a pipe",
        ),
        (
            ["patched a.py"],
            [],
            errno.ENOSPC,
            0,
            "No space left on device, but these changes were made: patched a.py\n  next: redirect",
        ),
        ([], [Problem(Kind.USAGE, "x")], errno.ENOSPC, 2, "No space left"),
        ([], [], errno.EPIPE, 0, ""),
        (["patched a.py"], [], errno.EPIPE, 0, ""),
    ],
)
def test_output_that_nobody_takes(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    done: list[str],
    problems: list[Problem],
    failure: int,
    code: int,
    said: str,
) -> None:
    def refuse(text: str, stream: TextIO, color: bool | None) -> None:
        if stream is sys.stdout:
            raise OSError(failure, os.strerror(failure))
        print(text, file=stream)

    monkeypatch.setattr("patcher.messages.report._print_line", refuse)
    # What is not written goes nowhere: that of the test must stay.
    monkeypatch.setattr("patcher.messages.report._discard", lambda _stream: None)
    report = CommandResult("apply", problems=problems)
    report.done += done
    report.lines.append("a line")
    assert report.show(as_json=False, quiet=False, color=None) == code
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 2 * bool(said) + len(problems), "the error, and what to do"


def test_ctrl_c_ends_the_printing_and_not_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_words: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("patcher.messages.report._print_line", stop)
    report = CommandResult("apply")
    report.lines.append("a line")
    assert report.show(as_json=False, quiet=False, color=None) == 0


@pytest.mark.parametrize(("color", "line"), [(None, "note: x"), (True, "\x1b[36mnote\x1b[0m: x"), (False, "note: x")])
def test_colours_are_for_terminals_and_for_those_who_ask(
    capsys: pytest.CaptureFixture[str], color: bool | None, line: str
) -> None:
    report = CommandResult("apply", problems=[Problem(Kind.USAGE, "y")])
    report.lines.append("note: x")
    report.show(as_json=False, quiet=False, color=color)
    out, err = capsys.readouterr()
    assert out == f"{line}\n"
    assert err == ("\x1b[1;31mError: \x1b[0m" if color else "Error: ") + "wrong usage: y\n"


def test_a_stream_that_the_shell_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    report = CommandResult("diff")
    report.raw = b"+++"
    assert report.show(as_json=False, quiet=False, color=None) == 0


def test_the_notes_of_every_recipe_fit_a_line() -> None:
    """On a terminal of 80 columns, behind what says that it is a note."""
    from patches.projects import upstreams

    recipes = [
        note
        for upstream in upstreams()
        for recipe in upstream.recipes
        for note in (*recipe.notes, *recipe.unit_notes.values())
    ]
    near = [note for upstream in upstreams() for note in upstream.neighbours.values()]
    assert all(len(note.text) <= 80 - len("note: ") for note in (*recipes, *near)), recipes
    for upstream in upstreams():
        for gap in upstream.gaps:
            names = ", ".join(other.strategy for other in upstream.gaps if other.reason == gap.reason)
            assert len(f"note: left out: {names} ({gap.reason.text})") <= 80


def test_no_module_says_it_in_another_way() -> None:
    """A text that begins with its level would be one that no option shortens."""
    package = Path(__file__).parents[3] / "patcher"
    texts = {file: file.read_text() for file in package.rglob("*.py")}
    assert [str(file) for file, text in texts.items() if "messages.append" in text or "messages +=" in text] == []


COPIED = "rlpatch report /a/folder/with/a/long/name --units 30:60 -o /another/folder/report.html"


@pytest.mark.parametrize("columns", ["40", "80", ""])
def test_lines_are_broken_at_the_width_of_the_terminal_but_what_is_copied_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setattr(report_module, "terminal_width", lambda _stream: int(columns) if columns else None)
    sentence = "  patched a file, " + "and other words " * 12
    row = "  one" + " " * 90 + "two"
    lines = [sentence, f"  next: {COPIED}", row, f"  first `{COPIED}` then " + "more " * 12, Verbatim("a b " * 30)]
    report = CommandResult("apply", problems=[Problem(Kind.USAGE, sentence.strip(), hint=sentence.strip())])
    report.lines += lines
    said, colored = shown(report, capsys, color=True)
    assert (colored[0].startswith("  \x1b[32mpatched\x1b[0m a"), said[0].startswith("\x1b[1;31mError:")) == (True, True)
    said, printed = ([re.sub(r"\x1b\[[\d;]*m", "", line) for line in stream] for stream in (said, colored))
    assert f"  next: {COPIED}" in printed
    assert row in printed
    assert "a b " * 30 in printed
    assert COPIED in "\n".join(printed[printed.index(row) :])
    words = " ".join(" ".join(printed).split())
    assert words == " ".join(" ".join(lines).split())
    broken = [line for line in (*printed, *said) if "words" in line]
    if columns:
        assert max(map(len, broken)) in range(int(columns) - 12, int(columns) + 1)
        assert all(line.startswith("  ") for line in broken if "patched" not in line and "Error" not in line)
    else:
        assert len(broken) == 3


def test_a_name_and_what_it_means_stay_two_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "terminal_width", lambda _stream: 60)
    report = CommandResult("explain")
    report.lines += ["  RLPATCH_WINDOW=A:B  " + "another window " * 6]
    _, printed = shown(report, capsys)
    assert len(printed) > 1
    assert {len(line) - len(line.lstrip()) for line in printed[1:]} == {22}
