"""The events of a trace in blocks: the same as the whole of it, whatever is broken."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.bombs import write_bomb
from patcher.messages.errors import Kind, Problem
from patcher.traces.formats import chrome, torch
from patcher.traces.formats.chrome import ChromeEvents, nanoseconds
from tests.alarms import at_most
from tests.matrix import CRASH, examples, thinned
from tests.patcher.reliability.package import invoked


def event(number: int, **more: Any) -> dict[str, Any]:
    span = {"ts": number * 10, "dur": 1.5}
    return {"ph": "X", "cat": "cpu_op", "name": f"op{number}", "pid": 1, "tid": 2, **span, **more}


def read(path: Path, data: bytes, block: int = 256) -> tuple[ChromeEvents, list[tuple[str, int]]]:
    path.write_bytes(data)
    found = ChromeEvents(path, block=block)
    return found, [(one.name, nanoseconds(one.ts)) for events in found for one in events]


def known(count: int) -> list[tuple[str, int]]:
    return [(f"op{number}", number * 10_000) for number in range(count)]


EVENTS = [event(number) for number in range(20)]
NESTED = [
    event(number, args={"External id": 1, "list": [{"a": 1}, {"b": "}, {"}], "text": '"}, {"x": 1'})
    for number in range(20)
]
WAYS: dict[str, tuple[str, int]] = {
    "a list": (json.dumps(EVENTS), 20),
    "an object": (json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}), 20),
    "an object, with more behind the events": (
        json.dumps({"traceEvents": EVENTS, "other": [1, {"a": [2]}], "traceName": "x]"}),
        20,
    ),
    "lines": (json.dumps({"traceEvents": EVENTS}, indent=2), 20),
    "no space at all": (json.dumps({"traceEvents": EVENTS}, separators=(",", ":")), 20),
    "objects within events": (json.dumps({"traceEvents": NESTED}), 20),
    "lines with objects within events": (json.dumps({"traceEvents": NESTED}, indent=1), 20),
    "a name that looks like the list": (json.dumps({"note": '"traceEvents": [', "traceEvents": EVENTS}), 20),
    "a comma behind the last event": (json.dumps({"traceEvents": EVENTS}).replace("}]", "},]"), 20),
    "a byte order mark": ("\ufeff" + json.dumps(EVENTS), 20),
    "no event": (json.dumps({"traceEvents": []}), 0),
    "a large tail": (json.dumps({"traceEvents": EVENTS, "log": ["x" * 100] * 30}), 20),
    "a large head": (json.dumps({"log": ["x" * 100] * 30, "traceEvents": EVENTS}), 20),
}


@pytest.mark.parametrize("block", [64, 257, 1 << 20])
@pytest.mark.parametrize(("text", "count"), WAYS.values(), ids=WAYS)
def test_every_way_to_write_a_trace_gives_its_events(tmp_path: Path, text: str, count: int, block: int) -> None:
    found, events = read(tmp_path / "trace.json", text.encode(), block)
    assert events == known(count)
    assert (found.cut, found.lost) == ("", 0)


@pytest.mark.parametrize("block", [257, 1 << 20])
def test_nothing_is_looked_at_token_by_token_where_nothing_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """That takes many times as long: only the last event is, and what stands behind it."""
    looked_at: list[bytes] = []
    whole_events = chrome._whole_events

    def watched(rest: bytes) -> Any:
        looked_at.append(rest)
        return whole_events(rest)

    monkeypatch.setattr(chrome, "_whole_events", watched)
    data = {"traceEvents": [event(number) for number in range(200)], "traceName": "x"}
    assert read(tmp_path / "trace.json", json.dumps(data).encode(), block)[1] == known(200)
    assert [json.loads(b'{"traceEvents": [' + rest)["traceEvents"] for rest in looked_at] == [[event(199)]]


def test_what_stands_beside_the_events_is_kept(tmp_path: Path) -> None:
    data = {"distributedInfo": {"rank": 3}, "traceEvents": EVENTS, "traceName": "/x/y]z", "displayTimeUnit": "ms"}
    found, _ = read(tmp_path / "trace.json", json.dumps(data).encode())
    assert found.header["distributedInfo"]["rank"] == 3
    assert found.header["traceName"] == "/x/y]z"


def test_it_is_repaired_as_events_are(tmp_path: Path) -> None:
    data = b'{"overhead": inf, "distributedInfo": {"rank": 3}, "traceEvents": %s}' % json.dumps(EVENTS).encode()
    found, events = read(tmp_path / "trace.json", data)
    assert (found.header["distributedInfo"], events) == ({"rank": 3}, known(20))


@pytest.mark.parametrize("indent", [None, 1])
def test_a_trace_cut_anywhere_is_read_up_to_the_cut(tmp_path: Path, indent: int | None) -> None:
    whole = json.dumps({"traceEvents": NESTED[:6]}, indent=indent).encode()
    begin = whole.index(b"[") + 1
    for end in range(begin, whole.rindex(b"]"), 7):
        found, events = read(tmp_path / "trace.json", whole[:end], block=200)
        assert events == known(len(events))
        ended = sum(whole[:end].count(b'"name": "op%d"' % number) for number in range(6))
        assert ended - 1 <= len(events) <= ended
        assert found.cut


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.99])
def test_a_gzip_file_that_was_cut_gives_what_is_in_it(tmp_path: Path, keep: float) -> None:
    data = json.dumps({"traceEvents": [event(number, args={"x": number**9}) for number in range(500)]}).encode()
    packed = gzip.compress(data)
    found, events = read(tmp_path / "trace.json", packed[: int(len(packed) * keep)], block=4096)
    assert events == known(len(events))
    assert 500 * keep * 0.5 < len(events) < 500
    assert "gzip" in found.cut


def test_a_damaged_gzip_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    packed = bytearray(
        gzip.compress(json.dumps({"traceEvents": [event(n, args={"x": n**9}) for n in range(900)]}).encode())
    )
    packed[len(packed) // 2] ^= 0xFF
    found, events = read(tmp_path / "trace.json.gz", bytes(packed), block=1024)
    assert len(events) > 0
    assert events[:100] == known(100)
    assert found.cut or found.lost


def test_gzip_files_behind_each_other_are_one(tmp_path: Path) -> None:
    data = json.dumps(EVENTS).encode()
    packed = gzip.compress(data[:300]) + gzip.compress(data[300:]) + b"\0" * 8
    assert read(tmp_path / "a.json", packed)[1] == known(20)


BROKEN = {
    "a control character": (b'"op3"', b'"op\x013"', {3: "op 3"}),
    "a line within a name": (b'"op3"', b'"op\n3"', {3: "op 3"}),
    "no number": (b'"dur": 1.5', b'"dur": NaN', {}),
    "infinity": (b'"dur": 1.5', b'"dur": -Infinity', {}),
    "inf": (b'"dur": 1.5', b'"dur": inf', {}),
    "no UTF-8": (b'"op3"', b'"op\xff3"', {3: "op\ufffd3"}),
}


@pytest.mark.parametrize(("old", "new", "names"), BROKEN.values(), ids=BROKEN)
def test_what_json_does_not_know_is_repaired(tmp_path: Path, old: bytes, new: bytes, names: dict[int, str]) -> None:
    data = json.dumps({"traceEvents": EVENTS}).encode().replace(old, new)
    found, events = read(tmp_path / "trace.json", data)
    assert [name for name, _ in events] == [names.get(number, f"op{number}") for number in range(20)]
    assert (found.cut, found.lost) == ("", 0)


@pytest.mark.parametrize("largest", [chrome.LARGEST, 100])
def test_an_event_that_nothing_can_read_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(chrome, "LARGEST", largest)
    data = json.dumps({"traceEvents": EVENTS}).encode().replace(b'"name": "op7"', b'"name" "op7"')
    found, events = read(tmp_path / "trace.json", data)
    assert events == [one for one in known(20) if one[0] != "op7"] or events == [*known(7), ("", 0), *known(20)[8:]]
    assert found.lost == 1


@pytest.mark.parametrize(("indent", "most"), [(0, 4), (None, 40)])
def test_a_quote_too_many_costs_what_is_near_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, most: int
) -> None:
    monkeypatch.setattr(chrome, "LARGEST", 1000)
    data = json.dumps({"traceEvents": [event(number) for number in range(200)]}, indent=indent).encode()
    found, events = read(tmp_path / "trace.json", data.replace(b'"op50"', b'"op"50"'))
    assert set(events) <= {*known(200), ("", 0)}
    assert len(set(events)) > 200 - most
    assert found.lost


ENDLESS = {
    "brackets": b'"name": ' + b"[" * 3000 + b", ",
    "braces": b'"name": ' + b'{"a":' * 3000,
    "many texts": b'"name": [' + b'"",' * 3000,
}


@pytest.mark.parametrize("block", [64, 5000, 1 << 20])
@pytest.mark.parametrize("what", ENDLESS)
def test_an_event_that_goes_on_for_too_long_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, block: int
) -> None:
    monkeypatch.setattr(chrome, "LARGEST", 2000)
    monkeypatch.setattr(chrome, "_MOST_TOKENS", 1000)
    data = json.dumps({"traceEvents": EVENTS}).encode().replace(b'"name": "op7", ', ENDLESS[what])
    found, events = read(tmp_path / "trace.json", data, block)
    assert events == [one for one in known(20) if one[0] != "op7"]
    assert found.lost == 1


def test_the_list_of_events_is_looked_for_near_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "LARGEST", 2000)
    listed = json.dumps({"a": [{"traceEvents": [1]}], "traceEvents": EVENTS})
    assert read(tmp_path / "a.json", listed.encode())[1] == known(20)
    for header in ({"a": "x" * 5000}, {"a": [{"traceEvents": [1]}] * 10}):
        with pytest.raises(Problem, match=r"has no traceEvents list in its first [\d,]+ bytes"):
            read(tmp_path / "b.json", json.dumps({**header, "traceEvents": EVENTS}).encode())


ODD = {
    "ts as text": ({"ts": "30.000"}, 30_000),
    "tid as text": ({"tid": "Spans", "pid": "Traces"}, 30_000),
    "args is a list": ({"args": [1]}, 30_000),
    "correlation as text": ({"args": {"correlation": "12"}}, 30_000),
    "null everywhere": ({"args": None, "cat": None}, 30_000),
    "dur as text": ({"dur": "1.5"}, 30_000),
}


@pytest.mark.parametrize(("more", "time"), ODD.values(), ids=ODD)
def test_fields_of_another_type_do_no_harm(tmp_path: Path, more: dict[str, Any], time: int) -> None:
    data = json.dumps([*EVENTS[:3], event(3, **more), *EVENTS[4:]]).encode()
    assert read(tmp_path / "trace.json", data)[1] == [*known(3), ("op3", time), *known(20)[4:]]


BEYOND_ALL = {
    "ts": '"ts": 9223372036854775.808',
    "ts, far": '"ts": 1e30',
    "ts, whole": '"ts": 9223372036854775808',
    "dur": '"dur": 9223372036854775',
    "dur, far": '"dur": 1e30',
    "dur, negative": '"dur": -1e30',
    "nested arguments": f'"args": {{"a": {"[" * 100_000}{"]" * 100_000}}}',
    "nested field": f'"pid": {"[" * 100_000}{"]" * 100_000}',
}


@pytest.mark.parametrize("field", BEYOND_ALL.values(), ids=BEYOND_ALL)
@pytest.mark.parametrize("category", ["cpu_op", "kernel", "user_annotation"])
def test_an_event_beyond_all_is_lost_alone(tmp_path: Path, field: str, category: str) -> None:
    start = f'{{"ph": "X", "cat": "{category}", "name": "k", "pid": 1, "tid": 1'
    whole = f'{start}, "ts": 30, "dur": 2, "args": {{"correlation": 1}}}}'
    odd = f'{start}, "ts": 10, "dur": 2, {field}}}'
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{whole}, {odd}, {whole}]}}')
    (tmp_path / "plain.json").write_text(f'{{"traceEvents": [{whole}, {whole}]}}')
    (found,), (plain,) = torch.read(tmp_path / "t.json"), torch.read(tmp_path / "plain.json")
    assert found.lost == 1
    assert (found.tasks.begin, [one.begin for one in found.operators]) == (
        plain.tasks.begin,
        [one.begin for one in plain.operators],
    )
    assert [len(one.begin) for one in found.operators] == [len(one.name) for one in found.operators]


def test_a_kernel_whose_correlation_is_beyond_all_is_lost_alone(tmp_path: Path) -> None:
    start = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 30, "dur": 2, "args": {"correlation": '
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{start}1}}}}, {start}{"9" * 40}}}}}, {start}2}}}}]}}')
    (found,) = torch.read(tmp_path / "t.json")
    assert (found.lost, list(found.tasks.key)) == (1, [1, 2])
    assert {len(column) for column in vars(found.tasks).values()} == {2}


NONE = {
    "nothing": (b"", "is empty"),
    "spaces": (b" \n ", "is empty"),
    "no JSON": (b"PROFILE\0\1\2", "is not JSON"),
    "another object": (b'{"a": [1, 2]}', "no traceEvents list"),
    "an object cut in its head": (b'{"schemaVersion": 1, "dev', "no traceEvents list"),
    "gzip of nothing": (gzip.compress(b""), "is empty"),
    "gzip cut in its first bytes": (gzip.compress(b'{"traceEvents": [1]}' * 99)[:12], "gzip"),
    "no gzip after all": (b"\x1f\x8b\x08" + b"x" * 99, "gzip"),
}


@pytest.mark.parametrize(("data", "says"), NONE.values(), ids=NONE)
def test_what_is_no_trace_is_a_problem(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(Problem) as raised:
        read(tmp_path / "trace.json", data)
    assert raised.value.kind is Kind.TRACE
    assert says in raised.value.cause
    assert raised.value.hint


TIMES = {
    "1736408883688177.930": 1_736_408_883_688_177_930,
    "1661203462598738": 1_661_203_462_598_738_000,
    "79089.52021875": 79_089_520,
    "0.5": 500,
    "12.34": 12_340,
    "-3.250": -3250,
    '"4458676522690.655"': 4_458_676_522_690_655,
    "1.5e3": 1_500_000,
    "7": 7000,
}


@pytest.mark.parametrize(("text", "time"), TIMES.items())
def test_a_time_keeps_each_nanosecond(text: str, time: int) -> None:
    assert nanoseconds(text) == nanoseconds(text.encode()) == time


@pytest.mark.parametrize("text", ["", "null", "x", "1.2.345", "--1", "1e999999999999", "1e99999", "NaN"])
def test_what_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="no time"):
        nanoseconds(text)


@given(st.integers(0, 2**61))
def test_every_time_of_a_profiler_is_exact(time: int) -> None:
    assert nanoseconds(f"{time // 1000}.{time % 1000:03}") == time


TEXTS = st.text(st.sampled_from('ab{}[]",:\\ \n\t'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=3)), max_size=12),
    st.sampled_from([40, 99, 400]),
    st.sampled_from([None, 0, 1]),
)
def test_any_names_and_arguments_are_cut_between_events(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, dict[str, Any]]], block: int, indent: int | None
) -> None:
    events = [{"ph": "X", "name": name, "ts": 1, "args": args} for name, args in rows]
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"traceEvents": events}, indent=indent))
    found = ChromeEvents(path, block=block)
    assert [one.name for many in found for one in many] == [name for name, _ in rows]
    assert found.cut == ""


def test_blocks_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event(number) for number in range(1000)]}))
    sizes: Iterator[int] = (len(events) for events in ChromeEvents(path, block=4096))
    assert max(sizes) < 120


MB = 1 << 20
BOMBS = {
    "zeros": (b"", b"\0" * MB),
    "blanks in the list": (b'{"traceEvents":[', b" " * MB),
    "empty events": (b'{"traceEvents":[', b"{}," * (MB // 3)),
    "numbers of steps": (b'{"traceEvents":[', b"ProfilerStep#12 " * (MB // 16)),
}


@pytest.mark.parametrize("name", thinned([*BOMBS], (), CRASH))
def test_a_gzip_file_is_unpacked_to_what_a_trace_comes_to(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt.trace.json.gz"
    head, piece = BOMBS[name]
    write_bomb(path, head, piece, 1_024)
    heard: list[int] = []
    with at_most(30):
        scan = chrome.scan(path, heard.append)
        report = invoked("report", path)
    assert scan.cut == "the gzip file unpacks to more than 100 times its packed size"
    assert sum(heard) < path.stat().st_size / 3
    assert report.exit_code in (Kind.TRACE.exit_code, Kind.NO_TRACE.exit_code)


def test_a_trace_of_events_that_are_all_alike_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.pt.trace.json.gz"
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d.%03d,"dur":1}'
    events = b",".join(event % (at * 7, at % 1_000) for at in range(1_000_000))
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + events + b"]}", 6))
    assert not chrome.scan(path).cut
