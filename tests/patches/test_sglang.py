"""SGLang: every release, patched, reviewed, loaded and put back; and what its scheduler counts, as a table."""

from __future__ import annotations

import functools
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from fixtures.rays import cluster as rays
from patcher.config import WHOLE
from patcher.editing import fingerprint
from patcher.switches import State
from patches.probes.rollout import RolloutUnits
from patches.probes.sglang import ForwardThread, NamedReplica, SglangRollout
from patches.sglang import recipes as sglang
from patches.sglang import sglang_graphs
from tests.matrix import MATRIX, ends, of_releases, thinned
from tests.patcher.guards.detecting import detect
from tests.patches import sglang_runners
from tests.patches.command_line import install, run, there_and_back
from tests.patches.sglang_schedulers import Scheduler
from tests.patches.standin import Console, Profiler, rendered


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        cases = releases.SGLANG if everything else releases.SGLANG_SAMPLE
        metafunc.parametrize("release", thinned(cases, ends(cases)))


def test_the_recipes_know_every_published_release() -> None:
    assert sglang.UPSTREAM.releases == releases.SGLANG
    assert sglang.SCHEDULER.releases == releases.SGLANG


def test_the_sample_has_both_ends_of_every_structure() -> None:
    ends = {s.releases[i] for r in sglang.UPSTREAM.recipes for s in r.structures for i in (0, -1)}
    assert ends <= set(releases.SGLANG_SAMPLE)


@pytest.mark.usefixtures("unwatched")
def test_apply_and_revert_restore_every_byte(release: str, tmp_path: Path) -> None:
    root = install(sglang.UPSTREAM, release, tmp_path / "site")
    there_and_back(sglang.UPSTREAM, release, "rollout", "decode", root, tmp_path)


@MATRIX
@pytest.mark.usefixtures("unwatched")
def test_apply_and_revert_of_the_capture_restore_every_byte(release: str, tmp_path: Path) -> None:
    root = install(sglang.UPSTREAM, release, tmp_path / "site")
    there_and_back(sglang.UPSTREAM, release, "graph-capture", WHOLE, root, tmp_path)


