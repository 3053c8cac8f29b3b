"""What a recipe is: the knowledge of one upstream structure, declared without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from patcher.capture import Capture
    from patcher.guards.look import Switch
    from patcher.targets.target import Project


class Site(NamedTuple):
    """One line of ours in one method of the target class.

    ``line`` is the statement that goes in. ``before`` is the statement it goes in front of, written as code in
    which ``...`` stands for any arguments or any body; it must match exactly one statement at the top level of
    ``method``. An empty ``before`` means the head of the method, behind its docstring. ``parameters`` are names
    that the method must take, because ``line`` uses them. A site that is ``optional`` is left out where the
    class has no such method.
    """

    method: str
    line: str
    why: str
    before: str = ""
    parameters: tuple[str, ...] = ()
    optional: bool = False


class Structure(NamedTuple):
    """Releases whose target function has the same shape.

    ``file`` is relative to the root of the target. ``fingerprints`` are ``patcher.engine.fingerprint`` of the
    recipe's ``method`` in the published files; another fingerprint means a fork, a dev build or a local edit.
    """

    name: str
    releases: tuple[str, ...]
    file: str
    fingerprints: tuple[str, ...]
    shape: str


class Probe(NamedTuple):
    """The code that goes into the class: classes of ``module`` (a source file below ``patches/probes``) by name.

    ``nested`` is the name of the class that the ``parts`` are flattened into, together with the part of the
    backend; the members of ``members`` are appended to the target class itself. ``constants`` are class attributes
    that the recipe sets, ``chosen`` gives those that follow from a capture; ``arguments`` maps (function, keyword)
    to the code of that argument in the backend's calls, ``summary`` is one line for the reader.
    """

    module: str
    nested: str
    parts: tuple[str, ...]
    members: tuple[str, ...]
    backends: Mapping[str, tuple[str, str]]
    chosen: Callable[[Capture], Mapping[str, object]]
    arguments: Callable[[Capture], Mapping[tuple[str, str], str]]
    summary: Callable[[Capture], str]
    constants: Mapping[str, object] = MappingProxyType({})


class Recipe(NamedTuple):
    """Where a stage of one project is recorded, in which releases, and why there.

    ``why``, ``how``, ``upstream`` and ``remove_when`` are what ``rlpatch explain`` prints; ``method`` is the
    function that is fingerprinted; ``windows`` are the units that can be counted here. ``builtin`` maps releases
    (a version specifier) to what the project's own window can and cannot do there.
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
    builtin: Mapping[str, str] = MappingProxyType({})

    @property
    def releases(self) -> tuple[str, ...]:
        """Every published release that this recipe knows, oldest first."""
        return tuple(release for structure in self.structures for release in structure.releases)

    def structure(self, release: str) -> Structure | None:
        """The structure of a published release, None for any other."""
        return next((s for s in self.structures if release in s.releases), None)


class Upstream(NamedTuple):
    """All that ``patches`` knows of one project.

    ``switches`` are the profilers that could be on beside ours, ``backend`` is the default one, ``processes`` are
    words by which the command line of a running engine is known.
    """

    project: Project
    recipes: tuple[Recipe, ...]
    switches: tuple[Switch, ...]
    backend: str
    processes: tuple[str, ...] = ()

    @property
    def releases(self) -> tuple[str, ...]:
        """Every published release that a recipe knows, oldest first."""
        from packaging.version import Version

        return tuple(sorted({release for recipe in self.recipes for release in recipe.releases}, key=Version))
