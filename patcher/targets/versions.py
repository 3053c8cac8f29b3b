"""The release that a folder holds: every place that may say so, and which of them to believe.

Version strings lie: a tag v0.7.0 whose files say ``0.7.0.dev``, metadata written before the checkout moved
on, ``dev`` where no tag was fetched. So a better source is preferred to such a version, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from patcher.messages import Note, Text
from patcher.targets import sources

if TYPE_CHECKING:
    from packaging.version import Version

_ATTRIBUTES = {"_version.py": "__version__|version", "version.py": "__version__", "__init__.py": "__version__"}
_LITERAL = r"""^(?:%s)\b[^#'"\n]*=\s*(['"])([^'"\n]+)\1\s*(?:#.*)?$"""
"""A string that a module assigns to one of the attributes at its top level: read, and never run."""

_PLAIN = re.compile(r"\d+(\.\d+)+(rc\d+)?(\.post\d+)?", re.ASCII)
"""Most versions: they can be judged without packaging, which takes a third of the time of `rlpatch status`."""


class Source(NamedTuple):
    """Version as written, and the file or tag that states it, such as `vllm_ascend/_version.py`."""

    version: str
    says: str


class Distribution(NamedTuple):
    """Metadata of a `*.dist-info` folder.

    `lists_package` tells whether RECORD lists the package (None: no RECORD), `checkout` is the source folder of an
    editable install, `installed` is False for a wheel that was only unpacked.
    """

    folder: Path
    source: Source
    lists_package: bool | None
    checkout: Path | None
    installed: bool


class Checkout(NamedTuple):
    """State of a git work tree.

    `head` is the commit ("" before the first), `tag` the version tag at HEAD, `near` the nearest one below HEAD,
    `version` what follows: commits after v0.11.0rc1 are 0.11.0rc2.devN, as in setuptools-scm.
    """

    head: str
    tag: str
    near: str
    version: str


def normalise(name: str) -> str:
    """Return the normal form of a distribution's name (PEP 503): vllm-ascend for VLLM_Ascend."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_version(text: str) -> Version | None:
    """Return the parsed version, None if `text` is no version or packaging is not installed."""
    try:
        from packaging.version import Version  # 12 ms, not for --help
    except ImportError:  # a bundle goes without it, and needs versions for words alone
        return None
    try:
        return Version(text)
    except ValueError:  # none, or with a number of more digits than Python reads
        return None


def valid(text: str) -> bool:
    """Tell whether `text` is a version; without packaging only common forms are recognised."""
    return _PLAIN.fullmatch(text) is not None or parse_version(text) is not None


def satisfies(present: str, expected: str) -> bool:
    """Tell whether `present` satisfies `==expected`: 0.11.0rc1+gabc is 0.11.0rc1, 0.11.0rc1.dev3 is not."""
    if present == expected:
        return True
    have, want = parse_version(present), parse_version(expected)
    if have is None or want is None:
        return False
    return have == want or parse_version(have.public) == want


def is_placeholder(version: str) -> bool:
    """Tell whether a version names no real release: unparsable, 0.0.0, a build without tags, `+empty`, `+unknown`."""
    if _PLAIN.fullmatch(version) and re.search(r"^[\d.]*[1-9]", version):
        return False
    have = parse_version(version)
    if have is None:
        return True
    # setuptools-scm says 0.1.dev1+gabc where it finds no tag.
    placeholder = not any(have.release) or (have.release == (0, 1) and have.is_devrelease)
    return placeholder or (have.local or "").partition(".")[0] in ("empty", "unknown")


def distribution_name(entry: str) -> str:
    """Return the normalised name in `vllm_ascend-0.11.0rc1.dist-info` or an `.egg-info`, "" for any other entry."""
    stem, _, suffix = entry.rpartition(".")
    if suffix not in ("dist-info", "egg-info"):
        return ""
    return normalise(re.split(r"-\d", stem, maxsplit=1)[0])


def distributions(folder: Path, names: Iterable[str], package: str) -> list[Distribution]:
    """Return the dist-info folders in `folder` of any of `names`, by name, and whether their RECORD lists `package`."""
    normalised = {normalise(name) for name in names}
    infos = sorted(entry for entry in sources.entries(folder) if entry.endswith(".dist-info"))
    return [_distribution(folder / entry, package) for entry in infos if distribution_name(entry) in normalised]


def choose_distribution(
    candidates: Sequence[Distribution], literal: Source | None
) -> tuple[Distribution | None, tuple[Note, ...]]:
    """Return the distribution that most likely owns a package (None without candidates), and a note if several do.

    Leftovers of crashed uninstalls lose: RECORD has to list the package, the version to agree with `literal`, that in
    the package's files; then the newest folder wins.
    """
    if len(candidates) < 2:
        return next(iter(candidates), None), ()

    def trust(candidate: Distribution) -> tuple[int, bool, int]:
        listed = {True: 2, None: 1, False: 0}[candidate.lists_package]
        agrees = literal is not None and satisfies(literal.version, candidate.source.version)
        return listed, agrees, candidate.folder.stat().st_mtime_ns

    best = max(candidates, key=trust)
    other_names = ", ".join(d.folder.name for d in candidates if d is not best)
    text = Text("several installed distributions contain this package; rlpatch assumes version {version}")
    took = Text("rlpatch uses the metadata in {metadata}, not in {other_metadata}")
    took = took.filled(metadata=best.folder.name, other_metadata=other_names)
    return best, (Note(text.filled(best.source.version), took),)


def from_pkg_info(root: Path, names: Iterable[str]) -> Source | None:
    """Return the version of one of `names` in PKG-INFO at `root` or in an `.egg-info` there; None without one."""
    normalised = {normalise(name) for name in names}
    eggs = sorted(e for e in sources.entries(root) if e.endswith(".egg-info") and distribution_name(e) in normalised)
    for file in ("PKG-INFO", *(f"{egg}/PKG-INFO" for egg in eggs), *eggs):
        fields = _headers(root / file)
        if normalise(fields.get("name", "")) in normalised and fields.get("version"):
            return Source(fields["version"], file)
    return None


def from_files(root: Path, package: str, version_files: Iterable[str] = ()) -> Source | None:
    """Return the first version in the package's files that is a real release, else the first; None without any."""
    written = list(_assigned_versions(root, package, version_files))
    return next((source for source in written if not is_placeholder(source.version)), written[0] if written else None)


def choose_version(
    recorded: Iterable[Source | None], git: Checkout | None, placeholders: Sequence[str] = ()
) -> tuple[Source, tuple[Note, ...]]:
    """Return the source of the version to believe ("" without any), and a note on each source that disagrees.

    `recorded` is in order of trust. A tag at HEAD of `git` beats all; sources older than the nearest tag below HEAD
    come last. The first that is a real release wins, else the first. `placeholders` are versions to ignore.
    """
    sources_found = [source for source in recorded if source is not None]
    ranked = _by_trust([source for source in sources_found if source.version not in placeholders], git)
    fallback = ranked[0] if ranked else Source("", Text("nothing"))
    best = next((source for source in ranked if not is_placeholder(source.version)), fallback)
    why = Text(
        "this version is a placeholder that every release of the package contains, so the installed release is unknown"
    )
    if best.version:
        why = Text("{source} is more reliable, and says that the version is {version}")
        why = why.filled(source=best.says, version=best.version)
    assumed, version = Text("rlpatch assumes version {version}, not {other_version}"), best.version or Text("unknown")
    stated = Text("according to {source}, the version is {version}; {reason}")
    doubts = (
        Note(
            assumed.filled(version=version, other_version=source.version),
            stated.filled(source=source.says, version=source.version, reason=why),
        )
        for source in sources_found
        if not satisfies(source.version, best.version) and not satisfies(best.version, source.version)
    )
    return best, tuple(doubts)


def _by_trust(recorded: list[Source], git: Checkout | None) -> list[Source]:
    """Return the versions in `recorded` and that of `git`, most trusted first."""
    if git is None or not git.version:
        return recorded
    if git.tag:
        return [Source(git.version, Text("git tag {tag}", git.tag)), *recorded]
    near = parse_version(git.near)
    stale = [source for source in recorded if near and (have := parse_version(source.version)) and have < near]
    current = [source for source in recorded if source not in stale]
    return [*current, Source(git.version, Text("git describe, based on {tag}", git.near)), *stale]


def _headers(path: Path) -> dict[str, str]:
    """Return the "name" and "version" headers of a metadata file, as far as it has them and can be read."""
    fields: dict[str, str] = {}
    for line in (sources.text(path) or "").partition("\n\n")[0].splitlines():
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version"):
            fields.setdefault(key.lower(), value.strip())
    return fields


def _distribution(folder: Path, package: str) -> Distribution:
    """Return the metadata in the dist-info `folder`; without a METADATA file, the version is that in its name."""
    version = _headers(folder / "METADATA").get("version") or folder.name[: -len(".dist-info")].rpartition("-")[2]
    return Distribution(
        folder=folder,
        source=Source(version, folder.name),
        lists_package=_lists(folder / "RECORD", package),
        checkout=_editable(folder / "direct_url.json"),
        installed=(folder / "INSTALLER").is_file(),
    )


def _lists(record: Path, package: str) -> bool | None:
    text = sources.text(record)
    begins = f"\n{package}/__init__.py,", f'\n"{package}/__init__.py",'
    return None if text is None else any(begin in f"\n{text}" for begin in begins)


def _editable(direct_url: Path) -> Path | None:
    """Return the source folder in direct_url.json (PEP 610) of an editable install, None for any other install."""
    if not direct_url.is_file():
        return None
    import json  # noqa: PLC0415  (most installs are from an index)

    try:
        origin = json.loads(direct_url.read_bytes())
        editable = origin["dir_info"].get("editable", False)
        parts = urlsplit(origin["url"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Path(unquote(parts.path)) if editable and parts.scheme == "file" else None


def _assigned_versions(root: Path, package: str, version_files: Iterable[str]) -> Iterator[Source]:
    """Yield the versions that the package's modules assign, then those that are the only line of `version_files`."""
    for name, attributes in _ATTRIBUTES.items():
        match = re.search(_LITERAL % attributes, sources.text(root / package / name) or "", re.MULTILINE)
        if match:
            yield Source(match[2], f"{package}/{name}")
    for file in version_files:
        text = (sources.text(root / file) or "").strip()
        if text and "\n" not in text:
            yield Source(text, file)
