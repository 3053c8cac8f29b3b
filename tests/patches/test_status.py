"""Command that `status` prints for a patch: typed again, it makes the same bytes, for every stage and role."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures import releases
from patcher.config import WHOLE
from patches.projects import upstreams
from tests.matrix import thinned
from tests.patches.command_line import run

KNOWN = {upstream.project.name: upstream for upstream in upstreams()}
RELEASES = {"vllm-ascend": "0.11.0rc1", "vllm": "0.33.0", "sglang": "0.5.23", "verl": "0.9.1"}


def choices(name: str) -> Iterator[str]:
    """Each stage in each of its windows for each role, otherwise than by default."""
    stages = {recipe.stage: recipe for recipe in KNOWN[name].recipes if recipe.structure(RELEASES[name])}
    for stage, recipe in stages.items():
        if recipe.calls:
            yield "--builtin --level level2"
            continue
        if stage == "timeline":
            yield "--timeline --ranks 0,3"
            continue
        for role in recipe.roles if len(recipe.roles) > 1 else [""]:
            window = "" if recipe.windows[0] == WHOLE else f"--{recipe.windows[0]} 2:4 --warmup 0"
            yield f"--stage {stage} {window} {f'--role {role}' if role else ''} --ranks 0,3 --tool torch"


@pytest.mark.parametrize("name", thinned([*RELEASES], ["vllm-ascend"]))
def test_what_status_prints_typed_again_is_the_same_patch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the traces go
    site = tmp_path / "a site's"
    tree = releases.release(RELEASES[name], name)
    shutil.copytree(tree, site, ignore=lambda _folder, names: [one for one in names if one.endswith((".so", ".pyc"))])
    for choice in choices(name):
        run("apply", name, *choice.split(), "--path", site, "--force")
    patched = python_files(site)
    lines = [line.strip() for line in run("status", "--path", site).output.splitlines() if " rlpatch apply " in line]
    assert len(lines) == len([*choices(name)])
    run("revert", "--path", site)
    monkeypatch.chdir("/")  # what was typed here is said, too
    assert python_files(site) != patched
    for line in lines:
        command, *words = shlex.split(line)
        assert command == "rlpatch"
        run(*words, "--force")
    assert python_files(site) == patched


def python_files(site: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in site.rglob("*.py")}
