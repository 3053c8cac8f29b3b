"""Every switch says why, where upstream and how to switch it off, and exists in the right releases."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patcher.switches import Form, State, Switch
from patches.projects import upstreams
from patches.shared_switches import GPU, MSPROF
from patches.verl.verl_switches import SWITCHES as VERL
from patches.vllm.vllm_switches import SWITCHES as VLLM
from patches.vllm_ascend.vllm_ascend_switches import SWITCHES as VLLM_ASCEND

ALL = [(f"{upstream.project.name} {switch.name}", switch) for upstream in upstreams() for switch in upstream.switches]
"""Each switch with a name for messages."""


def test_every_switch_is_documented() -> None:
    for name, switch in ALL:
        assert len(switch.why) > 40, name
        assert re.search(r"\.py|CANN|CUPTI|ROCm|GROMACS|libkineto", switch.source), name  # an upstream file or tool
        assert switch.name in switch.off or any(key in switch.off for key in switch.keys), name
        assert switch.profiler, name
        SpecifierSet(switch.releases)
        for row in switch.requested_by:
            for pattern in row:
                re.compile(pattern)


def test_empty_and_zero_mean_off_and_an_unknown_value_is_said() -> None:
    for name, switch in ALL:
        # To newer releases of torch_npu a value of CANN's is a value, whatever it is.
        zero = State.UNKNOWN if switch.profiler == MSPROF else State.OFF
        unset = State.OFF if switch.otherwise is State.OFF else State.UNKNOWN
        assert [switch.state(value) for value in ("", "0", " 0 ", None)] == [State.OFF, zero, zero, unset], name
        assert bool(switch.keys) == (switch.form is Form.OPTION), name


def test_states_rise_in_severity() -> None:
    assert [one.severity for one in (State.OFF, State.ARMED, State.UNKNOWN, State.ON)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("switches", "version", "names"),
    [
        (VLLM_ASCEND, "0.7.1rc1", "VLLM_TORCH_PROFILER_DIR MSMONITOR_USE_DAEMON"),
        (VLLM_ASCEND, "0.13.0", "VLLM_TORCH_PROFILER_DIR MSMONITOR_USE_DAEMON"),
        (VLLM_ASCEND, "0.14.0rc1", "VLLM_TORCH_PROFILER_DIR --profiler-config MSMONITOR_USE_DAEMON"),
        (VLLM_ASCEND, "0.15.0rc1", "VLLM_TORCH_PROFILER_DIR --profiler-config MSMONITOR_USE_DAEMON"),
        (VLLM_ASCEND, "0.16.0rc1", "--profiler-config MSMONITOR_USE_DAEMON"),
        (VLLM_ASCEND, "0.19.1rc1", "--profiler-config MSMONITOR_USE_DAEMON"),
        (VLLM_ASCEND, "0.20.2rc1", "--profiler-config MSMONITOR_USE_DAEMON --additional-config"),
        (VLLM_ASCEND, "0.27.1rc1", "--profiler-config MSMONITOR_USE_DAEMON --additional-config"),
        (VLLM, "0.12.0", "VLLM_TORCH_PROFILER_DIR"),
        (VLLM, "0.13.0", "VLLM_TORCH_PROFILER_DIR --profiler-config"),
        (VLLM, "0.16.0", "--profiler-config"),
        (VERL, "0.2", "VLLM_TORCH_PROFILER_DIR MSMONITOR_USE_DAEMON"),
        (VERL, "0.7.0", "VLLM_TORCH_PROFILER_DIR MSMONITOR_USE_DAEMON"),
        (VERL, "0.7.1", "MSMONITOR_USE_DAEMON"),
        (VERL, "0.9.1", "MSMONITOR_USE_DAEMON"),
    ],
)
def test_releases_at_the_borders(switches: tuple[Switch, ...], version: str, names: str) -> None:
    everywhere = {
        "KINETO_USE_DAEMON",
        "PROF_CONFIG_PATH",
        "PROFILING_MODE",
        "PROFILER_SAMPLECONFIG",
        "msprof",
        *(switch.name for switch in GPU),
    }
    there = [
        one.name
        for one in switches
        if one.otherwise is not State.OFF
        and one.name not in everywhere
        and SpecifierSet(one.releases).contains(Version(version), prereleases=True)
    ]
    assert there == names.split()


def test_one_reason_per_release_for_the_daemon() -> None:
    def why(version: str) -> str:
        (one,) = [
            one
            for one in VLLM_ASCEND
            if one.name == "MSMONITOR_USE_DAEMON"
            and SpecifierSet(one.releases).contains(Version(version), prereleases=True)
        ]
        return one.why

    assert "execute_model" in why("0.11.0rc0")
    assert "execute_model" in why("0.26.0rc1")
    assert "execute_model" not in why("0.10.2rc1")
    assert "execute_model" not in why("0.27.1rc1")
