"""Files of a timeline, whole, cut and doctored: what is whole is read, and nothing else harms."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from fixtures.bombs import write_bomb
from fixtures.timeline.small import small
from fixtures.timeline.writer import Writer
from patcher.timeline import files, runs
from patcher.timeline.files import KeptSpan, Losses, Reader
from patcher.timeline.intervals import TimeRange
from patcher.timeline.join import join
from patcher.timeline.model import RunTimeline
from tests.alarms import at_most
from tests.matrix import CRASH, thinned


def only(folder: Path) -> RunTimeline:
    ((run, processes),) = runs.survey(files.paths(folder)).runs
    return join(run, processes)


def reader(path: Path) -> Reader:
    found = Reader([path], 0)
    while found.read_block():
        pass
    return found


def test_what_a_writer_writes_is_what_a_reader_reads(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.add("work", "update", 900, 1_000, key="Worker", amount=7)
    writer.iterate(500, 540, 2, 20, 100, 60, 7_000, 1)
    writer.iterate(600, 610, 3, 3, 103, 61, 7_009, 2)
    writer.more = {"cpu_waits": [[-100, 500, 200], [-20, 80, 80], [0, 10, 11], [5], [0, 10, 0]]}
    writer.flush((1_200, 5_000))
    writer.add("phase", "gen", 1_100, None)
    writer.iterate(1_300, 1_310, 3, 3, 106)  # as an older recorder does
    writer.flush((2_200, 6_000))
    found = reader(writer.path)
    assert [(one.start, one.end, one.name, one.amount) for one in found.spans] == [(900, 1_000, "update", 7)]
    assert [one.name for one in found.open.values()] == ["gen"]
    assert list(found.iterations) == [(500, 540, 2, 20), (600, 610, 3, 3), (1_300, 1_310, 3, 3)]
    columns = (getattr(found.iterations, name) for name in ("context", "longest", "cpu", "rollout", "id"))
    assert [[*column] for column in columns] == [[100, 103, 106], [60, 61, 0], [7_000, 7_009, 0], [1, 2, 0], [2, 3, 5]]
    assert (found.highest, found.count) == (5, 5)
    assert ([tuple(wait) for wait in found.cpu_waits], found.losses.lines) == (
        [(600, 1_100, 200), (1_100, 1_180, 80)],
        3,
    )
    waits = [found.cpu_wait(*times) for times in ((0, 600), (600, 850), (1_000, 1_110), (1_100, 1_300), (0, 9_999))]
    assert waits == [0, 100, 50, 80, 280]


@pytest.mark.parametrize(
    ("waited", "expected"),
    [(0, 0), (40, 40), (100, 100), (101, None), (-1, None), (None, None), (1.5, None), ("4", None), ([], None)],
)
def test_a_span_waits_no_longer_than_it_lasts(waited: Any, expected: int | None, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.add("unit", "micro-batch", 900, 1_000, waited=waited)
    writer.flush((1_200, 5_000))
    assert [span.waited for span in reader(writer.path).spans] == [expected]


@pytest.mark.parametrize(("waited", "expected"), [(0, 0), (1, None), (None, None)])
def test_a_span_that_goes_on_has_not_waited_yet(waited: int | None, expected: int | None) -> None:
    found = Reader((), 0)
    found._add_row(files.RecordRow(1, 0, "unit", "x", -5, None, None, None, waited), 100)
    assert [span.waited for span in found.open.values()] == [expected]


@pytest.mark.parametrize(
    ("kind", "amount", "expected"),
    [
        ("unit", [7, 9, 80, 3], (7, (9, 80))), ("unit", [7, "x"], (7, (None,))), ("unit", [], (None, ())), ("unit", 7, (7, ())),
        ("step", [7, 0.5], (7, ())), ("work", "x", (None, ())),
    ],
)  # fmt: skip
def test_only_a_unit_has_more_than_one_amount(kind: str, amount: object, expected: tuple[object, ...]) -> None:
    found = Reader((), 0)
    found._add_row(files.RecordRow(1, 0, kind, "x", -5, 1, None, amount), 100)
    (span,) = found.spans
    assert (span.amount, span.more) == expected


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [("request", "a", "a"), ("route", "a" * 61, "a" * 30 + "…" + "a" * 29), ("serve", "a", ""), ("unit", "a", ""), ("route", 5, ""), ("route", None, "")],
)  # fmt: skip
def test_only_a_request_and_its_routing_keep_their_id(kind: str, key: object, expected: str) -> None:
    found = Reader((), 0)
    found._add_row(files.RecordRow(1, 0, kind, "x", -5, 1, key), 100)
    assert [span.key for span in found.spans] == [expected]


def test_lines_that_are_no_block_are_counted(tmp_path: Path) -> None:
    path, losses = tmp_path / "a", Losses()
    path.write_bytes(gzip.compress(b'{"at":[1,1]}\nx\n[]\n{"at":[2,2]}\n'))
    assert [block.at for block in files.blocks(path, losses)] == [(1, 1), (2, 2)]
    assert (losses.lines, losses.cut) == (2, False)


def test_a_file_that_is_still_written_reads_up_to_its_last_flush(tmp_path: Path) -> None:
    small(tmp_path, ended=False)
    assert [step.step for step in only(tmp_path).steps] == [1, 2, 3, 4, 5]


def test_progress_counts_the_bytes_of_a_file(tmp_path: Path) -> None:
    small(tmp_path)
    for path in files.paths(tmp_path):
        counts = list[int]()
        files.survey(path, counts.append)
        assert sum(counts) == path.stat().st_size


def test_a_file_that_was_cut_anywhere_has_the_steps_before(tmp_path: Path) -> None:
    small(tmp_path, steps=40)
    (driver,) = (tmp_path / "timeline").glob("node0_10_*")
    whole = driver.read_bytes()
    counts = []
    for part in range(1, 6):
        driver.write_bytes(whole[: len(whole) * part // 6])
        counts.append(len(only(tmp_path).steps))
    assert counts == sorted(counts)
    assert 0 < counts[2] < counts[4] < 40


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_damaged_file_is_read_up_to_the_damage(part: float, tmp_path: Path) -> None:
    small(tmp_path, steps=40)
    (driver,) = (tmp_path / "timeline").glob("node0_10_*")
    whole = driver.read_bytes()
    at = round(len(whole) * part)
    driver.write_bytes(whole[:at] + b"\xff" * 64 + whole[at + 64 :])
    found = only(tmp_path)
    assert abs(len(found.steps) - 40 * part) < 4
    assert f"{driver.name} is damaged; data after the damage was skipped" in found.notes


@pytest.mark.parametrize(("damaged", "behind"), [(False, 0), (False, 300), (True, 0)])
def test_a_file_is_read_chunk_by_chunk_up_to_its_end_or_the_damage(
    damaged: bool, behind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [b"%d" % (at * at) for at in range(400)]
    packed = gzip.compress(b"\n".join([*expected, b"the last has no end"]))
    middle = len(packed) // 2
    whole = packed[:middle] + b"\xff" * 40 + packed[middle + 40 :] if damaged else packed
    path, reads, losses = tmp_path / "a", list[int](), Losses()
    path.write_bytes(whole + b"\x1f" * behind)
    monkeypatch.setattr(files, "_CHUNK", 64)
    lines = [*files.lines(path, losses, reads.append)]
    assert lines == expected[: len(lines)]
    assert (len(lines) == 400, losses.cut, losses.lines) == (not damaged, damaged, 0)
    assert all(count == 64 for count in reads[:-1])
    assert middle - 64 < sum(reads) < middle + 400 if damaged else len(whole) <= sum(reads) <= len(whole) + 63


def test_a_line_that_is_too_long_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, losses = tmp_path / "a", Losses()
    path.write_bytes(gzip.compress(b"first\n" + b"x" * 2_500 + b"\nlast\n"))
    monkeypatch.setattr(files, "_CHUNK", 100)
    monkeypatch.setattr(files, "_LONGEST_LINE", 1_000)
    first, lost, last = files.lines(path, losses)
    assert (first, lost[:1], last) == (b"first", b"\0", b"last")
    assert (losses.lines, losses.cut) == (2, False)


def test_an_older_part_of_a_file_comes_before_the_newer_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path, started_ms=1, pid=1)
    writer.add("work", "first", 10, 20)
    writer.close((30, 30))
    writer.path.rename(f"{writer.path}.old")
    again = Writer(tmp_path, started_ms=1, pid=1)
    again.add("work", "second", 110, 120)
    again.close((130, 130))
    ((_, (process,)),) = runs.survey(files.paths(tmp_path)).runs
    found = Reader(process.paths, 0)
    found.advance(1 << 50)
    assert [one.name for one in found.spans] == ["first", "second"]


ROWS: list[object] = [
    None, 3, "row", {}, [], [1], [1, 0, "work", "x"], [1, 0, "nothing", "x", -5, 1], [1, 0, ["work"], "x", -5, 1],
    [1, 0, "work", "x", 1 << 40, 1], [1, 0, "work", "x", -5, -1], [1, 0, "work", "x", -5, 1 << 62], ["1", 0, "work", "x", -5, 1],
    [1, 0, "work", "x", True, 1], [1, 0, "work", "x", -5.5, 1], [10**30, 0, "work", "x", -5, 1], [1, 0, "work", "x", -5, 10_000_006],
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_row_that_is_none_is_counted_and_left_out(row: object, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.line({"at": [1_000, 1_000], "spans": [row, [2, 0, "work", "good", -5, 1]]})
    found = reader(writer.path)
    assert [one.name for one in found.spans] == ["good"]
    assert found.losses.lines == 1


@pytest.mark.parametrize(
    "columns",
    [
        None,
        3,
        [],
        [[], []],
        [[1], [1]],
        [3, 4, 5],
        [["a"], ["b"], ["c"]],
        [[1], [-5], [-5]],
        [[1], [-5], [1 << 70]],
        [[1], [None], [1]],
    ],
    ids=repr,
)
def test_columns_that_are_none_give_no_iterations(columns: object, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.line({"at": [1_000, 1_000], "iterations": columns})
    found = reader(writer.path)
    assert (len(found.iterations), found.losses.lines) == (0, 1)


@pytest.mark.parametrize(
    ("begin", "length", "end"),
    [
        (-files._EARLY_US, 5, None), (1 - files._EARLY_US, 5, 6 - files._EARLY_US), (files._LATE_US, 5, files._LATE_US),
        (files._LATE_US + 1, 5, None), (0, files._LATEST, None), (0, files._LATEST - 1, files._LATE_US), (3, 0, 3),
    ],
)  # fmt: skip
def test_an_iteration_begins_within_a_hundred_days_and_ends_with_its_block(
    begin: int, length: int, end: int | None
) -> None:
    found = Reader((), 0)
    found._add_iterations([[1], [begin], [length], [2]], 1_000)
    assert [time - 1_000 for time in found.iterations.end] == ([] if end is None else [end])
    assert found.losses.lines == (end is None)


@pytest.mark.parametrize(
    ("row", "valid"),
    [
        ([files._LATE_US - 1, 2, 1], True), ([files._LATE_US, 2, 1], False), ([1 - files._EARLY_US, 2, 2], True),
        ([-files._EARLY_US, 2, 1], False), ([0, files._EARLY_US - 1, 1], True), ([0, files._EARLY_US, 1], False),
        ([0, 2, 0], False), ([0, 2, 3], False), ([0, 2], False),
    ],
)  # fmt: skip
def test_a_wait_for_a_cpu_is_no_longer_than_its_range(row: list[int], valid: bool) -> None:
    found = Reader((), 0)
    found._add_cpu_waits([row], 1_000)
    assert (len(found.cpu_waits), found.losses.lines) == (valid, not valid)


def test_a_column_of_another_length_does_not_give_its_place_to_the_next(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.line({"at": [1_000, 1_000], "iterations": [[1, 1], [-50, 10], [5, 5], [2], [7, 0]]})
    writer.line({"at": [1_000, 1_000], "iterations": [[], [], []]})
    found = reader(writer.path)
    assert list(found.iterations) == [(950, 955, 0, 7), (960, 965, 0, 7)]
    assert (found.highest, found.count, found.losses.lines) == (2, 2, 0)


def test_unknown_keys_kinds_and_columns_are_ignored(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    columns = [[1], [-50], [5], [2], [2], [9], [77]]
    writer.line({"at": [1_000, 1_000], "spans": [[2, 0, "novelty", "x", -5, 1]], "iterations": columns, "new": [1]})
    found = reader(writer.path)
    assert found.spans == []
    assert list(found.iterations.start) == [950]


def test_a_text_is_bounded_and_holds_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.line({"at": [1_000, 1_000], "spans": [[1, 0, "work", "\x1b[2J\nname" + "x" * 10_000, -5, 1]]})
    (span,) = reader(writer.path).spans
    assert span.name.isprintable()
    assert len(span.name) == 60


def test_what_a_header_or_a_device_leaves_out_is_empty() -> None:
    header, device = files._decode_header(b"{}"), files._decode_device(b'{"index":2}')
    assert header == files.Header("", "", 0, 0, "", "", None, None, 0, {})
    assert device == files.ProcessDevice(2, "", "", "", 0)


def test_texts_of_a_header_have_their_most_letters() -> None:
    long = "x" * 300
    texts = files._texts(files.Header(long, long, command=long, run=long, package=long, release=long))
    assert {name: len(text) for name, text in texts.items()} == {
        "package": 40 + 1 + 40, "host": 80, "boot": 80, "command": 80, "run": 200
    }  # fmt: skip


HEADERS = {
    "of no format": (b"{}\n", 0),
    "no JSON": (b"\x00\xff\n", 0),
    "a list": (b"[1]\n", 0),
    "true": (b'{"rlpatch timeline": true}\n', 0),
    "nested": (b"[" * 100_000 + b"\n", 0),
    "of wrong types": (b'{"rlpatch timeline": 1, "host": 3, "boot": [], "pid": "x", "environ": [], "run": {}}\n', 0),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_none_harms_nothing(name: str, tmp_path: Path) -> None:
    small(tmp_path)
    data, _ = HEADERS[name]
    (tmp_path / "timeline" / "node0_99_1790000000000.jsonl.gz").write_bytes(gzip.compress(data + b"x\n" * 200))
    assert len(only(tmp_path).steps) == 5


def test_a_file_of_a_newer_version_is_told_apart(tmp_path: Path) -> None:
    writer = Writer(tmp_path, version=2)
    writer.close()
    found = runs.survey(files.paths(tmp_path))
    assert (found.runs, found.newer) == ((), (writer.path,))


MB = 1 << 20
PIECE = b"[" + b"1," * 300_000 + b"1]"
BOMBS = {
    "newlines": (b"\n" * MB, 64),
    "a line without an end": (b"0" * MB, 1_000),
    "short objects": (b"{}\n" * 100_000, 100),
    "rows": (b'{"at":[9,9],"spans":[' + b",".join([b'[1,0,"work","x",-5,1]'] * 100_000) + b"]}\n", 20),
    "empty rows": (b'{"at":[9,9],"spans":[' + b"[]," * 3_000_000 + b"[]]}\n", 20),
    "columns": (b'{"at":[9,9],"iterations":[' + b",".join([PIECE] * 6) + b"]}\n", 30),
    "deep nesting": (b"[" * 100_000 + b"\n", 300),
    "long numbers": (b'{"at":[9,' + b"9" * 4_000 + b"]}\n", 20_000),
}
"""What a file of at most 1 MB unpacks to: a piece, and how often it comes."""


def bomb(path: Path, piece: bytes, times: int) -> None:
    head = {"rlpatch timeline": 1, "host": "node0", "boot": "boot0", "pid": 99, "parent": 1}
    write_bomb(path, json.dumps(head).encode() + b"\n", piece, times)
    assert path.stat().st_size < 1.1 * MB


@pytest.mark.parametrize("name", thinned([*BOMBS], ["newlines", "deep nesting"], CRASH))
def test_a_file_that_unpacks_to_too_much_is_read_in_part_and_named(name: str, tmp_path: Path) -> None:
    small(tmp_path)
    path = tmp_path / "timeline" / "node0_99_1790000000000.jsonl.gz"
    bomb(path, *BOMBS[name])
    with at_most(30):
        unpacked = sum(map(len, files.lines(path, files.Losses())))
        surveyed = runs.survey(files.paths(tmp_path))
        ((run, processes),) = surveyed.runs
        joined = join(run, processes)
    assert unpacked <= MB + 50 * path.stat().st_size
    assert len(joined.steps) == 5
    named = (
        f"{path.name} unpacks to more data than a timeline file of rlpatch can have; the data beyond that limit was skipped"
        in joined.notes
    )
    assert named != (surveyed.unread == (runs.Unread(path),))


@pytest.mark.parametrize(
    ("block", "start"),
    [
        ({}, 0), ({"at": [100, 9]}, 100), ({"at": [100, 9], "spans": [[1, 0, "work", "x", -30, 10], [2, 0, "work", "x", -50, 10]]}, 50),
        ({"at": [100, 9], "spans": [[1, 0, "work", "x", -30, 10], [2, 0, "work", "x", -60, None]]}, 40),
        ({"at": [100, 9], "iterations": [[1, 2], [-80, 10], [5, 5], [1, 1], [1, 1], [1, 1], [1, 1]]}, 20),
    ],
    ids=["nothing", "no record", "spans", "an open span", "iterations"],
)  # fmt: skip
def test_a_file_begins_with_its_earliest_record(block: dict[str, Any], start: int) -> None:
    decoded = files._decode_block(json.dumps(block).encode())
    assert decoded is not None
    assert files._first_start(decoded) == start


@pytest.mark.crash
def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "node0_1_1.jsonl.gz"
    bomb(path, *BOMBS["a line without an end"])
    tracemalloc.start()
    losses = files.Losses()
    assert len(list(files.blocks(path, losses))) == 1
    assert tracemalloc.get_traced_memory()[1] < 150 << 20
    tracemalloc.stop()
    assert losses.too_large == path.name


def test_an_engine_whose_iterations_are_all_alike_is_read_to_its_end(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for second in range(1, 301):
        now = second * 1_000_000
        for at in range(200):
            writer.iterate(
                now - 1_000_000 + at * 5_000 + second % 2, now - 1_000_000 + at * 5_000 + 4_800, 64, 64, 64_000
            )
        writer.flush((now, now))
    losses = files.Losses()
    assert len(list(files.blocks(writer.path, losses))) == 301
    assert not losses.cut


SEEDS = list(range(200))


@pytest.mark.parametrize("seed", thinned(SEEDS, SEEDS[:5], CRASH))
def test_doctored_files_never_raise(seed: int, tmp_path: Path) -> None:
    """Bytes of the plain text are changed, cut, doubled or swapped, and whatever can be read is joined."""
    small(tmp_path)
    dice = random.Random(seed)
    for path in files.paths(tmp_path):
        plain = bytearray(zlib.decompressobj(31).decompress(path.read_bytes()))
        for _ in range(dice.randrange(1, 12)):
            at = dice.randrange(len(plain))
            match dice.randrange(4):
                case 0:
                    plain[at] = dice.choice(b'0123456789-,[]"{}e\n\x1b\x00')
                case 1:
                    del plain[at : at + dice.randrange(40)]
                case 2:
                    plain[at:at] = plain[at : at + dice.randrange(200)]
                case _:
                    plain[at:at] = dice.choice([b"-99999999999", b"1e308", b"null", b"[[]]", b"99999999999999999999"])
        path.write_bytes(gzip.compress(bytes(plain)))
    for run, processes in runs.survey(files.paths(tmp_path)).runs:
        found = join(run, processes)
        for step in found.steps:
            assert sum(one.seconds for one in step.critical_path) == pytest.approx(step.seconds, rel=0.01, abs=1e-3)


def test_a_process_stands_still_where_a_block_is_late_but_not_if_most_are(tmp_path: Path) -> None:
    """A stop of two seconds, while a span and an engine's iterations wait to be written."""
    for late_blocks, stalls in ((1, 1), (2, 0)):
        writer = Writer(tmp_path, pid=late_blocks, ahead_us=0)
        at = 10_000_000
        for number in range(10):
            late = number >= 10 - late_blocks
            start, at = at, at + (2_500_000 if late else 500_000)
            writer.add("work", "x", start, start + 100_000)
            writer.iterate(start + 50_000, start + 90_000, 1, 1)
            writer.flush((at, 0))
        reader = files.Reader((writer.path,), 0)
        while reader.read_block():
            pass
        assert reader.stalls == [TimeRange(at - 2_400_000 + 520_000, at)][:stalls]
        reader.forget(at - 1)
        assert len(reader.stalls) == stalls
        reader.forget(at)
        assert reader.stalls == []


