"""``rlpatch report`` and ``rlpatch compare`` as people type them: exit codes, what is printed, and bad input."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from patcher.cli import rlpatch
from patcher.traces import formats
from patcher.traces.analysis import attribution
from patcher.traces.model import TITLES
from tests.pages import Seen
from tests.patcher.traces.recorded import MS, Range, Run, Task, steps
from tests.patcher.workers.maker import ROLLOUT


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(rlpatch, [str(word) for word in words])


def data(result: Result) -> dict[str, Any]:
    return dict(json.loads(result.stdout)["result"])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return steps(4, late={32: 5 * MS}).torch(tmp_path / "host_dp0_rank0_1.1.pt.trace.json.gz")


# ---------------------------------------------------------------- what is printed


def widest(said: str) -> int:
    """The width of the longest line that is not a command to copy."""
    return max(len(line) for line in said.splitlines() if "next: rlpatch" not in line)


def test_a_report_names_the_verdict_the_parts_and_what_to_try(trace: Path) -> None:
    result = typed("report", trace, "-v")
    assert result.exit_code == 0
    assert result.stdout.startswith(TITLES["dispatch"])
    assert "  4 steps, #30 to #33: median time 10.00 ms" in result.stdout
    assert "problem: Host-bound" in result.stdout
    assert "  suggestion: to see Python frames, too, record again with rlpatch apply" in result.stdout
    assert widest(result.stdout) <= max(80, len(str(trace)) + 4)


def test_a_report_names_the_places_where_the_device_was_free(trace: Path) -> None:
    places = typed("report", trace, "-v").stdout.partition("Where the device was idle\n")[2].splitlines()
    assert places[:3] == [
        "  ms/step   share  steps  place of the gap",
        "    4.250  42.5 %      3  before kernel0 on stream 7",
        "    after kernel9; host-bound, no single recorded operator, call or frame covers",
    ]
    assert "before the first kernel" in "".join(places), "worth less than a percent, but there are few"
    assert "  the device is idle at 3 places in total; -o FILE.html and --json list them all" in places


def test_details_have_each_unit_and_each_check(trace: Path) -> None:
    result = typed("report", trace, "-v")
    rows = [line.split() for line in result.stdout.splitlines()]
    at = rows.index(["step", "ms", "host", "ms", "kernels"])
    assert rows[at + 3] == ["#32", "15.000", "15.000", "10"]
    said = " ".join(result.stdout.split())
    assert "check “launches” passed: launches were recorded for 100.0 % of 40 kernels and copies" in said


@pytest.mark.parametrize("command", ["report", "compare"])
def test_what_was_recorded_is_never_called_a_unit(trace: Path, tmp_path: Path, command: str) -> None:
    """Neither in the text, nor on the page, nor in the heads of CSV files."""
    paths = [trace, steps(4).torch(tmp_path / "other.json")][: 1 + (command == "compare")]
    text = typed(command, *paths, "-v", "-o", tmp_path / "page.html", "--csv", tmp_path / "csv").stdout
    page = Seen((tmp_path / "page.html").read_text(encoding="utf-8")).text
    heads = [file.read_text(encoding="utf-8").partition("\n")[0] for file in (tmp_path / "csv").iterdir()]
    for said in (text, page, *heads):
        assert not re.findall(r"(?<!-)unit(?!s\.csv)", said, re.IGNORECASE)


def test_json_is_the_promise_within_the_envelope_of_every_command(trace: Path) -> None:
    result = typed("report", trace, "--json")
    assert list(data(result)) == ["schema", "verdict", "captures", "findings"]
    assert data(result)["captures"][0]["form"] == "torch"


def test_units_are_divided_among_classes_only_for_json(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(unit["classes"] for unit in data(typed("report", trace, "--json"))["captures"][0]["units"])
    monkeypatch.setattr(attribution, "classes_by_segment", None)
    assert typed("report", trace).exit_code == 0


def test_units_are_chosen(trace: Path) -> None:
    assert [
        unit["number"] for unit in data(typed("report", trace, "--units", "31:33", "--json"))["captures"][0]["units"]
    ] == [31, 32]


@pytest.mark.parametrize("value", ["31-33", "33:31", "x"])
def test_a_wrong_range_is_answered_with_a_right_one(trace: Path, value: str) -> None:
    result = typed("report", trace, "--units", value)
    assert result.exit_code == 2
    assert "next: type a range such as --units 30:60" in result.stderr


def test_a_range_without_units_is_answered_with_all_of_them(trace: Path) -> None:
    result = typed("report", trace, "--units", "90:99")
    assert result.exit_code == 2
    assert "next: for all steps of the trace, type --units 30:34" in result.stderr


@pytest.mark.parametrize("form", ["torch", "text", "db", "nsys"])
@pytest.mark.parametrize(
    ("marks", "units"),
    [(r"^train step (?P<number>\d+)$", [7, 8]), ("train|within", [0, 1]), (r"^batch", [0])],
    ids=["numbered", "nested", "one"],
)
def test_the_units_of_foreign_traces_are_named(tmp_path: Path, form: str, marks: str, units: list[int]) -> None:
    names = (
        Range("train step 7", 0, 100),
        Range("within", 10, 20),
        Range("train step 8", 100, 200),
        Range("batch", 0, 200),
    )
    tasks = (Task(110, 120, launch=1, ask=1), Task(210, 220, launch=101, ask=101))
    run = Run(tasks, (Range("ProfilerStep#3", 0, 200),), operators=names)
    path = getattr(run, form)(tmp_path / {"torch": "a.json", "nsys": "a.sqlite"}.get(form, "a_ascend_pt"))
    assert [one["number"] for one in data(typed("report", path, "--json"))["captures"][0]["units"]] == [3]
    (found,) = data(typed("report", path, "--marks", marks, "--json"))["captures"]
    assert [one["number"] for one in found["units"]] == units
    assert found["units"][0]["kernels"] == 2 // len(units)
    assert "marked by --marks" in typed("report", path, "--marks", marks, "-v").stdout


@pytest.mark.parametrize(
    ("marks", "says"),
    [("(", "not a valid regular expression"), ("nothing", "matches none of the names of host ranges in")],
)
def test_marks_that_cannot_be_are_answered(trace: Path, marks: str, says: str) -> None:
    result = typed("report", trace, "--marks", marks)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "  next: " in result.stderr


def test_the_page_is_written_as_a_whole(trace: Path, tmp_path: Path) -> None:
    page, pipe = tmp_path / "page.html", tmp_path / "pipe"
    os.mkfifo(pipe)
    result = typed("report", trace, "-o", page)
    assert result.exit_code == 0
    assert "<html" in page.read_text()
    there = sorted([trace, page, pipe])
    assert sorted(tmp_path.iterdir()) == there
    for name, hint in (
        ("missing folder/page.html", f"mkdir -p '{tmp_path}/missing folder'\n"),
        ("x" * 300, "-o FILE.html\n"),
        ("pipe", "-o FILE.html\n"),
    ):
        refused = typed("report", trace, "-o", tmp_path / name)
        assert refused.exit_code == 5
        assert "cannot be written" in refused.stderr
        assert hint in refused.stderr
        assert sorted(tmp_path.iterdir()) == there


def test_a_disk_that_cannot_be_read_is_told_with_a_way_on(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_words: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(formats, "read", broken)
    result = typed("report", trace)
    assert result.exit_code == 5
    assert result.stderr.endswith(f"next: check {trace}, then run the same command again\n")


def test_the_ranks_of_a_run_make_one_report(tmp_path: Path) -> None:
    marks = (Range("ProfilerStep#1", 0, 100 * MS),)
    for rank, ends in ((0, 90), (1, 30)):
        tasks = (Task(MS, 21 * MS, launch=10), Task(21 * MS, ends * MS, "communication", "AllReduce", 9, 20))
        Run(tasks, marks, rank=rank).db(tmp_path / f"rank{rank}_ascend_pt")
    result = typed("report", tmp_path, "-v")
    assert result.exit_code == 0
    assert (
        "rank 1 arrives last in 1 of 1 collectives; on average, each of the other ranks waits 60.00 ms per step for it"
        in " ".join(result.stdout.split())
    )
    (first, second) = (line.split() for line in result.stdout.splitlines() if line.startswith(("     0 ", "     1 ")))
    assert (first[3], second[4]) == ("60.000", "60.000")


def test_captures_of_one_rank_are_said_not_to_have_met(trace: Path, tmp_path: Path) -> None:
    other = steps(4).torch(tmp_path / "other_dp0_rank0_2.2.pt.trace.json")
    assert (
        "note: cannot tell which rank waits for which: needs several ranks of one window\n"
        in typed("report", trace, other).stderr
    )


def windows(place: Path, *, device: bool = True) -> list[Path]:
    """Two windows of one rollout of rank 0, with facts; the second takes longer, on a CPU by its marks alone."""
    paths = []
    for first, late in ((30, 0), (100, 5 * MS)):
        run = steps(3, first=first, late=dict.fromkeys(range(first, first + 3), late))
        run = run if device else replace(run, tasks=())
        paths.append(run.torch(place / f"host_dp0_rank0_1.{first}.pt.trace.json.gz"))
        units = [
            {"number": first + at, "requests": first - at, "tokens": first - at, "context": 900 + at} for at in range(3)
        ]
        facts_beside(paths[-1], window=f"{first}:{first + 3}", tail=None, rollout=0, units=units)
    return paths


@pytest.mark.parametrize("device", [True, False], ids=["on a device", "on a CPU"])
def test_the_windows_of_a_folder_are_told_apart_by_their_units(tmp_path: Path, device: bool) -> None:
    windows(tmp_path, device=device)
    result = typed("report", tmp_path, "-v", "-o", tmp_path / "page.html")
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "the tables above show only rank 0, #100 to #102;" in said
    assert "decode 30:33" in said
    assert "decode 100:103" in said
    assert "in each step: 98 to 100 requests" in said
    page = (tmp_path / "page.html").read_text()
    median = "15.00 ms" if device else "15.00 ms on the host"
    assert f"rank 0, #100 to #102: median step time {median}" in page
    assert page.count(f"Step time{'' if device else ' on the host'} by requests</figcaption>") == 2
    assert "more ranks" not in page


def test_what_ran_on_no_device_is_compared_by_the_host_if_it_must_be(tmp_path: Path) -> None:
    before, after = windows(tmp_path, device=False)
    refused = typed("compare", before, before)
    assert refused.exit_code == 4
    assert "no kernel was recorded for 3 of 3 steps" in refused.stderr
    forced = typed("compare", before, after, "--force", "-o", tmp_path / "page.html")
    assert forced.exit_code == 0
    assert "\nmedian step (host time): 10.00 ms before, 15.00 ms after, change +5.000 ms\n" in forced.stdout
    assert forced.stdout.count("no kernel was recorded") == 2, "as the reasons, and not once more as notes"
    assert "breakdown of the median step" not in forced.stdout
    assert max(map(len, forced.stdout.partition("\n\nwrote ")[0].splitlines())) <= 80
    assert "before: median step (host time), 3 steps" in (tmp_path / "page.html").read_text()
    told = data(typed("compare", before, after, "--force", "--json"))
    assert (told["clock"], told["median_ns"]) == ("host", [10 * MS, 15 * MS])


@pytest.mark.parametrize("path", ["x" * 300, "loop"], ids=["a name too long", "a loop of links"])
def test_a_path_that_no_disk_has_is_told_with_a_way_on(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    result = typed("report", tmp_path / path)
    assert result.exit_code in (3, 5)
    assert "next: " in result.stderr


def test_many_ranks_are_told_by_the_slowest(tmp_path: Path) -> None:
    for rank in range(6):
        replace(steps(2, late=dict.fromkeys((30, 31), rank * MS)), rank=rank).torch(
            tmp_path / f"rank{rank}.pt.trace.json"
        )
    lines = typed("report", tmp_path, "-v").stdout
    assert lines.count("breakdown of a step") == 1
    assert "the tables above show only rank 5" in lines


def test_a_trace_of_a_cpu_is_told_by_the_host(tmp_path: Path) -> None:
    marks = tuple(Range(f"ProfilerStep#{n}", n * 100 * MS, (n + 1) * 100 * MS) for n in range(3, 7))
    path = Run((), marks, (Range("aten::mm", 310 * MS, 350 * MS),)).torch(tmp_path / "cpu.json")
    result = typed("report", path, "-v", "-o", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "no kernel was recorded for 4 of 4 steps" in result.stdout
    assert (
        "  4 steps, #3 to #6\n  no events of a known device found; the median step takes 100.00 ms on the host\n"
        in result.stdout
    )
    assert "Operators\n  host ms/step  calls/step  name\n        10.000         0.2  aten::mm\n" in (result.stdout)
    assert typed("compare", path, path).exit_code == 4


@pytest.fixture
def cpu(tmp_path: Path) -> Path:
    """A run of verl on CPUs: four decode steps, and the first three mini-batches, the first of which takes longer."""
    folder = tmp_path / "cpu"
    for name, first, lengths, operator in (
        ("host_dp0_rank0_77.1.pt.trace.json", 30, (10, 10, 10, 10), "aten::mm"),
        ("host_update_policy_actor_step1_rank0_78.2.pt.trace.json", 0, (400, 100, 100), "aten::addmm"),
    ):
        ends = [*itertools.accumulate(lengths)]
        spans = [(end - length, end) for length, end in zip(lengths, ends, strict=True)]
        marks = (Range(f"ProfilerStep#{first + at}", *(MS * time for time in span)) for at, span in enumerate(spans))
        operators = (Range(operator, MS * begin, MS * end - MS) for begin, end in spans)
        path = Run((), tuple(marks), tuple(operators)).torch(folder / name)
        path.write_text(path.read_text().replace('[{"id": 0, "name": "NVIDIA H100"}]', "[]"))
    return folder


def test_the_first_screen_of_a_run_on_cpus_names_what_takes_the_time(cpu: Path) -> None:
    screen = " ".join(typed("report", cpu).stdout.split())
    assert "as shares of the whole time: aten::mm (90 %)" in screen
    assert "a fix saves at most" in screen
    assert "aten::addmm 300.00 ms" in screen
    assert "median 0.00 ms" not in screen


def test_a_run_on_cpus_is_told_stage_by_stage_by_its_operators(cpu: Path, tmp_path: Path) -> None:
    result = typed("report", cpu, "-v", "-o", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "withdrawn" not in result.stdout
    rollout, training = result.stdout.split("== update-policy actor ==\n")
    assert rollout.startswith("== rollout ==\nNo device data; 90 % of the time is spent in aten::mm\n")
    assert "as shares of the whole time: aten::mm (90 %)." in " ".join(rollout.split())
    assert "cold" not in rollout
    assert training.startswith("The first recorded step takes much longer than the others")
    said = " ".join(training.split())
    assert "#0 includes the profiler's start-up cost" in said
    assert "Step 0 took 400.00 ms on the host, 4.0 times as long as the median step." in said
    assert "aten::addmm 300.00 ms" in said
    assert "aten::addmm" in said
    assert "is the slowest" not in result.stdout
    page = (tmp_path / "page.html").read_text()
    assert page.index("<h2>rollout</h2>") < page.index("aten::mm") < page.index("<h2>update-policy actor</h2>")
    assert "start-up cost, because there is no earlier step" in page
    found = data(typed("report", cpu, "--json"))
    assert [one["id"] for one in found["findings"]] == ["host-idle", "host-operators", "outlier", "host-operators"]


def test_names_of_a_trace_are_no_commands_of_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[31mred\x07\u202eevil"
    run = Run(
        tuple(Task(10 + n * 10, 20 + n * 10, name=evil, launch=1) for n in range(9)), (Range("ProfilerStep#1", 0, 100),)
    )
    result = typed("report", run.torch(tmp_path / "evil.json"))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
    assert "\u202e" not in result.output


# ---------------------------------------------------------------- bad input


def unparsed(place: Path) -> Path:
    folder = place / "host_1_20260101000000000_ascend_pt"
    (folder / "PROF_000001_20260101" / "device_0").mkdir(parents=True)
    return folder


def other_schema(place: Path) -> Path:
    file = place / "ascend_pytorch_profiler_0.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE TASK (begin INTEGER)")
    return file


def damaged(place: Path) -> Path:
    folder = steps(3).db(place / "rank0_ascend_pt")
    (file,) = folder.rglob("*.db")
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\0" * (len(content) - 4096))
    return folder


def two_devices(place: Path) -> Path:
    run = steps(2).events()
    run[4]["args"] = {"device": 0}
    kernels = [event for event in run if event["cat"] == "kernel"]
    kernels[0]["args"]["device"] = 1
    return written(place / "two.json", run)


def two_ranks(place: Path) -> Path:
    folder = steps(2).text(place / "rank0_ascend_pt")
    (folder / "profiler_info_1.json").write_text("{}")
    return folder


def two_databases(place: Path) -> Path:
    folder = steps(2).db(place / "rank0_ascend_pt")
    (file,) = folder.rglob("*.db")
    shutil.copy(file, file.with_name("ascend_pytorch_profiler_1.db"))
    return folder


def two_npus(place: Path) -> Path:
    folder = steps(2).text(place / "rank0_ascend_pt")
    (file,) = folder.rglob("trace_view.json")
    rows = json.loads(file.read_text())
    next(row for row in rows if row.get("args", {}).get("Task Type") == "AI_CORE")["pid"] = 901
    file.write_text(json.dumps(rows))
    return folder


def tables_alone(place: Path) -> Path:
    folder = steps(2).text(place / "rank0_ascend_pt")
    (file,) = folder.rglob("trace_view.json")
    file.rename(file.with_name("kernel_details.csv"))
    return folder


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}).replace('"<', "").replace('>"', ""))
    return path


def content(name: str, data: bytes) -> Callable[[Path], Path]:
    def made(place: Path) -> Path:
        (place / name).write_bytes(data)
        return place / name

    return made


BAD: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    "nothing there": (lambda place: place / "nowhere", 3, "does not exist"),
    "an empty folder": (lambda place: place, 3, "no traces found in"),
    "0 bytes": (content("a.json", b""), 4, "is empty"),
    "no JSON": (content("a.json", b"hello"), 4, "is not JSON"),
    "JSON of another kind": (content("a.json", b'{"a": 1}'), 4, "no traceEvents list"),
    "no event": (content("a.json", b'{"traceEvents": []}'), 3, "contains no kernels, operators or step marks"),
    "gzip cut in its head": (content("a.json.gz", gzip.compress(b"[1]" * 99)[:9]), 4, "gzip"),
    "a database of 0 bytes": (content("ascend_pytorch_profiler_0.db", b""), 4, "is empty"),
    "is a database with another schema": (other_schema, 4, "is not a database of torch_npu.profiler"),
    "a damaged database": (damaged, 4, "cannot be read"),
    "a folder that was not parsed": (unparsed, 3, "next: rlpatch analyse"),
    "a folder of folders that were not parsed": (lambda place: unparsed(place).parent, 3, "next: rlpatch analyse"),
    "tables without a trace": (tables_alone, 3, "neither trace_view.json nor a database"),
    "two devices": (two_devices, 4, "several devices: 0, 1"),
    "two NPUs": (two_npus, 4, "contains data of several devices"),
    "two ranks": (two_ranks, 4, "contains data of several ranks"),
    "two databases": (two_databases, 4, "contains data of several ranks"),
    "text that is not there yet": (content("trace_view.json", b"["), 3, "contains no kernels, operators or step marks"),
}


@pytest.mark.parametrize(("make", "code", "says"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_bad_input_is_a_clear_line_with_its_exit_code(
    tmp_path: Path, command: str, make: Callable[[Path], Path], code: int, says: str
) -> None:
    place = tmp_path / "bad"
    place.mkdir()
    path = make(place)
    good = steps(2).torch(tmp_path / "good.json")
    result = typed(command, path) if command == "report" else typed(command, good, path)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert "  next: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_file_is_told_with_its_owner(trace: Path) -> None:
    trace.chmod(0)
    result = typed("report", trace)
    assert result.exit_code == 5
    assert "permission denied" in result.stderr


def test_what_can_be_read_is_reported_beside_what_cannot(trace: Path, tmp_path: Path) -> None:
    result = typed("report", trace, content("bad.json", b"")(tmp_path))
    assert result.exit_code == 4
    assert result.stdout.startswith(TITLES["dispatch"])
    assert "bad.json is empty" in result.stderr


@pytest.mark.parametrize("name", ["trace.txt", "trace.gz", "trace", "a trace.json"])
def test_what_a_file_holds_decides_not_its_name(trace: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(trace, tmp_path / name)
    (tmp_path / f"{name}.plain").write_bytes(gzip.decompress(trace.read_bytes()))
    for path in (tmp_path / name, tmp_path / f"{name}.plain"):
        assert len(data(typed("report", path, "--json"))["captures"][0]["units"]) == 4


def test_a_cut_trace_is_read_up_to_the_cut_and_said(trace: Path, tmp_path: Path) -> None:
    text = gzip.decompress(trace.read_bytes())
    (tmp_path / "cut.json").write_bytes(text[: len(text) * 2 // 3])
    result = typed("report", tmp_path / "cut.json")
    assert result.exit_code == 0
    assert result.stdout.startswith("warning: the file is cut off within its list of events")


def test_a_folder_gives_all_that_lies_below(trace: Path, tmp_path: Path) -> None:
    replace(steps(4), rank=1).text(tmp_path / "deep" / "er" / "rank1_ascend_pt")
    replace(steps(4), rank=2).db(tmp_path / "deep" / "rank2_ascend_pt")
    (tmp_path / "deep" / "settings.json").write_text("{}")
    unparsed(tmp_path)
    forms = [one["form"] for one in data(typed("report", tmp_path, "--json"))["captures"]]
    assert sorted(forms) == ["ascend-db", "ascend-text", "torch"]


def test_facts_beside_a_trace_are_read(trace: Path) -> None:
    facts = {"format": 1, "stage": "rollout", "rank": 0, "units": [{"number": 31, "requests": 7}]}
    trace.with_name(f"{trace.name}.rlpatch.json").write_text(json.dumps(facts))
    (one,) = data(typed("report", trace, "--json"))["captures"]
    assert one["facts"] == facts
    assert [unit["requests"] for unit in one["units"]] == [None, 7, None, None]


def facts_beside(trace: Path, **more: Any) -> None:
    """Facts of the four decode steps of ``trace``, before the third of which two iterations did not count."""
    units = [
        {"number": 30 + at, "uncounted": 2 * (at >= 2), "requests": 8 - at, "tokens": 16, "drafts": 8,
         "longest": 2000 + at, "context": 9000 + at}
        for at in range(4)
    ]  # fmt: skip
    facts = {
        **ROLLOUT, "window": "0:4", "tail": 8, "rollout": 2, "host": "host", "pid": 1, "why": "complete",
        "units": units, **more,
    }  # fmt: skip
    trace.with_name(f"{trace.name}.rlpatch.json").write_text(json.dumps(facts))


def test_a_report_says_what_the_units_held(trace: Path) -> None:
    facts_beside(trace)
    said = typed("report", trace, "-v").stdout
    assert "  vllm 0.32.0 · rollout · decode 0:4 at tail 8 · rollout 2 · host\n" in said
    held = (
        "in each step: 5 to 8 requests, 16 tokens, 8 draft tokens, 2,000 to 2,003 tokens in the longest context,"
        " 9,000 to 9,003 tokens of context"
    )
    assert held in " ".join(said.split())
    assert "2 iterations right before #32 were not counted as steps" in said
    lines = [line.split() for line in said.splitlines()]
    at = lines.index(["step", "ms", "host", "ms", "kernels", "requests", "longest", "context", "uncounted"])
    assert lines[at + 3] == ["#32", "15.000", "15.000", "10", "6", "2,002", "9,002", "2"]
    assert "check “facts” passed: the step metadata agrees with the trace" in said
    assert widest(said) <= max(80, len(str(trace)) + 4)


def test_only_the_units_that_are_reported_count(trace: Path) -> None:
    facts_beside(trace)
    said = typed("report", trace, "--units", "30:32").stdout
    assert "with 7 to 8 requests" in said
    assert "uncounted" not in said


def test_the_json_of_a_unit_has_what_it_held(trace: Path) -> None:
    facts_beside(trace)
    unit = data(typed("report", trace, "--json"))["captures"][0]["units"][2]
    held = {"requests": 6, "tokens": 16, "context": 9002, "drafts": 8, "longest": 2002, "sequences": None, "padded": None,
            "uncounted": 2}  # fmt: skip
    assert {name: unit[name] for name in held} == held


def test_the_page_has_what_the_units_held(trace: Path, tmp_path: Path) -> None:
    facts_beside(
        trace,
        units=[{"number": at, "sequences": 4, "padded": [4, 1024], "uncounted": at - 29} for at in range(30, 34)],
    )
    typed("report", trace, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for said in ("All steps", "sequences", "padded shape", "4 \N{MULTIPLICATION SIGN} 1024", "uncounted", "decode 0:4 at tail 8",
                 "4 iterations right before #30, #31, #32, #33 were not counted as steps."):  # fmt: skip
        assert said in page, said


@pytest.mark.parametrize(
    ("more", "doubt"),
    [
        ({"rank": 3}, "rank is 0 in the trace's name, but 3 in the step metadata"),
        ({"backend": "npu"}, "the step metadata says that npu recorded this trace"),
        ({"units": [{"number": 7}]}, "the step metadata lists step 7, but the trace has 4 steps, 30 to 33"),
        ({"format": 9}, "the step metadata beside the trace has format 9, but this rlpatch reads only format 1"),
    ],
)
def test_facts_that_contradict_the_trace_are_said_at_the_top(trace: Path, more: dict[str, Any], doubt: str) -> None:
    facts_beside(trace, **more)
    result = typed("report", trace)
    assert result.exit_code == 0
    assert doubt in " ".join(result.stdout.partition("\n\n")[0].split())


def test_facts_that_a_shell_names_beside_their_trace_are_no_trace(trace: Path) -> None:
    facts_beside(trace)
    beside = trace.with_name(f"{trace.name}.rlpatch.json")
    for words in ((trace, beside), (beside,)):
        result = typed("report", *words, "--json")
        assert [one["source"] for one in data(result)["captures"]] == [str(trace)]
    assert [row["traces"][0]["path"] for row in data(typed("traces", beside, "--json"))["captures"]] == [str(trace)]
    folder = replace(steps(4), rank=1).text(trace.parent / "deep" / "rank1_ascend_pt")
    beside.rename(folder.with_name(f"{folder.name}.rlpatch.json"))
    result = typed("report", folder.with_name(f"{folder.name}.rlpatch.json"), "--json")
    assert [one["source"] for one in data(result)["captures"]] == [str(folder)]


def test_analyse_says_what_the_units_held(trace: Path) -> None:
    facts_beside(trace, rank=3)
    result = typed("analyse", trace.parent, "--json")
    (held,) = data(result)["held"]
    assert held == {
        "path": str(trace), "asked": "0:4 at tail 8", "requests": [5, 8], "tokens": [16, 16], "drafts": [8, 8],
        "longest": [2000, 2003], "context": [9000, 9003], "uncounted": {"32": 2},
        "doubts": ["rank is 0 in the trace's name, but 3 in the step metadata"],
    }  # fmt: skip
    said = typed("analyse", trace.parent)
    assert (
        f"{trace.name}: requested window 0:4 at tail 8; each recorded step contains 5 to 8 requests, 16 tokens, "
        in " ".join(said.stdout.split())
    )
    assert max(len(line) for line in said.stdout.splitlines() if str(trace.parent) not in line) <= 80
    assert "  2 iterations right before #32 were not counted as steps" in said.stdout
    assert f"warning: {trace.name}: rank is 0 in the trace's name" in said.stderr


# ---------------------------------------------------------------- compare


def test_a_comparison_says_what_changed_and_how_sure_that_is(tmp_path: Path) -> None:
    before = steps(9).torch(tmp_path / "before.json")
    after = steps(9, late=dict.fromkeys(range(30, 39), 3 * MS)).db(tmp_path / "after_ascend_pt")
    result = typed("compare", before, after)
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "median step: 10.00 ms before, 13.00 ms after, change +3.000 ms\n  95 % confidence interval of the change: "
    )
    assert "idle: host-bound" in result.stdout
    assert "With one recording per side" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert data(typed("compare", before, after, "--json"))["median_ns"] == [10 * MS, 13 * MS]
    assert "warning: the same trace is on both sides" in typed("compare", before, before).stderr


@pytest.mark.parametrize(
    ("count", "late", "most", "code", "says"),
    [
        (9, 3 * MS, "5", 9, "a step takes at least 29.5 % longer than before; --fail-above allows 5 %"),
        (9, 3 * MS, "29", 9, "at least 29.5 %"),
        (9, 3 * MS, "30", 0, ""),
        (9, 0, "0", 0, ""),
        (1, 3 * MS, "5", 0, "note: cannot decide whether the slowdown exceeds the limit of --fail-above"),
        (9, 3 * MS, "-1", 2, "is not in the range"),
    ],
)
def test_a_job_fails_only_where_it_is_slower_for_certain(
    tmp_path: Path, count: int, late: int, most: str, code: int, says: str
) -> None:
    before, after = (
        [
            steps(count, late=dict.fromkeys(range(30, 30 + count), delay + at * MS // 100)).torch(
                tmp_path / f"{delay}-{at}.json"
            )
            for at in range(2)
        ]
        for delay in (0, late)
    )
    result = typed("compare", *before, "--fail-above", most, "--", *after)
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize("after", [1, 2])
def test_one_capture_a_side_fails_no_job(tmp_path: Path, after: int) -> None:
    """Two captures of the same program differ: with one a side, nothing tells by how much."""
    paths = [
        steps(9, late=dict.fromkeys(range(30, 39), delay * MS)).torch(tmp_path / f"{delay}.json")
        for delay in range(after + 1)
    ]
    result = typed("compare", paths[0], "--json", "--fail-above", "5", "--", *paths[1:])
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit_code"] == 2
    assert told["result"]["verdict"] == ("slower in these two captures" if after == 1 else "slower in these captures")
    assert "compare BEFORE1 BEFORE2 --fail-above 5 -- AFTER1 AFTER2" in told["problems"][0]["next"]
    page = typed("compare", paths[0], "-o", tmp_path / "page.html", "--", *paths[1:])
    assert page.exit_code == 0
    assert told["result"]["verdict"] in (tmp_path / "page.html").read_text()


FEWER = [8, 9, 12, 10, 16, 11, 9, 8, 14]
MORE = [12, 18, 16, 20, 24, 14, 22, 10, 19]


@pytest.mark.parametrize(
    ("before", "after", "delay", "facts", "code"),
    [
        (FEWER, MORE, 0, False, 9),
        (FEWER, MORE, 0, True, 0),  # slower because it held more, and by nothing else
        (MORE, FEWER, 1, False, 0),
        (MORE, FEWER, 1, True, 9),  # no slower, although it held less
    ],
)
def test_a_job_is_judged_at_equal_load(
    tmp_path: Path, before: list[int], after: list[int], delay: int, facts: bool, code: int
) -> None:
    sides: list[list[Path]] = []
    for name, requests in (("before", before), ("after", after)):
        sides.append([])
        for capture in range(2):
            more = delay * MS * (name == "after") + capture * MS // 100
            late = {30 + at: held * MS // 4 + more for at, held in enumerate(requests)}
            path = steps(9, late=late).torch(tmp_path / f"{name}-{capture}.json")
            units = [{"number": 30 + at, "requests": held} for at, held in enumerate(requests)]
            if facts:
                path.with_name(f"{path.name}.rlpatch.json").write_text(json.dumps({"format": 1, "units": units}))
            sides[-1].append(path)
    whole = ("--units", "30:38")  # the last unit ends with its last kernel
    result = typed("compare", *sides[0], *whole, "--fail-above", "1", "--json", "--", *sides[1])
    told = json.loads(result.stdout)
    assert result.exit_code == code, result.stderr
    assert (told["result"]["equal_load"] is not None) == facts
    if facts:
        low, change, high = told["result"]["equal_load"]["change"]
        assert low <= delay * MS <= high
        assert change == pytest.approx(delay * MS, abs=MS / 10)
        assert "equal load" in "".join(problem["cause"] for problem in told["problems"]) or not code


def test_several_captures_a_side_stand_around_two_dashes(tmp_path: Path) -> None:
    paths = [steps(4, late={31: n * MS}).torch(tmp_path / f"{n}.json") for n in range(4)]
    told = data(typed("compare", *paths[:3], "--json", "--", paths[3]))
    assert [told[side]["sources"] for side in ("before", "after")] == [list(map(str, paths[:3])), [str(paths[3])]]
    result = typed("compare", *paths)
    assert result.exit_code == 2
    assert f"{paths[1]} -- {paths[2]}" in result.stderr
    assert typed("compare", paths[0]).exit_code == 2


def test_a_refusal_names_the_reason_and_the_way_on(tmp_path: Path) -> None:
    before, after = steps(4).torch(tmp_path / "a.json"), steps(4, first=100).torch(tmp_path / "b.json")
    result = typed("compare", before, after)
    assert result.exit_code == 4
    assert "not comparable: different recording windows: 30:34 before, 100:104 after" in result.stderr
    assert data(typed("compare", before, after, "--json"))["refused"] == [
        "different recording windows: 30:34 before, 100:104 after"
    ]
    forced = typed("compare", before, after, "--force", "-o", tmp_path / "page.html")
    assert forced.exit_code == 0
    assert forced.stdout.startswith("warning: different recording windows")
    assert "<html" in (tmp_path / "page.html").read_text()
