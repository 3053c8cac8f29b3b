"""Windows that ``rlpatch trigger`` asks for while a run goes on: layers that go in where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.recorder import CountedUnits
from patches.probes.states import RelativeWindow
from patches.probes.training import TrainingSteps


class OnDemand(CountedUnits):
    """Takes requests out of a file in the folder of the traces: settings, for a rollout or a step not yet begun."""

    request_settings: Mapping[str, Any]
    request_time = 0  # of the file, in nanoseconds
    request = ""
    is_addressed: bool
    refused = False

    last: Callable[[], int]  # the number of the last rollout, or training step, that is asked for

    def __init__(self, worker: Any) -> None:
        self.request_settings = {}
        super().__init__(worker)

    def setting(self, name: str, default: str, pattern: str) -> str:
        """Return the value of ``name`` in the last capture request, else in the environment, else ``default``.

        Raises ValueError if the value does not match the regular expression ``pattern`` as a whole.
        """
        import re

        if name not in self.request_settings:
            return super().setting(name, default, pattern)
        text = str(self.request_settings[name])
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%.60r is not valid; without it, the patch uses %s" % (name, text, default))
        return text

    def read_settings(self) -> None:
        """Read the settings; note the id of the last capture request, and whether its window is for this rank.

        RLPATCH=0 ends recording; a rank that was not chosen keeps waiting for requests.
        """
        super().read_settings()
        self.request = self.setting("RLPATCH_REQUEST", "", r"\w*")
        self.is_addressed = bool(self.window) and not {"all", str(self.rank)}.isdisjoint(self.ranks)
        self.done = self.setting("RLPATCH", "1", "[01]") == "0"

    def poll(self, number: int) -> None:
        """Read the request file of this stage if it has changed, before rollout or training step ``number`` begins.

        Its settings replace environment variables. A request that is invalid, expired (its file is deleted) or
        for an earlier number is refused with a report.
        """
        import json
        import os

        self.refused = False
        path = "%s/.rlpatch/%s.request" % (self.save_path, self.STAGE)
        if not os.path.isfile(path):  # a pipe would block
            return
        before = self.request_time
        try:
            self.request_time = os.stat(path).st_mtime_ns
            if self.request_time == before:
                return
            if os.path.islink(os.path.dirname(path)):
                raise ValueError("%s is a link, which is not allowed" % os.path.dirname(path))
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
                self.request_settings = json.loads(file.read(9999))
            self.read_settings()
            if self.clock() > 1e9 * float(self.request_settings["expires"]):  # type: ignore[attr-defined]
                os.unlink(path)
                raise ValueError("the request %s has expired" % self.request)
            if self.is_addressed and self.last() < number:
                raise ValueError(
                    "the request is for rollout or step %s, and this worker is at %s" % (self.last(), number)
                )
        except BlockingIOError:  # under a lease of somebody else it is not there yet
            self.request_time = before
        except Exception as e:  # whatever stands there, it is data
            self.is_addressed, self.refused = False, True
            self.finish("request refused: %s" % e)

    def reopen(self) -> None:
        """Stay ready for further requests."""
        super().reopen()
        self.done = False


class OnDemandRollouts(OnDemand, RelativeWindow):
    """Windows on demand of rollouts, in any state."""

    def write_state(self, state: str, why: str = "", traces: Sequence[str] = ()) -> None:
        """Write the state for ``rlpatch watch``, unless it would replace a refusal."""
        if not (self.refused and state == "installed"):  # else nobody would see the refusal
            super().write_state(state, why, traces)

    def read_settings(self) -> None:
        """Read the settings and the capture request.

        Raises ValueError for an invalid value. Raises it also if the request chooses this rank and no condition to
        start counting, but its window begins before the first unit of a rollout.
        """
        super().read_settings()
        if self.is_addressed and int(self.window.partition(":")[0]) < self.FIRST and not any(self.at.values()):
            raise ValueError("RLPATCH_WINDOW=%s begins before %s" % (self.window, self.FIRST))

    def poll(self, number: int) -> None:
        """Read a new request before rollout ``number``; if none is for this rank, choose no rollout (-1)."""
        super().poll(number)
        if not self.is_addressed:
            self.chosen = -1

    def last(self) -> int:
        """Return the number of the requested rollout."""
        return self.chosen

    def origin_of(self, number: int) -> int:
        """Return the unit from which the window counts: ``number`` for a requested engine state, otherwise 0."""
        return number if any(self.at.values()) else 0

    def exit(self) -> None:
        """End the rollout because the process ends; if a requested rollout has not come yet, report that."""
        self.end_rollout("the process ends")
        self.poll(self.rollout + 1)
        self.done = not self.is_addressed or self.chosen <= self.rollout
        super().exit()


class OnDemandSteps(OnDemand, TrainingSteps):
    """Windows on demand of training steps."""

    def begin_step(self) -> None:
        """Read a new request, and place the window if it names this training step; never stop waiting for one."""
        self.write_state("installed")
        super().begin_step()
        self.done = False

    def is_chosen(self) -> bool:
        """Tell whether a request names this training step and this rank, and no role but that of this call."""
        role = self.request_settings.get("RLPATCH_ROLE", "")
        return self.is_addressed and role in ("", self.role) and super().is_chosen()

    def last(self) -> int:
        """Return the last training step that is requested."""
        return max(self.steps)

    def awaits_steps(self) -> bool:
        """Tell whether a request for this rank is still open."""
        return self.is_addressed

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Note as done only a process that ends: further requests may follow."""
        super().add_metadata(data)
        data["done"] = self.exits
