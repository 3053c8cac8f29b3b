"""What is said of a variable in a Python launch file against what Python makes of it: no definite answer is wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import indent

import pytest

from patcher.guards.detect import detect
from patcher.switches import State
from patches.switches import MSPROF
from patches.vllm_ascend.switches import SWITCHES
from tests.matrix import thinned_rows

X = "PROFILING_MODE"
HEAD = "import argparse, asyncio, os, subprocess, sys, time\nfrom engine import LLM, args, call, chance, mode, times\nT, N = 'true', 1\npart = dict(os.environ)\n"
VALUES = ("'true'", "''", "T", "f'{T}'", "str(N)", "mode()")
CONDITIONS = ("chance()", "args.x", "os.environ.get('CHANCE') == '1'")
STATEMENTS = (
    *[f"os.environ['{X}'] = VALUE"] * 2,
    f"os.environ.setdefault('{X}', VALUE)",
    f"os.environ.pop('{X}', None)",
    f"os.environ.pop('{X}') if '{X}' in os.environ else None",
    f"os.environ.update({{'{X}': VALUE}})",
    f"os.environ |= {{'{X}': VALUE}}",
    f"os.environ.pop('{X}', None) if CONDITION else None",
    f"CONDITION and os.environ.update({{'{X}': VALUE}})",
    f"[os.environ.update({{'{X}': VALUE}}) for one in range(times())]",
    f"later = lambda: os.environ.update({{'{X}': VALUE}})",
    *["LLM('m')"] * 3,
    "subprocess.run(['python3', 'a.py'])",
    f"subprocess.run(['python3', 'a.py'], env={{**os.environ, '{X}': VALUE}})",
    "subprocess.run(['python3', 'a.py'], env={'PATH': os.environ['PATH'], 'SEEN': os.environ['SEEN']})",
    f"env = os.environ.copy()\nenv['{X}'] = VALUE\nsubprocess.run(['python3', 'a.py'], env=env)",
    f"child = dict(os.environ)\nchild.pop('{X}', None)\nsubprocess.call('python3 a.py', shell=True, env=child)",
    f"other = dict(os.environ)\nother.update({X}='true')",
    f"subprocess.run(['python3', 'a.py'], env=dict(os.environ, {X}=VALUE))",
    "kept = dict(os.environ)\nos.environ.clear()\nos.environ.update(kept)",
    f"part['{X}'] = VALUE",
    f"part.update({X}=VALUE)",
    f"part.pop('{X}', None)",
    *["subprocess.run(['python3', 'a.py'], env=part)"] * 2,
    "os.system('python3 a.py')",
    f"os.system('{X}=true python3 a.py')",
    f"os.system('export {X}=true; python3 a.py')",
    f"os.system('unset {X}; python3 a.py')",
    "time.sleep(0)",
    "parser = argparse.ArgumentParser()",
)
BLOCKS = (
    ("if CONDITION:", "else:"),
    ("if CONDITION:",),
    ("for i in range(times()):",),
    ("for i in (1, 2):", "else:"),
    ("try:", "except ValueError:"),
    ("try:", "finally:"),
    ("with open(os.devnull):",),
    ("COUNT = 0\nwhile (COUNT := COUNT + 1) < 3:",),
    ("match chance():\n    case True:", "    case _:"),
)
WAYS_OUT = {
    "def": ("return",),
    "for": ("break", "continue"),
    "while": ("break", "continue"),
    "try": ("raise ValueError",),
}
# Stands for the engine. It writes what the variable is wherever it is called, and at the end of the process.
ENGINE = f"""
import atexit, os

def seen(*_):
    with open(os.environ["SEEN"], "a") as file:
        print(os.environ.get("{X}", ""), file=file)

def chance():
    seen()
    return os.environ["CHANCE"] == "1"

def mode(): return "true" if chance() else ""
def times(): return 2 * chance()
def call(function): return function() if chance() else None

