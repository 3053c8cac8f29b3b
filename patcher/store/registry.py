"""The memory of the store, as values and as JSON. Pure: nothing here touches a disk.

The text comes back from a folder that others can write, so every field is checked: a path is relative, plain,
without ``..`` and one that a disk can have, a digest is one, a mode has permission bits only, a number is one that
the kernel takes, and of attributes only those are read that everybody may set.
"""

from __future__ import annotations

import binascii
import json
import os
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from patcher.changes.change import PatchId, Record
from patcher.messages import Text
from patcher.store import STORE
from patcher.store.filesystem.files import FolderState
from patcher.store.filesystem.rights import Attributes, PathState, restorable

VERSION = 1
_HEX = frozenset("0123456789abcdef")
_OWNERS = 2**32 - 2
LATEST_S = 2**63 - 1
_LONGEST, _LONGEST_PART = 4095, 255
T = TypeVar("T")


class Entry(NamedTuple):
    """Registry entry of a patched file: the digest of its pristine bytes, and the state that lay there.

    ``expected`` is the state that rlpatch last wrote, with its rights (``given`` in the JSON); ``numbering`` identifies
    the mapping of its user and group ids.
    """

    digest: str
    pristine: PathState
    expected: PathState | None = None
    numbering: str = ""


class Registry(NamedTuple):
    """Registry of a root: applied patches, patched files by key, and original folder states.

    In ``folders``, None stands for a folder that did not exist.
    """

    records: tuple[Record, ...] = ()
    files: Mapping[str, Entry] = MappingProxyType({})
    folders: Mapping[str, FolderState | None] = MappingProxyType({})

    def digests(self) -> set[str]:
        """Return the digests of the backups that are still needed."""
        return {entry.digest for entry in self.files.values()}


class Move(NamedTuple):
    """One file of a transaction, by its path relative to the root, and its state before and after."""

    path: str
    before: PathState
    after: PathState


class Journal(NamedTuple):
    """One root's part of a transaction.

    ``participants`` are the sorted roots and ``position`` is the index of this root; the first root decides for all.
    The roots are only compared with those that a command found by itself, never visited from here. ``back`` and
    ``ahead`` are the states that folder times are reset to after an undo or a success. ``empties`` tells that no patch
    remains.
    """

    transaction: str
    participants: tuple[str, ...]
    position: int
    moves: tuple[Move, ...]
    back: dict[str, FolderState | None]
    ahead: dict[str, FolderState | None]
    empties: bool
    committed: bool = False


def text_of(value: Registry | Journal) -> bytes:
    """Return the JSON file of a registry or a journal; the file name, not the text, says if it is committed."""
    top = _json(value)
    top.pop("committed", None)
    return json.dumps({"version": VERSION, **top}, indent=1).encode() + b"\n"


_ON_DISK = {"expected": "given", "position": "index"}
"""Name of a field → its name on the disk, from earlier releases."""


def _json(value: Any) -> Any:
    """Convert named tuples to JSON objects with the fields' names on disk; the id of a patch becomes a list."""
    if hasattr(value, "_asdict") and not isinstance(value, PatchId):
        return {_ON_DISK.get(name, name): _json(field) for name, field in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: _json(field) for key, field in value.items()}
    return [_json(field) for field in value] if isinstance(value, tuple) else value


class NewerError(ValueError):
    """Error for a valid store file that a newer rlpatch has written."""


def read(content: bytes, parse: Callable[[dict[str, Any]], T]) -> T:
    """Return ``parse`` (`registry_of` or `journal_of`) of the JSON in ``content``, the bytes of a store file.

    Raises NewerError for a newer version, ValueError for anything else that is invalid.
    """
    try:
        top = json.loads(content)
        if isinstance(top["version"], int) and top["version"] > VERSION:
            raise NewerError(
                Text(
                    "a newer rlpatch wrote this file in format {version}, and this rlpatch reads only format"
                    " {supported}",
                    version=top["version"],
                    supported=VERSION,
                )
            )
        if top["version"] != VERSION:
            raise ValueError(f"its version is {top['version']!r}, this rlpatch reads {VERSION}")
        return parse(top)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def journal_of(top: dict[str, Any]) -> Journal:
    """Convert the JSON object ``top`` to a journal that is not marked as committed.

    Raises ValueError, KeyError, TypeError or AttributeError if invalid.
    """
    participants = tuple(map(_disk_path, _strings(top["participants"])))
    return Journal(
        transaction=_shown(top["transaction"])[:100],
        participants=participants,
        position=_whole(top["index"], len(participants) - 1),
        moves=tuple(
            Move(_path(move["path"]), _path_state(move["before"]), _path_state(move["after"])) for move in top["moves"]
        ),
        back=_folders(top["back"]),
        ahead=_folders(top["ahead"]),
        empties=bool(top["empties"]),
    )


