"""SGLang: where a rollout is recorded."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.processes import Processes
from patcher.recipe import Before, Head, Insertion, Probe, Recipe, Structure, Upstream
from patches import rollout
from patches.probes.sglang import (
    AlignedBatches,
    BatchContexts,
    BatchMetadata,
    ForwardThread,
    SglangRollout,
)
from patches.probes.states import RelativeBatches
from patches.sglang import PROJECT, RELEASES, replicas, sglang_graphs, sglang_timeline, sglang_weights
from patches.sglang.sglang_switches import SWITCHES

_SCHEDULER = "sglang/srt/managers/scheduler.py"
_THREAD = "sglang/srt/managers/tp_worker_overlap_thread.py"
_WHY = Text(
    "the usual guides tell you to add a profiler with a schedule to ModelRunner.forward by hand. Such a profiler"
    " records on every rank and also counts draft models, idle batches and prefill"
)
_WARM_UP = Note(
    Text("on an HTTP server the warm-up request is rollout 0: use --rollout 1"),
    Text(
        "the warm-up request has 8 tokens. There is no warm-up request with --skip-server-warmup (from 0.4.9 on),"
        " in verl's servers, or with an Engine in your own program"
    ),
)
_IDLE = Text(
    "the event loop calls this function when there is no batch to run. If no request is waiting either, the"
    " rollout ends"
)


SCHEDULER = Recipe(
    name="scheduler",
    stage="rollout",
    class_name="Scheduler",
    method="run_batch",
    windows=rollout.ALIGNED,
    probe=rollout.probe(
        SglangRollout,
        contexts=BatchContexts,
        metadata=(BatchMetadata,),
        aligned=AlignedBatches,
        relative=RelativeBatches,
    ),
    insertions=(
        Insertion(
            "run_batch",
            where=Before("self.forward_ct += 1"),
            line='self._rlpatch_stage("schedule", batch)',
            parameters=("batch",),
            why=Text(
                "every event loop of SGLang calls this function once per iteration and never for a draft model."
                " ModelRunner.forward, deeper in the call chain, also runs draft models several times per decode step,"
                " and does not know when the engine is idle. A decode step lasts from one call of this function to the"
                " next, and contains drafts, forward, verification and sampling"
            ),
        ),
        Insertion(
            "process_input_requests",
            where=Head(),
            line='self._rlpatch_stage("receive", recv_reqs)',
            parameters=("recv_reqs",),
            why=Text(
                "this function receives the requests that control the engine: release_memory_occupation() and"
                " start_profile(). verl sends release_memory_occupation() to end a rollout. rlpatch closes its window"
                " before start_profile(), because two profilers at once lose data or crash"
            ),
        ),
        Insertion(
            "check_memory",
            where=Head(),
            line='self._rlpatch_stage("idle")',
            why=Text(
                "{reason}. Up to SGLang 0.4.7, this is the only function that is called when the engine is idle", _IDLE
            ),
            optional=True,
        ),
        Insertion(
            "maybe_sleep_on_idle",
            where=Head(),
            line='self._rlpatch_stage("idle")',
            why=_IDLE,
            optional=True,
        ),
    ),
    structures=(
        Structure(
            "A",
            RELEASES.until("0.4.7"),
            _SCHEDULER,
            (
                *("ab86172dd5cc", "8c0cbf63b790", "c76502afc49a", "dea51886c08e", "be54d75f1980", "42b9b85720cd"),
                *("cbddf5d92c0e", "c60e1db39f97", "2d1da8fc2fca", "b35e40989682", "33524fb791db"),
            ),
            Text(
                "with the overlap scheduler, the forward runs in a thread of its own. Idle iterations call"
                " check_memory()"
            ),
        ),
        Structure(
            "B",
            RELEASES.between("0.4.7.post1", "0.5.3"),
            _SCHEDULER,
            ("33524fb791db", "c795120cc35d", "b27275f4e0f5", "dd0bab4f3f7e"),
            Text("same code as structure A, plus a call of maybe_sleep_on_idle() at the end of each idle iteration"),
        ),
        Structure(
            "C",
            RELEASES.between("0.5.3.post1", "0.5.6.post2"),
            _SCHEDULER,
            (
                *("9e0ed41ede39", "e4de0663762b", "84179b893908", "ca21f9cd26cf", "ad998207a9bf", "fa3d76190476"),
                *("af310d7ac8d7", "456e0614d544"),
            ),
            Text("with the overlap scheduler, the forward runs on its own stream, in the scheduler's thread"),
        ),
        Structure(
            "D",
            RELEASES.between("0.5.7", "0.5.12.post1"),
            _SCHEDULER,
            ("f11c63c63184", "e14fd4c07b19", "ee9150018266", "04801cb0d4c9", "feaff6219d90"),
            Text(
                "same code as structure C, plus the parameter pp_proxy_tensors; for a batch that another server has"
                " prefilled, the function returns before the forward"
            ),
        ),
        Structure(
            "E",
            RELEASES.since("0.5.13"),
            _SCHEDULER,
            (
                *("a4fbfbc30e52", "8fa82b1427a9", "4e47a0d715e0", "dc0460f42fb4", "5e71c4e771de", "26690fd8d9b9"),
                *("138ebe70b148", "965c534eef87", "4a59209300a9", "559b1ea75785", "93dcd43ecd23", "5533bbb58258"),
            ),
            Text(
                "same code as structure D, except that the profiler and the memory management are separate"
                " components; from 0.5.14 on, run_batch() has a decorator"
            ),
        ),
    ),
    why=_WHY,
    how=Text(
        "inserts three lines: one in run_batch() that counts the iterations, one at the start of"
        " process_input_requests(), and one at the start of the function that the scheduler calls when idle. These"
        " lines call a probe, which is a nested class at the end of Scheduler. {busy_period}",
        rollout.BUSY_PERIOD,
    ),
    upstream=Text("{file}, from {release} on", file=_SCHEDULER, release="0.4.0"),
    needed_until=Text(
        "the patch is no longer needed once SGLang's own profiler can record a window of decode steps of a chosen"
        " rollout and rank"
    ),
    notes=(_WARM_UP,),
)

FORWARD_THREAD = Recipe(
    name=Text("forward thread"),
    stage="rollout",
    class_name="TpModelWorkerClient",
    method="__init__",
    windows=rollout.ALIGNED,
    probe=Probe(members=(ForwardThread,), summary=rollout.summary),
    insertions=(
        Insertion(
            "__init__",
            where=Before("self.forward_thread.start()"),
            line="self._rlpatch_stage_listen(dp_rank)",
            parameters=("dp_rank",),
            why=Text(
                "a profiler must start and stop in the thread that it records, so the scheduler sends start and"
                " stop commands to that thread, through the batch queue"
            ),
        ),
    ),
    structures=(
        Structure(
            "A",
            RELEASES.until("0.5.3"),
            _THREAD,
            (
                *("d0b6f8e52006", "b1e0deeb5b20", "c3a501a1dca6", "27ea9fd9184a", "c76a1d4ae24d", "1de6093175c7"),
                *("ddac42c15f5d", "ba30ffe2b898", "5e8642afae1e"),
            ),
            Text(
                "a thread that takes batches from a queue; not used with --disable-overlap-schedule or"
                " speculative decoding"
            ),
        ),
    ),
    why=_WHY,
    how=Text(
        "inserts one line before SGLang starts the thread that runs the forward. Between two batches, this thread takes"
        " the profiler's start and stop commands from its queue of batches, and runs them"
    ),
    upstream=Text("{file}, {first} to {last}", file=_THREAD, first="0.4.0", last="0.5.3"),
    needed_until=Text(
        "the patch is no longer needed once nobody uses a release below {release} any more", "0.5.3.post1"
    ),
    needs=(SCHEDULER.name,),
)

_ALL_RANKS = Text(
    "SGLang's own profiler records on every rank, includes prefill and idle batches, and does not mark the steps"
)
_BY_STAGE = Text(
    "profile_by_stage=True records the first num_steps prefill batches and the first num_steps decode batches; if a"
    " prefill batch comes in between, the recorded decode batches are not consecutive"
)
_ABSOLUTE = Text(
    "start_step counts all batches since the server's start, including warm-up and earlier rollouts. From the"
    " second training step on, the chosen start_step is already in the past, so recording starts at the next"
    " batch"
)
_OFF_BY_ONE = Text("num_steps=N without start_step records N-1 batches")
_OTHER_THREAD = Text(
    "With the overlap scheduler, the profiler runs in the scheduler's thread and misses the operators of the"
    " forward, which runs in another thread"
)

UPSTREAM = Upstream(
    PROJECT,
    recipes=(
        SCHEDULER,
        FORWARD_THREAD,
        *replicas.recipes(SCHEDULER),
        *sglang_graphs.RECIPES,
        *sglang_timeline.RECIPES,
        *sglang_weights.RECIPES,
    ),
    switches=SWITCHES,
    tool="torch",
    processes=Processes(modules=("sglang",), scripts=("sglang",), titles=("sglang::",)),
    builtin={
        "<0.4.3.post3": Text(
            "with SGLANG_TORCH_PROFILER_DIR, /start_profile and /stop_profile record everything between the"
            " two requests. {all_ranks}. {other_thread}.",
            all_ranks=_ALL_RANKS,
            other_thread=_OTHER_THREAD,
        ),
        ">=0.4.3.post3,<0.4.7": Text(
            "/start_profile with num_steps records the next num_steps batches. {all_ranks}. {off_by_one}."
            " {other_thread}.",
            all_ranks=_ALL_RANKS,
            off_by_one=_OFF_BY_ONE,
            other_thread=_OTHER_THREAD,
        ),
        ">=0.4.7,<0.4.9.post2": Text(
            "/start_profile with num_steps records the next num_steps batches. {all_ranks}. {off_by_one};"
            " {by_stage}. {other_thread}.",
            all_ranks=_ALL_RANKS,
            off_by_one=_OFF_BY_ONE,
            by_stage=_BY_STAGE,
            other_thread=_OTHER_THREAD,
        ),
        ">=0.4.9.post2,<0.5.3.post1": Text(
            "/start_profile with start_step and num_steps records a window of batches. {all_ranks}."
            " {absolute}; {off_by_one}; {by_stage}. {other_thread}. NPUs are supported from 0.5.0rc1 on.",
            all_ranks=_ALL_RANKS,
            absolute=_ABSOLUTE,
            off_by_one=_OFF_BY_ONE,
            by_stage=_BY_STAGE,
            other_thread=_OTHER_THREAD,
        ),
        ">=0.5.3.post1,<0.5.16": Text(
            "/start_profile with start_step and num_steps records a window of batches. {all_ranks}."
            " {absolute}; {off_by_one}; {by_stage}.",
            all_ranks=_ALL_RANKS,
            absolute=_ABSOLUTE,
            off_by_one=_OFF_BY_ONE,
            by_stage=_BY_STAGE,
        ),
        ">=0.5.16": Text(
            "/start_profile with start_step and num_steps records a window of batches. {all_ranks}."
            " {absolute}; {by_stage}.",
            all_ranks=_ALL_RANKS,
            absolute=_ABSOLUTE,
            by_stage=_BY_STAGE,
        ),
    },
)
