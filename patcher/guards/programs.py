"""Patterns that tell programs and words of a launch by their effect on what follows."""

from __future__ import annotations

SHELL = r"(ba|da|z|k)?sh"
SHELL_OPTIONS = "pipefail|errexit|nounset|xtrace"
RUNS_FILES = r"(python|pypy)[\d.]*t?|torchrun|accelerate|deepspeed"
PROFILERS = r"msprof|nsys|ncu|rocprof\S*"
PYTHON = rf"{RUNS_FILES}|vllm|sglang|{PROFILERS}"
"""Programs that are Python, or surely start Python with their environment and the words behind."""
WRAPPER = (
    r"(.*/)?(nohup|nice|ionice|setsid|stdbuf|numactl|taskset|timeout|unbuffer|exec|env)$|-|\d[\d.,:-]*[smhd]?$|\w+=\S*$"
)
"""Words that may stand before a program: those that run it here, their options and numbers, and assignments."""
HARMLESS = (
    r"|:|\[\[?|test|true|echo|printf|cd|pushd|popd|ls|cat|cp|mv|rm|mkdir|touch|chmod|chown|ln|pip3?|git|e?grep|sed|awk"
    r"|sort|head|tail|wc|sleep|date|tar|unzip|ulimit|tee|basename|dirname|realpath|hostname|nvidia-smi|npu-smi|which|type|pwd"
    r"|seq|tr|cut|find|df|du|free|uname|apt(-get)?|hf|huggingface-cli|ps|#\w+"
)
"""Programs that start nothing, set nothing, and go on, whatever words they get."""
CONTROL = (
    r"curl|wget|unset|wait|p?kill|exit|return|break|continue|shift|for|select|case|function|in|done|fi|esac|else|\}"
)
KEYWORDS = ("if", "then", "elif", "else", "do", "while", "until", "!", "time", "-p", "{", "coproc")
EXPORTS = r"(export|unset|(declare|typeset|local|readonly) -[gaA]*x[gaA]*) [^-+].*"
SETS = r"(?s)(for|select|read|mapfile|readarray|getopts|let|unset|printf -v) .*"
WRITES = r"cp|mv|ln|sed|tee|wget|curl|tar|unzip|git|install|rsync|envsubst|patch"
SETS_UP = r"(.*/)?(set_env\.sh|setvars\.sh|activate|\.?bash_?rc|\.profile|\.bash_profile|conda\.sh)|/(usr|etc|opt)/.*"
"""Files of CANN, conda or Python: what such a file sets if it is not here may be missed."""
GOES_ON = (
    r"(?s)(?!(.* )?\0( |$)|sleep inf|.*--block)"
    rf"((:|exec|echo|cd|mkdir|touch|sleep|date|ulimit|pip3?|pkill|curl|wget|ray|{PYTHON})( .*)?|(\w+=[^\0]*)?"
    rf"|set [-+][eux]+(o pipefail)?|{EXPORTS}|(export|declare|readonly) [^-+].*|(\.|source) (?!\.)({SETS_UP}))"
)
"""Commands, or assignments, behind which a script goes on, and means the same."""
DIVERTS = r"\bexec\s|\$\{\w+:?[=?]|^IFS="
_HANDED = r"((sudo|command|srun|uv|conda) .*)?"
COMPUTED = (
    rf"(?s)\0.*|.*BASH_ENV.*|(?!({HARMLESS}|{CONTROL}|{PYTHON}) )\S* (.* )?\0( .*)?"
    rf"|(alias|trap) .*\0.*|eval .*[\0\1].*|{_HANDED}(make|just|docker.* up)\b.*"
    rf"|{_HANDED}(xargs|parallel|find .* -(exec|ok)(dir)?)"
    r"(?!( (-\S+|\d+|\{\S*\}))*( (echo|printf|rm|kill|ls|cat|mkdir|grep|wc)\b|$)).*"
)
"""Commands that start or set what only the run tells: by a hidden word, or what they are fed with."""
PASSES_INPUT = r"(?s)(ssh|pdsh) .*|[\0\1]"
"""Commands that run what they are fed with, if they are fed with anything."""
READS_INPUT = rf"(?s)(.*[\s/])?{SHELL}( -s.*| -)?|({RUNS_FILES})( -)?"
"""Commands that run nothing but what they are fed with."""
NAMED_FILE = (
    r"(?!(\S* )?(--config-name|-cn)\b|conda |\S* \S*://)\S* (?:--?[\w-]+=|(?!-))"
    r"(?P<file>[^=\s]+\.(?:sh|bash|py|ya?ml|env|in))"
)
"""A word with the word before it, if it names a file; a name of a configuration, or of a shell for conda, is none."""
PARAMETER = r"(?s)\$\{?(\w+)(\[[^\]]*\])?(?::?([-+=?])(.*?))?\}?"
KNOWN_PARAMETER = (
    r"(?s)\$[0-9@*#?$!-]|\$\{([0-9]+|[@*](:\d+)*|#[^}]*)\}|\$\{?(PWD|HOME|USER|HOSTNAME|RANDOM)\}?|\$\(\(.*"
    r"|\$\((date|nproc|hostname|whoami|uname)\b[^()$`]*\)"
)
"""Expansions that name no switch: arguments, numbers, names, paths and tests."""
FIXED = {
    r"\$\((cd (-- )?\"?\$\()?dirname (-- )?\"?\$(0|BASH_SOURCE|\{(0|BASH_SOURCE(\[0\])?)\})\"?\)(\"? .*&& pwd\))?": "",
    r"\$\(pwd\)|\$\{?PWD\}?": ".",
    r"\$\((?:\S*/)?(?:conda|mamba|micromamba|pyenv|ssh-agent|resize)\b[^)]*\)": ".",  # sets up a shell
    r"(?s)(\[\[|\(\().*": ":",
}
"""What an expansion that decides nothing stands for: the script's folder (""), the working folder, no command."""
ADJACENT_STRINGS = r"[\"'][ \t]*(\\?\n)?[ \t]*\+?[ \t]*[rbfuRBFU]?[\"']"
PYTHON_HIDES = (
    r"\bexec\(|(?<![\w.])eval\(|b64decode|fromhex|(putenv|environ\.(setdefault|update|__setitem__))\((?!\s*(\)|[\"'{]|\w+=))"
    r"|environ\s*\|=|environ\[(?!\s*[\"'])[^\]]*\]\s*=[^=]|\bsubprocess\.\w+\(|\bos\.(system|popen|exec\w+|spawn\w+)\("
)
"""Python code that runs or sets what only the run tells."""
