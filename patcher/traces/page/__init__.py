"""The page of a report and of a comparison: one file that needs no network, no script to be read, and stays small.

Pure functions of the values of ``model``. Whatever comes from a trace goes through ``markup`` as text; no data stands
within the script, and the page's own policy (CSP) lets nothing run or load but the script and the style that are
named in it by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from patcher.traces.model import Comparison, TraceReport
from patcher.traces.page import comparisons, reports
from patcher.traces.page.markup import Content, Markup, tag
from patcher.traces.page.tables import PAGE_LIMITS

LIMIT = 1_000_000
"""Bytes that no page reaches."""


def page(found: TraceReport | Comparison) -> str:
    """The page of a report or of a comparison, below ``LIMIT`` bytes: details give way before it is reached."""
    text = ""
    for limits in PAGE_LIMITS:
        made = comparisons.content(found, limits) if isinstance(found, Comparison) else reports.content(found, limits)
        text = _document(*made)
        if len(text.encode()) < LIMIT:
            break
    return text


def _document(title: str, body: Content) -> str:
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy.format(*digests)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    made = tag("html", head, tag("body", tag("main", body), Markup(f"<script>{script}</script>")), lang="en")
    return f"<!doctype html>\n{made}\n"
