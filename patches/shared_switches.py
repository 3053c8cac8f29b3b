"""Switches of other profilers in more than one project: variables, options, and programs that wrap a run."""

from __future__ import annotations

from patcher.messages import Text
from patcher.switches import Form, State, Switch

ENGINE = Text("the engine's own profiler")
MSMONITOR = "msMonitor"
DYNAMIC = Text("torch_npu's dynamic profiling")
MSPROF = Text("CANN's msprof")
NSYS = "Nsight Systems"
NCU = "Nsight Compute"
ROCPROF = Text("ROCm's rocprof")

ENGINE_VARIABLE = Switch(
    profiler=ENGINE,
    form=Form.VARIABLE,
    name="VLLM_TORCH_PROFILER_DIR",
    otherwise=State.ARMED,
    why=Text(
        "the worker creates a profiler for this directory when it starts, and records from /start_profile or"
        " LLM.start_profile() on. vLLM 0.10 to 0.12 treat an empty value as the working directory, so to switch the"
        " profiler off, unset the variable"
    ),
    source="vllm_ascend/worker/worker_v1.py and worker/worker.py, 0.7.1rc1 to 0.13.0 (V0 and V1); vllm/envs.py",
    off="unset VLLM_TORCH_PROFILER_DIR",
)
ENGINE_DEPRECATED = ENGINE_VARIABLE._replace(
    why=Text(
        "vLLM 0.13 to 0.15 copy this deprecated variable to --profiler-config; recording begins with"
        " /start_profile or LLM.start_profile()"
    ),
    source="vllm/config/profiler.py, vLLM pull requests 29912 (0.13.0) and 33536 (gone from 0.16.0)",
)
ENGINE_IGNORED = ENGINE_VARIABLE._replace(
    otherwise=State.OFF,
    why=Text(
        "the variable is set, but vLLM ignores it from 0.16.0 on; the engine's profiler is set up with"
        " --profiler-config instead"
    ),
    source="vllm/config/profiler.py and vllm/envs.py without the variable, from 0.16.0; vLLM pull request 33536",
)
_VLLM = r"(.*/)?vllm|vllm\.entrypoints\..+|.*vllm-openai(:.*)?"
_VLLM_FLAGS = (
    "--(enforce-eager|trust-remote-code|headless|async-scheduling|multi-step-stream-outputs|fully-sharded-loras"
    "|(enable|disable|no|skip|use|return|allow|calculate|show|log|optimized)-.+|data-parallel-(hybrid|external)-lb)"
)
ENGINE_OPTION = Switch(
    profiler=ENGINE,
    form=Form.OPTION,
    name="--profiler-config",
    keys=("profiler", "torch_profiler_dir"),
    values=(("", State.OFF), ("0", State.OFF), ("null", State.OFF), ("none", State.OFF)),
    otherwise=State.ARMED,
    why=Text(
        "with some values, this option makes the worker create a profiler that starts to record at /start_profile or"
        " LLM.start_profile()"
    ),
    source="vllm_ascend/worker/worker.py from 0.14.0rc1, vllm_ascend/profiler/torch_npu_profiler.py from 0.20.2rc1",
    off="leave out --profiler-config and --profiler-config.*",
    programs=_VLLM,
    flags=_VLLM_FLAGS,
    files="--config",
)

