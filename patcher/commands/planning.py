"""From the words of a command to plans; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from patcher import plan as planning
from patcher.commands.finding import upstreams
from patcher.errors import Kind, Problem, refused
from patcher.notes import Note
from patcher.report import StepResult
from patcher.request import no_stage, resolve
from patcher.store import STORE
from patcher.store import transaction as store
from patches import projects

if TYPE_CHECKING:
    from patcher.commands.finding import Search
    from patcher.config import ProfileConfig, Stage
    from patcher.plan import Plan
    from patcher.recipe import Upstream
    from patcher.request import Request
    from patcher.targets.target import Target

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Attempted(Generic[T]):
    """What came of each word of a command, a value or a problem: the reader sees all problems at once."""

    results: Mapping[str, T | Problem]

    @property
    def values(self) -> list[T]:
        """The results of the words that succeeded."""
        return [one for one in self.results.values() if not isinstance(one, Problem)]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the others failed."""
        return tuple(one for one in self.results.values() if isinstance(one, Problem))

    def then(self, work: Callable[[T], U], nodes: Sequence[str] = ()) -> Attempted[U]:
        """The next step of all that succeeded; a problem on ``nodes`` names them."""
        return Attempted({word: _attempt(work, one, nodes) for word, one in self.results.items()})


def _attempt(work: Callable[[T], U], value: T | Problem, nodes: Sequence[str]) -> U | Problem:
    try:
        return value if isinstance(value, Problem) else work(value)
    except Problem as problem:
        return problem.replace(node=", ".join(nodes)) if nodes and problem.where else problem
    except PermissionError as error:
        return refused(error)


class Candidate(NamedTuple):
    """A target before it is planned for: where it was found, and what is to be recorded there."""

    search: Search
    upstream: Upstream
    target: Target
    config: ProfileConfig[Stage]

    @property
    def profiler(self) -> str:
        """The framework's own profiler, if that is to be set up."""
        return planning.profiler(self.upstream, self.config)


class Planned(NamedTuple):
    """A plan, and where its target was found."""

    search: Search
    upstream: Upstream
    plan: Plan


def find(words: Sequence[str], search: Search, command: str) -> Attempted[tuple[Upstream, Target]]:
    """The targets of ``words``, each once."""
    found = Attempted({word: word for word in words}).then(lambda word: search.find(word, command), search.nodes)
    first: dict[str, str] = {}
    for word, one in found.results.items():
        first.setdefault(word if isinstance(one, Problem) else one[1].project.name, word)
    return Attempted({word: one for word, one in found.results.items() if word in first.values()})


def configure(found: Attempted[tuple[Upstream, Target]], search: Search, request: Request) -> Attempted[Candidate]:
    """What ``request`` means for each target."""

    def configured(one: tuple[Upstream, Target]) -> Candidate:
        config = resolve(request, *one, upstreams)
        _refuse_inside(config)
        return Candidate(search, *one, config)

    return found.then(configured, search.nodes)


def plan(candidates: Attempted[Candidate], search: Search) -> Attempted[Planned]:
    """A plan for each target."""

    def planned(one: Candidate) -> Planned:
        records = store.records(one.target.folder)
        return Planned(search, one.upstream, planning.apply(one.upstream, one.target, one.config, records))

    return candidates.then(planned, search.nodes)


def plan_targets(
    words: Sequence[str], search: Search, request: Request, command: str
) -> tuple[list[Planned], StepResult]:
    """The plans for ``words`` of a command that writes nothing, and what stands in the way."""
    planned = plan(configure(find(words, search, command), search, request), search)
    return planned.values, failures(planned, words, request)


def failures(planned: Attempted[Planned], words: Sequence[str], request: Request) -> StepResult:
    """The problems of planning, those of what was asked for and fits no target among them."""
    problems = planned.problems or unused(request, planned.values)
    if not problems or len(words) == 1:
        return StepResult(problems=problems)
    nothing = Note("nothing was written, because not every target can be patched")
    return StepResult.noted([nothing]) + StepResult(problems=problems)


def unused(request: Request, plans: Iterable[Planned]) -> tuple[Problem, ...]:
    """What was asked for and fits no target; in a command of several targets each takes only what it knows."""
    known = [(one.upstream, one.plan.config.stage) for one in plans]
    problems = []
    if request.stage and request.stage not in [stage.name for _, stage in known]:
        problems.append(no_stage(request.stage, [upstream for upstream, _ in known], upstreams))
    for window in request.windows:
        if window not in [stage.window for _, stage in known]:
            option = f"--{window.unit} {window}"
            hint = f"leave out {option}, or name a target that has it: rlpatch list"
            problems.append(Problem(Kind.USAGE, f"{option}: no target counts it", hint=hint))
    return tuple(problems)


def _refuse_inside(config: ProfileConfig[Stage]) -> None:
    """Raise Problem (USAGE) where the traces would lie in a package that rlpatch knows, or in a store of ours."""
    if not config.save_path:  # the framework knows where its traces go
        return
    packages = {project.package for project in projects.projects()}
    folder = Path(config.save_path)
    for inside in (folder, *folder.parents):
        package = inside.name in packages and (inside / "__init__.py").exists()
        if package or inside.name == STORE:
            what = f"the package {inside.name}" if package else "the store of rlpatch"
            raise Problem(
                Kind.USAGE,
                f"the traces would go to {folder}, inside {what}",
                str(inside),
                f"--save-path /tmp/rlpatch_traces, or start from a folder outside of {inside}",
            )
