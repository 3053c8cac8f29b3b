"""Marks that do not pair, and no store that knows what they were: every command says so, and says the same."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher.messages.errors import Kind
from tests.patcher.cli.conftest import release
from tests.patcher.reliability.package import invoked

OPENING, CLOSING = rb"[ \t]*# >>> rlpatch [^\n]*\n", rb"[ \t]*# <<< rlpatch [^\n]*\n"


def without(pattern: bytes, becomes: bytes = b"") -> Callable[[bytes], bytes]:
    return lambda data: re.sub(pattern, becomes, data, count=1, flags=re.DOTALL)


DAMAGED = {
    "an opening mark that was cut": without(OPENING, b"# >>> rlpatc\n"),
    "an opening mark without its digest": without(rb"(# >>> rlpatch \S+ \S+ \S+) [0-9a-f]{16}", rb"\1"),
    "no opening mark": without(OPENING),
    "a closing mark that was cut": without(CLOSING, b"# <<< rlpat\n"),
    "no closing mark": without(CLOSING),
    "call marks alone": without(rb"[ \t]*# >>> rlpatch .*?# <<< rlpatch [^\n]*\n"),
    "neither mark": lambda data: without(OPENING)(without(CLOSING)(data)),
}
COMMANDS = ("status", "diff", "revert", "recover", "apply")


def result(command: str, site: Path) -> tuple[int, str]:
    words = ("vllm-ascend", "--decode", "30:60") if command == "apply" else ()
    found = invoked(command, *words, "--path", site)
    return found.exit_code, found.stderr


@pytest.mark.parametrize("name", DAMAGED)
def test_every_command_sees_marks_that_do_not_pair(name: str, tmp_path: Path) -> None:
    site = release(tmp_path / "site")
    assert invoked("apply", "vllm-ascend", "--path", site, "--decode", "30:60").exit_code == 0
    shutil.rmtree(site / ".rlpatch")
    file = site / "vllm_ascend" / "worker" / "worker_v1.py"
    file.write_bytes(DAMAGED[name](file.read_bytes()))
    before = file.read_bytes()
    results = [result(command, site) for command in COMMANDS]
    assert len(set(results)) == 1, results
    ((code, said), *_) = results
    assert code == Kind.FOREIGN_EDIT.exit_code
    assert re.search(rf"{re.escape(str(file))}:\d+\n", said)
    assert (
        "reinstall the package (pip install --force-reinstall --no-deps), or restore the file (git checkout)"
        in " ".join(said.split())
    )
    assert file.read_bytes() == before


def test_marks_of_another_target_are_not_asked_for(tmp_path: Path) -> None:
    site = release(tmp_path / "site")
    assert invoked("apply", "vllm-ascend", "--path", site, "--decode", "30:60").exit_code == 0
    shutil.rmtree(site / ".rlpatch")
    file = site / "vllm_ascend" / "worker" / "worker_v1.py"
    file.write_bytes(without(OPENING)(file.read_bytes()))
    assert invoked("status", "verl", "--path", site).exit_code == 0


def test_a_comment_that_looks_like_a_mark_is_none(tmp_path: Path) -> None:
    site = release(tmp_path / "site")
    file = site / "vllm_ascend" / "worker" / "worker_v1.py"
    file.write_bytes(file.read_bytes() + b"x = 1  # rlpatch: see issue\n# <<< rlpatch vllm-ascend rollout\n")
    for command in ("status", "diff", "revert", "recover"):
        assert result(command, site)[0] == 0
