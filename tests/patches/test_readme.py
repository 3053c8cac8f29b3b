"""Every command line of README and docs on the real releases; those of MindSpeed-RL and slime on trees of their shapes."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from fixtures.mindspeed_rl import trees
from fixtures.nemo_rl import trees as nemo_rl
from fixtures.rollouts import SimulatedEngine, requests
from fixtures.slime import trees as slime
from fixtures.timeline.small import small
from patcher.cluster.nodes import Nodes
from patcher.commands.finding import SearchOptions
from patches.projects import projects
from tests.patcher.cluster.processes import Processes, nodes
from tests.patcher.traces.recorded import steps
from tests.patcher.workers.maker import ON_DEMAND, Saved
from tests.patches.command_line import run

PAGES = (*REPOSITORY.glob("README*.md"), REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md"))
LINES = sorted(
    {
        re.split(r" && | > |\s+#", line)[0].strip()
        for page in PAGES
        for line in re.findall(r"(?:^ {4,}|`)rlpatch ([a-z][^`\n]*)", page.read_text(), re.M)
    }
)
"""What is typed behind `rlpatch` in a block or in code within a line, each once; both languages show the same."""

COMMANDS = [line for line in LINES if line.startswith(("apply ", "check ")) and "--" in line]
README = {line for line in LINES if any(line in page.read_text() for page in REPOSITORY.glob("README*.md"))}
# What only the pages behind the README show needs a copy of a release for each line, too: that is for the long run.
APPLIED = [
    pytest.param(line, id=line, marks=() if line in README else pytest.mark.matrix)
    for line in COMMANDS
    if line.startswith("apply")
]
COMPARED_RUNS = [line for line in LINES if line.startswith("compare ") and ("--steps" in line or "/rlpatch_" in line)]
OF_TRACES = [
    line
    for line in LINES
    if line.split()[0] in ("traces", "analyse", "report", "compare") and " " in line and line not in COMPARED_RUNS
]
OF_WORKERS = [line for line in LINES if line.split()[0] in ("watch", "trigger") and " " in line]
NAMES_ALONE = ("apply", "run", "check", "demo", "explain", "traces", "analyse", "report", "compare", "watch", "trigger")
ON_AN_ENGINE = [line for line in LINES if "$ENGINE" in line]  # those of the tutorial that runs a real engine
RUNS = [line for line in LINES if line.startswith("run ") and line not in ON_AN_ENGINE]
TIMELINES = [line for line in LINES if line.split()[0] == "timeline"]
DIAGNOSES = [line for line in LINES if line.split()[0] == "diagnose" and line not in ON_AN_ENGINE]
BUNDLES = [line for line in LINES if line.startswith("bundle ")]  # their page has a test of its own, for all machines
LOOKS = [
    line
    for line in LINES
    if line
    not in (
        *COMMANDS,
        *RUNS,
        *COMPARED_RUNS,
        *OF_TRACES,
        *OF_WORKERS,
        *BUNDLES,
        *TIMELINES,
        *DIAGNOSES,
        *ON_AN_ENGINE,
        *NAMES_ALONE,
    )
]
NEWEST = {project.name: project.releases[-1] for project in projects() if project.on_index}


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is shown for a cluster is done on one whose only node is a process, with the same installation."""
    crews: list[Processes] = []

    def connected(_address: str, chosen: str | None, search: SearchOptions, _gone: str | None = None) -> Nodes:
        crews.append(Processes({"n1": next(iter(search.path), Path()).resolve()}))
        return nodes(crews[-1], with_target="has-target" in (chosen or ""))

    monkeypatch.setattr("patcher.cluster.connecting.connect", connected)
    yield
    for crew in crews:
        crew.close()


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 10
    assert all(line in (REPOSITORY / "docs/howto/bundle.md").read_text() for line in BUNDLES)


