"""The published releases of a project: listed once, named by their ends everywhere else."""

from __future__ import annotations


class Releases(tuple[str, ...]):
    """Published releases of a project, oldest first.

    A structure names its releases by `between`, or by `since` while the newest release still has it: then a new release
    only needs an entry here. Each method raises ValueError for an unknown release.
    """

    __slots__ = ()

    def between(self, first: str, last: str) -> Releases:
        """Return the releases from ``first`` to ``last``, both included."""
        return Releases(self[self.index(first) : self.index(last) + 1])

    def since(self, first: str) -> Releases:
        """Return `first` and all later releases."""
        return Releases(self[self.index(first) :])

    def until(self, last: str) -> Releases:
        """Return all releases up to `last`, included."""
        return Releases(self[: self.index(last) + 1])
