"""A small application of our own: what is composed is what Hydra itself composes, and where it comes from."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from patcher.guards.hydra import Configuration, Start, configuration, typed, unknown
from patcher.guards.launch import read
from patcher.guards.scope import RUN_TIME, Argument, Assignment, Variables

KEYS = ("tool", "steps", "worker.tool", "worker.active", "worker.deep.size", "extra.name", "home", "missing", "absent")
FILES = {
    "conf/main.yaml": """\
defaults:
  - worker: small
  - data@extra: plain
  - _self_

tool: null
steps: []
home: ${oc.env:PROFILE_HOME,nowhere}
missing: ???
worker:
  active: ${oc.select:switch,false}
""",
    "conf/worker/base.yaml": "tool: ${oc.select:tool,null}\ndeep:\n  size: 1\n",
    "conf/worker/small.yaml": "defaults:\n  - base\n  - _self_\n\nactive: true\n",
    "conf/worker/large.yaml": "defaults:\n  - base\n  - _self_\n\ndeep:\n  size: 9\n",
    "conf/data/plain.yaml": "name: plain\n",
    "conf/data/fancy.yaml": "name: fancy\n",
    "other/mine.yaml": """\
hydra:
  searchpath:
    - file://conf
    - pkg://packaged.more
defaults:
  - main
  - override data@extra: packaged
  - _self_

tool: npu
""",
    "packaged/__init__.py": "",
    "packaged/more/__init__.py": "",
    "packaged/more/data/packaged.yaml": "name: packaged\n",
    "app.py": """\
import json, sys
import hydra
from omegaconf import OmegaConf

@hydra.main(config_path="conf", config_name="main", version_base=None)
def main(config):
    values = {key: OmegaConf.select(config, key) for key in KEYS}
    print(json.dumps({key: OmegaConf.to_container(one) if OmegaConf.is_config(one) else one
                      for key, one in values.items()}))

