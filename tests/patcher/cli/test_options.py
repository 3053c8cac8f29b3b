"""An option is declared in one place: whoever adds one changes one file, and the command line has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures.cache import REPOSITORY
from patcher.cli import rlpatch
from tests.choices import config

PROFILE = """
from tests.choices import config
made = config("--decode 30:60 --made-up 9")
print(json.dumps([made.words, config(made.words) == made, config("--decode 30:60").words]))
"""
PLACE = """
import click
from patcher.cli.options import Command
from patcher.cli.launch import LAUNCH
from patcher.cli.search import SEARCH
found = []
@click.command("try", cls=Command, groups=(SEARCH, LAUNCH))
def command(search, launch):
    found.append(getattr(search, "made_up", None) or getattr(launch, "made_up", None))
for words in (["--made-up", "9"], []):
    CliRunner().invoke(command, words)
print(json.dumps(found))
"""
HELP = """
import json
from click.testing import CliRunner
from patcher.cli import rlpatch
lines = CliRunner().invoke(rlpatch, ["apply", "--help"]).output.splitlines()
print(json.dumps([" ".join(line.split()) for line in lines if "--made-up" in line]))
"""
FIELD = '    made_up: str = option(notations.AnyText("7|9"), {}, "Nobody needs it.", default="7")\n'
SHOWN = ["--made-up 7|9 Nobody needs it. [default: 7]"]


def answers(folder: Path, file: str, before: str, field: str, program: str) -> list[Any]:
    """What ``program`` prints with the ``field`` in ``file``, in front of the line that begins with ``before``."""
    # Links to the sources and their bytecode: only the file that is changed needs a copy, and new bytecode.
    shutil.copytree(
        REPOSITORY / "patcher", folder / "patcher", ignore=shutil.ignore_patterns("*.pyc.*"), copy_function=os.symlink
    )
    source = (folder / file).read_text()
    (folder / file).unlink()
    assert before in source
    future = "from __future__ import annotations\n"
    source = source.replace(future, f"{future}from patcher.options import notations\n", 1)
    (folder / file).write_text(source.replace(before, field + before, 1))
    path = os.pathsep.join((str(folder), str(REPOSITORY)))
    command = [sys.executable, "-c", HELP + program]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "COLUMNS": "100"}
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("file", "before", "heading", "words"),
    [
        ("profile", "    live: bool", "OUTPUT", "--decode 30:60 --tool npu --save-path /tmp/traces --made-up 9"),
        ("stages", "    at_load: int", "WHOSE", "--decode 30:60 --made-up 9 --tool npu --save-path /tmp/traces"),
        ("profilers", "    mstx: bool", "RECORDED", "--decode 30:60 --tool npu --made-up 9 --save-path /tmp/traces"),
    ],
)
def test_a_field_of_the_configuration_is_shown_read_and_printed_again(
    tmp_path: Path, file: str, before: str, heading: str, words: str
) -> None:
    shown, (printed, same, default) = answers(
        tmp_path, f"patcher/config/{file}.py", before, FIELD.format(heading), PROFILE
    )
    assert shown == SHOWN
    assert printed == words.split()
    assert same
    assert "--made-up" not in default


def test_an_older_name_of_an_option_is_read_and_neither_shown_nor_printed() -> None:
    tool, again = config("--decode 30:60 --backend torch"), config("--decode 30:60 --tool torch")
    assert tool == again
    assert "--backend" not in tool.words
    shown = CliRunner().invoke(rlpatch, ["apply", "--help"]).output
    assert "--tool" in shown
    assert "--backend" not in shown


@pytest.mark.parametrize(
    ("module", "before", "heading"),
    [("commands/finding", "    python: str", "PLACE"), ("cli/launch", "    config: Path", "PROFILERS")],
)
def test_a_field_of_place_or_launch_is_shown_read_and_printed_again(
    tmp_path: Path, module: str, before: str, heading: str
) -> None:
    shown, values = answers(tmp_path, f"patcher/{module}.py", before, FIELD.format(heading), PLACE)
    assert shown == SHOWN
    assert values == ["9", "7"]
