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
    NamedReplica,
    SglangRollout,
)
from patches.probes.states import RelativeBatches
from patches.sglang import PROJECT, RELEASES, sglang_timeline, sglang_weights
from patches.sglang.sglang_switches import SWITCHES

_SCHEDULER = "sglang/srt/managers/scheduler.py"
_THREAD = "sglang/srt/managers/tp_worker_overlap_thread.py"
_WHY = Text(
    "the guides put a profiler with a schedule into ModelRunner.forward by hand: draft models, idle batches and prefill"
    " are counted along, on every rank"
)
_WARM_UP = Note(
    Text("an HTTP server's warm-up request is rollout 0: choose --rollout 1 there"),
    Text(
        "it has 8 tokens; a server that is started with --skip-server-warmup (from 0.4.9 on) has none, and neither have"
        " verl's servers and the Engine of a program of your own"
    ),
)
_IDLE = Text("an event loop calls it when it finds nothing to run; a rollout ends where nothing waits, either")


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
        logger="sglang.rlpatch",
    ),
    insertions=(
        Insertion(
            "run_batch",
            where=Before("self.forward_ct += 1"),
            line='self._rlpatch_stage("schedule", batch)',
            parameters=("batch",),
            why=Text(
                "once per engine iteration in every event loop, and never for a draft model: ModelRunner.forward, which"
                " it leads to, also runs those, several times in a decode step with speculation, and does not know when"
                " the engine is idle. A unit reaches from here to here: drafts, forward, verification, sampling"
            ),
        ),
        Insertion(
            "process_input_requests",
            where=Head(),
            line='self._rlpatch_stage("receive", recv_reqs)',
            parameters=("recv_reqs",),
            why=Text(
                "requests to the engine itself come by here: release_memory_occupation(), with which verl ends a"
                " rollout, and start_profile(), before which our window closes, since two profilers lose data or crash"
            ),
        ),
        Insertion(
            "check_memory",
            where=Head(),
            line='self._rlpatch_stage("idle")',
            why=Text("{idle}; up to 0.4.7 the only such place", _IDLE),
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
            Text("an overlapped forward runs in a thread of its own, and check_memory() is what an idle turn calls"),
        ),
        Structure(
            "B",
            RELEASES.between("0.4.7.post1", "0.5.3"),
            _SCHEDULER,
            ("33524fb791db", "c795120cc35d", "b27275f4e0f5", "dd0bab4f3f7e"),
            Text("A, with maybe_sleep_on_idle() at the end of each idle turn"),
        ),
        Structure(
            "C",
            RELEASES.between("0.5.3.post1", "0.5.6.post2"),
            _SCHEDULER,
            (
                *("9e0ed41ede39", "e4de0663762b", "84179b893908", "ca21f9cd26cf", "ad998207a9bf", "fa3d76190476"),
                *("af310d7ac8d7", "456e0614d544"),
            ),
            Text("an overlapped forward runs on a stream of its own, in the scheduler's thread"),
        ),
        Structure(
            "D",
            RELEASES.between("0.5.7", "0.5.12.post1"),
            _SCHEDULER,
            ("f11c63c63184", "e14fd4c07b19", "ee9150018266", "04801cb0d4c9", "feaff6219d90"),
            Text(
                "C, with pp_proxy_tensors, and batches that were prefilled by another server return before the forward"
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
            Text("D, the profiler and the memory being components; run_batch() is decorated from 0.5.14 on"),
        ),
    ),
    why=_WHY,
    how=Text(
        "one line before the count of run_batch(), one at the head of process_input_requests() and of what an idle turn"
        " calls; the probe is one nested class at the end of Scheduler. {busy_period}",
        rollout.BUSY_PERIOD,
    ),
    upstream=f"{_SCHEDULER}, from 0.4.0 on",
    remove_when=Text("SGLang's own profiler takes a window of decode steps, per rollout and rank"),
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
                "a profiler must start and stop in the thread whose operators it records: what the scheduler sees goes"
                " through the queue of the batches, in their order"
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
            Text("a thread that takes batches from a queue; not used with --disable-overlap-schedule or speculation"),
        ),
    ),
    why=_WHY,
    how=Text("one line before the thread starts: it runs what it finds between two batches in the queue"),
    upstream=f"{_THREAD}, 0.4.0 to 0.5.3",
    remove_when=Text("nobody runs releases below 0.5.3.post1 any more"),
    needs=(SCHEDULER.name,),
)

