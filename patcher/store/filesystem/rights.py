"""A replacement file never grants more access than the original, not even briefly.

Rights are copied from the file that is there, never from a record: a record lies in a folder that somebody else may
have written, and root would obey. The bits that let a program run as its owner (setuid, setgid) are never set.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH116
from __future__ import annotations

import binascii
import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple, Tuple

from patcher.messages import COMMA, Text, joined
from patcher.store.filesystem.mounts import kernel_text
from patcher.store.filesystem.opened import opened

ACL = "system.posix_acl_access"
_INHERITED = "system.posix_acl_default"
_NEVER = frozenset({"security.capability", "security.ima", "security.evm"})
"""Rights of a program, and sums that the kernel makes of the bytes: a file with other bytes has others."""
_MODE = 0o1777
_NAMELESS = getattr(os, "O_TMPFILE", os.O_CREAT | os.O_EXCL)
"""Elsewhere a file needs a name, and the one of the folder is taken."""
Attributes = Tuple[Tuple[str, str], ...]


class PathState(NamedTuple):
    """Everything that is restored at one path: a regular file, or a symlink if ``link`` is not None.

    ``digest`` is the sha256 of a file's bytes (empty for a link). A time of None is unknown, and the file gets the
    present time. An owner of -1 is the default owner of a new file. ``attributes`` are extended attributes with access
    control lists: names and base64 values.
    """

    digest: str
    link: str | None
    mode: int
    uid: int
    gid: int
    atime_ns: int | None = None
    mtime_ns: int | None = None
    attributes: Attributes = ()


def attributes(file: int | Path) -> Attributes:
    """Return (name, base64 value) of the extended attributes of an open file or of a path's target, sorted by name.

    Return () if the system has none. Raises OSError.
    """
    pairs = []
    for name in _attribute_names(file):
        with contextlib.suppress(OSError):  # removed this moment, or known by name only
            pairs.append((name, binascii.b2a_base64(os.getxattr(file, name), newline=False).decode()))
    return tuple(pairs)


def _attribute_names(file: int | Path) -> list[str]:
    """Return the sorted names of a file's extended attributes; empty if the system has none. Raises OSError."""
    if not hasattr(os, "listxattr"):
        return []
    try:
        return sorted(os.listxattr(file))
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return []


def give(descriptor: int, state: PathState) -> None:
    """Give the new, private file ``descriptor`` the owner, mode and attributes of ``state``. Raises OSError.

    If only the group cannot be given and ``state`` has no access list, the mode is narrowed to what both group and
    others may do. Inherited lists go first, then come the owner, the access list, the mode, and the other attributes.
    """
    forget(descriptor, ACL)
    status, mode = os.fstat(descriptor), state.mode & _MODE
    owner = (-1 if state.uid == status.st_uid else state.uid, -1 if state.gid == status.st_gid else state.gid)
    if owner != (-1, -1):
        try:
            _change_owner(descriptor, *owner)
        except OSError as error:  # EINVAL: a container without this group
            narrowed = error.errno in (errno.EPERM, errno.EINVAL) and owner[0] == -1
            if not narrowed or _has_list(state):
                raise
            mode = without_group(mode)
    attributes = dict(state.attributes)
    _set_attribute(descriptor, ACL, attributes.pop(ACL, ""))
    os.fchmod(descriptor, mode)  # after fchown, which clears bits
    for name, value in attributes.items():
        _set_attribute(descriptor, name, value if name not in _NEVER else "")


def _change_owner(descriptor: int, uid: int, gid: int) -> None:
    """Change the owner of an open file (-1: keep). Raises OSError, also for an id unknown in this container."""
    if (uid != -1 and not is_mapped("user", uid)) or (gid != -1 and not is_mapped("group", gid)):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    os.fchown(descriptor, uid, gid)


def _set_attribute(descriptor: int, name: str, value: str) -> None:
    """Set the extended attribute ``name`` of an open file to a base64 ``value``, unless it is "" or already set.

    Raises OSError that names the attribute.
    """
    if value and (name, value) not in attributes(descriptor):
        try:
            os.setxattr(descriptor, name, binascii.a2b_base64(value))
        except OSError as error:
            text = Text("cannot set the extended attribute {attribute}: {error}", attribute=name, error=error.strerror)
            raise OSError(error.errno, text) from error


def try_rights(path: Path, state: PathState) -> PathState | None:
    """Return ``state`` with the rights that a new file in the folder ``path`` gets from `give`, found by a test file.

    Return None if no test file can be made there. The test file has no name, so nobody sees it and the folder keeps its
    times. Raises OSError if `give` does, or if the folder cannot be opened.
    """
    with opened(path) as folder:
        try:
            descriptor = os.open(".", os.O_WRONLY | _NAMELESS, 0o600, dir_fd=folder.descriptor)
        except OSError:  # this file system has no such files, or none can be made in this folder
            return None
        try:
            give(descriptor, state)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    return state._replace(mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid)


