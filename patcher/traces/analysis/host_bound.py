"""The diagnoses of a device that is empty: host-bound, blocked launches, stream waits, and before the first kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patcher.messages import SEMICOLON, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.activities import ALLOCATES, FREES, WAITS
from patcher.traces.analysis.checks import FUNCTION, HOST, NOTABLE
from patcher.traces.analysis.host_only import COMPILES, LOADS_DATA, WAITS_IN_CALL
from patcher.traces.analysis.host_steps import BLOCKS
from patcher.traces.places import (
    drained_by,
    first_place,
    host_cause,
    in_program,
    longest_gap_text,
    main_place,
    place_in_words,
    place_with_time,
)
from patcher.traces.rank_trace import GRAPH_CAPTURE
from patcher.traces.words import host_name, in_ms, percent

HOST_PARTS = HOST["dispatch"]
"""The parts of a step that a host which launches earlier would hide."""

_NAMED = 2  # modules or operators that a sentence names
_STACKS = "rlpatch apply … --contents {device},cpu,stack"
_ON_GPUS = Text("use CUDA graphs (leave out enforce_eager), asynchronous scheduling, or fewer and larger operators")
_ON_NPUS = Text("use ACL graphs, TASK_QUEUE_ENABLE=2 or asynchronous scheduling, or bind the processes to CPU cores")
_IN_TRAINING = Text("use larger micro-batches, torch.compile, or fewer and larger operators, as in fused optimizers")
_RECORD_HOST = Text(
    "record the host, too: run `rlpatch apply` with --contents npu,cpu, or add ProfilerActivity.CPU to your profiler"
)
_RECORD_LAUNCHES = {
    "ascend-tables": Text("export the trace, too: torch_npu's tables alone do not tell when kernels were launched"),
    "nsys": Text("record the launches, too: nsys profile --trace=cuda"),
}
"""Form of a trace → how to record when kernels were launched, if not by `_RECORD_HOST`."""

_BESIDE_GRAPHS = Text(
    "graphs already launch {share} of the kernels: speed up the host's work between the graphs, or hide it with"
    " asynchronous scheduling"
)
MOSTLY_GRAPHS = 0.5
"""Share of the kernels from which on steps run as graphs."""

_MOSTLY_PROMPT = 0.5
"""Share of the kernels that start within 20 µs of their launch, as most do unless something else uses the device."""

_CREATES_CONTEXT = Text(
    "the first call of the device's runtime creates its context: run a step before the recording window"
)
_AT_FIRST_USE = ("cudaFree", "hipFree")  # with which torch creates the context of a device: it frees nothing

_MANY_FREES = 50  # with one for every 10 kernels, torch's allocator seems to keep no memory

_ABOUT_HOST = {
    re.compile(r"^torch/_(?:dynamo|inductor|functorch)/"): COMPILES,
    re.compile(r"^triton/compiler/|^aclopCompile"): Text(
        "a kernel is compiled here: run the step once before the recording window; on NPUs, also try"
        " torch.npu.set_compile_mode(jit_compile=False). If it compiles again, look for new shapes"
    ),
    re.compile(f"^{GRAPH_CAPTURE}$"): Text(
        "the host captures a graph, and a capture runs no kernels: record a window after all graphs are captured"
    ),
    re.compile(r"(?:Module|Function) Loading|Driver Compiler"): Text(
        "the driver loads a kernel's code at its first launch: run the step once before the recording window"
    ),
    re.compile(r"Activity Buffer Request|UVM Activity Init"): Text(
        "the profiler prepares itself here: record a warm-up step first (warmup=1 in torch.profiler.schedule)"
    ),
    re.compile("DataLoader"): LOADS_DATA,
    BLOCKS: WAITS_IN_CALL,
    re.compile(r"^(?:cuda|hip)(?:Device)?Get|^(?:cuda|hip|aclrt)SetDevice"): _CREATES_CONTEXT,
    re.compile(r"^(?:cuda|hip)(?:HostAlloc|MallocHost|HostMalloc)|^aclrtMallocHost"): Text(
        "pinned memory is allocated here: allocate it once, and use it in each step"
    ),
    re.compile(r"GetWorkspaceSize$|_Tiling$"): Text(
        "CANN prepares operators anew whose shapes are not in its cache: pad or bucket lengths so that few shapes"
        " recur, raise ACLNN_CACHE_LIMIT if there are more shapes than its entries, or use ACL graphs"
    ),
    ALLOCATES: Text(
        "torch's allocator asks the driver for memory: run the step once before the recording window. If this happens"
        " in each step, use less memory, or set PYTORCH_CUDA_ALLOC_CONF (on NPUs PYTORCH_NPU_ALLOC_CONF) to"
        " expandable_segments:True"
    ),
}
"""Part of the name of a call, frame or range → what to do about an idle device while the host is in it."""

_MAPS = re.compile(r"(?:cu|hip)Mem(?:Address|Create|Map|SetAccess)|aclrt\w*(?:Physical|Mem\b|MemAddress)")
_SLEEPS = re.compile(r"sleep|wake_?up|(?:release|resume)_memory|\bc[au]mem", re.IGNORECASE)  # of an inference engine

_COMPILED = "torchinductor"
"""Part of the name of a frame in code that torch.compile made."""

_LAUNCHES = re.compile(r"(?:cu|hip|acl|Node@)\w*launch", re.IGNORECASE)
"""Begin of the name of a call that launches kernels."""

_ABOUT_CALL = {
    "graph": Text(
        "a graph is instantiated or uploaded at its first launch: replay the graph once before the recording window,"
        " or capture it with fewer nodes"
    ),
    "mem": Text("use pinned memory and non-blocking copies, or fewer copies between host and device"),
    "": Text("a kernel's first launch loads or compiles its code: run the step once before the recording window"),
}
"""Part of the name of a launch call → what to try where it blocks; the last one fits all."""

_IN_EACH_STEP = {
    "graph": Text(
        "several steps instantiate or upload a graph: capture each graph once, and replay it in all steps that have"
        " the same shapes"
    ),
    "mem": _ABOUT_CALL["mem"],
    "": Text(
        "in several steps, launching this kernel blocks the host: check whether each of these steps loads or compiles"
        " code again, for example for new shapes"
    ),
}
"""The same for a call that blocks in at least half of several steps: it is no first launch."""


def diagnoses(profile: model.RankProfile) -> Iterator[model.Diagnosis]:
    """Yield the diagnoses of a profile's idle time, each if it takes at least 10 % of the steps' time.

    They are host-bound time with launch latency, blocked launch calls, stream waits, idle time before kernels whose
    launch is unknown, and the time before the first kernel.
    """
    weighed = (
        (_diagnose_host_bound, HOST_PARTS),
        (_diagnose_blocked_launches, ("free_blocked_ns",)),
        (_diagnose_stream_wait, ("free_waiting_ns",)),
        (_diagnose_unknown_idle_time, ("free_unknown_ns",)),
    )
    for diagnose, parts in weighed:
        if profile.share(*parts) >= NOTABLE:
            yield diagnose(profile)
    lead_in = profile.sum_ns(model.LEAD_IN)
    if lead_in and lead_in >= NOTABLE * (profile.total_ns + lead_in):
        yield _diagnose_before_first_kernel(profile, lead_in)


def _diagnose_host_bound(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose time in which the next kernel was not launched yet, with the launch latency that follows it.

    If one place has most of this time, or the host was in one call for most of it, evidence and advice are on that. The
    saving in ns is per step.
    """
    late, latency = (profile.share(part) for part in HOST_PARTS)
    evidence: str = ""
    if late >= NOTABLE / 10:
        evidence = Text(
            "For {share} of the time, the device was idle and its next kernel had not been launched yet.", percent(late)
        )
    if latency >= NOTABLE / 10:
        within = Text(
            "For {share} of the time, the device was idle although the next kernel had been launched: the kernel had"
            " not started yet (launch latency).",
            percent(latency),
        )
        evidence = sentences(evidence, within) if evidence else within
    is_prompt = profile.prompt_share is not None and profile.prompt_share >= _MOSTLY_PROMPT
    advice: str = _faster_launches(profile)
    if main := main_place(profile, HOST_PARTS):
        most = Text("Most of this idle time is in one place: {place}.", place_with_time(profile, main))
        evidence, advice = sentences(evidence, most), advice_on_place(profile, main)
    elif cause := host_cause(profile, HOST_PARTS):
        most = Text(
            "During most of this idle time, the host was in {call}: {time} per step.",
            call=in_program(cause.name, cause.gap),
            time=in_ms(cause.ns / len(profile.units)),
        )
        evidence = sentences(evidence, most)
        advice = advice_on_place(profile, cause.gap) if cause.gap else advice
    elif drained := drained_by(profile, HOST_PARTS):
        most = Text(
            "Most of this idle time is in short gaps after the host had waited for the device in {call}:"
            " {count:,.0f} gaps per step.",
            call=host_name(drained.returned_from),
            count=drained.count / len(profile.units),
        )
        evidence = sentences(evidence, most)
        advice = Text(
            "avoid calls that wait for the device within a step, such as .item(), .cpu(), torch.nonzero() or a check of"
            " values on the host: keep the values on the device, or wait once per step"
        )
    else:
        evidence = sentences(evidence, slow_launchers(profile), _most_at(first_place(profile, *HOST_PARTS)))
        if latency > late and not is_prompt and profile.prompt_share is not None:
            advice = Text(
                "find out why most kernels start more than 20 µs after their launch although the device is idle;"
                " possible reasons: another process on the device, a low clock frequency"
            )
    saving = profile.sum_ns(*HOST_PARTS) // len(profile.units)
    certainty = Text("upper bound of the saving, because the measured time includes the profiler's own overhead")
    title = Text("Launch latency: launched kernels start late although the device is idle")
    return model.Diagnosis(
        "dispatch", "warning", evidence, saving, certainty, advice, profile.source,
        headline=title if latency > late and not is_prompt else "",
    )  # fmt: skip


