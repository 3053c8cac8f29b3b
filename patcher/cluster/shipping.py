"""rlpatch as one archive, which travels with the job: nothing is installed on the nodes, and nothing is downloaded."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path


def archive() -> bytes:
    """``patcher`` and ``patches`` as Python imports them from a zip."""
    import patches

    packed = io.BytesIO()
    folders = (Path(__file__).parents[1], *map(Path, patches.__path__))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    out.write(path, path.relative_to(folder.parent).as_posix())
    return packed.getvalue()
