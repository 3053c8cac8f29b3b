"""Any Python module: patched by insertion alone, valid and exactly reversible, or refused with nothing written."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from patcher.changes import markers
from patcher.messages.errors import Kind
from tests.matrix import CRASH
from tests.patcher.reliability import package

FILE = "vllm_ascend/worker/worker_v1.py"
APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")

# One of each kind of statement, and what trips those who rewrite text: written with four blanks, at the margin.
STATEMENTS = (
    "import os, sys as system",
    "from os import (\n    path,\n    sep,\n)",
    "x = y = 1; z: int = 2; x += 1",
    "(a, *b), c = (1, 2), 3",
    "del x, y",
    "assert x, 'no'",
    "global counted",
    "if x:\n    pass\nelif y:\n    z = 1\nelse:\n    z = 2",
    "for i in range(3):\n    continue\nelse:\n    pass",
    "while x: break",
    "try:\n    x = 1\nexcept (OSError, ValueError) as error:\n    raise\nelse:\n    pass\nfinally:\n    del x",
    "with open('a') as f, open('b'):\n    f.read()",
    "async def coroutine():\n    async with a as b:\n        async for c in d: await e\n    return [f async for f in g]",
    "def generator(a, /, b=1, *args, c: int = 2, **options) -> str:\n    x = yield\n    yield from x\n    return lambda: (x := 1)",
    "@decorated\n@with_arguments(1, k=2)\ndef f(): return 1",
    "@decorated\nclass Other(Base, metaclass=Meta): x = 1",
    (
        "class Outer:\n    class NPUWorker:\n        def execute_model(self, scheduler_output):\n"
        "            output = self.model_runner.execute_model(scheduler_output)"
    ),
    "def outer():\n    class NPUWorker:\n        pass\n    nonlocal_free = 1",
    "match x:\n    case {'a': [1, *_], **rest} if rest:\n        pass\n    case _: pass",
    "print(f'{x!r:>{width}} {{}}' rb''.decode() if False else '')",
    (
        "text = '''\nclass NPUWorker:\n    def execute_model(self, scheduler_output):\n"
        "        output = self.model_runner.execute_model(scheduler_output)\n'''"
    ),
    "text = '# >>> rlpatch vllm-ascend rollout'",
    "long = 1 + \\\n    2",
    "# a comment\n# another",
    "    ",
    "\x0c",
    "\x0cy = 2",
    "lambda *a, **k: (yield)",
    "x = [i for i in range(3) if i] or {k: v for k, v in z} or {*a} or (i for i in b)",
    "raise ValueError from None",
    "if True:\n    class NPUWorker: pass",
    "class NPUWorker:\n    pass",
    "type Alias = int",
    "x = = 1",
    "\x00",
)
RUNS = (
    (
        "def execute_model(self, scheduler_output):\n    output = self.model_runner.execute_model(scheduler_output)\n"
        "    return output"
    ),
    (
        "@torch.inference_mode()\ndef execute_model(self, scheduler_output, *, more=None):\n    '''Says what.'''\n\n"
        "    # first\n    prepare()\n\n    # the call\n    output = self.model_runner.execute_model(\n"
        "        scheduler_output,\n        more,\n    )\n    if output:\n        return output\n    return None"
    ),
    "def execute_model(self, scheduler_output): output = self.model_runner.execute_model(scheduler_output); return output",
    "def execute_model(self, scheduler_output):\n    x = 1; output = self.model_runner.execute_model(1)",
    "def execute_model(self, scheduler_output):\n    with x:\n        output = self.model_runner.execute_model(1)",
    "def execute_model(self, batch):\n    output = self.model_runner.execute_model(batch)",
    "async def execute_model(self, scheduler_output):\n    output = self.model_runner.execute_model(1)",
    "if FLAG:\n    def execute_model(self, scheduler_output):\n        output = self.model_runner.execute_model(1)",
    (
        "def execute_model(self, scheduler_output):\n    output = self.model_runner.execute_model(1)\n"
        "    output = self.model_runner.execute_model(2)"
    ),
    "def execute_model(self, scheduler_output):\n    output = self.model_runner.execute_model(1)  # noqa\n    # end",
)
OTHERS = (
    "def sleep(self, level=1):\n    allocator.sleep()",
    "def sleep(self): pass",
    "@staticmethod\ndef sleep():\n    '''Only a docstring.'''",
    "def profile(self, is_start=True):\n    if is_start:\n        self.profiler.start()\n    else:\n        pass",
    "def profile(self, is_start=True):\n    if is_start: self.profiler.start()",
    "def profile(self):\n    pass",
    "def _rlpatch_rollout(self): pass",
)


def indented(text: str, unit: str, depth: int) -> str:
    """``text`` at a depth, with ``unit`` for four blanks."""
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        steps = (len(line) - len(bare)) // 4 + depth
        lines.append(unit * steps + bare if bare else line)
    return "\n".join(lines)


ORDINARY = "class NPUWorker(Base):\n{}\n\n{}\n".format(
    *(indented(text, "    ", 1) for text in (RUNS[0], OTHERS[3]))
).encode()


@st.composite
def modules(draw: st.DrawFn) -> bytes:
    """The bytes of a module with an ``NPUWorker`` in it, most often one that a recipe knows."""
    unit = draw(st.sampled_from(("    ", "\t", "  ")))
    common = st.sampled_from(STATEMENTS[:21])
    statements = st.lists(st.one_of(common, common, st.sampled_from(STATEMENTS)), max_size=4)
    run = RUNS[draw(st.sampled_from((0, 1, *range(len(RUNS)))))]
    profile = OTHERS[draw(st.sampled_from((3, 3, 3, 4, 5)))]
    members = [run, profile, *draw(st.lists(st.sampled_from((*OTHERS[:3], *STATEMENTS[:27])), max_size=4))]
    members = draw(st.permutations(members))
    blank = draw(st.sampled_from(("\n", "\n\n", "\n\n\n")))
    body = blank.join(indented(member, unit, 1) for member in members)
    head = draw(
        st.sampled_from(("class NPUWorker(WorkerBase):", "@decorated\nclass NPUWorker:", "class NPUWorker(A, B):"))
    )
    doc = draw(st.sampled_from(("", f'{unit}"""A worker."""\n\n')))
    parts = [*draw(statements), f"{head}\n{doc}{body}", *draw(statements)]
    text = draw(st.sampled_from(("", "'''Docstring.'''\n\n"))) + blank.join(
        part if part.startswith(("class NPUWorker(", "@decorated\nclass NPU")) else indented(part, unit, 0)
        for part in parts
    )
    text += draw(st.sampled_from(("\n", "\n", "\n", "", "\n\n\n", "\n# end", "\n    # odd\n", "\n\n   ")))
    text = text.replace("\n", draw(st.sampled_from(("\n", "\n", "\r\n"))))
    coding = draw(st.sampled_from(("", "", "bom", "gbk", "latin-1", "not UTF-8", "lone CR")))
    end = "\r\n" if "\r\n" in text else "\n"
    if coding in ("gbk", "latin-1"):
        word = "工人" if coding == "gbk" else "naïve"
        return f"# -*- coding: {coding} -*-{end}# {word}{end}{text}".encode(coding)
    data = text.encode()
    if coding == "bom":
        return b"\xef\xbb\xbf" + data
    if coding == "not UTF-8":
        return b"# \xff\xfe" + end.encode() + data
    return data.replace(b"'no'", b"'no' \r") if coding == "lone CR" else data


def valid(data: bytes) -> bool:
    """Whether this Python takes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, FILE, "exec")
        except (SyntaxError, ValueError):
            return False
    return True


