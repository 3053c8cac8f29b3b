"""Switches of other profilers beside vllm-ascend: its own, msMonitor, and those of every process on NPUs."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import (
    DAEMON,
    DAEMON_OPTION,
    DAEMON_STEPPED,
    ENGINE_DEPRECATED,
    ENGINE_IGNORED,
    ENGINE_OPTION,
    ENGINE_VARIABLE,
    KINETO_DAEMON,
    OUTSIDE,
)

SWITCHES: tuple[Switch, ...] = (
    ENGINE_VARIABLE._replace(releases="<0.14.0rc0"),
    ENGINE_DEPRECATED._replace(releases=">=0.14.0rc0,<0.16.0rc0"),
    ENGINE_IGNORED._replace(releases=">=0.16.0rc0"),
    ENGINE_OPTION._replace(releases=">=0.14.0rc0"),
    DAEMON_STEPPED._replace(releases=">=0.11.0rc0,<0.27.0rc0"),
    DAEMON._replace(releases="<0.11.0rc0"),
    DAEMON._replace(releases=">=0.27.0rc0"),
    KINETO_DAEMON,
    DAEMON_OPTION,
    *OUTSIDE,
)