_DAEMON_VALUES = (("", State.OFF), ("0", State.OFF), ("1", State.ARMED))
DAEMON = Switch(
    profiler=MSMONITOR,
    form=Form.VARIABLE,
    name="MSMONITOR_USE_DAEMON",
    values=_DAEMON_VALUES,
    otherwise=State.UNKNOWN,
    why=Text(
        "with the value 1, torch_npu connects to the dynolog daemon and advances torch_npu's own profiler at each"
        " optimizer step. The profiler starts to record when `dyno nputrace` is run. Other values have no effect"
    ),
    source="torch_npu/profiler/_non_intrusive_profile.py, from 2.7.1",
    off="unset MSMONITOR_USE_DAEMON",
)
DAEMON_STEPPED = DAEMON._replace(
    why=Text(
        "in each execute_model() the worker advances torch_npu's dynamic profiler, which starts to record when `dyno"
        " nputrace` is run. If MSMONITOR_USE_DAEMON is a number other than 1, this profiler is not set up; if the"
        " variable is not a number, the worker stops with an error"
    ),
    source="vllm_ascend/envs.py, 0.11.0rc0 to 0.26.0rc1; torch_npu/profiler/_non_intrusive_profile.py",
)
KINETO_DAEMON = DAEMON._replace(
    name="KINETO_USE_DAEMON",
    why=Text(
        "this is the older name of MSMONITOR_USE_DAEMON; if both are set, MSMONITOR_USE_DAEMON takes precedence. On"
        " GPUs, the older name makes libkineto connect to dynolog"
    ),
    source="torch_npu/profiler/_non_intrusive_profile.py, from 2.5.1",
    off="unset KINETO_USE_DAEMON",
)
DAEMON_OPTION = Switch(
    profiler=MSMONITOR,
    form=Form.OPTION,
    name="--additional-config",
    keys=("msmonitor_use_daemon",),
    values=(
        ("", State.OFF), ("0", State.OFF), ("false", State.OFF), ("null", State.OFF),
        ("1", State.ARMED), ("true", State.ARMED),
    ),
    otherwise=State.UNKNOWN,
    why=Text(
        "in each execute_model() the worker advances torch_npu's dynamic profiler, which starts to record when `dyno"
        " nputrace` is run; MSMONITOR_USE_DAEMON has no effect beside this option"
    ),
    source="vllm_ascend/ascend_config.py and worker/worker.py, from 0.20.2rc1",
    off=Text("leave msmonitor_use_daemon out of --additional-config"),
    programs=_VLLM,
    flags=_VLLM_FLAGS,
    files="--config",
    releases=">=0.20.2rc1",
    code=("msmonitor_use_daemon",),
)  # fmt: skip

_DYNAMIC = Switch(
    profiler=DYNAMIC,
    form=Form.VARIABLE,
    name="PROF_CONFIG_PATH",
    otherwise=State.ARMED,
    why=Text(
        "torch_npu watches profiler_config.json in this folder, and starts to record when the file changes during the"
        " run; a file that already exists at the start has no effect until it changes"
    ),
    source="torch_npu/profiler/_non_intrusive_profile.py and _dynamic_profiler/, 2.1.0.post8 to 2.14.0",
    off="unset PROF_CONFIG_PATH",
)

_MSPROF_MODE = Switch(
    profiler=MSPROF,
    form=Form.VARIABLE,
    name="PROFILING_MODE",
    values=(("", State.OFF), ("0", State.UNKNOWN), ("false", State.UNKNOWN)),
    otherwise=State.ON,
    why=Text(
        "with this variable, CANN itself records the device, and in this case newer torch_npu profilers record"
        " nothing and report no error. Every non-empty value has this effect, even `false` and `0`, so unset the"
        " variable"
    ),
    source="torch_npu/profiler/analysis/prof_common_func/_utils.py check_msprof_env, 2.13.0 and 2.14.0; CANN, dynamic "
    "profiling in attach mode",
    off="unset PROFILING_MODE",
)
_MSPROF_SAMPLE = _MSPROF_MODE._replace(
    name="PROFILER_SAMPLECONFIG",
    values=(("", State.OFF), ("0", State.UNKNOWN)),
    why=Text(
        "msprof passes its settings in this variable and records from the program's start; while msprof records, the"
        " profilers of newer torch_npu versions record nothing and report no error"
    ),
    off="unset PROFILER_SAMPLECONFIG",
)
_MSPROF_PROGRAM = _MSPROF_SAMPLE._replace(
    form=Form.PROGRAM,
    name="msprof",
    programs=r"msprof( .*)?",
    why=Text("msprof sets PROFILER_SAMPLECONFIG for the program and records from the program's start"),
    source="CANN's msprof command; torch_npu/profiler/analysis/prof_common_func/_utils.py check_msprof_env",
    off=Text("start the program without msprof"),
)

# What torch_npu and CANN look at in every process, whatever the framework is.
OUTSIDE = (_DYNAMIC, _MSPROF_MODE, _MSPROF_SAMPLE, _MSPROF_PROGRAM)
TORCH_NPU = (DAEMON, KINETO_DAEMON, *OUTSIDE)