def _faster_launches(profile: model.RankProfile) -> str:
    """Return advice on faster launches by the host: for NPUs, else for training, steps mostly in graphs, or others."""
    if model.PROFILERS[profile.form] == "torch_npu.profiler":
        return _ON_NPUS
    if any(unit.phases or unit.sequences for unit in profile.units):
        return _IN_TRAINING
    if profile.graph_share is not None and profile.graph_share >= MOSTLY_GRAPHS:
        return _BESIDE_GRAPHS.filled(percent(profile.graph_share, 0))
    return _ON_GPUS


def advice_on_place(profile: model.RankProfile, gap: model.FreeGap) -> str:
    """Return what to do about ``gap``, a place with much idle time of the device.

    The advice depends on what covers it: launch latency, a synchronising call, another call or operator, or nothing
    known.
    """
    if gap.part == "free_latency_ns":
        return Text(
            "find out why {kernel} starts so long after its launch; possible reasons: first use of the kernel,"
            " another process on the device, a low clock frequency",
            host_name(gap.after),
        )
    if gap.call and WAITS.search(gap.call) and not FUNCTION.search(gap.call):
        return Text(
            "{call} blocks the host while the device is idle: remove this call, or launch more kernels before it",
            host_name(gap.call),
        )
    if _COMPILED in gap.call or gap.call == "aclnn…":  # its launches, not its Python, take the time
        return _faster_launches(profile)
    if advice := _advice_on_memory(profile, gap) or _advice_by_name(gap):
        return advice
    if _LAUNCHES.match(gap.call):
        return _about_launch(gap.call, repeated=_is_repeated(profile, gap))
    if gap.call or gap.within:
        return Text(
            "look at what the host does in {name}: speed this work up, or run it before the step or in parallel with"
            " the step",
            host_name(gap.call or gap.operator),
        )
    return _advice_without_activity(profile, gap)


