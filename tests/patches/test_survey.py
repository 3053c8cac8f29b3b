"""A new release is one command and one entry: what the survey says, and that everything follows from the entry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from packaging.version import Version

from fixtures import releases
from fixtures.cache import REPOSITORY
from patcher.messages.errors import Kind, Problem
from patches.projects import projects, upstream
from patches.survey import fits, readme
from patches.survey.__main__ import main
from tests.matrix import MATRIX, thinned_rows
from tests.patches.surveys import run

ASCEND = ("vllm-ascend", "0.30.0rc2")
INIT = "patches/vllm_ascend/__init__.py"


def survey(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


def forget(folder: Path, release: str) -> None:
    text = (folder / INIT).read_text()
    assert text.count(f', "{release}"') == 1
    (folder / INIT).write_text(text.replace(f', "{release}"', ""))


def listed(folder: Path) -> set[str]:
    rows = json.loads(run(folder, "patcher", "list", "--json"))["result"]["targets"]
    return {row["recipe"] for row in rows if ASCEND[1] in row["releases"]}


def to_add(said: str) -> list[str]:
    return [line.strip() for line in said.partition("to add:\n")[2].partition("\n\n")[0].splitlines()]


KNOWN = (
    ("vllm-ascend", "0.30.0rc2", 7),
    ("vllm-ascend", "0.9.1", 7),
    ("verl", "0.6.1", 40),
    ("verl", "0.9.1", 69),
    ("sglang", "0.5.23", 13),
)


@pytest.mark.parametrize(
    ("project", "version", "fits"),
    thinned_rows(KNOWN, KNOWN[:1]),
)
def test_a_release_that_is_known_has_all_that_the_recipes_say(project: str, version: str, fits: int) -> None:
    said = survey(project, "--path", releases.release(version, project)).stdout
    assert said.startswith(f"{project} {version}: a release that is known\n")
    assert said.count(": fits ") == said.count("(known)") == fits
    assert "does not fit" not in said
    assert said.endswith("nothing to add: every structure fits, and every fingerprint is known\n")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "known" in metafunc.fixturenames:
        every = {"sglang": releases.SGLANG, "vllm": releases.VLLM, "vllm-ascend": releases.VLLM_ASCEND}
        sample = {"sglang": releases.SGLANG_SAMPLE, "vllm": releases.VLLM_SAMPLE, "vllm-ascend": releases.SAMPLE}
        looked = {**(every if metafunc.config.getoption("--all-releases") else sample), "verl": releases.VERL}
        metafunc.parametrize("known", [(name, version) for name in looked for version in looked[name]], ids=" ".join)


LEFT_OUT = {
    ("verl", "0.7"): {"update-critic: VeOmniEngine", "compute-values: VeOmniEngine"},
    **{
        ("sglang", minor): {"graph-capture: graph capture of the model runner, code structure C"}
        for minor in ("0.5.11", "0.5.12", "0.5.13")
    },
}
"""Project and beginning of its releases → what fits and is not meant.

