"""Recording a weight sync: what takes the weights out of the trainer, and what puts them into the rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patches.probes.recorder import OneWorld


class WeightSync(OneWorld):
    """Records weight syncs from their beginning to their end, and marks their phases by ranges.

    There is nothing before a sync that could be a warm-up, so the profiler starts at once. The lines at the call
    sites call ``Syncs``, which makes the recorder with the first of them.
    """

    STAGE = "weight-sync"
    SYNC = "0"
    REPLICAS = "0"
    UNIT = "call"

    role: str
    sync: int
    dp: int

    def __init__(self, worker: Any) -> None:
        import os

        import torch.distributed as dist

        in_a_world = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if in_a_world else int(os.environ.get("RANK", 0))
        parallel = getattr(getattr(worker, "vllm_config", None), "parallel_config", None)
        self.dp = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
        if parallel and (not in_a_world or dist.get_world_size() <= parallel.world_size):
            self.rank += self.dp * parallel.world_size  # each data-parallel rank has a world of its own
        replica = self.replica = os.environ.get("VERL_REPLICA_RANK", "")
        self.name, self.role, self.sync = "", "", -1
        super().__init__(worker)
        replicas = self.setting("RLPATCH_REPLICAS", self.REPLICAS, r"all|\d+(,\d+)*").split(",")
        self.done = self.done or (bool(replica) and {"all", replica}.isdisjoint(replicas))
        self.first, self.end, self.unit = 0, 1, 0

    def read_settings(self) -> None:
        """Read the number of the chosen weight sync, then the rest."""
        self.chosen_sync = int(self.setting("RLPATCH_SYNC", self.SYNC, r"\d+"))
        super().read_settings()

    def enter(self, role: str) -> None:
        """Begin a weight sync for ``role``, "trainer", "relay" or "rollout", and record it if it is the chosen one.

        A sync that is still being recorded is saved first.
        """
        self.close("the function did not return")
        self.sync, self.role = self.sync + 1, role
        who = "%srank%s" % (self.replica and "replica%s_" % self.replica, self.rank)
        self.name = "%s_weight_sync_%s_sync%s_%s_%s" % (self.host, role, self.sync, who, self.pid)
        if self.done:
            return
        if self.is_chosen():
            self.unit = 0
            self.open(0)
            self.unit = 1
        else:
            self.write_state("waiting")

    def is_chosen(self) -> bool:
        """Tell whether this weight sync is to be recorded."""
        return self.sync == self.chosen_sync

    def watched(self) -> str:
        """Return the path of the state file of this role and rank."""
        who = "%srank%s" % (self.replica and "replica%s_" % self.replica, self.rank)
        return "%s/.rlpatch/weight-sync_%s_%s_%s_%s.json" % (self.save_path, self.role, self.host, who, self.pid)

    def leave(self) -> None:
        """End a weight sync and save its trace; do nothing in a process that was forked inside the window."""
        import os

        if self.pid == os.getpid():  # else it is a child, forked inside the window, whose frames end
            self.close("complete")

    def exit(self) -> None:
        """Save what is still recorded because the process ends.

        If syncs began here, but never the chosen one, report that.
        """
        self.close("the process ends")
        if not self.done and self.role:
            before = max(self.sync + 1, self.chosen_sync)
            self.finish("not recorded: the process ends before weight sync %s" % before)

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """Report the traces of the weight sync, and ``why`` it ended."""
        self.finish("%s, recorded: %s" % (why, ", ".join(traces) or "no trace"), traces)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Print ``report``, headed by the number and role of the sync, and end recording."""
        self.say("weight sync %s, %s: %s" % (self.sync, self.role, report))
        super().finish(report, traces)

    def contents(self, batch: Any) -> Mapping[str, object]:  # noqa: ARG002
        """Return no step metadata: a weight sync has no batch."""
        return {}

    class Range:
        """Lasts until the last name of it is gone: that is the end of the frame that has it."""

        leave_call: Any = None  # of the sync that the frame is a call of

        def __init__(self, name: str) -> None:
            self.mark: Any = None
            if name:
                from torch.profiler import record_function

                self.mark = record_function("rlpatch:%s" % name)
                self.mark.__enter__()

        def __del__(self) -> None:
            if self.mark:
                self.mark.__exit__(None, None, None)
            if self.leave_call:
                self.leave_call()

    class Syncs:
        """The syncs of this process, one after the other; one of several calls goes on between them."""

        probe: Any = False  # False: no sync yet, None: nothing more to record
        depth = 0
        goes_on = False

        def __init__(self, recorder: Any) -> None:
            self.recorder = recorder

        def tell(self, worker: Any, event: str, *args: Any) -> None:
            """Call the method ``event`` of the recorder with ``args``, unless it has nothing more to record.

            The first call makes the recorder, for ``worker``. An error is only printed, and ends the recording.
            """
            if self.probe is not None:
                self.probe = self.recorder.dispatch(self.probe, worker, event, args)

        def sync(self, worker: Any, role: str, call: str, goes_on: Any = None) -> Any:  # docstring goes in
            """Begin or continue a weight sync, and return a range for ``call``; None after the last chosen sync.

            ``goes_on`` tells whether the sync has later calls (None: as the call before told).
            """
            if self.probe is None:
                return None
            if not (self.depth or self.goes_on):
                self.tell(worker, "enter", role)
            if goes_on is not None:
                self.goes_on = goes_on
            self.depth += 1
            call_range = self.recorder.Range(call if self.recording() else "")
            call_range.leave_call = self.leave_call
            return call_range

        def leave_call(self) -> None:
            """End a call; the sync ends with it, unless another call is open or it goes on in further calls."""
            self.depth -= 1
            if not (self.depth or self.goes_on):
                self.tell(None, "leave")

        def ended(self) -> None:  # docstring goes in
            """End the sync that was to go on in further calls, if no call is open."""
            if self.goes_on and not self.depth:
                self.goes_on = False
                self.tell(None, "leave")

        def recording(self) -> bool:
            """Tell whether a sync is being recorded."""
            return bool(self.probe) and self.probe.prof is not None

        def phase(self, name: str) -> Any:
            """Begin a range for a phase of the sync; None while nothing is recorded."""
            return self.recorder.Range(name) if self.recording() else None

        def weights(self, weights: Any) -> Any:  # docstring goes in
            """Return ``weights``; an iterator is wrapped to mark each wait by a range while a sync is recorded."""
            if not self.recording():
                return weights
            name = "gather" if self.probe.role == "trainer" else "receive"
            if hasattr(weights, "__anext__"):
                return self.AsyncWeights(self, name, weights)
            # What can be iterated again is left as it is.
            return self.Weights(self, name, weights) if hasattr(weights, "__next__") else weights

        def socket(self, socket: Any) -> Any:
            """Return ``socket``; while a sync is recorded, wrapped so that each wait for an answer is a range."""
            return self.Socket(self, "send", socket) if self.recording() else socket

        class Waited:
            """Marks a wait by a range: it begins with ``begin`` and lasts as long as ``wait``."""

            wait: Any = None

            def __init__(self, syncs: Any, phase: str, inner: Any) -> None:
                self.syncs, self.phase, self.inner = syncs, phase, inner

            def __getattr__(self, name: str) -> Any:
                return getattr(self.inner, name)

            def begin(self) -> None:
                """Begin the range of a wait."""
                self.wait = self.syncs.phase(self.phase)

        class Weights(Waited):
            """Weights, each when it is asked for."""

            def __iter__(self) -> Any:
                return self

            def __next__(self) -> Any:
                self.begin()
                try:
                    return next(self.inner)
                finally:
                    self.wait = None

        class AsyncWeights(Waited):
            """The same for those that are awaited."""

            def __aiter__(self) -> Any:
                return self

            def __anext__(self) -> Any:
                return self

            def __await__(self) -> Any:
                self.begin()
                try:
                    return (yield from self.inner.__anext__().__await__())
                finally:
                    self.wait = None

        class Socket(Waited):
            """Hands a bucket over, and waits until the other side has answered."""

            def send_pyobj(self, *args: Any, **options: Any) -> Any:
                """Send a bucket, and begin the wait for the answer."""
                self.begin()
                return self.inner.send_pyobj(*args, **options)

            def recv(self, *args: Any, **options: Any) -> Any:
                """Return what the other side answers, and end the range of the wait, also on an error."""
                try:
                    return self.inner.recv(*args, **options)
                finally:
                    self.wait = None