def _advice_on_memory(profile: model.RankProfile, gap: model.FreeGap) -> str:
    """Return what to do if the host allocates or frees memory of the device in ``gap``; "" for any other work.

    This is the sleep mode of an engine, an allocator of torch that keeps no memory, or a call outside of operators.
    """
    if ALLOCATES.match(gap.call) and _SLEEPS.search(gap.caller):
        return Text(
            "the engine's sleep mode gives memory back to the driver and asks for it again: sleep less often, choose a"
            " level or tags that free less, or keep the memory if it suffices for both phases"
        )
    is_free = [re.fullmatch(FREES, call) is not None for call in gap.call.split("/")]
    frees = sum(place.count for place in profile.gaps if re.match(FREES, place.call))
    kernels = sum(kernel.calls for kernel in profile.kernels)
    if any(is_free) and frees >= max(_MANY_FREES, kernels / 10):
        return Text(
            "memory is freed at least {frees:,} times beside {kernels:,} kernels: check whether torch's caching"
            " allocator is switched off (PYTORCH_NO_CUDA_MEMORY_CACHING, on AMD PYTORCH_NO_HIP_MEMORY_CACHING, on NPUs"
            " PYTORCH_NO_NPU_MEMORY_CACHING); if not, use less memory",
            frees=frees, kernels=kernels,
        )  # fmt: skip
    if not gap.operator and (all(is_free) or _MAPS.search(gap.call)):  # not torch's
        return Text(
            "the host gives memory back to the driver, or asks for it again: find out what frees it, for example"
            " torch.cuda.empty_cache() (on NPUs torch.npu.empty_cache()), and do so less often"
        )
    return ""


