"""A recipe: the knowledge of one upstream structure, declared without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.messages import Note
from patcher.processes import Processes

if TYPE_CHECKING:
    from patcher.config import ProfileConfig
    from patcher.switches import Application, Switch
    from patcher.targets.target import Project


class Head(NamedTuple):
    """At the head of the method, behind its docstring."""


class Before(NamedTuple):
    """In front of the one statement at the top level of the method that is ``statement``.

    That is code in which ``...`` stands for any arguments, any body or any value.
    """

    statement: str


class Loop(NamedTuple):
    """In front of the one ``for`` loop of the method, at any depth, over one of ``names``, or over its ``enumerate``.

    A name may be that of an attribute, ``batch.parts``. ``{units}`` in the line is the name that was found.
    """

    names: tuple[str, ...]


class Around(NamedTuple):
    """In front of and behind the one statement that is nothing but ``call``, or assigns what it gives.

    ``call`` is written as the statement of ``Before`` is, and may be one with a body. ``after`` goes behind it, and is
    not reached where it raises. The statement stands at the top level of the method or, where it is ``nested``, at any
    depth.
    """

    call: str
    after: str
    nested: bool = True


Anchor = Head | Before | Loop | Around
"""Where in a method a line goes."""


class Insertion(NamedTuple):
    """One line of ours in one method of the target class, or one in front of a statement and one behind it.

    Where the recipe has no class, ``method`` is the path to a function of the module: ``decorate.inner`` within another
    one, ``Manager.update`` of a class; so is one with a dot where it has a class. A function may be ``async``.
    ``line`` is the statement that goes in at ``where``; ``_rlpatch_stage`` in it stands for the name of the patch.
    ``parameters`` are names that the method must take, because ``line`` uses them. An ``optional`` one is
    left out where there is no such method with these, and one with ``windows`` for every other unit.
    """

    method: str
    where: Anchor
    line: str
    why: str
    parameters: tuple[str, ...] = ()
    optional: bool = False
    windows: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The line in front and, where there is one, that behind."""
        return (self.line, self.where.after) if isinstance(self.where, Around) else (self.line,)


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

    ``file`` is relative to the root of the target. ``fingerprints`` are ``patcher.editing.fingerprint`` of the
    recipe's ``method`` in the published files; another fingerprint means a fork, a dev build or a local edit.
    """

    name: str
    releases: tuple[str, ...]
    file: str
    fingerprints: tuple[str, ...]
    shape: str


class Probe(NamedTuple):
    """The code that goes into the class: classes of ``patches.probes``, which ``patcher.editing`` renders.

    ``recorder`` is the class that counts; with that of the tool in ``tools`` it becomes one nested class. The
    classes in ``shared``, and all from which they derive, go into a class of their own below it, which the patches of
    a target class have in common. ``parts`` gives classes that become part of it for a configuration and a release.
    ``layers`` gives what goes on top: each becomes a class that derives from the one below, flattened with those of its
    bases that are not below it yet. ``members`` are appended to the target class itself; where the
    recipe has none, one object has them in the place of ``self``, and functions call them by their names alone.

    ``beside`` is a line below all that, with the names of the patch: of a recipe without a class the recorder stands in
    the module, and this makes one. ``callers`` are the lines of other recipes that call it.

    ``constants`` gives, for a configuration and a published release ("" for any other), the compile-time constants,
    ``settings`` what stands at the top as the user's choice; ``arguments`` maps (function, keyword) to the code of that
    argument in the tool's calls, ``summary`` is one line for the reader.

    A recipe with ``calls`` has a probe without code, whose ``arguments`` go into these calls instead. ``resulting``
    gets all arguments that they have then, and gives notes on them; it raises :class:`~patcher.messages.errors.Problem`
    (USAGE) for a combination of what was asked for and what stays that does nothing.
    """

    summary: Callable[[ProfileConfig[Any]], str]
    members: tuple[type, ...] = ()
    recorder: type | None = None
    shared: tuple[type, ...] = ()
    beside: str = ""
    callers: tuple[str, ...] = ()
    tools: Mapping[str, type] = MappingProxyType({})
    constants: Callable[[ProfileConfig[Any], str], Mapping[str, object]] = lambda _config, _release: {}
    settings: Callable[[ProfileConfig[Any]], Mapping[str, object]] = lambda _config: {}
    arguments: Callable[[ProfileConfig[Any]], Mapping[tuple[str, str], str]] = lambda _config: {}
    parts: Callable[[ProfileConfig[Any], str], tuple[type, ...]] = lambda _config, _release: ()
    layers: Callable[[ProfileConfig[Any], str], tuple[type, ...]] = lambda _config, _release: ()
    resulting: Callable[[ProfileConfig[Any], Mapping[tuple[str, str], str]], tuple[Note, ...]] = lambda *_: ()


class Recipe(NamedTuple):
    """A recipe: where a stage of one project is recorded, in which releases, and why there.

    ``why``, ``how``, ``upstream`` and ``remove_when`` are what ``rlpatch explain`` prints; ``method`` is the
    function that is fingerprinted, where structures have fingerprints; without a ``class_name`` the lines go into
    functions anywhere in the module, and the block to its end. ``windows`` are the units that can be counted here.
    ``strategies`` are the parallel strategies that use this class, ``roles`` those that the stage works for. ``notes``
    are said with each plan, ``unit_notes`` with one for a window of that unit. A recipe that ``needs`` others records
    nothing without one of these in the same patch; those that go ``together`` record nothing without all of each other.
    ``marks`` are windows of other recipes, to which this one adds with ``--markers`` what it counts itself.

    ``calls`` are those of upstream's ``method`` whose arguments change, instead of lines that go in: then ``profiler``
    is the one of ``patches.switches`` that they set up, and nothing of ours records beside it.
    """

    name: str
    stage: str
    class_name: str
    method: str
    insertions: tuple[Insertion, ...]
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
    unit_notes: Mapping[str, Note] = MappingProxyType({})
    needs: tuple[str, ...] = ()
    together: bool = False
    marks: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    profiler: str = ""

    @property
    def releases(self) -> tuple[str, ...]:
        """Every published release that this recipe knows, oldest first."""
        return tuple(release for structure in self.structures for release in structure.releases)

    def notes_of(self, unit: str) -> tuple[Note, ...]:
        """Return what is to be said with a plan for a window of ``unit``."""
        return (*self.notes, self.unit_notes[unit]) if unit in self.unit_notes else self.notes

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

    ``tool`` is the default where the environment does not tell, or does not matter: ``runs_on`` has a tool for
    each package whose presence decides, the first one wins.
    """

    project: Project
    recipes: tuple[Recipe, ...]
    switches: tuple[Switch, ...]
    tool: str
    processes: Processes = Processes()
    gaps: tuple[Gap, ...] = ()
    builtin: Mapping[str, str] = MappingProxyType({})
    neighbours: Mapping[str, Note] = MappingProxyType({})
    runs_on: Mapping[str, str] = MappingProxyType({"torch_npu": "npu", "torch": "torch"})
    application: Application | None = None

    @property
    def releases(self) -> tuple[str, ...]:
        """Every published release that a recipe knows, oldest first."""
        known = {release for recipe in self.recipes for release in recipe.releases}
        return tuple(release for release in self.project.releases if release in known)
