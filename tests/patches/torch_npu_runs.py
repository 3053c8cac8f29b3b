"""Recordings by the real torch_npu over a fake CANN: scenarios, what drives them, and what they leave."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from fixtures import environments, releases
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY
from patcher.cli import rlpatch
from patches.vllm_ascend.recipes import CAPTURE, V0, V1


class Worker(NamedTuple):
    """The worker of one structure in a release, patched for one backend."""

    release: str
    structure: str
    backend: str

    def __str__(self) -> str:
        return f"{self.release}-{self.structure}-{self.backend}"


# Each structure once; V0 in both of its files, A and V0 in a release that has both, D in both of its files.
SAMPLE = (
    ("0.7.1rc1", "V0"), ("0.9.1", "V0"), ("0.9.1", "A"), ("0.10.2rc1", "B"), ("0.11.0rc1", "C"), ("0.12.0rc1", "D"),
    ("0.18.0", "D"), ("0.26.0rc1", "E"), ("0.30.0rc2", "F"),
)  # fmt: skip
EVERYTHING = tuple((v, s.name) for recipe in (V1, V0) for s in recipe.structures for v in s.releases)
BACKENDS = ("npu", "torch")
SHORT = (("0.30.0rc2", "F"),)
"""The short run sees the newest worker."""
# What differs between the backends does not depend on the structure.
ON_TORCH = (("0.9.1", "V0"), ("0.9.1", "A"), ("0.30.0rc2", "F"))

CAPTURES: Mapping[str, str] = {
    "decode": "--decode 3:6",
    "prefill": "--prefill 1:3",
    "iterations": "--iterations 2:5",
    "repeat": "--decode 2:4 --rollout 1 --repeat 2",
    "modules": "--decode 3:6 --module-ranges",
    "some modules": "--decode 3:6 --module-ranges --module-pattern Decoder|^Att",
    "markers": "--iterations 0: --markers",
    "cold": "--decode 3:5 --warmup 0",
    "warm": "--decode 3:5 --warmup 9",
    "graphs": "--stage graph-capture --contents npu,cpu,shapes",
    "graphs twice": "--stage graph-capture --repeat 2",
}
"""Each on top of those before it: in a file that captures graphs the last window of the rollout is recorded, too."""
LIGHT = ("--level", "level_none", "--contents", "npu")
"""What markers need of torch_npu, and torch.profiler does not have."""


class Recorded(NamedTuple):
    """What one trace must hold: units ``first`` to ``end - 1`` of a rollout."""

    rollout: int
    first: int
    end: int
    uncounted: int = 0


@dataclass(frozen=True)
class Scenario:
    """A script (see ``fixtures.ascend.drive``), its settings, and what must come of it.

    ``said`` are regular expressions for the lines of the log, one for each; None stands for complete windows,
    one for each trace. ``only`` a backend, and not with the structures ``but``.
    """

    name: str
    script: str
    recorded: tuple[Recorded, ...] = ()
    said: tuple[str, ...] | None = None
    worker: str = "decode"
    env: Mapping[str, str] = field(default_factory=dict)
    but: str = ""
    only: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    dropped: bool | None = True

    def fits(self, worker: Worker) -> bool:
        captures_graphs = not self.worker.startswith("graphs") or has_graphs(worker)
        return captures_graphs and self.only in ("", worker.backend) and worker.structure not in self.but.split()

    @property
    def folder(self) -> str:
        return re.sub(r"\W+", "_", self.name)

    @property
    def unit(self) -> str:
        return CAPTURES[self.worker].split()[0].removeprefix("--")

    def as_job(self, folder: Path) -> dict[str, Any]:
        lines = [line.strip() for line in self.script.split(";")]
        env = {"RLPATCH_SAVE_PATH": str(folder / self.folder), **self.env}
        env = {name: value for name, value in env.items() if value}
        return {"name": self.name, "worker": self.worker, "script": lines, "env": env, **self.options}


def has_graphs(worker: Worker) -> bool:
    """Whether the worker of this structure captures graphs in this release."""
    return worker.structure != "V0" and worker.release in CAPTURE.releases


def window(text: str, **more: str) -> dict[str, str]:
    return {"RLPATCH_WINDOW": text, **more}


# One prompt of 129 tokens: prefill takes two iterations, the second of one token; then steps 1, 2, … N-1.
LONE = "add a 129 {0}; run; empty"

COUNTING = (
    Scenario("in the middle", LONE.format(10), (Recorded(0, 3, 6),)),
    Scenario("one unit", LONE.format(10), (Recorded(0, 7, 8),), env=window("7:8")),
    Scenario("late", LONE.format(320), (Recorded(0, 300, 303),), env=window("300:303")),
    Scenario("up to the last step", LONE.format(6), (Recorded(0, 3, 6),)),
    Scenario("decode from the first step", LONE.format(10), (Recorded(0, 1, 3),), env=window("1:3")),
    Scenario("three chunks before step 1", "add a 300 6; run", (Recorded(0, 1, 3),), env=window("1:3")),
    Scenario("a prompt from the cache but one", "add a 129 9 cached=128; run", (Recorded(0, 1, 3),), env=window("1:3")),
    Scenario("prefill", "add a 500 3; run", (Recorded(0, 1, 3),), worker="prefill"),
    Scenario("prefill from the first", "add a 300 3; run", (Recorded(0, 0, 2),), worker="prefill", env=window("0:2")),
    Scenario(
        "prefill with decode between", "add a 9 9; run 4; add b 9 3; run 2; add c 9 3; run; empty",
        (Recorded(0, 0, 3, 4),), worker="prefill", env=window("0:3"),
    ),
    Scenario("iterations", LONE.format(10), (Recorded(0, 2, 5),), worker="iterations"),
    Scenario("iterations from the first", LONE.format(10), (Recorded(0, 0, 3),), worker="iterations", env=window("0:3")),
    Scenario("mixed iterations", "add a 9 9; run 3; add b 200 4; run", (Recorded(0, 2, 5),), worker="iterations"),
    Scenario("mixed before the window", "add a 9 20; run 3; add b 200 9; run", (Recorded(0, 3, 6),)),
    Scenario("arrivals in the window", "add a 9 20; run 5; add b 200 9; run", (Recorded(0, 3, 6, 2),)),
    Scenario(
        "arrivals at every step", "add a 9 20; run 4; add b 9 9; run 2; add c 9 9; run 2; add d 9 9; run",
        (Recorded(0, 3, 6, 2),),
    ),
    Scenario("arrivals right after the window", "add a 9 20; run 6; add b 200 9; run", (Recorded(0, 3, 6),)),
    Scenario("many requests", "add a 100 20; add b 100 4; add c 100 12; add d 100 20; run", (Recorded(0, 3, 6, 0),)),
    Scenario("empty batches", "empty; add a 9 20; run 2; empty; run 3; empty; run; empty; empty", (Recorded(0, 3, 6),)),
    Scenario("drafts", "add a 20 30 drafts=3; run", (Recorded(0, 3, 6),), but="V0"),
    Scenario("some draft", "add a 20 30 drafts=3; add b 20 30; run 4; add c 140 9 drafts=3; run", (Recorded(0, 3, 6, 2),), but="V0"),
    Scenario("last chunk as long as drafts", "add a 132 30 drafts=3; run", (Recorded(0, 1, 3),), env=window("1:3"), but="V0"),
    Scenario("a request is aborted", "add a 9 20; add b 9 20; run 5; abort b; run", (Recorded(0, 3, 6),)),
    Scenario("without warm-up", LONE.format(10), (Recorded(0, 3, 5),), worker="cold"),
    Scenario("more warm-up than there is", LONE.format(10), (Recorded(0, 3, 5),), worker="warm"),
    Scenario("far from the start", "add a 9 70; run", (Recorded(0, 30, 60),), env=window("30:60")),
)  # fmt: skip

PREEMPTION = (
    Scenario(
        "preempted in the window and back in it", "add a 20 30; add b 100 30; run 4; preempt b; run 1; resume b; run",
        (Recorded(0, 3, 6, 1),),
    ),
    Scenario(
        "computed again in chunks", "add a 20 40; add b 100 40; run 6; preempt b; run 1; resume b; run",
        (Recorded(0, 3, 6, 4),), options={"budget": 32},
    ),
    Scenario("preempted and finished at once", "add a 20 5; add b 100 30; run 4; preempt b; run 1; resume b; run",
        (Recorded(0, 3, 6, 1),),
    ),
    Scenario(
        "preempted twice", "add a 20 30; add b 90 30; run 3; preempt b; run 1; resume b; run 2; preempt b; run 1; resume b; run",
        (Recorded(0, 2, 7, 2),), env=window("2:7"),
    ),
    Scenario(
        "all preempted and resumed between two iterations",
        "add a 20 30; add b 90 30; run 5; preempt a; preempt b; resume a; resume b; run", (Recorded(0, 3, 6, 1),), but="V0 A B C",
    ),
    Scenario("alone and preempted", "add a 200 30; run 5; preempt a; empty; empty; resume a; run", (Recorded(0, 3, 6, 2),)),
    Scenario(
        "preempted in its prefill", "add a 20 30; run 4; add b 300 30; run 1; preempt b; run 1; resume b; run",
        (Recorded(0, 3, 6, 4),),
    ),
)  # fmt: skip

TWO = "add a 129 8; run; add b 129 8; run; empty"

ROLLOUTS = (
    Scenario("only the first rollout", TWO, (Recorded(0, 3, 6),)),
    Scenario("the second rollout", TWO, (Recorded(1, 3, 6),), env={"RLPATCH_ROLLOUT": "1"}),
    Scenario(
        "two of four rollouts", "add a 9 6; run; empty; add b 9 6; run; empty; add c 9 6; run; empty; add d 9 6; run; empty",
        (Recorded(1, 2, 4), Recorded(2, 2, 4)), worker="repeat",
    ),
    Scenario(
        "rollouts end at sleep", "add a 9 6; run; sleep; add b 9 6; run; sleep; add c 9 6; run; sleep; add d 9 6; run",
        (Recorded(1, 2, 4), Recorded(2, 2, 4)), worker="repeat",
    ),
    Scenario(
        "rollouts end at a new request", "add a 9 6; run; add b 9 6; run; add c 9 6; run; add d 9 6; run",
        (Recorded(1, 2, 4), Recorded(2, 2, 4)), worker="repeat",
    ),
    Scenario("sleep before anything", "sleep; empty; sleep; add a 9 6; run; sleep; empty", (Recorded(0, 3, 6),)),
    Scenario("sleep and an empty batch", "add a 9 6; run; empty; sleep; empty; add b 9 6; run; empty", (Recorded(1, 3, 6),),
        env={"RLPATCH_ROLLOUT": "1"},
    ),
    Scenario(
        "the rollout ends in the window, by an empty batch", "add a 9 6; run; empty; add b 9 20; run", (Recorded(0, 3, 6),),
        ("(all requests have finished|no request is left), recorded 3 of 30 [a-z ]+ with 0",), env=window("3:33"),
    ),
    Scenario(
        "the rollout ends in the window, by sleep", "add a 9 6; run; sleep; add b 9 20; run", (Recorded(0, 3, 6),),
        (r"(sleep\(\)|all requests have finished), recorded 3 of 30 [a-z ]+ with 0",), env=window("3:33"),
    ),
    Scenario(
        "the rollout ends in the window, by a new request", "add a 9 6; run; add b 9 20; run", (Recorded(0, 3, 6),),
        ("all requests have finished, recorded 3 of 30 [a-z ]+ with 0",), env=window("3:33"),
    ),
    Scenario(
        "the rollout ends in the window, with another request", "add a 9 6; run 5; abort a; add b 9 20; run",
        (Recorded(0, 3, 5),), ("all requests have finished, recorded 2 of 30 [a-z ]+ with 0",), env=window("3:33"),
    ),
    Scenario("the rollout ends before the window", LONE.format(3) + "; add b 9 20; run", (),
        (r"not recorded: (all requests have finished|no request is left) after 2 decode steps",), env=window("5:7"),
    ),
    Scenario("the rollout ends in the warm-up", LONE.format(3) + "; add b 9 20; run", (),
        (r"(all requests have finished|no request is left), recorded 0 of 3 decode steps .* no trace",),
    ),
    Scenario(
        "one rollout too short, the next not", "add z 9 3; run; add a 9 2; run; add b 9 9; run; empty", (Recorded(2, 2, 4),),
        (r"not recorded: all requests have finished after 1 decode steps|recorded 0 of 2", "complete, recorded 2 of 2"), worker="repeat",
    ),
)  # fmt: skip

FRAMEWORK = (
    Scenario(
        "profile() in the window", "add a 9 20; run 5; profile on; run 2; profile off; run", (Recorded(0, 3, 5),),
        ("the framework's own profiler was called, recorded 2 of 3 [a-z ]+",),
    ),
    Scenario(
        "profile() stays on, for a later step", "add a 9 20; run 1; profile on; run", (Recorded(0, 3, 6),),
    ),
    Scenario("profile() before the window", "profile on; profile off; add a 9 20; run 1; profile on; run 1; profile off; run",
        (Recorded(0, 3, 6),),
    ),
    Scenario(
        "profile() in one rollout, not in the next", "add a 9 6; run; add b 9 6; run 4; profile on; run; profile off; add c 9 6; run",
        (Recorded(1, 2, 4), Recorded(2, 2, 4)),
        ("the framework's own profiler was called, recorded 2 of 2", "complete, recorded 2 of 2"), worker="repeat",
    ),
    Scenario(
        "profile() over one rollout, not the next", "add a 9 6; run; profile on; add b 9 6; run; profile off; add c 9 6; run",
        (Recorded(1, 2, 4), Recorded(2, 2, 4)), worker="repeat",
    ),
    Scenario("another torch.profiler", "other on; add a 9 20; run; other off", (),
        ("not recorded: another torch.profiler is recording",), only="torch",
    ),
    Scenario("another torch_npu profiler", "other on; add a 9 20; run; other off", (),
        ("not recorded: another torch_npu profiler is running",), only="npu",
    ),
    Scenario("another profiler in the window", "add a 9 20; run 5; other on; run 2; other off; run", (Recorded(0, 3, 5),),
        ("another profiler starts, recorded 2 of 3 [a-z ]+",), only="torch",
    ),
    # torch_npu refuses it, and goes on with ours.
    Scenario("another torch_npu profiler in the window", "add a 9 20; run 5; other on; run 2; other off; run", (Recorded(0, 3, 6),),
        only="npu",
    ),
    Scenario("another one that is not seen to start", "collect off; add a 9 20; run 5; legacy; run", (),
        (r"recording failed, the run goes on: RuntimeError\('another profiler took the data of this one", "failed, recorded 2 of 3"),
        only="torch",
    ),
    # What is left of that profile is collected while the next one records: torch wrote into the memory of the second.
    Scenario("after another one that is not seen to start", "add a 9 9; run 6; collect; run; empty", (Recorded(0, 3, 6),),
        only="torch",
    ),
    Scenario("PROFILING_MODE", "add a 9 20; run", (), ("not recorded: PROFILING_MODE=true is set",), only="npu",
        env={"PROFILING_MODE": "true"},
    ),
    Scenario("PROFILING_MODE=0 silences torch_npu, too", "add a 9 20; run", (), ("not recorded: PROFILING_MODE=0 is set",), only="npu",
        env={"PROFILING_MODE": "0"},
    ),
)  # fmt: skip

RUN = "add a 9 9; run; empty"
WINDOW = (Recorded(0, 3, 6),)

RANKS = (
    Scenario("rank 1 by default", RUN, (), options={"rank": 1, "world_size": 2}),
    Scenario("rank 1 of all", RUN, WINDOW, env={"RLPATCH_RANKS": "all"}, options={"rank": 1, "world_size": 2}),
    Scenario("rank 1 alone", RUN, WINDOW, env={"RLPATCH_RANKS": "1"}, options={"rank": 1, "world_size": 2}),
    Scenario("rank 2 of 0,2", RUN, WINDOW, env={"RLPATCH_RANKS": "0,2"}, options={"rank": 2, "world_size": 4}),
    Scenario("rank 0 of 1,2", RUN, (), env={"RLPATCH_RANKS": "1,2"}, options={"world_size": 4}),
    Scenario("rank 0 of replica 1 by default", RUN, (), options={"replica": 1, "world_size": 2}),
    Scenario(
        "rank 1 of replica 1 is rank 3", RUN, WINDOW, (r"_dp1_rank3_\d+, decode 3:6 of rollout 0: complete",),
        env={"RLPATCH_RANKS": "3"}, options={"rank": 1, "replica": 1, "world_size": 2},
    ),
    Scenario(
        "rank 3 of one world", RUN, WINDOW, (r"_dp1_rank3_\d+, decode 3:6 of rollout 0: complete",),
        env={"RLPATCH_RANKS": "3"}, options={"rank": 1, "replica": 1, "world_size": 2, "world": [4, 3]},
    ),
    Scenario(
        "a world for each replica", RUN, WINDOW, (r"_dp1_rank3_\d+, decode 3:6 of rollout 0: complete",),
        env={"RLPATCH_RANKS": "3"}, options={"rank": 1, "replica": 1, "world_size": 2, "world": [2, 1]},
    ),
)  # fmt: skip

REFUSED = (r"recording failed, the run goes on: ValueError\(.*RLPATCH",)


def bad(name: str, value: str, worker: str = "decode") -> Scenario:
    return Scenario(f"{worker} {name}={value}", RUN, (), REFUSED, env={name: value}, worker=worker)


SETTINGS = (
    Scenario("RLPATCH=0", RUN, (), env={"RLPATCH": "0"}),
    Scenario("RLPATCH=1", RUN, WINDOW, env={"RLPATCH": "1"}),
    Scenario("no trace", RUN, (), ("complete, recorded 3 of 3 decode steps .*: no trace",), options={"inject": "no trace"}),
    Scenario("the save path of the command line", RUN, WINDOW, env={"RLPATCH_SAVE_PATH": ""}),
    bad("RLPATCH", "maybe"),
    *(bad("RLPATCH_WINDOW", value) for value in ("30", "6:3", "3:3", "0:3", "-1:3", "3:x")),
    bad("RLPATCH_WINDOW", "-1:3", "iterations"),
    bad("RLPATCH_RANKS", "one"),
    bad("RLPATCH_ROLLOUT", "-1"),
    bad("RLPATCH_ROLLOUT", "first"),
    bad("RLPATCH_SAVE_PATH", "relative/path"),
)  # fmt: skip


NO_PROFILE = r"recording failed, the run goes on: RuntimeError\("


def failing(inject: str, error: str, *more: str, recorded: tuple[Recorded, ...] = ()) -> Scenario:
    said = (NO_PROFILE + error, *more)
    return Scenario(f"failing {inject}", RUN, recorded, said, options={"inject": inject})


FAILURES = (
    failing("constructor", "'injected: constructor'"),
    failing("start", "'injected: start'", "failed, recorded 0 of 3"),
    failing("step", "'injected: step'", "failed, recorded 0 of 3"),
    # What was recorded until then is kept.
    failing("step 3", "'injected: step'", "failed, recorded 1 of 3", recorded=(Recorded(0, 3, 4),)),
    failing("step 3, stop", "'injected: step'", recorded=(Recorded(0, 3, 4),)),
    failing("stop", "'injected: stop'", "failed, recorded 3 of 3", recorded=WINDOW),
    Scenario(
        "a folder that cannot be made", RUN, (), ("cannot be written: .*No such file", r"recording failed, the run goes on: FileNotFoundError"),
        env={"RLPATCH_SAVE_PATH": "/proc/rlpatch_traces"},
    ),
)  # fmt: skip

ENDS = r"the process ends, recorded 2 of 3 [a-z ]+ with 0"
# The last one is inline: it must end the process itself, so nothing comes after it.
ENDINGS = (
    Scenario("fork", "add a 9 9; run 5; exit", (Recorded(0, 3, 5),), (ENDS,), options={"how": "fork"}, dropped=None),
    # One structure is enough: it imports torch again.
    Scenario("spawn", "add a 9 9; run 5; exit", (Recorded(0, 3, 5),), (ENDS,), options={"how": "spawn"}, dropped=None,
        but="V0 A B D E F"),
    Scenario("fork in the warm-up", "add a 9 9; run 3; exit", (), ("the process ends, recorded 0 of 3 .* no trace",),
        options={"how": "fork"}, dropped=None),
    Scenario("fork before the window", "add a 9 9; run 5; exit", (),
        ("not recorded: the process ends after [34] decode steps; lower RLPATCH_WINDOW",),
        env=window("7:9"), options={"how": "fork"}, dropped=None),
    Scenario("fork before the rollout", "add a 9 9; run 5; exit", (), ("not recorded: the process ends before rollout 2",),
        env={"RLPATCH_ROLLOUT": "2"}, options={"how": "fork"}, dropped=None),
    Scenario("end of the program", "add a 9 9; run 5", (Recorded(0, 3, 5),), (ENDS,), dropped=False),
)  # fmt: skip

# profile(False) makes the probe while the thread is on no device yet.
DEVICE = Scenario(
    "device", "profile off; set_device 1; add a 129 10; run; empty", WINDOW, only="npu",
    env={"RLPATCH_RANKS": "all"}, options={"watch": True, "rank": 1},
)  # fmt: skip
SYNCHRONISED = Scenario("synchronised", LONE.format(10), (Recorded(0, 3, 6),), only="torch", options={"watch": True})

MODULES = (
    Scenario("modules", LONE.format(10), (Recorded(0, 3, 6),), worker="modules"),
    Scenario("some modules", LONE.format(10), (Recorded(0, 3, 6),), worker="some modules"),
    Scenario("modules of a window that stays open", "add a 9 5; run; empty", (Recorded(0, 3, 5),),
        (r"(no request is left|all requests have finished), recorded 2 of 3",), worker="modules"),
    Scenario("modules before profile()", "add a 9 20; run 5; profile on; run 2; profile off; run", (Recorded(0, 3, 5),),
        ("the framework's own profiler was called, recorded 2 of 3 [a-z ]+",), worker="modules"),
    Scenario("modules of a step that fails", RUN, (Recorded(0, 3, 4),),
        (NO_PROFILE + "'injected: step'", "failed, recorded 1 of 3"), worker="modules", options={"inject": "step 3"}),
)  # fmt: skip
MARKERS = (
    Scenario("markers", LONE.format(10), (Recorded(0, 0, 11),), ("recorded 11 [a-z ]+ with 0",), worker="markers"),
    Scenario("markers of arrivals", "add a 9 6; run 3; add b 200 4; run; empty", (Recorded(0, 0, 8),),
        (r"recorded \d+ [a-z ]+ with 0",), worker="markers"),
    Scenario("markers of the second rollout", TWO, (Recorded(1, 0, 9),), ("recorded 9 [a-z ]+ with 0",), worker="markers",
        env={"RLPATCH_ROLLOUT": "1"}),
    Scenario("markers of a window", LONE.format(10), (Recorded(0, 2, 5),), ("recorded 3 of 3 [a-z ]+",), worker="markers",
        env=window("2:5")),
)  # fmt: skip

WARM = Recorded(0, 3, 5)  # the last window of CAPTURES is applied beside
# Where the capture raises, its trace goes on until the next one, or until the process ends.
ONE_GRAPH_AND_MORE = ("warm-up:2", "capture:2", "warm-up:1", "dummy:4")
TWO_GRAPHS = ("warm-up:2", "capture:2", "warm-up:1", "capture:1")


@dataclass(frozen=True)
class Start(Scenario):
    """A scenario whose start is recorded: ``graphs`` are the runs in each trace of it."""

    worker: str = "graphs"
    graphs: tuple[tuple[str, ...], ...] = ()

    @property
    def unit(self) -> str:
        return "decode"  # of the rollout beside


WHOLE_CAPTURE = r"_graph_capture_dp0_rank0_\d+, capture_model\(\): complete, recorded: /"
STARTS = (
    Start("a start", "start", (), (WHOLE_CAPTURE,), graphs=(TWO_GRAPHS,)),
    Start("a start and a rollout", "start; add a 9 9; run; empty", (WARM,), (WHOLE_CAPTURE, "rollout 0: complete"),
        graphs=(TWO_GRAPHS,),
    ),
    Start("a window that is not meant", "start; add a 9 9; run; empty", (Recorded(0, 1, 2),),
        (WHOLE_CAPTURE, "rollout 0: complete"), env=window("1:2"), graphs=(TWO_GRAPHS,),
    ),
    Start("a start of another rank", "start", (), (), env={"RLPATCH_GRAPH_CAPTURE_RANKS": "1"}),
    Start("a start with RLPATCH=0", "start", (), (), env={"RLPATCH": "0"}),
    Start("a start without graphs", "start eager", (), (), dropped=False),
    Start("only the first start", "start; start", (), (WHOLE_CAPTURE,), graphs=(TWO_GRAPHS,)),
    Start("two of three starts", "start; start; start", (), (WHOLE_CAPTURE,) * 2, worker="graphs twice",
        graphs=(TWO_GRAPHS,) * 2,
    ),
    Start("a start that fails, and the next one", "start fails; start", (), ("the function did not return, recorded: /",),
        graphs=(ONE_GRAPH_AND_MORE,),
    ),
    Start("a start that fails, and two more", "start fails; start; start", (),
        ("the function did not return, recorded: /", WHOLE_CAPTURE), worker="graphs twice", graphs=(ONE_GRAPH_AND_MORE, TWO_GRAPHS),
    ),
    Start("a start that fails, and then the end", "start fails; exit", (), ("the process ends, recorded: /",),
        options={"how": "fork"}, dropped=None, graphs=(TWO_GRAPHS[:3],),
    ),
    Start("a start within another profiler", "other on; start; other off", (), (r"another torch(_npu |\.)profiler is r",)),
    Start("a start in which the profiler fails", "start", (), (NO_PROFILE + "'injected: constructor'",),
        options={"inject": "constructor"},
    ),
    Start("a start that leaves no trace", "start", (), ("complete, recorded: no trace",),
        options={"inject": "no trace"},
    ),
)  # fmt: skip

TABLES: Mapping[str, tuple[Scenario, ...]] = {
    "test_decode_and_prefill_units_are_counted": COUNTING,
    "test_preempted_requests_are_counted_right": PREEMPTION,
    "test_the_window_of_the_chosen_rollout_is_recorded": ROLLOUTS,
    "test_beside_another_profiler": FRAMEWORK,
    "test_only_the_chosen_ranks_record": RANKS,
    "test_settings_reach_the_profiler": SETTINGS,
    "test_a_failure_is_logged_once_as_an_error": FAILURES,
    "test_ranges_of_modules": MODULES,
    "test_every_iteration_has_its_marker": MARKERS,
    "test_starts_of_the_engine_are_recorded_graph_by_graph": STARTS,
    "test_every_way_to_end_a_run_closes_the_trace": ENDINGS,
    "test_the_device_of_the_worker_stays_current": (DEVICE,),
    "test_the_device_is_synchronised_at_both_edges_of_the_window": (DEVICE, SYNCHRONISED),
}


class Report:
    """What the driver wrote down, by scenario, and where the traces are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = self._read("report")
        self.calls = self._read("calls")

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def of(self, scenario: Scenario, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if (line["scenario"], line["what"]) == (scenario.name, what)]

    def events(self, scenario: Scenario) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["scenario"] == scenario.name]

    def traces(self, scenario: Scenario, *, starts: bool = False) -> list[Path]:
        settled = scenario.env.get("RLPATCH_SAVE_PATH") == ""
        paths = trace.find(self.folder / ("traces" if settled else scenario.folder))
        return [path for path in paths if ("_graph_capture_" in path.name) == starts]