@pytest.mark.parametrize("command", APPLIED)
def test_what_the_readme_shows_can_be_done(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    where = Path(words[words.index("--path") + 1] if "--path" in words else "site")
    for word in words[1:]:
        name, _, version = word.partition("==")
        if name == "mindspeed-rl":
            trees.checkout(trees.RELEASES[-1], where)
        elif name in slime.PACKAGES and not where.exists():
            slime.checkout(where, name)
        elif name == "nemo-rl" and not where.exists():
            nemo_rl.checkout(where, nemo_rl.NEWEST)
        elif name in NEWEST:
            shutil.copytree(releases.release(version or NEWEST[name], name), where, dirs_exist_ok=True)
    done = run(*words, *(() if "--path" in words else ("--path", where)))
    assert "patched " in done.stdout
    assert "no patch was found" not in run("status", "--path", where).stdout


@pytest.mark.parametrize("command", RUNS)
def test_what_the_docs_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    for name, _, version in (word.partition("==") for word in words):
        if name in NEWEST:
            shutil.copytree(releases.release(version or NEWEST[name], name), "site", dirs_exist_ok=True)
    said = "-I ignores PYTHONPATH"
    for script in ("run_grpo.sh", "bench.sh"):
        Path(script).write_text('python3 -I -c \'open("started", "w")\'\n')
    at, strict = words.index("--"), "--require" in words
    done = run(*words[:at], "--path", "site", *words[at:], code=5 if strict else 0)
    assert said in done.output
    assert Path("started").exists() != strict


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with vllm-ascend and verl, both of them patched."""
    site = tmp_path_factory.mktemp("patched") / "site"
    for name in ("vllm-ascend", "verl"):
        shutil.copytree(releases.release(NEWEST[name], name), site, dirs_exist_ok=True)
    traces = ("--save-path", site.parent / "traces")
    run("apply", "vllm-ascend", "verl", "--decode", "30:60", "--mini-batch", "0:1", "--path", site, *traces)
    return site


@pytest.mark.parametrize("command", LOOKS)
def test_what_the_docs_show_of_a_patched_site(
    command: str, patched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command)
    if words[0] in ("completion", "skill"):
        run(*words)
        return
    monkeypatch.chdir(patched.parent)
    if words[0] == "trust":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        (tmp_path / "rlpatch.toml").write_text('python = "python3"\n')
        monkeypatch.chdir(tmp_path)
    where = () if words[0] in ("list", "config", "trust") else ("--path", patched)
    assert run(*words, *where, *(("-n",) if words[0] == "revert" else ())).output


@pytest.mark.parametrize("command", OF_TRACES)
def test_what_the_docs_do_with_traces(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.replace("/data/", "") for word in shlex.split(command)]
    several = [f"{name}{at}" for name in ("before", "after") for at in (1, 2)]
    for name in ("rlpatch_traces", "before", "after", "run1", "run2", "run3", "run4", *several):
        Path(name).mkdir()
        steps(4).torch(Path(name) / "host_dp0_rank0_1.1.pt.trace.json")
    if "--export" in words:  # it parses what lies in the default folder
        words = words[:1]
    if "--baseline" in words:  # the first night
        run("compare", "--baseline", words[words.index("--baseline") + 1], "--update", "rlpatch_traces")
    assert run(*words).output
    assert all(Path(word).is_file() for word in words if word.endswith(".html"))


@pytest.mark.parametrize("command", TIMELINES)
def test_what_the_docs_do_with_a_timeline(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.replace("/data/", "") for word in shlex.split(command)]
    for name in ("rlpatch_traces", "kept/traces"):
        small(Path(name), steps=12)
    assert "largest costs" in run(*words).output
    assert all(Path(word).is_file() for word in words if word.endswith((".html", ".json")))


@pytest.mark.parametrize("command", DIAGNOSES)
def test_what_the_docs_diagnose(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.replace("/data/", "") for word in shlex.split(command)]
    if "--" in words:  # its program leaves no timeline
        for name in (word for word in words if word in NEWEST):
            shutil.copytree(releases.release(NEWEST[name], name), "site", dirs_exist_ok=True)
        Path("run_grpo.sh").write_text("true\n")
        at = words.index("--")
        assert "no timeline file of the run was found" in run(*words[:at], "--path", "site", *words[at:], code=3).output
        return
    engine = SimulatedEngine()
    for of in (requests(99, 4), requests(0), requests(0)):
        engine.run(of)
    engine.write_timeline(Path(next((word for word in words[1:2] if not word.startswith("-")), "rlpatch_traces")))
    assert ("rollout: 2 rollouts" in run(*words).output) == ("-q" not in words)


@pytest.mark.parametrize("command", COMPARED_RUNS)
def test_what_the_docs_compare_of_timelines(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rlpatch_traces", "before/rlpatch_traces", "after/rlpatch_traces"):
        small(Path(name), steps=40)
    assert "mean step" in run(*shlex.split(command)).output


@pytest.mark.parametrize("command", OF_WORKERS)
def test_what_the_docs_do_with_workers(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.replace("/data/", "") for word in shlex.split(command)]
    saved = Saved(Path("rlpatch_traces"))
    for told in () if "--at" in words else ({}, {"step": 1}):  # before there are workers
        saved.state("saved", **told) if words[0] == "watch" else saved.state("waiting", **ON_DEMAND, **told)
    if "--wait" in words:  # nobody serves it
        words[words.index("--timeout") + 1] = "0.1"
    done = run(*words, code=3 if "--wait" in words else 0)
    assert ("2 saved a trace" if words[0] == "watch" else "requested a recording of --") in done.stdout


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("check vllm-ascend")])
def test_what_the_docs_check_in_an_environment(
    command: str, patched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("vllm serve model\n")
    words = shlex.split(command)
    at = words.index("--")
    assert "command after --" in run(*words[:at], "--path", patched, *words[at:]).output


@pytest.mark.parametrize(("steps", "code", "said"), [("null", 0, "off"), ("[1]", 8, "my_trainer.yaml")])
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("check verl")])
def test_what_the_readme_checks(
    command: str, steps: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(releases.release(NEWEST["verl"], "verl"), "site")
    Path("run_grpo.sh").write_text("python3 -m verl.trainer.main_ppo --config-path=$PWD --config-name=my_trainer\n")
    Path("my_trainer.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: [pkg://verl.trainer.config]}\n"
        f"global_profiler: {{tool: torch, steps: {steps}}}\n"
        "actor_rollout_ref: {actor: {profiler: {enable: true, tool: torch}}}\n"
    )
    words = shlex.split(command)
    done = run(*words[: words.index("--")], "--path", "site", *words[words.index("--") :], code=code)
    assert said in done.stdout + done.stderr
