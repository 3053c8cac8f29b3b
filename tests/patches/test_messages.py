"""Messages of a recorder: seen once on stderr, whatever others have done to the loggers."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from tests.patches.rollout_workers import V1Worker, rollout
from tests.patches.standin import Profiler
from tests.patches.training_stages import Stage

pytestmark = pytest.mark.usefixtures("stand_in_torch")

LOGGERS = ("", "vllm", "vllm.rlpatch", "verl", "verl.rlpatch")
DONE = r"rlpatch: \w+_dp0_rank0_\d+, decode 2:4 of rollout 0: complete, recorded 2 of 2 decode steps with 0 .*"


def handler(level: int) -> tuple[logging.Handler, io.StringIO]:
    stream = io.StringIO()
    made = logging.StreamHandler(stream)
    made.setLevel(level)
    return made, stream


def nobody() -> None:
    """No handler anywhere: Python's last resort."""


def deaf_root() -> None:
    """As model_hosting_container_standards leaves it, which vLLM requires."""
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger().addHandler(handler(logging.ERROR)[0])


def disabled() -> None:
    """What logging.config does to the loggers that it was not told of."""
    logging.getLogger("vllm.rlpatch").disabled = True


def switched_off() -> None:
    logging.disable(logging.CRITICAL)


def cut_off() -> None:
    """A handler that hears everything, but not from us."""
    logging.getLogger("vllm").propagate = False
    logging.getLogger().addHandler(handler(logging.DEBUG)[0])


SILENCED = (nobody, deaf_root, disabled, switched_off, cut_off)


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Loggers as in a new process, and afterwards as they were; what pytest listens with comes later, see alone()."""
    known = [logging.getLogger(name) for name in LOGGERS]
    before = [(one.handlers[:], one.level, one.propagate, one.disabled) for one in known]
    for one in known[1:]:
        one.handlers, one.propagate, one.disabled = [], True, False
        one.setLevel(logging.NOTSET)
    yield
    logging.disable(logging.NOTSET)
    for one, (handlers, level, propagate, off) in zip(known, before, strict=True):
        one.handlers, one.propagate, one.disabled = handlers, propagate, off
        one.setLevel(level)


def alone() -> None:
    logging.getLogger().handlers.clear()


def speak() -> None:
    rollout(V1Worker(WINDOW="2:4"), 5)


@pytest.mark.parametrize("silence", SILENCED)
def test_a_message_reaches_stderr_once(silence: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    alone()
    silence()
    for _ in range(2):
        speak()
        assert re.fullmatch(DONE, capsys.readouterr().err.strip())


def test_an_error_is_shown_once_where_errors_are_heard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone()
    deaf, stream = handler(logging.ERROR)
    logging.getLogger().addHandler(deaf)
    worker = V1Worker(WINDOW="2:4")
    monkeypatch.setattr(Profiler, "stop", lambda _: 1 / 0)
    rollout(worker, 5)
    said = capsys.readouterr().err + stream.getvalue()
    assert said.count("rollout: recording failed, the run goes on") == 1
    assert said.count("Traceback") == 1


def test_a_recorder_that_could_not_be_made_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone()
    monkeypatch.setenv("RLPATCH_WINDOW", "5")
    worker = V1Worker(rank=3)
    rollout(worker, 1)
    assert worker._rlpatch_stage_probe is None
    said = capsys.readouterr().err
    assert re.search(r"rlpatch: a worker, rollout: recording failed, the run goes on: ValueError", said)
    assert "RLPATCH_WINDOW='5' is not valid; without it, the patch uses 30:60" in said


def test_a_recorder_without_a_rank_reports_its_failure_too(capsys: pytest.CaptureFixture[str]) -> None:
    alone()
    worker = V1Worker()
    del worker.vllm_config, worker.rank
    rollout(worker, 1)
    assert worker._rlpatch_stage_probe is None
    assert "rlpatch: a worker, rollout: recording failed, the run goes on" in capsys.readouterr().err


def test_a_training_stage_names_itself_and_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    alone()
    deaf_root()
    Stage(WINDOW="1:3").infer()
    assert re.search(
        r"_step1_rank0_\d+, update-policy, actor, micro-batch 1:3 of training step 1: ", capsys.readouterr().err
    )