def patched(worker: Worker, folder: Path, captures: Mapping[str, str] = CAPTURES) -> dict[str, Path]:
    """The worker file of a release, patched by the command line for one capture after the other."""
    site, published = folder / "site", releases.release(worker.release)
    for pattern in (
        "PKG-INFO",
        "*.dist-info/*",
        "*.egg-info/*",
        "*/_version.py",
        "*/__init__.py",
        "*/worker*",
        "*/worker/*.py",
    ):
        for path in filter(Path.is_file, published.glob(pattern)):
            (site / path.relative_to(published)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, site / path.relative_to(published))
    places = [
        s.file for r in (V1, V0) for s in r.structures if worker.release in s.releases and s.name == worker.structure
    ]
    files = {}
    for name, options in captures.items():
        if name.startswith("graphs") and not has_graphs(worker):
            continue
        light = LIGHT if name == "markers" and worker.backend == "npu" else ()
        words = [*options.split(), *light, "--tool", worker.backend, "--save-path", str(folder / "traces")]
        apply = CliRunner().invoke(rlpatch, ["apply", f"vllm-ascend=={worker.release}", "--path", str(site), *words])
        assert apply.exit_code == 0, apply.output
        files[name] = folder / f"{name.replace(' ', '_')}.py"
        shutil.copyfile(site / places[0], files[name])
    return files


