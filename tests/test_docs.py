"""The pages stand on what is there: their links, both languages, codes, variables, keys and commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fixtures.cache import REPOSITORY
from patcher import cli
from patcher.messages.errors import Kind
from patcher.messages.report import CommandResult
from tests import site
from tests.site import DOCS

PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])
PAIRS = [page for page in PAGES if page.with_suffix(".zh.md").exists()]
REFERENCE = DOCS / "reference"


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def test_every_link_leads_to_a_file() -> None:
    for page in PAGES:
        links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        assert [link for link in links if "://" not in link and not (page.parent / link).is_file()] == [], name(page)


def test_a_chinese_page_leads_to_chinese_pages() -> None:
    for page in (page for page in PAGES if page.name.endswith(".zh.md")):
        links = re.findall(r"(?<!English)\]\(([^)#]+)\.md(?:#[^)]*)?\)", page.read_text())
        assert [link for link in links if (page.parent / f"{link}.zh.md").is_file()] == [], name(page)


def test_both_languages_have_the_same_parts_and_show_the_same_commands() -> None:
    def parts(text: str) -> tuple[int, int, list[str]]:
        code = [re.split(r"\s+#", line)[0] for line in re.findall(r"^ {4,}(\S.*)", text, re.M)]
        return len(re.findall(r"^#+ ", text, re.M)), len(re.findall(r"^\|", text, re.M)), code

    for page in PAIRS:
        assert parts(page.read_text()) == parts(page.with_suffix(".zh.md").read_text()), name(page)


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_a_readme_is_short_and_has_both_commands(readme: str) -> None:
    lines = (REPOSITORY / readme).read_text().splitlines()
    assert len(lines) <= 120
    assert "    python3 fixtures/demo.py" in lines
    assert "    python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest" in lines


def test_the_container_runs_the_commands_of_the_readme_on_what_is_there() -> None:
    lines = (REPOSITORY / "Containerfile").read_text().splitlines()
    commands = [f"    {line.removeprefix('CMD ')}" for line in lines if line.startswith("CMD ")]
    readme = (REPOSITORY / "README.md").read_text().splitlines()
    assert len(commands) == 2
    assert [command for command in commands if command not in readme] == []
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1] if word[:2] != "--"]
    assert copied
    assert [path for path in copied if not (REPOSITORY / path).exists()] == []
    left_out = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert set(left_out) <= set((REPOSITORY / ".gitignore").read_text().splitlines())


@pytest.mark.parametrize("suffix", [".md", ".zh.md"])
def test_the_reference_has_every_code_key_and_variable(suffix: str) -> None:
    def first_column(page: str) -> list[str]:
        return re.findall(r"^\| `?(\w+)", (REFERENCE / f"{page}{suffix}").read_text(), re.M)[1:]

    assert {int(code) for code in first_column("exit-codes") if code.isdigit()} == {0, *(k.exit_code for k in Kind)}
    assert set(CommandResult("status").envelope()) <= set(first_column("json"))
    probes = "".join(path.read_text() for path in (REPOSITORY / "patches" / "probes").glob("*.py"))
    read = set(re.findall(r"""setting\(\s*"(RLPATCH\w*)""", probes))
    said = set(first_column("environment"))
    assert [
        name
        for name in read
        if not any(re.fullmatch(name + r"\w+" * name.endswith("_"), variable) for variable in said)
    ] == []
    assert "RLPATCH_WINDOW" in read


@pytest.mark.parametrize("suffix", [".md", ".zh.md"])
def test_the_messages_that_are_explained_are_ours(suffix: str) -> None:
    page = (DOCS / "howto" / f"troubleshooting{suffix}").read_text()
    code = "".join(path.read_text() for room in ("patcher", "patches") for path in (REPOSITORY / room).rglob("*.py"))
    code += (REPOSITORY / "patcher/messages/zh.po").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)`(?:、`([^`]+)`)? \|", page, re.M)
    assert len(rows) == 23
    assert [text for row in rows for text in row if text not in code] == []


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    """As long as it is not published, another package could take the name."""
    rooms = (path for room in ("patcher", "patches") for path in (REPOSITORY / room).rglob("*.py"))
    texts = [path.read_text() for path in (*PAGES, *rooms)]
    assert [
        command_line
        for text in texts
        for command_line in re.findall(r"pip install [^\n`]*\brlpatch\b(?! status)", text)
    ] == []


@pytest.mark.parametrize("suffix", [".md", ".zh.md"])
def test_two_releases_are_compared_by_the_lines_of_their_page(suffix: str) -> None:
    page = (DOCS / "howto" / f"compare-releases{suffix}").read_text()
    words = [line.split() for line in re.findall(r"^    (.*)", page, re.M)]
    heads = [" ".join(line[: 2 if line[0] in ("rlpatch", "pip") else 1]) for line in words]
    assert heads[:6] == ["rlpatch apply", "bash", "pip install", "rlpatch apply", "bash", "rlpatch revert"]
    folders = [line[line.index("--save-path") + 1] for line in words if "--save-path" in line]
    assert words[heads.index("rlpatch compare")][2:4] == folders == ["before", "after"]


def test_the_reference_of_commands_has_every_option() -> None:
    hooks = site.hooks()
    page = hooks.on_page_markdown((REFERENCE / "cli.md").read_text())
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert list(sections) == list(cli.COMMANDS)
    for command, text in sections.items():
        subcommand = cli.rlpatch.get_command(click.Context(cli.rlpatch), command)
        assert subcommand is not None
        words = [(word, getattr(param, "aliases", ())) for param in subcommand.params for word in param.opts]
        options = [word for word, aliases in words if word.startswith("--") and word not in aliases]
        assert [word for word in options if word not in text] == []
    assert hooks.on_page_markdown("# another page") == "# another page"


@pytest.mark.parametrize(
    ("written", "joined"),
    [
        ("只采三十个\n窗口", "只采三十个窗口"),
        ("- 采集一个\n  窗口。\n  `apply` 默认", "- 采集一个窗口。`apply` 默认"),
        ("一个 trace\n《完整》", "一个 trace《完整》"),
        ("采集\ntrace 之后", None),
        ("表格。\n| 列 |\n|---|\n| 行。|\n\n《完》\n\n下一段", None),
        ("第一。\n- 第二。\n1. 第三。\n# 标题\n\n    ls  # 列出\n    cd  # 进入", None),
        ("A sentence\ngoes on.", None),
    ],
)
def test_the_site_joins_the_lines_of_chinese_sentences(written: str, joined: str | None) -> None:
    assert site.hooks().on_page_markdown(written) == (written if joined is None else joined)


@pytest.mark.matrix
def test_the_site_can_be_built(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_static_i18n", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "用法：rlpatch apply [OPTIONS]" in (tmp_path / "site/zh/reference/cli.html").read_text()