def forget(descriptor: int, *names: str) -> None:
    """Remove those of the attributes ``names`` that a new file or folder inherited from its parent."""
    for name in {*names}.intersection(_attribute_names(descriptor)):
        os.removexattr(descriptor, name)


def replace_inherited_acl(descriptor: int, model: int | None) -> None:
    """Remove the access control lists that a new folder, open as ``descriptor``, inherited from its parent.

    Unless ``model`` is None, copy the list of that open folder instead, also as the default for everything created in
    the new one. Raises OSError.
    """
    forget(descriptor, ACL, _INHERITED)
    if model is not None:
        allowed = dict(attributes(model)).get(ACL, "")
        _set_attribute(descriptor, ACL, allowed)
        _set_attribute(descriptor, _INHERITED, allowed)


def without_group(mode: int) -> int:
    """Return ``mode`` for a file of another group: what both the old group and all others could do."""
    return mode & ~0o077 | (mode >> 3 & mode & 0o7) * 0o11


def _has_list(state: PathState) -> bool:
    """Tell whether a state has an access control list."""
    return any(name == ACL for name, _value in state.attributes)


def with_rights_of(state: PathState, present: PathState | None) -> PathState:
    """Return ``state`` with the owner and, if both are regular files, the mode and attributes of ``present``.

    Return ``state`` unchanged if ``present`` is None.
    """
    if present is None:
        return state
    state = state._replace(uid=present.uid, gid=present.gid)
    if state.link is not None or present.link is not None:
        return state
    return state._replace(mode=present.mode, attributes=present.attributes)


def replacement(state: PathState, file: PathState, target: Path, root: Path) -> PathState:
    """Return the state of a copy that may replace ``state``: content, times and mode of ``file``, owner of ``state``.

    ``file`` is ``state`` itself or, if that is a link, the state of the file to which it leads, at ``target``. If
    parent directories outside of ``root`` hide the original, the mode is narrowed accordingly. A copy for another owner
    or group gets no attributes, and group and others only the permissions that both had.
    """
    if state.link is None:
        return file._replace(mode=file.mode & _MODE)
    plain = file._replace(mode=reachable_mode(target, root, file))
    if (state.uid, state.gid) == (file.uid, file.gid):
        return plain
    return plain._replace(mode=without_group(plain.mode), uid=state.uid, gid=state.gid, attributes=())


def reachable_mode(path: Path, root: Path, file: PathState) -> int:
    """Return the mode of ``file`` without the bits for users who cannot reach ``path`` but can reach ``root``.

    ``path`` is where ``file`` lies. A folder with an access control list counts as closed to group and others. Raises
    OSError.
    """
    mode = file.mode & _MODE
    for folder in path.parents:
        if folder == root or folder in root.parents:
            break
        status = os.stat(folder)
        same_group = status.st_gid == file.gid
        for_group, for_others = status.st_mode & 0o010, status.st_mode & 0o001
        has_list = ACL in _attribute_names(folder)
        if has_list or not for_group or not (same_group or for_others):
            mode &= ~0o070
        if has_list or not for_others or not (same_group or for_group):
            mode &= ~0o007
    return mode


def backup_state(path: Path, root: Path, file: PathState) -> PathState:
    """Return the owner and mode, as a state, for a backup of ``file`` (at ``path``) in the store of ``root``.

    The mode is narrowed, because the store is not below the folders that may keep others out. An owner to whom this
    process cannot give files becomes -1, the default owner.
    """
    mode = reachable_mode(path, root, file) & (0o700 if _has_list(file) else 0o777)
    return PathState("", None, mode, file.uid if can_own(file.uid) else -1, file.gid)


def unkept_rights(plain: PathState, file: PathState, path: Path) -> str:
    """Return the reason why a new file at ``path`` cannot have the rights of ``plain``; "" if it can.

    Checked are owner, group, mode and attributes of the planned state ``plain``, with a test file in the folder.
    ``file`` is the state of the original. It is also a reason if the new file would belong to neither its owner nor the
    present user, and users other than the owner cannot read the original.
    """
    if not can_own(plain.uid):
        return Text("the file belongs to {owner}; patching would change the owner", _id_words("user", plain.uid))
    if plain.uid not in (os.geteuid(), file.uid) and not file.mode & 0o004:
        return Text(
            "the file that the link points to belongs to user {uid}; a patched file would belong to user {new_uid}",
            uid=file.uid,
            new_uid=plain.uid,
        )
    out = Text(
        "the file belongs to {group}; patching would change the group, and members of the present group could no"
        " longer read the file",
        _id_words("group", plain.gid),
    )
    narrowed = _has_list(plain) or without_group(plain.mode) != plain.mode
    if narrowed and lost_group(plain.gid, path):
        return out
    if lost := next((name for name, _value in plain.attributes if not _can_set(name)), ""):
        return Text("the file has the extended attribute {attribute}; patching would remove this attribute", lost)
    try:
        probe = try_rights(path.parent, plain)
    except OSError as error:
        return Text("the patched file cannot keep the permissions of the original: {error}", error.strerror)
    return "" if probe is None or probe.mode == plain.mode else out


