"""Commands on the nodes of a cluster."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from patcher.cluster import summary
from patcher.cluster.changing import ClusterChange, change
from patcher.cluster.changing import check as check_all
from patcher.cluster.mirror import Mirror, group_identical
from patcher.cluster.node_group import NodeEdit, NodeGroup, NodeSurvey, all_of, listed, problems, values
from patcher.commands.finding import parse_target
from patcher.commands.guarding import check, guard
from patcher.commands.where import Committed
from patcher.messages import SEMICOLON, CommandLine, CommandResult, Kind, Note, Problem, StepResult, Text, joined
from patcher.store import outcomes
from patcher.store.draft import changes_nothing
from patcher.store.folder import StoreFolder
from patcher.targets.target import within
from patches import projects

if TYPE_CHECKING:
    from patcher.commands.finding import Search, SearchOptions
    from patcher.commands.where import PatchedTargets, Work
    from patcher.guards.result import Launch
    from patcher.processes import Processes, RunningProcess
    from patcher.recipe import Upstream
    from patcher.targets.target import Target


_NAME = re.compile(r"\w+\.jsonl\.gz(\.old)?", re.ASCII)
"""Names of the recorder's files: a node sends them, and they are written here."""


class Nodes:
    """Commands on all nodes of `group`, or none; see `patcher.commands.where.NodeCommands`.

    `search` is where each node looks, `words` are the options to type again. `with_target` leaves out nodes without the
    targets; `left_out` is a note on nodes that `--nodes` excludes.
    """

    def __init__(
        self,
        group: NodeGroup,
        search: SearchOptions,
        words: tuple[str, ...] = ("--ray",),
        *,
        with_target: bool = False,
        left_out: str = "",
    ) -> None:
        self.group, self.search = group, search
        self._words, self._with_target = words, with_target
        self._left_out = StepResult.noted([Note(left_out)] if left_out else [])
        self._folder = tempfile.TemporaryDirectory(prefix="rlpatch-nodes-", ignore_cleanup_errors=True)

    def close(self) -> None:
        """Remove the copies of the nodes' files, and disconnect."""
        self._folder.cleanup()
        self.group.close()

    def searches(self, words: Sequence[str], command: str, *, writes: bool) -> tuple[Sequence[Search], StepResult]:
        """Return a search for each group of identical nodes, and a report; with a problem there is no search.

        A node that does not answer is a problem; for "apply" and "diff" also another release. If the command `writes`,
        interrupted commands on the nodes are ended first. Raises the Problem of a node whose files cannot be read.
        """
        surveys, step = self._surveyed(words, command)
        if writes and not step.problems and any(survey.unfinished for survey in surveys.values()):
            step += self._recover_all()[0]
            if not step.problems:
                surveys, again = self._surveyed(words, command)
                step += again
        if not step.problems and words and command in ("apply", "diff"):
            surveys, chosen = self._with_targets(surveys)
            step += chosen + StepResult(problems=tuple(_release_problems(surveys, words)))
            if not step.problems:
                step += StepResult.noted(summary.shadowed_packages(surveys), "warning")
        step += self._left_out
        if step.problems:
            return (), step
        return [self._mirror(kind) for kind in group_identical(surveys)], step

    def guard(
        self, search: Search, upstream: Upstream, target: Target, profiler: str, launch: Launch, *, force: bool,
        recorder: str,
    ) -> StepResult:  # fmt: skip
        """Return a problem or warning for each other profiler that is on; see `patcher.commands.guarding.guard`.

        The launch is read on this machine, environment and files of the target on each node of `search`.
        """
        step = guard(upstream, target.version, launch, force=force, profiler=profiler, recorder=recorder)
        answers = self.group.call("guard", all_of(search.nodes, upstream.project.name, profiler, force, recorder))
        return step + summary.failures(answers) + summary.merge(values(answers))

    def carry_out(self, work: Work, verb: str, *, dry_run: bool) -> Committed:
        """Commit `work`, pairs of search and edit, on all nodes or none; with `dry_run` only check it.

        Nodes without a change take no part. Raises Problem if a node cannot change its files; with `dry_run` the report
        has it.
        """
        edits = self._edits(work)
        if dry_run:
            return Committed(check_all(self.group, edits))
        if not edits:
            return Committed(StepResult())
        changed = change(self.group, edits, CommandLine("status", *self._words))
        nodes = {
            node: {"written": list(changed.written.get(node, ())), "shares": changed.shares.get(node)} for node in edits
        }
        return Committed(self._change_report(changed, len(edits), verb), nodes)

    def _change_report(self, changed: ClusterChange, count: int, verb: str) -> StepResult:
        """Return the report on a change: shared folders, files with their nodes, and nodes that do not see it yet."""
        same = Text("{node} sees the same folder as {other_nodes}, so the files were written only once")
        lines = [same.filled(node=node, other_nodes=other_nodes) for node, other_nodes in changed.shares.items()]
        trees = count - len(lines)
        if lines and trees > 1:
            several = Text("files were changed on {nodes} nodes, in {folders} different folders")
            lines.append(several.filled(nodes=count, folders=trees))
        elif lines:
            lines.append(Text("the folder with the changed files is shared by {nodes} nodes", count))
        files = sorted({path for paths in changed.written.values() for path in paths})
        done = Text("{action} {path} on {nodes}")
        nodes = listed(changed.written)
        step = changed.step + StepResult(
            tuple(lines), done=tuple(done.filled(action=verb, path=path, nodes=nodes) for path in files)
        )
        if changed.late:
            status = CommandLine("status", *self._words)
            late = Text(
                "a shared file system might show the change late: check with `{command}` before the run starts", status
            )
            note = Note(Text("{nodes} cannot see the changed files yet", listed(changed.late)), late)
            step += StepResult.noted([note], "warning")
        return step

    def gather(self, folder: Path, into: Path) -> StepResult:
        """Copy timeline files from `folder` on each node into the subfolder `timeline` of `into`; report how many.

        A file that is already here is only replaced if the node has more bytes of it. Raises OSError if files cannot be
        written here.
        """
        here = into / "timeline"
        have = {path.name: path.stat().st_size for path in here.glob("*.jsonl.gz*")}
        answers = self.group.call("timeline", all_of(self.group.names, str(folder), have))
        sent = (file for files in values(answers).values() for file in files.items())
        contents = {name: content for name, content in sent if _NAME.fullmatch(name)}
        here.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (here / f".{name}").write_bytes(content)
            (here / f".{name}").replace(here / name)
        line = Text("copied {count} files to {folder}", count=len(contents), folder=here)
        if len(contents) == 1:
            line = Text("copied 1 file to {folder}", here)
        return StepResult((line,) if contents else ()) + summary.failures(answers)

    def running(self, patched: PatchedTargets) -> Sequence[RunningProcess]:
        """Return the processes on the changed nodes that may still run the code from before, with their nodes."""
        arguments: dict[str, tuple[list[Processes], list[str]]] = {}
        for search, upstream, root in patched:
            for node in search.nodes:
                engines, packages = arguments.setdefault(node, ([], []))
                engines.append(upstream.processes)
                packages.append(f"{cast('Mirror', search).place(root, node)}/{upstream.project.package}")
        answers = values(self.group.call("running", arguments))
        return [
            process._replace(line=Text("{node}: {process}", node=node, process=process.line))
            for node, processes in answers.items()
            for process in processes
        ]

    def recover(self) -> CommandResult:
        """Complete or roll back the interrupted commands of every node that answers; report a problem if none does."""
        step, roots, unreached = self._recover_all()
        step += self._left_out
        reached = [name for name in self.group.names if name not in unreached]
        if not reached:
            hint = Text("check the cluster with `ray status`; repeat your command when the nodes are back")
            problem = Problem(
                Kind.ENVIRONMENT, Text("none of the cluster's nodes answers"), hint=hint, node=listed(self.group.names)
            )
            step += StepResult(problems=(problem,))
        elif not roots and not step.problems:
            step += StepResult((Text("nothing to recover on {nodes}", listed(reached)),))
        return CommandResult("recover", step, data={"roots": roots})

    def status(self, words: Sequence[str]) -> CommandResult:
        """Report the patches of each node, for the targets `words` (none: all)."""
        engines = {upstream.project.name: upstream.processes for upstream in projects.upstreams()}
        report = summary.status(self.group.call("status", all_of(self.group.names, words, engines)))
        report.add(self._left_out)
        return report

    def check(self, words: Sequence[str], launch: Launch) -> CommandResult:
        """Report other profilers: in the launch, read on this machine, and in each node's environment and targets."""
        report = CommandResult("check", self._left_out)
        if launch.script or launch.command or launch.config:
            report = check(words, self.search, launch)
            report.lines.insert(0, Text("launch configuration, as found on this machine:"))
            report.add(self._left_out)
        return summary.check(report, self.group.call("check", all_of(self.group.names, words)))

    def _surveyed(self, words: Sequence[str], command: str) -> tuple[dict[str, NodeSurvey], StepResult]:
        answers = self.group.call("survey", all_of(self.group.names, words, command, _packages_to_find(words)))
        return values(answers), summary.failures(answers)

    def _with_targets(self, surveys: dict[str, NodeSurvey]) -> tuple[dict[str, NodeSurvey], StepResult]:
        """Return the surveys; with `--nodes has-target` only those with a target, and a note on the others."""
        if not self._with_target:
            return surveys, StepResult()
        chosen = {node: survey for node, survey in surveys.items() if survey.targets_by_word}
        other_nodes = surveys.keys() - chosen
        if not chosen:
            cause = Text("none of the nodes has the targets installed")
            return chosen, StepResult(problems=(Problem(Kind.NO_TARGET, cause, node=listed(other_nodes)),))
        text = Text(
            "skipped {count} of {total} nodes, because none of the targets is installed there: {nodes}",
            count=len(other_nodes),
            total=len(surveys),
            nodes=listed(other_nodes),
        )
        return chosen, StepResult.noted([Note(text)] if other_nodes else [])

    def _mirror(self, surveys: Mapping[str, NodeSurvey]) -> Mirror:
        """Copy the files of the first of the identical nodes `surveys` to this machine; return a search there."""
        mirror = Mirror(Path(tempfile.mkdtemp(dir=self._folder.name)), surveys, self.search, self._words)
        answers = self.group.call("contents", {mirror.nodes[0]: (mirror.files,)})
        for problem in problems(answers):
            raise problem
        mirror.fill(values(answers)[mirror.nodes[0]])
        return mirror

    def _edits(self, work: Work) -> dict[str, list[NodeEdit]]:
        """Return the edits of each node with that node's paths; edits that change nothing are left out."""
        edits: dict[str, list[NodeEdit]] = {}
        for search, edit in work:
            mirror = cast("Mirror", search)
            if changes_nothing(StoreFolder(within(mirror.folder, edit.root)), edit):
                continue
            for node, survey in mirror.surveys.items():
                root = mirror.place(edit.root, node)
                records = survey.records.get(str(root), ())
                edits.setdefault(node, []).append(NodeEdit(edit._replace(root=root), records))
        return edits

    def _recover_all(self) -> tuple[StepResult, list[dict[str, Any]], list[str]]:
        """Recover interrupted commands; return the report, the roots recovered, and the nodes that did not answer."""
        answers = self.group.call("recover", all_of(self.group.names))
        step = StepResult(
            problems=tuple(problems({node: answer for node, answer in answers.items() if answer.problem}))
        )
        roots = []
        for node, recovered in values(answers).items():
            step += outcomes.recovery_messages(recovered, node)
            roots += [{"node": node, **root._asdict()} for root in recovered]
        unreached = [node for node, answer in answers.items() if answer.lost]
        if unreached:
            note = Note(
                Text("cannot reach {nodes}", listed(unreached)), Text("repeat your command when these nodes are back")
            )
            step += StepResult.noted([note], "warning")
        return step, roots, unreached


