"""vllm-ascend: where a rollout and the capture of graphs are recorded, in the V0 and the V1 engine."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Before, Head, Insertion, Recipe, Structure, Upstream
from patches import graphs, rollout, vllm_engine
from patches.probes.vllm import InputContexts, PreparedInputs, VllmV0Rollout, VllmV1Rollout
from patches.vllm_ascend import PROJECT, RELEASES, builtin, vllm_ascend_timeline, vllm_ascend_weights
from patches.vllm_ascend.vllm_ascend_switches import SWITCHES

_SLEEP = vllm_engine.SLEEP._replace(optional=True)


V1 = Recipe(
    name="V1 worker",
    stage="rollout",
    class_name="NPUWorker",
    method="execute_model",
    windows=rollout.ALIGNED,
    probe=rollout.probe(VllmV1Rollout, **vllm_engine.V1),
    insertions=(
        Insertion(
            "execute_model",
            where=Before("output = self.model_runner.execute_model(...)"),
            line='self._rlpatch_stage("step", scheduler_output)',
            parameters=("scheduler_output",),
            why=Text(
                "the engine reaches this line once per iteration, in the thread that runs the forward; no return"
                " statement comes before the line. A decode step lasts from this line to the next execution of this"
                " line, so the step contains both forward and sampling, although sample_tokens() is called later"
            ),
        ),
        rollout.DUMMIES,
        _SLEEP,
        vllm_engine.PROFILE,
    ),
    structures=(
        Structure(
            "A",
            RELEASES.between("0.7.3rc2", "0.9.1"),
            "vllm_ascend/worker/worker_v1.py",
            ("50827d6b1b32", "ccbd84ddeb6c"),
            Text("the function calls the model runner, and has one return statement after this call"),
        ),
        Structure(
            "B",
            RELEASES.between("0.9.2rc1", "0.10.2rc1"),
            "vllm_ascend/worker/worker_v1.py",
            ("2cfae7ddc7c9", "2ece83809f86", "25d9c3961d34", "35f127731067"),
            Text(
                "the function receives tensors from the previous pipeline stage, then calls the model runner; two to"
                " four return statements follow"
            ),
        ),
        Structure(
            "C",
            RELEASES.between("0.11.0rc0", "0.11.0"),
            "vllm_ascend/worker/worker_v1.py",
            ("10fbe039bb25",),
            Text("same code as structure B, plus a call of msMonitor's dp.step() at the start of the function"),
        ),
        Structure(
            "D",
            ("0.12.0rc1",),
            "vllm_ascend/worker/worker_v1.py",
            ("c7819df00f71",),
            Text("execute_model() returns None before the sampling, which has moved to sample_tokens()"),
        ),
        Structure(
            "D",
            RELEASES.between("0.13.0rc1", "0.19.1rc1"),
            "vllm_ascend/worker/worker.py",
            ("c7819df00f71", "578418072c11", "1e2f9090d76b", "2af447a378ca"),
            Text(
                "same code as in release 0.12.0rc1, in another file; from 0.17.0rc1 on, tensors are sent to the next"
                " pipeline stage asynchronously"
            ),
        ),
        Structure(
            "E",
            RELEASES.between("0.20.2rc1", "0.26.0rc1"),
            "vllm_ascend/worker/worker.py",
            ("bdca4a5a15af", "b69c043857f9", "c97329d75da0"),
            Text(
                "same code as structure D, plus a call of step() of the engine's own profiler just before the model"
                " runner is called"
            ),
        ),
        Structure(
            "F",
            RELEASES.since("0.27.1rc1"),
            "vllm_ascend/worker/worker.py",
            ("51499718846d", "1a4b9b57fc99"),
            Text(
                "same code as structure E; after the call of the first model runner, branches for a second model"
                " runner follow"
            ),
        ),
    ),
    why=Text(
        "the usual guides tell you to add torch_npu.profiler with a schedule to NPUWorker by hand. If __init__ creates"
        " the profiler and execute_model calls step() at its start, a schedule for the window 30:60 records the steps"
        " 29..58. It records them on every rank, and counts prefill as a step"
    ),
    how=Text(
        "inserts one line before the call of the model runner, one in sleep(), and one in profile(). These lines call"
        " a probe, which is a nested class at the end of NPUWorker. {busy_period}",
        rollout.BUSY_PERIOD,
    ),
    upstream=Text("vllm_ascend/worker/worker_v1.py up to 0.12.0rc1; vllm_ascend/worker/worker.py from 0.13.0rc1 on"),
    needed_until=vllm_engine.REMOVE,
)

V0 = Recipe(
    name="V0 worker",
    stage="rollout",
    class_name="NPUWorker",
    method="execute_worker",
    windows=rollout.WINDOWS,
    probe=rollout.probe(VllmV0Rollout, members=(PreparedInputs,), contexts=InputContexts),
    insertions=(
        Insertion(
            "execute_worker",
            where=Head(),
            line='self._rlpatch_stage("step", worker_input)',
            parameters=("worker_input",),
            why=Text(
                "vLLM's LocalOrDistributedWorkerBase.execute_model calls this function once per iteration, just"
                " before the model runner runs forward and sampling"
            ),
        ),
        _SLEEP,
        Insertion(
            "start_profile",
            where=Before("self.profiler.start()"),
            line=vllm_engine.PROFILE.line,
            why=vllm_engine.PROFILE.why,
        ),
    ),
    structures=(
        Structure(
            "V0",
            ("0.7.1rc1",),
            "vllm_ascend/worker.py",
            ("3da1437e272b",),
            Text("this class has no execute_model(); its execute_worker() runs once per iteration"),
        ),
        Structure(
            "V0",
            RELEASES.between("0.7.3rc1", "0.9.2rc1"),
            "vllm_ascend/worker/worker.py",
            ("3da1437e272b", "45665f4d48e4"),
            Text("same code as in release 0.7.1rc1, in another file"),
        ),
    ),
    why=Text(
        "VLLM_USE_V1 decides whether a run uses the V0 worker or the V1 worker; below vllm-ascend 0.9.2rc1, V0 is the"
        " default"
    ),
    how=Text(
        "rlpatch overrides prepare_input() to see the model input. It inserts one line at the start of"
        " execute_worker(), to count the iterations, and one line each in sleep() and start_profile()"
    ),
    upstream=Text(
        "vllm_ascend/worker.py in 0.7.1rc1; vllm_ascend/worker/worker.py up to 0.9.2rc1; in vLLM itself,"
        " vllm/worker/worker_base.py"
    ),
    needed_until=Text("the patch is no longer needed once nobody uses a release below {release} any more", "0.10.0rc1"),
)

CAPTURE = Recipe(
    name=Text("graph capture of the V1 worker"),
    stage=graphs.STAGE,
    class_name="NPUWorker",
    method="compile_or_warm_up_model",
    windows=graphs.WINDOWS,
    probe=graphs.probe(),
    insertions=(
        graphs.around(
            "compile_or_warm_up_model",
            "capture_model",
            Text(
                "this call runs the graph capture and its warm-up, in the worker's thread and after set_device. A"
                " capture does not allow synchronizing, so the profiler neither starts nor stops during one"),
        ),
    ),
    structures=(
        Structure(
            "A",
            RELEASES.between("0.8.4rc2", "0.12.0rc1"),  # without graphs before, as V1 says in a warning
            "vllm_ascend/worker/worker_v1.py",
            (
                "e2ae64058779", "4e40d03c390c", "2a7261731766", "56f01453401e", "a4abb976f517", "b754ecd30920",
                "24463922502e",
            ),
            Text("capture_model() is called once, under `if not self.model_config.enforce_eager`"),
        ),
        Structure(
            "A",
            RELEASES.since("0.13.0rc1"),
            "vllm_ascend/worker/worker.py",
            (
                "34983f4a46bf", "734df3d07836", "bbdf0478a753", "e3d56db44f87", "09a1bba0f224", "1a91113c943b",
                "e4f6ecf053ad", "00db38da1ff2", "dbdfe9d04c2c", "65c0787cbe0e", "80963d0e1fe2",
            ),
            Text(
                "same code as in release 0.12.0rc1, in another file; from 0.19.1rc1 on, the caller uses the return"
                " value of capture_model()"
            ),
        ),
    ),
    why=graphs.WHY_IN_VLLM,
    how=Text(
        "inserts one line before capture_model() and one after it. The trace begins with the first warm-up run, which"
        " shows the launched kernels, and ends with the last graph. The trace leaves out earlier runs for batch sizes"
        " that are compiled but not captured, and ATB's warm-up after the captures. The captures of all model runners"
        " (ACL graphs, torchair, xlite, 310P) are inside capture_model(). By default, only a worker's first call of"
        " capture_model() is recorded. Elastic expert parallelism calls it again; --repeat N records the first N"
        " calls. From 0.23.0rc1 on, the capture after a wake-up does not go through the worker and is not recorded. If"
        " a capture fails, its trace is saved only when the process ends or the next capture begins"),
    upstream=Text(
        "vllm_ascend/worker/worker_v1.py up to 0.12.0rc1; vllm_ascend/worker/worker.py from 0.13.0rc1 on. In both"
        " files, compile_or_warm_up_model() runs in the worker's process, in the thread that runs all calls of the"
        " worker. The method is called through collective_rpc: up to vLLM 0.26.0 by vLLM's"
        " Executor.initialize_from_config, from vLLM 0.27.0 on by vLLM's EngineCore. V0 captures no graphs, nor does"
        " V1 before 0.8.4rc2"
    ),
    needed_until=graphs.REMOVE_IN_VLLM,
    notes=(
        Note(
            Text("with enforce_eager no graph is captured, so no trace is written"),
            Text("the V0 engine captures no graphs: choose V1 with VLLM_USE_V1=1"),
        ),
        graphs.MANY_SIZES,
    ),
)  # fmt: skip

UPSTREAM = Upstream(
    PROJECT,
    recipes=(V1, V0, CAPTURE, *builtin.RECIPES, *vllm_ascend_timeline.RECIPES, *vllm_ascend_weights.RECIPES),
    switches=SWITCHES,
    tool="npu",
    runs_on={},  # nowhere else
    processes=Processes(modules=("vllm",), scripts=("vllm",), titles=("VLLM::",)),
    builtin={
        ">=0.11.0rc0": Text(
            "msMonitor records a window of steps with `dyno nputrace --start-step N --iterations M`. This needs a"
            " running msMonitor daemon, and MSMONITOR_USE_DAEMON=1 or (from vllm-ascend 0.20.2rc1 on)"
            " msmonitor_use_daemon in --additional-config. N counts every iteration since the worker's start, including"
            " prefill, empty iterations and earlier rollouts. If step N is already past, msMonitor refuses the request"
            " with a warning, and nothing is recorded."
        ),
        ">=0.20.2rc1": Text(
            "--profiler-config with delay_iterations and max_iterations records a window after start_profile(). If both"
            " are 30, it records iterations 29 to 58, where iteration 0 is the first one after start_profile(); prefill"
            " iterations are included. This profiler writes no ProfilerStep marks, cannot choose a rank or rollout, and"
            " needs an HTTP or RPC call at the right moment. But it works without a patch and can be switched on and"
            " off while the engine runs."
        ),
    },
)
