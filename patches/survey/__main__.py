"""``python -m patches.survey vllm-ascend==0.31.0``: what has to be added for a release; ``--new``, and ``--readme``.

It downloads the release, or looks into ``--path DIR``, says for each recipe whether its structure is there and its
fingerprint known, and prints the lines to add. ``--new`` does so for every release that the package index has and the
recipes do not know, and exits with 1 if there is one. ``--readme`` writes the table of targets anew.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from patcher.messages import Kind, Problem
from patcher.targets import find
from patches.projects import projects, upstreams
from patches.survey import fits, readme

AGAIN = "python -m patches.survey"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("release", required=False, metavar="TARGET==VERSION")
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Read the release from this folder; download nothing.",
)
@click.option(
    "--readme", "table", is_flag=True, help="Rewrite the table of targets in README and docs from the recipes."
)
@click.option("--new", is_flag=True, help="Report on every release on the package index that rlpatch does not know.")
def main(release: str | None, path: Path | None, table: bool, new: bool) -> None:
    """Print what to add to rlpatch for ``release``, downloaded or in the folder ``path``.

    With ``new`` (--new), do so for all unknown releases of the project ``release`` (None: of all), and exit with 1 if
    there is any. With ``table`` (--readme), only rewrite the tables of the documentation. Exits with a problem's code.
    """
    try:
        if table:
            for page in readme.PAGES:
                click.echo(readme.rewrite_table(Path(__file__).resolve().parents[2] / page))
        elif new:
            sys.exit(_survey_unknown(release))
        elif release:
            for line in _survey(release, path):
                click.echo(line)
        else:
            hint = f"{AGAIN} vllm-ascend==0.31.0, {AGAIN} --new, or {AGAIN} --readme"
            raise Problem(Kind.USAGE, "no release to look at", hint=hint)
    except Problem as problem:
        click.echo(f"Error: {problem}", err=True)
        sys.exit(problem.kind.exit_code)


def _survey(target_and_version: str, path: Path | None) -> list[str]:
    """Return lines on how the recipes fit a release such as "vllm==0.33.0", in the folder `path` (None: downloaded).

    Raises Problem if the project is unknown, no release to download is named, or it cannot be downloaded or read.
    """
    name, version = find.parse(target_and_version, [upstream.project for upstream in upstreams()])
    upstream = next(upstream for upstream in upstreams() if upstream.project.name == name)
    if path is None and version is None:
        hint = f"{AGAIN} {name}=={upstream.project.releases[-1]}, or {AGAIN} {name} --path DIR"
        raise Problem(Kind.USAGE, f"{target_and_version} names no release", hint=hint)
    if path is None and not upstream.project.on_index:
        hint = f"{AGAIN} {name} --path DIR, with DIR a checkout of the release"
        raise Problem(Kind.USAGE, f"{name} is not on the package index", hint=hint)
    with tempfile.TemporaryDirectory() as scratch:
        folder = path or fits.fetch(upstream.project, version or "", Path(scratch) / "release")
        target = find.find(upstream.project, paths=(folder,), version=version, again=lambda text: f"{AGAIN} {text}")
        return fits.report(upstream, target)


def _survey_unknown(project_name: str | None) -> int:
    """Print a report on each new release on the package index that `project_name` (None: any project) does not list.

    Return 1 if there is any, else 0. Raises Problem if the project is unknown, or if no index answers or has it.
    """
    names = [find.parse(project_name, projects())[0]] if project_name else [project.name for project in projects()]
    has_new = False
    for project in (project for project in projects() if project.name in names):
        if not project.on_index:
            click.echo(f"{project.name}: not on the package index")
            continue
        versions = fits.unknown_releases(project)
        has_new = has_new or bool(versions)
        if not versions:
            click.echo(f"{project.name}: nothing newer than {project.releases[-1]}")
        for version in versions:
            try:
                lines = _survey(f"{project.name}=={version}", None)
            except Problem as problem:  # of this release; the others are looked at
                lines = [f"{project.name} {version}: {problem}"]
            click.echo("\n".join([*lines, ""]))
    return int(has_new)


if __name__ == "__main__":
    main()
