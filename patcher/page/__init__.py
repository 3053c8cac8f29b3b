"""The common part of the project's pages: one file each that needs no network, and no script to be read.

Whatever is no markup of ours goes through ``markup`` as text, and the page's own policy (CSP) lets nothing run or load
but the script and the style that are named in it by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from patcher.messages import Text
from patcher.messages.language import is_chinese
from patcher.page.markup import Content, Markup, tag


def document(title: str, body: Content, *, style: str = "", script: str = "") -> str:
    """Return a complete HTML page in the reader's language: ``body`` under a ``title``.

    ``style`` (CSS) and ``script`` (JavaScript) are added to those common to all pages. A policy lets only these run.
    """
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
    page = tag(
        "html",
        head,
        tag("body", tag("main", body), Markup(f"<script>{script}</script>")),
        lang="zh" if is_chinese() else "en",
    )
    return f"<!doctype html>\n{page}\n"


def zoomable(
    rows: Content,
    bars: Content,
    overlay: Content,
    size: tuple[int, int],
    *controls: Content,
    label: str,
    whole: str,
    hint: Content,
) -> Content:
    """Return a chart that ``zoom.js`` zooms, below its ``controls`` and the buttons for zooming.

    ``rows`` is SVG with the names of the rows. ``bars`` is SVG that is stretched by zooming; ``size`` is its width in
    ticks and its height in pixels. ``overlay`` is SVG on top of the bars that is not stretched. ``label`` names the
    chart for screen readers, ``whole`` is on the button that shows everything, ``hint`` is below the chart. Buttons and
    hint only appear when the script runs.
    """
    ticks, height = size
    signs = (
        ("earlier", "\N{LEFTWARDS ARROW}", Text("earlier")),
        ("later", "\N{RIGHTWARDS ARROW}", Text("later")),
        ("farther", "\N{MINUS SIGN}", Text("zoom out")),
        ("closer", "+", Text("zoom in")),
    )
    buttons = [
        tag("button", sign, type="button", data_do=name, title=title, aria_label=title) for name, sign, title in signs
    ]
    buttons.append(tag("button", whole, type="button", data_do="whole"))
    drawn = tag("svg", bars, class_="bars", viewBox=f"0 0 {ticks} {height}", height=height, preserveAspectRatio="none")
    beside = tag("svg", overlay, class_="over", height=height)
    plot = tag("div", drawn, beside, class_="plot", tabindex=0, role="group", aria_label=label)
    return (
        tag("div", controls, buttons, class_="controls", hidden=True),
        tag("div", tag("svg", rows, class_="names", height=height), plot, class_="view"),
        tag("p", hint, class_="faint about", hidden=True),
    )


def _shared(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
