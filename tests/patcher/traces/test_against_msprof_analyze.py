"""Ascend's own analysis as an oracle: its recipe of times, and its advisor, say of real ranks what our report says."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import zipfile
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fixtures import environments
from patcher.commands.reports import reporting
from patcher.traces import analysis, folders, formats, measured
from patcher.traces.analysis import collectives, ranks
from tests.patcher.traces.recorded import SHARED, shared

pytestmark = [shared, pytest.mark.engine]

RECIPE = "cluster_time_summary"


def analysed(tmp_path: Path, *words: object) -> list[Path]:
    """The files that msprof-analyze leaves: it ends with exit code 0 also where there is none."""
    out = tmp_path / "analysed"
    out.mkdir()
    exe = environments.environment(environments.MSPROF_ANALYZE).with_name("msprof-analyze")
    subprocess.run([exe, *map(str, words), "-o", out], cwd=out, stdin=subprocess.DEVNULL, check=True, timeout=300)
    return [path for path in out.rglob("*") if path.is_file()]


def test_the_times_of_a_cluster_are_those_of_the_report(tmp_path: Path) -> None:
    """To the nanosecond: the step on the host, the parts on the device, and who waits for whom."""
    folder = Path(shutil.copytree(SHARED / "npu" / "db-level1", tmp_path / "db", copy_function=shutil.copyfile))
    for place in (folder, *filter(Path.is_dir, folder.rglob("*"))):
        place.chmod(0o755)  # the shared ones may only be read
    (file,) = analysed(tmp_path, "cluster", "-m", RECIPE, "-d", folder)
    with closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        rows = {row["rank"]: row for row in database.execute("SELECT * FROM ClusterTimeSummary")}
    captures = []
    for path in folders.traces_to_read(folder):
        (timeline,) = formats.read(path)
        captures.append(analysis.checked(timeline, analysis.attributed(timeline)))
    found, exact, *_ = ranks.match_collectives(captures)
    assert exact
    assert sorted(rows) == [capture.rank for capture in captures] == [0, 1]
    for capture, met in zip(captures, found, strict=True):
        (unit,) = capture.units
        told = {
            "step": unit.number,
            "stepTime": unit.host_ns,
            "computation": unit.compute_ns + unit.overlap_ns,
            "communicationOverlapComputation": unit.overlap_ns,
            "communicationNotOverlapComputation": unit.communication_ns,
            "communication": unit.communication_ns + unit.overlap_ns,
            "communicationWaitStageTime": met.waits_ns,
        }
        row = rows[capture.rank]
        assert {name: row[name] if name == "step" else round(row[name] * 1000) for name in told} == told


NUMBERS = {"main": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}


def sheets(file: Path) -> dict[str, list[list[str]]]:
    """The tables of a workbook, without their heads."""
    with zipfile.ZipFile(file) as packed:
        shared_texts = ElementTree.fromstring(packed.read("xl/sharedStrings.xml")).findall("main:si", NUMBERS)
        texts = ["".join(one.itertext()) for one in shared_texts]
        names = ElementTree.fromstring(packed.read("xl/workbook.xml")).findall("main:sheets/main:sheet", NUMBERS)
        found = {}
        for number, name in enumerate(names, 1):
            root = ElementTree.fromstring(packed.read(f"xl/worksheets/sheet{number}.xml"))
            rows = [
                [texts[int(cell.findtext("main:v", "", NUMBERS))] if cell.get("t") == "s" else cell.findtext("main:v", "", NUMBERS)
                 for cell in row]
                for row in root.iterfind("main:sheetData/main:row", NUMBERS)
            ]  # fmt: skip
            found[name.attrib["name"]] = rows[1:]
    return found


@pytest.mark.parametrize("form", ["text-level1", "db-level1"])
def test_the_report_finds_what_the_advisor_finds(tmp_path: Path, form: str) -> None:
    """Unaligned collectives to the byte and the nanosecond, dynamic shapes, and what bounds vector kernels.

    Of its other findings, that torch_npu has an operator for several of torch's is not ours: it rests on a list of
    sequences of operators for each release. "No bound" leaves out mte2 of vector cores where it reads a db.
    """
    folder = Path(shutil.copytree(SHARED / "npu" / form / "rank0_ascend_pt", tmp_path / "rank0_ascend_pt"))
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755)
    files = analysed(tmp_path, "advisor", "all", "-l", "en", "-d", folder)
    (file,) = (one for one in files if one.suffix == ".xlsx")
    advised = sheets(file)
    result = reporting.report([folder], reporting.ReadOptions())
    (found,) = result.data.captures
    rows = [(int(row[1]), *(round(1000 * float(us)) for us in row[2:4])) for row in advised["Byte Alignment Analysis"]]
    assert len(rows) == 2
    own = [collectives.link_transfer(one) for one in found.collectives if collectives.is_unaligned(one)]
    for one, row in zip(own, rows, strict=True):
        assert one == pytest.approx(row, abs=5)
    assert any(one.id == "collective-unaligned" for one in result.data.findings)
    all_dynamic = any(row[0] == "Operator Dynamic Shape Issues" for row in advised["problems"])
    assert all_dynamic == (form == "text-level1")
    assert measured.states(found.kernel_uses) == ({"dynamic": 1.0} if all_dynamic else {})
    spare, bound = (text.splitlines() for _, text in advised["Vector Operator Perf Analysis"])
    for lines, kinds in ((spare, {measured.NOTHING}), (bound, {"vector", "mte2", "mte3", measured.IN_TURN})):
        named = [re.fullmatch(r"(\S+) Op shape: (\S+) dtype: .*", line) for line in lines]
        for name, shapes in (one.groups() for one in named if one):
            alike = {one.bound for one in found.kernel_uses if one.shapes == shapes and one.name in name}
            assert alike
            assert alike <= kinds
        assert sum(map(bool, named)) == 5