The engine has no value head yet, so no critic. The statement of structure C is the one of SGLang's own devices there,
and structure D has those of others, too.
"""


@MATRIX
def test_no_structure_ends_before_the_last_release_that_has_it(known: tuple[str, str]) -> None:
    """No other test notices a place that the recipes have lost in a release: they ask the recipes where to look."""
    project, version = known
    lines = survey(project, "--path", releases.release(version, project)).stdout.splitlines()
    found = {line.strip().partition(": fits")[0]: line.endswith("(known)") for line in lines if ": fits" in line}
    assert found
    assert not [line for line in lines if "does not fit" in line]
    beginning = next(one.releases[0] for one in upstream(project).recipes if one.stage == "timeline")
    early = Version(version) < Version(beginning)  # a part of it is there before, and not enough for a timeline
    new = {name for name, is_known in found.items() if not (is_known or (early and name.startswith("timeline: ")))}
    assert new == next(
        (left for (name, begin), left in LEFT_OUT.items() if name == project and version.startswith(begin)), set()
    )


@MATRIX
def test_a_release_whose_fingerprints_are_known_is_one_entry_and_everything_follows(copied: Path) -> None:
    whole = (copied / INIT).read_text()
    tables = [(copied / page).read_text() for page in readme.PAGES]
    here = listed(copied)
    forget(copied, ASCEND[1])
    assert here
    assert not listed(copied)
    assert run(copied, "patches.survey", "--readme").endswith("has the table of the recipes now\n")
    assert all("0.30.0rc1 (48)" in (copied / page).read_text() for page in readme.PAGES)

    said = run(copied, "patches.survey", "vllm-ascend==0.30.0rc2", "--path", releases.release(ASCEND[1]))
    (entry,) = to_add(said)
    where, _, word = entry.rpartition(": ")
    line = int(where.partition(",")[0].removeprefix(f"{INIT}:"))
    assert (word, where.partition(", ")[2]) == ('"0.30.0rc2",', 'RELEASES, after "0.30.0rc1"')
    assert '"0.30.0rc1"' in (copied / INIT).read_text().splitlines()[line - 1]

    (copied / INIT).write_text((copied / INIT).read_text().replace('"0.30.0rc1",', f'"0.30.0rc1", {word}'))
    assert eval_releases(copied / INIT) == eval_releases(whole)
    assert listed(copied) == here
    run(copied, "patches.survey", "--readme")
    assert [(copied / page).read_text() for page in readme.PAGES] == tables


def eval_releases(source: Path | str) -> list[str]:
    text = source.read_text() if isinstance(source, Path) else source
    return text.partition("Releases((")[2].partition("))")[0].split()


def test_a_fingerprint_that_is_new_is_printed_with_the_line_where_it_goes(copied: Path) -> None:
    forget(copied, ASCEND[1])
    recipes = copied / "patches/vllm_ascend/recipes.py"
    recipes.write_text(recipes.read_text().replace("1a4b9b57fc99", "0" * 12))
    said = run(copied, "patches.survey", "vllm-ascend", "--path", releases.release(ASCEND[1]))
    assert (
        "rollout: V1 worker: fits structure F in vllm_ascend/worker/worker.py, fingerprint 1a4b9b57fc99 (new)" in said
    )
    _, fingerprint = to_add(said)
    where, _, word = fingerprint.partition(", V1 worker, fingerprints: ")
    assert word == '"1a4b9b57fc99",'
    file, _, line = where.rpartition(":")
    assert "51499718846d" in (copied / file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("edit", "reason", "added"),
    [
        (
            ("output = self.model_runner.execute_model(", "output = self.runner.run("),
            "rollout: V1 worker: does not fit: 0 top-level statements",
            'V1 worker: the structure ends: RELEASES.between("0.27.1rc1", "0.30.0rc2")',
        ),
        (
            ("def compile_or_warm_up_model(", "def warm_up("),
            "graph-capture: graph capture of the V1 worker: does not fit: 0 methods named compile_or_warm_up_model",
            'graph capture of the V1 worker: the structure ends: RELEASES.between("0.13.0rc1", "0.30.0rc2")',
        ),
    ],
)
def test_a_structure_that_a_release_does_not_have_any_more_is_to_end(
    edit: tuple[str, str], reason: str, added: str, tmp_path: Path
) -> None:
    shutil.copytree(releases.release(ASCEND[1]), tmp_path / "site")
    worker = tmp_path / "site/vllm_ascend/worker/worker.py"
    worker.write_text(worker.read_text().replace(*edit))
    (tmp_path / "site/PKG-INFO").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.31.0\n")
    for version in tmp_path.glob("site/vllm_ascend/_version.py"):
        version.unlink()
    said = survey("vllm-ascend==0.31.0", "--path", tmp_path / "site").stdout
    assert said.startswith("vllm-ascend 0.31.0: a release that is not known\n")
    assert reason in said
    assert any(line.endswith(added) for line in to_add(said))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no release to look at"),
        (("vllm",), 2, "python -m patches.survey vllm==0.33.0"),
        (("vlm==1",), 3, "did you mean vllm==1?"),
        (("vllm==1", "--path", "nowhere"), 3, "the folder nowhere does not exist"),
        (("verl==0.9.0", "--path", "SITE"), 3, "the installed verl is 0.9.1, not 0.9.0"),
        pytest.param(("verl==0.9.0",), 5, "verl 0.9.0 cannot be downloaded: no package index answers", marks=MATRIX),
    ],
)
def test_errors_say_what_to_type_next(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    site = str(releases.release("0.9.1", "verl"))
    done = survey(*(word.replace("SITE", site) for word in words), code=code)
    assert said in done.stderr
    assert "next: " in done.stderr


@pytest.mark.parametrize("page", readme.PAGES)
def test_the_table_of_targets_is_that_of_the_recipes(page: str, tmp_path: Path) -> None:
    copy = tmp_path / Path(page).name
    shutil.copyfile(REPOSITORY / page, copy)
    assert readme.rewrite_table(copy) == f"{copy} is as the recipes say"
    assert copy.read_bytes() == (REPOSITORY / page).read_bytes()


def test_a_readme_without_the_table_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# nothing\n")
    with pytest.raises(Exception, match="0 tables that begin with"):
        readme.rewrite_table(tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == "# nothing\n"


LISTED = {"vllm-ascend": ("0.30.0rc2", "0.30.0rc1", "0.6.0"), "verl": ("0.9.1", "0.8.0.dev0")}


@pytest.mark.parametrize(
    ("word", "listed", "code", "said"),
    [
        ("verl", LISTED, 0, "verl: nothing newer than 0.9.1\n"),
        ("vllm-ascend", LISTED, 0, "vllm-ascend: nothing newer than 0.30.0rc2\n"),
        ("verl", {"verl": ("0.10.0", "0.9.1")}, 1, "verl 0.10.0: "),
        ("verl", {}, 5, "no index"),
        ("slime", {"slime": ("9.0",)}, 0, "slime: not on the package index\n"),  # that one is another project
    ],
)
def test_what_is_new_on_the_index(
    word: str, listed: dict[str, tuple[str, ...]], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(distribution: str) -> tuple[str, ...]:
        if distribution not in listed:
            raise Problem(Kind.ENVIRONMENT, "no index", hint="look")
        return listed[distribution]

    def there(project: object, version: str, folder: Path) -> Path:
        raise Problem(Kind.ENVIRONMENT, "it cannot be downloaded", hint="look")

    monkeypatch.setattr(fits, "published_versions", answer)
    monkeypatch.setattr(fits, "fetch", there)
    assert said in survey("--new", word, code=code).output


def test_the_index_has_no_release_that_is_not_known(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--all-releases"):
        pytest.skip("asks the package index: --all-releases")
    assert {project.name: fits.unknown_releases(project) for project in projects() if project.on_index} == {
        project.name: [] for project in projects() if project.on_index
    }
