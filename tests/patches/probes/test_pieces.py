"""Windows that are saved in pieces, and windows whose trace may not exceed a size."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches.probes import ranges
from patches.probes.facts import SavedTraces
from patches.probes.pieces import LimitedCapture, LimitedPieces, Pieces
from patches.probes.recorder import CountedUnits
from tests.patches.rollout_workers import V1Worker, batch, recorded, rollout, steps
from tests.patches.standin import Console
from tests.patches.step_metadata import Traces, facts, states, with_lists
from tests.patches.training_stages import Stage

pytestmark = pytest.mark.usefixtures("stand_in_torch")

PIECES: dict[str, Any] = {"layers": (Pieces,), "UNIT_STALL_MS": 1}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time passes only where a profiler is stopped: ``per_unit`` seconds for each unit that it has recorded."""
    clock = SimpleNamespace(now=1_000.0, per_unit=0.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    return clock


def timed(clock: SimpleNamespace) -> type:
    """A part of a recorder that saves as slowly as ``clock`` says."""

    class Saving:
        made: list[Any]
        prof: Any

        def synchronize(self) -> None:
            clock.now += clock.per_unit * len(self.made[-1].recorded) if self.prof else 0

    return Saving


@pytest.mark.parametrize(
    ("per_unit", "max_stall", "lengths"),
    [
        (0.0, "2", [3, 6, 12, 18]),  # twice as many as the one before, at most
        (0.25, "2", [3, 4, 4, 4, 4, 4, 4, 4, 4, 4]),  # half of what is allowed
        (5.0, "2", [3, *[1] * 36]),  # at least one
        (0.25, "4", [3, 6, 8, 8, 8, 6]),
    ],
)
def test_a_piece_follows_what_the_last_ones_took(
    per_unit: float, max_stall: str, lengths: list[int], clock: SimpleNamespace
) -> None:
    clock.per_unit = per_unit
    worker = V1Worker(WINDOW="2:41", FIRST_PIECE=3, MAX_STALL=max_stall, parts=(timed(clock),), **PIECES)
    rollout(worker, 50)
    assert [len(units) for units in recorded(worker)] == lengths
    assert {number: label for units in recorded(worker) for number, label in units.items()} == steps(2, 41)
    assert all(profiler.calls[-1] == "stop" for profiler in worker.made)
    assert worker._rlpatch_stage_probe is None


@pytest.mark.parametrize(("piece", "uncounted", "marked"), [(1, 0, 0), (2, 7, 1), (3, 7, 1)])
def test_a_later_piece_keeps_the_count_of_uncounted_units_and_marks_its_start(
    piece: int, uncounted: int, marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[object] = []
    monkeypatch.setattr(CountedUnits, "open", lambda self, _at, _batch=None: setattr(self, "uncounted", 0))
    monkeypatch.setattr(CountedUnits, "mark_start", lambda self: marks.append(self), raising=False)
    pieces: Any = Pieces.__new__(Pieces)
    pieces.piece, pieces.uncounted = piece, 7
    pieces.open(30)
    assert (pieces.uncounted, len(marks)) == (uncounted, marked)


def test_a_slow_piece_is_remembered_beside_the_next_one(clock: SimpleNamespace) -> None:
    worker = V1Worker(WINDOW="1:41", FIRST_PIECE=4, parts=(timed(clock),), **PIECES)
    for step, per_unit in ((5, 0.25), (9, 0.05), (13, 0.05), (40, 0.05)):
        clock.per_unit = per_unit
        start = getattr(worker, "at", 0)
        if not start:
            worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
        for n in range(start + 1, step + 1):
            worker.iterate(batch({"a": 1}), f"decode {n}")
        worker.at = step  # type: ignore[attr-defined]
    assert [len(units) for units in recorded(worker)][:4] == [4, 4, 4, 8]


@pytest.mark.parametrize(("expected_ms", "first"), [(1, 9), (500, 4), (667, 2), (1000, 2), (9000, 1)])
def test_the_first_piece_is_shorter_where_much_is_expected(expected_ms: int, first: int) -> None:
    worker = V1Worker(WINDOW="1:20", FIRST_PIECE=9, **{**PIECES, "UNIT_STALL_MS": expected_ms})
    rollout(worker, 25)
    assert len(recorded(worker)[0]) == first


def test_a_single_unit_that_takes_too_long_is_told(clock: SimpleNamespace, console: Console) -> None:
    clock.per_unit = 3.0
    worker = V1Worker(WINDOW="1:3", FIRST_PIECE=1, parts=(timed(clock),), **PIECES)
    rollout(worker, 5)
    assert re.search(r"\bpiece 1 .*\b3\.0 s\b.*RLPATCH_MAX_STALL=2\.0\b", console.text)


def test_the_pieces_have_metadata_of_their_own_and_one_state(tmp_path: Path, console: Console) -> None:
    told: dict[str, Any] = {"METADATA": True, "SAVE_PATH": str(tmp_path), "parts": (Traces,)}
    worker = V1Worker(
        WINDOW="2:12",
        FIRST_PIECE=3,
        IDENTITY=("rank", "window", "units"),
        **told,
        **{**PIECES, "layers": (SavedTraces, Pieces)},
    )
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 6):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    (state,) = states(tmp_path).values()
    assert (state["state"], len(state["traces"]), state["piece"]) == ("recording", 1, 2)
    worker.iterate(with_lists(batch({"a": 1, "b": 1}, {"b": 1}), "a"), "prefill")
    for n in range(6, 15):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    pieces = facts(tmp_path)
    assert [[unit["number"] for unit in piece["units"]] for piece in pieces] == [[2, 3, 4], [5, 6, 7, 8, 9, 10], [11]]
    assert [piece["piece"] for piece in pieces] == [1, 2, 3]
    assert [[unit["number"] for unit in piece["units"] if unit.get("profiler_start")] for piece in pieces] == [
        [],
        [5],
        [11],
    ]
    assert [piece["window"] for piece in pieces] == ["2:12"] * 3
    assert [unit["uncounted"] for piece in pieces for unit in piece["units"]] == [0, 0, 0, 0, *[1] * 6]
    (state,) = states(tmp_path).values()
    assert (state["state"], state["done"], len(state["traces"])) == ("saved", True, 3)
    assert "piece 1, decode steps 2 to 4: /" in console.text
    assert "complete, recorded 10 of 10 decode steps with 1 uncounted iterations between them: /" in console.text


def test_the_traces_of_a_piece_are_handed_on_to_be_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_on: list[object] = []
    monkeypatch.setattr(CountedUnits, "after_saving", lambda _, traces: handed_on.extend(traces))
    monkeypatch.setattr(CountedUnits, "say", lambda *_: None)
    pieces: Any = Pieces.__new__(Pieces)
    pieces.__dict__.update(is_piece=True, first=2, unit=5, UNITS="decode steps")
    pieces.finish("piece 1", ["a", "b"])
    assert (pieces.piece, handed_on) == (2, ["a", "b"])


def test_a_rollout_that_ends_in_a_later_piece_counts_all_units(console: Console) -> None:
    worker = V1Worker(WINDOW="1:99", FIRST_PIECE=3, **PIECES)
    rollout(worker, 8)
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert "sleep(), recorded 8 of 98 decode steps" in console.text


def test_the_next_rollout_begins_with_a_first_piece(console: Console) -> None:
    worker = V1Worker(WINDOW="1:7", FIRST_PIECE=1, REPEAT=2, **PIECES)
    for _ in range(2):
        rollout(worker, 8)
        worker._rlpatch_stage("end_rollout", "sleep()")
    lengths = [len(units) for units in recorded(worker)]
    assert lengths == [1, 2, 3, 4, 2], "by what they took"
    assert re.findall(r"piece (\d), decode", console.text) == ["1", "2", "1"]
    assert console.text.count("complete, recorded 6 of 6 decode steps") == 2


def test_a_disk_that_is_full_by_the_next_piece_ends_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    told: dict[str, Any] = {"METADATA": True, "SAVE_PATH": str(tmp_path), "parts": (Traces,)}
    worker = V1Worker(
        WINDOW="2:12", FIRST_PIECE=3, IDENTITY=("rank", "units"), **told, **{**PIECES, "layers": (SavedTraces, Pieces)}
    )
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 8):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
        if n == 3:
            monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=1))
    (state,) = states(tmp_path).values()
    assert (state["state"], len(state["traces"])) == ("saved", 1)
    assert re.search(rf"{re.escape(str(tmp_path))}, .*\b3 of 10\b", state["why"])
    assert state["why"] in console.text


