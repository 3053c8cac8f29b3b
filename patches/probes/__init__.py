"""The code that goes in: real classes, typed and tested, rendered and inserted by ``patcher.editing``.

A recipe composes a probe of classes that derive from one another, so Python, mypy and the renderer agree on
which method is meant. A compile-time constant is annotated ``CompileTime``: such an attribute becomes a
literal, what it rules out is left out, and a method that nothing calls any more does not go in. A value of None
means that it is not known: then the code that finds out stays. All other attributes in capitals are what the user
chose, and stand at the top of the class.

The code compiles on Python 3.8, imports only inside its methods and uses no name of this package, because the
patched file runs in containers that do not have rlpatch.
"""
