"""The code that goes in: real classes, typed and tested here, specialised and inserted by
``patcher.engine``.

The classes that a recipe names are flattened into one nested class of the patched class, with the
user's choice in place of the constants and without the type annotations. They compile on Python 3.8,
import only inside their methods and use no name of this package, because the patched file runs in
containers that do not have rlpatch.
"""