@pytest.mark.parametrize("layers", [(), (ranges.TorchRanges, ranges.TrainingMarkers)])
def test_micro_batches_are_saved_in_pieces_between_them(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    class Named:
        def begin_range(self, name: str) -> Any:
            names.append(name)
            return name

        def end_range(self, handle: Any) -> None:
            names.append(f"/{handle}")

    settings = {**PIECES, "layers": (Pieces, *layers), "parts": (Named,)}
    stage = Stage(WINDOW="1:6", UNIT="micro-batch", FIRST_PIECE=2, **settings)
    stage.update(minis=2, micros=3)
    assert [[*profiler.recorded] for profiler in stage.made] == [[1, 2], [3, 4, 5]]
    if layers:
        assert names.count("mini-batch 0") == names.count("/mini-batch 0") == 1
        assert names[names.index("/mini-batch 0") :].count("update-policy actor step 1") == 1
        assert [name for name in names if name.startswith("micro")] == [f"micro-batch {n}" for n in range(1, 6)]


@pytest.mark.parametrize("window", ["2:7", "2:8", "2:"])
def test_a_window_that_is_longer_than_what_is_saved_at_once_ends_there(window: str, console: Console) -> None:
    """Where the layer is not there: ``RLPATCH_WINDOW`` may ask for more than was applied."""
    worker = V1Worker(WINDOW=window, LONGEST=5)
    rollout(worker, 20)
    assert recorded(worker) == [steps(2, 7)]
    assert "recorded 5 of 5 decode steps" in console.text


# --- sizes ---


class Sized(Traces):
    """Traces of a number of bytes for each unit."""

    bytes_of_unit: Iterator[int]

    def traces(self) -> set[str]:
        for path in map(Path, super().traces()):
            if not path.exists():
                path.mkdir()
                with (path / "data").open("wb") as file:
                    file.truncate(next(self.sizes) * len(self.made[-1].recorded))  # type: ignore[attr-defined]
        return super().traces()


def limited(tmp_path: Path, window: str, limit: str, sizes: list[int], **more: Any) -> V1Worker:
    """A worker with ``limit`` GB whose n-th trace has sizes[n] bytes a unit."""
    layers = (LimitedPieces,)
    settings = {
        "METADATA": True,
        "SAVE_PATH": str(tmp_path),
        "MAX_TRACE_GB": limit,
        "FIRST_PIECE": 1,
        "sizes": iter(sizes),
    }
    return V1Worker(
        WINDOW=window, parts=(Sized,), IDENTITY=("units",), **{**PIECES, **settings, "layers": layers, **more}
    )


@pytest.mark.parametrize(
    ("window", "limit", "sizes", "lengths", "said"),
    [
        (
            "2:6",
            "2",
            [600_000_000] * 9,
            [1],
            "would be too large for RLPATCH_MAX_TRACE_GB or the disk: about 2.4 GB, recorded 1 of 4 decode steps",
        ),
        ("2:6", "2.5", [600_000_000] * 9, [1, 2, 1], "complete, recorded 4 of 4 decode steps"),
        ("2:6", "0.0005", [100_000] * 9, [1, 2, 1], "complete, recorded 4 of 4 decode steps"),
        ("2:9", "0.0005", [50_000, 100_000], [1, 2], "or the disk: about 0.00065 GB, recorded 3 of 7"),
        ("2:", "0.0005", [100_000] * 9, [1, 2, 2], "or the disk: about 0.0006 GB, recorded 5 decode steps in 3 pieces"),
    ],
)
def test_a_trace_that_would_become_too_large_ends_the_window(
    window: str, limit: str, sizes: list[int], lengths: list[int], said: str, tmp_path: Path, console: Console
) -> None:
    worker = limited(tmp_path, window, limit, sizes)
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 12):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    assert [len(units) for units in recorded(worker)] == lengths
    assert said in console.text


