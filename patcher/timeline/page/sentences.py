"""The sentences of a joined run in Chinese: verdicts, causes and what to do next, bounds, windows, notes."""

from __future__ import annotations

from dataclasses import replace

from patcher.messages.catalogue import chinese
from patcher.timeline.model import RunTimeline, TrainingStep

OF = {"replicas": "副本", "ranks": "rank"}


def in_chinese(found: RunTimeline) -> RunTimeline:
    """The same run with its sentences in Chinese."""
    return replace(
        found,
        steps=tuple(_step(one) for one in found.steps),
        causes=tuple(
            replace(one, title=_translated(one.title), advice=_translated(one.advice)) for one in found.causes
        ),
        windows=tuple(replace(one, why=_translated(one.why)) for one in found.windows),
        missing=tuple(map(_translated, found.missing)),
        notes=tuple(map(_translated, found.notes)),
    )


def _step(step: TrainingStep) -> TrainingStep:
    return replace(
        step,
        why=_translated(step.why),
        missing=tuple(map(_translated, step.missing)),
        what_if=tuple(replace(one, why=_translated(one.why)) for one in step.what_if),
        imbalance=tuple(replace(one, of=OF.get(one.of, one.of)) for one in step.imbalance),
    )


def _translated(text: str) -> str:
    return chinese().translate(text)
