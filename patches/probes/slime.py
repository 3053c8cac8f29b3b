"""slime: whose batches a function of its Megatron backend computes, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.training import WithoutProfiler


class ModelSteps(WithoutProfiler):
    """``train`` and ``forward_only`` (``backends/megatron_utils/model.py``): a training step is one call.

    They are functions, and get the chunks of the model; the first one bears the role. Other weights in the actor's
    chunks, those of a reference or a teacher, are told by the prefix that their results get.
    """

    def role_of_call(self, model: Any, prefix: str = "") -> str:
        """Return the role for which ``model`` computes, such as "ref".

        It is ``prefix`` without its final "_", else the role of the first chunk, else "actor". ``model`` is a list
        of chunks. Also keep the first chunk's configuration in the worker.
        """
        self.worker.tf_config = model[0].config  # what Megatron's schedule goes by
        return prefix.rstrip("_") or getattr(model[0], "role", "actor")

    def contents(self, batch: Any) -> Mapping[str, object]:
        """Return the numbers of "sequences" and "tokens" in slime's next micro-batch.

        Any other batch is described by its "input_ids", or by {} if it has none.
        """
        import contextlib

        contents: dict[str, object] = {}
        with contextlib.suppress(Exception):  # an iterator of another form
            chosen = batch.micro_batch_indices[batch.offset]
            lengths = batch.rollout_data["total_lengths"]
            contents.update(sequences=len(chosen), tokens=sum(lengths[number] for number in chosen))
        return contents or super().contents(batch)
