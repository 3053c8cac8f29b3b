"""Folders of traces: what was recorded, whether it is whole, and what a report can read."""

from patcher.traces.folders.groups import TraceGroup, common, trace_groups
from patcher.traces.folders.states import RecordedTrace
from patcher.traces.folders.walk import NOT_RESTARTED, empty, inspect, missing, traces_to_read

__all__ = (
    "NOT_RESTARTED",
    "RecordedTrace",
    "TraceGroup",
    "common",
    "empty",
    "inspect",
    "missing",
    "trace_groups",
    "traces_to_read",
)