MIB = 1 << 20
NOTES: dict[tuple[int, ...], tuple[int, ...] | None] = {
    (5, 30, 10): (1_005, 20 * MIB), (5, 10, 30): (1_005, 0), (0, 0, 0): (1_000, 0),
    (-5, 30, 10, 1, 2, 3, 4): (995, 20 * MIB, MIB, 2 * MIB, 3 * MIB, 4 * MIB),
    (): None, (5,): None, (5, 30): None, (5, 30, 10, 1): None, (5, 30, 10, 1, 2, 3, 4, 5): None,
    (5, -1, 0): None, (5, 30, -1): None, (5, files._LARGEST_MIB, 0): None, (5, files._LARGEST_MIB - 1, 0): (1_005, (files._LARGEST_MIB - 1) * MIB),
    (-files._EARLY_US, 3, 1): None, (1 - files._EARLY_US, 3, 1): (1_001 - files._EARLY_US, 2 * MIB),
    (files._LATE_US, 3, 1): None, (files._LATE_US - 1, 3, 1): (999 + files._LATE_US, 2 * MIB),
}  # fmt: skip


@pytest.mark.parametrize("row", NOTES)
def test_a_note_of_memory_is_what_no_other_process_shares(row: tuple[int, ...]) -> None:
    note = files._memory_note(row, 1_000)
    assert (note and tuple(note)[: len(NOTES[row] or ())]) == NOTES[row]


