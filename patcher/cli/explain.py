"""``rlpatch explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import options

if TYPE_CHECKING:
    from patcher.recipe import Upstream


@click.command()
@options.targets("TARGET[==VERSION]", nargs=1, required=True)
@options.where
@options.output
def command(target: str, **words: Any) -> None:
    """Say where the code goes in for TARGET and why, and what the release can do by itself.

    \b
    Examples:
      rlpatch explain vllm-ascend
      rlpatch explain vllm-ascend==0.30.0rc2
    """
    from patcher.capture import Capture, Window
    from patcher.commands import knowledge

    def capture(upstream: Upstream) -> Capture:
        return Capture(Window("decode", 30, 60), "/tmp/rlpatch_traces", backend=upstream.backend)  # noqa: S108  (never opened)

    options.run("explain", words, lambda: knowledge.explain(target, options.place(words), capture))
