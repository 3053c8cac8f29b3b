"""The command line of a bundle: argparse, because nothing else is sure to be there, and reports as rlpatch has them."""

from __future__ import annotations

import argparse
import io
import json
import os
import pkgutil
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn, Sequence

from patcher.bundle import plans, steps
from patcher.bundle.steps import Machine
from patcher.messages import CommandResult, Kind, Problem, command_line, problem_of

_COMMANDS = {
    "apply": "patch the targets on this machine, all of them or none",
    "status": "show the patches that are applied, and whether they are those of this bundle",
    "diff": "show the applied patches as a diff",
    "revert": "remove the patches of this bundle, whoever applied them",
    "recover": "finish or undo an interrupted apply or revert",
}
_WRITING = ("apply", "revert")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Problem(Kind.USAGE, message, hint=f"{self.prog} --help")


def main(words: Sequence[str] | None = None) -> int:
    """Run a bundle with the arguments ``words`` (None: the process's), print the report, and return the exit code.

    With ``--verbose`` an unexpected error is raised again.
    """
    typed = list(sys.argv[1:] if words is None else words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = argparse.Namespace(command="", json="--json" in typed, quiet=False, verbose=False)
    try:
        bundle = plans.read(pkgutil.get_data("patcher.bundle", plans.NAME) or b"")
        _parser(bundle).parse_args(typed, options)
        with command_line.started_as(_words()):
            report = _run_command(bundle, options)
    except (Exception, KeyboardInterrupt) as error:
        problem = problem_of(error)
        if problem.kind is Kind.UNEXPECTED and options.verbose:
            raise
        report = CommandResult(options.command, problems=[problem])
    return _show(report, options)


def _run_command(bundle: plans.Bundle, options: argparse.Namespace) -> CommandResult:
    """Run the chosen command, by default on the running interpreter's environment, and return its result."""
    python = options.python or (None if options.path else sys.executable)
    typed = {"--path": options.path, "--python": options.python}
    words = tuple(word for name, value in typed.items() if value for word in (name, str(value)))
    machine = Machine(bundle, options.path, python, partial(print, file=sys.stderr), words)
    flags = {name: value for name, value in vars(options).items() if name in ("dry_run", "planned")}
    report: CommandResult = getattr(steps, options.command)(machine, **flags)
    return report


def _parser(bundle: plans.Bundle) -> argparse.ArgumentParser:
    """Return the parser of a bundle's command line; its help lists the plans that the bundle carries."""
    carried = [f"{plan.patch} on {plan.version}: {shlex.join(plan.options)}" for plan in bundle.plans]
    about = "\n  ".join([f"Made by rlpatch {bundle.tool}. Patches in this bundle:", *carried])
    parser = _Parser(prog=_words(), description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-V", "--version", action="version", version=f"rlpatch {bundle.tool}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--path", type=Path, metavar="DIR", help="site-packages or a checkout with the package")
        command.add_argument("--python", metavar="EXE", help="look in the environment of this interpreter")
        if name in _WRITING:
            command.add_argument("-n", "--dry-run", action="store_true", help="show what would be done, write nothing")
        if name == "diff":
            command.add_argument("--planned", action="store_true", help="show what apply would change instead")
        command.add_argument("--json", action="store_true", help="print one line of JSON, with the name of the host")
        command.add_argument("-q", "--quiet", action="store_true", help="print only errors and what you asked for")
        command.add_argument("-v", "--verbose", action="store_true", help="show details")
    return parser


def _words() -> str:
    """Return the command line that started this bundle, without its arguments."""
    name = Path(sys.executable).name
    return shlex.join([name if shutil.which(name) == sys.executable else sys.executable, sys.argv[0]])


def _show(report: CommandResult, options: argparse.Namespace) -> int:
    """Print the report, with `--json` as a single line with the host's name, and return the exit code."""
    if options.json:
        line = {"host": os.uname().nodename, **report.envelope()}
        report.raw = json.dumps(line, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"
    return report.show(as_json=False, quiet=options.quiet, color=None, verbose=options.verbose)