@pytest.mark.usefixtures("stand_in_torch")
def test_the_capture_of_a_target_model_alone_is_recorded(
    release: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    sglang_runners.import_runner(monkeypatch)
    (recipe,) = (one for one in sglang_graphs.RECIPES if one.class_name and one.structure(release))
    made: list[Profiler] = []
    runner = functools.partial(sglang_runners.ModelRunner, recipe, release, made)
    runner(draft=True).start()
    without = releases.SGLANG.index(release) < releases.SGLANG.index("0.5.14")
    if without:  # later releases come to the line in any case
        runner(graphs=False).start()
    assert not made
    assert not console.text
    target = runner()
    for _ in range(2):
        target.start()
    (profiler,) = made
    assert profiler.recorded == {0: ["decode"] if without else ["prefill", "decode"]}
    (line,) = console.messages
    assert re.search(r"_graph_capture_dp0_rank0_\d+, \w+\(\): complete, recorded: 0$", line)


def test_each_fingerprint_belongs_to_a_release_of_its_structure(release: str) -> None:
    for recipe in sglang.UPSTREAM.recipes:
        structure = recipe.structure(release)
        if structure and structure.fingerprints:
            source = releases.release_file(release, structure.file, "sglang")
            assert fingerprint(source, recipe.class_name, recipe.method) in structure.fingerprints


@pytest.mark.parametrize(
    ("version", "scheduler", "thread"),
    of_releases(
        ends(releases.SGLANG),
        [
            ("0.4.0", "process_input_requests, check_memory, run_batch", True),
            ("0.4.7", "process_input_requests, check_memory, run_batch", True),
            ("0.5.3", "process_input_requests, check_memory, run_batch, maybe_sleep_on_idle", True),
            ("0.5.3.post1", "process_input_requests, check_memory, run_batch, maybe_sleep_on_idle", False),
            ("0.5.5", "process_input_requests, run_batch, maybe_sleep_on_idle", False),
            ("0.5.23", "process_input_requests, run_batch, maybe_sleep_on_idle", False),
        ],
    ),
)
def test_where_the_lines_stand(version: str, scheduler: str, thread: bool, tmp_path: Path) -> None:
    root = install(sglang.UPSTREAM, version, tmp_path / "site")
    run("apply", "sglang", "--prefill", "0:4", "--ranks", "all", "--path", root)
    managers = root / "sglang" / "srt" / "managers"
    assert called(managers / "scheduler.py") == scheduler
    file = managers / "tp_worker_overlap_thread.py"
    assert file.exists() == thread
    assert not thread or called(file) == "__init__"


def called(file: Path) -> str:
    """The methods of a file with a call of ours, in their order."""
    methods = []
    for line in file.read_text().splitlines():
        if line.startswith("    def "):
            method = line.split()[1].partition("(")[0]
        if line.endswith("# rlpatch: sglang rollout"):
            methods.append(method)
    return ", ".join(methods)


@pytest.mark.parametrize("profiler", ["torch", "torch_npu"])
def test_both_profilers_can_be_had(profiler: str, tmp_path: Path) -> None:
    root = install(sglang.UPSTREAM, "0.5.5", tmp_path / "site")
    backend = {"torch": "torch", "torch_npu": "npu"}[profiler]
    run("apply", "sglang", "--decode", "30:60", "--tool", backend, "--path", root)
    text = (root / "sglang/srt/managers/scheduler.py").read_text()
    assert f"from {profiler} import profiler" in text


def test_a_checkout_has_the_package_below_python(tmp_path: Path) -> None:
    install(sglang.UPSTREAM, "0.5.5", tmp_path / "python")
    said = run("apply", "sglang", "--decode", "30:60", "--path", tmp_path)
    assert "patched sglang/srt/managers/scheduler.py" in said.stdout
    assert (tmp_path / "python" / ".rlpatch").is_dir()


@pytest.mark.parametrize(
    ("version", "said", "unsaid"),
    [
        ("0.4.0", "SGLANG_TORCH_PROFILER_DIR", "num_steps"),
        ("0.4.6", "records N-1 batches", "start_step and"),
        (
            "0.5.3",
            "With the overlap scheduler, the profiler runs in the scheduler's thread and misses the operators of the forward, which runs in another thread",
            "/start_profile with num_steps records the next num_steps batches",
        ),
        (
            "0.5.5",
            "start_step counts all batches since the server's start",
            "operators of the forward, which",
        ),
        (
            "0.5.23",
            "start_step counts all batches since the server's start",
            "records N-1 batches",
        ),
    ],
)
def test_explain_says_where_sglangs_own_profiler_goes_wrong(version: str, said: str, unsaid: str) -> None:
    text = run("explain", f"sglang=={version}").stdout
    assert "without rlpatch, sglang" in text
    assert said in text
    assert unsaid not in text


DIRECTORY = {"SGLANG_TORCH_PROFILER_DIR": "/tmp/traces"}


@pytest.mark.parametrize(
    ("environ", "command", "state"),
    [
        ({}, "", State.OFF),
        ({"SGLANG_TORCH_PROFILER_DIR": "0"}, "", State.OFF),
        (DIRECTORY, "", State.ARMED),
        (DIRECTORY, "python -m sglang.launch_server --enable-profile-cuda-graph", State.ARMED),
        (DIRECTORY, "curl -X POST http://127.0.0.1:30000/start_profile", State.ON),
        (DIRECTORY, "python -m sglang.bench_serving --profile", State.ON),
        (DIRECTORY, "python3 -m sglang.bench_one_batch --profile --model m", State.ON),
        (DIRECTORY, "python -m sglang.profiler --num-steps 5", State.ON),
        ({"PROFILING_MODE": "true"}, "", State.ON),
        ({"PROF_CONFIG_PATH": "/tmp"}, "", State.ARMED),
    ],
)
@pytest.mark.parametrize("version", ["0.4.0", "0.5.5", "0.5.23"])
def test_switches_of_sglangs_own_profiler_are_detected(
    environ: dict[str, str], command: str, state: State, version: str
) -> None:
    found = detect(sglang.UPSTREAM.switches, version=version, environ=environ, command=command.split())
    # Before 0.4.3.post3 a request does nothing without the directory, which alone arms the profiler.
    assert found[0].state is (State.ARMED if version == "0.4.0" and environ is DIRECTORY else state)


# --- what the scheduler counts ---


pytestmark = pytest.mark.usefixtures("stand_in_torch")


@pytest.mark.parametrize(
    ("mode", "rids", "tokens", "inside"),
    [
        ("DECODE", ("a", "b"), None, "counted"),
        ("TARGET_VERIFY", ("a",), None, "counted"),
        ("EXTEND", ("a",), 9, "marked"),
        ("MIXED", ("a",), 9, "marked"),
        ("SPLIT_PREFILL", ("a",), 9, "marked"),
        ("DLLM_EXTEND", ("a",), 9, "marked"),
        ("IDLE", (), 0, "marked"),
        ("DECODE", ("HEALTH_CHECK_17.5",), None, "marked"),
        ("EXTEND", ("HEALTH_CHECK_17.5",), 9, "marked"),
        ("EXTEND", ("HEALTH_CHECK_17.5", "a"), 9, "marked"),
        ("DECODE", ("HEALTH_CHECK_17.5", "a"), None, "counted"),
        ("PREBUILT", ("a",), None, "nothing"),
        ("EXTEND", ("a",), 0, "nothing"),
    ],
)
def test_what_counts_as_a_decode_step(
    mode: str, rids: tuple[str, ...], tokens: int | None, inside: str, console: Console
) -> None:
    scheduler = Scheduler(WINDOW="2:5")
    scheduler.rollout(2)
    scheduler.run(mode, "x", *rids, tokens=tokens)
    for n in (3, 4, 5):
        scheduler.run("DECODE", f"decode {n}")
    scheduler._rlpatch_stage("idle")
    expected = {
        "counted": {2: ["decode 2"], 3: ["x"], 4: ["decode 3"]},
        "marked": {2: ["decode 2", "x"], 3: ["decode 3"], 4: ["decode 4"]},
    }
    expected["nothing"] = expected["marked"]
    assert scheduler.recorded() == [expected[inside]]
    assert f"with {int(inside == 'marked')} uncounted iterations" in console.text


@pytest.mark.parametrize("unit", ["prefill", "iterations"])
def test_a_health_check_opens_no_window_and_makes_no_rollout(unit: str) -> None:
    scheduler = Scheduler(WINDOW="0:2", UNIT=unit, FIRST=0)
    for mode in ("EXTEND", "DECODE"):
        scheduler.run(mode, "health", "HEALTH_CHECK_1")
    scheduler._rlpatch_stage("idle")
    scheduler.run("EXTEND", "prefill 1")
    scheduler.run("MIXED", "prefill 2")
    scheduler.run("DECODE", "decode")
    assert scheduler.recorded() == [{0: ["prefill 1"], 1: ["prefill 2"]}]


def test_ranks_that_run_in_step_count_their_idle_batches() -> None:
    scheduler = Scheduler(WINDOW="1:4", UNIT="aligned", FIRST=0)
    for mode, label in (("IDLE", "idle 1"), ("IDLE", "idle 2"), ("EXTEND", "prefill"), ("DECODE", "decode")):
        scheduler.run(mode, label, *([] if mode == "IDLE" else ["a"]))
    scheduler.run("IDLE", "idle 3")
    assert scheduler.recorded() == [{1: ["idle 2"], 2: ["prefill"], 3: ["decode"]}]


def named(name: str, **fields: Any) -> Any:
    return type(name, (SimpleNamespace,), {})(**fields)


@pytest.mark.parametrize("ends", [("idle",), ("release",), ("idle", "idle"), ("release", "idle")], ids=" ".join)
def test_a_rollout_ends_with_its_window(ends: tuple[str, ...]) -> None:
    scheduler = Scheduler(WINDOW="3:9", REPEAT=2)
    for _ in range(3):
        scheduler.rollout(5)
        for end in ends:
            if end == "idle":
                scheduler._rlpatch_stage("idle")
            else:
                scheduler._rlpatch_stage("receive", [named("ReleaseMemoryOccupationReqInput")])
    assert scheduler.recorded() == [{n: [f"decode {n}"] for n in (3, 4, 5)}] * 2
    assert scheduler._rlpatch_stage_probe is None


def test_a_window_that_is_complete_is_saved_when_the_engine_idles() -> None:
    scheduler = Scheduler(WINDOW="3:5")
    scheduler.rollout(4)
    assert "stop" not in scheduler.made[0].calls
    scheduler._rlpatch_stage("idle")
    assert scheduler.made[0].calls[-1] == "stop"
    assert scheduler.recorded() == [{3: ["decode 3"], 4: ["decode 4"]}]


def test_a_turn_without_a_batch_ends_no_rollout_while_a_request_waits() -> None:
    scheduler = Scheduler(WINDOW="2:4")
    scheduler.rollout(2)
    scheduler.waiting_queue.append("c")
    scheduler._rlpatch_stage("idle")
    scheduler.waiting_queue.clear()
    scheduler.run("DECODE", "decode 3")
    scheduler._rlpatch_stage("idle")
    assert scheduler.recorded() == [{2: ["decode 2"], 3: ["decode 3"]}]


@pytest.mark.parametrize("field", ["type", "req_type", "value"])
def test_sglangs_own_profiler_comes_first(field: str, console: Console) -> None:
    scheduler = Scheduler(WINDOW="2:6", REPEAT=2)
    scheduler.rollout(3)
    scheduler._rlpatch_stage("receive", [named("AbortReq"), named("ProfileReq", **{field: "START_PROFILE"})])
    assert scheduler.made[0].calls[-1] == "stop"
    assert "the framework's own profiler starts, recorded 2 of 4 decode steps" in console.text
    scheduler._rlpatch_stage("receive", [named("ProfileReq", **{field: "STOP_PROFILE"})])
    scheduler._rlpatch_stage("idle")
    scheduler.rollout(7)
    assert scheduler.recorded()[1:] == [{n: [f"decode {n}"] for n in range(2, 6)}]


RANKS = [
    # where the replica stands, attention, (world, rank) → replica and rank of the trace
    ({}, False, (1, 0), (0, 0)),
    ({}, False, (8, 5), (0, 5)),
    ({"dp_rank": None}, False, (8, 5), (0, 5)),
    ({"dp_rank": 2, "attn_dp_rank": 0}, False, (4, 1), (2, 9)),
    ({"dp_rank": 1, "attn_dp_rank": 1}, True, (4, 3), (1, 3)),
    ({"dp_rank": 1}, True, (4, 3), (1, 3)),
    ({"ps": SimpleNamespace(dp_rank=2, attn_dp_rank=0)}, False, (4, 1), (2, 9)),
    ({"ps": SimpleNamespace(dp_rank=None, attn_dp_rank=1)}, True, (4, 3), (1, 3)),
    ({"tp_worker": SimpleNamespace(_rlpatch_stage_replica=2), "dp_rank": 0}, False, (4, 1), (2, 9)),
    ({"context": SimpleNamespace(dp_rank=2, attn_dp_rank=0)}, False, (4, 1), (2, 9)),
    ({"context": SimpleNamespace(dp_rank=None, attn_dp_rank=1)}, False, (4, 3), (1, 3)),
]


@pytest.mark.parametrize(("known", "attention", "world", "expected"), RANKS)
def test_ranks(
    known: dict[str, Any], attention: bool, world: tuple[int, int], expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    distributed = sys.modules["torch.distributed"]
    answers = {"is_available": True, "is_initialized": True, "get_world_size": world[0], "get_rank": world[1]}
    for name, value in answers.items():
        monkeypatch.setattr(distributed, name, lambda value=value: value, raising=False)
    scheduler = Scheduler()
    scheduler.server_args.enable_dp_attention = attention
    known = dict(known)
    context = known.pop("context", None)
    if context:
        module = SimpleNamespace(get_parallel=lambda: context)
        monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", module)
    vars(scheduler).update(known)
    monkeypatch.setattr(RolloutUnits, "__init__", lambda self, worker: None)
    recorder = SglangRollout(scheduler)
    assert (recorder.dp, recorder.rank) == expected


class Client(ForwardThread):
    """The overlapped worker of 0.5.3 and before: a thread that takes batches from a queue."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.input_queue: Any = queue.Queue()
        self.scheduler = scheduler
        self.seen: list[tuple[str, int]] = []
        self.profilers = scheduler.made  # the same list, whatever the scheduler puts in its place
        self._rlpatch_stage_listen(3)
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def loop(self) -> None:
        while True:
            (label,) = self.input_queue.get()
            if label is None:
                break
            for profiler in self.profilers:
                profiler.run(label)


class Overlapped(Scheduler):
    def __init__(self, **constants: Any) -> None:
        client = Client.__new__(Client)  # which looks at the scheduler, which has it
        super().__init__(client, RANKS="3", **constants)
        Client.__init__(client, self)
        self.tp_worker.thread.start()

    def run(self, mode: str, label: str, *rids: str, tokens: int | None = 9) -> None:
        made, self.made = self.made, []  # recorded by the thread alone
        super().run(mode, label, *rids, tokens=tokens)
        self.made = made
        self.tp_worker.input_queue.put((label,))

    def end(self) -> None:
        self.tp_worker.input_queue.put((None,))
        self.tp_worker.thread.join(60)


@pytest.mark.parametrize("facts", [True, False])
def test_what_a_batch_holds_is_looked_at_for_step_metadata_alone(facts: bool) -> None:
    lines = rendered(sglang.SCHEDULER, {"METADATA": facts})
    assert any("def contents_of" in line for line in lines) is facts


def test_an_overlapped_forward_is_recorded_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    for method in ("start", "step", "stop"):
        original = getattr(Profiler, method)

        def noted(self: Profiler, original: Any = original) -> None:
            threads.add(threading.get_ident())
            original(self)

        monkeypatch.setattr(Profiler, method, noted)
    scheduler = Overlapped(WINDOW="2:4", REPEAT=2)
    for _ in range(2):
        scheduler.rollout(5)  # the thread may be far behind
        scheduler._rlpatch_stage("idle")
    scheduler.end()
    assert scheduler.recorded() == [{2: ["decode 2"], 3: ["decode 3"]}] * 2
    assert threads == {scheduler.tp_worker.thread.ident}


def test_an_overlapped_window_by_state_counts_anew_in_each_rollout() -> None:
    constants = {"RELATIVE": True, "BY_LOAD": True, "AT": {"load": "2"}}
    scheduler = Overlapped(WINDOW="0:2", REPEAT=3, **constants)
    for _ in range(3):
        scheduler.run("EXTEND", "prefill", "a")
        scheduler.run("DECODE", "decode 1", "a", tokens=None)
        for n in range(2, 7):
            scheduler.run("DECODE", f"decode {n}", "a", "b", tokens=None)
        scheduler._rlpatch_stage("idle")
    scheduler.end()
    assert scheduler.recorded() == [{3: ["decode 3"], 4: ["decode 4"]}] * 3


def test_only_what_is_near_the_window_costs_the_way_through_the_queue() -> None:
    scheduler = Overlapped(WINDOW="5:7", ROLLOUT="1")
    put = scheduler.tp_worker._rlpatch_stage_put
    handed: list[Any] = []

    def seen(item: Any) -> None:
        handed.append(item)
        put(item)

    scheduler.tp_worker._rlpatch_stage_put = seen
    scheduler.rollout(9)
    scheduler._rlpatch_stage("idle")
    scheduler.rollout(3)
    assert handed == []
    scheduler.run("DECODE", "decode 4")  # the warm-up
    assert len(handed) == 1
    for n in (5, 6, 7):
        scheduler.run("DECODE", f"decode {n}")
    scheduler.end()
    assert scheduler.recorded() == [{n: [f"decode {n}"] for n in (5, 6)}]


def test_an_overlapped_window_is_closed_before_sglangs_own_profiler_starts() -> None:
    scheduler = Overlapped(WINDOW="2:9")
    scheduler.rollout(4)
    scheduler._rlpatch_stage("receive", [named("ProfileReq", type="START_PROFILE")])
    assert scheduler.made[0].calls[-1] == "stop"
    scheduler.end()
    assert scheduler.recorded() == [{n: [f"decode {n}"] for n in (2, 3, 4)}]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sglang_server_3_0", "3"),
        ("sglang_server_decode_12_1", "12"),
        ("sglang_server_0_0_standalone", "0"),
        ("sglang_server_reward_1_0", "1"),
        ("vllm_server_3_0", None),
        ("WorkerDict_0:0", None),
        ("", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("mode", ["worker", "driver", "no cluster", "no ray"])
def test_a_server_of_verl_tells_its_schedulers_which_replica_they_are(
    mode: str, name: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(worker=SimpleNamespace(mode=1 if mode == "worker" else 0), get_actor_name=lambda: name)
    ray = SimpleNamespace(
        WORKER_MODE=1, is_initialized=lambda: mode != "no cluster", get_runtime_context=lambda: context
    )
    monkeypatch.setitem(sys.modules, "ray", None if mode == "no ray" else ray)
    monkeypatch.setenv("VERL_REPLICA_RANK", "before")
    NamedReplica._RlpatchStageReplica()
    assert os.environ["VERL_REPLICA_RANK"] == (told if told and mode == "worker" else "before")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A patched SGLang whose package has the block alone, without the rest, which imports the engine."""
    root = install(sglang.UPSTREAM, "0.5.23", tmp_path / "site")
    run("apply", "sglang", "--decode", "30:60", "--save-path", "/tmp/traces", "--path", root)
    block = (root / "sglang/__init__.py").read_text().partition("# >>> rlpatch")[2]
    (root / "sglang/__init__.py").write_text(f"# >>> rlpatch{block}")
    return root


def test_the_package_of_a_patched_release_is_imported(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import sglang"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
def test_the_processes_of_a_real_actor_inherit_it(root: Path) -> None:
    names = ("sglang_server_3_0", "sglang_server_decode_2_1", "another")
    command = [str(rays.python(rays.NEWEST)), "-m", "fixtures.rays.replica", *names]
    path = os.pathsep.join(map(str, (root, REPOSITORY)))
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        env = {**os.environ, **rays.variables(), "PYTHONPATH": path, "RAY_TMPDIR": scratch}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert "TOLD 3 2 None 0 0 1 1 None\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "records"), [("decode", True), ("prefill", False), (None, False)])
def test_a_server_for_decode_is_known_by_its_scheduler(mode: str | None, records: bool, stand_in_torch: None) -> None:
    scheduler = Scheduler(WINDOW="2:4", REPLICAS="decode", BY_SERVER=True)
    if mode:
        scheduler.disaggregation_mode = SimpleNamespace(value=mode)  # type: ignore[attr-defined]
    scheduler.rollout(5)
    assert bool(scheduler.recorded()) is records


def test_the_scheduler_has_its_mode_under_this_name(release: str) -> None:
    source = releases.release_file(release, "sglang/srt/managers/scheduler.py", "sglang").decode()
    first = releases.SGLANG.index("0.4.7")  # or before
    assert "self.disaggregation_mode = DisaggregationMode(" in source or releases.SGLANG.index(release) < first
