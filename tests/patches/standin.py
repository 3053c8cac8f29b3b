"""A profiler that writes down what it is told, and a backend that builds it."""

from __future__ import annotations


class Profiler:
    """Runs the schedule and writes down which iterations it would record."""

    def __init__(self, wait: int, warmup: int, active: int) -> None:
        self.schedule = (wait, warmup, active)
        self.number = 0
        self.recorded: dict[int, list[str]] = {}
        self.calls: list[str] = []

    @property
    def recording(self) -> bool:
        wait, warmup, active = self.schedule
        return (
            "start" in self.calls and "stop" not in self.calls and wait + warmup <= self.number < wait + warmup + active
        )

    def start(self) -> None:
        self.calls.append("start")

    def step(self) -> None:
        self.calls.append("step")
        self.number += 1

    def stop(self) -> None:
        self.calls.append("stop")

    def run(self, label: str) -> None:
        if self.recording:
            self.recorded.setdefault(self.number, []).append(label)


class Backend:
    """A part of a probe; a trace appears when the profiler stops while or after recording."""

    TRACES = "*.trace"
    SAVE_PATH = "/tmp/traces"
    made: list[Profiler]
    leaves_trace = True

    def build(self, wait: int, warmup: int, active: int) -> Profiler:
        self.made.append(Profiler(wait, warmup, active))
        return self.made[-1]

    def synchronize(self) -> None:
        if self.made:
            self.made[-1].calls.append("sync")

    def occupied(self) -> str:
        return ""

    def traces(self) -> set[str]:
        return {str(n) for n, p in enumerate(self.made) if "stop" in p.calls and p.recorded and self.leaves_trace}
