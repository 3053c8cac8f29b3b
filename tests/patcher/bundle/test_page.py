"""Every command line of docs/howto/bundle.md, with programs that stand for Slurm, Kubernetes and Docker.

A node is a folder of packages of its own, which the Python of that node finds by PYTHONPATH.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from tests.patcher.bundle.conftest import OLD_SOURCE, OLDER
from tests.patcher.cli.conftest import SOURCE, WORKER, release

PAGE = REPOSITORY / "docs/howto/bundle.md"
PROGRAMS = {
    "python3": f'exec {sys.executable} "$@"',
    "rlpatch": f'PYTHONPATH=$BUILD exec {sys.executable} -m patcher "$@"',
    "srun": """
        while [[ $1 == -* ]]; do shift; done
        worst=0
        for node in $NODES; do PYTHONPATH=$node "$@" || worst=$?; done
        exit $worst""",
    "kubectl": """
        case "$1 $2" in
            "get pods") for pod in $PODS; do echo pod/$pod; done ;;
            "create configmap") cp ${4#--from-file=} $MOUNTED/ ;;
            "exec -i") pod=${3#pod/}; shift 4; PYTHONPATH=$pod exec "$@" ;;
            *) exit 1 ;;
        esac""",
    "FROM": "true",
    "COPY": 'cp "$@"',
    "RUN": '"$@"',
}


class Lab:
    """A folder with programs, nodes and pods, in which the blocks of the page run one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name, text in PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        for name in ("shared", "mounted", "tmp", "work"):
            (folder / name).mkdir()
        self.site = release(folder / "opt/venv/lib/python3.11/site-packages")
        python = folder / "opt/venv/bin/python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/bash\nPYTHONPATH={self.site} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.nodes = [release(folder / f"node{number}") for number in range(2)]
        self.pods = [release(folder / f"pod{number}") for number in range(2)]
        subprocess.run(["git", "init", "-q", folder], check=True)
        old = release(folder / "old", OLDER, OLD_SOURCE)
        with zipfile.ZipFile(folder / "work" / f"vllm_ascend-{OLDER}-py3-none-any.whl", "w") as archive:
            for file in old.rglob("*"):
                archive.write(file, file.relative_to(old))
        (folder / "work/run_grpo.sh").write_text("echo $PYTHONPATH >> trained\n")
        self.environ = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": str(self.site),
            "BUILD": f"{self.site}:{releases.release('0.6.1', 'verl')}",
            "NODES": " ".join(map(str, self.nodes)),
            "PODS": " ".join(map(str, self.pods)),
            "MOUNTED": str(folder / "mounted"),
        }

    def run(self, block: str) -> str:
        """Stdout of the lines of a block, which succeed."""
        places = {"/opt": "opt", "/shared": "shared", "/tmp": "tmp", "/rlpatch": "mounted"}
        block = re.sub(r"(?<![\w.])/(?:opt|shared|tmp|rlpatch)(?=/)", lambda m: f"{self.folder}/{places[m[0]]}", block)
        work = self.folder / "work"
        done = subprocess.run(["bash", "-ec", block], cwd=work, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def patched(self, site: Path) -> bool:
        """Whether a tree is patched; one that is not is as it was."""
        text = (site / WORKER).read_text()
        assert "# >>> rlpatch" in text or text in (SOURCE, OLD_SOURCE)
        return text not in (SOURCE, OLD_SOURCE)


@pytest.mark.engine
def test_every_command_of_the_bundle_page_runs(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    text = PAGE.read_text()
    sections = dict(re.findall(r"^#+ (.*)\n((?:(?!^#).*\n?)*)", text, re.M))
    blocks = {name: re.findall(r"(?:^ {4}.*\n)+", part, re.M) for name, part in sections.items()}
    first, machine, steps, slurm, pods, image, alone = blocks.values()
    for block in first:
        lab.run(block)
    (tmp_path / "shared/patch.pyz").write_bytes((tmp_path / "work/patch.pyz").read_bytes())
    (block,) = machine
    assert "reverted" in lab.run(block)
    assert not lab.patched(lab.site)

    (block,) = steps
    lab.run(block)
    assert [lab.patched(node) for node in lab.nodes] == [True, True]
    lab.run(slurm[0])
    hosts = [json.loads(line) for line in (tmp_path / "work/status.jsonl").read_text().splitlines()]
    assert [host["result"]["targets"][0]["state"] for host in hosts] == ["patched", "patched"]
    assert [lab.patched(node) for node in lab.nodes] == [False, False]
    (lab.nodes[1] / WORKER).write_text("# of somebody else\n")
    lab.run(block)  # one cannot be patched: so none is
    assert not lab.patched(lab.nodes[0])
    (lab.nodes[1] / WORKER).write_text(SOURCE)
    lab.run(slurm[1])
    assert [lab.patched(node) for node in lab.nodes] == [True, True]
    assert (tmp_path / "work/trained").read_text().split() == list(map(str, lab.nodes))

    said = [json.loads(line) for line in lab.run(pods[0]).splitlines()]
    assert [one["result"]["targets"][0]["root"] for one in said] == list(map(str, lab.pods))
    assert [lab.patched(pod) for pod in lab.pods] == [True, True]
    lab.run(pods[1])
    assert lab.patched(lab.site)
    lab.run(f"python3 patch.pyz revert\n{image[0]}python3 patch.pyz revert")
    assert not lab.patched(lab.site)

    patch, git = alone
    lab.run(patch)
    assert lab.patched(lab.site)
    status = lab.run("rlpatch status; python3 patch.pyz status; python3 patch.pyz revert")
    assert status.count("patch found only by the marker comments in the files (was the folder .rlpatch removed?") == 2
    assert not lab.patched(lab.site)
    assert lab.run("cd /opt/venv/lib/python3.11/site-packages; git apply /shared/p.patch") == ""
    assert not lab.patched(lab.site)  # which is why the page says so
    lab.run(git)
    assert lab.patched(lab.site)
    lab.run("rlpatch revert")
    assert not lab.patched(lab.site)


def test_every_line_for_a_bundle_is_one_that_it_knows() -> None:
    from patcher.bundle import line
    from patcher.bundle.plans import Bundle

    parser = line._parser(Bundle("0.1", (), ()))
    words = re.findall(r"python3 \S*patch\.pyz ([^&|<>\n']*)", PAGE.read_text())
    assert len(words) >= 14
    for found in words:
        parser.parse_args(found.split())
