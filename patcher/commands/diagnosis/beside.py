"""The diagnosis of a command while that runs."""

from __future__ import annotations

from collections.abc import Callable

from patcher.commands.diagnosis import following, reading
from patcher.commands.diagnosis.following import Follower
from patcher.commands.patching.running import Show
from patcher.messages import CommandLine, CommandResult, Text


class DiagnosisBeside:
    """Follows a command, and shows its diagnosis at the command's end, or at the first Ctrl-C."""

    def __init__(self, follower: Follower, output: reading.Output, show: Show) -> None:
        self.follower, self.output, self.show = follower, output, show
        self.end: Callable[[], None] = following.start(follower)
        self.is_shown = False

    def interrupted(self) -> None:
        """Show the diagnosis so far, request no more windows, and let the command go on."""
        self.follower.finished = True
        self._show()
        self.follower.say(Text("the run goes on; press Ctrl-C again to end the run"))

    def ends_command(self) -> bool:
        """Tell whether the run has made the steps that it was to make."""
        return self.follower.reached

    def finish(self) -> int:
        """Show the diagnosis unless Ctrl-C has shown it, and return the exit code."""
        self.end()
        return 0 if self.is_shown else self._show()

    def _show(self) -> int:
        """Print the diagnosis of the run that this command has started, and return its exit code; sets `is_shown`."""
        self.is_shown = True
        again = CommandLine("diagnose", str(self.follower.folder), "--once", "-v")
        result = CommandResult("diagnose", aside=True, more=Text("for details, run {command}", again))
        try:
            reading.diagnose_newest(self.follower.folder, result, self.follower.started, self.output)
        except Exception as error:
            result.problems.append(following.problem_with_place(error))
        for note in self.follower.notes():
            result.note(note)
        return self.show(result)
