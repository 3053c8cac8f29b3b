"""What the pages of the project share: one file each that needs no network, and no script to be read.

Whatever is no markup of ours goes through ``markup`` as text, and the page's own policy (CSP) lets nothing run or load
but the script and the style that are named in it by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from patcher.page.markup import Content, Markup, tag


def document(title: str, body: Content, *, language: str = "en", style: str = "", script: str = "") -> str:
    """A page with the style and the script that all have, and with ``style`` and ``script`` of its own behind them."""
    style, script = _shared("page.css") + style, _shared("page.js") + _shared("zoom.js") + script
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
    made = tag("html", head, tag("body", tag("main", body), Markup(f"<script>{script}</script>")), lang=language)
    return f"<!doctype html>\n{made}\n"


def _shared(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
