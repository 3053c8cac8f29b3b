"""The page of a report: the verdict, what it rests on, ranks, and each profile."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.messages import Text
from patcher.page.markup import Content, alert, faint, section, tag
from patcher.page.table import table_section
from patcher.traces import tables
from patcher.traces.model import LEAD_IN, Diagnosis, RankProfile, TraceReport
from patcher.traces.page.limits import PageLimits, tiled
from patcher.traces.page.profiles import origin, profile_section
from patcher.traces.page.ranks import heat_map, ranks_below_each_other
from patcher.traces.words import duration, percent


def content(report: TraceReport, limits: PageLimits) -> tuple[str, Content]:
    """Return the title and the body of the page of a report; ``limits`` bounds rows, bars and profiles."""
    profiles = report.captures
    stages = (
        (tag("h2", stage.captures[0].part or Text("Stage unknown")), _stage_section(stage, limits))
        for stage in report.stages
    )
    body = (_header(profiles), list(stages) or _stage_section(report, limits))
    return Text(
        "rlpatch report: {profile}", profiles[0].label or profiles[0].source
    ) if profiles else "rlpatch report", body


def _stage_section(report: TraceReport, limits: PageLimits) -> Content:
    """Return what a page says of one stage: verdict, diagnoses, ranks, and the slowest profiles in detail."""
    profiles, verdict = report.captures, report.verdict
    # The rank that is looked at first is the slowest one: the others wait for it.
    ordered = sorted(profiles, key=lambda profile: (-profile.median_ns, -profile.host_median_ns))
    first = ordered[: limits.profiles]
    hidden = len(ordered) - len(first)
    many = len(profiles) > 1
    withdrawn = Text("Checks of the data failed. The verdicts that depend on them were withdrawn:")
    return (
        alert(withdrawn, verdict.withdrawn),
        tag("p", verdict.title, class_="verdict"),
        map(faint, filter(None, (verdict.guide, verdict.difference))),
        ordered and _tiles(ordered[0], many),
        _diagnoses(report),
        many and table_section(tables.ranks(report.ranks), limits.rows),
        many and heat_map(profiles, limits),
        many and ranks_below_each_other(profiles, limits),
        many and table_section(tables.meetings(profiles), limits.rows),
        [profile_section(profile, limits, opened=not at, without_heading=not many) for at, profile in enumerate(first)],
        hidden > 0
        and faint(
            Text(
                "{count} more traces are not shown; to see one of them, run `rlpatch report` on that trace alone.",
                hidden,
            )
        ),
    )


def _header(profiles: Sequence[RankProfile]) -> Content:
    """Return the heading of a page, with the origin of the first four profiles and the number of the others."""
    more = len(profiles) - 4
    origins = [
        faint(
            origin(profile.source, profile, profile.rank_name, *(profile.metadata.identity if profile.metadata else ()))
        )
        for profile in profiles[:4]
    ]
    return tag(
        "header", tag("h1", "rlpatch report"), origins, more > 0 and faint(Text("and {count} more traces", more))
    )


def _tiles(profile: RankProfile, is_slowest_of_many: bool) -> Content:
    """Return the tiles of a profile: number of steps, times, and shares of the time; a sentence without steps.

    Without work on a device, the tiles are only the number of steps and their time on the host.
    ``is_slowest_of_many`` adds a heading that names the profile as the slowest rank.
    """
    units = profile.units
    if not units:
        return faint(Text("No step was found."))
    title = is_slowest_of_many and tag("h2", Text("{profile}, the slowest rank", profile.name))
    about, median = Text("recorded step ({step_numbers})"), Text("step time")
    if len(units) > 1:
        about, median = Text("recorded steps ({step_numbers})"), Text("median step time")
    count = (str(len(units)), about.filled(profile.span))
    if not profile.total_ns:
        median = Text("median step time on the host") if len(units) > 1 else Text("step time on the host")
        on_host = (duration(profile.host_median_ns), median)
        return (title, faint(Text("No device events were found in the trace.")), tiled([count, on_host]))
    tiles: list[tuple[str, str]] = [count, (duration(profile.median_ns), median)]
    slowest = profile.slowest_unit
    if len(units) > 1 and slowest:
        ratio = slowest.device_ns / profile.median_ns if profile.median_ns else 0
        tiles.append((duration(profile.percentile95_ns), Text("95th percentile")))
        tiles.append((f"{ratio:.2f} \N{MULTIPLICATION SIGN}", Text("slowest step relative to the median")))
    tiles += [
        (percent(profile.share("compute_ns", "overlap_ns")), Text("computing")),
        (percent(profile.share("communication_ns")), Text("exposed communication")),
        (percent(profile.free_share), Text("free time (including copies, as in step_trace_time)")),
        (percent(profile.share("free_host_late_ns")), Text("host-bound")),
    ]
    if lead_in := profile.sum_ns(LEAD_IN):
        tiles.append((duration(lead_in), Text("time before the first kernel, not part of the step")))
    return (title, tiled(tiles))


def _diagnoses(report: TraceReport) -> Content:
    """Return the section with the findings of a report, in their order; None without any."""
    if not report.findings:
        return None
    profiles = {profile.source: profile for profile in report.captures}
    overall = max((profile.median_ns for profile in report.captures), default=0)

    def finding(diagnosis: Diagnosis) -> Content:
        """Return one diagnosis with its evidence, advice and saving, as a time and as a share of the median step."""
        profile = profiles.get(diagnosis.source)
        median = profile.median_ns if profile else overall
        saving = diagnosis.saving_ns and Text(
            "Upper bound of the saving: {time} per step.", duration(diagnosis.saving_ns)
        )
        if diagnosis.saving_ns and median:
            saving = Text(
                "Upper bound of the saving: {time} per step ({share}).",
                time=duration(diagnosis.saving_ns),
                share=percent(diagnosis.saving_ns / median, 0),
            )
        whose = profile.name if profile and len(report.captures) > 1 else ""
        severity = f" {diagnosis.severity}" if diagnosis.severity in ("problem", "warning") else ""
        return tag(
            "article",
            tag("h3", Text("{profile}: {title}", profile=whose, title=diagnosis.title) if whose else diagnosis.title),
            tag("p", diagnosis.evidence),
            diagnosis.advice and tag("p", Text("Suggestion: {advice}", diagnosis.advice)),
            saving and tag("p", tag("strong", saving)),
            diagnosis.certainty and faint(diagnosis.certainty),
            class_=f"finding{severity}",
        )

    return section(Text("Diagnosis"), map(finding, report.findings))
