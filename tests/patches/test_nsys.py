"""nsys from the command line: what is refused, what has to be typed, and what `check` wants in front of the run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from patcher.commands.patching import starting
from patcher.switches import State
from patches.shared_switches import NSYS
from patches.verl import recipes as verl
from patches.vllm import recipes as vllm
from patches.vllm_ascend import recipes as vllm_ascend
from tests.patcher.guards.detecting import detect
from tests.patcher.store.tree import picture
from tests.patches.command_line import install, run

SERVE = ("python", "-m", "vllm.entrypoints.openai.api_server")
NEWEST = vllm.UPSTREAM.releases[-1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(vllm.UPSTREAM, NEWEST, tmp_path_factory.mktemp("nsys") / "site")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--markers", "--markers"),
        ("--no-facts", "step metadata"),
        ("--max-trace-gb 3", "--max-trace-gb"),
        ("--contents cpu", "--contents"),
        ("--level level0", "--level"),
        ("--module-ranges --markers", "--markers"),
    ],
)
def test_options_that_it_cannot_have_are_refused_before_anything_is_written(words: str, says: str, site: Path) -> None:
    before = picture(site)
    done = run("apply", "vllm", "--decode", "30:60", "--tool", "nsys", *words.split(), "--path", site, code=2)
    assert says in done.stderr
    assert "next: " in done.stderr
    assert picture(site) == before


def test_npus_are_not_recorded_by_nsys(site: Path, tmp_path: Path) -> None:
    ascend = install(vllm_ascend.UPSTREAM, "0.11.0rc1", tmp_path / "ascend")
    before = picture(ascend)
    assert (
        "--tool npu"
        in run("apply", "vllm-ascend", "--decode", "3:6", "--tool", "nsys", "--path", ascend, code=2).stderr
    )
    assert picture(ascend) == before
    root = install(verl.UPSTREAM, verl.UPSTREAM.releases[-1], tmp_path / "verl")
    words = (
        "apply",
        "verl",
        "--stage",
        "update-policy",
        "--micro-batch",
        "0:2",
        "--tool",
        "nsys",
        "--path",
        root,
        "--dry-run",
    )
    assert "nsys profile" in run(*words).stdout
    (root / "torch_npu").mkdir()
    assert "--tool npu" in run(*words, code=2).stderr


def test_a_run_without_nsys_in_front_is_found(tmp_path: Path) -> None:
    site = install(vllm.UPSTREAM, NEWEST, tmp_path / "site")
    words, nsys = ("vllm", "--path", site), ("nsys", "profile", *SERVE)
    assert run("check", *words, "--", *SERVE).exit_code == 0
    assert run("check", *words, "--", *nsys, code=8).exit_code == 8, "nothing says that it is to record"
    apply = ("apply", *words, "--decode", "30:60", "--tool")
    assert NSYS in run(*apply, "torch", "--", *nsys, code=8).stderr
    assert NSYS in run(*apply, "nsys", "--dry-run", "--", *SERVE).stderr, "a warning"
    assert NSYS not in run(*apply, "nsys", "--", *nsys).stderr
    run("check", *words, "--", *nsys)
    missing = run("check", *words, "--", *SERVE, code=5)
    assert "nsys profile" in missing.stderr
    run("check", *words)
    assert "Nsight Compute" in run("check", *words, "--", "ncu", *SERVE, code=8).stderr, "another one is still one"
    (site / ".rlpatch" / "state.json").write_text("{broken")
    run("check", *words, "--", *SERVE)


def test_each_printed_command_starts_nsys_for_the_guards_and_says_the_same(tmp_path: Path) -> None:
    lines = [line.strip() for line in starting.nsys_lines("/a b/traces")]
    program = next(line for line in lines if line.startswith("nsys profile "))
    words = shlex.split(program)
    typed = {word.partition("=")[0][2:]: word.partition("=")[2] for word in words[2:-1]}
    assert typed.pop("output") == "/a b/traces/%h_%p"
    ray = json.loads(next(line for line in lines if line.startswith("runtime_env=")).partition("=")[2])["nsight"]
    assert ray == {**typed, "o": "/a b/traces/%h_%p"}
    (override,) = shlex.split(next(line for line in lines if "ray_init" in line))
    (parsed,) = OverridesParser.create().parse_overrides([override])
    assert parsed.key_or_group == "ray_kwargs.ray_init.runtime_env.nsight"
    assert parsed.value() == ray
    variables = next(line for line in lines if line.startswith("NRL_"))
    nemo = dict(word.split("=", 1) for word in shlex.split(variables))
    assert re.fullmatch(r"\d+:\d+", nemo["NRL_NSYS_PROFILE_STEP_RANGE"])
    assert json.loads(nemo["NRL_NSYS_EXTRA_OPTIONS"]).items() <= ray.items()
    for environ, command in (
        ({}, (*words[:-1], *SERVE)),
        ({"NRL_NSYS_WORKER_PATTERNS": nemo["NRL_NSYS_WORKER_PATTERNS"]}, SERVE),
    ):
        results = detect(vllm.UPSTREAM.switches, version=NEWEST, environ=environ, command=command)
        assert next(result.state for result in results if result.profiler == NSYS) is State.ON
