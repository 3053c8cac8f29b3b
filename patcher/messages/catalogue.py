"""The Chinese catalogue: English template → Chinese template, read from ``zh.po``.

gettext's own .mo would have to be built, and would be quicker to read by some milliseconds.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
from typing import Mapping

_ENTRY = re.compile(r'(?:^#,(.*)\n)?^msgid ((?:".*"\n)+)msgstr ((?:".*"\n)+)', re.MULTILINE)


def entries(text: str) -> dict[str, str]:
    """Return English text → Chinese text from the content of a .po file, without untranslated and fuzzy entries."""
    matches = (match for match in _ENTRY.findall(text) if "fuzzy" not in match[0])
    pairs = ((_unquoted(key), _unquoted(value)) for _, key, value in matches)
    return {key: value for key, value in pairs if key and value}


def _unquoted(lines: str) -> str:
    return "".join(map(json.loads, lines.splitlines()))


@functools.lru_cache(maxsize=None)
def chinese() -> Mapping[str, str]:
    """Return the Chinese texts by English text, from `zh.po` beside this module."""
    return entries((pkgutil.get_data(__package__, "zh.po") or b"").decode())
