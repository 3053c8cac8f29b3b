"""Two profiles side by side, or several a side: what changed, how sure that is, and where it comes from."""

from __future__ import annotations

import dataclasses
import math
import operator
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from patcher.messages import AND, COMMA, SEMICOLON, Text, joined
from patcher.traces import model
from patcher.traces.analysis.checks import mark_name
from patcher.traces.analysis.loads import at_equal_load, spread_of_captures
from patcher.traces.sidecar import CONTENTS
from patcher.traces.words import in_ms, uncounted_phrase

RESAMPLES = 2000
"""Resamples of the bootstrap; fewer for a side with more than a thousand steps, where each is more certain."""

ALIKE = 0.05
"""A kernel with less than this share more or less calls, or time, counts as alike."""

RELEASES = ("torch_npu", "CANN", "CUDA")
"""Settings of a profile that name the software it ran on, rather than what was recorded."""

LOADED = 0.10
"""Steps with more than this share more requests, say, do not do the same work."""

UNNAMED = ("GPU", "Ascend NPU")
"""Names of a device whose trace does not name it."""

SWITCHES = {"true": "on", "1": "on", "false": "off", "0": "off"}
"""Values of a setting that is on or off, as torch and torch_npu write them, in small letters."""

LIKE_MODULES, LIKE_KERNELS = 1 / 2, 1 / 3
"""Mean share of time in modules, or kernels, of the same name below which the sides ran other models (heuristic).

Kernels change their names with the release and the shapes; those of a model's modules stay.
"""

CHANCE = 40
"""Ways to deal the steps to the sides: with fewer, chance puts the slower ones on one side in over 5 % of all cases."""

Profiles = Sequence[model.RankProfile]
Captures = list[list[model.RecordedUnit]]
"""The steps of each window of one side."""
Time = Callable[[model.RecordedUnit], int]


def compared(before: Profiles, after: Profiles, *, force: bool = False) -> model.Comparison:
    """Compare two sides: the change of the median step with its 95 % interval, and of its parts, kernels and modules.

    If the sides cannot be compared, ``refused`` has the reasons, and changes are left out unless ``force`` is True. The
    times are those on the device; on the host, if a side has no step with work on a device.
    """
    clock = "device" if all(any(profile.total_ns for profile in side) for side in (before, after)) else "host"
    time = operator.attrgetter(f"{clock}_ns")
    captures_by_side = [_steps_by_capture(side, time) for side in (before, after)]
    flat = [[*chain.from_iterable(captures)] for captures in captures_by_side]
    first, second = (model.median_unit(units) for units in flat)
    comparison = model.Comparison(
        _describe_side(before, captures_by_side[0], time), _describe_side(after, captures_by_side[1], time),
        (time(first) if first else 0, time(second) if second else 0), None,
        refused=tuple(_refusals(before, after)), clock=clock, reports=(tuple(before), tuple(after)),
    )  # fmt: skip
    if comparison.refused and not force:
        return comparison
    parts = model.PARTS if first and second else ()
    change = _median_change(captures_by_side, time)
    setting_differences = tuple(_setting_differences(before, after))
    model_differences = tuple(_model_difference(before, after))
    sizes = [[*map(len, captures)] for captures in captures_by_side]
    by_run = sum(map(len, captures_by_side)) >= model.ENOUGH_CAPTURES and bool(before[0].baseline_run)
    verdict = _incomparable(before, after, model_differences, setting_differences) or _verdict(
        change, sizes, by_run=by_run
    )
    return dataclasses.replace(
        comparison, change=change, verdict=verdict,
        differs=(*setting_differences, *_environment_differences(before, after), *model_differences),
        equal_load=at_equal_load(flat, [*map(time, chain(*flat))], sizes),
        parts=tuple(model.PartChange(name, getattr(first, name), getattr(second, name)) for name in parts),
        kernels=_changes_by_name(before, after, "kernels"), modules=_changes_by_name(before, after, "modules", clock),
        operators=_changes_by_name(before, after, "operators", clock) if clock == "host" else (),
        notes=tuple(_caveats(before, after, captures_by_side)),
    )  # fmt: skip


