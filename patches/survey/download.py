"""A release as published: downloaded by pip, unpacked, never built and never imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from patcher.messages import Kind, Problem

Wanted = Callable[[str, int], bool]
"""Predicate that tells whether a file, by its path relative to the root and its size, is wanted."""

# Wheels of any glibc do: the files are read, not run. Naming a platform lets a machine of another kind read them, too.
_GLIBC = ("2_35", "2_34", "2_31", "2_28", "2_24", "2_17", "2014", "1")
_NAMES = tuple(f"manylinux{'_' if '_' in glibc else ''}{glibc}" for glibc in _GLIBC)
_WHEEL = (
    *("--no-deps", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp"),
    *(f"--platform={name}_{machine}" for name in _NAMES for machine in ("x86_64", "aarch64")),
)


# Where wheels lay that which an installation puts beside their metadata.
_SITE = r"^[^/]+\.data/(purelib|platlib)/"


def download(
    distributions: Sequence[str], version: str, folder: Path, *, prefixes: Sequence[str], keep: Wanted
) -> None:
    """Fill `folder` with the files of a release that `keep` accepts and whose path begins with one of `prefixes`.

    Without prefixes, any path will do. The first of `distributions` that has the release is taken, as a wheel if there
    is one, else as a source archive. Where the index serves ranges, only the files of a wheel below `prefixes` and up
    to 1 MB are fetched, and `keep` is not asked. Raises Problem (ENVIRONMENT) if none can be downloaded.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        here, output = Path(scratch), ""
        for name in distributions:
            if prefixes and _fetch_members(name, version, folder, prefixes):
                return
            for unpack in (_unpack_wheel, _unpack_sdist):
                output = unpack(
                    name, version, here, folder, lambda path, size: _has_prefix(path, prefixes) and keep(path, size)
                )
                if not output:
                    return
    raise _unavailable(distributions[0], version, output)


def published_versions(distribution: str) -> tuple[str, ...]:
    """Return every version of a distribution on the package index, pre-releases included.

    Raises Problem (ENVIRONMENT) if no index answers or has it: pip does not distinguish these.
    """
    command = [_python_with_pip(), "-m", "pip", "index", "versions", "--pre", "--retries=2", distribution]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        head, _, versions = line.partition("Available versions: ")
        if not head and versions:
            return tuple(versions.split(", "))
    hint = f"run this command to see pip's error: {' '.join(['python', *command[1:]])}"
    raise Problem(Kind.ENVIRONMENT, f"no package index answers, or no index has {distribution}", hint=hint)


def _has_prefix(path: str, prefixes: Sequence[str]) -> bool:
    """Tell whether a path begins with one of `prefixes`; always if there are none."""
    return not prefixes or path.startswith(tuple(prefixes))


def _unpack_wheel(name: str, version: str, scratch: Path, folder: Path, keep: Wanted) -> str:
    """Download a wheel into `scratch` and unpack the files that `keep` accepts into `folder`.

    Return "" on success, else pip's error output, or "no wheel" if pip wrote none.
    """
    done = _pip_download([*_WHEEL, "--dest", str(scratch), f"{name}=={version}"], scratch)
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        return done.stderr or "no wheel"
    with zipfile.ZipFile(wheels[0]) as archive:
        for item in archive.infolist():
            item.filename = re.sub(_SITE, "", item.filename)
            if not item.is_dir() and keep(item.filename, item.file_size):
                archive.extract(item, folder)
    return ""


def _fetch_members(name: str, version: str, folder: Path, prefixes: Sequence[str]) -> bool:
    """Fetch into `folder` only the files of a wheel below `prefixes` and up to 1 MB, if the index serves ranges.

    The wheel is that of release `version` of the distribution `name`. Return whether that worked; if not, `folder` may
    have some of the files. Without `prefixes`, nothing is fetched. Raises Problem (ENVIRONMENT) if no interpreter has
    pip.
    """
    # A wheel is a zip archive: an index that serves ranges gives its directory and a few members in 1 MB of 400.
    words = [f"{name}=={version}", str(folder), " ".join(prefixes), _SITE, *_WHEEL]
    return not subprocess.run([_python_with_pip(), "-c", _RANGES, *words], capture_output=True).returncode


