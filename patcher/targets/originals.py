"""Is a file the one that was released, or committed? The wheel's RECORD and git's HEAD know."""

from __future__ import annotations

import binascii
from pathlib import PurePosixPath

from patcher.digests import sha256
from patcher.messages import Note, Text
from patcher.targets import checkout, sources
from patcher.targets.target import Target


def difference_note(target: Target, path: PurePosixPath, pristine: bytes) -> Note | None:
    """Return a warning if the wheel's RECORD or git's HEAD has other bytes for `path`; None if equal or unknown."""
    if target.version_from.endswith(".dist-info"):
        recorded = _recorded(target, path)
        # Not by base64, which nothing else of `apply` loads.
        code = binascii.b2a_base64(sha256(pristine).digest(), newline=False).decode().rstrip("=")
        if recorded and recorded != f"sha256={code.replace('+', '-').replace('/', '_')}":
            detail = Text("the hash of {path} differs from its hash in {metadata}/RECORD")
            detail = detail.filled(path=path, metadata=target.version_from)
            return Note(Text("{file} was changed after the installation", path.name), detail)
    if target.installed_as in ("checkout", "editable"):
        committed = checkout.pristine(target.folder, path)
        if committed is not None and committed != pristine:
            return Note(Text("{file} has uncommitted changes", path.name), Text("{path} differs from git's HEAD", path))
    return None


def _recorded(target: Target, path: PurePosixPath) -> str:
    text = sources.text(target.folder / target.version_from / "RECORD") or ""
    fields = (line.split(",") for line in text.splitlines() if line.startswith(f"{path},"))
    return next((match[1] for match in fields), "")
