"""The command line on a copy of a release."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import marshal
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result

from fixtures import releases
from patcher import editing
from patcher.changes import markers
from patcher.cli import rlpatch
from patcher.config import WHOLE
from patcher.editing import insert
from patcher.recipe import Recipe, Upstream
from patcher.targets.target import Project
from tests.patcher.store.tree import OLD, age, picture

# What a fresh interpreter's import system hands out: the loader's code, without importing the package; a line a file.
LOAD = """
import importlib.machinery as m, os, sys
def names(code):
    yield from code.co_names + code.co_varnames
    for const in code.co_consts:
        if hasattr(const, "co_names"):
            yield from names(const)
for path in sys.argv[1:]:
    folder, name = os.path.split(path)
    name = name[:-3]
    finder = m.FileFinder(folder, (m.SourceFileLoader, m.SOURCE_SUFFIXES))
    print(*names(finder.find_spec(name).loader.get_code(name)))
"""

STALE = marshal.dumps(compile("", "stale.py", "exec"))
WINDOWS = {"decode": "30:60", "micro-batch": "2:6", "mini-batch": "0:1", "call": "0:1"}
RANGES = ("--markers", "--module-ranges", "--module-pattern", "Attention|MLP$")


_INSERTED: dict[tuple[object, ...], tuple[Recipe, bytes]] = {}
"""Input of `_insert` → recipe, of which the key has the id alone, and result."""


def _insert(source: bytes, recipe: Recipe, blocks: Sequence[editing.Block], tool: str, **options: Any) -> bytes:
    """Return what `editing.insert` does, of the same input only once: `diff` and `apply` of a test insert the same."""
    texts = tuple((patch, tuple(lines)) for patch, lines in blocks)
    key = (source, id(recipe), texts, tool, tuple(options["units"]))
    if key not in _INSERTED:
        after = insert(source, recipe, blocks, tool, **options)
        if len(_INSERTED) == 64:
            _INSERTED.clear()
        _INSERTED[key] = recipe, after
    return _INSERTED[key][1]


def run(*words: object, code: int = 0) -> Result:
    with mock.patch.object(editing, "insert", _insert):
        result = CliRunner().invoke(rlpatch, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def files(upstream: Upstream, version: str, stage: str, unit: str, *, markers: bool = False) -> list[str]:
    def counts(recipe: Recipe) -> bool:
        return unit in recipe.windows or (markers and unit in recipe.marks)

    recipes = [recipe for recipe in upstream.recipes if recipe.stage == stage and counts(recipe)]
    return [structure.file for recipe in recipes if (structure := recipe.structure(version))]


def install(upstream: Upstream, version: str, root: Path) -> Path:
    """A copy of a release with bytecode of other sources that must not survive: checked by Python, and never checked.

    Folders that no command looks into are left out, and modules in folders of which no file is ever patched: some
    releases have a hundred folders, and some folders a thousand modules.
    """
    published = releases.release(version, upstream.project.name)
    near = {published / file.rpartition("/")[0] for file in upstream.project.files}
    needed = _needed(published, upstream.project)

    def far(folder: str, names: list[str]) -> list[str]:
        folders = [name for name in names if (path := Path(folder, name)) not in needed and path.is_dir()]
        if Path(folder) in near or len(Path(folder).relative_to(published).parts) < 2:
            return folders
        return [*folders, *(name for name in names if name.endswith(".py") and name != "__init__.py")]

    shutil.copytree(published, root, ignore=far)
    for file in upstream.project.files:
        path = root / file
        if path.is_file():
            source = path.read_bytes()
            for level, header in (
                ("", _word(0b01) + importlib.util.source_hash(source)),
                ("1", _word(0) + _word(OLD // 10**9) + _word(len(source))),
            ):
                bytecode = Path(importlib.util.cache_from_source(str(path), optimization=level))
                bytecode.parent.mkdir(exist_ok=True)
                bytecode.write_bytes(importlib.util.MAGIC_NUMBER + header + STALE)
    age(root)
    return root


@functools.cache
def _needed(published: Path, project: Project) -> frozenset[Path]:
    """The folders with metadata, versions, configuration or files that are patched, and those above them."""
    files = [published / file for file in (*project.files, *project.version_files)]
    files += (published / project.package).rglob("*.yaml")
    metadata = [folder for suffix in ("dist-info", "egg-info") for folder in published.glob(f"*.{suffix}")]
    return frozenset(folder for path in files for folder in path.parents).union(metadata)


def _word(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")


def there_and_back(
    upstream: Upstream,
    version: str,
    stage: str,
    unit: str,
    root: Path,
    scratch: Path,
    *,
    settings: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    shape: str = "",
    warned: str = "",
) -> None:
    """``shape`` is the release whose structure an unknown version "" has; ``warned`` is what every warning says."""
    name = upstream.project.name
    patched = files(upstream, shape or version, stage, unit, markers="--markers" in options)
    word = f"{name}=={version}" if version else name
    before = {file: (root / file).read_bytes() for file in patched}
    pristine = picture(root)
    common = ("--path", root)
    window = () if unit == WHOLE else (f"--{unit}", WINDOWS[unit])
    capture = settings or (*window, "--stage", stage, *options, "--save-path", "/tmp/traces")

    planned = run("diff", name, *capture, *common).stdout_bytes
    assert picture(root) == pristine
    applied = run("apply", word, *capture, "--json", *common)
    (target,) = json.loads(applied.stdout)["result"]["targets"]
    assert [file["path"] for file in target["files"]] == patched
    assert target["version"] == version
    assert bool(target["warnings"]) == bool(warned)
    assert all(warned in text for text in target["warnings"])

    for file in patched:
        after = (root / file).read_bytes()
        compile(after, file, "exec")
        # What goes in behind a last line that has no end begins with that end.
        ended = (data if data.endswith(b"\n") else data + b"\n" for data in (before[file], after))
        old, new = (data.splitlines(keepends=True) for data in ended)
        kinds = {kind for kind, *_ in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()}
        # The lines that an argument had are in the comments above the new one.
        assert kinds <= ({"equal", "insert", "replace"} if settings else {"equal", "insert"})
        assert markers.strip(after) == before[file]
    ours = "lpatch" if stage in ("timeline", "weight-sync") else f"_rlpatch_{stage.replace('-', '_')}"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", LOAD, *(root / file for file in patched[:2])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [("Level2" if settings else ours) in names for names in loaded.stdout.splitlines()] == [True] * len(
        patched[:2]
    )

    diff = run("diff", *common).stdout_bytes
    assert diff == planned
    copy = scratch / "copy"
    for file in patched:
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        (copy / file).write_bytes(before[file])
    subprocess.run(["git", "apply", "-"], input=diff, cwd=copy, check=True)
    assert all((copy / file).read_bytes() == (root / file).read_bytes() for file in patched)

    states = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert [(s["version"], [f["state"] for f in s["files"]]) for s in states] == [(version, ["intact"] * len(patched))]

    run("revert", *common)
    assert picture(root) == pristine


WINDOWED = (
    "rollout", "update-policy", "compute-log-prob", "update-critic", "compute-values", "weight-sync", "graph-capture",
)  # fmt: skip


def windows_of(upstream: Upstream, release: str) -> list[tuple[str, str]]:
    """Stage and first window of each recipe that fits the release and opens windows, each once."""
    fitting = (recipe for recipe in upstream.recipes if any(release in kind.releases for kind in recipe.structures))
    return [*dict.fromkeys((recipe.stage, recipe.windows[0]) for recipe in fitting if recipe.stage in WINDOWED)]


def ends_of_structures(upstreams: Iterable[Upstream]) -> list[tuple[Upstream, str]]:
    """The first and the last release of each structure, target by target, in the order of the releases."""
    cases = []
    for upstream in upstreams:
        structures = [structure for recipe in upstream.recipes for structure in recipe.structures]
        kept = {structure.releases[end] for structure in structures for end in (0, -1)}
        cases += [(upstream, release) for release in upstream.releases if release in kept]
    return cases