def _packages_to_find(words: Sequence[str]) -> dict[str, list[str]]:
    """Return project → names of packages to look for in the environment of each target that `words` name."""
    packages = {}
    for word in words:
        with contextlib.suppress(Problem):  # the nodes report what is wrong with a word
            upstream, _ = parse_target(word)
            packages[upstream.project.name] = list(dict.fromkeys((*upstream.neighbours, *upstream.runs_on)))
    return packages


def _release_problems(surveys: Mapping[str, NodeSurvey], words: Sequence[str]) -> list[Problem]:
    """Return a problem for each word whose target has different releases on different nodes."""
    several = []
    for word in words:
        versions: dict[str, list[str]] = {}
        for node, survey in surveys.items():
            if word in survey.targets_by_word:
                versions.setdefault(survey.targets_by_word[word].target.version or Text("unknown"), []).append(node)
        if len(versions) > 1:
            place = Text("{version} on {nodes}")
            of_nodes = (
                place.filled(version=version, nodes=listed(nodes)) for version, nodes in sorted(versions.items())
            )
            releases = joined(SEMICOLON, of_nodes)
            cause = Text("the version of {target} differs between nodes: {releases}", target=word, releases=releases)
            hint = Text("install the same release everywhere, or patch each release separately with --nodes")
            several.append(Problem(Kind.VERSION, cause, hint=hint))
    return several
