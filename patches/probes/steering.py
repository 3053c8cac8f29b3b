"""What every recorder has in common: what it says on the console, and the environment that steers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.constants import CompileTime


class Steerable:
    """Speaks by ``LOGGER``, and reads the variables that replace what the user chose."""

    STAGE = "rollout"

    ON_DEMAND: CompileTime[bool] = False  # of `rlpatch trigger`
    LOGGER: CompileTime[str] = "rlpatch"

    request_settings: Mapping[str, Any]

    def say(self, text: str, *failure: Any) -> None:  # also where others have silenced the root logger
        import contextlib
        import logging

        with contextlib.suppress(Exception):  # a closed stderr, or a handler that fails, must not stop the run
            logger = node = logging.getLogger(self.LOGGER)
            while node and not any(h.level <= 30 and type(h) is not logging.NullHandler for h in node.handlers):
                node = node.parent if node.propagate else None  # type: ignore[assignment]
            line = "rlpatch: %s, %s" % (getattr(self, "name", "rank %s" % getattr(self, "rank", "unknown")), text)
            record = logger.makeRecord(logger.name, 40 if failure else 30, "rlpatch", 0, line, (), failure or None)
            (logger.callHandlers if node else logging.StreamHandler().handle)(record)

    def setting(self, name: str, default: str, pattern: str) -> str:
        import os
        import re

        stage = "RLPATCH_%s_" % self.STAGE.upper().replace("-", "_")
        text = os.environ.get(name.replace("RLPATCH_", stage)) or os.environ.get(name) or default
        if self.ON_DEMAND:
            text = str(self.request_settings.get(name, text))
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%.60r cannot be used where %s is the default" % (name, text, default))
        return text
