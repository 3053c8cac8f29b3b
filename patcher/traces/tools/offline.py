"""The offline parsing of one trace, run by the interpreter that recorded it: ``python -c TEXT FOLDER EXPORTS``.

The text of this module is sent to the interpreter, so it runs alone, on Python 3.7 or newer. What torch_npu says
goes to stdout; it swallows its failures, so the exit code says nothing of them.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any


def main(folder: str, exports: str) -> None:
    """Parse a folder with torch_npu, which prints its messages to stdout and does not tell whether it succeeded.

    ``exports``, such as ``text,db``, are the formats to write, if this release of torch_npu has an option for that;
    "" leaves the choice to torch_npu.
    """
    from torch_npu.profiler.profiler import analyse

    parameters = inspect.signature(analyse).parameters
    words: Any = {"max_process_number": 1} if "max_process_number" in parameters else {}
    if exports and "export_type" in parameters:
        chosen = exports.split(",")
        words["export_type"] = chosen if len(chosen) > 1 else chosen[0]
    elif exports:
        sys.stdout.write("[rlpatch] this release of torch_npu has no export_type for analyse\n")
    analyse(folder, **words)


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry]  # `-c` puts the working directory first
    main(*sys.argv[1:])
