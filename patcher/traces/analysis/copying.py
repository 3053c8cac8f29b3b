"""Exposed copies by their direction, which decides what helps."""

from __future__ import annotations

import re
from collections import Counter

from patcher.messages import COMMA, Text, joined
from patcher.traces import model
from patcher.traces.words import host_name, in_ms, percent

NOTABLE = 0.05
"""The share of the time from which on exposed copies are worth a finding."""

_TO_DEVICE, _TO_HOST, _WITHIN, _PEER, _SET, _UNKNOWN = "to-device", "to-host", "within", "peer", "set", "unknown"
_PATTERNS = (
    # kineto: Memcpy HtoD (Pinned -> Device), CopyHostToDevice of ROCm, Memset (Device); MEMCPY_INFO of torch_npu's db
    (_SET, re.compile(r"memset|fill_?buffer", re.I)),
    (_TO_DEVICE, re.compile(r"HtoD|host_?to_?device|H2D", re.I)),
    (_TO_HOST, re.compile(r"DtoH|device_?to_?host|D2H", re.I)),
    (_PEER, re.compile(r"PtoP|peer_?to_?peer|P2P", re.I)),
    (_WITHIN, re.compile(r"DtoD|device_?to_?device|D2D", re.I)),
)
_LABELS = {
    _TO_DEVICE: Text("host to device"),
    _TO_HOST: Text("device to host"),
    _WITHIN: Text("within the device"),
    _PEER: Text("between devices"),
    _SET: Text("memsets"),
    _UNKNOWN: Text("of unknown direction"),
}
_ADVICE = {
    _TO_DEVICE: Text(
        "copy from pinned memory with non_blocking=True on a separate stream, or keep the data on the device"
    ),
    _TO_HOST: Text("transfer fewer tensors to the host (.item(), .cpu(), .tolist()), or read them later in one copy"),
    _WITHIN: Text("avoid copies of tensors (contiguous(), clone(), cat): write into the destination"),
    _PEER: Text("overlap transfers between devices with computing, or send less"),
    _SET: Text("reuse buffers instead of zeroing new ones"),
    _UNKNOWN: Text("to find out the direction of these copies, look at the operators that launch them"),
}
_LARGE_NS = 1_000_000
"""Mean time of a copy from which on it is no copy of single numbers, in ns."""

_LARGE_TO_HOST = Text(
    "copy less to the host, or copy to pinned memory on a separate stream, so that no kernel waits for the copy"
)
_LARGE_BOTH_WAYS = Text(
    "copy less between host and device, or let kernels run meanwhile: from and to pinned memory, on a separate stream"
)
_EQUAL = 0.8  # part of the time of the largest direction from which on the next one is named, too
_PINNED = Text(
    "the source memory is already pinned: keep the tensors on the device, or start the copy earlier on a separate"
    " stream, so that kernels run meanwhile"
)
_TO_PINNED = Text("the destination memory is already pinned: copy less to the host, so that kernels wait less")


def direction(name: str) -> str:
    """Return the direction of a copy by its name: to-device, to-host, within, peer, set or unknown."""
    return next((way for way, pattern in _PATTERNS if pattern.search(name)), _UNKNOWN)


def direction_words(name: str) -> str:
    """Return the direction of a copy in words, by its name."""
    return _LABELS[direction(name)]


def _copying_before(profile: model.RankProfile, most: int) -> int:
    """Return the ns of copies before the first kernel, if the last step lacks such a time; at most ``most``.

    It is what the device was not idle of that time. A copy for the step after the last one is not recorded.
    """
    idle = sum(gap.ns for gap in profile.gaps if gap.part == model.LEAD_IN)
    return max(min(profile.cut_ns - idle, most), 0)


def diagnose_copies(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose copies that neither computing nor communication hides, by direction; None under 5 % of the time.

    The advice is for the direction whose copies, exposed or not, take most time. The saving is the exposed time in ns
    per step.
    """
    exposed = profile.sum_ns("copy_ns")
    if exposed < NOTABLE * (profile.total_ns or 1):
        return None
    times, calls, pinned = Counter[str](), Counter[str](), Counter[str]()
    for kernel in profile.kernels:
        if kernel.kind == model.COPY:
            times[direction(kernel.name)] += kernel.ns
            calls[direction(kernel.name)] += kernel.calls
            pinned[direction(kernel.name)] += kernel.ns if "Pinned" in kernel.name else 0
    if not times:  # copies of a unit that was not asked for reach into those that were
        times[_UNKNOWN] = exposed
    largest = max(times, key=lambda way: times[way])
    count = len(profile.units)
    ways = joined(
        COMMA,
        (Text("{time} {direction}", time=in_ms(ns / count), direction=_LABELS[way]) for way, ns in times.most_common()),
    )
    evidence = Text(
        "{share} of the time is exposed copies. Time of all copies per step, exposed or not: {times}.",
        share=percent(exposed / profile.total_ns),
        times=ways,
    )
    advice = _ADVICE[largest]
    if largest == _TO_DEVICE and 2 * pinned[largest] > times[largest]:
        advice = _PINNED
    elif largest == _TO_HOST and times[largest] > _LARGE_NS * calls[largest]:
        advice = _TO_PINNED if 2 * pinned[largest] > times[largest] else _LARGE_TO_HOST
    certainty = Text("upper bound of the saving: the measured time of exposed copies")
    saving = (exposed + _copying_before(profile, sum(times.values()) - exposed)) // count
    (_, most_ns), (second, second_ns) = [*times.most_common(2), ("", 0)][:2]
    directions = _LABELS[largest]
    if second_ns >= _EQUAL * most_ns:
        directions = Text("{direction} and {second}", direction=directions, second=_LABELS[second])
        if {largest, second} == {_TO_HOST, _TO_DEVICE} and times[largest] > _LARGE_NS * calls[largest]:
            advice = _LARGE_BOTH_WAYS
    headline = Text("Exposed copies; most copying time: {direction}", directions)
    if launcher := _main_launcher(profile, sum(times.values())):
        headline = Text("{title}, launched in {frame}", title=headline, frame=host_name(launcher))
    return model.Diagnosis(
        "copies", "warning", evidence, saving, certainty, advice, profile.source, culprit=directions,
        headline=headline,
    )  # fmt: skip


def _main_launcher(profile: model.RankProfile, whole: int) -> str:
    """Return the frame or range that launched copies with over half of ``whole`` ns, in all steps; "" without one."""
    launched_ns = Counter[str]()
    for launch in profile.copy_launches.values():
        launched_ns[launch.name] += launch.ns
    return next((name for name, ns in launched_ns.most_common(1) if 2 * ns > whole), "")
