"""The abilities of every probe: speak on the console, and read the environment that steers it."""

from __future__ import annotations


class Steerable:
    """Speaks on the console, and reads the variables that replace what the user chose."""

    STAGE = "rollout"

    def say(self, text: str) -> None:  # on stderr: others silence loggers, or show twice what is logged
        """Print ``text`` on stderr as "rlpatch: NAME, TEXT", where NAME is the recorder's.

        A closed stderr is ignored.
        """
        import contextlib
        import sys

        with contextlib.suppress(Exception):  # it may be closed
            print("rlpatch: %s, %s" % (getattr(self, "name", "a worker"), text), file=sys.stderr, flush=True)  # noqa: T201

    def setting(self, name: str, default: str, pattern: str) -> str:
        """Return the value of a setting such as "RLPATCH_WINDOW" from the environment, or ``default``.

        The variable of the stage (RLPATCH_ROLLOUT_WINDOW) comes before the general one; an empty one counts as
        unset. Raises ValueError if the value does not match the regular expression ``pattern`` as a whole.
        """
        import os
        import re

        stage = "RLPATCH_%s_" % self.STAGE.upper().replace("-", "_")
        text = os.environ.get(name.replace("RLPATCH_", stage)) or os.environ.get(name) or default
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%.60r is not valid; without it, the patch uses %s" % (name, text, default))
        return text
