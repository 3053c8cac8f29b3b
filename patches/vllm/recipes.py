"""vLLM: where a rollout and the capture of graphs are recorded, in the V1 engine."""

from __future__ import annotations

from patcher.messages import Note, Text, joined
from patcher.processes import Processes
from patcher.recipe import Head, Insertion, Probe, Recipe, Structure, Upstream
from patches import graphs, rollout, vllm_engine
from patches.probes.members import Inherited
from patches.probes.vllm import VllmV1Rollout
from patches.vllm import PROJECT, RELEASES, vllm_timeline, vllm_weights
from patches.vllm.vllm_switches import SWITCHES

_GPU = "vllm/v1/worker/gpu_worker.py"
_CPU = "vllm/v1/worker/cpu_worker.py"
_LOGGER = "vllm.rlpatch"  # below vLLM's own logger, so that its handlers show our lines
_PROBE = rollout.probe(VllmV1Rollout, logger=_LOGGER, **vllm_engine.V1)

_WHY = Text(
    "guides add torch.profiler with a schedule to the worker by hand: started in __init__ and stepped at the head it"
    " records 29..58 for 30:60, stepped behind the call the forward of one step with the sampling of the step before"
)
_REMOVE = Text("the engine's own profiler takes a window of decode steps, per rollout and rank, and marks them")

_EXECUTE_MODEL = Insertion(
    "execute_model",
    where=Head(),
    line='self._rlpatch_stage("step", scheduler_output)',
    parameters=("scheduler_output",),
    why=Text(
        "once per engine iteration, in the forward's thread; a unit reaches from here to here, so it holds its forward"
        " and its sampling although sample_tokens() is called later from 0.11.1 on"
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
            Text("the call runs the forward and the sampling"),
        ),
        Structure(
            "B",
            RELEASES.between("0.11.1", "0.16.0"),
            _GPU,
            ("e311f30713ee", "043be8580d6f", "12d5470f2c88", "e86eea4db6ef"),
            Text("the call stands within annotate_profile() and returns before the sampling, in sample_tokens()"),
        ),
        Structure(
            "C",
            RELEASES.between("0.17.0", "0.24.0"),
            _GPU,
            ("35d8c493a9ad",),
            Text("B, with asynchronous sends of the pipeline and a branch for pooling"),
        ),
        Structure(
            "D",
            RELEASES.between("0.25.0", "0.29.0"),
            _GPU,
            ("9124c57bb104", "13da943441f6"),
            Text("C, decorated with with_gpu_sync_check"),
        ),
        Structure(
            "E",
            RELEASES.since("0.30.0"),
            _GPU,
            ("f9f6dc17dc62", "d23383066806"),
            Text("D, and pooling also after the sends"),
        ),
    ),
    why=_WHY,
    how=Text(
        "one line at the head of execute_model() and of sleep(), one in profile(); the probe is one nested class at the"
        " end of Worker. The warm-up of the second model runner passes here too, and is told by the names of its"
        " requests. {busy_period}",
        rollout.BUSY_PERIOD,
    ),
    upstream=f"{_GPU}, which CPUWorker inherits from 0.11.0 on",
    remove_when=_REMOVE,
)

CPU_WORKER = Recipe(
    name=Text("V1 worker for CPUs"),
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
            Text("an execute_model() of its own, which does not call that of Worker"),
        ),
    ),
    why=_WHY,
    how=Text("as in Worker, whose profile() it inherits; its sleep() does nothing"),
    upstream=f"{_CPU}, 0.9.1 to 0.10.2; 0.8.5 and 0.9.0 have no CPU worker for V1, later ones inherit execute_model()",
    remove_when=Text("nobody runs releases below 0.11.0 any more"),
)

CPU_PROFILE = Recipe(
    name=Text("V1 worker for CPUs, profile()"),
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
            Text("a profile() of its own, which does not call that of Worker"),
        ),
    ),
    why=Text("the engine's own profiler is started here and not in Worker"),
    how=Text("one line in profile(); the rest is inherited from Worker"),
    upstream=f"{_CPU}, 0.11.1 to 0.30.0",
    remove_when=Text("nobody runs releases below 0.31.0 any more"),
    needs=(WORKER.name,),
)

_CAPTURE_WHY = Text(
    "a graph that is replayed has one launch and no operators: which of them launched a kernel, and on what shapes, is"
    " only seen while it is captured, with --contents npu,cpu,shapes. Guides start the profiler in"
    " EngineCore._initialize_kv_caches() (vllm/v1/engine/core.py), which sees nothing where the worker is another"
    " process"
)
_CAPTURE_HOW = Text(
    "one line before capture_model() and one behind it, so the trace begins with its first warm-up run and ends with"
    " its last graph. The runs before it, for sizes that are compiled alone, are left out, and so are the graphs that"
    " vLLM captures to estimate their memory. torch.compile has done its work by then, in the profile run of"
    " determine_available_memory(). If the capture raises, the engine does not start; its trace is saved when the"
    " process ends, or before the next capture in it. Only the first capture of a worker counts: elastic expert"
    " parallelism captures again, and --repeat N records the first N"
)
_CAPTURE_IN = Text(
    "compile_or_warm_up_model() runs in the worker's process, in the thread of all its calls. It is called through"
    " collective_rpc, by Executor.initialize_from_config (vllm/v1/executor/abstract.py) up to 0.26.0 and by EngineCore"
    " from 0.27.0 on"
)
_CAPTURE_NOTE = Note(
    Text("with enforce_eager nothing is captured, and there is no trace"),
    Text("nor is there one where the compilation config has no CUDA graphs"),
)
_CAPTURE_REMOVE = Text("the engine's own profiler can be started before the capture in the process of the worker")

