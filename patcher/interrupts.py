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
    """Delay Ctrl-C in the block: it is raised by `raise_pending`, or at the end of a block that raised nothing else.

    Blocks may be nested. With `terminated`, SIGTERM acts like Ctrl-C. A signal that is ignored stays ignored. Outside
    of the main thread nothing changes.
    """
    global _pressed
    in_main_thread = threading.current_thread() is threading.main_thread()  # no other thread gets signals
    numbers = (signal.SIGINT, signal.SIGTERM) if terminated else (signal.SIGINT,)
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {
        number: handler for number, handler in handlers.items() if handler not in (_remember, signal.SIG_IGN, None)
    }
    if not in_main_thread or not before:
        yield
        return
    outermost = _remember not in handlers.values()
    if outermost:
        _pressed = False
    for number in before:
        signal.signal(number, _remember)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _remember:
                signal.signal(number, handler)
    if outermost and all(signal.getsignal(number) is handler for number, handler in before.items()):
        raise_pending()


def raise_pending() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed in a `deferred` block; call it where the work can still stop."""
    global _pressed
    if _pressed:
        _pressed = False
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignore Ctrl-C until the process ends; call this when all work is done but its report."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
