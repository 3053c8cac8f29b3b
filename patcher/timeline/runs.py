"""The runs in a folder: which processes belong to each, their roles, replicas and ranks, and ranks without a file."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from patcher.progress import Progress, ignore
from patcher.timeline import files
from patcher.timeline.files import ProcessFile
from patcher.timeline.model import ROLES, Run

_ROLLOUT_GROUP = re.compile(r"rollout_(?:\w+_)?(?:standalone|colocate)_(\d{1,9})")
"""Name that verl gives to the workers of a rollout replica (``workers/rollout/replica.py``): they train nothing."""

_INIT = 1
"""Pid of the process that adopts orphans: processes with this parent need not belong together."""

_ANCESTORS = 64
"""Most ancestors that are looked at, in case files describe a loop."""

RECORDED = (
    ("driver", "call"), ("engine", "iterations"), ("server", "serve"), ("trainer", "work"), ("agent", "trajectory"),
    ("driver", "step"), ("reward", "reward"), ("balancer", "route"),
)  # fmt: skip
"""The roles with the kind of records that makes each, the first that fits decides: one that marks the steps and works
itself, without calls of others, is above all a trainer.
"""


@dataclass(frozen=True)
class Process:
    """One process of a run: its files, the older first, and its roles.

    ``roles`` are all that the records show, the main one first: an engine may run in a trainer's process.
    """

    parts: tuple[ProcessFile, ...]
    roles: tuple[str, ...]
    replica: int | None
    rank: int | None
    run: str = ""

    @property
    def head(self) -> ProcessFile:
        """Return the newest file."""
        return self.parts[-1]

    @property
    def role(self) -> str:
        """Return the main role."""
        return self.roles[0]

    @property
    def marks(self) -> bool:
        """Tell whether the process marks the ends of steps."""
        return any("step" in part.kinds for part in self.parts)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files, the older first."""
        return tuple(part.path for part in self.parts)

    @cached_property
    def wall(self) -> tuple[int, int]:
        """Return the first and last time by the wall clock, in microseconds since 1970."""
        pairs = [pair[1] for part in self.parts for pair in (part.first, part.last) if pair]
        start = min(part.started for part in self.parts) * 1000
        return start, max([*pairs, start])


class Unread(NamedTuple):
    """Path of a file or folder that could not be read; ``why`` is the system's reason, "" if it is no timeline."""

    path: Path
    why: str = ""


@dataclass(frozen=True)
class Surveyed:
    """Processes of each run in a folder, files of newer versions, and files that could not be read."""

    runs: tuple[tuple[Run, tuple[Process, ...]], ...]
    newer: tuple[Path, ...] = ()
    unread: tuple[Unread, ...] = ()


def survey(file_paths: Sequence[Path], progress: Progress = ignore) -> Surveyed:
    """Read all timeline files, and group their processes into runs, the newest run last.

    Files of a newer format are listed apart, and so are those of which damage or missing rights leave nothing to read.
    Other files without records are left out.
    """
    surveyed, newer, unread = list[ProcessFile](), list[Path](), list[Unread]()
    for path in file_paths:
        try:
            surveyed_file = files.survey(path, progress)
        except files.NewerVersion:
            newer.append(path)
            continue
        except OSError as error:
            # A folder stands here for files that its rights hide, and is no regular file.
            why = os.strerror(errno.EACCES) if error.errno == errno.EINVAL else error.strerror
            unread.append(Unread(path, why or str(error)))
            continue
        if surveyed_file is not None and (surveyed_file.first or surveyed_file.kinds):
            surveyed.append(surveyed_file)
        elif surveyed_file.cut if surveyed_file is not None else size_of(path) > files.SMALLEST:
            unread.append(Unread(path))
    parted = sorted(
        map(_in_lane_order, _group_into_runs(_group_by_process(surveyed))),
        key=lambda run: min(process.wall[0] for process in run),
    )
    return Surveyed(
        tuple((_describe_run(number, run), run) for number, run in enumerate(parted, 1)), tuple(newer), tuple(unread)
    )


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 if it cannot be examined, such as a file that is no longer there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _group_by_process(surveyed: Iterable[ProcessFile]) -> list[Process]:
    """Group files by process, an older file before the one that replaced it, and find roles, replica, rank and run.

    Roles follow from the kinds of records; a process without any of these is ``other``. Methods executed in a rollout's
    worker group count as serving. If a reward worker is among the processes, no other process has the role of one.
    """
    grouped = defaultdict[tuple[str, str, int, int], list[ProcessFile]](list)
    for file in surveyed:
        grouped[file.boot, file.host, file.pid, file.started].append(file)
    processes = []
    for group in grouped.values():
        parts = tuple(sorted(group, key=lambda part: part.path.suffix != ".old"))
        kinds = frozenset[str]().union(*(part.kinds for part in parts))
        if "work" in kinds and "call" not in kinds:  # it marks the steps of its own work, and drives nobody
            kinds -= {"step"}
        if "work" in kinds and _ROLLOUT_GROUP.match(parts[-1].environ.get("WG_PREFIX", "")):
            kinds = kinds - {"work"} | {"serve"}
        roles = tuple(dict.fromkeys(role for role, kind in RECORDED if kind in kinds)) or ("other",)
        processes.append(Process(parts, roles, None, None))
    if any(process.role == "reward" for process in processes):  # agent loops wait for these, and compute none
        processes = [
            replace(process, roles=tuple(role for role in process.roles if role != "reward" or process.role == role))
            for process in processes
        ]
    return _with_ranks_and_names(processes)


