"""What is settled becomes a literal, what it rules out is left out, and everything else keeps its form."""

from __future__ import annotations

import ast

import pytest

from patcher.folding import Body, Folder, literal

CONSTANTS = {"YES": True, "NO": False, "NONE": None, "ONE": 1, "TEXT": "it", "UNIT": "decode", "RATE": "5 %"}
BODIES = {
    "expression": Body((), "self.a or self.b"),
    "nothing": Body(("pass",), ""),
    "lines": Body(("self.x = 1", "self.y = 2"), "value", ("one",)),
}


def folded(source: str) -> str:
    folder = Folder(source, CONSTANTS, BODIES, {("profile", "level"): "Level2", ("profile", "shapes"): ""})
    return "\n".join(folder.block(ast.parse(source).body))


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
        ("x = a or self.YES or b", "x = a or True"),
        ("x = a and (b or c) and self.YES", "x = a and (b or c)"),
        ("x = '%s %s' % (self.TEXT, y)", 'x = "it %s" % (y,)'),
        ("x = '%s' % (self.TEXT,)", 'x = "it"'),
        ("x = '%s %s' % (y, z)", "x = '%s %s' % (y, z)"),
        ("x: int = 3  # a reason", "x = 3  # a reason"),
        ("x: int", "pass"),
        ("x = f(y)  # noqa: X", "x = f(y)"),
        ("x = y  # type: ignore[a]", "x = y"),
        ("x = self.expression()", "x = self.a or self.b"),
        ("x = self.expression().y", "x = (self.a or self.b).y"),
        ("x = y and self.expression()", "x = y and (self.a or self.b)"),
        ("self.nothing()", "pass"),
        ("x = self.lines(one)", "self.x = 1\nself.y = 2\nx = value"),
        ("value = self.lines(one)", "self.x = 1\nself.y = 2"),
        ("x = self.lines(two)", "x = self.lines(two)"),
        ("p = profile(level=1, shapes=False, x=2)", "p = profile(level=Level2, x=2)"),
        ("p = profile(\n    level=1,\n    shapes=False,\n)", "p = profile(\n    level=Level2,\n)"),
        ("if self.YES:\n    a()\nelse:\n    b()", "a()"),
        ("if self.NO:\n    a()", "pass"),
        ("if x:\n    a()\nelif self.NO:\n    b()\nelse:\n    c()", "if x:\n    a()\nelse:\n    c()"),
        ("if self.NO:\n    a()\nelif x:\n    b()\nelse:  # why\n    c()", "if x:\n    b()\nelse:  # why\n    c()"),
        ("if x:\n    a()\nelif y:\n    b()", "if x:\n    a()\nelif y:\n    b()"),
        ("# why\nif self.YES:\n    # because\n    a()", "# because\na()"),
        ("for a in b:  # why\n    if self.YES:\n        c(a)", "for a in b:  # why\n    c(a)"),
        ("try:\n    a()\nexcept E as e:  # why\n    b()\nfinally:  # so\n    c()",) * 2,
        ("for a in b:\n    c()\nelse:  # why\n    d()",) * 2,
        ("while a:\n    b()\nelse:\n    c()",) * 2,
        ("try:\n    a()\nexcept E:\n    b()\nelse:\n    c()\nfinally:\n    d()",) * 2,
        ("if x:\n    a()\n# why\nelif y:\n    b()", "if x:\n    a()\nelse:\n    # why\n    if y:\n        b()"),
        ("x = '%d%% of %s' % (y, self.TEXT)", "x = '%d%% of %s' % (y, \"it\")"),
        ("x = '%s of %s' % (y, self.RATE)", "x = '%s of %s' % (y, \"5 %\")"),
        ("with a() as b, c():\n    d(\n        1,\n        2,\n    )",) * 2,
        # parentheses go with what they were for, and others stay
        ("x = a and (self.NO or b >= c)", "x = a and b >= c"),
        ("x = a and (self.NO or b or c)", "x = a and (b or c)"),
        ("x = a or (self.YES and not b) or c", "x = a or not b or c"),
        ("if a and (self.NO or b):\n    c()", "if a and b:\n    c()"),
        ("x = (\n    a(b) if self.YES else c\n)", "x = a(b)"),
        ("x = f((self.NO or b), (c, d))", "x = f(b, (c, d))"),
        ("x = (b + c) * (a if self.YES else d)", "x = (b + c) * a"),
        ("x = (a) + (b)",) * 2,
    ],
)
def test_statements(source: str, expected: str) -> None:
    assert folded(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self, a: int, *b: str, c: int = 1) -> None:\n    return a", "def f(self, a, *b, c=1):\n    return a"),
        ('def f(self):\n    """About it."""\n    a()', "def f(self):\n    a()"),
        ('def f(self, a=""):\n    return a',) * 2,
        ("def f(self):\n    a()\n\n    b()", "def f(self):\n    a()\n    b()"),
        ("def f(self):\n    a()\n    import b", "def f(self):\n    import b\n    a()"),
        ("def f(self):\n    if self.YES:\n        return a\n    return b", "def f(self):\n    return a"),
        ("def f(self):  # why, it's so\n    a()", "def f(self):  # why, it's so\n    a()"),
        ("@w(self.ONE)\ndef f(self):\n    a()", "@w(1)\ndef f(self):\n    a()"),
    ],
)
def test_functions(source: str, expected: str) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert "\n".join(Folder(source, CONSTANTS).function(node)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self):\n    return a", Body((), "a")),
        ("def f(self, x):\n    y = x\n    return y", Body(("y = x",), "y", ("x",))),
        ("def f(self):\n    a()", Body(("a()",), "")),
        ("def f(self):\n    if a:\n        return b\n    return c", None),
        ("def f(self):\n    if self.YES:\n        return b\n    return c", Body((), "b")),
        ("def f(self, *a):\n    b()", None),
        ("def f(self, a=1):\n    b()", None),
        ("def f(self):\n    a()\n    b()\n    c()", None),
    ],
)
def test_what_a_call_stands_for(source: str, expected: Body | None) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert Folder(source, CONSTANTS).body(node, 2) == expected


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
