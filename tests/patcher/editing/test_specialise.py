"""Constants become literals, calls of hooks are left out, and everything else keeps its form."""

from __future__ import annotations

import ast

import pytest

from patcher.editing.specialise import Specialiser, literal

CONSTANTS = {"ONE": 1, "TEXT": "it", "KINDS": ("a", "b"), "RATE": "5 %"}
HOOKS = {"note", "poll"}


def specialised(source: str) -> str:
    """What becomes of the statements of a method."""
    text = "class C:\n    def f(self):\n" + "\n".join(f"        {line}" for line in source.split("\n"))
    return "\n".join(line[4:] for line in method(text)[1:])


def method(text: str) -> list[str]:
    (kind,) = ast.parse(text).body
    assert isinstance(kind, ast.ClassDef)
    keywords = {("profile", "level"): "Level2", ("profile", "shapes"): ""}
    return Specialiser(text, CONSTANTS, keywords, hooks=HOOKS).rewritten(kind.body[0])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = self.TEXT", 'x = "it"'),
        ("x = self.text", "x = self.text"),
        ("x = y in self.KINDS", 'x = y in ("a", "b")'),
        ("x = self.n - self.ONE", "x = self.n - 1"),
        ("x = worker.ONE", "x = worker.ONE"),
        ("x = '%s %s' % (y, z)", "x = '%s %s' % (y, z)"),
        ("x: int = 3  # a reason", "x = 3  # a reason"),
        ("y()\nx: int", "y()"),
        ("x = f(y)  # noqa: X", "x = f(y)"),
        ("x = y  # type: ignore[a]", "x = y"),
        ("p = profile(\n    level=1,\n    shapes=False,\n)", "p = profile(\n    level=Level2,\n)"),
        ("a()\nself.note('x', y)", "a()"),
        ("a()\n# why\nself.note(\n    'x',\n    y,\n)\nb()", "a()\nb()"),
        ("a()\nif x:  # why\n    self.note(x)\n    self.poll()", "a()"),
        ("if x:\n    self.note(x)\n    b()", "if x:\n    b()"),
        ("if x:\n    a()\nelse:  # why\n    self.note(x)\nb()", "if x:\n    a()\nb()"),
        ("a()\nif x:\n    self.poll()\nelse:\n    self.note(x)", "a()"),
        ("if x:\n    a()\n# why\nelif y:\n    b()",) * 2,
        ("x = self.note(y)",) * 2,
        ("for a in b:  # why\n    self.note(a)\n    c(a)", "for a in b:  # why\n    c(a)"),
        ("try:\n    a()\nexcept E as e:  # why\n    b()\nfinally:  # so\n    c()",) * 2,
        ("while a:\n    b()\nelse:\n    c()",) * 2,
        ("x = '%d%% of %s' % (y, self.TEXT)", "x = '%d%% of %s' % (y, \"it\")"),
        ("x = '%s of %s' % (y, self.RATE)", "x = '%s of %s' % (y, \"5 %\")"),
        ("with a() as b, c():\n    d(\n        1,\n        2,\n    )",) * 2,
    ],
)
def test_constants_in_statements_become_literals(source: str, expected: str) -> None:
    assert specialised(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self, a: int, *b: str, c: int = 1) -> None:\n    return a", "def f(self, a, *b, c=1):\n    return a"),
        ('def f(self):\n    """About it."""\n    a()', "def f(self):\n    a()"),
        (
            'def f(self):  # why\n    """About\n    it.\n    """\n    # so\n    a()',
            "def f(self):  # why\n    # so\n    a()",
        ),
        (
            'def f(self):  # docstring goes in\n    """About it."""\n    a()',
            'def f(self):\n    """About it."""\n    a()',
        ),
        ('def f(self, a=""):\n    return a',) * 2,
        ("def f(self):\n    a()\n\n    b()", "def f(self):\n    a()\n    b()"),
        ("def f(self):  # why, it's so\n    a()", "def f(self):  # why, it's so\n    a()"),
        ("@w(self.ONE)\ndef f(self):\n    a()", "@w(1)\ndef f(self):\n    a()"),
    ],
)
def test_constants_in_methods_become_literals(source: str, expected: str) -> None:
    text = "class C:\n" + "\n".join(f"    {line}" for line in source.split("\n"))
    assert "\n".join(method(text)) == expected


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("a", '"a"'),
        ('a"b', "'a\"b'"),
        ("it's", '"it\'s"'),
        ("é", '"\\xe9"'),
        (("a",), '("a",)'),
        (("a", 1), '("a", 1)'),
        (None, "None"),
    ],
)
def test_a_literal_evaluates_to_its_value(value: object, code: str) -> None:
    assert literal(value) == code
    assert ast.literal_eval(code) == value
