"""A configuration is what would be typed: who takes what of it, what wins over it, and what is said of a wrong one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fixtures.cache import REPOSITORY
from patcher.cli import configured
from patcher.cli.nearest import ConfigurationFile, nearest
from patcher.config import UNITS
from patcher.messages.errors import Kind, Problem
from patcher.options.headings import RECORDED, WHOSE, WINDOW
from patcher.request import OPTIONS

Run = Callable[..., Result]
TEAM = """
targets = ["vllm-ascend"]
decode = "30:60"
ranks = [0, 8]
save-path = "traces"
path = "site"
[presets.tail]
at-tail = 8
decode = "0:32"
[presets.training]
mini-batch = "0:1"
"""


@pytest.fixture
def team(site: Path) -> Path:
    """A folder with a release and a configuration; the shell stands in a folder below."""
    (site.parent / "rlpatch.toml").write_text(TEAM)
    (site.parent / "below").mkdir()
    os.chdir(site.parent / "below")
    return site.parent


def options(run: Run, *words: str) -> dict[str, str]:
    """What ``apply`` would record: each option and its value."""
    (target,) = json.loads(run("apply", *words, "-n", "--json").stdout)["result"]["targets"]
    return dict(zip(target["options"][::2], target["options"][1::2], strict=True))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"--decode": "30:60", "--ranks": "0,8"}),
        (("vllm-ascend==0.11.0rc1",), {"--decode": "30:60", "--ranks": "0,8"}),
        (("--ranks", "all"), {"--decode": "30:60", "--ranks": "all"}),
        (("--decode=1:2",), {"--decode": "1:2", "--ranks": "0,8"}),
        (("--prefill", "0:2"), {"--prefill": "0:2", "--ranks": "0,8"}),
        (("--preset", "tail"), {"--decode": "0:32", "--at-tail": "8", "--ranks": "0,8"}),
        (("--preset", "tail", "--at-tail", "4"), {"--at-tail": "4", "--ranks": "0,8", "--decode": "0:32"}),
    ],
    ids=" ".join,
)
def test_an_option_on_the_command_line_overrides_the_configuration(
    words: tuple[str, ...], expected: dict[str, str], team: Path, run: Run
) -> None:
    found = options(run, *words)
    assert {name: value for name, value in found.items() if name in {*expected, "--decode"}} == expected
    assert found["--save-path"] == str(team / "traces")


def test_all_that_was_added_is_said_and_the_commands_that_search_take_the_place(team: Path, run: Run) -> None:
    said = run("apply", "-v").stderr
    assert "note: options from rlpatch.toml: vllm-ascend --decode 30:60 --ranks 0,8" in said
    assert str(team / "rlpatch.toml") in said
    (patch,) = json.loads(run("status", "--json").stdout)["result"]["patches"]
    assert patch["root"] == str(team / "site")
    assert "WINDOW = " in run("diff").stdout
    run("revert")
    assert "no patch was found" in run("status").stdout
    planned = run("diff", "--preset", "tail").stdout
    assert 'WINDOW = "0:32"' in planned
    assert "from rlpatch.toml" not in run("status", "--path", team / "below").stderr


def test_config_shows_every_setting_and_its_file(team: Path, run: Run) -> None:
    said = run("config", RLPATCH_RANKS="all").stdout.splitlines()
    assert said == [
        str(team / "rlpatch.toml"),
        "  vllm-ascend",
        "  --decode 30:60",
        "  --ranks 0,8",
        f"  --save-path {team}/traces",
        f"  --path {team}/site",
        "  --preset tail: --at-tail 8 --decode 0:32",
        "  --preset training: --mini-batch 0:1",
        "RLPATCH_RANKS=all is set in this shell, and overrides the option that you gave to `rlpatch apply`",
    ]
    found = json.loads(run("config", "--json").stdout)["result"]
    assert found["presets"]["training"] == {"--mini-batch": ["--mini-batch", "0:1"]}
    os.chdir("/")
    assert json.loads(run("config", "--json").stdout)["result"]["file"] is None


@pytest.mark.parametrize(
    ("name", "content", "cause", "hint"),
    [
        (
            "rlpatch.toml",
            'decod = "1:2"',
            "decod in the configuration is not the name of an option",
            "did you mean decode?",
        ),
        (
            "rlpatch.toml",
            "force = true",
            "force in the configuration is not the name of an option",
            "rlpatch apply --help",
        ),
        ("rlpatch.toml", 'decode = "60:30"', "--decode 60:30 is empty", "--decode 60:61"),
        ("rlpatch.toml", "at-tail = -1", "--at-tail -1 is not a whole number from", "--at-tail 2"),
        ("rlpatch.toml", "ranks = {}", "ranks in the configuration must be a string, a number", 'ranks = "…"'),
        (
            "rlpatch.toml",
            "presets = 3",
            "[presets] in the configuration is not a table of options",
            "rlpatch config -h",
        ),
        ("rlpatch.toml", "decode = 30:60", "the configuration cannot be read", "correct this line of the file"),
        ("rlpatch.toml", "decode = '\\xff'", "--decode", ""),
        ("pyproject.toml", '[tool.rlpatch]\ndecod = "1:2"', "decod in the configuration", "did you mean decode?"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_file(
    name: str, content: str, cause: str, hint: str, site: Path, run: Run
) -> None:
    (site.parent / name).write_text(content)
    for words in (("config",), ("apply", "vllm-ascend", "--path", site)):
        said = run(*words, code=2).stderr
        assert cause in said
        assert f"at {site.parent / name}" in said
        assert hint in said
    assert not (site / ".rlpatch").exists()


@pytest.mark.parametrize("words", [("--decode", "60:30"), ("--decode=60:30",)], ids=" ".join)
def test_what_is_typed_wrongly_is_not_laid_upon_the_file(words: tuple[str, ...], team: Path, run: Run) -> None:
    said = run("apply", *words, code=2).stderr
    assert "--decode 60:30 is empty" in said
    assert "rlpatch.toml" not in said


def test_a_preset_that_is_not_there_is_refused(team: Path, run: Run) -> None:
    said = run("apply", "--preset", "tial", code=2).stderr
    assert "no preset 'tial'; available presets: tail, training" in said
    assert "did you mean --preset tail?" in said
    os.chdir("/")
    assert (
        "--preset tail: no rlpatch configuration in this folder or above it"
        in run("apply", "--preset", "tail", code=2).stderr
    )


def test_the_nearest_one_holds_and_a_pyproject_without_a_table_is_passed(team: Path, run: Run) -> None:
    (team / "below/pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert options(run)["--decode"] == "30:60"
    (team / "below/pyproject.toml").write_text(
        '[tool.rlpatch]\ntargets = "vllm-ascend"\npath = "../site"\nprefill = "0:1"\n'
    )
    assert "--decode" not in options(run)
    (team / "below/rlpatch.toml").write_text('targets = "vllm-ascend"\npath = "../site"\ndecode = "4:5"\n')
    assert options(run)["--decode"] == "4:5"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_configuration_of_another_user_is_not_read(team: Path, run: Run) -> None:
    os.chown(team / "rlpatch.toml", 65534, 65534)
    assert "another user owns the file" in run("config", code=2).stderr
    said = run("apply", "vllm-ascend", "--decode", "1:2", "--path", team / "site", "-n").stderr
    assert "warning: rlpatch does not read rlpatch.toml: another user owns the file" in said


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("builtin = true", ("--builtin",)),
        ("builtin = false", ()),
        ("facts = false", ("--no-facts",)),
        ("python = 'python3'", ("--python", "python3")),
        ("python = 'bin/python'", ("--python", "/team/bin/python")),
        ("backend = 'npu'", ("--backend", "npu")),  # an older name
        ("training-steps = [2, 5]", ("--training-steps", "2,5")),
        ("decode = ['30:60', '90:91']", ("--decode", "30:60,90:91")),
    ],
)
def test_a_value_is_typed(table: str, words: tuple[str, ...]) -> None:
    found = configured.read(ConfigurationFile(Path("/team/rlpatch.toml"), table.encode()))
    assert tuple(word for one in found.options.values() for word in one) == words


@pytest.mark.parametrize(
    ("table", "cause", "line"),
    [
        ("targets = [{}]", "targets in the configuration must be a string, a number", 1),
        (
            "targets = ['vllm', '--force', '-q']",
            "--force is an option, not a target: do not list it in `targets` in the configuration",
            1,
        ),
        (
            "targets = [\n 'vllm',\n '--python=/evil',\n]",
            "--python=/evil is an option, not a target: do not list it in `targets` in the configuration",
            3,
        ),
        ("targets = '-q'", "-q is an option, not a target: do not list it in `targets` in the configuration", 1),
        ("\nforce = true", "force in the configuration is not the name of an option", 2),
        ("ray = 'auto'", "ray in the configuration is not the name of an option", 1),
        ("[presets.tail]\njson = true", "json in the configuration is not the name of an option", 2),
        (f"{'k' * 5000} = 1", f"{'k' * 40}… in the configuration", 1),
        ('"\\u001b[31m" = 1', "'\\x1b[31m' in the configuration is not the name of an option", None),
        ("decode = true", "decode in the configuration needs a value", 1),  # the next word would be its value
        ("python = true", "python in the configuration needs a value", 1),
        ("facts = '--force'", "facts in the configuration must be true or false", 1),  # a word of its own
        ('path = "a\\u0000b"', "path in the configuration has an unprintable character: 'a\\x00b'", 1),
        ('targets = "\\u001b[31m"', "targets in the configuration has an unprintable character: '\\x1b[31m'", 1),
        ('[presets."\\u001b"]', "presets in the configuration has an unprintable character", None),
        (f"ranks = 0x{'f' * 5000}", "the value of ranks in the configuration is too large", 1),
        (f"save-path = '{'x' * 5000}'", "the text of save-path in the configuration is longer than 4096 characters", 1),
        (
            "path = '~nobody-has-this-name/x'",
            "path in the configuration starts with ~USER, but this user does not exist",
            1,
        ),
        (
            "python = '~nobody-has-this-name'",
            "python in the configuration starts with ~USER, but this user does not exist",
            1,
        ),
    ],
)
def test_what_cannot_be_typed_is_named_with_its_line(table: str, cause: str, line: int | None) -> None:
    with pytest.raises(Problem) as raised:
        configured.read(ConfigurationFile(Path("/team/rlpatch.toml"), table.encode()))
    assert raised.value.cause.startswith(cause)
    assert raised.value.where == "/team/rlpatch.toml" + (f":{line}" if line else "")


@pytest.mark.parametrize("table", ["targets = ['vllm-ascend', '--force', '-q']", "force = true", "ranks = {}"])
def test_a_file_that_cannot_be_used_keeps_nobody_from_a_revert(table: str, team: Path, run: Run) -> None:
    run("apply", "--path", team / "site")
    (team / "rlpatch.toml").write_text(table)
    where = ("--path", team / "site")
    for command in ("status", "diff", "revert", "recover"):
        said = run(command, "-q", *where).stderr
        assert "warning: " in said
        assert "rlpatch ignores this configuration file and goes on" in said
        assert f"at {team}/rlpatch.toml:1" in said
    assert "no patch was found" in run("status", *where).stdout
    for words in (("check",), ("apply", "vllm-ascend", "--decode", "1:2")):
        assert f"at {team}/rlpatch.toml:1" in run(*words, *where, code=2).stderr


def test_a_target_of_the_file_is_no_address_of_a_cluster(team: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: str, *_more: object) -> None:
        raise Problem(Kind.ENVIRONMENT, f"asked {address}")

    monkeypatch.setattr("patcher.cluster.connecting.connect", connect)
    (team / "rlpatch.toml").write_text("targets = ['10.0.0.1:6379']\ndecode = '1:2'\n")
    assert "asked auto\n" in run("apply", "--ray", code=5).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_above_that_is_closed_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed/own").mkdir(parents=True)
    (tmp_path / "closed/own").chmod(0o755)
    monkeypatch.chdir(tmp_path / "closed/own")
    (tmp_path / "closed").chmod(0o600)
    os.seteuid(65534)
    try:
        assert nearest() is None
    finally:
        os.seteuid(0)


def test_the_reference_lists_the_keys() -> None:
    page = (REPOSITORY / "docs/reference/configuration.md").read_text()
    (listed,) = re.findall(r"^- \*\*Keys\*\* are (.*?)\. The options", page, re.M | re.S)
    named = {f"--{key}" for key in re.findall(r"`([\w-]+)`", listed)} - {"--targets", "--presets"}
    below = {spec.flag for spec in OPTIONS.values() if spec.heading in (WINDOW, RECORDED, WHOSE)}
    assert {*named, *below, *(f"--{unit}" for unit in UNITS), "--backend"} == configured._KNOWN
