"""Ctrl-C where work must not be cut anywhere: it is remembered, and raised where the work can be stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_asked = False


def _remember(_number: int, _frame: object) -> None:
    global _asked
    _asked = True


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Raise KeyboardInterrupt only from `look`, and at the end if nothing else was raised; may be nested."""
    import signal
    import threading

    global _asked
    ours = threading.current_thread() is threading.main_thread()  # no other one gets signals
    before = signal.getsignal(signal.SIGINT)
    if not ours or before in (_remember, signal.SIG_IGN):
        yield
        return
    _asked = False
    signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _remember:
            signal.signal(signal.SIGINT, before)
    if signal.getsignal(signal.SIGINT) is before:
        look()


def look() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed meanwhile: here everything can still go back."""
    global _asked
    if _asked:
        _asked = False
        raise KeyboardInterrupt


def ignore() -> None:
    """Let Ctrl-C stop nothing any more, until the process ends: the work is done, and only its report is left."""
    import signal
    import threading

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
