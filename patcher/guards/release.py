"""Which switches a version of a project has: as declared for a published release, by the code of any other."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from patcher.switches import ConfigSwitch, Switch

_BUILT_BETWEEN = re.compile(r"(^|\.)g[0-9a-f]{6,}")  # of a commit, as git describes it


class Release(NamedTuple):
    """A version of a project (empty if it is not known), those that were published, and its package if it is here."""

    version: str
    published: tuple[str, ...] = ()
    package: Path | None = None

    def has(self, switch: Switch | ConfigSwitch) -> bool:
        """Whether this version has a switch; where nothing tells, it has.

        The version of a development tree lags its code, by months in verl and in vllm-ascend, and fixes are released
        from branches: it says no more than that the minor release before is in it. So the code decides if it is here,
        else the switches of that release and of all later ones count.
        """
        from packaging.specifiers import SpecifierSet  # 15 ms, not for --help
        from packaging.version import InvalidVersion, Version

        declared = SpecifierSet(switch.releases)
        try:
            version = Version(self.version)
        except InvalidVersion:
            return self._reads(switch)
        there = declared.contains(version, prereleases=True)
        if self.version in self.published or not (version.is_devrelease or _BUILT_BETWEEN.search(version.local or "")):
            return there
        published = sorted(map(Version, self.published))
        minors = [release.release[:2] for release in published if release.release[:2] < version.release[:2]]
        later = [release for release in published if release.release[:2] >= max(minors, default=())]
        there = there or not published or any(declared.contains(release, prereleases=True) for release in later)
        return there and self._reads(switch)

    def _reads(self, switch: Switch | ConfigSwitch) -> bool:
        if self.package is None or not switch.code:
            return True
        code = _code(self.package)
        return not code or all((text.lstrip("!").encode() in code) != text.startswith("!") for text in switch.code)


@cache
def _code(package: Path) -> bytes:
    """All Python sources of a package, as far as they can be read."""
    found = []
    for file in package.rglob("*.py"):
        with suppress(OSError):
            found.append(file.read_bytes())
    return b"\n".join(found)
