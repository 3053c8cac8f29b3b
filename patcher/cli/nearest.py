"""The configuration of a project: ``rlpatch.toml``, or the table ``tool.rlpatch`` of a pyproject.toml.

It decides what rlpatch does with the rights of whoever runs it. So it is read only where nobody else could have put it
there or written it, and never through a link: beside a link to root's own file, relative paths lead to somebody else's.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from patcher.cli.candidates import OWN, SHARED, candidates
from patcher.messages import Problem, Text, usage
from patcher.messages.command_line import quoted
from patcher.store.filesystem import opened

_TABLE = b"[tool.rlpatch"

MOST_BYTES = 256 << 10
_MOST_DOTS = 100
"""Most dots of a line outside of quotes: TOML libraries need memory by the square of a key's parts, 5 GB for 60 kB."""


NOWHERE = Text(
    "no configuration in this folder or above it: no {own_name}, and no {shared_name} with [tool.rlpatch]",
    own_name=OWN,
    shared_name=SHARED,
)


class ConfigurationFile(NamedTuple):
    """Configuration file and its bytes, or why they are not read; `foreign`: another user owns the file or folder."""

    file: Path
    content: bytes = b""
    refused: Problem | None = None
    foreign: bool = False

    @property
    def text(self) -> str:
        """Content as text; bytes that are not UTF-8 become U+FFFD."""
        return self.content.decode(errors="replace")

    def table(self) -> Mapping[str, Any]:
        """Return the options in rlpatch.toml or in [tool.rlpatch] ({} without it). Raises Problem (USAGE)."""
        if self.refused is not None:
            raise self.refused
        document = self._document()
        if self.file.name == OWN:
            return document
        tools = document.get("tool")
        table = tools.get("rlpatch", {}) if isinstance(tools, dict) else {}
        if not isinstance(table, dict):
            cause = Text("tool.rlpatch must be a TOML table ([tool.rlpatch])")
            raise self._unread(cause, line_of(self.text, "rlpatch"))
        return table

    def _document(self) -> Mapping[str, Any]:
        """Parse the whole file as TOML. Raises Problem (USAGE) with the line if possible."""
        # Most folders have no configuration: it takes 5 ms to load what reads one.
        if sys.version_info >= (3, 11):
            import tomllib  # noqa: PLC0415
        else:
            import tomli as tomllib  # noqa: PLC0415
        for number, line in enumerate(self.content.splitlines(), 1):
            if re.sub(rb"\"[^\"]*\"|'[^']*'", b"", line).count(b".") > _MOST_DOTS:
                cause = Text("a line of the file has more than {limit} dots outside of quotes", _MOST_DOTS)
                raise self._unread(cause, number)
        try:
            return tomllib.loads(self.content.decode())
        except UnicodeDecodeError as error:
            raise self._unread(Text("the file is not UTF-8"), self.content.count(b"\n", 0, error.start) + 1) from None
        except tomllib.TOMLDecodeError as error:
            match = re.search(r"\(at line (\d+)", str(error))
            raise self._unread(str(error), int(match[1]) if match else None) from None
        except RecursionError:
            raise self._unread(Text("the values in the file are nested too deeply")) from None
        except ValueError:  # Python reads no number of more than 4300 digits
            digits = re.search(r"[0-9_]{4000}", self.text)
            at = self.text.count("\n", 0, digits.start()) + 1 if digits else None
            raise self._unread(Text("the file contains a number that is too long"), at) from None

    def _unread(self, why: str, line: int | None = None) -> Problem:
        cause = Text("the configuration cannot be read: {reason}", why)
        hint = Text("correct this line of the file") if line else Text("correct the configuration file")
        return usage(cause, hint, place(self.file, line))


def nearest() -> ConfigurationFile | None:
    """Return the configuration in the working directory or the nearest folder above; None if there is none."""
    return next((load(file) for file in candidates() if file.name == OWN or _has_table(file)), None)


