"""Editing the source of a target: lines go in (``insert``), arguments of upstream's calls change (``replace``), and
what goes in is rendered from the classes of a probe (``render``).

Both ways look for their place in ``anchors``, and prove by the outcome that the marks give the file back to the byte.
Importing this loads LibCST.
"""

from __future__ import annotations

from patcher.editing.insertion import Block as Block
from patcher.editing.insertion import insert as insert
from patcher.editing.rendering import Rendered as Rendered
from patcher.editing.rendering import render as render
from patcher.editing.replacement import Arguments as Arguments
from patcher.editing.replacement import Replaced as Replaced
from patcher.editing.replacement import Setting as Setting
from patcher.editing.replacement import present_settings as present_settings
from patcher.editing.replacement import replace as replace
from patcher.editing.source import fingerprint as fingerprint
from patcher.editing.source import nested_too_deeply as nested_too_deeply
