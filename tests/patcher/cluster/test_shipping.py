"""What a node runs comes out of an archive, in an environment that has neither rlpatch nor LibCST."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fixtures.cache import REPOSITORY
from patcher.cluster import actor
from patcher.cluster.shipping import archive
from tests.patcher.cli.conftest import WORKER, release

NODE = """
import json, pickle, sys
for name in ("libcst", "git", "rich", "tree_sitter", "tree_sitter_bash"):
    sys.modules[name] = None
sys.path[:] = [entry for entry in sys.path if entry not in ("", {repository!r})]
names = {{"__name__": "actor"}}
exec(open({actor!r}).read(), names)
node = names["NodeActor"](open({archive!r}, "rb").read(), {{"path": {site!r}, "python": None, "option": " --ray"}}, ["rlpatch", "status"])
def ask(question, *arguments):
    value, problem = pickle.loads(node.answer(pickle.dumps((question, arguments))))
    if problem:
        raise problem
    return value
survey = ask("survey", ["vllm-ascend"], "apply", {{}})
import patcher
print(json.dumps([patcher.__file__, survey.asked["vllm-ascend"].version, sorted(survey.files), ask("status", []).lines,
                  ask("check", ["vllm-ascend"]).lines[0]]))
"""


def test_a_node_needs_nothing_but_the_archive(tmp_path: Path) -> None:
    site = release(tmp_path / "site")
    (tmp_path / "archive").write_bytes(archive())
    code = NODE.format(
        repository=str(REPOSITORY), actor=actor.__file__, archive=str(tmp_path / "archive"), site=str(site)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file, version, files, status, check = json.loads(done.stdout)
    assert file.startswith("/proc/self/fd/")
    assert version == "0.11.0rc1"
    assert str(site / WORKER) in files
    assert "nothing is patched" in status[0]
    assert check == "vllm-ascend 0.11.0rc1"


def test_the_archive_is_small_and_has_no_bytecode() -> None:
    packed = archive()
    assert len(packed) < 600_000
    assert b"__pycache__" not in packed
