"""Eight processes apply and revert stages of one target at random, and some of them are killed on the way.

Run as a program with the library of ``fixtures.faults`` preloaded: ``races.py FOLDER SEED ROUNDS [lockless] [kills]``.
In a round each process runs a few commands, each in a process of its own. After each round the state must be one
that ``status`` describes truthfully. On stdout: a line for each loss, and last how much was seen.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # it is run by its path

from fixtures import faults
from patcher.changes import markers
from tests.patcher.reliability import package
from tests.patcher.reliability.faulty import SECOND, apply, command, forked, second, warm
from tests.patcher.reliability.package import V0, V1, Picture

PROCESSES, COMMANDS_EACH = 8, 4
WORK = {
    "apply 30:60": apply("30:60"),
    "apply 10:20": apply("10:20"),
    "second stage": second,
    "revert": command("revert"),
    "revert rollout": command("revert", "--stage", "rollout"),
    "revert second": command("revert", "--stage", SECOND.stage),
    "status": command("status", "--json"),
    "recover": command("recover"),
}
# 2: no such stage is applied (any more); 4: the file has changed since it was looked at, run the command again.
# `status` ends with 10 in the middle of a command, and must say that it is in the middle of one.
ANSWERS = {0, 2, 4}


def process(site: Path, said: Path, seed: str, kills: bool) -> None:
    """Run a few commands at random; a line of JSON for each goes to ``said``: name, exit code, what it printed."""
    chance = random.Random(seed)
    for turn in range(COMMANDS_EACH):
        name = chance.choice([*WORK])
        point = chance.randrange(80) if kills and chance.random() < 0.5 else -1
        output = said.with_suffix(f".{turn}")
        code = forked(WORK[name], site, output, lambda: faults.arm([site], point))  # noqa: B023  (called at once)
        with said.open("a") as stream:
            stream.write(json.dumps([name, code, output.read_text()]) + "\n")


def race(site: Path, folder: Path, seed: str, kills: bool) -> list[tuple[str, int, str]]:
    """Let all processes run at once; gives what their commands did."""
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            process(site, folder / f"{number}", f"{seed} {number}", kills)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    done = []
    for number in range(PROCESSES):
        lines = (folder / f"{number}").read_text().splitlines()
        done += [tuple(json.loads(line)) for line in lines]
        (folder / f"{number}").unlink()
    return done


def untrue(site: Path, said: Path, original: Picture) -> list[str]:
    """What ``status`` says that is not so, and what is there that it does not say; nothing is running."""
    if forked(command("status", "--json"), site, said) != 0:
        return [said.read_text()]
    patches = json.loads(said.read_text())["result"]["patches"]
    claimed = {(one["stage"], file["path"]): file["state"] for one in patches for file in one["files"]}
    there = set()
    wrong = []
    for path in (V0, V1):
        data = (site / path).read_bytes()
        there |= {(found.patch.stage, path) for found in markers.marked(data) if found.intact}
        if markers.strip(data) != original.held[path][1]:
            wrong.append(f"{path} has lost bytes")
    states = dict.fromkeys(there, "intact")
    return wrong + ([] if claimed == states else [f"status says {claimed}, there is {states}"])


def main(folder: Path, seed: str, rounds: int, *options: str) -> None:
    """Race ``rounds`` times, each from where the last has ended, and revert at the end."""
    warm(folder)
    if "lockless" in options:
        faults.without_locks()
    site, said = package.install(folder / "site"), folder / "said"
    original, seen = Picture(site), Counter[str]()
    for turn in range(rounds):
        done = race(site, folder, f"{seed} {turn}", "kills" in options)
        for name, code, text in done:
            seen["commands"] += 1
            seen["killed"] += code == -9
            seen["conflicts"] += code == 4
            seen["waits"] += len(re.findall(r"^waiting for process \d+ on host .+ \(.+\)$", text, re.MULTILINE))
            interrupted = code == 10 and "was interrupted or is still running" in text
            if code not in ANSWERS | ({-9} if "kills" in options else set()) and not interrupted:
                print(f"round {turn}: {name} ended with {code}: {text[-400:]}")
        if forked(command("recover"), site, said) != 0:
            print(f"round {turn}: recover: {said.read_text()}")
        for loss in untrue(site, said, original):
            print(f"round {turn}: {loss}")
    if forked(command("revert"), site, said) != 0:
        print(f"the last revert: {said.read_text()}")
    for name in original.differences(Picture(site)):
        print(f"the last revert is not exact: {name}")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
