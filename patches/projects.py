"""The projects that rlpatch knows: each is a package beside this module, found by walking through them.

``patches.NAME`` declares a ``PROJECT`` and nothing that takes time, so that ``rlpatch status`` can look for all of
them; ``patches.NAME.recipes`` has the ``UPSTREAM``, and is imported when somebody asks for recipes.
"""

# The help imports this module, and pathlib would take a tenth of its time.
# ruff: noqa: PTH110, PTH112, PTH208
from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import patches

if TYPE_CHECKING:
    from patcher.recipe import Upstream
    from patcher.targets.target import Project


def names() -> list[str]:
    """Return the names of all projects without importing their packages."""
    return [name.replace("_", "-") for name in _packages()]


@cache
def projects() -> tuple[Project, ...]:
    """Return all projects, in the order of their packages' names."""
    return tuple(project for project, _ in _declared())


@cache
def upstreams() -> tuple[Upstream, ...]:
    """Return the declarations of all projects, in the order of `projects`."""
    return tuple(upstream(project.name) for project in projects())


@cache
def upstream(name: str) -> Upstream:
    """Return the recipes and switches of the project `name`, importing no other project's.

    Raises StopIteration if there is no such project.
    """
    package = next(package for project, package in _declared() if project.name == name)
    declared: Upstream = import_module(f"{package}.recipes").UPSTREAM
    return declared


@cache
def _declared() -> tuple[tuple[Project, str], ...]:
    """Return each project with the name of the package that declares it."""
    modules = (import_module(f"{__package__}.{name}") for name in _packages())
    return tuple((module.PROJECT, module.__name__) for module in modules)


def _packages() -> list[str]:
    """Return the sorted names of packages that have recipes, also in a zip archive."""
    (folder,) = patches.__path__
    if os.path.isdir(folder):
        return sorted(name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/recipes.py"))
    from pkgutil import iter_modules  # noqa: PLC0415  (only nodes of a cluster import rlpatch from an archive)

    packages = sorted(module.name for module in iter_modules([folder]) if module.ispkg)
    return [name for name in packages if PathFinder.find_spec("recipes", [f"{folder}/{name}"])]
