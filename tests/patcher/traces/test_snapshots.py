"""Memory snapshots in a report: what they say, and what hostile, damaged and foreign ones come to."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.memory_history import Allocator
from patcher.messages import Kind, Problem
from patcher.traces import snapshots
from patcher.traces.formats import pickled
from tests.patches.command_line import run

MIB = 1 << 20


def rlpatch_unit(allocator: Allocator) -> None:
    allocator.free(allocator.alloc(1))


def window() -> dict[str, Any]:
    """Two units: the first leaves 2 MiB behind, the second 3."""
    allocator = Allocator()
    allocator.alloc(7 * MIB)
    allocator.record("all", max_entries=100)
    for size in (2, 3):
        rlpatch_unit(allocator)
        kept = allocator.alloc(size * MIB)
        allocator.free(allocator.alloc(20 * MIB))
    rlpatch_unit(allocator)
    assert kept
    return {**allocator.snapshot(), "rlpatch": {"unit": "decode", "marked": [8, 9, 10], "most": 100}}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "one.memory.pickle"
    path.write_bytes(pickle.dumps(window(), 4))
    return path


def test_the_terminal_json_csv_and_page_say_the_same(snapshot: Path, tmp_path: Path) -> None:
    words = ("report", snapshot, "--csv", tmp_path / "csv", "-o", tmp_path / "page.html", "--json")
    (device,) = json.loads(run(*words).stdout)["result"]["snapshots"][0]["devices"]
    assert (device["peak"], device["peak_unit"]) == (32 * MIB, 9)
    assert [(unit["number"], unit["left"]) for unit in device["units"]] == [(8, 2 * MIB), (9, 3 * MIB)]
    text = run("report", snapshot).stdout
    assert "33.6 MB" in text
    assert "window" in text
    assert "33.6 MB" in (tmp_path / "page.html").read_text("utf-8")
    rows = (tmp_path / "csv/memory_units.csv").read_text("utf-8").splitlines()
    assert [row.split(",")[-1] for row in rows] == ["left_bytes", str(2 * MIB), str(3 * MIB)]


def test_a_folder_of_snapshots_is_reported(snapshot: Path) -> None:
    assert snapshot.name in run("report", snapshot.parent).stdout


def test_the_metadata_beside_it_stand_for_it(snapshot: Path) -> None:
    beside = snapshot.with_name(f"{snapshot.name}.rlpatch.json")
    beside.write_text("{}")
    assert snapshot.name in run("report", beside).stdout


OLD = [{"device": 0, "address": 512, "total_size": 4096, "blocks": [
    {"size": 1024, "state": "active_allocated", "history": [{"frames": [{"filename": "a/b.py", "name": "f", "line": 3}]}]},
    {"size": 3072, "state": "inactive"},
]}]  # fmt: skip


@pytest.mark.parametrize("value", [OLD, {"segments": OLD}, {"segments": OLD, "device_traces": []}], ids=str)
def test_snapshots_without_a_history_have_what_is_in_use(value: object, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    (device,) = snapshots.read(path).devices
    assert (device.in_use, device.reserved, device.unused, device.largest_free) == (1024, 4096, 3072, 3072)
    assert device.blocks[0].origin.frame == "a/b.py:3 f"
    assert device.units == ()


class _Runs:
    def __init__(self, function: Callable[..., Any], *words: Any) -> None:
        self.call = (function, words)

    def __reduce__(self) -> Any:
        return self.call


class _Set:
    def __reduce__(self) -> Any:
        return dict, (), {"x": 1}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (_Runs(os.system, "touch here"), "posix.system"),
        ({"segments": [_Runs(eval, "1")]}, "builtins.eval"),
        (_Set(), "builtins.dict"),
        (print, "builtins.print"),
    ],
)
def test_code_in_a_pickle_is_refused_by_its_name(value: object, named: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "evil.memory.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(Problem) as raised:
        snapshots.read(path)
    assert raised.value.kind is Kind.TRACE
    assert (named.partition(".")[2] if protocol > 1 else "the file ") in str(raised.value.cause)
    assert "rlpatch" in run("report", path, code=raised.value.kind.exit_code).stderr


DOUBLED = b"\x80\x04)\x94" + b"".join(b"h%ch%c\x86\x94" % (index, index) for index in range(60))
"""Begin of a pickle whose item 60 of the memo is a tuple with 2 ** 60 empty ones."""

BOMBS = {
    "memo": b"\x80\x04}r\xff\xff\xff\x7f.",
    "a long text": b"\x80\x04X\xff\xff\xff\x7fa.",
    "a long number": b"\x80\x04\x8b\xff\xff\xff\x7f.",
    "bytearray": b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.",
    "empty": b"",
    "no end": b"\x80\x04}",
    "no stack": b"\x80\x04.",
    "a mark": b"\x80\x04(.",
    "a mark in a dict": b"\x80\x04}(K\x01K\x02K\x03u.",
    "an unhashable key": b"\x80\x04}]K\x01s.",
    "no container": b"\x80\x04K\x01K\x02a.",
    "persistent": b"\x80\x04K\x01Q.",
    "extension": b"\x80\x04\x82\x01.",
    "text": b'{"traceEvents": []}',
    "itself": b"\x80\x04]\x94h\x00a.",
    "a tuple of tuples as a key": DOUBLED + b"}h\x3cK\x01s.",
    "an import named by tuples": DOUBLED + b"h\x3ch\x3c\x93.",
    "deep": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_damaged_and_hostile_files_are_problems(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.memory.pickle"
    path.write_bytes(BOMBS[name])
    with pytest.raises(Problem) as raised:
        snapshots.read(path)
    assert raised.value.kind is Kind.TRACE


def test_texts_that_are_tuples_of_tuples_count_as_missing(tmp_path: Path) -> None:
    """As a text such a tuple has 2 ** 60 parentheses."""
    doubled: tuple[Any, ...] = ()
    for _ in range(60):
        doubled = (doubled, doubled)
    frames = [{"filename": doubled, "name": doubled, "line": doubled}]
    block = {"size": 512, "state": doubled, "frames": frames}
    path = tmp_path / "a.memory.pickle"
    path.write_bytes(
        pickle.dumps(
            {
                "segments": [{"device": doubled, "total_size": 1024, "blocks": [block, {**block, "state": "active"}]}],
                "device_traces": [[{"action": doubled, "addr": doubled, "size": doubled, "frames": frames}]],
                "rlpatch": {"unit": doubled, "marked": [doubled], "most": doubled},
            }
        )
    )
    snapshot = snapshots.read(path)
    assert (snapshot.unit, snapshot.devices[0].in_use) == ("", 512)
    assert snapshot.devices[0].blocks[0].origin.frame == ""


def test_three_failed_allocations_are_listed(tmp_path: Path) -> None:
    events = [{"action": "oom", "size": number << 30, "device_free": 0} for number in range(1, 9)]
    path = tmp_path / "a.memory.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    text = run("report", path).stdout
    assert text.count("out of memory") == 3
    assert "5 more" in text


def test_any_bytes_are_a_value_or_a_problem() -> None:
    dice, whole = random.Random(1), pickle.dumps(window(), 4)
    for _ in range(300):
        data = bytearray(whole[: dice.randint(1, len(whole))] if dice.random() < 0.3 else whole)
        for _ in range(dice.randint(0, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        with contextlib.suppress(Problem):
            pickled.load(bytes(data), "a")


@pytest.mark.parametrize("seed", range(40))
def test_values_of_wrong_types_count_as_missing(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)

    def spoilt(value: Any, depth: int = 0) -> Any:
        if dice.random() < 0.04 + 0.02 * depth:
            return dice.choice([None, -1, 1 << 90, "x", [], {}, [3], {"frames": 5}, 1.5])
        if isinstance(value, dict):
            return {key: spoilt(part, depth + 1) for key, part in value.items()}
        return [spoilt(part, depth + 1) for part in value] if isinstance(value, list) else value

    path = tmp_path / "a.memory.pickle"
    value = spoilt(window())
    path.write_bytes(pickle.dumps({**window(), **value} if isinstance(value, dict) else value))
    with contextlib.suppress(Problem):
        snapshots.read(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_containers_come_back_as_they_were(protocol: int) -> None:
    shared = ["x" * 300, 1.5, None, True, -5, 1 << 70, 70000]
    value = {"a": (1, (2, 3), shared), "b": shared, "c": [{}], "é": [()], "d": {f"k{n}": n for n in range(2000)}}
    read = pickled.load(pickle.dumps(value, protocol), "a")
    assert read == value
    assert read["b"] is read["a"][2]
