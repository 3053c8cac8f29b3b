"""What is read of a script against what bash makes of it: no definite answer differs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from patcher.launches import ANY, Argument, Invocation, read
from patcher.launches.scope import ABSENT
from tests.matrix import thinned
from tests.patcher.launches.generated import CHANCES, NAMES, Bash, Generator, Started, started_by


def fits(argv: Sequence[Argument], perhaps: Sequence[Argument], words: Sequence[str]) -> bool:
    """Whether a start with these words is one that the reader allows: None is any number of words."""
    states = {0}
    for word in words:
        reached = set()
        for at in states:
            while at < len(argv) and argv[at] is None:
                reached.add(at)
                at += 1
            if at < len(argv) and matches(argv[at], word):
                reached.add(at + 1)
        if any(matches(one, word) for one in perhaps):
            reached |= states
        states = reached
    return any(all(word is None for word in argv[at:]) for at in states)


def matches(said: Argument, word: str) -> bool:
    if said is None:
        return True
    return re.fullmatch(".*".join(map(re.escape, said.split("\0"))), word, re.DOTALL) is not None


def allowed(invocation: Invocation, name: str) -> set[Argument | bool]:
    """What a variable may be: a text, False where it is not passed on, None for anything."""
    ways = invocation.variables.get(name) or invocation.variables.get(ANY) or ABSENT
    return {one.text if one.present and one.exported else False for one in ways}


def number(words: Sequence[Argument]) -> str | None:
    """Which of the starts of a script this is."""
    for at, word in enumerate(words[:-1]):
        if word == "launch" and words[at + 1] is not None:
            return str(words[at + 1])
    return None


def judged(invocations: Sequence[Invocation], started: Started, names: Sequence[str]) -> Counter[str]:
    """How many facts about a start are definite and unknown; wrong if no invocation allows it."""
    said = [one for one in invocations if number(one.argv) == number(started.argv) and not one.perhaps]
    count: Counter[str] = Counter()
    fitting = []
    for one in said:
        at = list(one.argv).index("launch")
        perhaps = [word for two in invocations if two.perhaps and two.where == one.where for word in two.argv[1:]]
        if not fits(one.argv[at:], perhaps, started.argv):
            continue
        if all({started.environ.get(name, False), None} & allowed(one, name) for name in names) or not one.variables:
            fitting.append(one)
            whole = None not in one.argv and not any("\0" in word for word in one.argv if word) and not perhaps
            count["definite" if whole and len(said) == 1 else "unknown"] += 1
            for name in names:
                ways = set().union(*(allowed(two, name) for two in said))
                count["definite" if len(ways) == 1 and None not in ways else "unknown"] += 1
            break
    lost = any(one.reason or one.argv[:1] == (None,) for one in invocations)
    if not fitting:
        count["unknown" if lost else "wrong"] += len(names) + 1
    return count


def check(bash: Bash, seed: int, ways: Sequence[int] = range(CHANCES)) -> Counter[str]:
    """Hold one script against bash, on several ways through it."""
    text = Generator(seed).script()
    script = bash.prepare(text)
    invocations = read(bash.environ, script.relative_to(bash.work))
    total: Counter[str] = Counter()
    for way in ways if re.search(r"maybe|val", text) else (1,):
        found, errors = bash.run(way)
        assert not re.search(r"run.sh: line \d+: syntax error", errors), (seed, errors, text)
        if re.search("error token|division by 0|invalid indirect expansion", errors):
            # A mistake in an expression makes bash drop the rest of the line; no reader can foresee it.
            continue
        seen = {number(started.argv) for started in found}
        for started in found:
            count = judged(invocations, started, NAMES)
            assert not count["wrong"], (seed, way, started.argv, {n: started.environ.get(n) for n in NAMES}, text)
            total += count
        ended = re.search(r"line \d+:", errors)
        for one in invocations if way == 1 else ():
            # Every program succeeds on this way.
            if one.sure and one.argv[:1] == ("launch",) and not ended:
                assert number(one.argv) in seen, (seed, way, "not started", one.argv, errors, text)
    return total


@pytest.mark.parametrize("part", thinned([*range(6)], [0]))
def test_no_definite_answer_differs(
    part: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = Bash(tmp_path)
    monkeypatch.chdir(bash.work)
    thorough = request.config.getoption("--thorough")
    count, ways = (500, range(CHANCES)) if thorough else (50, range(2))
    total = sum((check(bash, seed, ways) for seed in range(part * count, (part + 1) * count)), Counter[str]())
    assert total["definite"] > total["unknown"]


def started_as_said(invocations: Sequence[Invocation], started: Started) -> str:
    """What is said of a start of a script of others: definite, unknown or wrong."""
    answers = set()
    for one in invocations:
        perhaps = [word for two in invocations if two.perhaps and two.where == one.where for word in two.argv[1:]]
        # An option whose value is not known stands in two words.
        pairs = zip(one.argv, (*one.argv, "")[1:], strict=True)
        argv = [f"{word}=\0" if word and word[:2] == "--" and after is None else word for word, after in pairs]
        if one.perhaps or not any(fits(way, perhaps, started.argv) for way in (one.argv, argv)):
            continue
        at = next((at for at, word in enumerate(one.argv) if word == "-m" or (word or "").endswith(".py")), 0)
        answers.add("unknown" if None in one.argv[at:] else "definite")
    lost = any(one.reason or one.argv[:1] == (None,) for one in invocations)
    return min(answers) if answers else "unknown" if lost else "wrong"


def test_scripts_of_verl(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = request.config.getoption("--verl-scripts")
    if tree is None:
        pytest.skip("needs --verl-scripts DIR")
    monkeypatch.chdir(tree)
    count, wrong = Counter[str](), []
    for at, script in enumerate(sorted(tree.rglob("*.sh"))):
        if script.relative_to(tree).parts[0] in {"scripts", "docker", ".github"}:
            continue
        folder = tmp_path / str(at)
        runs = [
            one
            for one in started_by(script, tree, folder)
            if "-m" in one.argv or any(".py" in word[-3:] for word in one.argv)
        ]
        invocations = read({"HOME": str(folder), "PATH": f"{folder}/bin"}, script) if runs else ()
        answers = [started_as_said(invocations, one) for one in runs]
        count[max(answers, default="nothing started")] += 1
        wrong += [script] if "wrong" in answers else []
    print(tree, dict(count))
    assert not wrong
    assert count["definite"] > 19 * count["unknown"]
