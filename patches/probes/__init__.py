"""The code that goes in: real classes, typed and tested, rendered and inserted by ``patcher.editing``.

A recipe composes a probe of classes that derive from one another, so Python, mypy and the renderer agree on which
method is meant. What depends on the choice or the release is a class of its own, which goes in or stays out as a
whole. A method with only a docstring is a hook: its calls go in where a class fills it in. A constant is annotated
``CompileTime``, and its value goes in. All other attributes in capitals are what the user chose, and stand at the
top of the class. A method that nothing calls does not go in. A method's docstring stays here, unless
``# docstring goes in`` ends the line of its ``def``.

The code compiles on Python 3.8, imports only inside its methods and uses no name of this package, because the
patched file runs in containers that do not have rlpatch.
"""
