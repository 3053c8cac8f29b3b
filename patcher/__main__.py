"""The entry point of the command ``rlpatch`` and of ``python -m patcher``."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys


def main() -> None:
    """Run the command line and exit with a code of `messages.errors.Kind`, even if Ctrl-C or an error stops imports."""
    # A command builds one tree and ends: to look through it for garbage again and again takes 5 % of its time.
    gc.set_threshold(100_000)
    try:
        _check_sibling()
        # The name of a folder may have what the terminal's encoding lacks: it is shown escaped.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        _run()
    except KeyboardInterrupt:
        _stop(130, "interrupted, nothing was changed: stopped by Ctrl-C")
    except BrokenPipeError:  # whoever read the help has read enough
        _stop(0)
    except OSError as error:  # a command tells of its own; this is the help, say
        _stop(5, f"not possible in this environment: {error.strerror or error}")
    finally:
        gc.freeze()  # and to look for more of it when the process ends, as much again


def _run() -> None:
    """Run the command line and exit with its code; Ctrl-C raises KeyboardInterrupt instead of click's exit 1."""
    import click

    from patcher.cli import rlpatch

    try:
        code = rlpatch(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _stop(code: int, message: str = "") -> None:
    """Print `message`, if any, to stderr and exit with `code`; discard what stdout and stderr cannot write any more."""
    with contextlib.suppress(OSError):
        if message:
            print(f"Error: {message}", file=sys.stderr, flush=True)  # noqa: T201  (before click is there)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _check_sibling() -> None:
    """Exit with code 5 and a message if another package named `patches` hides rlpatch's own."""
    import patches

    # Without pathlib, which is a tenth of the time of the help.
    expected = os.path.realpath(f"{__file__}/../../patches")
    actual = [os.path.realpath(entry) for entry in patches.__path__]
    if actual != [expected]:
        _stop(
            5,
            "not possible in this environment: another package named `patches` hides that of rlpatch\n"
            f"  rlpatch's: {expected}\n  found:     {', '.join(actual)}\n"
            "  next: take the folder above it out of PYTHONPATH, or start rlpatch from another folder",
        )


if __name__ == "__main__":
    main()
