"""SHA-256 without OpenSSL, whose loading takes a fiftieth of `apply`; CPython's ``random`` avoids it likewise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # from Python 3.12 on
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:  # a Python built without its own
            from hashlib import sha256

__all__ = ["sha256"]
