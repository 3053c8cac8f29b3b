"""What a recipe is: the knowledge of one upstream structure, declared without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.notes import Note
from patcher.processes import Processes

if TYPE_CHECKING:
    from patcher.capture import Capture
    from patcher.guards.look import Switch
    from patcher.targets.target import Project
    from patches.switches import Application


class Site(NamedTuple):
    """One line of ours in one method of the target class, or one in front of a statement and one behind it.

    ``line`` is the statement that goes in; ``_rlpatch_stage`` in it stands for the name of the patch. ``before`` is
    the statement it goes in front of, written as code in which ``...`` stands for any arguments, any body or any
    value; it must match exactly one statement at the top level of ``method``. An empty ``before`` means the head of
    the method, behind its docstring. ``loops_over`` are names instead: the line goes in front of the one ``for`` loop
    of the method, at any depth, that runs over one of them, or over its ``enumerate``; ``{units}`` in ``line`` is the
    name that was found. ``call`` is an expression instead, written like ``before``: the line goes in front of the one
    statement of the method, at any depth, that is nothing but this call, or assigns what it gives. ``after`` is the
    statement that goes behind that of ``before`` or ``call``; it is not reached where the statement raises.

    ``parameters`` are names that the method must take, because ``line`` uses them. A site that is ``optional`` is
    left out where the class has no such method, and one with ``windows`` for every other unit.
    """

    method: str
    line: str
    why: str
    before: str = ""
    loops_over: tuple[str, ...] = ()
    call: str = ""
    after: str = ""
    parameters: tuple[str, ...] = ()
    optional: bool = False
    windows: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where the line goes, in words: for messages and for ``explain``."""
        if self.loops_over:
            return f"before the loop over {' or '.join(self.loops_over)}"
        statement = self.before or self.call
        where = "around" if self.after else "before"
        return f"{where} `{statement}`" if statement else "at its head"


class Call(NamedTuple):
    """One call in upstream's own code whose arguments may be changed.

    ``function`` is what is called, as it is written there: the method of the recipe has exactly one call of it.
    ``positional`` are the parameters that may be given by position, in their order; ``defaults`` is the code of what
    stands for an argument that is not given, so that nothing is inserted to say the same.
    """

    function: str
    why: str
    positional: tuple[str, ...] = ()
    defaults: Mapping[str, str] = MappingProxyType({})

    @property
    def name(self) -> str:
        """The last part of ``function``, as ``Probe.arguments`` has it."""
        return self.function.rpartition(".")[2]


class Structure(NamedTuple):
    """Releases whose target function has the same shape; ``name`` tells it from others of the recipe.

    ``file`` is relative to the root of the target. ``fingerprints`` are ``patcher.engine.fingerprint`` of the
    recipe's ``method`` in the published files; another fingerprint means a fork, a dev build or a local edit.
    """

    name: str
    releases: tuple[str, ...]
    file: str
    fingerprints: tuple[str, ...]
    shape: str


class Probe(NamedTuple):
    """The code that goes into the class: classes of source files below ``patches/probes``, as ``module.Class``.

    The ``parts`` are flattened into one nested class, together with the part of the backend; the members of
    ``members`` are appended to the target class itself. Without parts nothing is nested. ``layers`` gives what goes on
    top of the parts for a capture: the classes of each layer are flattened into one that derives from the nested class
    and takes its name. ``constants`` are class attributes that the recipe sets, ``chosen`` gives those that follow
    from a capture; ``arguments`` maps (function, keyword) to the code of that argument in the backend's calls,
    ``summary`` is one line for the reader.

    A recipe with ``calls`` has a probe without code, whose ``arguments`` go into these calls instead. ``resulting``
    gets all arguments that they have then, and gives notes on them; it raises :class:`patcher.errors.Problem` (USAGE)
    for a combination of what was asked for and what stays that does nothing.
    """

    members: tuple[str, ...]
    summary: Callable[[Capture[Any]], str]
    parts: tuple[str, ...] = ()
    backends: Mapping[str, str] = MappingProxyType({})
    chosen: Callable[[Capture[Any]], Mapping[str, object]] = lambda _capture: {}
    arguments: Callable[[Capture[Any]], Mapping[tuple[str, str], str]] = lambda _capture: {}
    layers: Callable[[Capture[Any]], tuple[tuple[str, ...], ...]] = lambda _capture: ()
    constants: Mapping[str, object] = MappingProxyType({})
    resulting: Callable[[Capture[Any], Mapping[tuple[str, str], str]], tuple[Note, ...]] = lambda _capture, _code: ()


