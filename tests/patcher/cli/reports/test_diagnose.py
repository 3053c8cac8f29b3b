"""``rlpatch diagnose`` as people type it: what is printed, what is promised as JSON, and bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fixtures.rollouts import SimulatedEngine, requests
from patcher.cli.reports import diagnose
from patcher.commands.patching import running
from patcher.messages import CommandResult
from patcher.request import ProfileRequest
from tests.patcher.cli.conftest import release

Run = Callable[..., Result]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run with three windows: of prompts, of full load and of the tail."""
    engine = SimulatedEngine()
    for of in (requests(99, 4), requests(0), requests(0)):
        engine.run(of)
    engine.write_timeline(tmp_path)
    length = len(engine.rollouts[2])
    for first in (1, 30, 120, 250, length - 40):
        engine.write_window(tmp_path, 2, first, first + 5)
    return tmp_path


def test_some_twenty_lines_fit_a_terminal(run: Run, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patcher.messages.tables.room", lambda: 80)
    lines = run("diagnose", recorded).stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("rollout: 2 rollouts")
    assert any("attention" in line and "±" in line for line in lines)


def test_json_has_the_fields_that_are_promised(run: Run, recorded: Path) -> None:
    result = json.loads(run("diagnose", recorded, "--json").stdout)["result"]
    assert result["schema"] == 1
    (stage,) = result["stages"]
    assert {"stage", "seconds", "supported", "why", "classes", "by_load"} <= {*stage}
    assert {*stage["classes"][0]} == {"name", "share", "interval", "seconds"}
    assert {"load", "share", "ms_each", "classes", "error"} <= {*stage["by_load"][0]}
    assert {*result["actions"][0]} == {"what", "bound_seconds", "because"}
    assert {*result["what_ifs"][0]} == {"name", "setting", "seconds", "least_seconds", "most_seconds", "because"}
    assert [window["joined"] for window in result["windows"]] == [5] * 5
    assert sum(part["share"] for part in stage["classes"]) == pytest.approx(1)


def test_of_several_runs_the_newest_is_told_unless_another_is_chosen(run: Run, recorded: Path) -> None:
    later = SimulatedEngine(pid=4713, name="run 2")
    later.now += 10**9
    for of in (requests(99, 4), requests(1)):
        later.run(of)
    later.write_timeline(recorded)
    assert "rollout: 1 rollout, " in run("diagnose", recorded).stdout
    assert "rollout: 2 rollouts, " in run("diagnose", recorded, "--run", "1").stdout
    assert run("diagnose", recorded, "--run", "3", code=2).stderr


def test_in_chinese(run: Run, recorded: Path) -> None:
    assert "次 rollout" in run("diagnose", recorded, RLPATCH_LANG="zh").stdout


def test_a_folder_without_a_timeline(run: Run, tmp_path: Path) -> None:
    assert "contains no timeline" in run("diagnose", tmp_path, code=3).stderr
    assert "does not exist" in run("diagnose", tmp_path / "nothing", code=3).stderr


def test_a_run_without_an_engine(run: Run, tmp_path: Path) -> None:
    from fixtures.timeline.writer import Writer

    writer = Writer(tmp_path, pid=7)
    writer.add("phase", "step", 0, 1_000)
    writer.close((2_000, 2_000))
    assert "next: patch the engine, too" in run("diagnose", tmp_path, code=3).stderr


def test_a_trace_that_cannot_be_read_is_named(run: Run, recorded: Path) -> None:
    path = next(recorded.glob("*.pt.trace.json.gz"))
    path.write_bytes(b"no trace")
    assert path.name in run("diagnose", recorded, code=4).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vllm",), "the command to run is missing"),
        (("vllm", "verl"), "the command to run is missing"),
        (("vllm", "--", "no-such-program"), "no-such-program does not exist"),
        (("--rounds", "0"), "--rounds"),
    ],
)
def test_bad_input(words: tuple[str, ...], said: str, run: Run, tmp_path: Path) -> None:
    code = 127 if "no-such-program" in words else 2
    assert said in run("diagnose", *words, code=code).stderr


def test_what_it_computes_with_may_be_missing(run: Run, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "NEEDED", ("numpy", "no_such_package"))
    said = run("diagnose", recorded, code=5).stderr
    assert "no_such_package" in said
    assert "pip install no_such_package" in said


def test_a_run_that_leaves_no_timeline_says_so_and_keeps_its_exit_code(run: Run, tmp_path: Path) -> None:
    root = release(tmp_path / "site")
    words = ("diagnose", "vllm-ascend", "--path", root, "--save-path", tmp_path / "traces", "--force", "--")
    said = run(*words, sys.executable, "-c", "print(7)", code=3).stderr
    assert "no timeline file of the run was found" in said


