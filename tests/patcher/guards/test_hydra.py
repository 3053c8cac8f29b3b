"""A small application of our own: what is composed is what Hydra itself composes, and where it comes from.

What is composed in the child is composed here in this process, since it is the same program; the child is tested below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from patcher.guards import hydra
from patcher.guards.compose import Session
from patcher.guards.hydra import Child, Start, typed, unknown
from patcher.launches import RUN_TIME, Argument, Assignment, Variables, read

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
}

# The same files and words through a real application, all in one process.
DRIVER = """\
import contextlib, json, os, pathlib, sys
import hydra
from omegaconf import OmegaConf

@hydra.main(config_path={folder!r}, config_name={name!r}, version_base=None)
def main(config):
    found = {{key: OmegaConf.select(config, key) for key in {keys!r}}}
    said.append({{key: OmegaConf.to_container(one, resolve=True) if OmegaConf.is_config(one) else one
                 for key, one in found.items()}})

said = []
for words in {cases!r}:
    sys.argv = ["app.py", *words, "hydra.run.dir={runs}"]
    main()
print("VALUES" + json.dumps(said))
"""


def really(
    tmp_path: Path, folder: Path, name: str, keys: Sequence[str], cases: Sequence[Sequence[str]], **environ: str
) -> Any:
    """The values that an application with ``hydra.main`` gets from each of the ``cases``."""
    app = tmp_path / "app.py"
    app.write_text(DRIVER.format(folder=str(folder), name=name, keys=list(keys), cases=cases, runs=tmp_path / "runs"))
    done = subprocess.run(
        [sys.executable, str(app)], capture_output=True, text=True, env={**os.environ, **environ}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("VALUES")[2])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


class Composed(NamedTuple):
    """The answer to one start, and the session that gave it."""

    session: Session
    values: dict[str, Any]
    known: bool
    reason: str

    def change(self, keys: Sequence[str], *changes: tuple[str, str]) -> dict[str, Any]:
        asked = {"start": 0, "keys": list(keys), "decisive": keys[0], "changes": dict(changes)}
        (found,) = self.session.answer({"changes": [asked]})
        return found

    def origin(self, key: str) -> tuple[str, str]:
        """The key that decides another one, and its place."""
        found = self.change([key])
        return found["origins"][key][0], found["origins"][key][1] or found["place"]


def compose(
    root: Path | None,
    words: Sequence[Argument] = (),
    *,
    start: Start | None = None,
    variables: Variables | None = None,
    home: str = "conf",
    defaults: Sequence[str] = (),
) -> Composed:
    folder = root / "conf" if root else None
    start = start or Start("run.sh:1", True, tuple(words), {"A": ()}, folder, "main", root)
    start = start._replace(variables=variables or start.variables)
    session = Session()
    (found,) = session.answer(json.loads(json.dumps(hydra.starts([start], KEYS, root, home, defaults))))
    return Composed(session, found["values"], found["known"], found["reason"])


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


def test_the_values_are_those_that_the_application_gets(root: Path) -> None:
    cases = [
        [word.replace("=other", f"={root}/other").replace("path=conf", f"path={root}/conf") for word in words]
        for words in ALIKE
    ]
    expected = really(root, root / "conf", "main", KEYS, cases, PYTHONPATH=str(root), PROFILE_HOME="/here")
    for words, values in zip(cases, expected, strict=True):
        ours = compose(root, words, variables={"PROFILE_HOME": (Assignment("/here", "", ""),)})
        assert (ours.reason, ours.known, ours.values) == ("", True, values), words


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
    assert (found.values, found.known) == ({}, False)
    assert capfd.readouterr() == ("", "")


BASELESS: list[tuple[list[Argument], str]] = [
    (["--config-path", None], "--config FILE names it"),
    ([f"--config-name={RUN_TIME}"], "--config FILE names it"),
    (["--config-name=nothing"], "there is no"),
    (["--config-path=pkg://somewhere"], "there is no"),
]


@pytest.mark.parametrize(("words", "reason"), BASELESS)
def test_what_is_typed_counts_where_the_files_are_not_known(root: Path, words: list[Argument], reason: str) -> None:
    found = compose(root, [*words, "steps=[2]", "tool=npu", "worker.deep.size=9"])
    assert reason in found.reason
    assert {key: value for key, value in found.values.items() if not unknown(value)} == {
        "steps": [2], "tool": "npu", "worker.tool": "npu", "worker.deep.size": 9, "absent": None,
    }  # fmt: skip
    assert compose(root, ["steps=[2]", f"tool={RUN_TIME}"]).known


def test_without_any_file_what_is_typed_counts_alone(root: Path) -> None:
    start = Start("x", True, ("tool=npu", "steps=[2]", "a/b=c"), {})
    found = compose(None, start=start)
    assert found.reason.startswith("it is not here: --path DIR")
    assert {key: value for key, value in found.values.items() if not unknown(value)} == {"tool": "npu", "steps": [2]}
    nothing = compose(None, start=start._replace(words=()))
    assert (nothing.known, nothing.values) == (False, {})


def test_a_change_is_only_advised_if_hydra_takes_it(root: Path) -> None:
    found = compose(root, ["tool=npu"])
    changed = found.change(
        ["worker.tool", "steps"], ("worker.tool", "null"), ("steps", "[7]"), ("absent", "1"), ("tool", "null")
    )
    assert changed["accepted"] == ["worker.tool", "steps", "tool"]
    assert changed["overrides"] == ["tool=null", "steps=[7]"]
    assert (changed["values"]["worker.tool"], changed["values"]["steps"]) == (None, [7])
    assert compose(root, ["tool=npu", *changed["overrides"]]).values == changed["values"]
    assert found.change(["tool"])["values"]["tool"] == "npu", "nothing is left of it"


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
    anything = compose(root, start=start._replace(perhaps=("--config-name=x",)))
    assert "may be any override" in anything.reason
    advice = anything.change(["tool"], ("tool", "null"), ("absent", "1"))
    assert (advice["accepted"], advice["values"]["tool"], unknown(advice["values"]["steps"])) == (["tool"], None, True)


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
        ([], "absent", "absent", ""),
    ],
)
def test_where_a_value_comes_from(root: Path, words: list[str], key: str, origin: str, where: str) -> None:
    found = compose(root, words)
    assert found.reason == ""
    decided, place = found.origin(key)
    assert (decided, place.replace(f"{root}/", "")) == (origin, where)


def test_the_line_of_a_word_of_a_script(root: Path) -> None:
    (root / "run.sh").write_text("ARGS=(\n  tool=npu\n)\npython app.py \\\n  steps=[1] \\\n  ${ARGS[@]}\n")
    launch = read({}, root / "run.sh")[-1]
    found = compose(root, launch.argv[2:])
    places = [found.origin(key)[1] for key in ("steps", "tool")]
    assert places == [f"{root}/run.sh:5", f"{root}/run.sh:2"]


@pytest.mark.parametrize("value", [None, True, "npu", [1, 2], ["a"], "", -1])
def test_a_value_is_written_as_an_override_that_hydra_reads_back(root: Path, value: object) -> None:
    assert compose(root, [f"++absent={typed(value)}"]).values["absent"] == value


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python3"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_without_hydra_the_next_python_is_asked(root: Path, tmp_path: Path) -> None:
    request = hydra.starts(
        [Start("x", True, ("tool=npu",), {"A": ()}, root / "conf", "main", root)], KEYS, root, "conf", ()
    )
    without = program(tmp_path, f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    composed = hydra.composed([without], request, "verl")
    assert not isinstance(composed, str)
    assert composed[0][0]["values"]["tool"] == "npu"


def test_without_any_hydra_the_extra_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program(tmp_path, f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n'))
    request = hydra.starts([Start("x", True, (), {})], KEYS, root, "conf", ())
    for _ in range(2):
        assert str(hydra.composed([], request, "verl")).endswith("pip install 'rlpatch[verl]'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\nsleep 60\n", "gives no answer"),
        ("#!/bin/sh\nread line; echo rubbish; sleep 60\n", "gives no answer"),
        ("#!/bin/sh\nread line; printf '{'; sleep 60\n", "gives no answer"),
        ("#!/bin/sh\nexit 3\n", "gives no answer"),
        ("no program", "does not start"),
    ],
)
def test_a_child_that_does_not_answer_is_a_reason(tmp_path: Path, text: str, said: str) -> None:
    child, begun = Child(program(tmp_path, text), limit=0.3), time.monotonic()
    assert child.ask({"starts": ["x" * 100_000]}) is None
    assert said in child.reason
    assert time.monotonic() - begun < 20, "nor is it waited for what it has started"
    assert child.ask({}) is None, "it is not tried again"


def test_what_others_print_does_not_disturb_an_answer(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = tmp_path / "plugins"
    (plugins / "hydra_plugins" / "loud").mkdir(parents=True)
    (plugins / "hydra_plugins" / "loud" / "__init__.py").write_text("print('loud')\n")
    (plugins / "compose.py").write_text("1/0\n")
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    child = Child(sys.executable)
    answer = child.ask(
        hydra.starts([Start("x", True, (), {"A": ()}, root / "conf", "main", root)], KEYS, root, "conf", ())
    )
    child.close()
    assert answer
    assert answer[0]["values"]["worker.deep.size"] == 1


def test_a_child_answers_though_the_folder_is_gone_in_which_it_began(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Start("x", True, (), {"A": ()}, root / "conf", "main", root)
    request, child = hydra.starts([start], KEYS, root, "conf", ()), Child(sys.executable)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    before = child.ask(request)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").rmdir()
    after = child.ask(request)
    child.close()
    assert before
    assert after == before
    assert after[0]["known"]


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
        assert found.origin("worker.deep.size")[1].endswith("base.yaml:3")
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
    assert compose(odd, start=start).values["worker.deep.size"] == 1


@pytest.mark.parametrize(("root_known", "hint"), [(True, "--config FILE"), (False, "--path DIR, --python EXE")])
def test_a_program_that_is_not_here(root: Path, root_known: bool, hint: str) -> None:
    start = Start("x", True, ("tool=npu",), {})
    found = compose(root if root_known else None, start=start, defaults=["main"])
    assert hint in found.reason
    assert (found.values["tool"], unknown(found.values["steps"])) == ("npu", True)
    assert unknown(found.values["worker.tool"]) != root_known, "the project's own files say what follows from it"
    relative = start._replace(words=("-cp", "conf", "-cn", "main"))
    assert "its program" in compose(root, start=relative, home="").reason
