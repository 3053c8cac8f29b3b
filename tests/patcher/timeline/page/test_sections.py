from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.timeline import made
from patcher.page.markup import Content, joined
from patcher.timeline.model import Cause, Driver, Part, RunCause, RunTimeline, TrainingStep, Trend
from patcher.timeline.page import sections
from tests.pages import Seen

UPDATE = Cause("trainer", None, 1, "micro-batch", "update", 5.0, 1.5, "unit")
DECODE = Cause("engine", 0, None, "decode", "gen", 4.0, 0.25, "iteration")
STEP = TrainingStep(1, 0, 10, 10, "typical", "", None, None, (), (), 0, None, 0, (), 0, ())


def said(content: Content) -> str:
    """Return the text of a part of the page, with a space behind each heading, paragraph, entry and command."""
    return " ".join(Seen(re.sub("</(h[1-3]|p|pre|li)>", "\\g<0> ", joined(content))).text.split())


@pytest.fixture(scope="module")
def run() -> RunTimeline:
    return replace(made.empty(), seconds=40.0, steps=())


def test_the_head_has_the_packages_the_length_and_the_name_of_the_run(run: RunTimeline) -> None:
    begin = "rlpatch timeline verl, vllm: 9 processes, 40.0 s recorded"
    assert said(sections.head(run)).startswith(f"{begin} \N{MIDDLE DOT} ray 10.0.0.1:6379 No training step")
    unnamed = replace(run, run=replace(run.run, name="", packages=()))
    assert said(sections.head(unnamed)).startswith("rlpatch timeline ?: 9 processes, 40.0 s recorded No training step")
    assert "The recording is incomplete:no engine" in said(sections.head(replace(run, missing=("no engine",))))


def test_a_typical_step_is_the_median_without_the_warm_up(run: RunTimeline) -> None:
    steps = tuple(replace(STEP, step=at, seconds=at, warm_up=at == 1) for at in range(1, 5))
    assert "4 steps, median 3.00 s. No" in said(sections.head(replace(run, steps=steps)))
    assert "1 step, 1.00 s. No" in said(sections.head(replace(run, steps=steps[:1])))
    cause = RunCause(UPDATE.label, 9.0, 0.25, (), "", UPDATE)
    text = said(sections.head(replace(run, steps=steps, causes=(cause, replace(cause, title="another")))))
    assert text.endswith("Largest cost: trainer, rank 1: micro-batch in update (9.00 s, 25 % of step time).")


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (RunCause("title", 9.0, 0.25, (), "advice"), "title 9.00 s, 25 % of step time advice"),
        (RunCause("title", 9.0, 0.25, (), "", None, 9.0), "title 9.00 s, 25 % of step time"),
        (RunCause("title", 9.0, 0.25, (), "", UPDATE, 1.5), "title 9.00 s, 25 % of step time \N{MIDDLE DOT} a fix saves at most 1.50 s"),
        (RunCause("title", 9.0, 0.25, tuple(range(8)), ""), "title 9.00 s, 25 % of step time \N{MIDDLE DOT} in steps 0, 1, 2, 3, 4, 5, 6, 7"),
        (
            RunCause("title", 9.0, 0.25, tuple(range(10)), ""),
            "title 9.00 s, 25 % of step time \N{MIDDLE DOT} in steps 0, 1, 2, 3, 4, 5, 6, 7 and 2 more",
        ),
    ],
)  # fmt: skip
def test_a_cost_has_its_time_its_saving_its_steps_and_its_advice(cause: RunCause, text: str, run: RunTimeline) -> None:
    assert said(sections.causes(replace(run, causes=(cause,)))) == f"Largest costs, and what to do next {text}"
    assert not sections.causes(run)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"verdict": "limited", "limited_by": UPDATE}, f"+1.50 s {UPDATE.label}"),
        ({"verdict": "limited", "limited_by": UPDATE, "also": (DECODE,)}, f"+1.50 s {UPDATE.label}; +250 ms {DECODE.label}"),
        ({"beside": (Part("testing", 0.5), Part("saving", 2.0))}, "typical; not compared with other steps: testing, 500 ms; not compared with other steps: saving, 2.00 s"),
        ({"mostly": UPDATE}, f"typical step; largest activity: {UPDATE.label} (5.00 s)"),
        ({"verdict": "several", "why": "no single cause"}, "no single cause"),
        ({"verdict": "not known", "why": "no file", "missing": ("rank 1",)}, "unknown: no file; rank 1"),
        ({"verdict": "not known", "missing": ("rank 1",)}, "unknown: rank 1"),
    ],
)  # fmt: skip
def test_the_verdict_on_a_step_has_its_causes_or_reasons(fields: dict[str, object], text: str) -> None:
    assert said(sections._verdict_text(replace(STEP, **fields))) == text  # type: ignore[arg-type]


def test_a_trend_has_its_times_its_parts_and_what_grows_with_them(run: RunTimeline) -> None:
    trend = Trend(
        (2, 11), (22, 31), 5.0, 7.5, (Part("decode", 2.0), Part("adv", -0.5)), (Driver("tokens", 10, 20, 0.9),)
    )
    text = said(sections.trend(replace(run, trend=trend)))
    assert text.startswith("Trend ")
    assert [text.count(words) for words in ("5.0", "7.5", "decode +2.00 s", "adv -0.50 s", "tokens")] == [1] * 5
    assert not sections.trend(run)


def test_windows_are_commands_to_copy_with_what_was_there(run: RunTimeline) -> None:
    found = made.run(steps=2)
    decode, _, micro_batch = found.windows
    windows = (replace(decode, step=2), replace(micro_batch, what="another"))
    text = said(sections.windows(replace(run, windows=windows)))
    assert text == (
        "Suggested recording windows typical decode (step 2) 16 ms, as most are"
        f" {decode.command} to record this window in the present run, without restarting it: {decode.trigger}"
        f" another (step 4) 3.1 times as long as the median {micro_batch.command}"
        f" to record this window in the present run, without restarting it: {micro_batch.trigger}"
    )  # fmt: skip
    assert not sections.windows(run)
    (recording,) = found.recorded
    text = said(
        sections.recorded(
            replace(run, recorded=(recording, replace(recording, trace=Path("/x/b"), report="a command")))
        )
    )
    assert text == (
        "Recorded windows decode 9:12 (400 ms): rank0.json rlpatch report /data/traces/rank0.json decode 9:12 (400 ms): b a command"
    )  # fmt: skip
    assert not sections.recorded(run)