def _steps_by_capture(profiles: Profiles, time: Time) -> Captures:
    """Return the steps of each capture of a side: of ranks that recorded the same step, only the longest one.

    A capture is a recorded window, or one run of a baseline with all its windows. The n-th profile of each rank belongs
    to the n-th window; a profile without a rank is a window of its own. Steps without work on a device are left out if
    others of their profile have some. ``time`` returns the ns of a step.
    """
    turns = Counter[tuple[str, int | None]]()
    windows: dict[tuple[str, object], dict[int, list[model.RecordedUnit]]] = {}
    for profile in profiles:
        turn = profile.baseline_run, profile.rank
        window: object = profile.source if profile.rank is None else turns[turn]
        turns[turn] += 1
        for unit in model.units_on_device(profile.units):
            windows.setdefault((profile.baseline_run, window), {}).setdefault(unit.number, []).append(unit)
    captures: dict[object, list[model.RecordedUnit]] = {}
    for (run, window), steps in windows.items():
        captures.setdefault(run or window, []).extend(max(units, key=time) for units in steps.values())
    return [*captures.values()]


def _incomparable(
    before: Profiles, after: Profiles, model_differences: Sequence[str], setting_differences: Sequence[str]
) -> str:
    """Return the verdict for sides that cannot be compared: other devices, models or settings; "" if they can.

    ``model_differences`` and ``setting_differences`` have a sentence for each difference.
    """
    if _on_different_devices(before, after):
        return model.OTHER_DEVICE
    if model_differences:
        return model.OTHER_MODEL
    return model.OTHER if setting_differences else ""


def _verdict(change: tuple[int, int, int] | None, sizes: Sequence[Sequence[int]], *, by_run: bool) -> str:
    """Return the verdict: slower or faster if the interval of the change excludes 0, else alike.

    It is `FEW` (not enough data) if ``change`` is None, or if so few steps could differ by chance. ``by_run`` skips the
    test for chance: a baseline has enough runs. With few captures (recorded windows), slower and faster are said of
    these captures only. ``change`` is (low, change, high) in ns, ``sizes`` has for each side the number of steps of
    each capture.
    """
    counts = [*map(sum, sizes)]
    if change is None or (not by_run and math.comb(sum(counts), counts[0]) < CHANCE):
        return model.FEW
    low, _, high = change
    if low <= 0 <= high:
        return model.ALIKE
    captures = [*map(len, sizes)]
    if sum(captures) >= model.ENOUGH_CAPTURES:
        return model.SLOWER if low > 0 else model.FASTER
    if max(captures) > 1:
        return model.SLOWER_IN_THESE if low > 0 else model.FASTER_IN_THESE
    return model.SLOWER_IN_TWO if low > 0 else model.FASTER_IN_TWO


def _setting_differences(before: Profiles, after: Profiles) -> Iterator[str]:
    """Yield a sentence for each profiler setting that differs between the sides; versions of software are left out.

    A profiler records a switch only if it is on. So a missing switch counts as off, unless the capture has no settings
    or the captures are from different profilers.
    """
    every = [*before, *after]
    names = dict.fromkeys(name for profile in every for name in profile.settings if name not in RELEASES)
    one_profiler = len({model.PROFILERS[profile.form] for profile in every}) == 1
    for name in names:
        values = [[_setting(profile, name) for profile in side] for side in (before, after)]
        if one_profiler and {*chain(*values)} <= {"on", "off", ""}:
            values = [
                [value or ("off" if _tells_settings(profile) else "") for value, profile in zip(of, side, strict=True)]
                for of, side in zip(values, (before, after), strict=True)
            ]
        yield from _difference(name, *values)


def _setting(profile: model.RankProfile, name: str) -> str:
    """Return the value of a setting, ``on`` or ``off`` for a switch; "" if the capture lacks it."""
    value = profile.setting(name)
    return SWITCHES.get(value.lower(), value)


def _tells_settings(profile: model.RankProfile) -> bool:
    """Tell whether the capture came with its settings: a trace of torch has them, torch_npu writes them beside it."""
    return profile.form == "torch" or any(name not in RELEASES for name in profile.settings)


