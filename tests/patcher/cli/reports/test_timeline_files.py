"""Files that ``rlpatch timeline`` writes: the page, and the trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fixtures.timeline.small import small

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("language", "heading"), [("en", "Suggested recording windows"), ("zh", "接下来值得采集的窗口")]
)
def test_the_page_is_written_in_the_language_of_the_reader(
    run: Run, tmp_path: Path, language: str, heading: str
) -> None:
    small(tmp_path, slow={4: 500})
    file = tmp_path / "step.html"
    file.write_text("an old one")
    assert str(file) in run("timeline", tmp_path, "-o", file, RLPATCH_LANG=language).stdout
    text = file.read_text(encoding="utf-8")
    assert f"<h2>{heading}</h2>" in text
    assert "update_actor" in text
    assert "an old one" not in text


def test_the_page_has_the_steps_that_are_chosen(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    run("timeline", tmp_path, "-o", tmp_path / "step.html", "--steps", "2:4")
    text = (tmp_path / "step.html").read_text(encoding="utf-8")
    assert [number for number in range(1, 7) if f'id="step-{number}"' in text] == [2, 3]


def test_the_trace_for_perfetto_is_written(run: Run, tmp_path: Path) -> None:
    small(tmp_path)
    run("timeline", tmp_path, "--perfetto", tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert {"step 3", "driver"} <= {str(one["name"]) for one in events} | {
        str(one["args"]["name"]).split(" (")[0] for one in events if one["name"] == "process_name"
    }


@pytest.mark.parametrize(
    ("option", "hint"), [("-o", "write to another place: -o"), ("--perfetto", "write to another place: --perfetto")]
)
def test_a_file_that_cannot_be_written_is_a_problem(run: Run, tmp_path: Path, option: str, hint: str) -> None:
    small(tmp_path)
    assert (
        f"mkdir -p {tmp_path / 'missing'}"
        in run("timeline", tmp_path, option, tmp_path / "missing" / "x", code=5).stderr
    )
    (tmp_path / "link").symlink_to("/dev/null")
    assert hint in run("timeline", tmp_path, option, tmp_path / "link", code=5).stderr
    assert "is a directory" in run("timeline", tmp_path, option, tmp_path, code=2).stderr