class _Ancestry:
    """Ancestors of processes; as pids are used again, an ancestor must have lived at the same time."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.by_pid = defaultdict[tuple[str, int], list[Process]](list)
        for process in processes:
            self.by_pid[process.head.boot, process.head.pid].append(process)

    def with_ancestors(self, process: Process) -> Iterator[Process]:
        """Yield a process, its parent, and so on: at most 64 that have files and that lived at the same time."""
        for _ in range(_ANCESTORS):
            yield process
            above = [
                other
                for other in self.by_pid.get((process.head.boot, process.head.parent), ())
                if _lifetimes_overlap(process, other)
            ]
            if not above or above[0] is process:
                return
            process = above[0]


def _with_ranks_and_names(processes: Sequence[Process]) -> list[Process]:
    """Return the processes with replica, rank and run name filled in; unknown ones stay None, or "".

    Replica and run name come from the process or its nearest ancestor; the replica also from the name of its worker
    group. The rank is the one that the process reported, else its environment variable RANK.
    """
    with_ancestors = _Ancestry(processes).with_ancestors
    inherited = []
    for process in processes:
        replicas = (ancestor.head.number("VERL_REPLICA_RANK") for ancestor in with_ancestors(process))
        replica = next((number for number in replicas if number is not None), None)
        group = _ROLLOUT_GROUP.match(process.head.environ.get("WG_PREFIX", ""))
        replica = int(group[1]) if replica is None and group else replica
        rank = next((part.rank for part in reversed(process.parts) if part.rank is not None), None)
        rank = rank if rank is not None else process.head.number("RANK")
        run = next((ancestor.head.run for ancestor in with_ancestors(process) if ancestor.head.run), "")
        inherited.append(replace(process, replica=replica, rank=rank, run=run))
    return inherited


def _group_into_runs(processes: Sequence[Process]) -> list[list[Process]]:
    """Group processes into runs: those with the same run name whose lifetimes overlap, directly or through others.

    Groups of one name that do not overlap are one run, too, if the later one goes on in the Ray cluster of the earlier:
    while a run starts, its processes are silent for minutes. A process without a run name joins the run that it
    overlaps, if there is only one such run, or only one on its machine. The others are grouped by overlap alone.
    """
    by_name = defaultdict[str, list[Process]](list)
    for process in processes:
        by_name[process.run].append(process)
    lost = by_name.pop("", [])
    runs = [run for group in by_name.values() for run in _merge_continued(_overlapping_groups(group))]
    unnamed = []
    for process in lost:
        meeting = [run for run in runs if any(_lifetimes_overlap(process, other) for other in run)]
        boots = [run for run in meeting if any(process.head.boot == other.head.boot for other in run)]
        if len(boots or meeting) == 1:
            (boots or meeting)[0].append(process)
        else:
            unnamed.append(process)
    return runs + _overlapping_groups(unnamed)


def _merge_continued(groups: Iterable[list[Process]]) -> list[list[Process]]:
    """Merge each of ``groups``, in order of time, with the run of the one before if it continues that."""
    runs = list[list[Process]]()
    for group in groups:
        if runs and _is_continued(runs[-1], group):
            runs[-1] += group
        else:
            runs.append(group)
    return runs


def end_times(processes: Sequence[Process]) -> dict[int, int]:
    """Return process index → when the process ended, in microseconds by its own clock, unless it may still live.

    A process ended if its file says so, or if it was replaced. Then another one of the same role, replica, rank and
    worker group began on the same machine after its last record.
    """
    begins = defaultdict[tuple[object, ...], int](int)
    for process in processes:
        begins[_position(process)] = max(begins[_position(process)], process.parts[0].begin)
    return {
        at: process.head.clocks[0]
        for at, process in enumerate(processes)
        if process.head.ended or 0 < process.head.clocks[0] < begins[_position(process)]
    }


def _position(process: Process) -> tuple[object, ...]:
    """Return what only one process of a run has at a time; one without replica and rank has a position of its own."""
    head = process.head
    is_numbered = process.rank is not None or process.replica is not None
    unique = () if is_numbered else (head.pid, head.started)
    return head.boot, head.host, process.roles, process.replica, process.rank, head.environ.get("WG_PREFIX"), unique


def _is_continued(earlier: Sequence[Process], later: Sequence[Process]) -> bool:
    """Tell whether two groups of processes with the same run name belong to one run, although they did not overlap.

    They never do if both have a process with the same pid on one machine, because the pid was then used again.
    Otherwise, on a common machine they do if they share a parent process, which is Ray's raylet. Without a common
    machine, they do if no process of the earlier group has ended and at most one group has a driver.
    """
    if {_place(process, process.head.pid) for process in earlier} & {
        _place(process, process.head.pid) for process in later
    }:
        return False
    if {process.head.boot for process in earlier} & {process.head.boot for process in later}:
        above, below = ({_place(process, process.head.parent) for process in group} for group in (earlier, later))
        return any(parent > _INIT for _, _, parent in above & below)
    driven = [any("driver" in process.roles for process in group) for group in (earlier, later)]
    return not all(driven) and not any(process.head.ended for process in earlier)


def _place(process: Process, pid: int) -> tuple[str, str, int]:
    """Return what identifies a process: boot, host and pid."""
    return process.head.boot, process.head.host, pid


def _lifetimes_overlap(process: Process, other: Process) -> bool:
    return process.wall[0] <= other.wall[1] and other.wall[0] <= process.wall[1]


def _overlapping_groups(group: Iterable[Process]) -> list[list[Process]]:
    """Group processes whose lifetimes overlap, directly or through others; return the groups in order of time."""
    runs = list[list[Process]]()
    until = None
    for process in sorted(group, key=lambda process: process.wall):
        begin, end = process.wall
        if until is None or begin > until:
            runs.append([process])
        else:
            runs[-1].append(process)
        until = max(end, until or end)
    return runs


def _in_lane_order(run: Iterable[Process]) -> tuple[Process, ...]:
    """Return a run's processes in the order of the page's lanes, with replicas numbered where they are unknown.

    Engines and servers are numbered if there are several of a role and none has a replica. An engine gets the number of
    its ancestor that is a server or engine, if each engine has such an ancestor.
    """
    order = [*ROLES]
    ordered = sorted(
        run, key=lambda process: (order.index(process.role), process.replica or 0, process.rank or 0, process.wall)
    )
    with_ancestors, numbers = _Ancestry(ordered).with_ancestors, dict[int, int]()
    for role in ("server", "engine"):
        of_role = [
            at for at, process in enumerate(ordered) if role in process.roles and process.role in ("engine", "server")
        ]
        if len(of_role) > 1 and all(ordered[at].replica is None for at in of_role):
            of_role.sort(key=lambda at: ordered[at].wall)
            above = [_number_of_nearest(with_ancestors(ordered[at]), numbers) for at in of_role]
            all_known = None not in above
            for number, at in enumerate(of_role):
                numbers[id(ordered[at])] = number
                ordered[at] = replace(ordered[at], replica=above[number] if all_known else number)
    return tuple(ordered)


def _number_of_nearest(ancestors: Iterable[Process], numbers: Mapping[int, int]) -> int | None:
    """Return the number of the first of ``ancestors`` that has one, by its ``id()``; None if none has."""
    return next((numbers[id(ancestor)] for ancestor in ancestors if id(ancestor) in numbers), None)


def _describe_run(number: int, run: Sequence[Process]) -> Run:
    """Describe a run by its processes; ``number`` is that for ``--run``."""
    begin, end = min(process.wall[0] for process in run), max(process.wall[1] for process in run)
    packages = sorted({process.head.package for process in run if process.head.package})
    return Run(number, begin / 1e6, (end - begin) / 1e6, len(run), tuple(packages), run[0].run)


def missing_ranks(processes: Iterable[Process]) -> dict[int, list[int]]:
    """Return world size → the ranks of trainers that left no file; world sizes without a missing rank are left out.

    Processes whose WORLD_SIZE or rank is unknown do not count. Of very large worlds, only the first 65,536 ranks are
    looked at.
    """
    worlds = defaultdict[int, Counter[int]](Counter)
    for process in processes:
        size = process.head.number("WORLD_SIZE")
        if "trainer" in process.roles and process.rank is not None and size:
            worlds[size][process.rank] += 1
    return {
        size: lacking
        for size, ranks in worlds.items()
        if (lacking := [rank for rank in range(min(size, 1 << 16)) if rank not in ranks])
    }


def by_role(processes: Sequence[Process]) -> Mapping[str, list[int]]:
    """Return role → the indices of its processes; a process may have several roles, and an absent role has none."""
    places = defaultdict[str, list[int]](list)
    for at, process in enumerate(processes):
        for role in process.roles:
            places[role].append(at)
    return places