class Recipe(NamedTuple):
    """Where a stage of one project is recorded, in which releases, and why there.

    ``why``, ``how``, ``upstream`` and ``remove_when`` are what ``rlpatch explain`` prints; ``method`` is the
    function that is fingerprinted; ``windows`` are the units that can be counted here. ``strategies`` are the parallel
    strategies that use this class, ``roles`` those that the stage works for. ``notes`` are said with each plan. A
    recipe that ``needs`` others records nothing without one of these in the same patch; those that go ``together``
    record nothing without all of each other. ``marks`` are windows of other recipes, to which this one adds with
    ``--markers`` what it counts itself.

    ``calls`` are those of upstream's ``method`` whose arguments change, instead of lines that go in: then ``profiler``
    is the one of ``patches.switches`` that they set up, and nothing of ours records beside it.
    """

    name: str
    stage: str
    class_name: str
    method: str
    sites: tuple[Site, ...]
    structures: tuple[Structure, ...]
    probe: Probe
    windows: tuple[str, ...]
    why: str
    how: str
    upstream: str
    remove_when: str
    strategies: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    needs: tuple[str, ...] = ()
    together: bool = False
    marks: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    profiler: str = ""

    @property
    def releases(self) -> tuple[str, ...]:
        """Every published release that this recipe knows, oldest first."""
        return tuple(release for structure in self.structures for release in structure.releases)

    def structure(self, release: str) -> Structure | None:
        """The structure of a published release, None for any other."""
        return next((s for s in self.structures if release in s.releases), None)


class Gap(NamedTuple):
    """A window that cannot be had under a parallel strategy: the unit, in which stages and releases, and why."""

    strategy: str
    unit: str
    stages: tuple[str, ...]
    releases: str
    reason: Note

    def exists(self, version: str) -> bool:
        """Whether ``version`` has the strategy at all; so it is taken where the version is none."""
        from packaging.specifiers import SpecifierSet
        from packaging.version import InvalidVersion, Version

        try:
            return SpecifierSet(self.releases).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True


class Upstream(NamedTuple):
    """All that ``patches`` knows of one project.

    The stage of the first recipe that counts a unit is the default for it. ``switches`` are the profilers that could
    be on beside ours, ``application`` is how a configuration switches others on, ``gaps`` the windows that cannot be
    had, ``processes`` tells by what a running engine is known. ``builtin`` maps releases (a version specifier) to
    what the project's own profiler can and cannot do there, ``neighbours`` maps packages to what has to be said if one
    lies in the same environment.

    ``backend`` is the default where the environment does not tell, or does not matter: ``runs_on`` has a backend for
    each package whose presence decides, the first one wins.
    """

    project: Project
    recipes: tuple[Recipe, ...]
    switches: tuple[Switch, ...]
    backend: str
    processes: Processes = Processes()
    gaps: tuple[Gap, ...] = ()
    builtin: Mapping[str, str] = MappingProxyType({})
    neighbours: Mapping[str, Note] = MappingProxyType({})
    runs_on: Mapping[str, str] = MappingProxyType({"torch_npu": "npu", "torch": "torch"})
    application: Application | None = None

    @property
    def releases(self) -> tuple[str, ...]:
        """Every published release that a recipe knows, oldest first."""
        from packaging.version import Version

        return tuple(sorted({release for recipe in self.recipes for release in recipe.releases}, key=Version))