@pytest.mark.parametrize(
    ("limit", "free", "opens"), [("9", 10**12, True), ("1", 10**12, False), ("9", 2 * 10**9, False)]
)
def test_what_the_first_window_took_decides_on_the_next(
    limit: str, free: int, opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = limited(tmp_path, "2:3", "9", [1_500_000_000] * 2, REPEAT=2)
    for turn in range(2):
        worker.iterate(batch({"a": 1}, {"a": 1}, ("a",)), "prefill")
        for n in range(1, 5):
            worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
        if not turn:
            worker._rlpatch_stage_probe.most_bytes = int(limit) * 10**9
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
    assert len(worker.made) == 1 + opens


@pytest.mark.parametrize(("limit", "traces", "said"), [(1_500, 1, ""), (1_499, 1, "about 1.5e-06 GB"), (1, 0, "")])
def test_what_a_capture_without_units_took_decides_on_the_next(
    limit: int, traces: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace may be a file or a folder; what it took counts once."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**10))
    (tmp_path / "trace/inner").mkdir(parents=True)
    for name, size in (("a", 1_000), ("inner/b", 500)):
        (tmp_path / "trace" / name).write_bytes(bytes(size))
    capture, notes = LimitedCapture.__new__(LimitedCapture), []
    capture.write_state = lambda *words: notes.append(words)  # type: ignore[method-assign]
    capture.unit = capture.first = 0
    capture.end, capture.save_path, capture.most_bytes = 1, str(tmp_path), limit
    written = [str(tmp_path / "trace")] * traces
    capture.finish("complete", written)
    assert notes == [("saved" if traces else "not recorded", "complete", written)]
    assert (capture.done, capture.open_at, capture.bytes_saved) == (True, None, 0)
    assert capture.bytes_of_unit == 1_500 * traces
    assert said in capture.size_obstacle()
    assert bool(capture.size_obstacle()) == bool(said)


@pytest.mark.parametrize(
    ("first", "unit", "end", "saved", "free", "obstacle"),
    [
        (2, 0, 12, 0, 1e12, ""), (2, 0, 12, 1, 1e12, "about 1e-06 GB"), (2, 5, 12, 300, 1e12, ""), (2, 5, 12, 301, 1e12, "about 1e-06 GB"),
        (2, 0, 13, 0, 1e12, "about 1.1e-06 GB"), (2, 0, 10**9, 900, 1e12, ""), (2, 0, 10**9, 901, 1e12, "about 1e-06 GB"),
        (2, 0, 12, 0, 1e9 + 1_000, ""), (2, 0, 12, 0, 1e9 + 999, "about 1e-06 GB"),
    ],
)  # fmt: skip
def test_a_trace_fits_the_limit_and_the_disk(
    first: int, unit: int, end: int, saved: int, free: float, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit has 100 bytes, the limit is 1,000 bytes, and a GB of the disk stays free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    limited: Any = LimitedPieces.__new__(LimitedPieces)
    limited.__dict__.update(
        first=first, unit=unit, end=end, bytes_saved=saved, bytes_of_unit=100.0, most_bytes=1_000.0, save_path="/"
    )
    assert obstacle in limited.size_obstacle()
    assert bool(limited.size_obstacle()) == bool(obstacle)


@pytest.mark.parametrize(("count", "of_unit"), [(4, 5.0), (1, 20.0), (0, 20.0)])
def test_traces_are_weighed_with_all_files_in_them(count: int, of_unit: float, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).write_bytes(b"x" * (10 if name == "one" else 5))
    limited: Any = LimitedPieces.__new__(LimitedPieces)
    limited.add_trace_size([str(tmp_path / "one"), str(tmp_path / "a"), str(tmp_path / "gone")], count)
    assert (limited.bytes_saved, limited.bytes_of_unit) == (20, of_unit)
    limited.add_trace_size([], 3)
    assert (limited.bytes_saved, limited.bytes_of_unit) == (20, of_unit)


@pytest.mark.parametrize(
    ("of_unit", "saved", "length", "shortened"),
    [(0.0, 0, 9, 9), (100.0, 0, 9, 9), (100.0, 500, 9, 5), (100.0, 999, 9, 1), (100.0, 550, 9, 4)],
)
def test_a_piece_has_no_more_units_than_fit(
    of_unit: float, saved: int, length: int, shortened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pieces, "open_window", lambda *_: None)
    limited: Any = LimitedPieces.__new__(LimitedPieces)
    limited.__dict__.update(bytes_of_unit=of_unit, bytes_saved=saved, length=length, most_bytes=1_000.0)
    limited.open_window(3)
    assert limited.length == shortened
