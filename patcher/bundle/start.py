"""The first that a bundle runs. Any Python can read this, so that an old one says what is wrong."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 8):  # noqa: UP036  (here every Python comes by)
        sys.stderr.write(
            "Error: not possible in this environment: this is Python %d.%d, and a bundle needs 3.8 or newer\n"  # noqa: UP031
            "  next: run it with a newer Python, and name the folder of this Python's packages: --path DIR\n"
            % sys.version_info[:2]
        )
        sys.exit(5)

    from patcher.bundle.line import main

    sys.exit(main())