def _on_different_devices(before: Profiles, after: Profiles) -> bool:
    """Tell whether the sides ran on different devices: by name, or by kind if a trace does not name its device."""
    first, second = ({profile.device for profile in side} for side in (before, after))
    if not (first | second) & {*UNNAMED}:
        return first != second
    kinds = [{_kind(device) for device in side} for side in (first, second)]
    return kinds[0] != kinds[1]


def _kind(device: str) -> str:
    """Return the kind of a device: CPU, Ascend NPU or GPU."""
    return "Ascend NPU" if device.startswith("Ascend") else device if device == model.CPU else "GPU"


def _model_difference(before: Profiles, after: Profiles) -> Iterator[str]:
    """Yield one sentence if the sides seem to run different models; nothing otherwise.

    They do if less than half of the time, the mean of both sides, is in modules that both have. If a side has no
    modules, kernels are compared, and without these operators: then the limit is a third of the time.
    """
    for what, field, least in (
        (Text("modules"), "modules", LIKE_MODULES),
        (Text("kernels"), "kernels", LIKE_KERNELS),
        (Text("operators"), "operators", LIKE_KERNELS),
    ):
        times = [_times_by_name(side, field) for side in (before, after)]
        if not all(times):
            continue
        common = set(times[0]) & set(times[1])
        share = statistics.mean(sum(side[name] for name in common) / sum(side.values()) for side in times)
        if share < least:
            yield Text(
                "only {share:.0f} % of the time is in {kernels_or_modules} that both sides have",
                share=100 * share,
                kernels_or_modules=what,
            )
        return


def _times_by_name(side: Profiles, field: str) -> dict[str, int]:
    """Return name → ns of one kind of rows of a side: device time, or host time if none ran on a device.

    ``field`` names the attribute of a profile with the rows: "kernels" (only computing ones count), "modules" or
    "operators". Names without any time are left out.
    """
    rows = [row for profile in side for row in getattr(profile, field)]
    computing = [row for row in rows if not isinstance(row, model.Kernel) or row.kind == model.COMPUTE]
    on_device = any(row.ns for row in computing)
    times = Counter[str]()
    for row in computing:
        times[row.name] += row.ns if on_device else row.host_ns
    return dict(+times)


def _release(profile: model.RankProfile) -> str:
    """Return the target and its release as far as the metadata says; "" without metadata."""
    return f"{profile.metadata.target} {profile.metadata.release}".strip() if profile.metadata else ""


def _environment_differences(before: Profiles, after: Profiles) -> Iterator[str]:
    """Yield a sentence for each difference in device, rank, number of ranks, and release of the target or a library."""
    columns: dict[str, Callable[[model.RankProfile], object]] = {
        Text("number of ranks"): operator.attrgetter("world"),
        Text("rank"): operator.attrgetter("rank"),
        Text("release"): _release,
        **{name: operator.methodcaller("setting", name) for name in RELEASES},
    }  # fmt: skip
    if _on_different_devices(before, after):
        yield from _difference(Text("device"), *([profile.device for profile in side] for side in (before, after)))
    for name, of in columns.items():
        yield from _difference(name, *([of(profile) for profile in side] for side in (before, after)))


def _difference(name: str, *sides: Sequence[object]) -> Iterator[str]:
    """Yield one sentence with the values of both sides if they differ; nothing if a side has only None and "".

    The values of a side are compared as a set of texts, without None and "".
    """
    first, second = ({str(value) for value in side if value not in (None, "")} for side in sides)
    if first and second and first != second:
        yield Text(
            "{property}: {before} before, {after} after",
            property=name,
            before=_list_sorted(first),
            after=_list_sorted(second),
        )


def _describe_side(profiles: Profiles, captures: Captures, time: Time) -> model.Side:
    """Describe a side: its sources, formats and devices, the times of all its steps, and the median of each capture.

    ``captures`` has the steps of each capture (recorded window), ``time`` returns the ns of a step on the host or the
    device.
    """
    forms = ", ".join(dict.fromkeys(profile.form for profile in profiles))
    devices = ", ".join(dict.fromkeys(profile.device for profile in profiles))
    sources = tuple(profile.source for profile in profiles)
    times = [[*map(time, units)] for units in captures]
    return model.Side(sources, forms, devices, (*chain.from_iterable(times),), (*map(model.lower_median, times),))


