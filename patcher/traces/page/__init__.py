"""The page of a report and of a comparison: one file that needs no network, no script to be read, and stays small.

Pure functions of the values of ``model``. Whatever comes from a trace goes through ``patcher.page.markup`` as text;
no data stands within the script.
"""

from __future__ import annotations

from pathlib import Path

from patcher.page import document
from patcher.traces.model import Comparison, TraceReport
from patcher.traces.page import comparisons, reports
from patcher.traces.page.limits import PAGE_LIMITS

LIMIT = 1_000_000
"""Bytes that no page reaches."""


def page(data: TraceReport | Comparison) -> str:
    """Return the HTML page of a report or of a comparison, below ``LIMIT`` bytes if that can be.

    If it is too large, it is made again with fewer details, down to the last of ``PAGE_LIMITS``.
    """
    text, script = "", Path(__file__).with_name("lanes.js").read_text(encoding="utf-8")
    for limits in PAGE_LIMITS:
        content = comparisons.content(data, limits) if isinstance(data, Comparison) else reports.content(data, limits)
        text = document(*content, script=script)
        if len(text.encode()) < LIMIT:
            break
    return text