main()
""",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("KEYS", repr(KEYS)))
    return tmp_path


def compose(
    root: Path | None, words: Sequence[Argument] = (), *, start: Start | None = None, variables: Variables | None = None
) -> Configuration:
    folder = root / "conf" if root else None
    start = start or Start("run.sh:1", True, tuple(words), {"A": ()}, folder, "main", root)
    return configuration(start._replace(variables=variables or start.variables), root, "conf", "verl", KEYS)


ALIKE: list[list[str]] = [
    [],
    ["tool=npu"],
    ["tool=npu", "tool=null"],
    ["+worker.more=1", "++worker.active=false", "steps=[1, 2]"],
    ["worker=large", "tool='a b'"],
    ["worker=large", "worker.deep.size=3", "~home"],
    ["data@extra=fancy", "tool=${worker.deep.size}"],
    ["+switch=true", "worker.active=${switch}"],
    ["--config-name", "main.yaml", "steps=[]"],
    ["-cn=main", "--config-path=conf", "tool=torch"],
    ["--config-path=other", "--config-name=mine"],
    ["--config-dir=other", "tool=[a,{b: 2}]"],
]


@pytest.mark.parametrize("words", ALIKE, ids=" ".join)
def test_the_values_are_those_that_the_application_gets(root: Path, words: list[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": str(root), "PROFILE_HOME": "/here"}
    sub = root / "runs"  # whatever Hydra writes about the run goes here
    sub.mkdir()
    relative = [word.replace("=other", f"={root}/other") for word in words]
    command = [sys.executable, str(root / "app.py"), *relative, f"hydra.run.dir={sub}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=root)
    assert done.returncode == 0, done.stderr
    ours = compose(root, relative, variables={"PROFILE_HOME": (Assignment("/here", "", ""),)})
    assert ours.reason == ""
    assert ours.values == json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "open_keys"),
    [
        ([f"steps={RUN_TIME}"], {"steps"}),
        ([f"steps=[1,{RUN_TIME}]"], {"steps"}),
        ([f"tool={RUN_TIME}"], {"tool", "worker.tool"}),
        ([f"tool={RUN_TIME}", "tool=npu"], set()),
        ([f"tool=a/{RUN_TIME}.b"], {"tool", "worker.tool"}),
        ([f"+switch={RUN_TIME}", "worker.active=${switch}"], {"worker.active"}),
        ([f"+nobody.asks={RUN_TIME}"], set()),
        (["-m", "steps=[1],[2]"], {"steps"}),
        (["tool=${absent}"], {"tool", "worker.tool"}),
        (["home=${unheard.of:1}"], {"home"}),
    ],
)
def test_what_only_the_run_tells_reaches_the_keys_that_use_it(
    root: Path, words: list[str], open_keys: set[str]
) -> None:
    values = compose(root, words, variables={"PROFILE_HOME": (Assignment("/here", "", ""),)}).values
    assert {key for key in KEYS if unknown(values[key])} == open_keys


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([None], "a word is only known when it runs"),
        ([f"{RUN_TIME}=1"], "a word is only known when it runs"),
        ([f"worker={RUN_TIME}"], "Hydra cannot compose it"),
        (["--config-path", None], "--config FILE names it"),
        ([f"--config-name={RUN_TIME}"], "--config FILE names it"),
        (["--config-name=nothing"], "there is no"),
        (["--config-path=pkg://somewhere"], "there is no"),
        (["steps=[1"], "Hydra cannot read steps=[1"),
        (["worker=huge"], "Hydra cannot compose it"),
        (["--no-such-option"], "Hydra does not take"),
        (["--version"], "Hydra does not take"),
    ],
)
def test_what_makes_everything_unknown(
    root: Path, words: list[Argument], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = compose(root, words)
    assert reason in found.reason
    assert "rlpatch_run_time" not in found.reason
    assert not found.values
    assert found.origin("tool") is None
    assert capfd.readouterr() == ("", "")


def test_a_key_that_the_release_does_not_have_does_not_hide_the_others(root: Path) -> None:
    values = compose(root, ["no.such.key=1", "tool=npu", "steps=[4]", "~nor.this"]).values
    assert (values["tool"], values["steps"]) == ("npu", [4])


def test_broken_yaml_is_said(root: Path) -> None:
    (root / "conf" / "main.yaml").write_text("a: [1\n")
    assert compose(root).reason.startswith("Hydra cannot compose it: ")


def test_words_that_stand_there_perhaps_make_their_keys_unknown(root: Path) -> None:
    start = Start("run.sh:1", True, ("tool=npu",), {"A": ()}, root / "conf", "main", perhaps=("steps=[1]", "python"))
    found = compose(root, start=start)
    assert unknown(found.values["steps"])
    assert found.values["tool"] == "npu"
    assert "may be any override" in compose(root, start=start._replace(perhaps=("--config-name=x",))).reason


@pytest.mark.parametrize(
    ("variables", "value"),
    [
        ({"PROFILE_HOME": (Assignment("/a", "", ""),)}, "/a"),
        ({"PROFILE_HOME": (Assignment("", "", ""),)}, ""),
        ({"PROFILE_HOME": (Assignment("/a", "", "", exported=False),)}, "nowhere"),
        ({"OTHER": (Assignment("/a", "", ""),)}, "nowhere"),
        ({"PROFILE_HOME": (Assignment("/a", "", ""), Assignment("/b", "", ""))}, None),
        ({"PROFILE_HOME": (Assignment(None, "", ""),)}, None),
        ({"*": (Assignment(None, "", ""),)}, None),
    ],
)
def test_variables_are_those_of_the_start(
    root: Path, variables: Variables, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILE_HOME", "/ours")
    home = compose(root, variables=variables).values["home"]
    assert unknown(home) if value is None else home == value
    from omegaconf import OmegaConf

    assert OmegaConf.create({"a": "${oc.env:PROFILE_HOME}"}).a == "/ours", "the resolver is given back"


@pytest.mark.parametrize(
    ("words", "key", "origin", "where"),
    [
        (["tool=npu"], "tool", "tool", "run.sh:1"),
        (["tool=npu"], "worker.tool", "tool", "run.sh:1"),
        (["worker.tool=npu", "tool=torch"], "worker.tool", "worker.tool", "run.sh:1"),
        (["worker={tool: x}"], "steps", "steps", "conf/main.yaml:7"),
        (["++worker.deep={size: 4}"], "worker.deep.size", "worker.deep.size", "run.sh:1"),
        ([], "tool", "tool", "conf/main.yaml:6"),
        ([], "worker.tool", "tool", "conf/main.yaml:6"),
        ([], "worker.active", "worker.active", "conf/main.yaml:11"),
        (["+switch=true"], "worker.active", "switch", "run.sh:1"),
        ([], "worker.deep.size", "worker.deep.size", "conf/worker/base.yaml:3"),
        (["worker=large"], "worker.deep.size", "worker.deep.size", "conf/worker/large.yaml:6"),
        (["data@extra=fancy"], "extra.name", "extra.name", "conf/data/fancy.yaml:1"),
        (["--config-path=other", "-cn", "mine"], "tool", "tool", "other/mine.yaml:10"),
        (["--config-path=other", "-cn", "mine"], "extra.name", "extra.name", "packaged/more/data/packaged.yaml:1"),
        ([], "home", "home", "conf/main.yaml:8"),
        ([], "absent", None, ""),
    ],
)
def test_where_a_value_comes_from(root: Path, words: list[str], key: str, origin: str | None, where: str) -> None:
    found = compose(root, words)
    assert found.reason == ""
    place = found.origin(key)
    if place is None:
        assert origin is None
    else:
        assert (place.key, place.where.replace(f"{root}/", "")) == (origin, where)
        assert place.typed == where.startswith("run.sh")


def test_the_line_of_a_word_of_a_script(root: Path) -> None:
    (root / "run.sh").write_text("ARGS=(\n  tool=npu\n)\npython app.py \\\n  steps=[1] \\\n  ${ARGS[@]}\n")
    launch = read({}, root / "run.sh")[-1]
    found = compose(root, launch.argv[2:])
    places = [found.origin(key) for key in ("steps", "tool")]
    assert [place.where if place else "" for place in places] == [f"{root}/run.sh:5", f"{root}/run.sh:2"]


@pytest.mark.parametrize("value", [None, True, "npu", [1, 2], ["a"], "", -1])
def test_a_value_is_written_as_an_override_that_hydra_reads_back(root: Path, value: object) -> None:
    assert compose(root, [f"++absent={typed(value)}"]).values["absent"] == value


def test_without_hydra_the_extra_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.partition(".")[0] in {"hydra", "omegaconf"}:
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    assert compose(root).reason.endswith("pip install 'rlpatch[verl]'")


def test_nothing_is_written_warned_or_left_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from hydra.core.global_hydra import GlobalHydra

    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = compose(root, ["--config-dir=/no/such/folder", "hydra.searchpath=[file:///nor/this]", "tool=npu"])
        found.origin("worker.deep.size")
    assert warned == []
    assert found.values["tool"] == "npu"
    assert list(elsewhere.iterdir()) == []
    assert Path.cwd() == elsewhere
    assert capfd.readouterr() == ("", "")
    assert not GlobalHydra.instance().is_initialized()


def test_a_folder_with_a_quote_in_its_name(root: Path) -> None:
    odd = root / "it's, [odd]"
    odd.mkdir()
    (root / "conf").rename(odd / "conf")
    start = Start("x", True, (), {"A": ()}, root / "other", "mine")
    (root / "other" / "mine.yaml").write_text("defaults:\n  - main\n")
    assert configuration(start, odd, "conf", "verl", KEYS).values["worker.deep.size"] == 1


@pytest.mark.parametrize(("root_known", "hint"), [(True, "--config FILE"), (False, "--path DIR or --python EXE")])
def test_a_program_that_is_not_here(root: Path, root_known: bool, hint: str) -> None:
    start = Start("x", True, ("tool=npu",), {})
    assert hint in configuration(start, root if root_known else None, "conf", "verl", KEYS).reason
    assert (
        "its program" in configuration(start._replace(words=("-cp", "conf", "-cn", "main")), root, "", "", KEYS).reason
    )
