"""The whole page: what it says, that no name can become markup or script, its size, and a real browser's word."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures import browser
from fixtures.timeline import made
from fixtures.timeline.small import small
from patcher.timeline import files, page, runs
from patcher.timeline.join import join
from patcher.timeline.model import Lane, LaneSpan, RunTimeline
from patcher.timeline.page.picture import TICKS
from patcher.timeline.page.rows import HUES
from tests.alarms import at_most
from tests.matrix import MATRIX, examples
from tests.pages import HOSTILE, Seen, shape

LANGUAGES = ("en", "zh")


def in_language(language: str, found: RunTimeline) -> str:
    with mock.patch.dict(os.environ, RLPATCH_LANG=language):
        return page.page(found)


def strokes(text: str, title: str) -> list[tuple[int, int, float]]:
    """The bars of a path with this title, in ticks, and how far down they are."""
    found = []
    for d in re.findall(rf'<path d="([^"]*)"[^>]*><title>{re.escape(title)}</title>', text):
        at, y = map(float, re.match(r"M([\d.]+) ([\d.]+)", d).groups())  # type: ignore[union-attr]
        for length, gap in re.findall(r"h(\d+)(?:m(\d+) 0)?", d):
            found.append((int(at), int(at) + int(length), y))
            at += int(length) + int(gap or 0)
    return found


def data(text: str) -> dict[str, list[object]]:
    (found,) = re.findall(r'<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    return dict(json.loads(found))


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=examples(25))
@given(name=st.text(max_size=40).filter(lambda name: not any(re.search(pattern, name) for _, pattern in HUES)))
@example(name=HOSTILE[0])
@example(name=HOSTILE[1])
@example(name=HOSTILE[2])
@example(name=HOSTILE[3])
@example(name=HOSTILE[10])
def test_a_name_changes_no_element_and_no_attribute(language: str, name: str) -> None:
    """A page of any names has the elements of one of harmless names, one for one, and leads nowhere.

    But for names that choose another colour.
    """
    text = in_language(language, made.run(name=f"~{name}"))
    seen = Seen(text)
    assert (seen.tags, seen.attributes) == shape(in_language(language, made.run(name="~")))
    assert not any(one.startswith("on") or one in ("style", "src") for _, one in seen.attributes)
    assert all(
        re.fullmatch(r"#step-\d+|file:///data/traces/rank0.json", one) for one in re.findall(r'href="([^"]*)"', text)
    )
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)


def test_a_trace_is_a_link_to_a_file_whatever_its_name_is() -> None:
    found = made.run(steps=1)
    (window,) = found.recorded
    text = page.page(replace(found, recorded=(replace(window, trace=Path('/d/java script:"x"><b>.json')),)))
    assert 'href="file:///d/java%20script%3A%22x%22%3E%3Cb%3E.json"' in text


def test_only_what_the_policy_names_runs() -> None:
    text = page.page(made.run())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#x27;", "'").split("; "))
    ((style,), (script,)) = (re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in ("style", "script"))
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (style, script)]
    assert rules == {
        "default-src": "'none'", "base-uri": "'none'", "form-action": "'none'",
        "style-src": f"'sha256-{digests[0]}'", "script-src": f"'sha256-{digests[1]}'",
    }  # fmt: skip
    assert not re.search(r"https?://|url\((?!#)|@import", text.replace("http://www.w3.org/2000/svg", ""))


# ---------------------------------------------------------------- what it says


def test_what_it_says_first() -> None:
    """Who is missing, one sentence, the causes with what to do next, then the picture, then the steps."""
    text = page.page(made.run())
    order = [
        "engine, replica 1, rank 1: no file", "6 steps, median 8.87 s. Largest cost: trainer, rank 1",
        "18.4 s, 31 % of step time · in steps ", "lower poll_interval", "<h2>The run</h2>",
    ]  # fmt: skip
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "Largest costs, and what to do next", "The run", "Steps", "Upper bounds of the savings", "Busy and idle time, and what roles wait for",
        "Time of each part of the weight sync", "Imbalance", "Suggested recording windows", "Recorded windows", "Clocks", "Notes",
    ]  # fmt: skip


def test_the_steps_and_their_places() -> None:
    text = page.page(made.run())
    assert [one[0] for one in data(text)["steps"]] == [1, 2, 3, 4, 5, 6]  # type: ignore[index]
    for step in range(1, 7):
        assert text.count(f'id="step-{step}"') == 1
        assert f'href="#step-{step}"' in text
    rows = re.findall(r"<tr>(.*?)</tr>", text.split("<h2>Steps</h2>")[1].split("</table>")[0])
    said = [Seen(row).text for row in rows]
    assert "typical step; largest activity: trainer: micro-batch in update_actor (2.60 s) (warm-up)" in said[1]
    assert "+1.50 s engine, replica 0: micro-batch in gen" in said[2]
    assert "unknown: engine, replica 1 has no file" in said[5]
    assert "<strong>" in rows[2]
    assert "<strong>" not in rows[1] + rows[5]


def test_a_step_that_was_slower_in_many_parts_is_not_called_unknown() -> None:
    found = made.run()
    steps = (replace(found.steps[1], verdict="several", limited_by=None, why="no single cause"), *found.steps[2:])
    text = page.page(replace(found, steps=steps))
    assert "no single cause" in Seen(text).text
    assert "unknown" not in Seen(page.page(replace(found, steps=steps[:1], missing=()))).text


def test_what_stands_out_nowhere_is_said_calmly() -> None:
    found = made.run(steps=3)
    text = Seen(page.page(replace(found, causes=(), missing=()))).text
    assert "3 steps, median 8.23 s. No step or cause stands out." in text
    assert "The recording is incomplete" not in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_run_that_has_just_begun_is_a_page_too(language: str) -> None:
    shape(in_language(language, made.empty()))
    shape(in_language(language, replace(made.run(steps=0), lanes=())))
    shape(in_language(language, replace(made.run(steps=2), requests=(), recorded=(), windows=(), steps=())))


def test_both_languages_say_the_same_of_the_same() -> None:
    english, chinese = (in_language(one, made.run()) for one in LANGUAGES)
    assert shape(english) == shape(chinese)
    assert '<html lang="zh">' in chinese
    assert not set(re.findall(r"<h2>(.*?)</h2>", english)) & set(re.findall(r"<h2>(.*?)</h2>", chinese))


def test_what_was_found_in_a_run_is_in_the_language_of_its_page(tmp_path: Path) -> None:
    small(tmp_path, slow={4: 500}, ranks=1, world=2)
    ((run, processes),) = runs.survey(files.paths(tmp_path)).runs
    found = join(run, processes)
    texts = [one.title for one in found.causes] + [one.advice for one in found.causes]
    texts += [*found.missing, *(one.why for one in found.windows), *(step.why for step in found.steps)]
    texts = [text for text in texts if text]
    assert len(texts) > 5
    assert [text for text in texts if html.escape(text) in in_language("zh", found)] == []


# ---------------------------------------------------------------- the picture


def test_bars_lie_where_they_were() -> None:
    spans = (LaneSpan(0, 4, "phase", "gen"), LaneSpan(5, 10, "phase", "adv"), LaneSpan(10, 20, "phase", "gen"))
    lane = Lane("driver", 0, None, None, "a", 1, "c", spans, seen=(0, 20))
    text = page.page(replace(made.empty(), seconds=20.0, lanes=(lane,)))
    assert [one[:2] for one in strokes(text, "gen · driver")] == [(0, TICKS // 5), (TICKS // 2, TICKS)]
    assert [one[:2] for one in strokes(text, "adv · driver")] == [(TICKS // 4, TICKS // 2)]


def test_the_critical_path_goes_through_the_rows_of_those_that_were_waited_for() -> None:
    """All its seconds are drawn, and each below the bars of its row."""
    found = made.run()
    text = page.page(found)
    start = found.steps[0].start
    ticks = TICKS / (found.seconds - start)
    drawn = strokes(text, "critical path: the step waited for this process") + strokes(
        text, "critical path: time without any record"
    )
    late = [one for step in found.steps for one in step.critical_path if one.role == "trainer" and one.rank is not None]
    rank = {at: strokes(text, f"update_actor · trainer, rank {at}")[0][2] for at in (0, 1)}
    for one in late:
        (y,) = {
            y for a, b, y in drawn if a <= (one.start - start) * ticks + 2 and b >= (one.end - start) * ticks - 2 and y > rank[0]
        }  # fmt: skip
        assert (y > rank[1]) == (one.rank == 1)
    assert len(re.findall(r"M\d+ \d+V\d+", text)) > len(found.steps) * 6


def test_the_start_of_a_run_leaves_room_for_its_steps() -> None:
    found = made.run()
    moved = replace(found, seconds=found.seconds + 3600)
    assert data(page.page(moved))["seconds"] == pytest.approx(1.02 * found.seconds)
    assert "before the first step and after the last" in page.page(moved)


def test_what_is_drawn_as_one_is_said() -> None:
    text = Seen(page.page(made.run(steps=1, ranks=12))).text
    assert re.search(r"1[01] processes", text)
    lane = replace(made.run(steps=1).lanes[0], left_out=7)
    assert "7 short spans" in page.page(replace(made.run(steps=1), lanes=(lane,)))


# ---------------------------------------------------------------- its size


def test_a_run_that_is_too_much_is_drawn_more_coarsely(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.run(steps=8, units=200)
    whole = page.page(found)
    monkeypatch.setattr(page, "LIMIT", len(whole.encode()))
    text = page.page(found)
    assert len(text.encode()) < page.LIMIT
    assert re.search(r"[\d,]+ bars shorter than .* are merged with their neighbours", text)


def test_of_very_many_steps_the_newest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_STEPS", 3)
    text = page.page(made.run())
    assert "this page shows the newest 3 of 6 steps" in text
    assert re.findall(r'id="step-(\d)"', text) == ["4", "5", "6"]


SPANS = {
    "nested": lambda at, count, end: (at * 1e-6, end - at * 1e-6),
    "head to head": lambda at, count, end: (end * at / count, end * (at + 1) / count),
}


@pytest.mark.parametrize("form", SPANS)
def test_names_that_are_too_many_are_drawn_as_one(form: str) -> None:
    found, count = made.run(), 30_000
    lane, end = found.lanes[0], found.steps[-1].end
    spans = [LaneSpan(*SPANS[form](at, count, end), "phase", f"a phase with the number {at}") for at in range(count)]
    found = replace(found, lanes=(replace(lane, spans=tuple(spans)), *found.lanes[1:]))
    with at_most(60):
        text = page.page(found)
    assert len(text.encode()) < page.LIMIT
    assert re.search(r"spans with [\d,]+ different names are drawn under a single name: other spans", text)
    shape(text)


@pytest.mark.parametrize(("most", "said"), [(3, []), (2, ["2 of 3"]), (1, ["1 of 3"])])
def test_a_list_is_cut_if_it_has_more_entries_than_are_shown(
    most: int, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_LISTED", most)
    found = replace(made.run(steps=0), clocks=(), recorded=())
    short = page._shortened(found)
    assert len(short.windows) == most
    assert [re.findall(r"\d of \d", text) for text in short.missing] == [*([text] for text in said), []]


@pytest.mark.parametrize("field", ["missing", "notes", "recorded", "windows"])
def test_of_a_list_that_is_too_long_the_first_are_shown(field: str) -> None:
    found = made.run()
    entries = getattr(found, field) or ("something is missing",)
    more: dict[str, Any] = {field: (*entries, *entries * 10_000)}
    found = replace(found, **more)
    text = page.page(found)
    assert len(text.encode()) < page.LIMIT
    assert re.search(r"only 200 of [\d,]+ .*rlpatch timeline --json", text)


def test_steps_are_left_out_where_nothing_else_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made.run(steps=40)
    monkeypatch.setattr(page, "MOST_STEPS", 32)
    monkeypatch.setattr(page, "LIMIT", 60_000)
    assert re.search(r"newest \d of 40", page.page(found))


@pytest.mark.matrix
def test_a_hundred_steps_of_64_ranks_are_below_2_mb() -> None:
    found = made.run(steps=100, ranks=64, replicas=8, units=16, prompts=256)
    assert sum(len(lane.spans) for lane in found.lanes) > 300_000
    text = page.page(found)
    assert len(text.encode()) < 2_000_000
    shape(text)


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Page]:
    found = browser.program()
    if found is None:
        pytest.skip("no browser: install chromium, or name one with RLPATCH_BROWSER")
    with browser.tab(found) as opened:
        yield opened


def opened(
    tab: browser.Page, folder: Path, found: RunTimeline, width: int = 1280, *, dark: bool = False, language: str = "en"
) -> Path:
    tab.said.clear()
    tab.requests.clear()
    file = folder / "page.html"
    file.write_text(in_language(language, found).encode("utf-8", "replace").decode(), encoding="utf-8")
    tab.open(file, width, dark=dark)
    return file


LABELS = "[...document.querySelectorAll('.labels text')].map(one => one.textContent)"
HEADS = "[...document.querySelectorAll('.head:not(.away) .strong')].map(one => one.textContent)"
PLOT = "document.querySelector('.plot')"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def heads(tab: browser.Page) -> list[str]:
    """The heads of the steps that are seen, once the browser has drawn."""
    tab.call("Runtime.evaluate", expression=FRAMES, awaitPromise=True)
    return [one for one in tab.value(HEADS) if one]


@pytest.mark.parametrize(
    ("width", "dark", "language"), [(400, True, "en"), (400, False, "zh"), (800, False, "en"), (1400, True, "zh")]
)
def test_in_a_browser(tab: browser.Page, tmp_path: Path, width: int, dark: bool, language: str) -> None:
    """No error, nothing loaded, nothing of a name runs, and no scrolling sideways but within a table."""
    file = opened(tab, tmp_path, made.run(name="".join(HOSTILE)), width, dark=dark, language=language)
    assert tab.value("document.documentElement.scrollWidth") <= width
    colors = tab.value("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    assert (sum(map(int, re.findall(r"\d+", colors[0]))) > sum(map(int, re.findall(r"\d+", colors[1])))) == dark
    painted = "[...document.querySelectorAll('.bars path')].map(one => getComputedStyle(one).stroke)"
    assert len(set(tab.value(painted))) > 10
    tab.screenshot(tmp_path / "page.png")
    assert tab.said == []
    assert tab.requests == [file.as_uri()]


def test_all_is_drawn_within_the_picture_and_labels_have_room(tab: browser.Page, tmp_path: Path) -> None:
    opened(tab, tmp_path, made.run(), 1400)
    texts = tab.value(LABELS)
    assert "update_actor" in texts
    assert any("…" in text for text in texts)  # cut in the middle where there is less room
    over = f"""(() => {{ const box = {PLOT}.getBoundingClientRect();
      return [...document.querySelectorAll('.labels text')].filter(one => one.getBoundingClientRect().right > box.right + 1).length; }})()"""
    assert tab.value(over) == 0


def test_zoom_by_keys_buttons_wheel_and_the_choice_of_a_step(tab: browser.Page, tmp_path: Path) -> None:
    opened(tab, tmp_path, made.run(), 1400)
    whole = heads(tab)
    assert len(whole) == 6
    tab.value(f"{PLOT}.focus()")

    def press(key: str) -> None:
        tab.value(f"{PLOT}.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }}))")

    press("n")
    assert heads(tab)[0].startswith("step 1")
    press("n")
    assert [one for one in heads(tab) if "·" in one] == ["step 2 · 8.87 s"]
    press("p")
    assert [one for one in heads(tab) if "·" in one] == ["step 1 · 7.65 s"]
    press("0")
    assert heads(tab) == whole
    press("+")
    assert 0 < len(heads(tab)) < 6
    tab.value("document.querySelector('[data-do=whole]').click()")
    assert heads(tab) == whole
    wheel = "new WheelEvent('wheel', { deltaY: -900, clientX: box.right - 5, clientY: box.top + 5, cancelable: true })"
    for _ in range(5):
        tab.value(f"{{ const box = {PLOT}.getBoundingClientRect(); {PLOT}.dispatchEvent({wheel}); }}")
    assert heads(tab) == ["step 6 · 9.81 s"]
    tab.value(
        "{ const box = document.querySelector('select'); box.value = '4'; box.dispatchEvent(new Event('change')); }"
    )
    assert [one for one in heads(tab) if "·" in one] == ["step 4 · 10.7 s"]
    tab.value("""document.querySelector('td a[href="#step-3"]').click()""")
    assert [one for one in heads(tab) if "·" in one] == ["step 3 · 7.58 s"]
    assert tab.value("document.querySelector('select').value") == "3"
    assert tab.said == []


def test_the_wheel_scrolls_the_page_until_the_picture_is_clicked(tab: browser.Page, tmp_path: Path) -> None:
    opened(tab, tmp_path, made.run(), 1400)
    wheel = f"(() => {{ const event = new WheelEvent('wheel', {{ deltaY: -90, cancelable: true }}); {PLOT}.dispatchEvent(event); return event.defaultPrevented; }})()"
    assert not tab.value(wheel)
    tab.value(f"{PLOT}.focus()")
    assert tab.value(wheel)


def test_drag_and_point(tab: browser.Page, tmp_path: Path) -> None:
    opened(tab, tmp_path, made.run(), 1400)
    left = tab.value(f"{PLOT}.scrollIntoView(), {PLOT}.getBoundingClientRect().left")
    y = tab.value("document.querySelector('.names text:nth-of-type(1)').getBoundingClientRect().top")

    def mouse(kind: str, x: float, **more: object) -> None:
        tab.call("Input.dispatchMouseEvent", type=kind, x=left + x, y=y + 6, **more)

    mouse("mouseMoved", 20)
    about = tab.value("document.querySelector('.about').textContent")
    assert "gen · driver: 2." in about
    assert "step 1 · 7.65 s: typical" in about
    assert "the step waited for: " in about
    tab.value("document.querySelector('[data-do=closer]').click()")
    before = heads(tab)
    mouse("mousePressed", 20, button="left", buttons=1)
    mouse("mouseMoved", 900, button="left", buttons=1)
    mouse("mouseReleased", 900, button="left")
    assert heads(tab) != before
    assert tab.said == []


def test_pinch(tab: browser.Page, tmp_path: Path) -> None:
    """Two fingers zoom the picture, not the page."""
    tab.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        opened(tab, tmp_path, made.run(), 400)
        tab.value(f"{PLOT}.scrollIntoView()")
        for kind, *places in [
            ("touchStart", 200),
            ("touchStart", 200, 260),
            ("touchMove", 150, 310),
            ("touchMove", 120, 340),
        ]:
            points = [{"x": x, "y": 100, "id": at} for at, x in enumerate(places)]
            tab.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert "step 4 · 10.7 s" in heads(tab)
        assert tab.value("visualViewport.scale") == 1
    finally:
        tab.call("Emulation.setTouchEmulationEnabled", enabled=False)


@MATRIX
def test_without_a_script_all_of_it_is_readable(tab: browser.Page, tmp_path: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened(tab, tmp_path, made.run(), 800)
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
        assert len([one for one in tab.value(HEADS) if one.startswith("step ")]) == 6
        assert tab.value("getComputedStyle(document.querySelector('.controls')).display") == "none"
        assert tab.value("document.documentElement.scrollWidth") <= 800
        assert len(tab.value("[...document.querySelectorAll('.times text')].map(one => one.textContent)")) > 3
        assert "update_actor" in tab.value(LABELS)
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
