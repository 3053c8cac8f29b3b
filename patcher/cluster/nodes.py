"""The nodes of a cluster as the machines of a command (`patcher.commands.where.Where`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from patcher.cluster import telling
from patcher.cluster.crew import Crew, all_of, listed, problems, unreachable
from patcher.cluster.mirror import Mirror, Mirrors
from patcher.cluster.phases import transact
from patcher.cluster.recovery import Ended, recover
from patcher.cluster.values import Answer, Found, Survey
from patcher.command_line import CommandLine
from patcher.commands.finding import parse_target
from patcher.commands.guarding import check, guard
from patcher.commands.where import Committed
from patcher.errors import Kind, Problem
from patcher.notes import Note
from patcher.report import Report, StepResult
from patcher.store import outcomes
from patcher.store.draft import idle
from patcher.store.folder import StoreFolder
from patcher.targets.target import within
from patches import projects

if TYPE_CHECKING:
    from patcher.change import Edit
    from patcher.commands.finding import LaunchOptions, Search, SearchOptions
    from patcher.commands.where import Work
    from patcher.recipe import Upstream
    from patcher.targets.target import Target


class Nodes:
    """All nodes of ``crew``, or none.

    ``search`` is where each looks, ``words`` are typed again in what is shown, ``again`` is the command line
    that ends an interrupted run, ``with_target`` leaves out the nodes
    that lack the targets, ``gone`` are nodes that will never come back.
    """

    def __init__(
        self,
        crew: Crew,
        search: SearchOptions,
        words: tuple[str, ...] = ("--ray",),
        *,
        again: str = "rlpatch recover --ray",
        with_target: bool = False,
        gone: Sequence[str] = (),
        tell: Callable[[str], None] = lambda _phase: None,
    ) -> None:
        self.crew = crew
        self._search, self._words, self._with_target, self._gone = search, words, with_target, gone
        self._again, self._tell = again, tell
        self._mirrors = Mirrors()

    def within(self, work: Callable[[], Report]) -> Report:
        """See `Where`."""
        try:
            return work()
        finally:
            self._mirrors.close()

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
        """See `Where`. A node that does not answer, or has another release than others, stops all."""
        step = StepResult()
        surveys, problems = self._surveyed(words, command)
        if writes and not problems and any(survey.unfinished for survey in surveys.values()):
            step += self._recover()[0]
            if not step.problems:
                surveys, problems = self._surveyed(words, command)
        step += StepResult(problems=tuple(problems))
        if step.problems:
            return (), step
        if words and command in ("apply", "diff"):
            surveys, chosen = self._chosen(surveys)
            step += chosen + StepResult(problems=tuple(_releases(surveys, words)))
            if step.problems:
                return (), step
            step += StepResult.noted(telling.elsewhere(surveys), "warning")
        return self._mirrors.make(surveys, self._contents, self._search, self._words), step

    def settle(self, search: Search) -> StepResult:  # noqa: ARG002
        """See `Where`: mirrors have no interrupted runs, `searches` has ended them."""
        return StepResult()

    def guard(
        self, search: Search, upstream: Upstream, target: Target, profiler: str, launch: LaunchOptions, *, force: bool
    ) -> StepResult:
        """See `Where`: how the run is started is read here, the environment and what is installed on each node."""
        report = Report("apply")
        guard(report, upstream, target.version, launch, force=force, profiler=profiler)
        answers = self.crew.ask("guard", all_of(search.nodes, {upstream.project.name: profiler}, force))
        report.problems += problems(answers, unreachable)
        telling.merge(report, {node: cast("Report", one.value) for node, one in answers.items() if one.good})
        return report.step

    def preflight(self, work: Work) -> StepResult:
        """See `Where`."""
        answers = self.crew.ask("preflight", {node: (mine,) for node, mine in self._edits(work).items()})
        notes = [note for one in answers.values() if one.good for note in cast("tuple[Note, ...]", one.value)]
        return StepResult.noted(notes) + StepResult(problems=tuple(problems(answers, unreachable)))

    def commit(self, work: Work, verb: str) -> Committed:
        """See `Where`; nodes on which nothing would change take no part."""
        edits = self._edits(work)
        if not edits:
            return Committed(StepResult())
        done = transact(self.crew, edits, self._tell, self._again)
        step = StepResult.noted(done.notes)
        for node, one in done.recovered:
            step += outcomes.ended([one], node)
        files = sorted({path for paths in done.written.values() for path in paths})
        lines = [f"{node} sees the same folder as {leaders}, where it was written once"
                 for node, leaders in done.followers.items()]  # fmt: skip
        if done.followers:
            trees = len(edits) - len(done.followers)
            lines.append(f"{trees} tree{'s' if trees > 1 else ''} on {len(edits)} nodes")
        step += StepResult(tuple(lines), done=tuple(f"{verb} {path} on {listed(done.written)}" for path in files))
        if done.unlike:
            status = CommandLine("status", *self._words)
            late = f"their file system may be late: look again with `{status}` before the run starts"
            step += StepResult.noted([Note(f"{listed(done.unlike)} cannot see the change yet", late)], "warning")
        nodes = {
            node: {"written": list(done.written.get(node, ())), "shares": done.followers.get(node)} for node in edits
        }
        return Committed(step, nodes)

    def running(self, patched: Iterable[tuple[Search, Upstream, Path]]) -> Sequence[str]:
        """See `Where`."""
        places: dict[str, list[tuple[Upstream, str]]] = {}
        for search, upstream, root in patched:
            mirror = cast("Mirror", search)
            for node in mirror.nodes:
                places.setdefault(node, []).append((upstream, mirror.place(root, node)))
        answers = self._running(places)
        return [
            f"{node}: {process}" for node, one in answers.items() for process in cast("tuple[str]", one.value or ())
        ]

    def recover(self) -> Report:
        """See `Where`."""
        step, ended = self._recover()
        roots = [{"node": node, **outcomes.as_json(one)} for node, one in ended.roots]
        reached = [name for name in self.crew.names if name not in ended.unreached]
        if not reached:
            hint = "see `ray status`; the same command again when they are there"
            problem = Problem(Kind.ENVIRONMENT, "no node gives an answer", hint=hint, node=listed(self.crew.names))
            step += StepResult(problems=(problem,))
        elif not ended.roots and not step.problems:
            step += StepResult((f"nothing to recover on {listed(reached)}",))
        return Report("recover", step, data={"roots": roots})

    def status(self, words: Sequence[str]) -> Report:
        """See `Where`."""
        surveys = self.crew.ask("survey", all_of(self.crew.names, words, "status", {}))
        reports = self.crew.ask("status", all_of(self.crew.names, words))
        there = {node: cast("Survey", answer.value).targets for node, answer in surveys.items() if answer.good}
        found = {node: [(projects.upstream(one.project), one.root) for one in mine] for node, mine in there.items()}
        return telling.status(surveys, reports, self._running(found))

    def check(self, words: Sequence[str], launch: LaunchOptions) -> Report:
        """See `Where`: the launch is read here, the environment and what is installed on each node."""
        report = Report("check")
        if launch.script or launch.command or launch.config:
            report = check(words, self._search, launch)
            report.lines.insert(0, "the launch, as it is read here:")
        answers = self.crew.ask("check", all_of(self.crew.names, words))
        return telling.check(report, answers)

    def _surveyed(self, words: Sequence[str], command: str) -> tuple[dict[str, Survey], list[Problem]]:
        self._tell("probe")
        answers = self.crew.ask("survey", all_of(self.crew.names, words, command, _beside(words)))
        good = {node: cast("Survey", answer.value) for node, answer in answers.items() if answer.good}
        return good, problems(answers, unreachable)

    def _chosen(self, surveys: dict[str, Survey]) -> tuple[dict[str, Survey], StepResult]:
        """The nodes that have a target, if only these were asked for."""
        if not self._with_target:
            return surveys, StepResult()
        kept = {node: one for node, one in surveys.items() if any(isinstance(f, Found) for f in one.asked.values())}
        left = surveys.keys() - kept
        step = StepResult()
        if left:
            text = f"left out {len(left)} of {len(surveys)} nodes, without a target: {listed(left)}"
            step += StepResult.noted([Note(text)])
        if not kept:
            problem = Problem(Kind.NO_TARGET, "no node has one of the targets", node=listed(left))
            step += StepResult(problems=(problem,))
        return kept, step

    def _running(self, places: Mapping[str, Iterable[tuple[Upstream, str]]]) -> dict[str, Answer]:
        """The processes that each node names, for its upstreams and their roots."""
        asked = {
            node: (
                list(dict.fromkeys(upstream.processes for upstream, _ in mine)),
                [f"{root}/{upstream.project.package}" for upstream, root in mine],
            )
            for node, mine in places.items()
        }
        return self.crew.ask("running", asked)

    def _contents(self, node: str, paths: Iterable[str]) -> Mapping[str, bytes]:
        answers = self.crew.ask("contents", {node: (list(paths),)})
        for problem in problems(answers, unreachable):
            raise problem
        return cast("dict[str, bytes]", answers[node].value)

    def _edits(self, work: Work) -> dict[str, list[Edit]]:
        """What each node has to do, in its own paths."""
        found: dict[str, list[Edit]] = {}
        for search, edit in work:
            mirror = cast("Mirror", search)
            if not idle(StoreFolder(within(mirror.folder, edit.root)), edit):
                for node in mirror.nodes:
                    found.setdefault(node, []).append(edit._replace(root=Path(mirror.place(edit.root, node))))
        return found

    def _recover(self) -> tuple[StepResult, Ended]:
        ended = recover(self.crew, self._gone, self._again)
        step = StepResult(problems=tuple(ended.problems))
        for node, one in ended.roots:
            step += outcomes.ended([one], node)
        if ended.unreached:
            note = Note(f"not reached: {listed(ended.unreached)}", "the same command again when they are there")
            step += StepResult.noted([note], "warning")
        return step, ended


def _beside(words: Sequence[str]) -> dict[str, list[str]]:
    """The packages that the recipes of ``words`` ask for, by their projects."""
    found = {}
    for word in words:
        with contextlib.suppress(Problem):  # the nodes say what is wrong with a word
            upstream, _ = parse_target(word)
            found[upstream.project.name] = list(dict.fromkeys((*upstream.neighbours, *upstream.runs_on)))
    return found


def _releases(surveys: Mapping[str, Survey], words: Sequence[str]) -> list[Problem]:
    """A problem for each word that means several releases: what goes in is written for one."""
    found = []
    for word in words:
        versions: dict[str, list[str]] = {}
        for node, survey in surveys.items():
            if isinstance(one := survey.asked[word], Found):
                versions.setdefault(one.version or "unknown", []).append(node)
        if len(versions) > 1:
            said = "; ".join(f"{version} on {listed(nodes)}" for version, nodes in sorted(versions.items()))
            hint = "install one release everywhere, or patch each by itself: --nodes"
            found.append(Problem(Kind.VERSION, f"{word} is not the same everywhere: {said}", hint=hint))
    return found