def _advice_by_name(gap: model.FreeGap) -> str:
    """Return what `_ABOUT_HOST` says about the call or operator of ``gap``, or about its caller; "" for other names."""
    if gap.part == model.LEAD_IN and gap.operator and gap.call in _AT_FIRST_USE:
        return _CREATES_CONTEXT
    names = (gap.call or (gap.operator if gap.within else ""), gap.caller)
    return next((about for pattern, about in _ABOUT_HOST.items() if any(map(pattern.search, names))), "")


def _advice_without_activity(profile: model.RankProfile, gap: model.FreeGap) -> str:
    """Return how to find out what the host does during a gap of which no single event covers half."""
    if profile.has_stacks or profile.setting("stacks").lower() in ("1", "true"):
        return Text(
            "no single function covers these gaps: look at them in a trace viewer; {longest_gap}", longest_gap_text(gap)
        )
    device = "npu" if model.PROFILERS[profile.form] == "torch_npu.profiler" else "cuda"
    return Text(
        "to see Python frames, too, record again with {command}: no single recorded event covers half of this gap",
        _STACKS.format(device=device),
    )


def slow_launchers(profile: model.RankProfile) -> str:
    """Return a sentence on the modules or operators that take the host longer than the device.

    It names up to two, those with the largest difference, with their times per step; "" if the differences are small.
    The time of an operator is without the operators that it calls. Operators are named if there are no modules, or if
    one operator has over half of the largest difference of a module.
    """
    count = len(profile.units)
    chosen = [module for module in profile.modules if module.name in profile.late_modules]
    modules, operators = (
        sorted(rows, key=lambda row: row.ns - row.host_ns)[:_NAMED] for rows in (chosen, profile.operators)
    )
    in_module, in_operator = (rows[0].host_ns - rows[0].ns if rows else 0 for rows in (modules, operators))
    rows = operators if 2 * in_operator > in_module else modules
    rows = [row for row in rows if (row.host_ns - row.ns) * len(rows) >= NOTABLE * profile.sum_ns(*HOST_PARTS)]
    names = [
        Text(
            "{module} takes {host_time} on the host, its kernels only {kernel_time}",
            module=host_name(row.name), host_time=in_ms(row.host_ns / count), kernel_time=in_ms(row.ns / count),
        ) if row.kernels else Text(
            "{module} itself takes {host_time} on the host",
            module=host_name(row.name), host_time=in_ms(row.host_ns / count),
        )
        for row in rows
    ]  # fmt: skip
    return Text("Per step: {module_times}.", joined(SEMICOLON, names)) if names else ""