# CUPTI serves one subscriber in a process, so torch.profiler gets no kernels under Nsight's tools.
_NSYS = Switch(
    profiler=NSYS,
    form=Form.PROGRAM,
    name="nsys",
    programs=r"nsys( -\S+)* profile (?!-h|--help).*",
    otherwise=State.ON,
    why=Text(
        "`nsys profile` records each process that it starts; CUPTI allows only one subscriber per process, so"
        " torch.profiler gets no kernels in these processes"
    ),
    source="CUPTI's documentation, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39); nsys's command line",
    off=Text("start the program without nsys"),
)
_NSYS_LAUNCH = _NSYS._replace(
    programs=r"nsys( -\S+)* launch (?!-h|--help).*",
    otherwise=State.ARMED,
    why=Text("once `nsys start` is run, nsys records the processes that `nsys launch` has started"),
)
_NSYS_SESSION = _NSYS._replace(
    form=Form.VARIABLE,
    name="NSYS_PROFILING_SESSION_ID",
    programs="",
    why=Text(
        "nsys sets this variable in the processes that it records; torch.profiler gets no kernels in these processes"
    ),
    source="NVTX.jl src/NVTX.jl and GROMACS pmalloc.cpp look for it; nsys sets it when its session starts",
    off=Text("start rlpatch again outside of nsys, which has set NSYS_PROFILING_SESSION_ID"),
)
_NCU = _NSYS._replace(
    profiler=NCU,
    name="ncu",
    programs=r"ncu (?!(.* )?(--import|-i)[ =](?!.*\.py)|--(version|help|list|query)|-[vh]( |$)).*",
    why=Text(
        "ncu runs each kernel several times and occupies CUPTI's only subscription, so times measured by another"
        " profiler are wrong"
    ),
    source="Nsight Compute's command line; CUPTI's documentation, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)",
    off=Text("start the program without ncu"),
)
_NCU_SESSION = _NSYS_SESSION._replace(
    profiler=NCU,
    name="NV_NSIGHT_INJECTION_TRANSPORT_TYPE",
    why=Text(
        "ncu sets this variable in the processes that it profiles; torch.profiler gets no kernels in these processes"
    ),
    source="GROMACS pmalloc.cpp looks for it",
    off=Text("start rlpatch again outside of ncu, which has set NV_NSIGHT_INJECTION_TRANSPORT_TYPE"),
)
_ROCPROF = _NSYS._replace(
    profiler=ROCPROF,
    name="rocprof",
    programs=r"rocprof(v[23]|-sys-(run|sample)|-compute profile)? (?!--(version|help|list)|-[vhL]( |$)).*",
    why=Text("rocprof records the kernels of each process that it starts, regardless of any profiler in the process"),
    source="ROCm's rocprof, rocprofv2, rocprofv3, rocprof-sys-run and rocprof-compute; their command lines",
    off=Text("start the program without rocprof"),
)
_ROCPROF_TOOL = _NSYS_SESSION._replace(
    profiler=ROCPROF,
    name="ROCP_TOOL_LIBRARIES",
    why=Text("rocprofv3 loads its recording library into each process through this variable"),
    source="ROCprofiler-SDK's rocprofv3.py and librocprofiler-register, ROCP_TOOL_LIBRARIES",
    off="unset ROCP_TOOL_LIBRARIES",
)
_RAY_NSIGHT = _NSYS._replace(
    form=Form.KEY,
    name="nsight",
    programs="",
    why=Text(
        "Ray starts the workers of this runtime environment with nsys profile; CUPTI allows only one subscriber"
        " per process, so torch.profiler gets no kernels in these workers"
    ),
    source="ray/_private/runtime_env/nsight.py NsightPlugin, 2.60.0",
    off=Text("leave nsight out of Ray's runtime environment"),
)
_NEMO = _NSYS_SESSION._replace(
    name="NRL_NSYS_WORKER_PATTERNS",
    why=Text(
        "each worker whose name matches this pattern runs under nsys, so torch.profiler gets no kernels in these"
        " workers"
    ),
    source="nemo_rl/distributed/worker_group_utils.py get_nsight_config_if_pattern_matches",
    off="unset NRL_NSYS_WORKER_PATTERNS",
)

# What records the processes of a run on GPUs from outside, whatever the framework is.
GPU = (_NSYS, _NSYS_LAUNCH, _NSYS_SESSION, _NEMO, _RAY_NSIGHT, _NCU, _NCU_SESSION, _ROCPROF, _ROCPROF_TOOL)
