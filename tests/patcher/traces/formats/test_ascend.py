"""Files of torch_npu beside its tasks: the vendor's own numbers, mstx ranges, other releases of the database."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.traces import analysis, folders, formats, names
from patcher.traces.formats import ascend, database
from patcher.traces.messages import LinkPiece
from patcher.traces.rank_trace import RankTrace
from tests.patcher.traces.recorded import MS, START, Range, Run, Task, steps

MARKS = (Range("ProfilerStep#7", 0, 100 * MS),)
MET = Run((Task(MS, 2 * MS, launch=10), Task(2 * MS, 9 * MS, "communication", "allReduce", 9, 20)), MARKS)


def read(folder: Path) -> RankTrace:
    (path,) = folders.traces_to_read(folder)
    (found,) = formats.read(path)
    return found


def output(folder: Path) -> Path:
    return folder / names.OUTPUT


def changed(folder: Path, *statements: str) -> Path:
    (file,) = folder.rglob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(file)) as db, db:
        for statement in statements:
            db.execute(statement)
    return folder


def rows(folder: Path, *more: dict[str, Any]) -> Path:
    file = output(folder) / "trace_view.json"
    file.write_text(json.dumps([*json.loads(file.read_text()), *more]))
    return folder


def test_a_database_has_no_table_of_tasks_where_nothing_ran_on_a_device(tmp_path: Path) -> None:
    """torch_npu leaves it out then; without operators, too, it is a database of something else."""
    folder = changed(steps(3).db(tmp_path / "rank0_ascend_pt"), "DROP TABLE TASK", "DROP TABLE COMMUNICATION_OP")
    units = analysis.attributed(read(folder)).profile.units
    assert [(unit.number, unit.host_ns, unit.kernels) for unit in units] == [(n, 10 * MS, 0) for n in (30, 31, 32)]
    with pytest.raises(Problem, match="the table TASK is missing"):
        read(changed(folder, "DROP TABLE PYTORCH_API"))


def worked(folder: Path, count: int, *, backwards: bool = False) -> Path:
    """``folder`` with so many operators more, two within each other, and as many calls of CANN that launch nothing."""
    (file,) = folder.rglob("ascend_pytorch_profiler*.db")
    times = [START + at * 1000 for at in range(count // 2)]
    found = [(str(begin + inner), str(begin + 900 - inner), inner) for begin in times for inner in (0, 100)]
    with closing(sqlite3.connect(file)) as db, db:
        db.executemany("INSERT INTO STRING_IDS VALUES (?,?)", [(10**6, "outer"), (10**6 + 100, "inner")])
        db.executemany(
            "INSERT INTO PYTORCH_API VALUES (?,?,1,NULL,1000000+?,NULL,50001)", reversed(found) if backwards else found
        )
        db.executemany("INSERT INTO CANN_API VALUES (?,?,1,NULL,NULL)", [(time, 10**6 + time) for time in times])
    return folder


def test_operators_of_a_database_count_in_whichever_order_they_lie(tmp_path: Path) -> None:
    ordered, backwards = (
        read(worked(Run((), MARKS).db(tmp_path / f"{back}_ascend_pt"), 9000, backwards=back)) for back in (False, True)
    )
    found = [analysis.attributed(one).profile.operators for one in (ordered, backwards)]
    assert found[0] == found[1]
    assert {one.name: (one.calls, one.host_ns) for one in found[0]} == {
        "outer": (4500, 4500 * 200),
        "inner": (4500, 4500 * 700),
    }


def test_times_that_are_none_are_a_problem_of_the_database(tmp_path: Path) -> None:
    folder = changed(MET.db(tmp_path / "rank0_ascend_pt"), "UPDATE TASK SET startNs = 'soon'")
    with pytest.raises(Problem) as caught:
        read(folder)
    assert caught.value.kind is Kind.TRACE
    assert caught.value.where.endswith(".db")


@pytest.mark.parametrize("thread", ["NULL", "'main'"])
def test_a_thread_of_another_type_is_a_thread(tmp_path: Path, thread: str) -> None:
    folder = changed(MET.db(tmp_path / "rank0_ascend_pt"), f"UPDATE CANN_API SET globalTid = {thread}")
    captures = [analysis.attributed(read(one)).profile for one in (folder, MET.db(tmp_path / "rank1_ascend_pt"))]
    assert captures[0].units == captures[1].units


def test_names_are_looked_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch_npu keeps them without a key: to ask for each alone took minutes."""
    asked: list[str] = []
    opened = database.opened

    @contextmanager
    def watched(file: Path) -> Iterator[sqlite3.Connection]:
        with opened(file) as db:
            db.set_trace_callback(asked.append)
            yield db

    monkeypatch.setattr(database, "opened", watched)
    texts = [f"INSERT INTO STRING_IDS VALUES ({number}, 'operator {number}')" for number in range(10**6, 10**6 + 50)]
    times = "INSERT INTO PYTORCH_API SELECT startNs, endNs, globalTid, NULL, {}, NULL, type FROM PYTORCH_API LIMIT 1"
    folder = MET.db(tmp_path / "rank0_ascend_pt")
    changed(folder, *texts, *(times.format(number) for number in range(10**6, 10**6 + 50)))
    read(folder)
    assert 0 < len([one for one in asked if "STRING_IDS" in one]) < 10


