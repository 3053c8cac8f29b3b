"""Files outside of the store that anybody may have written: whatever stands in them, a command ends as is documented."""

from __future__ import annotations

import gzip
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from patcher.messages.errors import Kind
from patcher.store.filesystem.rights import PathState
from patcher.store.registry import Journal, Move, text_of
from tests.alarms import at_most
from tests.patcher.cli.conftest import release
from tests.patcher.reliability.package import WINDOW, invoked
from tests.patcher.store.tree import picture
from tests.patcher.traces.recorded import steps
from tests.patcher.workers.maker import Saved

DOCUMENTED = {0, *(kind.exit_code for kind in Kind)} - {Kind.UNEXPECTED.exit_code}
PIECES = (
    b"", b"\0", b"null", b"true", b"1e999", b"NaN", b"-1", b"-0.5", b"9" * 40, b"[" * 5_000, b'{"a":' * 2_000, b'"', b"\\", b"{}",
    b"[]", b"\xff\xfe", b"\n", b" " * 10_000, b"\\u0000", b"\\ud800", b"x" * 100_000, b"../../etc/passwd", b"\x1b[2J",
)  # fmt: skip


class Files(NamedTuple):
    """Files of one form, and the command lines that read them."""

    paths: list[Path]
    commands: list[tuple[object, ...]]
    made: Path | None = None
    """The file that the command writes, where it writes one."""


def traces(folder: Path, path: Path) -> Files:
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return Files(files, [("report", path), ("compare", path, path, "--force"), ("traces", folder)])


def packed(folder: Path) -> Files:
    plain = steps().torch(folder / "t.json")
    path = folder / "t.json.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return traces(folder, path)


def beside(folder: Path) -> Files:
    trace = Saved(folder).trace()
    facts = trace.with_name(f"{trace.name}.rlpatch.json")
    return Files([facts], [("traces", folder), ("report", trace), ("watch", folder, "--once")])


def states(folder: Path) -> Files:
    saved = Saved(folder)
    files = [saved.state(), saved.state(on_demand=True, request="abc123"), saved.request()]
    return Files(
        files, [("watch", folder, "--once"), ("trigger", "--decode", "1:2", "--save-path", folder, "--dry-run")]
    )


def launches(folder: Path) -> Files:
    release(folder / "site")
    script, config = folder / "run.sh", folder / "mine.yaml"
    script.write_text(
        'set -e\nA=(--port 1)\nexport PROFILING_MODE=true\nif x; then f; fi\nvllm serve m "${A[@]}" <<EOF\nx\nEOF\n'
    )
    config.write_text("defaults:\n  - ppo_trainer\n  - _self_\nglobal_profiler:\n  steps: [1, 2]\n  tool: npu\n")
    check = ("check", "--path", folder / "site", "--script", script)
    return Files([script, config], [(*check, "vllm-ascend"), (*check, "verl", "--config", config)])


def receipts(folder: Path) -> Files:
    """What the processes of a run leave, as the command of the run writes it."""
    site, left = release(folder / "site"), folder / "left"
    (left / "receipts").mkdir(parents=True)
    files = [left / "started", left / "ray", left / "receipts" / "123-0-patched", left / "receipts" / "124-0-elsewhere"]
    for file, text in zip(files, (f"123 {sys.prefix}\n", "1", "/a.py", "/b.py"), strict=True):
        file.write_text(text)
    command = ("sh", "-c", f'cp -r {left}/. "${{RLPATCH_RUN%/*}}"')
    return Files(files, [("run", "vllm-ascend", "--path", site, *WINDOW, "--", *command)])


def stores(folder: Path) -> Files:
    site = release(folder / "site")
    assert invoked("apply", "vllm-ascend", "--path", site, *WINDOW).exit_code == 0
    store = site / ".rlpatch"
    left = [Move("vllm_ascend/worker/worker_v1.py", *(PathState("0" * 64, None, 0o644, 0, 0, 1, 1),) * 2)]
    (store / "journal.json").write_bytes(text_of(Journal("x", (str(site),), 0, tuple(left), {}, {}, empties=True)))
    looks = [("status",), ("diff",), ("revert", "--dry-run"), ("apply", "vllm-ascend", *WINDOW, "--dry-run")]
    return Files([store / "state.json", store / "journal.json"], [(*words, "--path", site) for words in looks])


def bundles(folder: Path) -> Files:
    """A file that the next bundle takes the place of, if it is one."""
    file = folder / "patch.pyz"
    words = ("bundle", "vllm-ascend", "--path", release(folder / "site"), *WINDOW, "-o", file)
    assert invoked(*words).exit_code == 0
    return Files([file], [words], made=file)


FORMS: dict[str, Callable[[Path], Files]] = {
    "trace of torch": lambda folder: traces(folder, steps().torch(folder / "t.json")),
    "packed trace": packed,
    "text of torch_npu": lambda folder: traces(folder, steps().text(folder)),
    "database of torch_npu": lambda folder: traces(folder, steps().db(folder)),
    "facts": beside,
    "states and requests": states,
    "scripts and configurations": launches,
    "receipts of a run": receipts,
    "registries and journals": stores,
    "bundles": bundles,
}


def changed(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few places that are cut, repeated, flipped, or that hold something else."""
    for _ in range(chance.randint(1, 3)):
        numbers = [found.span() for found in re.finditer(rb"-?\d+(?:\.\d+)?", data)]
        begin = chance.randint(0, len(data))
        end = min(begin + chance.choice((0, 1, 8, 200)), len(data))
        if numbers and chance.random() < 0.4:
            begin, end = chance.choice(numbers)
        what = chance.randint(0, 3)
        if what == 0:
            data = data[:begin]
        elif what == 1:
            data = data[:end] + data[begin:end] * 3 + data[end:]
        elif what == 2 and begin < len(data):
            data = data[:begin] + bytes([data[begin] ^ 1 << chance.randint(0, 7)]) + data[begin + 1 :]
        else:
            data = data[:begin] + chance.choice(PIECES) + data[end:]
    return data


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "turns" in metafunc.fixturenames:
        count, share = (2_000, 100) if metafunc.config.getoption("--thorough", default=False) else (6, 6)
        metafunc.parametrize("turns", [range(first, first + share) for first in range(0, count, share)], ids=str)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_stands_in_a_file_a_command_ends_as_documented(
    form: str, turns: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, scratch = tmp_path / "given", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    files = FORMS[form](folder)
    whole = {path: path.read_bytes() for path in files.paths}
    for turn in turns:
        chance = random.Random(f"{form} {turn}")
        for path, data in whole.items():
            path.write_bytes(data)
        path = chance.choice(files.paths)
        packed_inside = path.suffix == ".gz" and chance.random() < 0.7
        inner = changed(gzip.decompress(whole[path]) if packed_inside else whole[path], chance)
        path.write_bytes(gzip.compress(inner) if packed_inside else inner)
        before = picture(folder, root_time=not files.made)
        for words in files.commands:
            began = time.process_time()
            with at_most(30):
                result = invoked(*words)
            assert time.process_time() - began < 5, (turn, words)
            assert result.exit_code in DOCUMENTED, (turn, path.name, words, result.output, result.exception)
            assert "Traceback" not in result.output
            assert "\x1b[2J" not in result.output
        after = picture(folder, root_time=not files.made)
        if files.made:
            for seen in (before, after):
                seen.pop(str(files.made.relative_to(folder)))
        assert after == before, turn
        assert list(scratch.iterdir()) == [], turn