# ---------------------------------------------------------------- whether


def _refusals(before: Profiles, after: Profiles) -> Iterator[str]:
    """Yield a sentence for each reason why the sides cannot be compared; nothing if they can.

    Reasons are failed checks that withdraw most diagnoses, kernels on a device in only some of the captures, and
    another stage, kind of step marks or recording window. A stage or window that a side does not know is no reason.
    """
    both = [*before, *after]
    on_host = [profile for profile in both if profile.on_host]
    if 0 < len(on_host) < len(both):
        yield Text(
            "no kernel ran on a device in {captures}, but kernels ran in the other traces", _capture_names(on_host)
        )
    for name, side in ((Text("before"), before), (Text("after"), after)):
        yield from _failed_checks(name, side, _prevents_comparison)
    stages = [{profile.stage for profile in side} - {""} for side in (before, after)]
    marks = [{mark_name(profile.marks) or Text("none") for profile in side} for side in (before, after)]
    windows = [{_window_text(profile) for profile in side} for side in (before, after)]
    if all(stages) and stages[0] != stages[1]:
        yield Text(
            "different stages: {before} before, {after} after",
            before=_list_sorted(stages[0]),
            after=_list_sorted(stages[1]),
        )
    if marks[0] != marks[1]:
        yield Text(
            "different step marks: {before} before, {after} after",
            before=_list_sorted(marks[0]),
            after=_list_sorted(marks[1]),
        )
    elif windows[0] != windows[1] and "" not in windows[0] | windows[1]:
        yield Text(
            "different recording windows: {before} before, {after} after",
            before=_list_sorted(windows[0]),
            after=_list_sorted(windows[1]),
        )


def _capture_names(profiles: Profiles) -> str:
    return joined(COMMA, (profile.label or profile.source for profile in profiles))


def _failed_checks(name: str, side: Profiles, is_counted: Callable[[model.Check], bool]) -> Iterator[str]:
    """Yield a sentence for each failed check of a side for which ``is_counted`` is True.

    Each begins with the ``name`` of the side. Equal failures are merged into one sentence, which names the captures,
    unless all captures of the side failed. In a run without a device, a step without kernels is no failure.
    """
    failures: dict[str, list[model.RankProfile]] = {}
    for profile in side:
        for check in profile.failed:
            if is_counted(check) and not (profile.on_host and check.id == "kernels"):
                failures.setdefault(check.evidence, []).append(profile)
    for evidence, profiles in failures.items():
        if len(profiles) == len(side):
            yield Text("{side}: {failed_check}", side=name, failed_check=evidence)
        else:
            yield Text(
                "{side}, {captures}: {failed_check}",
                side=name,
                captures=_capture_names(profiles),
                failed_check=evidence,
            )


def _prevents_comparison(check: model.Check) -> bool:
    """Tell whether a failure of the check withdraws communication and dispatch, so that nothing can be compared."""
    return {"communication", "dispatch"} <= set(check.withdraws)


def _window_text(profile: model.RankProfile) -> str:
    """Return the recording window of a profile as text, else the half-open range of its step numbers, as ``3:6``.

    It is "" without steps, and if their numbers are neither from the profiler nor from rlpatch.
    """
    if profile.metadata and profile.metadata.window:
        return profile.metadata.window.text
    numbers = [unit.number for unit in profile.units]
    if not numbers or profile.marks not in ("ProfilerStep#", "mark"):
        return ""
    return f"{min(numbers)}:{max(numbers) + 1}"