@CRASH
def test_insert_only_and_exactly_reversible_or_refused(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    thorough = request.config.getoption("--thorough", default=False)
    site = package.install(tmp_path / "site", "0.11.0rc1")
    seen = {0: 0, 4: 0}

    @settings(
        max_examples=3000 if thorough else 40,
        derandomize=not thorough,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(modules())
    @example(ORDINARY)
    @example(ORDINARY + b"\n\n   ")
    @example(b"x = 1\n\x0cy = 2\n" + ORDINARY)
    @example(ORDINARY.replace(b"class", b"x = 1 \rclass"))
    @example(ORDINARY + b"    def sleep(self): pass\n")
    @example(ORDINARY[:-1])
    @example(ORDINARY.replace(b"\n", b"\r\n")[:-2])
    def check(before: bytes) -> None:
        (site / FILE).write_bytes(before)
        code = cycle(site, before)
        seen[code] += 1

    check()
    assert min(seen.values()) > sum(seen.values()) // 20  # else the modules are all alike


def cycle(site: Path, before: bytes) -> int:
    """Apply and revert with every check; gives the exit code of ``apply``."""
    said = package.rlpatch(site, *APPLY)
    after = (site / FILE).read_bytes()
    if said.exit_code != 0:
        assert said.exit_code == Kind.STRUCTURE.exit_code, said.output
        assert after == before
        assert not (site / ".rlpatch").exists()
        return said.exit_code
    assert markers.strip(after) == before != after
    rest = iter(after.splitlines())
    assert all(line in rest for line in before.splitlines())  # nothing of theirs was changed or moved
    assert valid(after) or not valid(before)
    said = package.rlpatch(site, "revert")
    assert said.exit_code == 0, said.output
    assert (site / FILE).read_bytes() == before
    assert not (site / ".rlpatch").exists()
    return 0


def test_a_very_long_module(tmp_path: Path, thorough: bool) -> None:
    site = package.install(tmp_path / "site", "0.11.0rc1")
    lines = 200_000 if thorough else 5_000
    text = package.FILES[FILE] + "".join(f"constant_{number} = {number}\n" for number in range(lines))
    (site / FILE).write_text(text)
    assert cycle(site, text.encode()) == 0
