"""The abilities of every probe: speak on the console, and read the environment that steers it."""

from __future__ import annotations

from patches.probes.constants import CompileTime


class Steerable:
    """Speaks on the console, and reads the variables that replace what the user chose."""

    STAGE = "rollout"

    LOGGER: CompileTime[str] = "rlpatch"

    def say(self, text: str, level: int = 30) -> None:  # of a warning
        import contextlib
        import logging
        import sys

        with contextlib.suppress(Exception):  # a closed stderr, or a handler that fails, must not stop the run
            line = "rlpatch: %s, %s" % (getattr(self, "name", "rank %s" % getattr(self, "rank", "unknown")), text)
            logger = logging.getLogger(self.LOGGER)
            if logger.hasHandlers() and logger.isEnabledFor(level):
                logger.log(level, "%s", line)
            else:  # others have silenced it
                print(line, file=sys.stderr, flush=True)  # noqa: T201

    def setting(self, name: str, default: str, pattern: str) -> str:
        import os
        import re

        stage = "RLPATCH_%s_" % self.STAGE.upper().replace("-", "_")
        text = os.environ.get(name.replace("RLPATCH_", stage)) or os.environ.get(name) or default
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%.60r cannot be used where %s is the default" % (name, text, default))
        return text
