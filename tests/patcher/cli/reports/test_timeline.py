"""``rlpatch timeline`` as people type it: what is printed, what is promised as JSON, and bad input."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from fixtures.timeline.small import small
from fixtures.timeline.writer import Writer
from patcher.commands.finding import SearchOptions
from patcher.messages.report import StepResult
from patcher.timeline import files

Run = Callable[..., Result]


def result(found: Result) -> dict[str, Any]:
    return dict(json.loads(found.stdout)["result"])


def test_a_table_of_steps_says_what_limited_each(run: Run, tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500})
    found = run("timeline", tmp_path)
    rows = {line.split()[0]: line for line in found.stdout.splitlines() if line.strip()[:1].isdigit()}
    assert "trainer, rank 1: micro-batch in update_actor +0.500 s" in rows["4"]
    assert "typical" in rows["3"]
    assert "0.100" in rows["3"]
    assert "largest costs" in found.stdout
    assert found.stderr == "add -v for details\n"


def test_the_table_fits_the_terminal(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, slow={4: 500})
    monkeypatch.setattr("patcher.messages.tables.room", lambda: 80)
    found = run("timeline", tmp_path, "-v")
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_json_has_the_fields_that_are_promised(run: Run, tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500})
    found = result(run("timeline", tmp_path, "--json"))
    assert {
        "run",
        "seconds",
        "lanes",
        "steps",
        "causes",
        "windows",
        "recorded",
        "requests",
        "clocks",
        "missing",
        "notes",
    } <= {*found}
    step = found["steps"][3]
    assert {"step", "seconds", "limited_by", "critical_path", "roles", "tail_seconds", "sync_seconds", "verdict"} <= {
        *step
    }
    assert step["limited_by"] == {
        "role": "trainer", "replica": None, "rank": 1, "what": "micro-batch", "phase": "update_actor",
        "seconds": pytest.approx(0.799), "excess_seconds": pytest.approx(0.5), "kind": "unit",
        "saves_seconds": pytest.approx(0.5),
    }  # fmt: skip
    assert found["steps"][1]["limited_by"] is None
    assert sum(one["seconds"] for one in step["critical_path"]) == pytest.approx(step["seconds"])
    assert step["tail_seconds"] == pytest.approx(0.1)
    assert step["sync_seconds"] == pytest.approx(0.1)
    assert {use["role"] for use in step["roles"]} == {"driver", "trainer", "engine"}
    assert {window["what"] for window in found["windows"]} == {"typical decode", "tail", "slow micro-batch"}


def test_how_old_the_weights_were_is_said_where_the_trainer_logs_it(run: Run, tmp_path: Path) -> None:
    small(tmp_path, steps=6, stale={2: 1.5, 3: 4.5, 4: 1e30, 5: -1, 6: 0})
    found = run("timeline", tmp_path)
    assert "on average, trajectories began with weights 2.0 steps older than the weights being trained" in found.stdout
    ages = [line.split()[-1] for line in found.stdout.splitlines() if re.match(r" *\d+ +\d", line)]
    assert ages == ["?", "1.5", "4.5", "?", "?", "0.0"]
    steps = result(run("timeline", tmp_path, "--json"))["steps"]
    assert [one["stale_versions"] for one in steps] == [None, 1.5, 4.5, None, None, 0]


def test_proposed_windows_are_commands_that_are_understood(run: Run, tmp_path: Path, site: Path) -> None:
    """Each parses, up to where its target is looked for."""
    small(tmp_path, slow={4: 500})
    for window in result(run("timeline", tmp_path, "--json"))["windows"]:
        words = shlex.split(window["command"])
        assert words[:2] == ["rlpatch", "apply"]
        refused = run(*words[1:], "--path", site, "--dry-run", code=3)
        assert "no such target" in refused.stderr
        assert "no worker" in run(*shlex.split(window["trigger"])[1:], code=3).stderr


def test_the_micro_batch_that_was_slow_is_proposed_by_the_numbers_that_the_probe_counts(
    run: Run, tmp_path: Path
) -> None:
    small(tmp_path, slow={4: 500})
    windows = {one["what"]: one for one in result(run("timeline", tmp_path, "--json"))["windows"]}
    assert windows["slow micro-batch"]["command"] == "rlpatch apply verl --micro-batch 1:2 --ranks 1 --training-steps 4"
    assert windows["tail"]["command"] == "rlpatch apply vllm --decode 0:20 --at-tail 1 --rollout 1 --replicas 0"
    assert windows["typical decode"]["step"] in (2, 3, 5)


def test_a_rollout_before_the_first_step_counts(run: Run, tmp_path: Path) -> None:
    """As that of a validation does for the probe."""
    small(tmp_path, validates=True)
    windows = {one["what"]: one for one in result(run("timeline", tmp_path, "--json"))["windows"]}
    assert windows["tail"]["command"] == "rlpatch apply vllm --decode 0:20 --at-tail 1 --rollout 2 --replicas 0"
    first, end = windows["typical decode"]["command"].split()[4].split(":")
    assert (int(end) - int(first), int(first) > 10) == (19, True)


def test_steps_are_chosen_by_the_number_of_the_driver(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    found = result(run("timeline", tmp_path, "--json", "--steps", "2:4"))
    assert [one["step"] for one in found["steps"]] == [2, 3]
    for step, columns in zip(found["steps"], found["iterations"], strict=True):
        assert columns["step"] == step["step"]
        assert found["lanes"][columns["lane"]]["role"] == "engine"
        assert len({len(values) for values in columns.values() if isinstance(values, list)}) == 1
        assert step["start"] <= min(columns["start"]) <= max(columns["start"]) < step["end"]
        assert sum(columns["tokens"]) == step["prefill_tokens"] + step["decode_tokens"]
    assert result(run("timeline", tmp_path, "--json"))["iterations"] == []
    assert "steps of the run: 1 to 5" in run("timeline", tmp_path, "--steps", "9:11", code=2).stderr


@pytest.mark.parametrize("words", ["4:2", "3", "a:b", "1:99999999999999999999"])
def test_a_range_that_is_none_is_refused(words: str, run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    assert f"--steps {words}" in run("timeline", tmp_path, "--steps", words, code=2).stderr


def test_files_of_a_cluster_are_copied_here_first(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "elsewhere")

    class Nodes:
        def gather(self, folder: Path, into: Path) -> StepResult:
            assert folder == into == tmp_path / "here"
            shutil.copytree(tmp_path / "elsewhere", into)
            return StepResult(("copied 6 files",))

    monkeypatch.setattr("patcher.cli.search.ClusterOptions.connected", lambda *_: nullcontext(Nodes()))
    found = run("timeline", tmp_path / "here", "--ray")
    assert "steps 1 to 5" in found.stdout
    assert "copied 6 files" in found.stderr


# ---------------------------------------------------------------- bad input


def test_a_folder_that_is_missing_or_empty_says_how_to_record(run: Run, tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        assert "rlpatch run vllm verl --timeline -- bash run.sh" in run("timeline", folder, code=3).stderr


def test_a_folder_with_traces_only_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "host_1.2.pt.trace.json").write_text("{}")
    assert f"rlpatch traces {tmp_path}" in run("timeline", tmp_path, code=3).stderr


def test_of_several_runs_one_is_chosen(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    small(tmp_path, steps=3, run="other", after_ms=600_000)
    refused = run("timeline", tmp_path, code=2).stderr
    assert "the folder contains 2 runs; choose one with --run N" in refused
    assert "--run 1: " in refused
    assert "6 processes, verl 0.9.1, vllm 0.9.1" in refused
    assert [len(result(run("timeline", tmp_path, "--json", "--run", number))["steps"]) for number in (1, 2)] == [5, 3]
    assert "--run 7 does not exist: the folder contains 2 runs" in run("timeline", tmp_path, "--run", 7, code=2).stderr


def test_ranks_without_a_file_are_said_and_none_of_the_others_is_named(run: Run, tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500}, world=4)
    found = run("timeline", tmp_path, "-v")
    assert "timeline files are missing for trainer ranks 2, 3 (of 4)" in " ".join(found.stderr.split())
    assert "rank 1" not in found.stdout


@pytest.mark.parametrize(
    ("pid", "text"),
    [
        (10, "the driver wrote no timeline file"),
        (31, "no engine"),
        (20, "no trainer"),
        (30, "no server"),
        (40, "no agent loop"),
    ],
)
def test_a_role_without_a_file_is_said(pid: int, text: str, run: Run, tmp_path: Path) -> None:
    small(tmp_path, ranks=1, world=1)
    for path in (tmp_path / "timeline").glob(f"node0_{pid}_*"):
        path.unlink()
    found = run("timeline", tmp_path)
    assert text in " ".join(found.stderr.split())


def test_a_newer_version_is_left_out_or_refused(run: Run, tmp_path: Path) -> None:
    Writer(tmp_path, version=2).close()
    assert "newer rlpatch" in run("timeline", tmp_path, code=4).stderr
    small(tmp_path)
    assert "a newer rlpatch wrote it" in run("timeline", tmp_path).stderr


def test_a_file_that_is_no_timeline_is_refused_alone_and_left_out_beside_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    (tmp_path / "timeline" / "node0_1_2.jsonl.gz").write_bytes(b"nothing of the kind" * 20)
    run("timeline", tmp_path, code=4)
    small(tmp_path)
    assert "node0_1_2.jsonl.gz" in run("timeline", tmp_path).stderr


def test_a_file_that_has_only_just_begun_is_waited_for(run: Run, tmp_path: Path) -> None:
    Writer(tmp_path)
    assert "the processes of the run have not written anything yet" in run("timeline", tmp_path, code=3).stderr


def test_nothing_of_a_file_reaches_the_terminal_as_a_command(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    writer = Writer(tmp_path, "evil", pid=99, run="r", started_ms=1_790_000_000_000, package="\x1b[31mverl\x07")
    writer.add("work", "\x1b]0;title\x07" * 9, 50_100_000, 50_200_000)
    writer.close((50_300_000, 1_790_000_000_300_000))
    found = run("timeline", tmp_path, "-v")
    assert not {"\x1b", "\x07"} & {*(found.stdout + found.stderr)}


def test_reading_shows_how_far_it_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    counts: dict[str, list[int]] = {}

    def display(what: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
        return nullcontext(counts.setdefault(what, []).append)

    monkeypatch.setattr("patcher.cli.terminal.reading", display)
    run("timeline", tmp_path)
    size = sum(path.stat().st_size for path in files.paths(tmp_path))
    assert {what: sum(found) for what, found in counts.items()} == {"surveying": size, "joining": size}


def test_memory_is_that_of_a_step_not_of_a_run(tmp_path: Path) -> None:
    """Spans that were explained are forgotten: the reader of a long run holds no more than that of a short one."""
    from patcher.timeline import runs
    from patcher.timeline.join import _Join

    small(tmp_path, steps=200)
    ((found, processes),) = runs.survey(files.paths(tmp_path)).runs
    joining, most = _Join(found, processes, lambda _count: None), 0
    for number, start, end, _ in joining._read_steps():
        most = max(most, sum(len(reader.spans) for reader in joining.readers))
        joining.collector.feed(joining._records_between(start, end), number, start)
        joining._forget(end)
    assert most < 4 * 60


@pytest.mark.parametrize("installed", [["verl", "trl"], ["openrlhf"], []])
def test_an_engine_alone_says_how_to_record_the_trainer_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[str]
) -> None:
    engine = Writer(tmp_path / "traces", pid=1, package="vllm")
    engine.iterate(0, 1000, 1, 1, 1)
    engine.close()
    targets = [SimpleNamespace(project=SimpleNamespace(name=name)) for name in ("vllm", "slime", *installed)]
    monkeypatch.setattr(SearchOptions, "discover", lambda _: SimpleNamespace(targets=targets))
    lines = run("timeline", tmp_path / "traces").stdout.splitlines()
    told = [line.split() for line in lines if line.startswith("next: ")]
    assert sorted(words[4] for words in told) == (sorted(installed) or ["TRAINER"])
    assert all(words[1:4] == ["rlpatch", "run", "vllm"] and "--timeline" in words for words in told)
    assert ("openrlhf" in " ".join(lines)) == ("verl" not in installed)


def test_a_run_with_a_trainer_gets_no_such_advice(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    assert "next: rlpatch run" not in run("timeline", tmp_path).stdout
