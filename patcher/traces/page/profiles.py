"""The section of one profile on the page, from its drawings to the vendor's own numbers."""

from __future__ import annotations

from patcher.messages import COMMA, Text, joined
from patcher.page.markup import Content, faint, section, tag
from patcher.page.table import table_section
from patcher.traces import tables
from patcher.traces.measured import rate_words
from patcher.traces.model import FORMS, RankProfile, Side
from patcher.traces.page.drawings import load_charts, unit_bars
from patcher.traces.page.gaps import free_places
from patcher.traces.page.lanes import device_lanes
from patcher.traces.page.limits import PageLimits
from patcher.traces.sidecar import CONTENTS
from patcher.traces.words import cold_start_phrase, duration, replays_phrase


def profile_section(
    profile: RankProfile, limits: PageLimits, *, opened: bool, without_heading: bool = False, side: str = ""
) -> Content:
    """Return everything about one profile for a page, as a section that can be folded, and is open if ``opened``.

    ``without_heading`` leaves the fold and its heading out. ``side`` (before, after, or "") goes before the name in the
    heading.
    """
    replays = profile.replays
    inner = (
        profile.cold and faint(Text("{sentence}.", cold_start_phrase(profile.cold))),
        replays and faint(Text("{sentence}.", replays_phrase(replays.count, replays.joined, replays.why))),
        unit_bars(profile, limits),
        len(profile.units) == 1 and profile.total_ns and table_section(tables.parts(profile)),
        device_lanes(profile, limits),
        free_places(profile, limits),
        table_section(tables.families(profile)),
        table_section(tables.phases(profile)),
        load_charts(profile),
        map(faint, rate_words(profile.rates, profile.device, profile.computing_ns)),
        [
            table_section(table, limits.rows)
            for table in (
                *(table(profile) for table in (tables.kernels, tables.kernel_uses, tables.rates, tables.collectives)),
                *tables.callers(profile),
                *tables.allocations(profile),
            )
        ],
        _units(profile, limits),
        _checks(profile),
        table_section(tables.vendor_steps(profile), limits.rows),
    )
    if without_heading:
        return inner
    name = joined(COMMA, (side, profile.name or profile.source))
    median = (
        duration(profile.median_ns)
        if profile.total_ns
        else Text("{time} on the host", duration(profile.host_median_ns))
    )
    return tag(
        "details",
        tag("summary", Text("{capture}: median step time {median}", capture=name, median=median)),
        inner,
        open=opened,
    )


def _units(profile: RankProfile, limits: PageLimits) -> Content:
    """Return the table of the steps if something is known of their contents, such as requests; else None."""
    told = (*CONTENTS, "uncounted", "padded")
    if profile.facts and any(getattr(unit, name) for unit in profile.units for name in told):
        return table_section(tables.units(profile), limits.rows)
    return None


def origin(source: str, recorded: RankProfile | Side, *more: str | None) -> str:
    """Return source, profiler and device, and ``more`` details if not empty, as one line."""
    return joined(
        " · ", (source, FORMS.get(recorded.form, recorded.form), recorded.device, *map(str, filter(None, more)))
    )


def _checks(profile: RankProfile) -> Content:
    """Return the list of checks, failed ones first; None without checks."""
    if not profile.checks:
        return None
    items = [
        tag(
            "li",
            tag("span", "ok") if check.ok else tag("span", "failed", class_="bad"),
            Text(" {check}: {evidence}", check=check.id, evidence=check.evidence),
        )
        for check in sorted(profile.checks, key=lambda check: check.ok)
    ]
    return section(Text("Is this data reliable?"), tag("ul", items))
