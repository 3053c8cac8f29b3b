"""Ctrl-C and SIGTERM: remembered while work must not be cut, raised where it can be, and as before afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from patcher import interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of xdist ignore it
    yield
    for number, how in before.items():
        signal.signal(number, how)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_raised_where_the_work_looks(number: int) -> None:
    seen = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupts.deferred(terminated=True):  # noqa: PT012
        send(number)
        seen.append("went on")
        interrupts.raise_pending()
        seen.append("did not stop")
    assert seen == ["went on"]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_raised_at_the_end_of_work_that_never_looks(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.deferred(terminated=True):
        send(number)


@pytest.mark.parametrize(("outside", "inside"), [(signal.SIGINT, 0), (0, signal.SIGINT), (0, signal.SIGTERM)])
def test_work_within_other_work_leaves_it_to_that(outside: int, inside: int) -> None:
    """Also what was asked for before the inner one began; 0 asks for nothing."""
    seen = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():  # noqa: PT012
        send(outside)
        with interrupts.deferred(terminated=True):
            send(inside)
        seen.append("went on")
    assert seen == ["went on"]


def test_what_was_ignored_before_still_is() -> None:
    """As by nohup, or for a command behind which a shell put an ampersand."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with interrupts.deferred(terminated=True):
        send(signal.SIGTERM)
        interrupts.raise_pending()


def test_without_terminated_sigterm_is_as_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupts.deferred():
        assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_raised_where_it_was_switched_off_meanwhile() -> None:
    with interrupts.deferred(terminated=True):
        send(signal.SIGINT)
        interrupts.ignore()
