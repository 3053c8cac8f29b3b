"""Traces of 40 MB that are odd all through, and small ones that unpack to much: linear, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.bombs import write_bomb
from tests.matrix import thinned

MB = 1 << 20
STEP = '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":1,"tid":1,"ts":90.0,"dur":50.0,"args":{}}'
EVENT = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":100.0,"dur":5.0,"args":{}}'
COUNT = 400_000


def trace(*events: str, between: str = ",") -> str:
    return '{"traceEvents":[' + between.join((STEP, EVENT, *events, EVENT)) + "]}"


def of_args(args: str) -> str:
    return trace(EVENT.replace('"args":{}', f'"args":{{{args}}}'))


def many(change: Callable[[int], str]) -> str:
    return trace(*map(change, range(COUNT)))


FORMS: dict[str, Callable[[], str]] = {
    "a long argument": lambda: of_args(f'"x":"{"x" * 40 * MB}"'),
    "a long name": lambda: trace(EVENT.replace("aten::mm", "x" * 40 * MB)),
    "escapes": lambda: of_args('"x":"' + "\\\\" * 20 * MB + '"'),
    "escaped quotes": lambda: of_args('"x":"' + '\\"' * 20 * MB + '"'),
    "what looks like events": lambda: of_args('"x":"' + "},{" * 13 * MB + '"'),
    "a quote too few": lambda: of_args('"x:"' + "},{" * 13 * MB + '"'),
    "blanks between brackets": lambda: of_args('"x":[' + "{ } , " * 7 * MB + "{}]"),
    "blanks between events": lambda: trace(between="," + " " * 13 * MB),
    "blanks behind them": lambda: trace()[:-1] + " " * 40 * MB + "}",
    "lines": lambda: of_args('"x":' + "\n" * 40 * MB + "1"),
    "brackets": lambda: trace("[" * 40 * MB),
    "braces": lambda: trace("{" * 40 * MB),
    "lists of nothing": lambda: of_args('"x":[' + "{}," * 13 * MB + "{}]"),
    "events of nothing": lambda: '{"traceEvents":[' + "{}," * 13 * MB + "{}]}",
    "digits": lambda: of_args('"x":' + "9" * 40 * MB),
    "a time of digits": lambda: trace(EVENT.replace("100.0", "9" * 40 * MB)),
    "no header's end": lambda: "{" + " " * 40 * MB,
    "a header like its end": lambda: '{"a":"' + '\\"traceEvents\\":[' * 2 * MB + '",' + trace()[1:],
    "a header of such lists": lambda: '{"a":[' + '{"traceEvents":[1]},' * 2 * MB + "1]," + trace()[1:],
    "a large header": lambda: '{"a":"' + "x" * 30 * MB + '",' + trace()[1:],
    "a large tail": lambda: trace()[:-1] + ',"x":"' + "y" * 40 * MB + '"}',
    "many names": lambda: many(lambda number: EVENT.replace("mm", f"mm{number}")),
    "many threads": lambda: many(lambda number: EVENT.replace('"tid":1', f'"tid":{number}')),
    "many bad events": lambda: many(lambda _: EVENT.replace("5.0", "x")),
    "many numbers that are none": lambda: many(lambda _: EVENT.replace("5.0", "NaN")),
    "many fields of another type": lambda: many(lambda _: EVENT.replace('"pid":1', '"pid":[]')),
    "as it should be": lambda: many(lambda _: EVENT),
}
REPEATED = "…"
"""Where 300 MB of one character stand in a text of `PACKED`."""
PACKED = {
    "a long name, packed": ("x", trace(EVENT.replace("aten::mm", REPEATED))),
    "blanks, packed": (" ", trace(REPEATED + EVENT)),
    "brackets, packed": ("[", trace(REPEATED)),
    "a header, packed": ("x", '{"a":"' + REPEATED + '",' + trace()[1:]),
}
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""
"""A small process between, because the memory of whoever starts a process is counted as its own."""
SHORT = ("brackets, packed",)


@pytest.mark.parametrize("form", thinned([*FORMS, *PACKED], SHORT))
def test_it_takes_less_than_5_s_and_500_mb(form: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    if form in PACKED:
        character, text = PACKED[form]
        head, _, tail = text.partition(REPEATED)
        write_bomb(path, head.encode(), character.encode() * MB, 300, tail.encode())
    else:
        path.write_text(FORMS[form]())
    assert path.stat().st_size < 50 * MB
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, sys.executable, "-m", "patcher", "report", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, memory = map(float, done.stdout.split())
    print(f"{form}: {seconds:.1f} s of CPU, {memory:.0f} MB")
    assert code in (0, 3, 4), done.stderr
    assert "Traceback" not in done.stderr
    # Twice the seconds, for the cores may be shared with others.
    assert (seconds < 10, memory < 500) == (True, True), (seconds, memory)