def test_a_page_and_tables_are_written(run: Run, recorded: Path, tmp_path: Path) -> None:
    page, tables = tmp_path / "page.html", tmp_path / "tables"
    run("diagnose", recorded, "-o", page, "--csv", tables)
    text = page.read_text()
    assert "<!doctype html>" in text
    assert "attention" in text
    (head, *rows) = (tables / "diagnosed_classes.csv").read_text().splitlines()
    assert head == "stage,class,share,interval,seconds"
    assert {row.split(",")[1] for row in rows} >= {"gemm", "attention", "outside-forward"}
    assert {path.name for path in tables.iterdir()} == {
        f"diagnosed_{name}.csv"
        for name in ("stages", "classes", "loads", "load_classes", "actions", "what_ifs", "windows")
    }


def two_replicas(folder: Path) -> None:
    for pid in (4711, 4712):
        engine = SimulatedEngine(seed=pid, pid=pid)
        for of in (requests(99, 4), requests(pid), requests(pid)):
            engine.run(of)
        engine.write_timeline(folder)
        for first in (1, 30, 120, 200, 250):
            engine.write_window(folder, 2, first, first + 5)


def one_step(folder: Path) -> None:
    engine = SimulatedEngine()
    engine.run(requests(0))
    engine.write_timeline(folder)


def killed(folder: Path) -> None:
    engine = SimulatedEngine()
    for of in (requests(99, 4), requests(0)):
        engine.run(of)
    engine.write_timeline(folder, ended=False)


def windows_of_another_process(folder: Path) -> None:
    killed(folder)
    other = SimulatedEngine(pid=99)
    other.run(requests(0))
    other.write_timeline(folder.with_name("elsewhere"))
    other.write_window(folder, 0, 1, 6)


def agents_that_pause(folder: Path) -> None:
    from fixtures.rollouts import START_S
    from fixtures.timeline.writer import Writer

    engine = SimulatedEngine()
    for number in range(12):
        engine.run(requests(number, 4))
    engine.write_timeline(folder)
    trainer = Writer(folder, pid=7, started_ms=START_S * 1000, run=engine.name)
    for number in (1, 2, 3):
        at = number * (engine.now - START_S * 10**6) // 3
        trainer.add("phase", "gen", at - 2_000_000, at - 1_000_000)
        trainer.add("step", "", at, at, amount=number)
    trainer.close((engine.now - START_S * 10**6, engine.now))


@pytest.mark.parametrize(
    ("made", "head", "note"),
    [
        (two_replicas, "rollout: 4 rollouts", "2 engines"),
        (one_step, "rollout: 1 rollout", "include the warm-up"),
        (killed, "rollout: 1 rollout", ""),
        (windows_of_another_process, "0 recorded", ""),
        (agents_that_pause, "rollout: 11 rollouts", "12 rollouts were counted in 3 training steps"),
    ],
)
def test_what_is_known_of_an_unusual_run_is_told(
    run: Run, tmp_path: Path, made: Callable[[Path], None], head: str, note: str
) -> None:
    made(tmp_path)
    result = run("diagnose", tmp_path, "-o", tmp_path / "page.html")
    assert head in result.stdout
    assert note in result.stderr.replace("\n", " ").replace("  ", " ")
    assert "check passed for " in result.stdout or "check failed for " in result.stdout
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()


def test_a_page_that_cannot_be_written_is_a_message_behind_the_text(run: Run, recorded: Path) -> None:
    result = run("diagnose", recorded, "-o", "/dev/full", code=5)
    assert "cannot be written" in result.stderr
    assert "attention" in result.stdout


@pytest.mark.parametrize("words", [("--steps", "2"), ("--tool", "torch")])
def test_some_options_need_a_command(words: tuple[str, str], run: Run, recorded: Path) -> None:
    assert words[0] in run("diagnose", recorded, *words, code=2).stderr


@pytest.mark.parametrize(("words", "tools"), [((), {None}), (("--tool", "torch"), {"torch"})])
def test_every_window_is_recorded_by_the_tool_and_beside_the_timeline(
    words: tuple[str, ...], tools: set[str | None], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ProfileRequest] = []

    def keep(targets: object, search: object, request: ProfileRequest, *rest: object, **more: object) -> CommandResult:
        asked.extend(request.beside)
        return CommandResult("run")

    monkeypatch.setattr(running, "run", keep)
    run("diagnose", "vllm", *words, "--save-path", tmp_path, "--", sys.executable)
    assert {request.choices.get("tool") for request in asked} == tools
    assert all(request.beside_timeline for request in asked)
