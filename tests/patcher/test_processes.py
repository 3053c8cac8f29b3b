"""Detection of running engines: by what a process is and not by a word in its command line."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patcher import processes
from patcher.recipe import Upstream
from patches.projects import upstreams

KNOWN = tuple(upstream.processes for upstream in upstreams())
VLLM = ("python3 -m vllm.entrypoints.cli.main", "/usr/bin/python3 /usr/local/bin/vllm serve m", "VLLM::EngineCore")
OWN = {
    "vllm": VLLM,
    "vllm-ascend": VLLM,
    "verl": ("python3 -m verl.trainer.main_ppo", "ray::WorkerDict.actor_rollout_update_actor"),
    "areal": ("python3 -m areal.infra.rpc.rpc_server --role actor", "ray::RayRPCServer.call"),
    "openrlhf": ("python3 -m openrlhf.cli.train_ppo_ray --pretrain m", "ray::PolicyModelActor.execute_batch"),
    "trl": ("/usr/bin/python3 /usr/local/bin/trl grpo --config grpo.yaml", "python3 -m trl.scripts.grpo"),
    "sglang": ("python3 -m sglang.launch_server", "/usr/bin/python3 /usr/bin/sglang serve", "sglang::scheduler_TP0"),
    "slime": ("ray::MegatronTrainRayActor.train",),
    "miles": ("ray::MegatronTrainRayActor.train",),
    "verl-omni": ("python3 -m verl_omni.trainer.main_diffusion", "ray::WorkerDict.actor_rollout_update_actor"),
    "nemo-rl": ("ray::DTensorPolicyWorkerV2.train", "ray::MegatronPolicyWorker.train"),
    "mindspeed-rl": (
        *(f"python3 cli/train_{name}.py --config-name {name}" for name in ("grpo", "dapo", "ppo")),
        *("ray::IntegratedWorker.update", "ray::ActorHybridWorker.update"),
    ),
}
ENGINES = (
    "python3 -m vllm.entrypoints.openai.api_server",
    "/opt/venv/bin/python3.11 -u -m vllm",
    "python3 -X dev -W ignore -Im verl.trainer.main_ppo x=1",
    "python -mverl.trainer.main_ppo",
    "/usr/bin/python3 /usr/local/bin/vllm serve /models/x",
    "python3 -u cli/train_grpo.py --config-name grpo",
    "VLLM::Worker_TP0",
    "VLLM::EngineCore",
    "ray::WorkerDict.actor_rollout_update_actor",
    "sglang::scheduler_TP0",
)
OTHERS = (
    "bash",
    "-bash",
    "",
    "bash run_vllm.sh",
    "sh -c vllm serve m",
    "vim /src/vllm/worker.py",
    "vim vllm",
    "emacs train_grpo.py",
    "grep vllm notes.txt",
    "grep -m 1 vllm",
    "tail -f vllm.log",
    "rlpatch apply vllm-ascend",
    "python3 /opt/venv/bin/rlpatch apply vllm --decode 1:2",
    "python3 -m pip install vllm",
    "python3 -m vllm_report",
    "python3 -c import vllm",
    "python3 -W vllm",
    "python3 tool.py -m vllm",
    "python3 /usr/bin/torchrun --nproc-per-node 8 train_grpo.py",
    "torchrun -m verl.trainer.main_ppo",
    "ssh host python3 -m vllm",
    "ray::IDLE",
)


def lines(*words: Any, **more: Any) -> tuple[str, ...]:
    return tuple(one.line for one in processes.running(*words, **more))


def process(proc: Path, pid: int, command: str, **files: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    folder.joinpath("cmdline").write_text(command.replace(" ", "\0") + "\0")
    for name, content in files.items():
        if name in ("exe", "cwd"):
            folder.joinpath(name).symlink_to(content)
        else:
            folder.joinpath(name).write_text(content)


def test_engines_are_told_by_their_program_not_by_words_in_the_command(tmp_path: Path) -> None:
    for pid, command in enumerate([*ENGINES, *OTHERS], 100):
        process(tmp_path, pid, command)
    process(tmp_path, os.getpid(), "python3 -m vllm")
    (tmp_path / "21").mkdir()  # it ended while we looked
    (tmp_path / "self").mkdir()
    assert lines(KNOWN, proc=tmp_path) == tuple(f"{pid} {command}" for pid, command in enumerate(ENGINES, 100))
    assert lines((), proc=tmp_path) == ()
    assert lines(KNOWN, proc=tmp_path / "nowhere") == ()


@pytest.mark.parametrize("upstream", upstreams(), ids=lambda upstream: upstream.project.name)
def test_every_project_knows_its_own(upstream: Upstream, tmp_path: Path) -> None:
    for pid, command in enumerate([*OWN[upstream.project.name], *OTHERS]):
        process(tmp_path, pid, command)
    assert len(lines((upstream.processes,), proc=tmp_path)) == len(OWN[upstream.project.name])


@pytest.mark.parametrize(
    ("exe", "found"),
    [("/usr/bin/python3.11", True), ("/usr/bin/python3.11 (deleted)", True), ("/usr/bin/vim.basic", False)],
)
def test_the_file_of_the_program_counts_more_than_its_name(tmp_path: Path, exe: str, found: bool) -> None:
    process(tmp_path, 7, "python3 -m vllm", exe=exe)
    assert bool(lines(KNOWN, proc=tmp_path)) is found


def test_an_interpreter_that_has_mapped_the_package_has_imported_it(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    for pid, file in ((5, package / "_C.so"), (6, tmp_path / "site" / "vllm_other" / "_C.so")):
        process(tmp_path / "proc", pid, "python3 my_rollouts.py", maps=f"7f00-7f01 r-xp 00000000 08:01 5  {file}\n")
    process(tmp_path / "proc", 8, "less x", maps=f"7f00-7f01 r--p 00000000 08:01 5  {package / 'x.py'}\n")
    assert lines(KNOWN, [package], tmp_path / "proc") == ("5 python3 my_rollouts.py",)


def test_where_an_interpreter_looks_first_is_read_of_engines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(processes, "_search_path", lambda folder: looked.append(Path(folder).name))
    for pid, command in ((5, "python3 -m vllm"), (6, "python3 -m http.server"), (7, "vim vllm")):
        process(tmp_path / "proc", pid, command, maps="", environ="", cwd="/")
    lines(KNOWN, [environment(tmp_path / "ours")], tmp_path / "proc")
    assert looked == ["5"]


def environment(root: Path) -> Path:
    """An environment with a vllm of its own; the folder of that package."""
    package = root / "lib" / "python3.11" / "site-packages" / "vllm"
    package.mkdir(parents=True)
    return package


def test_an_engine_of_another_environment_does_not_hold_the_code(tmp_path: Path) -> None:
    ours, proc = environment(tmp_path / "ours"), tmp_path / "proc"
    environment(tmp_path / "theirs")
    for pid, prefix in ((1, "ours"), (2, "theirs"), (3, "none")):
        command = f"{tmp_path / prefix}/bin/python {tmp_path / prefix}/bin/vllm serve"
        process(proc, pid, command, environ="HOME=/root\0", cwd="/")
    named = processes.running(KNOWN, [ours], proc)
    assert [(process.line.split()[0], process.here) for process in named] == [("1", True), ("3", False)]


def test_an_engine_of_another_environment_counts_if_its_search_path_leads_here(tmp_path: Path) -> None:
    checkout, proc = tmp_path / "checkout" / "vllm", tmp_path / "proc"
    checkout.mkdir(parents=True)
    environment(tmp_path / "theirs")
    command = f"{tmp_path}/theirs/bin/python -m vllm"
    process(proc, 1, command, environ=f"PYTHONPATH=/x:{checkout.parent}\0", cwd="/")
    process(proc, 2, command, environ="", cwd=str(checkout.parent))
    process(proc, 3, command, environ="", cwd="/")
    process(proc, 4, "python -m vllm")
    assert [line.split()[0] for line in lines(KNOWN, [checkout], proc)] == ["1", "2", "4"]


def test_the_interpreter_of_another_environment_tells_what_a_process_hides(tmp_path: Path) -> None:
    ours, proc = environment(tmp_path / "ours"), tmp_path / "proc"
    environment(tmp_path / "theirs")
    for pid, prefix in ((1, "ours"), (2, "theirs"), (3, "none")):
        process(proc, pid, f"{tmp_path / prefix}/bin/python -m vllm")
    assert [line.split()[0] for line in lines(KNOWN, [ours], proc)] == ["1", "3"]


def maps(*files: Path) -> str:
    return "".join(f"7f00-7f01 r-xp 00000000 08:01 5  {file}\n" for file in files) + "7f00-7f01 rw-p 00000000 00:00 0\n"


@pytest.mark.parametrize(
    ("mapped", "search", "found"),
    [
        ("ours/torch/_C.so", "", True),
        ("theirs/torch/_C.so", "", False),
        ("theirs/vllm/_C.so", "", False),
        ("neither/torch/_C.so", "", True),  # it has vLLM from somewhere that cannot be seen
        ("", "", True),
        ("theirs/torch/_C.so", "ours", True),
        ("ours/torch/_C.so", "theirs", False),  # which comes first
        ("ours/torch/_C.so", "empty:theirs:ours", False),
        ("ours/torch/_C.so", "empty:ours:theirs", True),
    ],
)
@pytest.mark.parametrize("title", ["VLLM::Worker_TP0", "ray::WorkerDict.update_actor", "python3 -m vllm"])
def test_what_a_process_has_loaded_tells_its_environment(
    tmp_path: Path, mapped: str, search: str, found: bool, title: str
) -> None:
    """Also where it has given itself a title, so that no path is left in its command line."""
    sites = {name: environment(tmp_path / name).parent for name in ("ours", "theirs")}
    for name in ("ours", "theirs"):
        (sites[name] / "vllm" / "__init__.py").touch()
    sites["neither"] = tmp_path / "neither" / "lib" / "python3.11" / "site-packages"
    environ = "PYTHONPATH=" + ":".join(str(sites.get(name, tmp_path / name)) for name in search.split(":")) + "\0"
    where, _, file = mapped.partition("/")
    content = maps(sites[where] / file) if mapped else maps()
    process(tmp_path / "proc", 5, title, maps=content, environ=environ if search else "", cwd="/")
    assert bool(lines(KNOWN, [sites["ours"] / "vllm"], tmp_path / "proc")) is found


def test_a_process_that_hides_what_it_has_loaded_is_named_with_that(tmp_path: Path) -> None:
    package = environment(tmp_path / "ours")
    process(tmp_path / "proc", 5, "VLLM::Worker", environ="", cwd="/")  # no maps
    process(tmp_path / "proc", 6, "VLLM::Worker", maps=maps(package / "_C.so"), exe="/usr/bin/python3")
    process(tmp_path / "proc", 7, "VLLM::Worker", maps=maps(), environ="", cwd="/")
    process(tmp_path / "proc", 8, "sleep 5")
    hidden, *others = lines(KNOWN, [package], tmp_path / "proc")
    assert hidden.startswith("5 VLLM::Worker (")
    assert others == ["6 VLLM::Worker", "7 VLLM::Worker"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(("owner", "user"), [(65534, "nobody"), (4_000_001, "user 4000001")])
def test_a_process_of_another_user_is_named_with_that(tmp_path: Path, owner: int, user: str) -> None:
    process(tmp_path, 5, "VLLM::Worker", stat="5 (python) S" + " 0" * 18 + " 100")
    (tmp_path / "stat").write_text("btime 1700000000\n")
    os.chown(tmp_path / "5", owner, -1)
    (found,) = processes.running(KNOWN, proc=tmp_path)
    assert found.user == user
    assert re.fullmatch(rf"5 VLLM::Worker \(of {user}, running since 2023-11-1\d \d\d:\d\d\)", found.line)


def test_a_command_of_two_targets_names_who_has_one_of_them(tmp_path: Path) -> None:
    ours, theirs = environment(tmp_path / "ours"), environment(tmp_path / "theirs")
    verl = ours.parent / "verl"
    verl.mkdir()
    process(tmp_path / "proc", 5, "ray::WorkerDict", maps=maps(theirs.parent / "torch.so"), environ="", cwd="/")
    assert lines(KNOWN, [ours], tmp_path / "proc") == ()
    assert lines(KNOWN, [ours, verl], tmp_path / "proc") == ("5 ray::WorkerDict",), "its verl may be ours"


def test_a_real_process_is_seen_by_what_it_has_loaded(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("libcst")
    assert spec is not None
    assert spec.origin
    package = Path(spec.origin).parent
    program = "import sys, libcst.native; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        named = [[line.split()[0] for line in lines((), [place])] for place in (package, tmp_path)]
        child.communicate()
    assert str(child.pid) in named[0]
    assert named[1] == []