def _caveats(before: Profiles, after: Profiles, captures_by_side: Sequence[Captures]) -> Iterator[str]:
    """Yield caveats of the comparison as sentences: few steps or captures, two profilers, unlike loads, and more.

    ``captures_by_side`` has for each side the steps of each capture (recorded window). Uncounted iterations and failed
    checks are named, too.
    """
    names = Text("Before"), Text("After")
    few_captures = sum(map(len, captures_by_side)) < model.ENOUGH_CAPTURES
    few = [name for name, captures in zip(names, captures_by_side, strict=True) if sum(map(len, captures)) < 2]
    if few and few_captures:
        yield Text(
            "{sides}: only one step was recorded, so the difference has no confidence interval.", joined(AND, few)
        )
    if few_captures and before[0].baseline_run:
        yield Text(
            "The baseline has {count} runs; {least} are needed to tell how much the step time varies between unchanged"
            " runs.",
            count=len(captures_by_side[0]), least=model.ENOUGH_CAPTURES - 1,
        )  # fmt: skip
    elif few_captures:
        yield Text(
            "With one recording per side, a difference may be chance: in public data, the median step times of two"
            " windows of the same run differ by up to 15 %. Compare several recordings per side: `rlpatch compare A1"
            " A2 -- B1 B2`."
        )
    profilers = sorted({model.PROFILERS[profile.form] for profile in (*before, *after)})
    if len(profilers) > 1:
        both = joined(AND, profilers)
        yield Text(
            "The two sides were recorded by {names}, which name kernels differently: compare the breakdown, not single"
            " kernels.",
            both,
        )
    yield from _load_difference(before, after)
    yield from _time_outside_operators(before, after)
    for side, profiles in zip(names, (before, after), strict=True):
        for profile in profiles:
            if profile.uncounted:
                whose = Text("{side}, {profile}", side=side, profile=profile.label or profile.source)
                yield Text("{side}: {sentence}.", side=whose, sentence=uncounted_phrase(profile.uncounted))
        yield from _failed_checks(side, profiles, lambda check: not _prevents_comparison(check))


def _time_outside_operators(before: Profiles, after: Profiles) -> Iterator[str]:
    """Yield one sentence if time outside of operators makes up most of the change on the CPU; else nothing.

    No table of a comparison shows that time.
    """
    steps = [[step for profile in side for step in profile.host_steps] for side in (before, after)]
    if not all(steps) or not all(profile.on_host for profile in (*before, *after)):
        return
    times, idle = ([model.lower_median([of(step) for step in side]) for side in steps] for of in _HOST_TIMES)
    change, outside = times[1] - times[0], idle[1] - idle[0]
    if change and change * outside > 0 and 2 * abs(outside) > abs(change):
        yield Text(
            "Time per step without an operator on the host: {before} before, {after} after (medians). Run `rlpatch"
            " report` on each trace to see where this time is spent.",
            before=in_ms(idle[0]), after=in_ms(idle[1]),
        )  # fmt: skip


_HOST_TIMES = operator.attrgetter("ns"), operator.attrgetter("idle_ns")
"""Values of the time of a step on the host, and of that without operators."""


def _load_difference(before: Profiles, after: Profiles) -> Iterator[str]:
    """Yield one sentence if the sides' medians of a load, such as requests, differ by over 10 %; else nothing.

    Only loads that both sides recorded count. The sentence names all that differ.
    """
    differing = []
    for name in CONTENTS:
        sides = [[getattr(unit, name) for profile in side for unit in profile.units] for side in (before, after)]
        recorded = [[value for value in values if value is not None] for values in sides]
        if all(recorded):
            first, second = map(model.lower_median, recorded)
            if abs(second - first) > LOADED * max(first, second):
                differing.append(
                    Text("{load}: {before:,} before, {after:,} after", load=name, before=first, after=second)
                )
    if differing:
        yield Text(
            "The steps of the two sides did different amounts of work (medians): {differing}.",
            joined(SEMICOLON, differing),
        )


# ---------------------------------------------------------------- how much