def _drive(worker: Worker, folder: Path, python: Path) -> None:
    # The device goes first, before anything else has touched one; what is not inline has a process of its own.
    tables = [
        table
        for name, table in TABLES.items()
        if name
        not in (
            "test_the_device_of_the_worker_stays_current",
            "test_the_device_is_synchronised_at_both_edges_of_the_window",
        )
    ]
    ordered = [DEVICE, SYNCHRONISED, *(scenario for table in tables for scenario in table)]
    play(worker, patched(worker, folder), [scenario for scenario in ordered if scenario.fits(worker)], folder, python)


def play(worker: Worker, files: Mapping[str, Path], scenarios: Sequence[Scenario], folder: Path, python: Path) -> None:
    """Drive the scenarios in one process, on the patched files by their names; ``Report`` tells what came of it."""
    job = {
        "backend": worker.backend,
        "structure": worker.structure,
        "workers": {name: str(path) for name, path in files.items()},
        "scenarios": [scenario.as_job(folder) for scenario in scenarios],
        "report": str(folder / "report"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [str(python), "-m", "fixtures.ascend.drive", str(folder / "job.json")],
        env=environments.variables(
            npu=worker.backend == "npu",
            PYTHONPATH=str(REPOSITORY),
            FAKECANN_LOG=str(folder / "calls"),
            FAKECANN_DEVICES="2",
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    (folder / "output").write_text(done.stdout + done.stderr)
    (folder / "exit_code").write_text(str(done.returncode))


COUNTED = {"decode": "decode steps", "prefill": "prefill iterations"}
"""What the log calls the units of a window; all others are iterations."""


def check(report: Report, scenario: Scenario) -> None:
    """Compare the log and every trace of a scenario with what is expected and with the scheduler's own truth."""
    assert report.of(scenario, "wrong") == []
    endings = [(line["dropped"], line["restored"]) for line in report.of(scenario, "end")]
    assert endings == ([] if scenario.dropped is None else [(scenario.dropped, True)])
    said = [line["text"] for line in report.of(scenario, "log")]
    expected = scenario.said
    if expected is None:
        each = ", recorded {0} of {0} {2} with {1} uncounted iterations between them: /"
        counted = COUNTED.get(scenario.unit, "iterations")
        expected = tuple(each.format(r.end - r.first, r.uncounted, counted) for r in scenario.recorded)
    assert len(said) == len(expected), said
    for line, pattern in zip(said, expected, strict=True):
        assert re.search(pattern, line), line
    paths = report.traces(scenario)
    assert len(paths) == len(scenario.recorded), paths
    for path, recorded in zip(paths, scenario.recorded, strict=True):
        assert "inject" in scenario.options or any(str(path).removesuffix(".gz") in line for line in said)
        if scenario not in (*MODULES, *MARKERS):
            compare(path, recorded, scenario.unit, report.of(scenario, "iteration"))
            # Facts are written once a recording has ended, which it has not where two things fail.
            facts = Path(f"{path}.rlpatch.json")
            if ", stop" in scenario.options.get("inject", ""):
                assert not facts.exists()
            else:
                iteration = report.of(scenario, "iteration")[0]
                steps = [item for item in trace.read(path).ranges if item.kind == trace.STEP]
                assert trace.outside_steps(facts, steps, trace.base(path) or iteration["wall"] - iteration["ns"]) == []


def compare(path: Path, recorded: Recorded, unit: str, iterations: list[dict[str, Any]]) -> None:
    """Each unit of the trace holds its own forward and sampling, and what is not a unit is marked as such."""
    of_rollout = [line for line in iterations if line["rollout"] == recorded.rollout and line["kind"]]
    labels = {line["numbers"][unit]: line["label"] for line in of_rollout if unit in line["numbers"]}
    inside = [
        line for line in of_rollout if any(labels.get(n) == line["label"] for n in range(recorded.first, recorded.end))
    ]
    between = of_rollout[of_rollout.index(inside[0]) : of_rollout.index(inside[-1])]
    held = trace.read(path)
    assert [step.number for step in held.units] == list(range(recorded.first, recorded.end))
    marked = [item for item in held.ranges if item.name == "rlpatch:uncounted"]
    assert len(marked) == recorded.uncounted == sum(line not in inside for line in between)
    for step in held.units:
        own = [item for item in step.ranges if not any(mark == item or mark.holds(item) for mark in marked)]
        label = labels[step.number]
        assert [item.name for item in own if item.kind == trace.RANGE] == [f"forward:{label}", f"sample:{label}"]
        operators = [item.name for item in own if item.kind == trace.OPERATOR]
        assert (operators.count("aten::mm"), operators.count("aten::argmax")) == (1, 1)
    aside = [item.name for mark in marked for item in held.ranges if mark.holds(item) and item.kind == trace.RANGE]
    skipped = [line["label"] for line in between if line not in inside]
    assert aside == [f"{what}:{label}" for label in skipped for what in ("forward", "sample")]
    assert [item.name for item in held.outside if ":" in item.name and item.kind == trace.RANGE] == []


def ranges(report: Report, scenario: Scenario, worker: Worker) -> list[trace.Range]:
    """Those that are ours: of the scenario's time in the calls of mstx, or of its trace."""
    if worker.backend == "npu":
        first, *_, last = report.events(scenario)
        calls = [call for call in report.calls if call["pid"] == first["pid"] and first["ns"] < call["ns"] < last["ns"]]
        return [item for item in trace.mstx_ranges(calls) if not item.name.startswith("ProfilerStep#")]
    (path,) = report.traces(scenario)
    return [item for item in trace.read(path).ranges if item.kind == trace.RANGE and ":" not in item.name]


def nested(found: list[trace.Range]) -> str:
    """The names in the order of time, each with those that lie in it in parentheses."""
    text = ""
    around: list[trace.Range] = []
    for item in found:
        while around and not around[-1].holds(item):
            text += ")"
            around.pop()
        text += f" {item.name}("
        around.append(item)
    return (text + ")" * len(around)).replace("( ", "(").strip()