@pytest.mark.parametrize(
    ("times", "used", "expected"),
    [
        ([10, 5], [3, 4], [(1_010, 3), (1_015, 7)]), ([0], [0], [(1_000, 0)]), ([0], [9], [(1_000, 9)]), ([0], [10], []),
        ([0, 1], [-1, 2], [(1_001, 1)]), ([files._LATE_US, -1], [1, 1], [(999 + files._LATE_US, 2)]),
        ([-files._EARLY_US, 1], [1, 1], [(1_001 - files._EARLY_US, 2)]),
    ],
)  # fmt: skip
def test_notes_of_a_cache_are_sums_of_differences(
    times: list[int], used: list[int], expected: list[tuple[int, int]]
) -> None:
    assert [tuple(note) for note in files._cache_notes(9, times, used, 1_000)] == [(*pair, 9) for pair in expected]


@pytest.mark.parametrize(
    ("first", "last", "clocks"), [(None, None, (0, 7_000)), ((1, 2), None, (1, 2)), ((1, 2), (3, 4), (3, 4))]
)
def test_the_newest_clocks_of_a_file_are_those_of_its_last_block_else_its_start(
    first: tuple[int, int] | None, last: tuple[int, int] | None, clocks: tuple[int, int]
) -> None:
    file = files.ProcessFile(
        path=Path("x"), started=7, package="", begin=0, first=first, last=last, kinds=frozenset(), rank=None, ended=True, cut=False
    )  # fmt: skip
    assert file.clocks == clocks