class args: x = os.environ.get("CHANCE") == "1"
LLM = seen
atexit.register(seen)
"""
CHILD = f'#!/bin/sh\necho "${X}" >> "$SEEN"\n'


class Generator:
    """Scripts at random, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.random, self.functions, self.inside = random.Random(seed), list[str](), list[str]()

    def script(self) -> str:
        """A file that changes the environment, starts programs and calls an engine."""
        text = HEAD + self._block(5)
        text += "".join(f"{call}\n" for call in self.functions)  # what is never run may be on
        if self.random.random() < 0.5:
            text += f"{self._part('def main():', 4)}\nif __name__ == '__main__':\n    main()\n"
        return text

    def _block(self, most: int) -> str:
        return "".join(self._statement() + "\n" for _ in range(self.random.randint(1, most)))

    def _statement(self) -> str:
        kind = self.random.random()
        if not self.inside and kind < 0.06:
            name = f"f{len(self.functions)}"
            text = self._part(f"{self.random.choice(['', 'async '])}def {name}():", 4)
            self.functions.append(f"asyncio.run({name}())" if text.startswith("async") else f"{name}()")
            return text
        if len(self.inside) < 3 and kind < 0.3:
            return "\n".join(self._part(head, 3) for head in self.random.choice(BLOCKS))
        if self.functions and kind < 0.4:
            called = self.random.choice(self.functions)
            return called if called.startswith("asyncio") else self.random.choice([called, f"call({called[:-2]})"])
        if kind > 0.95:
            ways = [
                way
                for head in self.inside
                for start, ways in WAYS_OUT.items()
                if head.startswith(start)
                for way in ways
            ]
            return self._filled(f"if CONDITION: {self.random.choice(['sys.exit()', *ways])}")
        return self._filled(self.random.choice(STATEMENTS))

    def _part(self, head: str, most: int) -> str:
        head = head.replace("COUNT", f"n{len(self.inside)}")
        last = head.rpartition("\n")[2]
        self.inside.append(last.removeprefix("async "))
        body = indent(self._block(most).rstrip("\n"), last[: len(last) - len(last.lstrip())] + "    ")
        self.inside.pop()
        return f"{self._filled(head)}\n{body}"

    def _filled(self, text: str) -> str:
        for word, choices in {"VALUE": VALUES, "CONDITION": CONDITIONS}.items():
            text = text.replace(word, self.random.choice(choices))
        return text


def seen(folder: Path, chance: str) -> list[str]:
    """What the variable was wherever an engine may have looked; nothing where the script raised an error."""
    found = folder / "seen"
    found.write_text("")
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "SEEN": str(found), "CHANCE": chance}
    command = [sys.executable, "run.py"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False, timeout=60)
    return [] if done.returncode else found.read_text().splitlines()


def said(script: Path) -> State:
    findings = detect(SWITCHES, version="0.11.0rc1", environ={}, script=script)
    return max((one.state for one in findings if one.profiler == MSPROF), key=lambda one: one.severity)


@pytest.mark.parametrize(("first", "count"), thinned_rows([(0, 30), (30, 120)], [(0, 30)]))
def test_no_definite_answer_is_wrong(first: int, count: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    times = 10 if request.config.getoption("--thorough") else 1
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "python3").write_text(CHILD)
    (tmp_path / "python3").chmod(0o755)
    script, answers = tmp_path / "run.py", Counter[State]()
    for seed in range(times * first, times * (first + count)):
        text = Generator(seed).script()
        script.write_text(text)
        ways = [any(way) for way in (seen(tmp_path, chance) for chance in "01") if way]
        state = said(script)
        assert state is not State.ON or any(ways) or not ways, (seed, text)
        assert state is not State.OFF or not any(ways), (seed, text)
        answers[state] += 1
    assert answers[State.ON] + answers[State.OFF] > answers[State.UNKNOWN] / 2
