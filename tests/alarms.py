"""Time limit for tests: what waits for ever fails."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail what has not ended by then, in the main thread."""

    def hangs(*_: object) -> None:
        raise AssertionError(f"it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