def load(file: Path) -> ConfigurationFile:
    """Read the configuration file `file`; the caller has resolved links in the path of its folder.

    If it is anything but a regular file, above `MOST_BYTES`, or others could have written it, `refused` has the
    Problem.
    """
    refused = change = ""
    foreign = False
    content = b""
    try:
        with opened.opened(file.parent) as folder:
            link = folder.status(file.name)
            foreign = not (_is_trusted(link) and _is_trusted(folder.status()))
            if stat.S_ISLNK(link.st_mode):
                refused = Text("the file is a link")
                change = Text("replace the link with a copy of the file that it points to")
            elif not stat.S_ISREG(link.st_mode):
                refused, change = Text("not a regular file"), Text("replace the configuration file with a regular file")
            else:
                with folder.reading(file.name) as stream:
                    refused, change = _refusal(file, stream.fileno(), folder.descriptor)
                    content = b"" if refused else stream.read(MOST_BYTES + 1)
    except OSError as error:
        refused = error.strerror or ""
        change = Text("check the file's owner and permissions: ls -l {file}", quoted([str(file)]))
    if len(content) > MOST_BYTES:
        refused, change = Text("the file is larger than {limit} KiB", MOST_BYTES >> 10), Text("make the file smaller")
    if not refused:
        return ConfigurationFile(file, content)
    hint = Text("type --path or --python on the command line")
    if change:
        hint = Text("{remedy}, or type --path or --python on the command line", change)
    problem = usage(Text("rlpatch does not read {file}: {reason}", file=file.name, reason=refused), hint, str(file))
    return ConfigurationFile(file, refused=problem, foreign=foreign)


def _has_table(file: Path) -> bool:
    """Tell whether a pyproject.toml mentions the table for rlpatch; False if it cannot be read."""
    with suppress(OSError), opened.reading(file) as stream:
        return _TABLE in stream.read(MOST_BYTES)
    return False


def _refusal(file: Path, descriptor: int, folder: int) -> tuple[str, str]:
    """Return (why other users could write to `file` or its folder, remedy); ("", "") if no other user could."""
    for path, number, foreign, writable in (
        (file, descriptor, Text("another user owns the file"), Text("other users can write to the file")),
        (
            file.parent,
            folder,
            Text("another user owns the folder of the file"),
            Text("other users can write to the folder of the file"),
        ),
    ):
        status = os.fstat(number)
        if not _is_trusted(status):
            return foreign, ""
        if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private_group(status, number)):
            shared = status.st_mode & stat.S_ISVTX  # such as /tmp, which is to stay so
            if shared:
                return writable, Text("move the file to a folder that only you can write to")
            return writable, f"chmod g-w,o-w {quoted([str(path)])}"
    return "", ""


def _is_trusted(status: os.stat_result) -> bool:
    """Tell whether root or this user owns a file."""
    return status.st_uid in (0, os.geteuid())


def _is_private_group(status: os.stat_result, descriptor: int) -> bool:
    """Tell whether only the owner of an open file can use the permissions of its group.

    An access control list may give others the group's permissions.
    """
    import grp  # noqa: PLC0415
    import pwd  # noqa: PLC0415

    from patcher.store.filesystem import rights  # noqa: PLC0415

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    alone = owner.pw_gid == group.gr_gid and group.gr_name == owner.pw_name and {*group.gr_mem} <= {owner.pw_name}
    return alone and rights.ACL not in dict(rights.attributes(descriptor))


def line_of(text: str, key: str, value: str | None = None) -> int | None:
    """Return the number (from 1) of the line in a TOML text with the first quoted `value` after `key =` or `key]`.

    Without a `value`, or if it does not follow, it is the line of the first key. None if `text` lacks the key.
    """
    name = re.search(rf"^[^#\n]*?(?<![\w-]){re.escape(key)}[\"']?\s*[=\]]", text, re.MULTILINE)
    if name is None:
        return None
    quoted_value = value is not None and re.search(rf"[\"']{re.escape(value)}[\"']", text[name.end() :])
    return text.count("\n", 0, name.end() + (quoted_value.start() if quoted_value else 0)) + 1


def place(file: Path, line: int | None) -> str:
    """Return ``file:line``, or the file alone."""
    return f"{file}:{line}" if line else str(file)
