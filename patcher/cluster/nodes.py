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
from patcher.commands.finding import parse_target
from patcher.commands.guarding import check, guard
from patcher.errors import Kind, Problem
from patcher.report import Report
from patcher.store import outcomes
from patcher.store.draft import idle
from patcher.store.folder import StoreFolder
from patches import projects

if TYPE_CHECKING:
    from patcher.change import Edit
    from patcher.commands.finding import LaunchOptions, Search, SearchOptions
    from patcher.notes import Note
    from patcher.plan import Plan
    from patcher.recipe import Upstream


class Nodes:
    """All nodes of ``crew``, or none.

    ``search`` is where each looks, ``option`` is typed again in what is shown, ``again`` is the command line
    that ends an interrupted run, ``with_target`` leaves out the nodes
    that lack the targets, ``gone`` are nodes that will never come back.
    """

    def __init__(
        self,
        crew: Crew,
        search: SearchOptions,
        option: str = " --ray",
        *,
        again: str = "rlpatch recover --ray",
        with_target: bool = False,
        gone: Sequence[str] = (),
        tell: Callable[[str], None] = lambda _phase: None,
    ) -> None:
        self.crew = crew
        self._search, self._option, self._with_target, self._gone = search, option, with_target, gone
        self._again, self._tell = again, tell
        self._mirrors = Mirrors()

    def within(self, work: Callable[[], Report]) -> Report:
        """What ``work`` reports, in the words of the nodes."""
        try:
            return self._mirrors.told(work())
        except Problem as problem:
            raise self._mirrors.named(problem) from problem.__cause__
        finally:
            self._mirrors.close()

    def searches(self, report: Report, words: Sequence[str], command: str, *, writes: bool) -> Sequence[Search]:
        """See `Where`. A node that does not answer, or has another release than others, stops all."""
        surveys = self._surveyed(report, words, command)
        if writes and not report.problems and any(survey.unfinished for survey in surveys.values()):
            self._recover(report)
            if report.problems:
                return ()
            surveys = self._surveyed(report, words, command)
        if report.problems:
            return ()
        if words and command in ("apply", "diff"):
            surveys = self._chosen(report, surveys)
            report.problems += _releases(surveys, words)
            if report.problems:
                return ()
            for note in telling.elsewhere(surveys):
                report.warn(*note)
        return self._mirrors.make(surveys, self._contents, self._search, self._option)

    def unfinished(self, root: Path) -> bool:  # noqa: ARG002
        """See `Where`: all were ended before the nodes were read."""
        return False

    def settle(self, report: Report, search: Search) -> None:  # noqa: ARG002
        """See `Where`."""
        self._recover(report)

    def guard(self, report: Report, upstream: Upstream, plan: Plan, launch: LaunchOptions, *, force: bool) -> None:
        """See `Where`: how the run is started is read here, the environment and what is installed on each node."""
        guard(report, upstream, plan.target.version, launch, force=force, profiler=plan.profiler)
        nodes = self._mirrors.of(plan.target.root).nodes
        answers = self.crew.ask("guard", all_of(nodes, {upstream.project.name: plan.profiler}, force))
        report.problems += problems(answers, unreachable)
        telling.merge(report, {node: cast("Report", one.value) for node, one in answers.items() if one.good})

    def preflight(self, report: Report, edits: Sequence[Edit]) -> None:
        """See `Where`."""
        work = self._work(edits)
        answers = self.crew.ask("preflight", {node: (mine,) for node, mine in work.items()})
        report.problems += problems(answers, unreachable)
        outcomes.noted(
            report, [note for one in answers.values() if one.good for note in cast("tuple[Note, ...]", one.value)]
        )

    def commit(self, report: Report, edits: Sequence[Edit], verb: str) -> None:
        """See `Where`; nodes on which nothing would change take no part."""
        work = self._work(edits)
        if not work:
            return
        done = transact(self.crew, work, self._tell, self._again)
        outcomes.noted(report, done.notes)
        for node, one in done.recovered:
            outcomes.ended(report, [one], node)
        files = sorted({path for paths in done.written.values() for path in paths})
        report.done += [f"{verb} {path} on {listed(done.written)}" for path in files]
        report.data["nodes"] = {
            node: {"written": list(done.written.get(node, ())), "shares": done.followers.get(node)} for node in work
        }
        for node, leaders in done.followers.items():
            report.lines.append(f"{node} sees the same folder as {leaders}, where it was written once")
        if done.followers:
            trees = len(work) - len(done.followers)
            report.lines.append(f"{trees} tree{'s' if trees > 1 else ''} on {len(work)} nodes")
        if done.unlike:
            late = (
                f"their file system may be late: look again with `rlpatch status{self._option}` before the run starts"
            )
            report.warn(f"{listed(done.unlike)} cannot see the change yet", late)

    def running(self, patched: Iterable[tuple[Upstream, Path]]) -> Sequence[str]:
        """See `Where`."""
        places: dict[str, list[tuple[Upstream, str]]] = {}
        for upstream, root in patched:
            mirror = self._mirrors.of(root)
            for node in mirror.nodes:
                places.setdefault(node, []).append((upstream, mirror.place(root, node)))
        answers = self._running(places)
        return [
            f"{node}: {process}" for node, one in answers.items() for process in cast("tuple[str]", one.value or ())
        ]

    def recover(self, report: Report) -> None:
        """See `Where`."""
        ended = self._recover(report)
        report.data["roots"] = [{"node": node, **outcomes.as_json(one)} for node, one in ended.roots]
        reached = [name for name in self.crew.names if name not in ended.unreached]
        if not reached:
            hint = "see `ray status`; the same command again when they are there"
            report.problems.append(Problem(Kind.ENVIRONMENT, "no node gives an answer", listed(self.crew.names), hint))
        elif not ended.roots and not report.problems:
            report.lines.append(f"nothing to recover on {listed(reached)}")

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

    def _surveyed(self, report: Report, words: Sequence[str], command: str) -> dict[str, Survey]:
        self._tell("probe")
        answers = self.crew.ask("survey", all_of(self.crew.names, words, command, _beside(words)))
        report.problems += problems(answers, unreachable)
        return {node: cast("Survey", answer.value) for node, answer in answers.items() if answer.good}

    def _chosen(self, report: Report, surveys: dict[str, Survey]) -> dict[str, Survey]:
        """The nodes that have a target, if only these were asked for."""
        if not self._with_target:
            return surveys
        kept = {node: one for node, one in surveys.items() if any(isinstance(f, Found) for f in one.asked.values())}
        left = surveys.keys() - kept
        if left:
            report.note(f"left out {len(left)} of {len(surveys)} nodes, without a target: {listed(left)}")
        if not kept:
            report.problems.append(Problem(Kind.NO_TARGET, "no node has one of the targets", listed(left)))
        return kept

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

    def _work(self, edits: Sequence[Edit]) -> dict[str, list[Edit]]:
        """What each node has to do, in its own paths."""
        work: dict[str, list[Edit]] = {}
        for edit in edits:
            mirror: Mirror = self._mirrors.of(edit.root)
            if not idle(StoreFolder(edit.root), edit):
                for node in mirror.nodes:
                    work.setdefault(node, []).append(edit._replace(root=Path(mirror.place(edit.root, node))))
        return work

    def _recover(self, report: Report) -> Ended:
        ended = recover(self.crew, self._gone, self._again)
        for node, one in ended.roots:
            outcomes.ended(report, [one], node)
        report.problems += ended.problems
        if ended.unreached:
            report.warn(f"not reached: {listed(ended.unreached)}", "the same command again when they are there")
        return ended


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