def _diagnose_blocked_launches(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose time in which the device was idle while the call that launches the next task was blocked.

    The evidence names the longest such call, on which the advice depends. The saving in ns is per step.
    """
    share = percent(profile.share("free_blocked_ns"))
    evidence = Text(
        "For {share} of the time, the device was idle while the call that launches the next task was blocked.", share
    )
    longest = _largest(profile, "free_blocked_ns")
    call = longest.call if longest else ""
    advice = _about_launch(call, repeated=longest is not None and _is_repeated(profile, longest))
    if longest:
        in_call = Text(
            "The longest launch call: {call}, {time}, {place}.", call=host_name(call) or Text("a launch call"),
            time=in_ms(longest.longest_ns), place=first_place(profile, "free_blocked_ns"),
        )  # fmt: skip
        evidence = sentences(evidence, in_call)
    saving = profile.sum_ns("free_blocked_ns") // len(profile.units)
    certainty = Text("upper bound of the saving; the cause is a guess")
    return model.Diagnosis("launch-blocked", "warning", evidence, saving, certainty, advice, profile.source)


def _is_repeated(profile: model.RankProfile, gap: model.FreeGap) -> bool:
    """Tell whether at least half of several steps have a gap at the place."""
    return 2 * gap.units >= len(profile.units) > 1


def _about_launch(call: str, *, repeated: bool) -> str:
    """Return what to do about the launch call ``call`` that blocks: in several steps if ``repeated``, else in one."""
    advice = _IN_EACH_STEP if repeated else _ABOUT_CALL
    return next(about for part, about in advice.items() if part in call.lower())


def _diagnose_stream_wait(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose time in which the device was idle although its next kernel had been launched while it was busy."""
    share = percent(profile.share("free_waiting_ns"))
    evidence = Text(
        "For {share} of the time, the device was idle although its next kernel had been launched in time.", share
    )
    advice = Text(
        "check what streams wait for (events between streams, copies, graph launches), whether another process uses the"
        " device, and whether kernels are missing from the trace"
    )
    return _diagnose_without_cause("waiting", profile, "free_waiting_ns", evidence, advice)


def _diagnose_unknown_idle_time(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose time in which the device was idle before kernels whose launch was not recorded."""
    share = percent(profile.share("free_unknown_ns"))
    evidence = Text(
        "For {share} of the time, the device was idle, and it is unknown when its next kernel was launched.", share
    )
    advice = _RECORD_LAUNCHES.get(profile.form, _RECORD_HOST)
    return _diagnose_without_cause("idle-unknown", profile, "free_unknown_ns", evidence, advice)


def _diagnose_without_cause(
    id_: str, profile: model.RankProfile, part: str, evidence: Text, advice: Text
) -> model.Diagnosis:
    """Diagnose idle time whose cause is unknown, the ``part`` of a step. The saving in ns is per step."""
    saving = profile.sum_ns(part) // len(profile.units)
    certainty = Text("upper bound of the saving; the cause is unknown")
    evidence = sentences(evidence, _most_at(first_place(profile, part)))
    return model.Diagnosis(id_, "warning", evidence, saving, certainty, advice, profile.source)


def _most_at(place: str) -> str:
    return Text("The place with the most idle time: {place}.", place) if place else ""


def _diagnose_before_first_kernel(profile: model.RankProfile, lead_in: int) -> model.Diagnosis:
    """Diagnose the ``lead_in`` ns before the first kernel: a warning with a saving, if there is a single step.

    It is only a note, without a saving, if there are several steps, or if the host waits there for earlier work.
    """
    evidence: Text | str = Text(
        "{time} passed before the first kernel of the first step; this time is not part of any step.", in_ms(lead_in)
    )
    longest = _largest(profile, model.LEAD_IN)
    certainty = Text("the time is an upper bound, because work that began before the recording counts as idle time")
    if longest and longest.call and WAITS.search(longest.call):
        waits = Text(
            "For {share} of the time before the first kernel, the host waits in {call}, presumably for work that was"
            " launched before the recording.",
            share=percent(longest.call_ns / lead_in, 0),
            call=host_name(longest.call),
        )
        return model.Diagnosis("lead-in", "note", sentences(evidence, waits), None, certainty, "", profile.source)
    if longest:
        place = Text(
            "Longest gap between the start of a step and its first kernel: {place}, {time}.",
            place=place_in_words(longest),
            time=in_ms(longest.ns),
        )
        evidence = sentences(evidence, place)
    if len(profile.units) > 1:
        return model.Diagnosis("lead-in", "note", evidence, None, certainty, "", profile.source)
    advice = (
        advice_on_place(profile, longest) if longest else Text("look at what the host does before the first kernel")
    )
    return model.Diagnosis("lead-in", "warning", evidence, lead_in, certainty, advice, profile.source)


def _largest(profile: model.RankProfile, *parts: str) -> model.FreeGap | None:
    """Return the place with the most time in some parts; None without any, or if short gaps elsewhere have more."""
    gap = next((gap for gap in profile.gaps if gap.part in parts), None)
    return gap if gap and gap.kind == "place" else None
