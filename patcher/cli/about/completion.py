"""``rlpatch completion``."""

from __future__ import annotations

from dataclasses import dataclass

import click
from click.shell_completion import get_completion_class

from patcher.cli import options, rlpatch
from patcher.messages import CommandResult

_BASH = """
_rlpatch_with_releases() {
    local COMP_WORDS COMP_CWORD line=${COMP_LINE:0:COMP_POINT}
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    local current=${COMP_WORDS[COMP_CWORD]}
    _rlpatch_completion "$1"
    COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*=}"}"}")
}
complete -o nosort -F _rlpatch_with_releases rlpatch
"""
"""Completion for bash, to which ``vllm-ascend==0.11.0rc1`` is three words: it completes what is behind the ``=``."""

_MENDED = {
    # zsh would put the value in the place of the whole word `--stage=upd`
    "zsh": {
        "local -a response\n": "local -a response\n    compset -P '--*='\n",
        "compadd -U": 'compadd -U -i "$IPREFIX"',
    },
    "fish": {
        # a value may be a list with commas, of which click's line would give the first word alone
        '(string split ","': '(string split -m 1 ","',
        # fish offers only what begins with the whole word
        "    for c": "    set -l option (string match -r -- '^--[^=]*=' (commandline -t));\n    for c",
        "    end;\nend;": """    end | string replace -r -- '^' "$option";\nend;""",
    },
}
"""Corrections of click's completion script, by shell: text of the script and its replacement."""


@dataclass(frozen=True)
class Completion:
    """Result of `completion`."""

    script: str


@options.command("completion", click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])))
def command(shell: str) -> CommandResult:
    """Print the completion script for a shell.

    \b
    Examples:
      eval "$(rlpatch completion bash)"
      rlpatch completion fish > ~/.config/fish/completions/rlpatch.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (the choice lists click's own shells)
    source = kind(rlpatch, {}, "rlpatch", "_RLPATCH_COMPLETE").source()
    for original, mended in _MENDED.get(shell, {}).items():
        source = source.replace(original, mended)
    source += _BASH * (shell == "bash")
    return CommandResult("completion", data=Completion(source), raw=f"{source}\n".encode())