def lost_group(gid: int, path: Path) -> str:
    """Return a phrase such as "group 100, …" if a new file at ``path`` cannot belong to the group ``gid``, else ""."""
    return "" if in_group(gid, os.stat(path.parent)) else _id_words("group", gid)


def _id_words(kind: str, number: int) -> str:
    """Return a phrase for the "user" or "group" (``kind``) with the id ``number``, such as "user 1000".

    For a group it says that this user is not a member, for an unmapped id that the container lacks it.
    """
    if kind == "user":
        return (
            Text("user {uid}", number)
            if is_mapped(kind, number)
            else Text("a user who does not exist in this container")
        )
    if not is_mapped(kind, number):
        return Text("a user group (GID) that does not exist in this container")
    return Text("group {gid}, of which you are not a member", number)


def _can_set(name: str) -> bool:
    """Tell whether this process may set an extended attribute."""
    privileged = name.startswith(("security.", "trusted.")) and name != "security.selinux"
    return name not in _NEVER and (os.geteuid() == 0 or not privileged)


def can_own(uid: int) -> bool:
    """Tell whether this process can create a file that belongs to the user ``uid``."""
    return uid == os.geteuid() or (os.geteuid() == 0 and is_mapped("user", uid))


def in_group(gid: int, folder: os.stat_result) -> bool:
    """Tell whether this process can create a file of the group ``gid`` in ``folder``."""
    inherited = bool(folder.st_mode & stat.S_ISGID) and folder.st_gid == gid
    is_usable = os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups())
    return inherited or (is_usable and is_mapped("group", gid))


def is_mapped(kind: str, number: int) -> bool:
    """Tell whether the id ``number`` of a "user" or "group" (``kind``) is mapped in this user namespace.

    A rootless container shows every unmapped user as nobody, so a file of nobody belongs to somebody else. Outside of
    containers every id is mapped.
    """
    ranges = _ranges(kind)
    if ranges in ([], [(0, 0, 2**32 - 1)]):
        return True
    nobody = kernel_text(f"/proc/sys/kernel/overflow{kind[0]}id").strip()
    return str(number) != nobody and any(first <= number < first + count for first, _outside, count in ranges)


def numbering() -> str:
    """Return a text that identifies the mapping of user and group ids, which differs inside of a container."""
    return f"{_ranges('user')} {_ranges('group')}"


def _ranges(kind: str) -> list[tuple[int, ...]]:
    """Return rows of first id, first id outside, and count of the id mapping; [] if the kernel does not tell."""
    return [tuple(map(int, line.split())) for line in kernel_text(f"/proc/self/{kind[0]}id_map").splitlines()]


def is_shared(root: os.stat_result) -> bool:
    """Tell whether only the owner and one group can write in a folder, and others cannot."""
    return root.st_mode & 0o1022 == 0o020


def distrust_reason(store: os.stat_result, root: os.stat_result) -> str:
    """Return the reason not to trust a store, a folder in ``root``; "" if no stranger can have written it.

    Trusted are this user, the superuser, the owner of ``root``, and the members of a group that may write to it.
    """
    of_shared_group = is_shared(root) and store.st_gid == root.st_gid
    if store.st_mode & 0o002 or (store.st_mode & 0o020 and not of_shared_group):
        return Text("other users can write to this folder")
    if not of_shared_group and store.st_uid not in (0, os.geteuid(), root.st_uid):
        return Text(
            "this folder belongs to {owner}, who is neither you, nor root, nor the owner of the parent folder",
            _id_words("user", store.st_uid),
        )
    return ""


def restorable(pairs: Attributes) -> Attributes:
    """Return the attributes that a record may restore: those that every user may set on their own files."""
    return tuple((name, value) for name, value in pairs if name.startswith("user.") or name == ACL)


def differences(expected: PathState, present: PathState) -> str:
    """Return a text on how mode, owner and extended attributes of a file have changed; "" if they have not.

    An expected group of -1 stands for any group.
    """
    changed = []
    if expected.mode & _MODE != present.mode & 0o7777:
        changed.append(
            Text(
                "the file's mode is {mode:04o} instead of {expected_mode:04o}",
                mode=present.mode,
                expected_mode=expected.mode,
            )
        )
    if expected.uid != present.uid or expected.gid not in (-1, present.gid):
        changed.append(
            Text(
                "the file's owner is {uid}:{gid} instead of {expected_uid}:{expected_gid}",
                uid=present.uid,
                gid=present.gid,
                expected_uid=expected.uid,
                expected_gid=expected.gid,
            )
        )
    if restorable(expected.attributes) != restorable(present.attributes):
        changed.append(Text("the file's extended attributes have changed"))
    return joined(COMMA, changed)
