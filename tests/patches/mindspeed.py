"""The checkouts of MindSpeed-RL that the tests run on: of the shape of a release, and real ones if there are any."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures.mindspeed_rl import trees
from tests.matrix import thinned


class Tree(NamedTuple):
    """A release, or ``master``; ``real`` is the folder with the real ones, None for its shape alone."""

    release: str
    real: Path | None = None

    def __str__(self) -> str:
        return f"{self.release}-{'real' if self.real else 'shape'}"

    @property
    def version(self) -> str:
        """What rlpatch finds: nothing on the branch, which has no tag."""
        return "" if self.release == trees.MASTER else self.release

    @property
    def shape(self) -> str:
        """The release whose structure this is."""
        return self.version or trees.RELEASES[-1]

    @property
    def critic(self) -> bool:
        """PPO came with 2.2.0."""
        return self.release != "2.1.0"

    def checkout(self, folder: Path) -> Path:
        return trees.checkout(self.release, folder, self.real)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes a ``tree`` each shape there is, one that takes a ``newest`` the last; and all real ones."""
    folder = metafunc.config.getoption("--mindspeed-rl")
    real = [Tree(release, folder) for release in (*trees.RELEASES, trees.MASTER)] if folder else []
    for name, shapes in (("tree", ("2.1.0", "2.3.0", trees.MASTER)), ("newest", ("2.3.0",))):
        if name in metafunc.fixturenames:
            trees_of_name = [*map(Tree, shapes), *real]
            metafunc.parametrize(name, thinned(trees_of_name, [Tree("2.3.0"), *real]), ids=str)
