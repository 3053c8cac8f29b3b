"""The published releases of a project: listed once, named by their ends everywhere else."""

from __future__ import annotations


class Releases(tuple[str, ...]):
    """Every published release of a project, oldest first.

    A structure names those that have it by ``between`` or, as long as the newest one has it, by ``since``: then one
    entry here is all that a further release of the same structure needs. Each method raises ValueError for a release
    that is not among them.
    """

    __slots__ = ()

    def between(self, first: str, last: str) -> Releases:
        """Return the releases from ``first`` to ``last``, both included."""
        return Releases(self[self.index(first) : self.index(last) + 1])

    def since(self, first: str) -> Releases:
        """``first`` and all that came after it."""
        return Releases(self[self.index(first) :])

    def until(self, last: str) -> Releases:
        """All that came before ``last``, and ``last``."""
        return Releases(self[: self.index(last) + 1])
