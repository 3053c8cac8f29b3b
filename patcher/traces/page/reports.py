"""The page of a report: the verdict, what it rests on, ranks, and each profile."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.traces.model import FORMS, FREE, Diagnosis, Rank, RankProfile, TraceReport
from patcher.traces.page.markup import Content, tag
from patcher.traces.page.profiles import described, named
from patcher.traces.page.tables import Cell, PageLimits, table, tiled, timed
from patcher.traces.words import duration, percent


def content(report: TraceReport, limits: PageLimits) -> tuple[str, Content]:
    """The title and the body of the page of ``report``."""
    profiles = report.captures
    # The rank that is looked at first is the slowest one: the others wait for it.
    ordered = sorted(profiles, key=lambda one: (-one.median_ns, -one.host_median_ns))
    detailed, rest = ordered[: limits.profiles], ordered[limits.profiles :]
    many = len(profiles) > 1
    shown = ordered[0] if ordered else None
    body = (
        _head("rlpatch report", profiles),
        _withdrawn(report),
        tag("p", report.verdict.title, class_="verdict"),
        [tag("p", line, class_="faint") for line in (report.verdict.guide, report.verdict.difference) if line],
        shown and _tiles(shown, many),
        _diagnoses(report),
        many and _ranks(report.ranks, limits),
        many and _collectives(profiles, limits),
        [described(profile, limits, opened=not at, alone=not many) for at, profile in enumerate(detailed)],
        rest
        and tag("p", f"{len(rest)} more are left out here: `rlpatch report` of one of them shows it.", class_="faint"),
    )
    return f"rlpatch report: {profiles[0].label or profiles[0].source}" if profiles else "rlpatch report", body


def _head(title: str, profiles: Sequence[RankProfile]) -> Content:
    lines = [tag("p", _about(profile), class_="faint") for profile in profiles[:4]]
    more = len(profiles) - len(lines)
    return tag("header", tag("h1", title), lines, more > 0 and tag("p", f"and {more} more", class_="faint"))


def _about(profile: RankProfile) -> str:
    form = FORMS.get(profile.form, profile.form)
    words = (
        profile.source,
        form,
        profile.device,
        profile.rank_name,
        *(profile.metadata.identity if profile.metadata else ()),
    )
    return " · ".join(filter(None, words))


def _withdrawn(report: TraceReport) -> Content:
    if not report.verdict.withdrawn:
        return None
    head = tag("strong", "This data cannot carry every verdict. What rests on a failed check was withdrawn:")
    return tag(
        "div", head, tag("ul", [tag("li", line) for line in report.verdict.withdrawn]), class_="withdrawn", role="alert"
    )


def _tiles(profile: RankProfile, many: bool) -> Content:
    units = profile.units
    if not units:
        return tag("p", "No unit was found.", class_="faint")
    span = f"unit{'s' * (len(units) > 1)}, {profile.span}"
    title = f"{named(profile)}, the slowest one" if many else ""
    if not profile.total_ns:
        on_host = (duration(profile.host_median_ns), "median unit time on the host")
        none = tag("p", "Nothing ran on a device.", class_="faint")
        return (title and tag("h2", title), none, tiled([(str(len(units)), span), on_host]))
    slowest = profile.slowest_unit
    copies = profile.share("copy_ns", *FREE)
    ratio = slowest.device_ns / profile.median_ns if slowest and profile.median_ns else 0
    tiles = [
        (str(len(units)), span),
        (duration(profile.median_ns), "median unit time"),
        (duration(profile.percentile95_ns), "95th percentile"),
        (f"{ratio:.2f} \N{MULTIPLICATION SIGN}", "slowest unit / median"),
        (percent(profile.share("compute_ns", "overlap_ns")), "computing"),
        (percent(profile.share("communication_ns")), "communication, not hidden"),
        (percent(copies), "free (copies counted in, as in step_trace_time)"),
        (percent(profile.share("free_host_late_ns")), "free because the host was late"),
    ]
    return (title and tag("h2", title), tiled(tiles))


def _diagnoses(report: TraceReport) -> Content:
    if not report.findings:
        return None
    medians = {profile.source: profile.median_ns for profile in report.captures}
    labels = {profile.source: named(profile) for profile in report.captures}
    overall = max(medians.values(), default=0)
    many = len(report.captures) > 1

    def shown(one: Diagnosis) -> Content:
        median = medians.get(one.source, overall)
        share = f" ({percent(one.saving_ns / median, 0)})" if one.saving_ns and median else ""
        whose = labels.get(one.source, "") if many else ""
        return tag(
            "article",
            tag("h3", ": ".join(filter(None, (whose, one.title or one.id)))),
            tag("p", one.evidence),
            one.advice and tag("p", f"Try: {one.advice}"),
            one.saving_ns and tag("p", tag("strong", f"At most {duration(one.saving_ns)} per unit to gain{share}.")),
            one.certainty and tag("p", one.certainty, class_="faint"),
            class_=f"finding {one.severity if one.severity in ('problem', 'warning') else ''}".strip(),
        )

    return tag("section", tag("h2", "First diagnosis"), map(shown, report.findings))


def _ranks(ranks: Sequence[Rank], limits: PageLimits) -> Content:
    if not ranks:
        return None
    heads = ("rank", "units", "median unit", "collectives", "waits for others", "others wait for it", "came last")
    rows = [
        (
            Cell("?" if one.rank is None else one.rank, one.rank), one.units, timed(one.median_ns), one.collectives,
            timed(one.waits_ns), timed(one.awaited_ns), one.last,
        )
        for one in ranks
    ]  # fmt: skip
    about = (
        "The n-th collective of a group is the same on all its ranks, and who comes last is in it for the least time."
    )
    return table("Ranks", heads, rows, limits, about, names=0)


def _collectives(profiles: Sequence[RankProfile], limits: PageLimits) -> Content:
    """The collectives in which ranks differed most: no clock is compared, only how long each was in it."""
    met: dict[tuple[str, int, int], list[tuple[int, str, str]]] = {}
    for profile in profiles:
        for one in profile.collectives:
            met.setdefault((one.group, one.unit, one.index), []).append((one.ns, named(profile), one.name))
    shared = [(max(times)[0] - min(times)[0], key, times) for key, times in met.items() if len(times) > 1]
    if not shared:
        return None
    rows = [
        (Cell(min(times)[2]), Cell(group), Cell(f"#{unit}", unit), index + 1, timed(min(times)[0]),
         timed(max(times)[0]), timed(spread), Cell(min(times)[1]))
        for spread, (group, unit, index), times in sorted(shared, key=lambda one: (-one[0], one[1]))
    ]  # fmt: skip
    heads = ("name", "group", "unit", "n-th there", "shortest", "longest", "waiting", "came last")
    return table("Who waits for whom", heads, rows, limits, "", names=2)