_CAPTURES = Text("the capture and its warm-up runs, in the worker's thread; start and stop lie outside of every graph")

CAPTURE = Recipe(
    name=Text("V1 worker, capture"),
    stage=graphs.STAGE,
    class_name="Worker",
    method="compile_or_warm_up_model",
    windows=graphs.WINDOWS,
    probe=graphs.probe(logger=_LOGGER),
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
            Text("one call under `if not self.model_config.enforce_eager`; what it returns is kept from 0.10.2 on"),
        ),
        Structure(
            "B",
            RELEASES.between("0.30.0", "0.32.0"),
            _GPU,
            ("8d8144d2a4f6", "a4379f07e2da", "2f7569358dcd"),
            Text("A, within a context of the capture"),
        ),
    ),
    why=_CAPTURE_WHY,
    how=_CAPTURE_HOW,
    upstream=f"{_GPU}. {_CAPTURE_IN}",
    remove_when=_CAPTURE_REMOVE,
    notes=(_CAPTURE_NOTE, graphs.MANY_SIZES),
)  # fmt: skip

INNER_CAPTURE = CAPTURE._replace(
    name=Text("V1 worker, capture within"),
    method="_compile_or_warm_up_model",
    insertions=(graphs.around("_compile_or_warm_up_model", "capture_model", _CAPTURES),),
    structures=(
        Structure(
            "C",
            RELEASES.since("0.33.0"),
            _GPU,
            ("bd98ccdd6655",),
            Text("B, in a method of its own that compile_or_warm_up_model() calls for both model runners"),
        ),
    ),
)

_COMPILES = Text("on CPUs no graph is captured: this is the run that makes torch.compile compile, on the same thread")
_COMPILE_HOW = Text(
    "as in Worker, around warming_up_model(); with enforce_eager it returns at once, and the trace is empty, or from"
    " 0.30.0 on it may not be called at all. vLLM keeps what it compiled: a second start shows the model run, and no"
    " compilation, unless VLLM_DISABLE_COMPILE_CACHE=1 is set"
)

CPU_WARM_UP = Recipe(
    name=Text("V1 worker for CPUs, warm-up"),
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
            Text("a warm-up of its own, always run"),
        ),
    ),
    why=_CAPTURE_WHY,
    how=_COMPILE_HOW,
    upstream=f"{_CPU}, 0.9.1 to 0.19.1",
    remove_when=Text("nobody runs releases below 0.20.0 any more"),
    needs=(CAPTURE.name, INNER_CAPTURE.name),
)

CPU_COMPILE = CPU_WARM_UP._replace(
    name=Text("V1 worker for CPUs, compilation"),
    method="determine_available_memory",
    insertions=(graphs.around("determine_available_memory", "warming_up_model", _COMPILES),),
    structures=(
        Structure(
            "CPU",
            RELEASES.since("0.20.0"),
            _CPU,
            ("475486aa9800", "def2e56b1873", "6779b8f400e6"),
            Text(
                "compiles before the KV cache is made, to know how much memory is left; under a condition from 0.30.0"
                " on"
            ),
        ),
    ),
    upstream=f"{_CPU}, from 0.20.0 on; a model without a KV cache is compiled elsewhere and not recorded",
    remove_when=_CAPTURE_REMOVE,
)

_BY_HAND = Text(
    "It counts prefill and decode iterations alike, cannot choose a rollout, and needs an HTTP or RPC call at the right"
    " moment. It can be switched on and off while the engine runs, without any patch."
)
_DELAYED = Text(
    "records max_iterations iterations, delay_iterations after start_profile(), without ProfilerStep marks."
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
            Text("on NPUs vllm-ascend's worker runs instead: rlpatch apply vllm-ascend"),
            Text("vllm-ascend is here, too: on NPUs its NPUWorker replaces the worker that is patched here"),
        ),
    },
    builtin={
        "<0.12.0": Text(
            "VLLM_TORCH_PROFILER_DIR records all that happens on every rank from start_profile() to"
            " stop_profile(), with stacks by default: it has no window. It needs an HTTP or RPC call at the right"
            " moment."
        ),
        ">=0.12.0,<0.13.0": joined(
            " ",
            ("VLLM_TORCH_PROFILER_DIR with VLLM_PROFILER_DELAY_ITERS and VLLM_PROFILER_MAX_ITERS", _DELAYED, _BY_HAND),
        ),
        ">=0.13.0,<0.18.0": joined(" ", ("--profiler-config", _DELAYED, _BY_HAND)),
        ">=0.18.0": Text(
            "--profiler-config with wait_iterations, warmup_iterations and active_iterations records a window"
            " after start_profile(), as torch.profiler's schedule does. {by_hand}",
            _BY_HAND,
        ),
    },
)