# As pip itself reads the metadata of a wheel with --use-feature=fast-deps.
_RANGES = """
import re, sys, zipfile
from pip._internal.cli.cmdoptions import make_target_python
from pip._internal.commands import create_command
from pip._internal.network.lazy_wheel import LazyZipOverHTTP
from pip._vendor.packaging.requirements import Requirement
wanted, folder, parts, site, *target = sys.argv[1:]
command = create_command("download")
options, _ = command.parse_args(target)
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session, make_target_python(options))
    requirement = Requirement(wanted)
    wheel = finder.find_best_candidate(requirement.name, requirement.specifier).best_candidate
    with zipfile.ZipFile(LazyZipOverHTTP(wheel.link.url, session)) as archive:
        for item in archive.infolist():
            item.filename = re.sub(site, "", item.filename)
            if item.filename.startswith(tuple(parts.split())) and item.file_size <= 1_000_000:
                archive.extract(item, folder)
"""


def _unpack_sdist(name: str, version: str, scratch: Path, folder: Path, keep: Wanted) -> str:
    """Download a source archive into `scratch` and copy the files that `keep` accepts into `folder`, building nothing.

    Return "" on success, else pip's error output, or "no source archive" if pip wrote none.
    """
    # pip has no "download, but do not ask the project's build for its metadata", and that build wants torch.
    # A setuptools that refuses makes the step fail before upstream code runs; --no-clean leaves the unpacked
    # archive.
    refusal = scratch / "refusal"
    refusal.mkdir(exist_ok=True)
    (refusal / "setuptools.py").write_text("raise ImportError('only the sources are wanted')\n")
    target = ["--no-clean", "--no-build-isolation", f"--no-binary={name}", "--dest", str(scratch)]
    done = _pip_download([*target, f"{name}=={version}"], scratch, PYTHONPATH=str(refusal))
    trees = [path.parent for path in scratch.glob("pip-*/*/PKG-INFO")]
    if len(trees) != 1:
        return done.stderr or "no source archive"
    for path in (path for path in trees[0].rglob("*") if path.is_file() and not path.is_symlink()):
        inside = path.relative_to(trees[0]).as_posix()
        if keep(inside, path.stat().st_size):
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / inside)
    return ""


def _python_with_pip() -> str:
    """Return the path of an interpreter that has pip: this one, or a python3 on PATH, as uv environments lack pip.

    Raises Problem (ENVIRONMENT) if there is none.
    """
    if _pip_is_here():
        return sys.executable
    for interpreter in filter(None, (shutil.which("python3", path=folder) for folder in os.get_exec_path())):
        if not subprocess.run([interpreter, "-c", "import pip"], capture_output=True).returncode:
            return interpreter
    cause = "pip, which downloads the release, is neither beside rlpatch nor beside a python3 on PATH"
    raise Problem(Kind.ENVIRONMENT, cause, hint="uv pip install pip, or uvx --with pip …")


def _pip_is_here() -> bool:
    # Not by importlib's find_spec: setuptools takes the search for the start of pip, and changes its distutils for it.
    return PathFinder.find_spec("pip") is not None


def _pip_download(arguments: Sequence[str], scratch: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [_python_with_pip(), "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--retries=2", *arguments]
    environment = {**os.environ, "TMPDIR": str(scratch), **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def _unavailable(name: str, version: str, pip_output: str) -> Problem:
    """Return the problem that a release cannot be downloaded, with the last two errors (or lines) of `pip_output`."""
    errors = [line for line in pip_output.splitlines() if line.startswith("ERROR")]
    nothing = "(from versions: none)" in pip_output
    cause = "no package index answers, or no index has this release" if nothing else "pip download failed"
    return Problem(
        Kind.ENVIRONMENT,
        f"{name} {version} cannot be downloaded: {cause}",
        notes=tuple((errors or pip_output.splitlines())[-2:]),
        hint=f"try the download yourself: {Path(sys.executable).name} -m pip download --no-deps {name}=={version};"
        f" or unpack it yourself and name the folder: {name}=={version} --path DIR",
    )
