"""From a timeline to its cause: attribution → checks → diagnoses or a comparison, each a value of ``model``."""

from patcher.traces.analysis.attribution import attributed
from patcher.traces.analysis.checks import checked, tabled
from patcher.traces.analysis.compare import compared
from patcher.traces.analysis.diagnoses import reported
from patcher.traces.analysis.pieces import joined
from patcher.traces.analysis.ranks import labelled
from patcher.traces.analysis.replays import CapturedSet, captured

__all__ = ("CapturedSet", "attributed", "captured", "checked", "compared", "joined", "labelled", "reported", "tabled")
