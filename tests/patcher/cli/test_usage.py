"""Errors of a command line that cannot be read, and the help that says how to write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from patcher import cli
from patcher.cli.options import Command
from patcher.cli.patching.apply import command as apply
from patcher.options.headings import HEADINGS, PARSED, READ, WAITED
from patcher.request import OPTIONS
from patches.projects import projects
from tests.patcher.cli.conftest import SOURCE, WORKER, release
from tests.patcher.cli.pseudo_terminal import shown

REPOSITORY = Path(cli.__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "command", "cause", "hint"),
    [
        (("apply", "verl", "--deocde", "1:2"), "apply", "--deocde", "rlpatch apply verl --decode 1:2"),
        (("apply",), "apply", "Missing argument", "rlpatch apply --help"),
        (("apply", "verl", "--color", "blue"), "apply", "'blue' is not one of", "rlpatch apply --help"),
        (("apply", "verl", "--force=1"), "apply", "does not take a value", "rlpatch apply --help"),
        (("apply", "verl", "--level", "five"), "apply", "--level does not accept five", "one of level_none"),
        (("apply", "verl", "--decode", "10-20"), "apply", "not a window", "--decode 10:20"),
        (("status", "--bogus"), "status", "--bogus", "rlpatch status --help"),
        (("explain",), "explain", "Missing argument", "rlpatch explain --help"),
        (("completion", "tcsh"), "completion", "tcsh", "rlpatch completion --help"),
        (("apply", "verl", "--decode", "30\uff1a60"), "apply", "not a window", "--decode 30:60"),
        (("apply", "--ray", "verl"), "apply", "Missing argument", "rlpatch apply verl"),
        (("aply", "verl"), "", "No such command 'aply'", "rlpatch apply"),
        (("analyze",), "", "No such command 'analyze'", "rlpatch analyse"),
        (("help",), "", "No such command 'help'", "rlpatch --help"),
        (("undo",), "", "No such command 'undo'", "rlpatch revert"),
        (("xyzzy",), "", "No such command 'xyzzy'", "rlpatch --help"),
        (("--bogus",), "", "--bogus", "rlpatch --help"),
    ],
)
def test_json_is_there_for_wrong_usage_too(run, words: tuple[str, ...], command: str, cause: str, hint: str) -> None:
    said = run(*words, "--json", code=2)
    document = json.loads(said.stdout)
    (problem,) = document["problems"]
    assert (document["schema"], document["command"], document["exit_code"]) == (1, command, 2)
    assert (problem["kind"], problem["exit_code"]) == ("usage", 2)
    assert cause in problem["cause"]
    assert hint in problem["next"]
    assert f"Error: wrong usage: {problem['cause']}\n" in said.stderr
    plain = run(*words, code=2)
    assert plain.stdout == ""
    assert cause in plain.stderr


def test_no_command_at_all_is_the_help(run) -> None:
    from click.testing import CliRunner

    assert "Commands:" in CliRunner().invoke(cli.rlpatch, []).output


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("check verl bash run.sh", "check verl -- bash run.sh"),
        ("check bash run.sh", "check -- bash run.sh"),
        ("check verl python3 -m verl.trainer.main_ppo a.b=1", "check verl -- python3 -m verl.trainer.main_ppo a.b=1"),
        ("check verl run_grpo.sh --fast", "check verl -- run_grpo.sh --fast"),
        ("check verl --script x.sh A=1 B=2 torchrun t.py", "check verl --script x.sh -- A=1 B=2 torchrun t.py"),
        ("check --path site vllm-ascend bash 'a b.sh'", "check --path site vllm-ascend -- bash 'a b.sh'"),
        ("apply verl --mini-batch 0:1 bash run.sh", "apply verl --mini-batch 0:1 -- bash run.sh"),
    ],
)
def test_a_command_without_the_two_hyphens_before_it_is_shown_with_them(run, words: str, command: str) -> None:
    import shlex

    said = run(*shlex.split(words), code=2).stderr
    assert f"  next: rlpatch {command}\n" in said


@pytest.mark.parametrize(
    "words", ["check verll", "check vllm-ascend==1", "apply verl --path /usr/bin --mini-batch 0:1"]
)
def test_words_that_are_no_command_get_no_hint_about_two_hyphens(run, words: str) -> None:
    from click.testing import CliRunner

    assert "`--`" not in CliRunner().invoke(cli.rlpatch, words.split()).output


@pytest.mark.parametrize(
    ("words", "code", "command"),
    [
        ("aply vllm-ascend --decode 1:2", 2, "rlpatch apply vllm-ascend --decode 1:2"),
        ("undo vllm-ascend", 2, "rlpatch revert vllm-ascend"),
        ("version", 2, "rlpatch --version"),
        ("apply vllm-ascend --decod=1:2", 2, "rlpatch apply vllm-ascend --decode=1:2"),
        ("apply vllm-ascend --path site --stage rolout", 3, "--stage rollout"),
        (
            "apply --ray vllm-ascend --decode 1:2",
            2,
            "type --ray last, because the word after --ray was read as the cluster's address: rlpatch apply vllm-ascend --decode 1:2 --ray",
        ),
    ],
)
def test_what_was_probably_meant_can_be_typed(run, site: Path, words: str, code: int, command: str) -> None:
    assert f"  next: {command}" in run(*words.split(), code=code).stderr


def test_a_window_in_two_words_is_answered_with_its_notation(run, site: Path) -> None:
    said = run("apply", "vllm-ascend", "--decode", "10", "20", "--path", "site", code=2).stderr
    assert "next: --decode 10:20\n" in said


def test_status_prints_the_stage_that_was_applied(run, tmp_path: Path) -> None:
    root = tmp_path / "site"
    actor = root / "verl" / "workers" / "actor" / "dp_actor.py"
    actor.parent.mkdir(parents=True)
    (root / "verl" / "__init__.py").write_text("")
    actor.write_text(
        "class DataParallelPPOActor:\n    def compute_log_prob(self, data):\n        for micro_batch in micro_batches:\n"
        "            use(micro_batch)\n        return 1\n"
    )
    info = root / "verl-0.6.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.6.1\n")
    words = ("verl", "--stage", "compute_log_prob", "--strategy", "FSDP2", "--role", "Actor", "--micro-batch", "2:4")
    run("apply", *words, "--path", root)
    patched = actor.read_bytes()
    (line,) = [line for line in run("status", "--path", root).stdout.splitlines() if "rlpatch apply" in line]
    assert "--stage compute-log-prob --micro-batch 2:4 --role actor --strategy fsdp" in line
    again = run(*line.split()[1:]).stdout
    assert "  unchanged verl/workers/actor/dp_actor.py" in again
    assert actor.read_bytes() == patched


@pytest.mark.parametrize(("word", "like"), [("verl==", "0.9.1"), ("verl==0.6.*", "0.6.1"), ("Verl==latest", "0.9.1")])
def test_a_version_that_is_none_is_answered_with_one_of_that_target(run, word: str, like: str) -> None:
    assert f"verl=={like}" in run("apply", word, "--mini-batch", "0:1", code=2).stderr


def test_a_stage_that_a_development_build_lacks_is_said_once_and_first(run, tmp_path: Path) -> None:
    source = SOURCE.replace("self.model_runner.capture_model()", "pass")
    root = release(tmp_path / "dev", "0.8.4.dev3", source)
    (root / WORKER).with_name("worker.py").write_text(source.replace("def compile_or", "def _compile_or"))
    said = run("apply", "vllm-ascend", "--stage", "graph-capture", "--path", root, code=4).stderr
    first, *_ = said.splitlines()
    assert (
        "is not a release that rlpatch knows (known for graph-capture: 0.8.4rc2 to 0.30.0rc2), and its code matches no recipe"
        in first
    )
    assert said.count("expected NPUWorker.compile_or_warm_up_model") == 1
    assert f"{root / WORKER}:" in said
    assert len(said) < 1000


def test_diff_shows_the_call_sites(run, site: Path) -> None:
    words = ("vllm-ascend", "--decode", "30:60", "--path", "site")
    whole, folded = run("diff", *words).stdout, run("diff", *words, "--calls").stdout
    assert "lines folded" in folded
    assert len(folded.splitlines()) < 40 < len(whole.splitlines())
    calls = [line for line in whole.splitlines() if line.endswith("  # rlpatch: vllm-ascend rollout")]
    assert calls
    assert all(line in folded.splitlines() for line in calls)
    run("apply", *words)
    assert run("diff", "--calls", "--path", "site").stdout == folded


@pytest.mark.parametrize("name", cli.COMMANDS)
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_help_fits_the_terminal(run, name: str, columns: int) -> None:
    said = run(name, "--help", COLUMNS=str(columns)).stdout
    assert max(map(len, said.splitlines())) <= min(columns, 100)


def test_the_options_of_apply_stand_below_their_headings_each_once(run) -> None:
    said = run("apply", "--help").stdout
    found = [line.rstrip(":") for line in said.splitlines() if line.rstrip(":") in HEADINGS]
    assert found == [heading for heading in HEADINGS if heading not in (PARSED, READ, WAITED)]  # of traces
    for option in OPTIONS.values():
        rows = [line for line in said.splitlines() if line.lstrip().startswith((f"{option.flag} ", f"{option.flag}\n"))]
        assert len(rows) == 1, option.flag
    for stage in ("rollout", "compute-log-prob", "update-policy", "compute-values", "update-critic", "graph-capture"):
        assert stage in said  # not broken at a hyphen


def test_the_root_help_names_every_target(run) -> None:
    said = " ".join(run("--help").stdout.split())
    assert f" {', '.join(project.name for project in projects())} " in said


def test_what_a_command_takes_is_what_its_groups_make() -> None:
    """Parameters are typed, so a name that differs would be an error of the first run."""
    import importlib
    import inspect

    for module, _ in cli.COMMANDS.values():
        command = importlib.import_module(f"patcher.cli.{module}").command
        assert isinstance(command, Command)
        assert command.callback
        grouped = {option.name for group in command.groups for option in group.options}
        shown = {option.name for option in command.params if isinstance(option, click.Option)} - grouped
        own = {name for name in shown if name not in ("as_json", "quiet", "verbose", "color")}
        arguments = {param.name for param in command.params if isinstance(param, click.Argument)}
        wanted = {*own, *arguments, *(group.name for group in command.groups)}
        assert set(inspect.signature(command.callback).parameters) == wanted, module


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("--level lev", ["level_none", "level0", "level1", "level2"]),
        ("--contents npu,m", ["npu,memory", "npu,module"]),
        ("--stage ro", ["rollout"]),
    ],
)
def test_words_of_an_option_are_completed(words: str, offered: list[str]) -> None:
    from click.shell_completion import ShellComplete

    *before, last = ("vllm", *words.split())
    complete = ShellComplete(cli.rlpatch, {}, "rlpatch", "_RLPATCH_COMPLETE")
    assert [item.value for item in complete.get_completions(["apply", *before], last)] == offered


@pytest.mark.parametrize(
    ("words", "coloured"),
    [
        ((), False),
        (("--color", "always"), True),
        (("--color=always",), True),
        (("--color", "always", "--color", "never"), False),
        (("--color=blue",), False),
        (("--", "python", "--color=always"), False),
    ],
)
@pytest.mark.parametrize("wrong", [("aply",), ("apply", "--decod", "1:2")], ids=" ".join)
def test_an_error_of_usage_is_coloured_where_that_is_wanted(
    run: Callable[..., Any], wrong: tuple[str, ...], words: tuple[str, ...], coloured: bool
) -> None:
    assert ("\x1b[" in run(*wrong, *words, code=2).stderr) is coloured


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_that_it_has(environ: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in shown("list", environ=environ)) is coloured


@pytest.mark.parametrize("words", [("list",), ("list", "vllm-ascend")], ids=" ".join)
def test_the_tables_of_targets_fit_the_terminal(words: tuple[str, ...], run: Callable[..., Any]) -> None:
    """A real terminal of 80 columns; in a pipe every row is one line, however long."""
    assert max(len(line) for line in shown(*words).splitlines()) <= 80
    assert max(len(line) for line in run(*words).stdout.splitlines()) > 100


def test_list_takes_names_of_targets(run: Callable[..., Any]) -> None:
    rows = json.loads(run("list", "vllm==0.11.0", "verl", "--json").stdout)["result"]["targets"]
    assert {row["target"] for row in rows} == {"vllm", "verl"}
    assert all("0.11.0" in row["releases"] for row in rows if row["target"] == "vllm")
    assert "next: rlpatch list vllm\n" in run("list", "verl", "vllm==9.9", code=3).stderr


def test_the_parser_of_apply_is_the_one_of_the_tests() -> None:
    assert isinstance(apply, Command)