def _median_change(captures_by_side: Sequence[Captures], time: Time) -> tuple[int, int, int] | None:
    """Return (low, change, high) in ns: the median step of the second side less that of the first, in a 95 % interval.

    A capture is a recorded window; four of both sides together are enough. None if a side has less than two steps,
    unless there are enough captures. ``captures_by_side`` has for each of two sides the steps of each capture. A
    bootstrap with a fixed seed draws captures, then steps within them. With enough captures the interval is at least as
    wide as Student's for the medians of the captures.
    """
    first, second = ([[*map(time, steps)] for steps in captures] for captures in captures_by_side)
    counts = [sum(map(len, side)) for side in (first, second)]
    if min(counts) < 2 and sum(map(len, captures_by_side)) < model.ENOUGH_CAPTURES:
        return None
    estimate = _median(second) - _median(first)
    draw = random.Random(0)  # noqa: S311  (no secret: the same data gives the same interval)
    times = sorted(
        _median(_drawn(second, draw)) - _median(_drawn(first, draw))
        for _ in range(max(200, min(RESAMPLES, 2_000_000 // sum(counts))))
    )
    low, high = times[int(len(times) * 0.025)], times[-int(len(times) * 0.025) - 1]
    reach = round(spread_of_captures(*([model.lower_median(times) for times in side] for side in (first, second))))
    return min(low, estimate - reach), estimate, max(high, estimate + reach)


def _drawn(side: Sequence[Sequence[int]], draw: random.Random) -> list[list[int]]:
    """Return a bootstrap sample of a side: windows, then step times within each, drawn with replacement."""
    profiles = draw.choices(side, k=len(side)) if len(side) > 1 else side
    return [draw.choices(times, k=len(times)) for times in profiles]


def _median(side: Sequence[Sequence[int]]) -> int:
    return model.lower_median([*chain.from_iterable(side)])


# ---------------------------------------------------------------- where from


def _changes_by_name(
    before: Profiles, after: Profiles, field: str, clock: str = "device"
) -> tuple[model.TimeChange, ...]:
    """Return calls and ns per step of each row of ``field`` on both sides, and what changed, largest change first.

    A row of only one side is "new" or "gone". ``field`` is "kernels", "operators" or "modules". With the ``clock``
    "host", operators and modules count their host time.
    """
    units = [max(sum(len(profile.units) for profile in side), 1) for side in (before, after)]
    kind, on_host = field.removesuffix("s"), clock == "host"
    first, second = (
        _sums_by_name((row for profile in side for row in getattr(profile, field)), kind, on_host=on_host)
        for side in (before, after)
    )
    rows = []
    for name, kind in {**first, **second}:
        calls_before, ns_before = first.get((name, kind), (0, 0))
        calls_after, ns_after = second.get((name, kind), (0, 0))
        rates = round(calls_before / units[0], 3), round(calls_after / units[1], 3)
        state: str = Text("gone") if calls_before else Text("new")
        if calls_before and calls_after:
            state = _word_of_change(*rates, ns_before / calls_before, ns_after / calls_after)
        rows.append(model.TimeChange(name, ns_before // units[0], ns_after // units[1], kind, state, *rates))
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_ns), row.name, row.kind)))


def _sums_by_name(
    rows: Iterable[model.Kernel | model.CallSums], kind: str, *, on_host: bool
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (name, kind) → (calls, ns), summed over all rows.

    A kernel has its own kind (computing, communication, copy), any other row ``kind``. If ``on_host``, the ns of
    operators and modules are those on the host.
    """
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        calls_now, ns_now = row.calls, row.ns
        key = row.name, kind
        if isinstance(row, model.Kernel):
            key = row.name, row.kind
        elif on_host:
            ns_now = row.host_ns
        calls, ns = sums.get(key, (0, 0))
        sums[key] = calls + calls_now, ns + ns_now
    return sums


def _word_of_change(calls_before: float, calls_after: float, ns_before: float, ns_after: float) -> str:
    """Return in words what changed of a kernel, operator or module, such as "slower"; "alike" for changes up to 5 %.

    The calls per step come first ("more often", "less often"), then the ns per call ("slower", "faster").
    """
    if abs(calls_after - calls_before) > ALIKE * calls_before:
        return Text("more often") if calls_after > calls_before else Text("less often")
    if abs(ns_after - ns_before) > ALIKE * ns_before:
        return Text("slower") if ns_after > ns_before else Text("faster")
    return Text("alike")


def _list_sorted(names: set[str]) -> str:
    first, *more = sorted(names)
    return ", ".join((first, *more)) if more else first  # half-width: the sentence around has Chinese commas
