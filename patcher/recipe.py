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
    """Anchor at the head of the method, after its docstring."""


class Before(NamedTuple):
    """Anchor in front of the only top-level statement of the method that matches `statement`.

    `...` in `statement` matches any arguments, body or value.
    """

    statement: str


class Loop(NamedTuple):
    """Anchor in front of the only `for` loop, at any depth, over one of `names` or its `enumerate`.

    A name may be an attribute, such as `batch.parts`. `{units}` in the inserted line becomes the name that matched.
    """

    names: tuple[str, ...]


class Around(NamedTuple):
    """Anchor around the only statement that is `call`, or assigns its result.

    `call` has the syntax of `Before.statement` and may have a body. `after` is inserted behind the statement, and not
    reached if that raises. With `nested` the statement may be at any depth, otherwise only at the top level.
    """

    call: str
    after: str
    nested: bool = True


Anchor = Head | Before | Loop | Around
"""Position of an inserted line in a method."""


class Insertion(NamedTuple):
    """Line inserted into a method of the target class; with `Around` a line before and a line after a statement.

    Without a class in the recipe, `method` is the path of a function: `decorate.inner` in another function,
    `Manager.update` in a class. `line` is the statement; `_rlpatch_stage` in it becomes the patch's name. `parameters`
    must be parameters of the method. An `optional` insertion is left out without such a method; one with `windows` for
    other units.
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
        """Inserted lines: that in front and, with `Around`, that behind the statement."""
        return (self.line, self.where.after) if isinstance(self.where, Around) else (self.line,)


class Call(NamedTuple):
    """Call in upstream's code whose arguments may be changed.

    `function` is the called expression as written; the recipe's method must call it exactly once. `positional` are the
    parameters that may be given by position, in order. `defaults` is the code of default values, so that these are not
    inserted.
    """

    function: str
    why: str
    positional: tuple[str, ...] = ()
    defaults: Mapping[str, str] = MappingProxyType({})

    @property
    def name(self) -> str:
        """Last part of `function`, as in the keys of `Probe.arguments`."""
        return self.function.rpartition(".")[2]


class Structure(NamedTuple):
    """Releases whose target function has the same shape; `name` distinguishes structures of a recipe.

    `file` is relative to the target's root. `fingerprints` are those of the recipe's `method` in the published files
    (`patcher.editing.fingerprint`); any other means a fork, a dev build or a local edit.
    """

    name: str
    releases: tuple[str, ...]
    file: str
    fingerprints: tuple[str, ...]
    shape: str


class Probe(NamedTuple):
    """Code that goes into a class: classes of `patches.probes`, rendered by `patcher.editing`.

    `recorder` counts the units; flattened with the tool's class in `tools` it becomes a nested class. Classes in
    `shared`, with their bases, become its base class, which all patches of the target class use. `parts` returns
    further classes to flatten into the recorder, for a configuration and a release. `layers` returns classes to put on
    top: each derives from the class below, and is flattened with bases that are not below yet. `members` are appended
    to the target class; without a class in the recipe an object has them, and functions call them by name. `beside` is
    a line after all that; it creates the recorder of a recipe without a class. `callers` are lines of other recipes
    that call the recorder.

    `constants` returns the compile-time constants for a configuration and a published release ("" for any other),
    `settings` the user's choice as class attributes, `arguments` the code of arguments in the tool's calls by
    (function, keyword), `summary` a sentence for the reader.

    A recipe with `calls` has a probe without code, whose `arguments` go into these calls. Then `argument_notes` takes
    all arguments that the calls have afterwards, and returns notes. It raises Problem (USAGE) if requested arguments
    have no effect together with unchanged ones.
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
    argument_notes: Callable[[ProfileConfig[Any], Mapping[tuple[str, str], str]], tuple[Note, ...]] = lambda *_: ()


class Recipe(NamedTuple):
    """Declaration of where a stage of a project is recorded, in which releases, and why there.

    `why`, `how`, `upstream` and `needed_until` (a sentence) are printed by `rlpatch explain`. `method` is
    the function whose fingerprint is checked. Without a `class_name` the lines go into functions of the module.
    `windows` are the units that can be counted here; `strategies` and `roles` those that use this class. `notes` come
    with each plan, `unit_notes` with a window of that unit. A recipe that `needs` others records nothing unless one of
    these is in the same patch; recipes with `together` need all of each other. `marks` are windows of other recipes
    whose traces get markers from this one. `calls` are upstream's calls whose arguments change, instead of insertions;
    then `profiler` is the switch that they set up, and rlpatch's recorder is not used.
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
    needed_until: str
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
        """Published releases that this recipe covers, oldest first."""
        return tuple(release for structure in self.structures for release in structure.releases)

    def notes_of(self, unit: str) -> tuple[Note, ...]:
        """Return the notes for a window of `unit`."""
        return (*self.notes, self.unit_notes[unit]) if unit in self.unit_notes else self.notes

    def structure(self, release: str) -> Structure | None:
        """Return the structure of a published release, None for any other release."""
        return next((s for s in self.structures if release in s.releases), None)


class Gap(NamedTuple):
    """Window that is not available under a parallel strategy: unit, stages, releases and reason."""

    strategy: str
    unit: str
    stages: tuple[str, ...]
    releases: str
    reason: Note

    def applies_to(self, version: str) -> bool:
        """Tell whether the window is not available in the release `version`; True if that is no valid version."""
        from packaging.specifiers import SpecifierSet
        from packaging.version import InvalidVersion, Version

        try:
            return SpecifierSet(self.releases).contains(Version(version), prereleases=True)
        except InvalidVersion:
            return True


class Upstream(NamedTuple):
    """All that `patches` declares about a project.

    The stage of the first recipe that counts a unit is the default for it. `switches` are profilers that could be on
    besides rlpatch's; `application` tells how a configuration switches others on; `gaps` are unavailable windows;
    `processes` identifies a running engine. `builtin` maps a version specifier to what the project's own profiler can
    do; `neighbours` maps a package in the same environment to a note. `runs_on` maps packages to the tool that their
    presence implies, the first wins; `tool` is the default. `engines` are the projects that generate for it, an overlay
    before the project below.
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
    engines: tuple[str, ...] = ()

    @property
    def releases(self) -> tuple[str, ...]:
        """Published releases that any recipe covers, oldest first."""
        covered = {release for recipe in self.recipes for release in recipe.releases}
        return tuple(release for release in self.project.releases if release in covered)
