"""Training stages that run a rendered recorder."""

from __future__ import annotations

from typing import Any

from patches.verl import recipes as verl
from tests.patches.standin import Profiler, host

Labels = list[dict[int, list[str]]]


class Failed(Exception):
    """Raised by a loop of the tests."""


def recipe(name: str, stage: str) -> Any:
    return next(one for one in verl.UPSTREAM.recipes if (one.name, one.stage) == (name, stage))


class Stage:
    """Runs its loops as the patched classes do: epochs, mini-batches, micro-batches, with an optimizer step."""

    recipe = recipe("FSDP worker", "update-policy")
    _rlpatch_stage: Any
    _rlpatch_stage_units: Any
    _rlpatch_stage_probe: Any
    _RlpatchStage: Any

    def __init__(self, layers: Any = (), parts: Any = (), **constants: Any) -> None:
        self.made: list[Profiler] = []
        defaults = {"STAGE": "update-policy", "WINDOW": "0:1", "made": self.made}
        host(self, self.recipe, {**defaults, **constants}, *parts, layers=layers)

    def run(self, label: str) -> None:
        for profiler in self.made:
            profiler.run(label)

    def update(self, *, epochs: int = 1, minis: int = 2, micros: int = 3, fail: str = "") -> None:
        """Labels: ``micro M.N`` and ``step M``, mini-batches M counted over all epochs."""
        self._rlpatch_stage("enter")
        mini_batches: Any = range(minis)
        for epoch in range(epochs):
            mini_batches = self._rlpatch_stage_units("mini-batch", mini_batches)
            assert len(mini_batches) == minis
            for mini in mini_batches:
                number = epoch * minis + mini
                for micro in self._rlpatch_stage_units("micro-batch", range(micros)):
                    self.run(f"micro {number}.{micro}")
                    if fail == f"micro {number}.{micro}":
                        raise Failed
                if fail == f"step {number}":
                    raise Failed
                self.run(f"step {number}")
        self._rlpatch_stage("leave")

    def infer(self, micros: int = 4, *, fail: str = "") -> None:
        """Labels: ``micro N``, and ``after`` for what follows the loop."""
        self._rlpatch_stage("enter")
        for micro in self._rlpatch_stage_units("micro-batch", range(micros), last=True):
            self.run(f"micro {micro}")
            if fail == f"micro {micro}":
                raise Failed
        self.run("after")

    @property
    def recorded(self) -> Labels:
        return [profiler.recorded for profiler in self.made]


def minis(first: int, end: int, micros: int = 3) -> dict[int, list[str]]:
    return {n: [*(f"micro {n}.{m}" for m in range(micros)), f"step {n}"] for n in range(first, end)}
