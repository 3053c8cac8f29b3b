"""Profilers around a run on GPUs, and those of slime and AReaL: on with file and line, else unknown, never falsely off."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import releases
from patcher.switches import State
from patches.areal.areal_switches import PROFILING
from patches.projects import upstreams
from patches.shared_switches import ENGINE, NCU, NSYS, ROCPROF
from tests.patcher.guards.detecting import detect

OFF, ARMED, UNKNOWN, ON = State.OFF, State.ARMED, State.UNKNOWN, State.ON
SWITCHES = {upstream.project.name: upstream.switches for upstream in upstreams()}
SERVE = "vllm serve m"

FILES = {
    "on.yaml": "env_vars:\n  A: b\nnsight: default\n",
    "block.yaml": "nsight:\n  t: cuda,nvtx\n",
    "other.yaml": "env_vars:\n  A: b\n",
    "init.py": "import ray\nray.init(runtime_env={'nsight': 'default'})\n",
    "actor.py": "import ray\n\n@ray.remote(runtime_env={\n    'nsight': {\n        't': 'cuda',\n    }})\nclass A:\n    pass\n",
    "branch.py": "import ray\nif flag():\n    ray.init(runtime_env={'nsight': 'default'})\n",
    "function.py": "import ray\ndef profile():\n    ray.init(runtime_env={'nsight': 'default'})\n",
    "exits.py": "import ray, sys\nsys.exit(0)\nray.init(runtime_env={'nsight': 'default'})\n",
    "may_exit.py": "import ray, sys\nif flag():\n    sys.exit(0)\nray.init(runtime_env={'nsight': 'default'})\n",
    "chooses.py": "import ray\nray.init(runtime_env={'nsight': 'default'} if flag() else {})\n",
    "text.py": "import ray\nHELP = '''\nray.init(runtime_env={'nsight': 'default'})\n'''\n",
    "none.py": "import ray\nray.init(runtime_env={'nsight': None})\n",
    "value.py": "import ray\nray.init(runtime_env={'nsight': options()})\n",
    "train.py": "import slime\n",
    "train_async.py": "import slime\n",
    "inner.sh": f"nsys profile {SERVE}\n",
}

# A launch script of vLLM, the profiler that it starts, the state, and the place if that is not the script's first line.
LAUNCHES: list[tuple[str, str, State, str]] = [
    (f"nsys profile -o x {SERVE}", NSYS, ON, ""),
    (f"/opt/nvidia/nsys profile {SERVE}", NSYS, ON, ""),
    (f"A=1 nsys profile -t cuda {SERVE}", NSYS, ON, ""),
    (f"env A=1 nsys profile {SERVE}", NSYS, ON, ""),
    (f"nohup nsys profile {SERVE} > log 2>&1 &", NSYS, ON, ""),
    (f"srun -n 2 nsys profile {SERVE}", NSYS, UNKNOWN, ""),
    ("torchrun --no-python nsys profile python3 x", NSYS, UNKNOWN, ""),
    (f"bash -c 'nsys profile {SERVE}'", NSYS, UNKNOWN, ""),
    (f'cd /\nbash -lc "nsys profile {SERVE}"', NSYS, UNKNOWN, "run.sh:2"),
    (f"docker run image nsys profile {SERVE}", NSYS, UNKNOWN, ""),
    ("bash inner.sh", NSYS, UNKNOWN, "inner.sh:1"),
    (f"set -x\nncu --set full -o x {SERVE}", NCU, ON, "run.sh:2"),
    (f"timeout 300 ncu {SERVE}", NCU, ON, ""),
    (f"rocprof --stats {SERVE}", ROCPROF, ON, ""),
    (f"mpirun -np 2 rocprofv3 --sys-trace -- {SERVE}", ROCPROF, UNKNOWN, ""),
    (f"rocprof-sys-run -- {SERVE}", ROCPROF, ON, ""),
    (f"nsys launch {SERVE}", NSYS, ARMED, ""),
    (f"nsys launch {SERVE} &\nnsys start", NSYS, ARMED, ""),
    # not surely passed, or put together
    (f"if x; then nsys profile {SERVE}; fi", NSYS, UNKNOWN, ""),
    (f"f() {{ nsys profile {SERVE}; }}\nf", NSYS, UNKNOWN, ""),
    (f"./wrap nsys profile {SERVE}", NSYS, UNKNOWN, ""),
    (f"bash -c '[ $A ] && nsys profile {SERVE}'", NSYS, UNKNOWN, ""),
    (f"bash -c 'nsys profile \"$@\"' _ {SERVE}", NSYS, UNKNOWN, ""),
    (f"if x; then P=nsys; fi\n$P profile {SERVE}", NSYS, UNKNOWN, "run.sh:2"),
    (f"P=nsys\nbash -c '$P profile {SERVE}'", NSYS, UNKNOWN, "run.sh:2"),
    (f"A=(nsys profile -o x)\n\"${{A[@]}}\" {SERVE}", NSYS, UNKNOWN, ""),
    # what profiles nothing
    ("nsys stats x.nsys-rep", NSYS, OFF, ""),
    ("nsys profile --help", NSYS, OFF, ""),
    ("ncu --import x.ncu-rep", NCU, OFF, ""),
    ("rocprofv3 --list-avail", ROCPROF, OFF, ""),
    (f"which nsys\n{SERVE} --trace-dir /tmp/nsys/x", NSYS, OFF, ""),
    (f"# nsys profile {SERVE}\n{SERVE}", NSYS, OFF, ""),
    # Ray's runtime environment
    ("ray job submit --runtime-env-json '{\"nsight\": \"default\"}' -- python3 -m x", NSYS, UNKNOWN, ""),
    ("ray job submit \\\n  --runtime-env-json='{\"nsight\": {\"t\": \"cuda\"}}' -- python3 -m x", NSYS, UNKNOWN, "run.sh:2"),
    ("ray job submit --runtime-env-json '{\"env_vars\": {}}' -- python3 -m x", NSYS, OFF, ""),
    ("ray job submit --runtime-env on.yaml -- python3 -m x", NSYS, UNKNOWN, "on.yaml:3"),
    ("ray job submit --runtime-env=block.yaml -- python3 -m x", NSYS, UNKNOWN, "block.yaml:1"),
    ("ray job submit --runtime-env other.yaml -- python3 -m x", NSYS, OFF, ""),
    ("python3 init.py", NSYS, UNKNOWN, "init.py:2"),
    ("ray job submit -- python3 init.py", NSYS, UNKNOWN, "init.py:2"),
    ("torchrun --nproc-per-node 8 actor.py", NSYS, UNKNOWN, "actor.py:4"),
    ("if x; then python3 init.py; fi", NSYS, UNKNOWN, "init.py:2"),
    ("python3 branch.py", NSYS, UNKNOWN, "branch.py:3"),
    ("python3 function.py", NSYS, UNKNOWN, "function.py:3"),
    ("python3 exits.py", NSYS, UNKNOWN, "exits.py:3"),
    ("python3 may_exit.py", NSYS, UNKNOWN, "may_exit.py:4"),
    ("python3 chooses.py", NSYS, UNKNOWN, "chooses.py:2"),
    ("python3 text.py", NSYS, UNKNOWN, "text.py:3"),
    ("python3 value.py", NSYS, UNKNOWN, "value.py:2"),
    ("python3 none.py", NSYS, OFF, ""),
    # variables
    ("export NRL_NSYS_WORKER_PATTERNS='*policy*'\npython3 -m x", NSYS, ON, ""),
]  # fmt: skip


def states(folder: Path, project: str, version: str, text: str, **environ: str) -> dict[str, tuple[State, str]]:
    """Return the severest state of each profiler, with its place, for the launch script ``text``."""
    for name, content in {**FILES, "run.sh": f"{text}\n"}.items():
        (folder / name).write_text(content)
    found: dict[str, tuple[State, str]] = {}
    for result in detect(SWITCHES[project], version=version, environ=environ, command=("bash", "run.sh")):
        found.setdefault(result.profiler, (result.state, result.where))
    return found


@pytest.mark.parametrize(("text", "profiler", "state", "where"), LAUNCHES)
def test_a_launch(
    text: str, profiler: str, state: State, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = states(tmp_path, "vllm", "0.33.0", text)
    assert found[profiler][0] is state
    if state is not OFF:
        assert found[profiler][1] == (where or "run.sh:1")


@pytest.mark.parametrize(
    ("variable", "profiler"),
    [
        ("NSYS_PROFILING_SESSION_ID", NSYS),
        ("NRL_NSYS_WORKER_PATTERNS", NSYS),
        ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", NCU),
        ("ROCP_TOOL_LIBRARIES", ROCPROF),
    ],
)
def test_a_variable_that_such_a_tool_sets(
    variable: str, profiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert states(tmp_path, "verl", "0.9.1", "python3 -m x", **{variable: "1"})[profiler] == (ON, "environment")


@pytest.mark.parametrize(
    ("words", "torch", "memory"),
    [
        ("", OFF, OFF),
        ("--use-pytorch-profiler --profile-step-start 1", ON, OFF),
        ("--record-memory-history", OFF, ON),
        ("--record-memory-history --profile-target train_overall train_actor", OFF, ON),
        ("--record-memory-history --profile-target train_actor", OFF, UNKNOWN),
        ("--profile-step-start 1 --memory-recorder torch", OFF, OFF),
    ],
)
@pytest.mark.parametrize("start", ["python3 train.py", "ray job submit -- python3 train_async.py"])
def test_slime(
    start: str, words: str, torch: State, memory: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = states(tmp_path, "slime", "0.3.1", f"set -x\n{start} --tp 2 {words}")
    assert found["slime's own profiler"][0] is torch
    assert found["slime's memory history"][0] is memory
    assert {where for state, where in found.values() if state is not OFF} <= {"run.sh:2"}


@pytest.mark.parametrize("words", ["$(cat args)", "$UNSET", "-m x $UNSET"])
def test_slime_with_words_that_only_the_run_tells(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = states(tmp_path, "slime", "0.3.1", f"python3 train.py {words}")
    assert found["slime's own profiler"] == found["slime's memory history"] == (UNKNOWN, "run.sh:1")


def test_slime_in_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = states(tmp_path, "slime", "0.3.1", "A=(\n  --use-pytorch-profiler\n)\npython3 train.py ${A[@]}")
    assert found["slime's own profiler"] == (UNKNOWN, "run.sh:2")


AREAL = {
    "program.py": "from areal.api.cli_args import load_expr_config\nconfig, _ = load_expr_config(args, Config)\n",
    "off.yaml": "seed: 1\nsession:\n  enabled: true\nperf_tracer:\n  enabled: false\n",
    "on.yaml": "session:\n  enabled: false\nperf_tracer:\n  enabled: true\nmemory_profiler:\n  profile_steps: [0]\n",
}


@pytest.mark.parametrize(
    ("words", "tracer", "memory"),
    [
        ("--config off.yaml", "", ""),
        ("--config off.yaml perf_tracer.enabled=true", "command after --", ""),
        ("--config off.yaml +memory_profiler.max_entries=1", "", "command after --"),
        ("--config=on.yaml", "on.yaml:4", "on.yaml:5"),
        ("--config on.yaml perf_tracer.enabled=false memory_profiler=null", "", ""),
        ("--config on.yaml memory_profiler.profile_steps=[]", "on.yaml:4", ""),
    ],
)
def test_areal(words: str, tracer: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in AREAL.items():
        (tmp_path / name).write_text(content)
    found = detect((), version="1.0.4", environ={}, command=["python3", "program.py", *words.split()],
                   root=tmp_path, application=PROFILING)  # fmt: skip
    places = {result.profiler: result.where for result in found if result.state is ON}
    expected = {"AReaL's perf_tracer": tracer, "AReaL's memory_profiler": memory}
    assert places == {profiler: where for profiler, where in expected.items() if where}
    assert {result.state for result in found} <= {ON, OFF}


@pytest.mark.parametrize(("version", "state"), [("0.12.0", ARMED), ("0.15.1", ARMED), ("0.16.0", OFF), ("0.33.0", OFF)])
@pytest.mark.parametrize("text", ["", "export VLLM_TORCH_PROFILER_DIR=$X\n"])
def test_a_variable_that_the_release_ignores(
    version: str, state: State, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"{text}{SERVE}\n")
    environ = {} if text else {"VLLM_TORCH_PROFILER_DIR": "/t"}
    switches = SWITCHES["vllm"]
    results = detect(switches, version=version, environ=environ, script=Path("run.sh"), published=releases.VLLM)
    (engine,) = [result for result in results if result.profiler == ENGINE]
    assert engine.state is (UNKNOWN if text and state is ARMED else state)
    if state is OFF:
        assert engine.where == ("run.sh:1" if text else "environment")
        assert "0.16.0" in engine.reason
