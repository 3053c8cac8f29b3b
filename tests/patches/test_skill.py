"""``rlpatch skill``: every command in the instructions for assistants runs, and every field and code in them exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from fixtures.rollouts import SimulatedEngine, requests
from fixtures.timeline.small import small
from patcher.cli import COMMANDS
from patcher.cli.about.skill import FILE
from patcher.messages import Kind
from patches.projects import projects
from tests.patcher.traces.recorded import steps
from tests.patcher.workers.maker import Saved
from tests.patches.command_line import run

TEXT = FILE.read_text(encoding="utf-8")
LINES = [re.split(r"\s+#", line)[0] for line in re.findall(r"^ {4}rlpatch (.*)", TEXT, re.M)]
NEWEST = {project.name: project.releases[-1] for project in projects() if project.on_index}
TRACE = "host_dp0_rank0_1.1.pt.trace.json"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("assistant") / "site"
    for name in ("vllm", "verl"):
        shutil.copytree(releases.release(NEWEST[name], name), site, dirs_exist_ok=True)
    return site


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces, timelines and workers where the commands look for them, and a run that does nothing."""
    monkeypatch.chdir(tmp_path)
    Path("run_grpo.sh").write_text("true\n")
    for name in ("rlpatch_traces", "before", "after", "before1", "before2", "after1", "after2"):
        steps(4).torch(Path(name) / TRACE)
    run("compare", "--baseline", "nightly", "--update", "rlpatch_traces")


def prepare(words: list[str]) -> None:
    """Replace what lies in the folder by what the command is for."""
    traces = Path("rlpatch_traces")
    if words[0] == "timeline":
        small(traces, steps=12)
    elif words[0] == "compare" and "/" in words[1]:
        for word in words[1:3]:
            small(Path(word), steps=12)
    elif words[0] == "diagnose":
        engine = SimulatedEngine()
        for of in (requests(99, 4), requests(0), requests(0)):
            engine.run(of)
        engine.write_timeline(traces)
    elif words[0] == "watch":
        Saved(traces).state("saved")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.matrix if " -- bash" in line else ()) for line in LINES]
)
def test_every_command_runs(line: str, site: Path) -> None:
    words = shlex.split(line)
    prepare(words)
    searches = words[0] in ("run", "apply", "status", "check") or ("--" in words and words[0] == "diagnose")
    at = words.index("--") if "--" in words else len(words)
    code = 3 if words[0] == "diagnose" and "--" in words else 0  # its run leaves no timeline
    done = run(*words[:at], *(("--path", site) if searches else ()), *words[at:], code=code)
    if "--json" in words:
        assert json.loads(done.stdout)["exit_code"] == 0
    if words[0] == "apply":
        run("revert", "--path", site)


def test_the_instructions_name_what_exists() -> None:
    """Commands, and the fields in the references that other tests hold to the code."""
    assert {shlex.split(line)[0] for line in LINES} <= {*COMMANDS}
    reference = "".join(
        (REPOSITORY / "docs" / page).read_text() for page in ("reference/json.md", "traces.md", "howto/watch.md")
    )
    fields = {name for name in re.findall(r"`([a-z_]+)`", TEXT) if name not in COMMANDS}
    assert len(fields) > 20
    assert {name for name in fields if not re.search(rf"\b{name}\b", reference)} == set()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.M)}
    assert codes - {0} < {kind.exit_code for kind in Kind}


def test_the_command_prints_the_file_with_its_front_matter() -> None:
    printed: Any = json.loads(run("skill", "--json").stdout)["result"]
    assert printed == {"path": str(FILE), "text": TEXT}
    assert run("skill").stdout == TEXT
    head = re.match(r"---\nname: rlpatch\ndescription: (.+)\n---\n\n# ", TEXT)
    assert head is not None
    assert len(head[1]) <= 1024
