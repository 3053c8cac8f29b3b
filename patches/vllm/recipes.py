"""vLLM: where a rollout and the capture of graphs are recorded, in the V1 engine."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Head, Insertion, Probe, Recipe, Structure, Upstream
from patches import graphs, rollout, vllm_engine
from patches.probes.members import Inherited
from patches.probes.vllm import VllmV1Rollout
from patches.vllm import PROJECT, RELEASES, vllm_timeline, vllm_weights
from patches.vllm.vllm_switches import SWITCHES

_GPU = "vllm/v1/worker/gpu_worker.py"
_CPU = "vllm/v1/worker/cpu_worker.py"
_PROBE = rollout.probe(VllmV1Rollout, **vllm_engine.V1)

_WHY = Text(
    "the usual guides tell you to add torch.profiler, with a schedule, to the worker by hand. If __init__ creates the"
    " profiler and execute_model begins with a call of step(), a schedule for the window 30:60 records the steps"
    " 29..58 instead of 30..59. If step() is called after execute_model has returned, each recorded step combines the"
    " forward of one step with the sampling of the step before"
)

_EXECUTE_MODEL = Insertion(
    "execute_model",
    where=Head(),
    line='self._rlpatch_stage("step", scheduler_output)',
    parameters=("scheduler_output",),
    why=Text(
        "the engine calls this function once per iteration, in the thread that runs the forward. A decode step lasts"
        " from one call to the next, so it contains both forward and sampling, although from 0.11.1 on sampling is in"
        " sample_tokens(), a later call"
    ),
)
WORKER = Recipe(
    name="V1 worker",
    stage="rollout",
    class_name="Worker",
    method="execute_model",
    windows=rollout.ALIGNED,
    probe=_PROBE,
    insertions=(
        _EXECUTE_MODEL,
        rollout.DUMMIES,
        vllm_engine.SLEEP,
        vllm_engine.PROFILE,
    ),
    structures=(
        Structure(
            "A",
            RELEASES.until("0.11.0.post2"),
            _GPU,
            ("66434805bfec", "4e08330e87d6", "059801121bd3", "8c587bebd969", "d06063200c04", "be4887de1b45"),
            Text("execute_model() of the model runner runs both forward and sampling"),
        ),
        Structure(
            "B",
            RELEASES.between("0.11.1", "0.16.0"),
            _GPU,
            ("e311f30713ee", "043be8580d6f", "12d5470f2c88", "e86eea4db6ef"),
            Text(
                "the model runner's execute_model() is called inside annotate_profile() and returns before"
                " the sampling, which is in sample_tokens()"
            ),
        ),
        Structure(
            "C",
            RELEASES.between("0.17.0", "0.24.0"),
            _GPU,
            ("35d8c493a9ad",),
            Text(
                "same code as structure B, but tensors are sent to the next pipeline stage asynchronously, and there"
                " is a branch for pooling models"
            ),
        ),
        Structure(
            "D",
            RELEASES.between("0.25.0", "0.29.0"),
            _GPU,
            ("9124c57bb104", "13da943441f6"),
            Text("same code as structure C, plus the decorator with_gpu_sync_check"),
        ),
        Structure(
            "E",
            RELEASES.since("0.30.0"),
            _GPU,
            ("f9f6dc17dc62", "d23383066806"),
            Text(
                "same code as structure D, plus a branch for pooling models after the tensors are sent to the next"
                " pipeline stage"
            ),
        ),
    ),
    why=_WHY,
    how=Text(
        "inserts one line at the start of execute_model(), one at the start of sleep(), and one in profile(). These"
        " lines call a probe, which is a nested class at the end of Worker. The warm-up of vLLM's model runner V2"
        " calls execute_model(), too; the probe recognizes such calls by the names of their requests, and does not"
        " count them. {busy_period}",
        rollout.BUSY_PERIOD,
    ),
    upstream=Text("{file}; from {release} on, CPUWorker inherits this method", file=_GPU, release="0.11.0"),
    needed_until=vllm_engine.REMOVE,
)

CPU_WORKER = Recipe(
    name=Text("V1 CPU worker"),
    stage="rollout",
    class_name="CPUWorker",
    method="execute_model",
    windows=rollout.ALIGNED,
    probe=_PROBE,
    insertions=(_EXECUTE_MODEL,),
    structures=(
        Structure(
            "CPU",
            RELEASES.between("0.9.1", "0.10.2.post2"),
            _CPU,
            ("8b81ab983ef0",),
            Text("this worker has its own execute_model(), which does not call Worker.execute_model()"),
        ),
    ),
    why=_WHY,
    how=Text(
        "inserts one line at the start of execute_model(). This worker needs no line in profile(), which is inherited"
        " from Worker, and no line in sleep(), which does nothing"
    ),
    upstream=Text(
        "{file}, in releases 0.9.1 to 0.10.2. Releases 0.8.5 and 0.9.0 have no CPU worker for V1; after 0.10.2, the"
        " CPU worker inherits execute_model()",
        _CPU,
    ),
    needed_until=Text("the patch is no longer needed once nobody uses a release below {release} any more", "0.11.0"),
)

CPU_PROFILE = Recipe(
    name=Text("profile() of the V1 CPU worker"),
    stage="rollout",
    class_name="CPUWorker",
    method="profile",
    windows=rollout.ALIGNED,
    probe=Probe(members=(Inherited,), summary=rollout.summary),
    insertions=(vllm_engine.PROFILE,),
    structures=(
        Structure(
            "CPU",
            RELEASES.between("0.11.1", "0.30.0"),
            _CPU,
            ("7db4ffc1b07e", "73c9824bb59e", "7b98ec77a5d1"),
            Text("this worker has its own profile(), which does not call Worker.profile()"),
        ),
    ),
    why=Text("on CPUs, the engine's own profiler starts in this method, and not in Worker.profile()"),
    how=Text("inserts one line in profile(). The line calls a probe, which this worker inherits from Worker"),
    upstream=Text("{file}, {first} to {last}", file=_CPU, first="0.11.1", last="0.30.0"),
    needed_until=Text("the patch is no longer needed once nobody uses a release below {release} any more", "0.31.0"),
    needs=(WORKER.name,),
)

_CAPTURE_HOW = Text(
    "inserts one line before capture_model() and one after it. The trace begins with the first warm-up run and ends"
    " with the last graph. Not in the trace: earlier runs with batch sizes that vLLM compiles but does not capture;"
    " graphs that vLLM captures to estimate memory; torch.compile, which runs earlier, in"
    " determine_available_memory(). Only the first capture of a worker is recorded. Elastic expert parallelism"
    " captures again; --repeat N records the first N captures. If a capture fails, its trace is saved only when the"
    " process ends or the next capture begins"
)
_CAPTURE_IN = Text(
    "compile_or_warm_up_model() runs in the worker's process, in the thread that runs all calls of the worker."
    " compile_or_warm_up_model() is called through collective_rpc: up to 0.26.0 by"
    " Executor.initialize_from_config (vllm/v1/executor/abstract.py), from 0.27.0 on by EngineCore"
)
_CAPTURE_NOTE = Note(
    Text("with enforce_eager no graph is captured, so no trace is written"),
    Text("if the compilation config has no CUDA graphs, no trace is written"),
)

_CAPTURES = Text(
    "this call runs the graph capture and its warm-up, in the worker's thread. The profiler neither starts nor stops"
    " during a capture"
)

CAPTURE = Recipe(
    name=Text("graph capture of the V1 worker"),
    stage=graphs.STAGE,
    class_name="Worker",
    method="compile_or_warm_up_model",
    windows=graphs.WINDOWS,
    probe=graphs.probe(),
    insertions=(graphs.around("compile_or_warm_up_model", "capture_model", _CAPTURES),),
    structures=(
        Structure(
            "A",
            RELEASES.until("0.29.0"),
            _GPU,
            (
                "aa06d8391d97", "780c0fab21b3", "81589dfe7589", "4208baa26719", "65c28563f548", "7e73d7f7ba65",
                "9e1173028ea1", "9fe1d28d2d16", "5bc4b665d67d", "39b24b4bae2e", "ec04b86f4e93", "31cf3f84dbb9",
                "e5f81b5f6e19", "43453e78b96d", "451d85b26835", "f3194ec6b522", "136d55d76199", "15138035b9c9",
                "425afb952cb1",
            ),
            Text(
                "capture_model() is called once, under `if not self.model_config.enforce_eager`; from 0.10.2 on, its"
                " return value is used"),
        ),
        Structure(
            "B",
            RELEASES.between("0.30.0", "0.32.0"),
            _GPU,
            ("8d8144d2a4f6", "a4379f07e2da", "2f7569358dcd"),
            Text("same code as structure A, except that capture_model() is called inside a context manager"),
        ),
    ),
    why=graphs.WHY_IN_VLLM,
    how=_CAPTURE_HOW,
    upstream=Text("{file}. {process}.", file=_GPU, process=_CAPTURE_IN),
    needed_until=graphs.REMOVE_IN_VLLM,
    notes=(_CAPTURE_NOTE, graphs.MANY_SIZES),
)  # fmt: skip

INNER_CAPTURE = CAPTURE._replace(
    name=Text("graph capture of the V1 worker, in a separate method"),
    method="_compile_or_warm_up_model",
    insertions=(graphs.around("_compile_or_warm_up_model", "capture_model", _CAPTURES),),
    structures=(
        Structure(
            "C",
            RELEASES.since("0.33.0"),
            _GPU,
            ("bd98ccdd6655",),
            Text(
                "same code as structure B, in a separate method that compile_or_warm_up_model() calls for both model"
                " runners"
            ),
        ),
    ),
)

_COMPILES = Text(
    "on CPUs no graph is captured. This warm-up run triggers torch.compile, in the thread that calls this method"
)
_COMPILE_HOW = Text(
    "inserts one line before warming_up_model() and one after it. With enforce_eager, warming_up_model() returns at"
    " once, and the trace is empty. From vLLM 0.30.0 on, vLLM does not call warming_up_model() if both enforce_eager"
    " and --kv-cache-memory-bytes are set. vLLM caches what it compiled, so the trace of a second start shows how the"
    " model runs, but no compilation. To record the compilation again, set VLLM_DISABLE_COMPILE_CACHE=1"
)

CPU_WARM_UP = Recipe(
    name=Text("warm-up of the V1 CPU worker"),
    stage=graphs.STAGE,
    class_name="CPUWorker",
    method="compile_or_warm_up_model",
    windows=graphs.WINDOWS,
    probe=graphs.INHERITED,
    insertions=(graphs.around("compile_or_warm_up_model", "warming_up_model", _COMPILES, nested=False),),
    structures=(
        Structure(
            "CPU",
            RELEASES.between("0.9.1", "0.19.1"),
            _CPU,
            ("ace7adfbd290", "2a4dd5b44b31"),
            Text("this worker has its own compile_or_warm_up_model(), which always calls warming_up_model()"),
        ),
    ),
    why=graphs.WHY_IN_VLLM,
    how=_COMPILE_HOW,
    upstream=Text("{file}, {first} to {last}", file=_CPU, first="0.9.1", last="0.19.1"),
    needed_until=Text("the patch is no longer needed once nobody uses a release below {release} any more", "0.20.0"),
    needs=(CAPTURE.name, INNER_CAPTURE.name),
)

CPU_COMPILE = CPU_WARM_UP._replace(
    name=Text("torch.compile in the V1 CPU worker"),
    method="determine_available_memory",
    insertions=(graphs.around("determine_available_memory", "warming_up_model", _COMPILES),),
    structures=(
        Structure(
            "CPU",
            RELEASES.since("0.20.0"),
            _CPU,
            ("475486aa9800", "def2e56b1873", "6779b8f400e6"),
            Text(
                "before this worker creates the KV cache, it runs the model once to measure the free memory; this run"
                " also compiles the model. From vLLM 0.30.0 on, there is no such run if torch.compile is off and"
                " --kv-cache-memory-bytes is set"
            ),
        ),
    ),
    upstream=Text(
        "{file}, from {release} on. A model without a KV cache is compiled elsewhere and not recorded",
        file=_CPU,
        release="0.20.0",
    ),
    needed_until=graphs.REMOVE_IN_VLLM,
)

_BY_HAND = Text(
    "vLLM's own profiler also counts prefill iterations, cannot choose a rollout, and needs an HTTP or RPC call at the"
    " right moment. But it works without a patch and can be switched on and off while the engine runs."
)
_DELAYED = Text(
    "{profiler} records max_iterations iterations, beginning delay_iterations iterations after start_profile(), and"
    " writes no ProfilerStep marks. {by_hand}"
)
UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        WORKER,
        CPU_WORKER,
        CPU_PROFILE,
        CAPTURE,
        INNER_CAPTURE,
        CPU_WARM_UP,
        CPU_COMPILE,
        *vllm_timeline.RECIPES,
        *vllm_weights.RECIPES,
    ),
    switches=SWITCHES,
    tool="torch",
    processes=Processes(modules=("vllm",), scripts=("vllm",), titles=("VLLM::",)),
    neighbours={
        "vllm_ascend": Note(
            Text("on NPUs, use `rlpatch apply vllm-ascend`: vLLM's worker does not run there"),
            Text(
                "vllm-ascend is installed, too: on NPUs vllm-ascend's NPUWorker runs instead of the worker that"
                " is patched here"
            ),
        ),
    },
    builtin={
        "<0.12.0": Text(
            "With VLLM_TORCH_PROFILER_DIR, vLLM's own profiler records everything on every rank from start_profile()"
            " to stop_profile(), by default with stacks. This profiler has no window, and needs an HTTP or RPC call at"
            " the right moment."
        ),
        ">=0.12.0,<0.13.0": _DELAYED.filled(
            profiler=Text("VLLM_TORCH_PROFILER_DIR with VLLM_PROFILER_DELAY_ITERS and VLLM_PROFILER_MAX_ITERS"),
            by_hand=_BY_HAND,
        ),
        ">=0.13.0,<0.18.0": _DELAYED.filled(profiler="--profiler-config", by_hand=_BY_HAND),
        ">=0.18.0": Text(
            "--profiler-config with wait_iterations, warmup_iterations and active_iterations records a window"
            " after start_profile(), like torch.profiler's schedule. {by_hand}",
            _BY_HAND,
        ),
    },
)
