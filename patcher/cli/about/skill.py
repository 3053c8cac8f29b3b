"""``rlpatch skill``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import patcher
from patcher.cli import options
from patcher.messages import CommandResult

FILE = Path(patcher.__file__).with_name("skill") / "SKILL.md"
"""Instructions in the format that coding assistants look for: front matter with name and description, and Markdown."""


@dataclass(frozen=True)
class Skill:
    """Result of `skill`."""

    path: str
    text: str


@options.command("skill")
def command() -> CommandResult:
    """Print instructions for a coding assistant: how to profile a run with rlpatch, in which order, and what not to do.

    \b
    Examples:
      rlpatch skill
      rlpatch skill > .agents/skills/rlpatch/SKILL.md
    """
    text = FILE.read_text(encoding="utf-8")
    return CommandResult("skill", data=Skill(str(FILE), text), raw=text.encode())
