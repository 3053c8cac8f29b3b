"""The abilities of every probe: speak on the console, and read the environment that steers it."""

from __future__ import annotations


class Steerable:
    """Speaks on the console, and reads the variables that replace what the user chose."""

    STAGE = "rollout"

    def say(self, text: str) -> None:  # on stderr: others silence loggers, or show twice what is logged
        """Print ``text`` on stderr, behind the name of the worker."""
        import contextlib
        import sys

        with contextlib.suppress(Exception):  # it may be closed
            print("rlpatch: %s, %s" % (getattr(self, "name", "a worker"), text), file=sys.stderr, flush=True)  # noqa: T201

    def setting(self, name: str, default: str, pattern: str) -> str:
        """Return a variable of the environment, or ``default``; raise ValueError if it is unlike ``pattern``."""
        import os
        import re

        stage = "RLPATCH_%s_" % self.STAGE.upper().replace("-", "_")
        text = os.environ.get(name.replace("RLPATCH_", stage)) or os.environ.get(name) or default
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%.60r cannot be used where %s is the default" % (name, text, default))
        return text
