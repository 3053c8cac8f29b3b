from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from patcher.timeline.model import ROLES, Cause
from patcher.timeline.page import texts
from tests.pages import fields

SOURCES = "".join(file.read_text() for file in Path(texts.__file__).parent.glob("*.py") if file.name != "texts.py")


@pytest.mark.parametrize("key", texts.TEXTS)
def test_each_text_is_there_in_both_languages_with_the_same_values(key: str) -> None:
    english, chinese = texts.TEXTS[key]
    assert english
    assert chinese
    assert fields(english) == fields(chinese)


def test_no_text_is_left_over_and_none_is_missing() -> None:
    said = set(re.findall(r"say\(\s*[\"']([^\"']+)[\"']", SOURCES))
    assert said <= {*texts.TEXTS}
    everything = SOURCES + inspect.getsource(texts.who) + inspect.getsource(texts.cause)
    keys = {key for key in texts.TEXTS if not key.startswith("role ")}
    assert {key for key in keys if f'"{key}"' not in everything and f"'{key}'" not in everything} == set()


def test_every_role_has_a_name() -> None:
    assert {f"role {role}" for role in ROLES} <= {*texts.TEXTS}


@pytest.mark.parametrize(
    ("language", "found", "text"),
    [
        ("en", Cause("trainer", None, 1, "micro-batch", "update_actor", 1, 1), "trainer, rank 1: micro-batch in update_actor"),
        ("en", Cause("driver", None, None, "adv", "adv", 1, 1), "driver: adv"),
        ("en", Cause("driver", None, None, "between", "step", 1, 1), "driver: between"),
        ("zh", Cause("engine", 0, None, "decode", "gen", 1, 1), "引擎 副本 0：decode（gen 阶段）"),
        ("zh", Cause("newer", None, None, "x", "", 1, 1), "newer：x"),
    ],
)  # fmt: skip
def test_a_cause(language: str, found: Cause, text: str) -> None:
    assert texts.cause(texts.saying(language), found) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.0123, "12.3 ms"), (0.9994, "1.00 s"), (1.5, "1.50 s"), (12.34, "12.3 s"), (250, "250 s"), (7260, "2 h 01 min")],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert texts.seconds(value) == text


def test_a_language_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        texts.saying("la")
