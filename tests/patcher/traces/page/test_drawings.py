"""The scale of each drawing: a length on the page is in proportion to the time that it stands for."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from patcher.traces.model import PARTS, Comparison, Lanes, PartChange, RankProfile, RecordedUnit, Side, Span
from patcher.traces.page import drawings, lanes
from patcher.traces.page.limits import PAGE_LIMITS
from patcher.traces.page.svg import WIDTH, Scale

MS = 1_000_000
NEAR = 0.11  # of a drawing: places are rounded to a tenth of its units
BOX = re.compile(r"M([\d.-]+) ([\d.-]+)h([\d.-]+)v([\d.-]+)h-[\d.]+z")


def unit(number: int, host: int, *parts: int) -> RecordedUnit:
    times: dict[str, Any] = {part: time * MS for part, time in zip(PARTS, parts, strict=False)}
    return RecordedUnit(number=number, host_ns=host * MS, kernels=9, **times)


UNITS = (unit(3, 70, 40, 5, 10, 0, 0, 0, 0, 9), unit(4, 90, 80, 10, 20, 0, 10), unit(5, 160, 20, 10, 10, 40))


def profile(units: tuple[RecordedUnit, ...] = UNITS) -> RankProfile:
    return RankProfile("/data/x", "torch", 0, "device", units)


def lines(text: str, kind: str) -> list[tuple[float, float]]:
    """Beginnings of the horizontal lines of a kind."""
    return [
        (float(x), float(y)) for d in re.findall(rf'<path d="([^"]*)" class="{kind}"', text)
        for x, y in re.findall(r"M([\d.-]+) ([\d.-]+)[hH]", d)
    ]  # fmt: skip


def axis(text: str) -> dict[str, float]:
    """Label of the axis → the height of its line."""
    labels = re.findall(r'class="axis"></path><text x="56" y="[\d.]+" text-anchor="end">([^<]*)<', text)
    return dict(zip(labels, [y for _, y in lines(text, "axis")], strict=True))


def test_a_scale_lays_its_ends_where_they_belong_and_the_rest_between() -> None:
    scale = Scale(10, 30, 200, 100)
    assert [scale(value) for value in (10, 20, 30)] == [200, 150, 100]
    assert scale.length(10) == 50


def test_the_parts_of_a_bar_are_as_high_as_the_axis_says() -> None:
    text = str(drawings.unit_bars(profile(), PAGE_LIMITS[0]))
    marks = axis(text)
    assert set(marks) == {"0", "50 ms", "100 ms", "150 ms"}
    high = (marks["0"] - marks["150 ms"]) / (150 * MS)
    assert high * 160 * MS == pytest.approx(214, abs=NEAR)  # all the room there is
    for part in PARTS:
        drawn = "".join(re.findall(rf'<path d="([^"]*)" class="{part}"', text))
        heights = [float(height) for _, _, _, height in BOX.findall(drawn)]
        assert heights == pytest.approx([getattr(one, part) * high for one in UNITS if getattr(one, part)], abs=NEAR)
    compute = BOX.findall("".join(re.findall(r'<path d="([^"]*)" class="compute_ns"', text)))
    assert [float(y) + float(height) for _, y, _, height in compute] == pytest.approx([marks["0"]] * 3, abs=2 * NEAR)
    assert [y for _, y in lines(text, "host")][1:] == pytest.approx(  # the first one is the legend's
        [marks["0"] - one.host_ns * high for one in UNITS], abs=NEAR
    )
    assert [y for _, y in lines(text, "median")] == pytest.approx([marks["0"] - 80 * MS * high], abs=NEAR)


def test_the_bars_share_the_width() -> None:
    units = tuple(replace(UNITS[0], number=number) for number in range(100))
    text = str(drawings.unit_bars(profile(units), PAGE_LIMITS[0]))
    begins = [float(x) for x, *_ in BOX.findall("".join(re.findall(r'<path d="([^"]*)" class="compute_ns"', text)))]
    steps = [second - first for first, second in itertools.pairwise(begins)]
    assert steps == pytest.approx([(WIDTH - 62) / 100] * 99, abs=NEAR)


def test_the_spans_of_a_lane_lie_where_the_axis_says() -> None:
    spans = (Span(0, 25 * MS, "compute", "a"), Span(50 * MS, 10 * MS, "copy", "b"))
    drawn = (Lanes(3, "median", 100 * MS, {"7": spans}),)
    text = str(lanes.device_lanes(replace(profile(), lanes=drawn), PAGE_LIMITS[0]))
    ticks = {label: float(x) for x, label in re.findall(r'<text x="([\d.]+)%"[^>]*>([^<]*)<', text)}
    assert ticks == {"0": 0, "20 ms": 20, "40 ms": 40, "60 ms": 60, "80 ms": 80}
    found = [tuple(map(int, one)) for one in re.findall(r'<rect x="(\d+)" y="0" width="(\d+)"', text)]
    each = lanes.TICKS // 100
    assert found == [(0, 25 * each), (50 * each, 10 * each)]


def test_the_dots_of_a_chart_lie_at_their_values_and_times() -> None:
    units = tuple(replace(one, requests=load) for one, load in zip(UNITS, (8, 10, 16), strict=True))
    text = str(drawings.load_charts(profile(units)))
    marks = axis(text)
    high = (marks["0"] - marks["100 ms"]) / (100 * MS)
    dots = [tuple(map(float, found)) for found in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text)]
    ends = {label: float(x) for x, label in re.findall(r'<text x="([\d.]+)" y="176"[^>]*>([^<]*)<', text)}
    assert ends == {"8": 77, "16": WIDTH - 15}
    assert dots == [
        pytest.approx((77 + (load - 8) * (WIDTH - 92) / 8, marks["0"] - one.device_ns * high), abs=NEAR)
        for one, load in zip(UNITS, (8, 10, 16), strict=True)
    ]


@pytest.mark.parametrize(
    ("loads", "more", "said"),
    [
        (
            (1, 2, 3, 4, 5, 6, 7),
            (0, 0, 0, 0, 0, 0, 0),
            ": by a linear fit, the time changes by +5.00 ms per unit of the horizontal axis; the fit explains 100 % of the variation",
        ),
        (
            (7, 6, 5, 4, 3, 2, 1),
            (0, 0, 0, 0, 0, 0, 0),
            ": by a linear fit, the time changes by −5.00 ms per unit of the horizontal axis; the fit explains 100 % of the variation",
        ),
        ((1, 2, 3, 4, 3, 2, 1), (0, 9, 1, 9, 1, 9, 0), "explains "),
        ((1, 2, 3, 4, 5, 6), (0, 0, 0, 0, 0, 0), ""),
    ],
)
def test_a_line_goes_through_the_dots_of_many_units(loads: tuple[int, ...], more: tuple[int, ...], said: str) -> None:
    units = tuple(
        replace(UNITS[0], number=at, compute_ns=(10 + 5 * at + extra) * MS, requests=load)
        for at, (load, extra) in enumerate(zip(loads, more, strict=True))
    )
    text = str(drawings.load_charts(profile(units)))
    caption = re.search("Step time by requests([^<]*)<", text)
    assert caption is not None
    assert said in caption[1]
    line = re.search(r'<line class="fit" x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"', text)
    assert (line is not None) == bool(said)
    if line is not None and "100 %" in said:  # then the dots lie on it, and its ends are two of them
        x1, y1, x2, y2 = map(float, line.groups())
        dots = [tuple(map(float, found)) for found in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text)]
        assert min(dots) == pytest.approx((x1, y1), abs=NEAR)
        assert max(dots) == pytest.approx((x2, y2), abs=NEAR)


@pytest.mark.parametrize(("after", "begin"), [((10, 90), 0.0), ((62, 43), 98.75)])
def test_the_steps_of_the_waterfall_add_up(after: tuple[int, int], begin: float) -> None:
    """``begin`` of the axis in ms is above 0 where the change is small beside the unit."""
    before = (60, 40)
    parts = tuple(
        PartChange(part, *(ms * MS for ms in ends)) for part, *ends in zip(PARTS, before, after, strict=False)
    )
    side = Side(("x",), "torch", "device", (MS,))
    first, middle, last = sum(before), sum(before) + after[0] - before[0], sum(after)
    text = str(drawings.waterfall(Comparison(side, side, (first * MS, last * MS), None, parts)))
    assert (f"The axis begins at {begin:.2f} ms" in text) == (begin > 0)
    across = (WIDTH - 90 - 260) / (max(first, middle, last) - begin)
    drawn = [tuple(map(float, one)) for one in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)]
    assert drawn == [
        pytest.approx((260 + (min(ends) - begin) * across, abs(ends[1] - ends[0]) * across), abs=NEAR)
        for ends in ((begin, first), (first, middle), (middle, last), (begin, last))
    ]
