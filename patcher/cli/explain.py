"""``rlpatch explain``."""

from __future__ import annotations

from typing import Any

import click

from patcher.cli import options


@click.command()
@options.targets("TARGET[==VERSION]", nargs=1, required=True)
@click.option("--stage", help="Only this stage.")
@options.where
@options.output
def command(target: str, **words: Any) -> None:
    """Say where the code goes in for TARGET and why, and what the release can do by itself.

    \b
    Examples:
      rlpatch explain vllm-ascend
      rlpatch explain vllm-ascend==0.30.0rc2
      rlpatch explain verl==0.9.1 --stage update-policy
    """
    from patcher.commands import knowledge

    options.run("explain", words, lambda: knowledge.explain(target, options.place(words), words["stage"]))