def test_the_vendors_steps_are_read_from_text(tmp_path: Path) -> None:
    folder = MET.text(tmp_path / "rank0_ascend_pt")
    (output(folder) / "step_trace_time.csv").write_text("Step,Computing,Free,Stage\n7,8873.756000000001,25744.05,\n")
    assert read(folder).vendor == {"7": {"computing_ns": 8_873_756, "free_ns": 25_744_050}}


def test_the_vendors_steps_and_transits_are_read_from_db(tmp_path: Path) -> None:
    folder = MET.db(tmp_path / "rank0_ascend_pt")
    columns = ", ".join(name.removesuffix("_ns") for name in ascend.COLUMNS.values())
    with closing(sqlite3.connect(output(folder) / "analysis.db")) as db, db:
        db.execute(f"CREATE TABLE StepTraceTime (step, {columns})")
        db.execute("INSERT INTO StepTraceTime (step, computing, stage) VALUES ('7', 1.5, 2)")
        name = "hcom_allReduce__586_2_1"
        db.execute(
            "CREATE TABLE CommAnalyzerTime (hccl_op_name, step, transit_time, wait_time, idle_time, start_timestamp, type)"
        )
        db.execute("INSERT INTO CommAnalyzerTime VALUES (?, 'step7', 1, 2, 4, 5, 'collective')", (name,))
        db.execute(
            "CREATE TABLE CommAnalyzerBandwidth (hccl_op_name, step, transport_type, transit_size, package_size)"
        )
        for column in ("count", "total_duration"):
            db.execute(f"ALTER TABLE CommAnalyzerBandwidth ADD COLUMN {column}")
        links = [
            ("HCCS", 3, 0.001537, 3, 0.25), ("HCCS", 3, 1, 2, 1), ("SDMA", 3, 0, 0, 0), ("SDMA", 3, 2, 0, 0),
            ("RDMA", 0.5, 1, 9, 9), ("PCIE", None, 1, None, "x"),
        ]  # fmt: skip
        db.executemany(
            "INSERT INTO CommAnalyzerBandwidth VALUES (?, 'step7', ?, ?, ?, ?, ?)", [(name, *one) for one in links]
        )
    found = read(folder)
    assert found.vendor == {"7": {"computing_ns": 1500, "stage_ns": 2000}}
    (one,) = analysis.attributed(found).profile.collectives
    assert (one.transit_ns, one.wait_ns, one.idle_ns, one.sent_bytes) == (MS, 2 * MS, 4 * MS, 3_500_000)
    assert one.pieces == (LinkPiece(1537, 3, MS // 4), LinkPiece(1_000_000, 2, MS))


def test_what_a_collective_carries_is_read_from_both(tmp_path: Path) -> None:
    text = MET.text(tmp_path / "rank0_ascend_pt")
    file = output(text) / "trace_view.json"
    file.write_text(file.read_text().replace('"data_type": "FP32"', '"data_type": "BFP16", "count": 1000'))
    db = changed(
        MET.db(tmp_path / "rank1_ascend_pt"), "CREATE TABLE ENUM_HCCL_DATA_TYPE (id, name)",
        "INSERT INTO ENUM_HCCL_DATA_TYPE VALUES (11, 'BFP16')", "ALTER TABLE COMMUNICATION_OP ADD COLUMN count",
        "ALTER TABLE COMMUNICATION_OP ADD COLUMN dataType", "UPDATE COMMUNICATION_OP SET count = 1000, dataType = 11",
    )  # fmt: skip
    for folder in (text, db):
        (one,) = analysis.attributed(read(folder)).profile.collectives
        assert (one.name, one.bytes, one.sent_bytes, one.gb_per_s) == ("hcom_allReduce", 2000, None, 0)


def test_an_analysis_of_another_schema_is_passed_over(tmp_path: Path) -> None:
    folder = MET.db(tmp_path / "rank0_ascend_pt")
    (output(folder) / "analysis.db").write_bytes(b"no database at all" * 99)
    assert read(folder).vendor is None


def test_transits_and_types_are_read_from_text(tmp_path: Path) -> None:
    folder = MET.text(tmp_path / "rank0_ascend_pt")
    times = {"Start Timestamp(us)": 5.0, "Transit Time(ms)": 1.0, "Wait Time(ms)": 2.0, "Idle Time(ms)": 4.0}
    sizes = {"0.001537": [3, 0.25], "1": [2, 1], "x": [1, 1], "2": [1], "3": [1, None], "4": [0, 1]}
    links = {
        "HCCS": {"Transit Size(MB)": 3, "Size Distribution": sizes}, "SDMA": {"Transit Size(MB)": 3, "Size Distribution": {}},
        "RDMA": {"Transit Size(MB)": 0.5, "Size Distribution": {"1": [9, 9]}}, "PCIE": {"Size Distribution": None},
    }  # fmt: skip
    row = {"Communication Time Info": times, "Communication Bandwidth Info": links}
    told = {"step7": {"p2p": {}, "collective": {"hcom_allReduce__586_2_1@17": row, "Total Op Info": {}}}}
    (output(folder) / "communication.json").write_text(json.dumps(told))
    with (output(folder) / "kernel_details.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["Name", "Type"], ["MatMul", "MatMulV2"], ["", ""]])
    found = analysis.attributed(read(folder)).profile
    assert [(one.transit_ns, one.wait_ns, one.idle_ns) for one in found.collectives] == [(MS, 2 * MS, 4 * MS)]
    assert [one.sent_bytes for one in found.collectives] == [3_500_000]
    assert [one.pieces for one in found.collectives] == [(LinkPiece(1537, 3, MS // 4), LinkPiece(1_000_000, 2, MS))]
    assert [kernel.name for kernel in found.kernels] == ["hcom_allReduce", "MatMulV2"]


def span(begin: int, end: int) -> dict[str, Any]:
    return {"ts": f"{(START + begin) // 1000}.{(START + begin) % 1000:03}", "dur": (end - begin) / 1000}


def test_mstx_and_module_ranges_of_text(tmp_path: Path) -> None:
    folder = rows(
        MET.text(tmp_path / "rank0_ascend_pt"),
        {"ph": "X", "cat": "python_function", "name": "nn.Module: Llama_3", "pid": 1, "tid": 1, **span(0, MS)},
        {"ph": "X", "cat": "python_function", "name": "threading.py(9): run", "pid": 1, "tid": 1, **span(0, MS)},
        {"ph": "X", "name": "Attention", "pid": 5, "tid": 1, **span(0, MS), "args": {"domain": "Module"}},
        {"ph": "X", "name": "decode 3", "pid": 5, "tid": 1, **span(0, MS), "args": {"domain": "default"}},
        {"ph": "X", "name": "a range of others", "pid": 5, "tid": 1, **span(0, MS), "args": {"domain": "default"}},
        {"ph": "X", "cat": "cpu_op", "name": "no arguments", "pid": 1, "tid": 1, **span(MS, 2 * MS)},
        {"ph": "X", "name": "ranks have no record of ours", "pid": 5, "tid": 1, **span(0, MS), "args": {"MB": 3}},
        {"ph": "X", "cat": "cpu_op", "name": "no time", "pid": 1, "tid": 1, "ts": "soon", "dur": 1},
        {
            "ph": "X",
            "name": "NEW_SQE",
            "pid": 900,
            "tid": 7,
            **span(10 * MS, 11 * MS),
            "args": {"Task Type": "NEW_ONE"},
        },
    )
    found = read(folder)
    made = analysis.attributed(found).profile
    assert {row.name for row in made.modules} == {"Llama", "Attention"}
    assert {mark.name for _, mark in found.marks} == {"ProfilerStep#7", "decode 3"}
    assert [row.name for row in made.operators] == ["no arguments"]
    assert (found.lost, found.unknown) == (1, {"NEW_ONE"})


@pytest.mark.parametrize(
    ("metadata", "world"),
    [
        ({"distributed_args": {"world_size": 8}, "parallel_group_info": {"1": {"group_name": "default_group", "global_ranks": [0, 1]}}}, 8),
        ({"parallel_group_info": {"1": {"group_name": "tp", "global_ranks": [0]}, "2": {"group_name": "default_group", "global_ranks": [0, 1]}}}, 2),
        ({"parallel_group_info": {"1": {"group_name": "tp", "global_ranks": [0, 1]}}}, None),
        ({"parallel_group_info": {"1": {"group_name": "default_group"}, "2": None}}, None), ({}, None),
    ],
)  # fmt: skip
def test_the_default_group_has_all_ranks_of_a_run(tmp_path: Path, metadata: dict[str, Any], world: int | None) -> None:
    (tmp_path / "profiler_metadata.json").write_text(json.dumps(metadata))
    assert ascend.rank_folder(tmp_path).world == world


@pytest.mark.parametrize(
    ("begin", "name"),
    [(10, "MEMCPY_ASYNC (acl_memcpy_host_to_device)"), (11, "MEMCPY_ASYNC"), (9, "MEMCPY_ASYNC")],
)
def test_the_queue_of_torch_npu_tells_the_direction_of_a_copy(tmp_path: Path, begin: int, name: str) -> None:
    copy = Task(20 * MS, 60 * MS, "copy", "MEMCPY_ASYNC", launch=10 * MS)
    folder = rows(
        Run((copy, Task(60 * MS, 70 * MS, launch=10 * MS)), MARKS).text(tmp_path / "rank0_ascend_pt"),
        {"ph": "X", "cat": "dequeue", "name": "Dequeue@acl_memcpy_host_to_device", "pid": 1, "tid": 9,
         "ts": f"{(START + begin * MS) // 1000}.000", "dur": 1000.0, "args": {"correlation_id": 5}},
    )  # fmt: skip
    trace = read(folder)
    assert trace.names.texts[trace.tasks.name[0]] == name


def test_flows_whose_id_is_text_lead_to_the_operator(tmp_path: Path) -> None:
    folder = Run((Task(50 * MS, 51 * MS, launch=40 * MS, ask=5 * MS),), MARKS).text(tmp_path / "rank0_ascend_pt")
    file = output(folder) / "trace_view.json"
    told = json.loads(file.read_text())
    for row in told:
        if row.get("cat") == "async_npu":
            row["id"] = f"flow {row['id']}"
    file.write_text(json.dumps(told))
    assert list(read(folder).tasks.enqueued) == [START + 5 * MS]


def test_of_a_flow_that_lacks_its_begin_only_the_launch_is_known(tmp_path: Path) -> None:
    asking = (Task(50 * MS, 51 * MS, launch=40 * MS, ask=5 * MS), Task(60 * MS, 61 * MS, launch=41 * MS, ask=6 * MS))
    folder = Run(asking, MARKS).text(tmp_path / "rank0_ascend_pt")
    file = output(folder) / "trace_view.json"
    told = json.loads(file.read_text())
    told.remove(next(row for row in told if row["ph"] == "s"))
    file.write_text(json.dumps(told))
    assert list(read(folder).tasks.enqueued) == [START + 40 * MS, START + 6 * MS]


@pytest.mark.parametrize(
    ("text", "content"),
    [('{"a": "\x01"}', {"a": "\x01"}), ("{", None), ("[" * 100_000, None), ("", None)],
    ids=["a control character", "cut", "lists without end", "empty"],
)
def test_the_small_files_beside_a_trace(tmp_path: Path, text: str, content: object) -> None:
    (tmp_path / "small.json").write_text(text)
    assert ascend.read_json(tmp_path / "small.json") == content


MSTX = "CREATE TABLE MSTX_EVENTS (startNs INTEGER, endNs INTEGER, globalTid INTEGER, message INTEGER, domainId INTEGER)"


def test_mstx_and_module_ranges_of_db(tmp_path: Path) -> None:
    folder = changed(
        MET.db(tmp_path / "rank0_ascend_pt"),
        MSTX,
        "INSERT INTO STRING_IDS VALUES (900, 'Attention'), (901, 'Module'), (902, 'decode 3'), (903, 'nn.Module: Llama_12')",
        f"INSERT INTO MSTX_EVENTS VALUES ({START}, {START + MS}, 1, 900, 901), ({START}, {START + MS}, 1, 902, NULL), (NULL, 1, 1, 902, 1)",
        f"INSERT INTO PYTORCH_API VALUES ('{START}', '{START + MS}', 1, NULL, 903, NULL, 50003), (NULL, NULL, 1, NULL, 903, NULL, 50003)",
    )
    found = read(folder)
    assert {row.name for row in analysis.attributed(found).profile.modules} == {"Llama", "Attention"}
    assert {mark.name for _, mark in found.marks} == {"ProfilerStep#7", "decode 3"}


def test_steps_are_taken_from_their_table_where_no_operator_says_them(tmp_path: Path) -> None:
    folder = changed(
        MET.db(tmp_path / "rank0_ascend_pt"),
        "DROP TABLE PYTORCH_API",
        "CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER)",
        f"INSERT INTO STEP_TIME VALUES (7, {START}, {START + 100 * MS})",
    )
    (unit,) = analysis.attributed(read(folder)).profile.units
    assert (unit.number, unit.kernels) == (7, 2)


def test_without_a_table_of_computing_tasks_their_type_tells(tmp_path: Path) -> None:
    folder = changed(
        MET.db(tmp_path / "rank0_ascend_pt"),
        "DROP TABLE COMPUTE_TASK_INFO",
        "DROP TABLE RANK_DEVICE_MAP",
        "DROP TABLE NPU_INFO",
        "INSERT INTO STRING_IDS VALUES (900, 'EVENT_WAIT'), (901, 'NEW_ONE')",
        f"INSERT INTO TASK VALUES ({START}, {START + 9}, 0, NULL, 98, 900, 7), ({START + 3 * MS}, {START + 4 * MS}, 0, NULL, 99, 901, 7)",
    )
    found = read(folder)
    assert sorted(found.names.texts[name] for name in found.tasks.name) == [
        "KERNEL_AICORE",
        "NEW_ONE",
        "hcom_allReduce",
    ]
    assert (found.rank, found.device, found.unknown) == (None, "Ascend NPU", {"NEW_ONE"})


TWO = {
    "ranks": ("INSERT INTO RANK_DEVICE_MAP VALUES (1, 1)", "contains data of several ranks"),
    "devices": (
        f"INSERT INTO TASK VALUES ({START}, {START}, 1, NULL, 98, 1, 7)",
        "contains data of several devices: 0, 1",
    ),
    "a column less": ("ALTER TABLE TASK RENAME COLUMN streamId TO stream", "streamId of the table TASK is missing"),
}


@pytest.mark.parametrize(("statement", "says"), TWO.values(), ids=TWO)
def test_a_database_that_is_not_of_one_rank_is_refused(tmp_path: Path, statement: str, says: str) -> None:
    with pytest.raises(Problem) as raised:
        read(changed(steps(2).db(tmp_path / "rank0_ascend_pt"), statement))
    assert says in raised.value.cause


TYPES = {
    "AI_CORE": "compute", "AI_VECTOR_CORE": "compute", "MIX_AIC": "compute", "MIX_AIV": "compute", "DSA_SQE": "compute",
    "AI_CPU": "compute", "KERNEL_AIVEC": "compute", "PCIE_DMA_SQE": "copy", "SDMA_SQE": "copy", "MEMCPY_ASYNC": "copy",
    "EVENT_WAIT_SQE": None, "EVENT_RECORD": None, "Notify Wait": None, "Write Value": None, "PLACE_HOLDER_SQE": None,
    "SDMA": None, "MODEL_EXECUTE": None, "PROFILING_ENABLE": None, "NEW_ONE": "compute",
}  # fmt: skip


@pytest.mark.parametrize(("task_type", "kind"), TYPES.items())
def test_the_type_of_a_task_says_what_it_does(task_type: str, kind: str | None) -> None:
    assert ascend.kind_of(task_type) == kind
    assert ascend.is_known(task_type) == (task_type != "NEW_ONE")


TASKS = [
    ("Other", "aclnnMm_MatMulV3Common_MatMulV3", "compute"), ("UNKNOWN", "te_add_1", "compute"), ("N/A", "ReduceSum7", "compute"),
    ("", "Cast", "compute"), ("Other", "Other", None), ("OTHER", "EVENT_WAIT", None), ("Other", "Notify Wait", None),
    ("Other", "MEMCPY_ASYNC", "copy"), ("AI_CORE", "EVENT_WAIT", "compute"), ("EVENT_WAIT_SQE", "aclnnMm_0", None),
]  # fmt: skip


@pytest.mark.parametrize(("task_type", "name", "kind"), TASKS)
def test_a_task_without_a_type_is_what_its_name_says(task_type: str, name: str, kind: str | None) -> None:
    assert ascend.kind_of_task(task_type, name) == kind


def viewed(place: Path, kernels: int, *, computing: int) -> Path:
    """A trace_view.json alone, whose kernels of 0.1 ms have the type Other, with the vendor's sum of computing."""
    rows: list[dict[str, Any]] = [
        {
            "ph": "X",
            "name": "ProfilerStep#1",
            "cat": "cpu_op",
            "pid": 1,
            "tid": 1,
            "ts": "0.0",
            "dur": 9000.0,
            "args": {},
        }
    ]
    for number in range(kernels):
        begin = f"{200 * number + 100}.000"
        args = {"Task Type": "Other", "connection_id": number}
        rows.append(
            {"ph": "X", "name": f"aclnnMm_{number}", "pid": 2, "tid": 3, "ts": begin, "dur": 100.0, "args": args}
        )
        for pid, cat, before in ((1, "async_npu", 90), (4, "HostToDevice", 10)):
            flow = {"cat": cat, "name": "flow", "id": str(number + (1 << 63))}  # as CANN writes them: of 64 bits
            rows.append({"ph": "s", "pid": pid, "tid": pid, "ts": f"{200 * number + 100 - before}.000", **flow})
            rows.append({"ph": "f", "pid": 2, "tid": 3, "ts": begin, **flow})
    order = {"Task Type": "Other", "connection_id": 99}
    rows.append({"ph": "X", "name": "EVENT_WAIT", "pid": 2, "tid": 3, "ts": "100.000", "dur": 1700.0, "args": order})
    rows += [{"ph": "X", "name": "Computing", "pid": 9, "tid": 0, "ts": "0.0", "dur": 100.0} for _ in range(computing)]
    place.write_text(json.dumps(rows))
    return place


@pytest.mark.parametrize("name", ["trace_view.json", "view_of_rank3.json"])
@pytest.mark.parametrize(("computing", "agrees"), [(9, True), (2, False)])
def test_a_folder_with_nothing_but_a_view_is_a_trace(tmp_path: Path, name: str, computing: int, agrees: bool) -> None:
    viewed(tmp_path / name, 9, computing=computing)
    found = read(tmp_path)
    profile = analysis.checked(found, analysis.attributed(found))
    assert (profile.form, [unit.kernels for unit in profile.units]) == ("ascend-text", [9])
    (unit,) = profile.units
    assert (unit.compute_ns, unit.free_host_late_ns, unit.free_latency_ns) == (9 * 100_000, 8 * 90_000, 8 * 10_000)
    assert {kernel.name for kernel in profile.kernels} == {f"aclnnMm_{number}" for number in range(9)}
    assert [check.id for check in profile.failed if check.id == "computing"] == ([] if agrees else ["computing"])
    assert bool(analysis.reported([profile]).findings) == agrees
    (group,) = folders.trace_groups(tmp_path)
    assert (group.first.form, group.first.exports, bool(group.next_command)) == ("npu", ("text",), True)


def test_a_report_of_a_database_fails_no_check(tmp_path: Path) -> None:
    found = read(steps(4).db(tmp_path / "rank0_ascend_pt"))
    assert analysis.checked(found, analysis.attributed(found)).failed == ()
