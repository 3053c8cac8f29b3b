"""The progress of reading: what the code that reads calls, and what shows it. Nothing here knows a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[int], None]
"""Is called with the number of bytes that were read since the last time, from any thread."""

Display = Callable[[str, int], AbstractContextManager[Progress]]
"""Shows reading: what is done, and how many bytes that takes."""


def ignore(_count: int) -> None:
    """Ignore a number of bytes read."""


@contextmanager
def silent(_what: str, _total: int) -> Iterator[Progress]:
    """Yield a progress function that shows nothing."""
    yield ignore


@contextmanager
def fixed_total(progress: Progress, total: int) -> Iterator[Progress]:
    """Yield a progress function that reports to `progress` as `total` bytes in all, however many are read."""
    remaining = total

    def counted(count: int) -> None:
        nonlocal remaining
        remaining -= (part := min(count, remaining))
        progress(part)

    try:
        yield counted
    finally:
        progress(remaining)
