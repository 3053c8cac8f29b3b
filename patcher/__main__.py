"""The entry point of the command ``rlpatch`` and of ``python -m patcher``."""

from __future__ import annotations

import io
import sys
from pathlib import Path


def main() -> None:
    """Run the command line; exits with the codes of ``patcher.errors.Kind``."""
    _check_sibling()
    # A folder may have a name that the terminal's encoding lacks: it is shown escaped, after apply has written, too.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    from patcher.cli import rlpatch

    rlpatch()


def _check_sibling() -> None:
    """Stops where another package ``patches`` hides ours: its files would be taken for recipes."""
    import patches

    ours = Path(__file__).resolve().parent.parent / "patches"
    theirs = [Path(entry).resolve() for entry in patches.__path__]
    if theirs != [ours]:
        print(  # noqa: T201  (before click is there)
            "Error: the environment refuses: another package named `patches` hides the one of rlpatch\n"
            f"  ours:   {ours}\n  theirs: {', '.join(map(str, theirs))}\n"
            "  next: take the folder above it out of PYTHONPATH, or start rlpatch from another folder",
            file=sys.stderr,
        )
        sys.exit(5)


if __name__ == "__main__":
    main()
