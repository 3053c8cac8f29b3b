"""What is settled becomes a literal, what it rules out is left out, and everything else keeps its form."""

from __future__ import annotations

import ast

import pytest

from patcher.editing.specialise import Specialiser, literal

CONSTANTS = {"YES": True, "NO": False, "NONE": None, "ONE": 1, "TEXT": "it", "UNIT": "decode", "RATE": "5 %"}


def specialised(source: str) -> str:
    """What becomes of the statements of a method."""
    text = "class C:\n    def f(self):\n" + "\n".join(f"        {line}" for line in source.split("\n"))
    return "\n".join(line[4:] for line in method(text)[1:])


def method(text: str) -> list[str]:
    (kind,) = ast.parse(text).body
    assert isinstance(kind, ast.ClassDef)
    keywords = {("profile", "level"): "Level2", ("profile", "shapes"): ""}
    return Specialiser(text, CONSTANTS, keywords).rewritten(kind.body[0])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = self.TEXT", 'x = "it"'),
        ("x = self.text", "x = self.text"),
        ("x = self.UNIT == 'decode'", "x = True"),
        ("x = y == self.UNIT", 'x = y == "decode"'),
        ("x = self.n - self.ONE", "x = self.n - 1"),
        ("x = a if self.YES else b", "x = a"),
        ("x = a if self.NONE is None else b", "x = a"),
        ("x = a if not self.YES else b", "x = b"),
        ("x = self.YES and a", "x = a"),
        ("x = self.NO and a", "x = False"),
        ("x = a or self.NO or b", "x = a or b"),
        ("x = a or self.YES or b", "x = a or True or b"),
        ("x = a and (b or c) and self.YES", "x = a and (b or c)"),
        ("x = '%s %s' % (y, z)", "x = '%s %s' % (y, z)"),
        ("x: int = 3  # a reason", "x = 3  # a reason"),
        ("x: int", "pass"),
        ("x = f(y)  # noqa: X", "x = f(y)"),
        ("x = y  # type: ignore[a]", "x = y"),
        ("p = profile(\n    level=1,\n    shapes=False,\n)", "p = profile(\n    level=Level2,\n)"),
        ("if self.YES:\n    a()\nelse:\n    b()", "a()"),
        ("if self.NO:\n    a()", "pass"),
        ("if x:\n    a()\nelif self.NO:\n    b()\nelse:\n    c()", "if x:\n    a()\nelse:\n    c()"),
        ("if self.NO:\n    a()\nelif x:\n    b()\nelse:  # why\n    c()", "if x:\n    b()\nelse:  # why\n    c()"),
        ("if x:\n    a()\nelif y:\n    b()", "if x:\n    a()\nelif y:\n    b()"),
        ("# why\nif self.YES:\n    # because\n    a()", "# why\n# because\na()"),
        ("for a in b:  # why\n    if self.YES:\n        c(a)", "for a in b:  # why\n    c(a)"),
        ("try:\n    a()\nexcept E as e:  # why\n    b()\nfinally:  # so\n    c()",) * 2,
        ("for a in b:\n    c()\nelse:  # why\n    d()",) * 2,
        ("while a:\n    b()\nelse:\n    c()",) * 2,
        ("try:\n    a()\nexcept E:\n    b()\nelse:\n    c()\nfinally:\n    d()",) * 2,
        ("if x:\n    a()\n# why\nelif y:\n    b()",) * 2,
        ("x = '%d%% of %s' % (y, self.TEXT)", "x = '%d%% of %s' % (y, \"it\")"),
        ("x = '%s of %s' % (y, self.RATE)", "x = '%s of %s' % (y, \"5 %\")"),
        ("with a() as b, c():\n    d(\n        1,\n        2,\n    )",) * 2,
        # parentheses go with what they were for, and others stay
        ("x = a and (self.NO or b >= c)", "x = a and b >= c"),
        ("x = a and (self.NO or b or c)", "x = a and (b or c)"),
        ("x = a or (self.YES and not b) or c", "x = a or not b or c"),
        ("if a and (self.NO or b):\n    c()", "if a and b:\n    c()"),
        ("x = (\n    a(b) if self.YES else c\n)", "x = (\n    a(b)\n)"),
        ("x = f((self.NO or b), (c, d))", "x = f(b, (c, d))"),
        ("x = (b + c) * (a if self.YES else d)", "x = (b + c) * a"),
        ("x = (a) + (b)",) * 2,
    ],
)
def test_statements(source: str, expected: str) -> None:
    assert specialised(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self, a: int, *b: str, c: int = 1) -> None:\n    return a", "def f(self, a, *b, c=1):\n    return a"),
        ('def f(self):\n    """About it."""\n    a()',) * 2,
        ('def f(self, a=""):\n    return a',) * 2,
        ("def f(self):\n    a()\n\n    b()", "def f(self):\n    a()\n    b()"),
        ("def f(self):\n    if self.YES:\n        return a\n    return b", "def f(self):\n    return a"),
        ("def f(self):  # why, it's so\n    a()", "def f(self):  # why, it's so\n    a()"),
        ("@w(self.ONE)\ndef f(self):\n    a()", "@w(1)\ndef f(self):\n    a()"),
    ],
)
def test_functions(source: str, expected: str) -> None:
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
def test_literals(value: object, code: str) -> None:
    assert literal(value) == code
    assert ast.literal_eval(code) == value
