"""Environment, script and command against the declared switches: state, place, and how to switch off."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import releases
from patcher.guards.result import GuardResult
from patcher.messages.errors import Problem
from patcher.switches import State
from patches.projects import upstreams
from patches.shared_switches import DYNAMIC, ENGINE, MSMONITOR, MSPROF
from patches.vllm.vllm_switches import SWITCHES as VLLM
from patches.vllm_ascend.vllm_ascend_switches import SWITCHES as VLLM_ASCEND
from tests.alarms import at_most
from tests.matrix import ends, examples, thinned_rows
from tests.patcher.guards.detecting import detect

SWITCHES = {upstream.project.name: upstream.switches for upstream in upstreams()}

OFF, ARMED, UNKNOWN, ON = State.OFF, State.ARMED, State.UNKNOWN, State.ON


def one(findings: tuple[GuardResult, ...], profiler: str) -> GuardResult:
    (found,) = [finding for finding in findings if finding.profiler == profiler]
    return found


def in_script(
    tmp_path: Path,
    text: str | bytes,
    version: str = "0.11.0rc1",
    name: str = "run.sh",
    environ: dict[str, str] | None = None,
) -> tuple[GuardResult, ...]:
    script = tmp_path / name
    script.write_bytes(text if isinstance(text, bytes) else text.encode())
    return detect(VLLM_ASCEND, version=version, environ=environ or {}, script=script)


@pytest.mark.parametrize(
    ("variable", "value", "profiler", "state"),
    [
        ("VLLM_TORCH_PROFILER_DIR", "/tmp/p", ENGINE, ARMED),
        ("VLLM_TORCH_PROFILER_DIR", "", ENGINE, OFF),
        ("VLLM_TORCH_PROFILER_DIR", "0", ENGINE, OFF),
        ("MSMONITOR_USE_DAEMON", "1", MSMONITOR, ARMED),
        ("MSMONITOR_USE_DAEMON", "0", MSMONITOR, OFF),
        ("MSMONITOR_USE_DAEMON", "true", MSMONITOR, UNKNOWN),
        ("KINETO_USE_DAEMON", "1", MSMONITOR, ARMED),
        ("KINETO_USE_DAEMON", "0", MSMONITOR, OFF),
        ("KINETO_USE_DAEMON", "2", MSMONITOR, UNKNOWN),
        ("PROF_CONFIG_PATH", "/tmp/conf", DYNAMIC, ARMED),
        ("PROF_CONFIG_PATH", "", DYNAMIC, OFF),
        ("PROFILING_MODE", "true", MSPROF, ON),
        ("PROFILING_MODE", "dynamic", MSPROF, ON),
        ("PROFILING_MODE", "false", MSPROF, UNKNOWN),
        ("PROFILING_MODE", "0", MSPROF, UNKNOWN),
        ("PROFILER_SAMPLECONFIG", "{}", MSPROF, ON),
        ("PROFILER_SAMPLECONFIG", "", MSPROF, OFF),
    ],
)
def test_environment(variable: str, value: str, profiler: str, state: State) -> None:
    findings = detect(VLLM_ASCEND, version="0.11.0rc1", environ={variable: value, "PATH": "/bin"})
    finding = one(findings, profiler)
    assert (finding.state, finding.where, finding.found) == (state, "environment", f"{variable}={value}")
    assert finding.off == ("nothing to do" if state is OFF else f"unset {variable}")
    assert findings[0].state is state


def test_off_everywhere_gives_one_finding_per_profiler() -> None:
    findings = detect(VLLM_ASCEND, version="0.11.0rc1", environ={})
    assert [finding.profiler for finding in findings] == [ENGINE, MSMONITOR, DYNAMIC, MSPROF]
    assert {finding.state for finding in findings} == {OFF}
    assert all(finding.why and finding.off for finding in findings)


@pytest.mark.parametrize(
    ("version", "state"),
    [("0.7.3rc1", ARMED), ("0.13.0", ARMED), ("0.13.1.dev7+g67dd255", ARMED), ("0.14.0rc1", ARMED),
     ("0.15.0rc1", ARMED), ("0.15.1rc0.dev4", ARMED), ("0.16.0rc1", OFF), ("0.19.1rc2.dev1908+g67dd255", OFF),
     ("0.30.0rc2", OFF), ("no version", ARMED)],
)  # fmt: skip
def test_the_engine_variable_by_release(version: str, state: State) -> None:
    environ = {"VLLM_TORCH_PROFILER_DIR": "/tmp/p"}
    findings = detect(VLLM_ASCEND, version=version, environ=environ, published=releases.VLLM_ASCEND)
    assert one(findings, ENGINE).state is state


OPTIONS = [
    (["--profiler-config", '{"profiler": "torch", "torch_profiler_dir": "/t"}'], ARMED),
    (["""--profiler-config={"profiler":"torch"}"""], ARMED),
    (["--profiler_config.profiler=torch"], ARMED),
    (["--profiler-config.torch_profiler_dir", "/t"], ARMED),
    (["--profiler-config", '{"profiler": null}'], OFF),
    (["--profiler-config", '{"profiler": "none"}'], OFF),
    (["--profiler-config", "{}"], OFF),
    (["--profiler-config", "{broken"], UNKNOWN),
    (["--profiler-config", "[1]"], UNKNOWN),
    (["--profiler-config"], UNKNOWN),
    (["--profiler-config.profiler=torch", "--profiler-config.profiler="], OFF),
    (["--profiler-config-file", "torch"], OFF),
]


@pytest.mark.parametrize(("words", "state"), OPTIONS)
@pytest.mark.parametrize(("version", "exists"), [("0.13.0", False), ("0.14.0rc1", True), ("0.30.0rc2", True)])
def test_profiler_config(words: list[str], state: State, version: str, exists: bool) -> None:
    command = ["vllm", "serve", "m", *words]
    finding = one(detect(VLLM_ASCEND, version=version, environ={}, command=command), ENGINE)
    assert finding.state is (state if exists else OFF)
    if exists and state is not OFF:
        assert finding.where == "command after --"
        assert finding.off == "leave out --profiler-config and --profiler-config.* at the command after --"


@pytest.mark.parametrize(
    ("value", "version", "state"),
    [
        ('{"msmonitor_use_daemon": true}', "0.20.2rc1", ARMED),
        ('{"msmonitor_use_daemon": true}', "0.19.1rc1", OFF),
        ('{"msmonitor_use_daemon": true}', "0.27.1rc1", ARMED),
        ('{"msmonitor_use_daemon": true}', "0.19.1rc2.dev1908+g67dd255", ARMED),
        ('{"msmonitor_use_daemon": true}', "0.18.0+gf00ba4", ARMED),
        ('{"msmonitor_use_daemon": true}', "0.18.0+cpu", OFF),
        ('{"msmonitor_use_daemon": false}', "0.20.2rc1", OFF),
        ('{"msmonitor_use_daemon": "perhaps"}', "0.20.2rc1", UNKNOWN),
        ('{"ascend_scheduler_config": {}}', "0.20.2rc1", OFF),
    ],
)
def test_additional_config(value: str, version: str, state: State) -> None:
    command = ["vllm", "serve", "m", "--additional-config", value]
    found = detect(VLLM_ASCEND, version=version, environ={}, command=command, published=releases.VLLM_ASCEND)
    assert one(found, MSMONITOR).state is state


CODES = [("0.11.0rc1", OFF), ("0.19.1rc1", OFF), ("0.20.2rc1", ARMED), ("0.30.0rc2", ARMED)]


@pytest.mark.parametrize(("code", "state"), thinned_rows(CODES, ends(CODES)))
def test_the_code_says_what_a_development_tree_has(code: str, state: State) -> None:
    command = ["vllm", "serve", "m", "--additional-config", '{"msmonitor_use_daemon": true}']
    tree: dict[str, Any] = {"root": releases.release(code), "package": "vllm_ascend", "published": releases.VLLM_ASCEND}
    found = detect(VLLM_ASCEND, version="0.19.1rc2.dev1908", environ={}, command=command, **tree)
    assert one(found, MSMONITOR).state is state


X = "export VLLM_TORCH_PROFILER_DIR=/t\n"


@pytest.mark.parametrize(
    ("text", "profiler", "state"),
    [
        (X + "vllm serve m\n", ENGINE, ARMED),
        (X + "vllm serve m &\ncurl -X POST http://localhost:8000/start_profile\n", ENGINE, ARMED),
        (X + "vllm bench serve --profile\n", ENGINE, ARMED),
        ("vllm bench serve --profile\n", ENGINE, OFF),
        ("export MSMONITOR_USE_DAEMON=1\npython a.py\ndyno nputrace --iterations 3\n", MSMONITOR, ARMED),
        ("msprof --output=/o python train.py\n", MSPROF, ON),
        ("if [ $P ]; then msprof python train.py; fi\n", MSPROF, UNKNOWN),
        ("msprof-analyze cluster\n", MSPROF, OFF),
    ],
)
def test_what_waits_is_armed_whoever_asks(tmp_path: Path, text: str, profiler: str, state: State) -> None:
    assert one(in_script(tmp_path, text), profiler).state is state


def test_a_place_in_a_script_is_named_with_what_to_change(tmp_path: Path) -> None:
    finding = one(
        in_script(tmp_path, "set -e\n\nDIR=/t\nexport VLLM_TORCH_PROFILER_DIR=$DIR/x\nvllm serve m\n"), ENGINE
    )
    place = f"{tmp_path}/run.sh:4"
    assert (finding.state, finding.where) == (ARMED, place)
    assert finding.found == "VLLM_TORCH_PROFILER_DIR=/t/x"
    assert finding.off == f"unset VLLM_TORCH_PROFILER_DIR at {place}"


def test_the_line_of_an_option_is_that_of_its_word(tmp_path: Path) -> None:
    text = 'A=(\n  --port 1\n  --profiler-config.profiler=torch\n)\n\nvllm serve m "${A[@]}"\n'
    finding = one(in_script(tmp_path, text, "0.14.0rc1"), ENGINE)
    assert (finding.state, finding.where) == (UNKNOWN, f"{tmp_path}/run.sh:3")
    text = "vllm serve m \\\n  --port 1 \\\n  --profiler-config.profiler=torch\n"
    finding = one(in_script(tmp_path, text, "0.14.0rc1"), ENGINE)
    assert (finding.state, finding.where) == (ARMED, f"{tmp_path}/run.sh:3")
    text = "vllm serve m \\\n  --port 1 \\\n  --profiler-config.profiler=$X\n"
    finding = one(in_script(tmp_path, text, "0.14.0rc1"), ENGINE)
    assert (finding.state, finding.where) == (UNKNOWN, f"{tmp_path}/run.sh:3")


def test_a_finding_for_every_place_of_one_profiler(tmp_path: Path) -> None:
    findings = in_script(tmp_path, "export PROFILER_SAMPLECONFIG=x\npython a.py\n", environ={"PROFILING_MODE": "true"})
    places = {finding.where for finding in findings if finding.profiler == MSPROF}
    assert places == {"environment", f"{tmp_path}/run.sh:1"}


def test_a_script_that_unsets_what_the_environment_sets_is_off(tmp_path: Path) -> None:
    environ = {"PROFILING_MODE": "true"}
    (tmp_path / "a.py").write_text("")
    assert one(in_script(tmp_path, "unset PROFILING_MODE\npython a.py\n", environ=environ), MSPROF).state is OFF
    assert one(in_script(tmp_path, "python a.py\n", environ=environ), MSPROF).state is ON


def test_unknown_says_the_reason(tmp_path: Path) -> None:
    reasons = {
        "export PROFILING_MODE=$1\npython -m a\n": "",
        "export PROFILING_MODE=$(x)\npython -m a\n": "only known at run time",
        "if x; then export PROFILING_MODE=true; fi\npython -m a\n": "may leave this unset",
        "export PROFILING_MODE=false\npython -m a\n": "not documented",
        "export PROFILING_MODE=true\nmy_launcher\n": "may leave this unset",
        "python a.py\n": "was not found on this machine",
    }
    for text, reason in reasons.items():
        finding = one(in_script(tmp_path, text), MSPROF)
        assert finding.state is (UNKNOWN if reason else OFF), text
        assert reason in finding.reason


def test_a_script_that_is_a_pipe_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "run.sh"
    os.mkfifo(pipe)
    with at_most(30), pytest.raises(Problem, match="not a regular file"):
        detect(VLLM, version="0.12.0", environ={}, script=pipe)
    with at_most(30):
        assert detect(VLLM, version="0.12.0", environ={}, command=("bash", str(pipe)))[0].state is UNKNOWN


def test_vllm_itself() -> None:
    environ = {"VLLM_TORCH_PROFILER_DIR": "/t", "PROFILING_MODE": "true", "KINETO_USE_DAEMON": "1"}
    states = {one.profiler: one.state for one in detect(VLLM, version="0.12.0", environ=environ)}
    assert {name: state for name, state in states.items() if state is not OFF} == {ENGINE: ARMED, MSMONITOR: ARMED}


def test_the_severest_comes_first() -> None:
    environ = {"VLLM_TORCH_PROFILER_DIR": "/t", "PROFILING_MODE": "true", "MSMONITOR_USE_DAEMON": "yes"}
    states = [one.state for one in detect(VLLM_ASCEND, version="0.11.0", environ=environ)]
    assert states == [ON, UNKNOWN, ARMED, OFF]


PIECES = st.sampled_from([
    "export ", "VLLM_TORCH_PROFILER_DIR", "PROFILING_MODE", "=", "$X", "${X:-", "}", "$(", ")", "(",
    "((", "`", "'", '"', "\\", ";", ";;", "&&", "||", "|", "&", "<<EOF", "EOF", "if ", "then",
    "else", "fi", "case ", " in ", "esac", "for ", "do ", "done", "{", "f() ", "unset ", "eval ",
    "source ", "bash -c ", "python3 -c ", "env -u ", "set -a", "A+=", "A=(", "${A[@]}", '"$@"',
    "--profiler-config", '{"profiler":1}', "#", "é", "[[ ", "]]", "exec ", "docker run -e ", "-- ",
    "os.environ['A'] = ", "import os", "ray job submit --runtime-env-json ", " ", "\n", "\r", "\0",
])  # fmt: skip
TEXTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=60).map("".join))


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, name=st.sampled_from(["run.sh", "run.py", "run"]))
def test_no_script_makes_it_raise_anything_but_a_problem(tmp_path: Path, text: str, name: str) -> None:
    script = tmp_path / name
    script.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(Problem):
        findings = detect(VLLM_ASCEND, version="0.20.2rc1", environ={}, script=script)
        assert {finding.profiler for finding in findings} == {ENGINE, MSMONITOR, DYNAMIC, MSPROF}


@settings(max_examples=examples(600), deadline=None)
@given(
    command=st.lists(st.one_of(st.text(max_size=20), PIECES), max_size=8), value=st.text(max_size=20),
    target=st.sampled_from([*SWITCHES]),
)  # fmt: skip
def test_no_command_makes_it_raise_anything_but_a_problem(command: list[str], value: str, target: str) -> None:
    with suppress(Problem):
        detect(SWITCHES[target], version=value, environ={"PROFILING_MODE": value, target: value}, command=command)


@pytest.mark.parametrize(
    ("command", "version", "state"),
    [
        (("curl", "-X", "POST", "http://127.0.0.1:30000/start_profile"), "0.5.5", State.ON),
        (("python3", "-m", "sglang.bench_serving", "--profile"), "0.5.5", State.ON),
        (("python3", "-m", "sglang.bench_serving"), "0.5.5", State.OFF),
        (("bash", "-c", "if ready; then curl http://h/start_profile; fi"), "0.5.5", State.UNKNOWN),
        (("bash", "-c", "trap 'curl http://h/start_profile' USR1"), "0.5.5", State.UNKNOWN),
        (("bash", "-c", "while read u; do curl $u; done < urls"), "0.5.5", State.UNKNOWN),
        (("bash", "-c", "python3 -m sglang.bench_serving $(cat args)"), "0.5.5", State.UNKNOWN),
        (("bash", "-c", "python3 -m sglang.launch_server $(cat args)"), "0.5.5", State.OFF),
        (("curl", "-X", "POST", "http://127.0.0.1:30000/start_profile"), "0.4.2", State.OFF),
    ],
)
def test_a_request_alone_starts_sglangs_profiler(command: tuple[str, ...], version: str, state: State) -> None:
    found = detect(SWITCHES["sglang"], version=version, environ={}, command=command)
    assert [one.state for one in found if one.profiler == "the engine's own profiler"] == [state]
