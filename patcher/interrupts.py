"""Ctrl-C where work must not be cut anywhere: it is remembered, and raised where the work can be stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_pressed = False


def _remember(_number: int, _frame: object) -> None:
    global _pressed
    _pressed = True


@contextlib.contextmanager
def deferred(*, terminated: bool = False) -> Iterator[None]:
    """Delay Ctrl-C in the block: KeyboardInterrupt comes only from `look`, or at the end if nothing else was raised.

    Blocks may be nested. With `terminated`, SIGTERM acts like Ctrl-C. A signal that is ignored stays so. Outside of the
    main thread nothing changes.
    """
    global _pressed
    ours = threading.current_thread() is threading.main_thread()  # no other one gets signals
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)[: 2 if terminated else 1]}
    before = {number: how for number, how in found.items() if how not in (_remember, signal.SIG_IGN, None)}
    if not ours or not before:
        yield
        return
    outermost = _remember not in found.values()
    if outermost:
        _pressed = False
    for number in before:
        signal.signal(number, _remember)
    try:
        yield
    finally:
        for number, how in before.items():
            if signal.getsignal(number) is _remember:
                signal.signal(number, how)
    if outermost and all(signal.getsignal(number) is how for number, how in before.items()):
        look()


def look() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed in a `deferred` block; call it where the work can still stop."""
    global _pressed
    if _pressed:
        _pressed = False
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignore Ctrl-C until the process ends; call this when all work is done but its report."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