REPLICA = Recipe(
    name=Text("replica of verl"),
    stage="rollout",
    class_name="",
    method="",
    windows=rollout.ALIGNED,
    probe=Probe(
        members=(NamedReplica,), beside="_rlpatch_stage_replica = _RlpatchStageReplica()", summary=rollout.summary
    ),
    insertions=(),
    structures=(Structure("", RELEASES, "sglang/__init__.py", (), Text("imported before the schedulers are started")),),
    why=Text("verl starts an engine for each replica and tells SGLang's not which it is, so each would record"),
    how=Text(
        "the package, imported in the actor of verl's server, takes the number from the actor's name and puts it into"
        " VERL_REPLICA_RANK, as verl does for vLLM; where there is no such actor it does nothing"
    ),
    upstream="verl/workers/rollout/sglang_rollout/async_sglang_server.py, from verl 0.6.1 on",
    remove_when=Text("verl tells SGLang's schedulers which replica they are"),
    needs=(SCHEDULER.name,),
)

_ALL_RANKS = Text("on every rank, prefill and idle batches counted along, without a mark for a step")
_BY_STAGE = Text(
    "profile_by_stage=True records the first num_steps batches of prefill and of decode, never a later window, and"
    " stops in the middle of the decode steps when more prefill comes along"
)
_ABSOLUTE = Text(
    "start_step counts every batch since the server started, warm-up and earlier rollouts included: from the second"
    " training step on it has passed already, and recording starts at the next batch"
)
_OFF_BY_ONE = Text("num_steps=N without start_step records N-1 batches")
_OTHER_THREAD = Text(
    "With the overlapped scheduler it starts in the scheduler's thread, so the operators of the forward, which runs in"
    " another, are missing"
)

UPSTREAM = Upstream(
    PROJECT,
    recipes=(SCHEDULER, FORWARD_THREAD, REPLICA, *sglang_timeline.RECIPES, *sglang_weights.RECIPES),
    switches=SWITCHES,
    tool="torch",
    processes=Processes(modules=("sglang",), scripts=("sglang",), titles=("sglang::",)),
    builtin={
        "<0.4.3.post3": Text(
            "with SGLANG_TORCH_PROFILER_DIR, /start_profile and /stop_profile record what happens between"
            " them, {all_ranks}. {other_thread}.",
            _ALL_RANKS,
            _OTHER_THREAD,
        ),
        ">=0.4.3.post3,<0.4.7": Text(
            "/start_profile with num_steps records that many batches from now on, {all_ranks}."
            " {off_by_one}. {other_thread}.",
            _ALL_RANKS,
            _OFF_BY_ONE,
            _OTHER_THREAD,
        ),
        ">=0.4.7,<0.4.9.post2": Text(
            "/start_profile with num_steps records that many batches from now on, {all_ranks}."
            " {off_by_one}; {by_stage}. {other_thread}.",
            _ALL_RANKS,
            _OFF_BY_ONE,
            _BY_STAGE,
            _OTHER_THREAD,
        ),
        ">=0.4.9.post2,<0.5.3.post1": Text(
            "/start_profile with start_step and num_steps records a window of batches,"
            " {all_ranks}. {absolute}; {off_by_one}; {by_stage}. {other_thread}. NPUs from 0.5.0rc1 on.",
            _ALL_RANKS,
            _ABSOLUTE,
            _OFF_BY_ONE,
            _BY_STAGE,
            _OTHER_THREAD,
        ),
        ">=0.5.3.post1,<0.5.16": Text(
            "/start_profile with start_step and num_steps records a window of batches,"
            " {all_ranks}. {absolute}; {off_by_one}; {by_stage}.",
            _ALL_RANKS,
            _ABSOLUTE,
            _OFF_BY_ONE,
            _BY_STAGE,
        ),
        ">=0.5.16": Text(
            "/start_profile with start_step and num_steps records a window of batches,"
            " {all_ranks}. {absolute}; {by_stage}.",
            _ALL_RANKS,
            _ABSOLUTE,
            _BY_STAGE,
        ),
    },
)
