"""Asks a Python that has Hydra what the starts of an application will be configured by (see ``compose``)."""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from patcher.launches import Argument, Variables

# As in ``compose``, which is not imported: it is for another Python.
_TOKENS = re.compile(r"rlpatch_run_time_\d+")
_LIMIT_S = 60.0
_RUN = "import sys; __file__ = 'compose.py'; exec(compile(sys.argv.pop(), __file__, 'exec'))"


class Start(NamedTuple):
    """A start of the application: the words behind the program, and the folder and name of its configuration.

    A ``folder`` that is None is not known; ``base`` is what an option for another one is relative to. ``perhaps`` are
    words that the start has on some way through the script, ``fixed`` is a configuration that the user names. With a
    ``reason`` nothing is known of the start.
    """

    where: str
    sure: bool
    words: tuple[Argument, ...]
    variables: Variables
    folder: Path | None = None
    name: str | None = None
    base: Path | None = None
    perhaps: tuple[str, ...] = ()
    fixed: bool = False
    reason: str = ""


def unknown(value: object) -> bool:
    """Whether a value, or a part of it, is only known when the run is started."""
    return bool(_TOKENS.search(str(value)))


def typed(value: object) -> str:
    """A value as one types it in an override, with … for what is not known."""
    text = "null" if value is None else str(value).replace(", ", ",") if isinstance(value, list) else str(value)
    return _TOKENS.sub("…", text)


class Child:
    """A running ``compose`` of one Python; it ends with us, or when it does not answer in time."""

    def __init__(self, python: str, limit: float = _LIMIT_S) -> None:
        self._python, self._limit, self.reason = python, limit, ""
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, object]) -> list[Any] | None:
        """The answers to a request; None if there are none, with a ``reason`` unless this Python has no Hydra."""
        if self.reason:
            return None
        try:
            # It may have been started somewhere else, in a folder that is gone.
            answers: list[Any] = json.loads(self._line(json.dumps({**request, "here": str(Path.cwd())}) + "\n"))
        except (OSError, ValueError) as error:
            started = self._process is not None or not isinstance(error, OSError)
            self.reason = f"{self._python} {'gives no answer' if started else f'does not start: {error}'}"
            self.close()
            return None
        return answers or None

    def _line(self, line: str) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                [self._python, "-c", _RUN, (pkgutil.get_data(__package__, "compose.py") or b"").decode()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
                errors="surrogateescape", start_new_session=True,
            )  # fmt: skip
        timer = threading.Timer(self._limit, os.killpg, (self._process.pid, signal.SIGKILL))
        timer.start()
        try:
            if self._process.stdin and self._process.stdout:
                self._process.stdin.write(line)
                self._process.stdin.flush()
                return self._process.stdout.readline()
            return ""
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the child, if it runs, and what it has started: that may hold its output open."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@cache
def child(python: str) -> Child:
    """The child of a Python, one for all questions of this process: to start it takes longer than to compose."""
    found = Child(python)
    atexit.register(found.close)
    return found


def composed(pythons: Iterable[str], request: Mapping[str, object], extra: str) -> tuple[list[Any], Child] | str:
    """The answers of the first of ``pythons``, or of the one that runs us, that has Hydra, and the child that gave it.

    Where there are none, the reason; ``extra`` is what brings Hydra along with rlpatch.
    """
    reason = f"no hydra-core: --python EXE, or pip install 'rlpatch[{extra}]'"
    for python in dict.fromkeys((*pythons, sys.executable)):
        answers = child(python).ask(request)
        if answers is not None:
            return answers, child(python)
        reason = child(python).reason or reason
    return reason


def starts(
    found: Sequence[Start],
    keys: Iterable[str],
    root: Path | None,
    home: str,
    defaults: Iterable[str],
    *,
    whole: bool = True,
) -> dict[str, object]:
    """The request for what starts say of ``keys``.

    ``root`` is the folder of the project, None if it is not here; ``home`` the folder in it that holds what its
    configurations are made of, and is searched last; ``defaults`` are those of them that count where no other is known,
    ``whole`` says that they name every key that is read.
    """
    common = {"keys": list(keys), "root": root and str(root.absolute()), "home": home, "defaults": list(defaults)}
    return {"starts": [_job(start) | common | {"whole": whole} for start in found]}


def _job(start: Start) -> dict[str, object]:
    environ, opened = {}, []
    for name, found in start.variables.items():
        ways = {(one.present and one.exported, one.text) for one in found}
        present, text = next(iter(ways), (False, None))
        if len(ways) > 1 or (present and text is None):
            opened.append(name)
        elif present:
            environ[name] = text
    return {
        "words": [(word, getattr(word, "where", start.where)) for word in start.words],
        "perhaps": [(word, getattr(word, "where", start.where)) for word in start.perhaps],
        "environ": environ,
        "open": None if "*" in opened or not start.variables else opened,
        "folder": start.folder and str(start.folder.absolute()),
        "name": start.name,
        "base": start.base and str(start.base.absolute()),
        "fixed": start.fixed,
        "reason": start.reason,
    }