def registry_of(top: dict[str, Any]) -> Registry:
    """Convert the JSON object ``top`` to a registry.

    Raises ValueError, KeyError, TypeError or AttributeError if invalid.
    """
    records = tuple(
        Record(
            patch=PatchId(*_strings(record["patch"])),
            version=_string(record["version"]),
            options=_strings(record["options"]),
            files=tuple(map(_path, record["files"])),
            applied_at=_string(record["applied_at"]),
            tool=_string(record["tool"]),
        )
        for record in top["records"]
    )
    files = {
        _path(path): Entry(
            digest=_digest(entry["digest"]),
            pristine=_path_state(entry["pristine"]),
            expected=_optional(_path_state, entry.get("given")),
            numbering=_string(entry.get("numbering", "")),
        )
        for path, entry in top["files"].items()
    }
    return Registry(records, files, _folders(top["folders"]))


def _optional(parse: Callable[[Any], T], value: Any) -> T | None:
    """Parse a value; None stays None."""
    return None if value is None else parse(value)


def _path_state(fields: dict[str, Any]) -> PathState:
    """Convert a JSON object to a state, without setuid and setgid bits.

    Raises ValueError, KeyError or TypeError if invalid.
    """
    link = fields["link"]
    return PathState(
        digest=_digest(fields["digest"]) if link is None else "",
        link=_optional(_disk_path, link),
        mode=_whole(fields["mode"], 0o7777) & 0o1777,  # a program's rights are never given back
        uid=_whole(fields["uid"], _OWNERS),
        gid=_whole(fields["gid"], _OWNERS, -1),
        atime_ns=_optional(_time, fields["atime_ns"]),
        mtime_ns=_optional(_time, fields["mtime_ns"]),
        attributes=_attributes(fields.get("attributes", [])),
    )


def _attributes(pairs: Any) -> Attributes:
    """Return the extended attributes of a JSON list, (name, base64 value), that a record may restore; leave out others.

    Raises ValueError or TypeError if invalid.
    """
    attributes = restorable(tuple((name, value) for name, value in map(_strings, pairs)))
    for _name, value in attributes:
        binascii.a2b_base64(value)
    return attributes


def _folders(folders: dict[str, Any]) -> dict[str, FolderState | None]:
    return {path if path == "." else _path(path): _optional(_folder, state) for path, state in folders.items()}


def _folder(fields: dict[str, Any]) -> FolderState:
    return FolderState(_digest(fields["names"]), _time(fields["atime_ns"]), _time(fields["mtime_ns"]))


def _path(text: Any) -> str:
    """Return ``text`` if it is a path below the root, outside of the store and not bytecode.

    Raises ValueError or TypeError if not.
    """
    pure = PurePosixPath(_disk_path(text))
    if pure.suffix == ".pyc":
        raise ValueError(f"{text!r} is bytecode")
    plain = pure.parts and str(pure) == text and not pure.is_absolute()
    if not plain or ".." in pure.parts or pure.parts[0] == STORE:
        raise ValueError(f"{text!r} is not a path below the root")
    return str(pure)


def _disk_path(text: Any) -> str:
    """Return ``text`` if it can be a path on a disk: encodable, without NUL, and not too long.

    Raises ValueError or TypeError if not.
    """
    name = os.fsencode(_string(text))  # UnicodeEncodeError is a ValueError, too
    if b"\0" in name or len(name) > _LONGEST or any(len(part) > _LONGEST_PART for part in name.split(b"/")):
        raise ValueError(f"{text[:80]!r} is not a path that a disk can have")
    return str(text)


def _digest(text: Any) -> str:
    """Return ``text`` if it has 64 hex digits in lower case. Raises ValueError or TypeError if not."""
    if not is_digest(_string(text)):
        raise ValueError(f"{text!r} is not a digest")
    return str(text)


def is_digest(text: str) -> bool:
    """Tell whether a text is a sha256 in hexadecimal, as backups are named."""
    return len(text) == 64 and _HEX.issuperset(text)


def _shown(value: Any) -> str:
    """Return a text of another process with ? for unprintable characters, for messages. Raises TypeError."""
    return "".join(char if char.isprintable() else "?" for char in _string(value))


def _string(value: Any) -> str:
    """Return ``value`` if it is a text. Raises TypeError if not."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _strings(values: Any) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises TypeError for anything else."""
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list")
    return tuple(_string(value) for value in values)


def _whole(value: Any, most: int, least: int = 0) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``, both included. Raises TypeError if not."""
    if not isinstance(value, int) or not least <= value <= most:
        raise TypeError(f"{str(value)[:80]} is not a valid number here")
    return value


def _time(value: Any) -> int:
    """Check a time in nanoseconds since 1970 whose seconds have 64 bits; may be negative. Raises TypeError."""
    return _whole(value, (LATEST_S + 1) * 10**9 - 1, -(LATEST_S + 1) * 10**9)
