"""From a timeline to its cause: attribution → checks → diagnoses or a comparison, each a value of ``model``."""

from patcher.traces.analysis.attribution import attributed
from patcher.traces.analysis.checks import check_tables, checked
from patcher.traces.analysis.compare import compared
from patcher.traces.analysis.diagnoses import reported
from patcher.traces.analysis.pieces import join_windows
from patcher.traces.analysis.ranks import labelled
from patcher.traces.analysis.replays import CapturedSet, captured_sets

__all__ = (
    "CapturedSet",
    "attributed",
    "captured_sets",
    "check_tables",
    "checked",
    "compared",
    "join_windows",
    "labelled",
    "reported",
)