def test_what_is_forgotten_ended_by_then() -> None:
    reader = files.Reader((), 0)
    reader.spans = [
        KeptSpan(start, end, "x", "", None, at, 0, 0)
        for at, (start, end) in enumerate([(0, 10), (0, 11), (5, None), (2, 9)])
    ]
    reader.stalls = [TimeRange(0, 10), TimeRange(0, 11)]
    reader.cpu_waits = [files.CpuWait(0, 10, 10), files.CpuWait(0, 11, 11)]
    assert reader.cpu_wait(0, 5) == 5
    reader.iterations.extend([0, 10, 11], [10, 11, 20], [1, 2, 3], [1, 1, 1])
    assert [list(column) for column in (reader.iterations.context, reader.iterations.id)] == [[0, 0, 0]] * 2
    assert [span.id for span in reader.forget(10)] == [0, 3]
    assert ([span.id for span in reader.spans], reader.stalls, list(reader.iterations.end)) == (
        [1, 2], [TimeRange(0, 11)], [11, 20]
    )  # fmt: skip
    assert [wait.end for wait in reader.cpu_waits] == [11]
    assert reader.forget(3) == []
    assert len(reader.iterations) == 2


def test_notes_are_taken_once_up_to_a_time() -> None:
    reader = files.Reader((), 0)
    for at in (10, 11, 12):
        reader.notes += [files.MemoryNote(at, 1), files.HostNote(at, 1, 2), files.CacheNote(at, 1, 2)]
    for until, taken in ((9, []), (10, [10]), (10, []), (12, [11, 12]), (99, [])):
        assert [note.at for note in reader.take_notes(until)] == [at for at in taken for _ in range(3)]
