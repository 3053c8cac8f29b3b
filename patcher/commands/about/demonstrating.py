"""``demo``: the main job on a copy of a real release, from `apply` to `revert`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patcher.commands.finding import SearchOptions, parse_target
from patcher.messages import CommandLine, Kind, Problem, Text
from patcher.messages.report import OMIT_NONE, CommandResult, StepResult
from patches.survey.download import download

RELEASE = "vllm-ascend==0.11.0rc1"
"""Target of the demo unless the user has another release at hand: the release of the guides."""

WINDOW = ("--decode", "30:60")
COPY = "site"
_LARGEST = 1_000_000  # no source is larger, and libraries of kernels are never patched


@dataclass(frozen=True)
class Step:
    """Command line that the demo ran, with its exit code and all that it printed."""

    command: str
    exit_code: int
    output: str


@dataclass(frozen=True)
class Demonstration:
    """Result of `demo`; `hashes` maps "before", "patched" and "after" to the tree's hash; None if a command failed."""

    steps: tuple[Step, ...]
    release: str
    hashes: dict[str, str] | None = field(default=None, metadata=OMIT_NONE)


def demo(path: Path | None, on_wait: Callable[[str], None], *, every_line: bool = False) -> CommandResult:
    """Apply, show and revert a patch in a scratch copy of a release, and return the output of each command.

    The release is `RELEASE`, downloaded, or the installation below `path`. The diff shows only call sites unless
    `every_line`. A command that fails, or a tree that differs afterwards, is a problem of the result. Raises Problem if
    `path` has no such installation, or if the download fails.
    """
    steps: list[Step] = []
    problems: tuple[Problem, ...] = ()
    with tempfile.TemporaryDirectory(prefix="rlpatch_demo_") as scratch:
        site = Path(scratch) / COPY
        word = _fetch(path, site, on_wait)
        hashes = {"before": _hash(site)}
        copied = Text("{release} was copied to {folder}; hash of the copy: {hash}")
        lines = [copied.filled(release=word, folder=site, hash=hashes["before"]), ""]
        for words in (
            ("apply", word, *WINDOW, "--path", COPY),
            ("diff", *(() if every_line else ("--calls",)), "--path", COPY),
            ("status", "--path", COPY),
            ("revert", "--path", COPY),
        ):
            done, typed = _run_rlpatch(words, Path(scratch)), CommandLine(*words)
            steps.append(Step(typed, done.returncode, done.stdout))
            lines += [f"$ {typed}", *done.stdout.splitlines(), ""]
            if done.returncode:
                kind = next((kind for kind in Kind if kind.exit_code == done.returncode), Kind.UNEXPECTED)
                cause = Text("`{command}` ended with exit code {exit_code}", command=typed, exit_code=done.returncode)
                hint = Text("do what the message above says, then run the demo again")
                step = StepResult(tuple(lines), problems=(Problem(kind, cause, str(site), hint),))
                return CommandResult("demo", step, data=Demonstration(tuple(steps), word))
            if "--calls" in words:
                every = Text(
                    "`{demo_command}` shows every inserted line of the demo, and `{diff_command}` those of your own"
                    " patch."
                )
                lines += [every.filled(demo_command=CommandLine("demo", "-v"), diff_command=CommandLine("diff")), ""]
            if words[0] == "apply":
                hashes["patched"] = _hash(site)
                lines += [Text("The copy now has the hash {hash}.", hashes["patched"]), ""]
        hashes["after"] = _hash(site)
    if hashes["after"] == hashes["before"]:
        same = Text(
            "The copy has its original hash {hash} again: every byte, mode and time is the same as before the patch."
        )
        lines.append(same.filled(hashes["after"]))
    else:
        cause = Text(
            "after patch and revert, the copy of the release is not the same as before: its hash is {hash}",
            hashes["after"],
        )
        hint = Text("please report this as a bug of rlpatch, with the whole output")
        problems = (Problem(Kind.UNEXPECTED, cause, str(site), hint),)
    data = Demonstration(tuple(steps), word, hashes)
    return CommandResult("demo", StepResult(tuple(lines), problems=problems), data=data)


def _fetch(path: Path | None, site: Path, on_wait: Callable[[str], None]) -> str:
    """Fill the folder `site` with the Python package to patch and its metadata, and return its `TARGET==VERSION`.

    They are copied from the installation below `path`, in any version; None downloads the release `RELEASE`.
    """
    upstream, version = parse_target(RELEASE)
    if path is None:
        on_wait(Text("downloading {release} …", RELEASE))
        site.mkdir()
        names = upstream.project.distributions
        try:
            download(names, version or "", site, prefixes=(), keep=lambda _path, size: size <= _LARGEST)
        except Problem as problem:
            hint = Text("run the demo on an installed or unpacked package: rlpatch demo --path DIR")
            raise problem.replace(where="", hint=hint) from None
        return RELEASE
    _, target = SearchOptions(path=(path,)).find(upstream.project.name, "demo")
    heads = [target.root / target.project.package]
    for name in target.project.distributions:  # the metadata, which has the version
        heads += target.root.glob(f"{name.replace('-', '_')}-*.dist-info")
    skipped = shutil.ignore_patterns("*.so", "__pycache__")
    for head in heads:
        shutil.copytree(head, site / head.name, ignore=skipped)
    return f"{target.project.name}=={target.version}"


def _run_rlpatch(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run rlpatch with the arguments `words` in `folder`; `stdout` of the result has stderr, too."""
    packages = str(Path(__file__).resolve().parents[3])  # where neither is installed: in a clone
    environ = {**os.environ, "PYTHONPATH": packages, "PYTHONIOENCODING": "utf-8:backslashreplace"}
    command = [sys.executable, "-m", "patcher", *words]
    return subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    )


def _hash(tree: Path) -> str:
    """Return 16 hex digits of a SHA-256 of the relative paths, modes, modification times and contents in `tree`."""
    state = hashlib.sha256()
    for path in [tree, *sorted(tree.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        state.update(repr((str(path.relative_to(tree)), status.st_mode, status.st_mtime_ns, content)).encode())
    return state.hexdigest()[:16]
