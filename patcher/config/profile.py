"""The whole of what the user chose for one stage of one target, checked and printable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

from patcher.config.profilers import NO_RANGES, ProfilerSettings, RangeOptions
from patcher.config.stages import BuiltinStage, RolloutStage, Stage, TimelineStage, WholeStage, WindowedStage
from patcher.config.windows import OPEN_END
from patcher.messages import Note, Text, usage
from patcher.options import Options, changed, option, words_of
from patcher.options.headings import OUTPUT, WHOSE
from patcher.options.notations import Amount, Flag, NewFolder, NumberListOrAll, amount_text

FIRST_PIECE = 30
"""Units that are saved at once where nothing was saved yet: the window of the guides."""
_WORK = {"micro-batch": 3, "mini-batch": 12, "call": 12}
"""About how much more a unit of training leaves in a trace than a decode step: forward and backward, micro-batches."""
LONG_WINDOW = 128
"""Units: a decode step of a large model is some MB per rank, and no viewer opens more than a few GB."""
StageT_co = TypeVar("StageT_co", bound=Stage, covariant=True)


class ProfileConfig(Options, Generic[StageT_co]):
    """Complete choice for a stage; `ranks` None means all, `save_path` is "" for the builtin stage.

    Raises Problem (USAGE) for a combination that would not record.
    """

    stage: StageT_co
    profiler: ProfilerSettings
    ranks: tuple[int, ...] | None = option(
        NumberListOrAll(), WHOSE, "Global ranks to record, such as 0,8. `all` records every rank.", default=(0,)
    )
    save_path: str = option(
        NewFolder(),
        OUTPUT,
        "Folder for the traces.",
        default="",
        default_text="rlpatch_traces in the working directory",
    )
    max_trace_gb: float = option(
        Amount("GB"),
        OUTPUT,
        "Size limit of a trace in GB, before compression. A window ends early, or does not open, if its trace would be"
        " larger.",
        default=0.0,
        default_text="",
    )
    max_stall: float = option(
        Amount("SECONDS"), OUTPUT,
        "The longest pause, in seconds, that saving the trace may add to a step; long windows are saved in parts.",
        default=2.0,
    )  # fmt: skip
    live: bool = option(
        Flag(),
        OUTPUT,
        "Write the number of the current step where `rlpatch watch` on this host finds it.",
        default=False,
    )
    facts: bool = option(
        Flag(negated=True),
        OUTPUT,
        "Write step metadata (requests, tokens, times) beside the trace. `rlpatch watch` needs this metadata.",
        default=True,
    )

    beside_timeline: bool = False
    """Whether the same command puts the timeline in, which then keeps the pauses of a window."""

    def __post_init__(self) -> None:
        self.profiler.check(self.ranges)
        on_demand = isinstance(self.stage, WindowedStage) and self.stage.on_demand
        if (self.live or on_demand) and not self.facts:
            word = "--live" if self.live else "--on-demand"
            cause = Text("{option} needs step metadata, which --no-facts switches off", word)
            raise usage(cause, Text("leave out one of these two options"))
        if not self.saves and not isinstance(self.stage, TimelineStage):
            self._check_options_without_saving()
        if isinstance(self.stage, BuiltinStage):
            more = {*changed(self), *changed(self.profiler)}.difference(self.stage.changed_settings)
            if more or not isinstance(self.profiler, self.stage.PROFILER):
                raise ValueError(f"{more} are no settings of the framework's own profiler that were named")
        # The pattern of torch_npu's own check (torch_npu/utils/_path_manager.py), in which nothing can end a literal.
        elif not re.fullmatch(r"/[\w./~ -]*", self.save_path, re.ASCII):
            cause = Text("--save-path {save_path}: torch_npu does not accept this path", self.save_path)
            hint = Text("use an absolute path of letters, digits and underscores: --save-path /tmp/rlpatch_traces")
            raise usage(cause, hint)

    def _check_options_without_saving(self) -> None:
        """Refuse ``--max-trace-gb`` and ``--no-facts`` for a tool that does not save in the recorded process."""
        tool = f"--tool {self.profiler.TOOL}"
        if self.max_trace_gb:
            cause = Text(
                "{tool} does not write the trace in the recorded process, so --max-trace-gb cannot limit the size of"
                " the trace"
            )
            raise usage(cause.filled(tool), Text("leave out --max-trace-gb, and choose a shorter window"))
        if not self.facts:
            cause = Text(
                "{tool} needs step metadata, because only the metadata tells the step number of each range in the trace"
            )
            raise usage(cause.filled(tool), Text("leave out --no-facts"))

    @property
    def saves(self) -> bool:
        """Whether the profiled process saves the trace, and waits for it."""
        return self.profiler.unit_stall_ms > 0

    @property
    def records_step_zero(self) -> bool:
        """Whether step 0 is recorded, which includes the profiler's start-up: no step comes before it to warm up in."""
        stage = self.stage
        counted = isinstance(stage, WindowedStage) and bool(stage.window.all) and not stage.relative
        return counted and stage.window.first == 0

    @property
    def unit_stall_ms(self) -> int:
        """Estimated milliseconds for which saving one step or micro-batch stalls a model of 32 layers."""
        return self.profiler.unit_stall_ms * _WORK.get(self.stage.window.unit, 1)

    @property
    def first_piece(self) -> int:
        """Number of steps in the first trace of a window that is saved as several traces.

        A window up to that length is saved as one trace. It is 1 with ``max_trace_gb``, else as many steps as can be
        saved within ``max_stall``, from 1 to 30. `OPEN_END` if the process does not save the trace itself.
        """
        if not self.saves:
            return OPEN_END
        return 1 if self.max_trace_gb else max(1, min(FIRST_PIECE, int(self.max_stall * 1000 / self.unit_stall_ms)))

    @property
    def in_pieces(self) -> bool:
        """Whether a window may be saved as several traces, because it is long or `trigger` may request a long one."""
        stage = self.stage
        lengths = [end - first for first, end in stage.window.all]
        return (
            self.saves
            and isinstance(stage, WindowedStage)
            and (stage.on_demand or max(lengths, default=0) > self.first_piece)
        )

    @property
    def ranges(self) -> RangeOptions:
        """Ranges that rlpatch adds to the trace."""
        return self.stage.ranges if isinstance(self.stage, WindowedStage) else NO_RANGES

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes for the report on the effects of this choice: window, saving, folder, replicas, ranks, profiler."""
        stage_notes = () if isinstance(self.stage, BuiltinStage) else (*self._window_notes(), *self._trace_notes())
        return (*stage_notes, *self.profiler.notes(self.ranges))

    def _window_notes(self) -> Iterator[Note]:
        """Yield notes on a window: requests, warm-up, length, and stalls while saving; nothing without a window."""
        stage = self.stage
        if not isinstance(stage, WindowedStage):
            return
        if stage.on_demand:
            text = Text("during the run, request a recording window with `rlpatch trigger --{unit} A:B`")
            detail = Text(
                "windows can be requested any number of times without a restart; `rlpatch watch` shows the workers"
            )
            yield Note(text.filled(stage.window.unit), detail)
        if stage.warmup == 0 and not self.records_step_zero:
            yield Note(Text("without warm-up, the first step includes the profiler's start-up cost"))
        if len(stage.window) > LONG_WINDOW and not self.profiler.light:
            text = Text("a trace of over {limit} steps opens slowly, if at all; this window has no end", LONG_WINDOW)
            if not stage.window.open:
                text = Text("a trace of over {limit} steps opens slowly, if at all; the window has {count} steps")
                text = text.filled(limit=LONG_WINDOW, count=len(stage.window))
            yield Note(text)
        yield from self._saving_notes()

    def _saving_notes(self) -> Iterator[Note]:
        """Yield a note if saving a step, or a whole window in pieces, probably stalls the run for over `max_stall`."""
        stage, limit = self.stage, f"--max-stall {amount_text(self.max_stall)}"
        if self.stage.window.none or self.profiler.light:
            return
        detail = Text(
            "the time for saving the trace is an estimate, measured with torch.profiler on a CPU and scaled to a model"
            " of 32 layers; in training, all ranks wait for the rank that takes longest to save"
        )
        if self.unit_stall_ms > self.max_stall * 1000:
            text = Text("saving a single step takes about {seconds:.1f} s, more than {option} allows")
            text = text.filled(seconds=self.unit_stall_ms / 1000, option=limit)
            yield Note(text, Text("with fewer --contents, saving the trace takes less time; {detail}", detail))
        elif self.in_pieces and not stage.window.open and self.total_stall_s > self.max_stall:
            text = Text("saving all {count} steps takes about {seconds:.1f} s, more than {option} allows")
            text = text.filled(count=len(stage.window), seconds=self.total_stall_s, option=limit)
            yield Note(text, detail)

    @property
    def total_stall_s(self) -> float:
        """Estimated seconds that saving the whole window stalls a model of 32 layers."""
        return len(self.stage.window) * self.unit_stall_ms / 1000

    def _trace_notes(self) -> Iterator[Note]:
        """Yield notes on an unsupported save path, on engines that ignore --replicas, and if every rank records."""
        if not re.fullmatch(self.profiler.PATHS, self.save_path, re.ASCII):
            tool = self.profiler.MODULE
            yield Note(Text("{tool} supports only letters, digits and underscores in paths", tool), self.save_path)
        if isinstance(self.stage, RolloutStage | WholeStage) and self.stage.replicas != (0,):
            detail = Text(
                "These engines know their replica number: vLLM with verl 0.8.0 or later, SGLang with verl 0.6.1 or"
                " later, and SGLang with slime or miles. Any other engine ignores --replicas: it always records, and"
                " the name of its trace folder has no replica number"
            )
            yield Note(Text("--replicas has an effect only on engines that know their replica number"), detail)
        if self.ranks is None and not isinstance(self.stage, TimelineStage):
            yield Note(Text("every rank will write a trace; for ranks with similar work, one is enough"))

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command line that choose this configuration; options at their default are left out."""
        if isinstance(self.stage, BuiltinStage):
            return (*self.stage.words, *words_of(self.profiler, always=self.stage.changed_settings))
        tool = ("--tool", self.profiler.TOOL) if self.profiler.TOOL else ()
        return (*self.stage.words, *tool, *words_of(self.profiler), *words_of(self.ranges), *words_of(self))
