"""Shell scripts that nobody wrote, and what bash makes of them: the truth that a reader of scripts is held against."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

NAMES = ("A", "B", "C", "D")
ARRAYS = ("R", "S")
FUNCTIONS = ("f", "g")
CHANCES = 4

_RECORD = """#!/bin/sh
exec >>"{out}/$$"
printf '%s\\0' "${{0##*/}}" "$@"
printf '\\1\\0'
exec env -0
"""
# A script that starts itself must come to an end.
_SHALLOW = """#!/bin/bash
[ $SHLVL -gt 9 ] && exit 1
exec -a bash /bin/bash "$@"
"""
# Takes of `docker run` and `docker exec` what the scripts use.
_DOCKER = """#!/bin/sh
shift
set -- "$@"
given="PATH=$PATH"
n=0
while :; do
  case $1 in
    -e) case $2 in *=*) eval "v$n=\\$2" ;; *) eval "v$n=\\$2=\\${$2-}"; eval "[ \\"\\${$2+x}\\" ]" || eval "unset v$n" ;; esac
        n=$((n+1)); shift 2 ;;
    --rm|-it) shift ;;
    *) shift; break ;;
  esac
done
while [ $n -gt 0 ]; do n=$((n-1)); eval "[ \\"\\${v$n+x}\\" ] && set -- \\"\\$v$n\\" \\"\\$@\\""; done
exec env -i "$given" "$@"
"""


class Started(NamedTuple):
    """A start that bash made: its words and what it inherited."""

    argv: tuple[str, ...]
    environ: dict[str, str]


class Generator:
    """Writes one script, with numbers for its starts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.starts = self.counters = 0
        self.depth = 0
        self.inside_function = False
        self.inside_loop = False

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    # --- words ---

    def name(self) -> str:
        return self.pick(*NAMES)

    def literal(self) -> str:
        return self.pick("true", "0", "1", "a", "a.b=1", "x.y=[1,2]", "--opt", "dyn", "''", "'a b'", '"c  d"', "a\\ b", "$'t\\tu'",
                         "~/d", "7", "x=y=z", "a/b.c", "k=*", "'$A'", '"\\$A"', "\\$A", "a'b c'\"d\"", "{p,q}", "K=~/t", "-n")  # fmt: skip

    def expansion(self) -> str:
        n, m = self.name(), self.name()
        return self.pick(
            f"${n}", f"${{{n}}}", f"${{{n}:-{self.literal()}}}", f"${{{n}-d}}", f"${{{n}:+p}}", f"${{{n}+q r}}",
            f"${{{n}:=e}}", f"${{{n}=h}}", f"${{{n}:-${{{m}:-z}}}}", f"${{{n}:-\"v w\"}}", f"${{#{n}}}", f"${{{n}%b}}",
            f"${{{n}##*a}}", f"${{{n}%%=*}}", f"${{{n}/a/b}}", f"${{{n}//b/}}", f"${{{n}^^}}", f"${{{n},,}}", f"${{{n}:1}}",
            f"${{{n}:0:2}}", "$1", "$#", '"$@"', "$@", "$*", '"$*"', "${1:-w}", "$?", f"$({self.printed()})",
            f"`{self.printed()}`", f"$(({self.arithmetic()}))", "${R[@]}", '"${R[@]}"', '"${S[@]}"', "${S[0]}", "${#R[@]}",
            '"${R[*]}"', "$R", "${R[1]}", "$(val)", "${!A}", "$(pwd)", '"$(dirname "$0")"', "$(cd .. && pwd)", "$(cd sub; pwd)",
            "$(basename /x/y.sh .sh)", "${PWD##*/}", "$HOME", "${UNSET:-~/data}", "${S[@]:1}", "${A@Q}", f"${{{n}:-$(val)}}",
        )  # fmt: skip

    def arithmetic(self) -> str:
        return self.pick(
            "1 + 2",
            "3 * (2 - 1)",
            f"{self.name()} + 1",
            f"${self.name()} * 2",
            "10 / 3",
            "7 % 4",
            "1 < 2",
            "A++",
            "(1+2)*3",
        )

    def printed(self) -> str:
        return self.pick(f"echo {self.simple()}", f"echo {self.simple()} {self.simple()}", "val", "pwd", "printf %s a", "echo -n b",
                         f"export {self.name()}=sub; echo o", "maybe1 && echo y || echo n", f"echo ${self.name()}", "true", self.function(), "cat <<< h")  # fmt: skip

    def function(self) -> str:
        # In a function it might be that one, again and again.
        return "true" if self.inside_function else self.pick(*FUNCTIONS)

    def simple(self) -> str:
        return self.pick(self.literal(), f"${self.name()}", f'"${{{self.name()}}}"')

    def word(self) -> str:
        kind = self.random.random()
        if kind < 0.35:
            return self.literal()
        if kind < 0.6:
            return self.expansion()
        if kind < 0.8:
            inner = self.expansion()
            return '"' + (inner.replace('"', "") if "`" not in inner else "x") + self.pick("", "", " z", ".k=") + '"'
        return self.pick("k.e=", "p", "'q'") + self.pick(
            f"${self.name()}", f'"${{{self.name()}}}"', f"${{{self.name()}:-u}}", "$(val)"
        )

    def words(self, most: int = 3) -> str:
        return " ".join(self.word() for _ in range(self.random.randint(0, most)))

    # --- statements ---

    def launch(self) -> str:
        self.starts += 1
        return f"launch {self.starts} {self.words()}".rstrip()

    def start(self) -> str:
        n, w = self.name(), self.simple()
        launch = self.launch()
        return self.pick(
            launch, launch, launch, f"{n}={w} {launch}", f"{n}={w} {self.name()}={w} {launch}", f"env {n}={w} {launch}",
            f"env -u {n} {launch}", f'env -i PATH="$PATH" {n}={w} {launch}', f"nohup {launch}", f"nice -n 5 {launch}",
            f"timeout -k 5 20 {launch}", f"docker run --rm -e {n} -e {self.name()}={w} image {launch}", f"{launch} > log 2>&1",
            f"{launch} | cat", f"command {launch}", f"(exec {launch})", f"bash -c '{launch.replace(chr(39), '')}'",
            f"eval '{launch.replace(chr(39), '')}'", f"! {launch}", f"time {launch}", f'L=(launch); "${{L[@]}}" {launch[7:]}',
            f"L=launch; $L {launch[7:]}", f"if maybe2; then L=(nice launch); else L=(launch); fi; \"${{L[@]}}\" {launch[7:]}",
            f"export {n}={w}; {launch} &\nwait", f"OUT=$({launch})",
        )  # fmt: skip

    def assignment(self) -> str:
        n, w = self.name(), self.word()
        return self.pick(
            f"{n}={w}", f"{n}={w}", f"export {n}={w}", f"export {n}={w}", f"export {n}", f"{n}+={w}", f"declare {n}={w}",
            f"declare -x {n}={w}", f"typeset {n}={w}", f"unset {n}", f"export -n {n}", f": ${{{n}:={self.simple()}}}",
            f"read {n} <<< {self.simple()}", f"read {n} {self.name()} <<< '1 2'", f"printf -v {n} {self.simple()}", f"printf -v {n} %s q",
            f"{n}={w} {self.name()}={self.simple()}", f"export {n}={self.simple()} {self.name()}={self.simple()}",
            f"let {n}=1+2", f"(( {n} = 3 ))", f"(( {n}++ ))", f"set -- {self.words(3)}", "shift", "set -a", "set +a",
            f"R=({self.words(3)})", f"R+=({self.words(2)})", f"S=({self.words(2)})", f"S+=({self.word()})", f"R[1]={self.simple()}",
            f"S[0]={self.simple()}", "unset R", f"mapfile -t R <<< {self.simple()}", f"declare -i {n}=2+3", f"declare -a S=({self.word()})",
            f"eval \"{n}={self.pick('1', 'ev', '$B')}\"", f"eval export {n}=e", f"source ./env.sh {n}", f"source <(echo export {n}=p)",
            ". ./env.sh", f"command export {n}={self.simple()}", f"declare -n ref={n}; ref=via", "cd sub", "cd ..", "cd missing",
            f"export {n}={w} | cat", f"export {n}={w} &", f"( export {n}={w} )", f"X=$(export {n}={w})", f"{{ {n}={w}; }}",
            f"{n}={self.simple()} :", f"{n}={self.simple()} read C <<< x", "IFS=,", "unset IFS", f"{n}=`echo {self.literal()}`",
            f"export {n}=${{{self.name()}:-{self.simple()}}}", f"cat <<E > log\nexport {n}=heredoc ${n}\nE", f"readonly {n}x=1",
            f"while read {n}; do :; done <<< 'p'", f"getopts ab {n}", f"trap 'export {n}=trap' EXIT", f"export {n}=$(val)",
            f"test -z \"${n}\" && {n}=filled", f"[ \"${n}\" = true ] || export {n}=other", "unset -f f", "hash -r", f"typeset -u {n}=up",
        )  # fmt: skip

    def condition(self) -> str:
        n = self.name()
        return self.pick(
            "maybe0", "maybe1", "maybe2 && maybe3", "! maybe1", "true", "false", f'[ "${n}" = true ]', f'[ -n "${n}" ]', f"[ -z ${n} ]",
            f'[[ ${n} == a* ]]', f"[[ -n ${n} && ${n} != 0 ]]", f'[ "${{{n}:-1}}" != 0 ]', f'test "${n}" = 1', "[ 1 -lt 2 ]",
            "(( 1 < 2 ))", f"(( {n} > 1 ))", "[ -f env.sh ]", "[ $# -gt 0 ]", "maybe3 || true", f"[[ ${n} =~ a ]]", "grep -q x env.sh",
            "[ x ]", f"[[ ! -z ${n} || a == b ]]", self.function(), f'[ "${n}" -eq 1 ]', f"export {n}=cond", f"[ -n \"${n}\" -a 1 = 1 ]",
        )  # fmt: skip

    def compound(self) -> str:
        kind = self.random.randrange(21)
        n = self.name()
        if kind < 4:
            other = self.pick(
                "", f"else\n{self.block()}\n", f"elif {self.condition()}; then\n{self.block()}\nelse\n{self.block()}\n"
            )
            return f"if {self.condition()}; then\n{self.block()}\n{other}fi"
        if kind == 4:
            return f"for {n} in {self.words(3)}; do\n{self.loop()}\ndone"
        if kind == 5:
            return f"for {n} in $(val) x; do\n{self.loop()}\ndone"
        if kind == 6:
            self.counters += 1
            i, most = f"I{self.counters}", self.pick("0", "1", "2")
            head = self.pick(f"while [ ${i} -lt {most} ]", "while :", "until false", "for ((;;))")
            leaves = "" if "-lt" in head else f"[ ${i} -gt {most} ] && break\n"
            return f"{i}=0\n{head}; do\n{i}=$(({i}+1))\n{leaves}{self.loop()}\ndone"
        if kind == 7:
            before, self.inside_loop = self.inside_loop, False
            body = self.block()
            self.inside_loop = before
            return f"while {self.condition()}; do\n{body}\nbreak\ndone"
        if kind == 8:
            self.counters += 1
            i = f"i{self.counters}"
            return f"for (({i}=0; {i}<{self.pick('0', '2')}; {i}++)); do\n{self.loop()}\ndone"
        if kind == 9:
            patterns = [self.pick("true", "a*", "0|1", "'a b'", "$B", "?", "[a-c]*") for _ in range(2)]
            last = self.pick("", f"*)\n{self.block()}\n;;\n")
            items = "".join(f"{pattern})\n{self.block()}\n;;\n" for pattern in patterns)
            return f"case {self.simple()} in\n{items}{last}esac"
        if kind in {10, 11}:
            before, self.inside_function = self.inside_function, True
            loop, self.inside_loop = self.inside_loop, False
            body = self.block()
            self.inside_function, self.inside_loop = before, loop
            name = self.pick(*FUNCTIONS)
            return self.pick(f"{name}() {{\n{body}\n}}", f"function {name} {{\n{body}\n}}", f"{name}() (\n{body}\n)")
        if kind == 12:
            f = self.function()
            return self.pick(f, f, f"{f} {self.words(2)}", f"{n}=pre {f}", f"{f} | cat", f"{f} &", f"X=$({f})")
        if kind == 13:
            return f"(\n{self.block()}\n)"
        if kind == 14:
            return f"{{\n{self.block()}\n}}" + self.pick("", " | cat", " > log", " &\nwait")
        if kind == 15:
            return f"{self.condition()} && {self.assignment_plain()}"
        if kind == 16:
            return f"{self.condition()} || {self.assignment_plain()}"
        if kind == 17:
            return f"{self.condition()} && {self.launch()} || {self.assignment_plain()}"
        if kind == 18:
            quote = self.pick("E", "'E'")
            end = self.pick("", " | cat", " > log")
            return f"bash <<{quote}{end}\nexport {n}=in\n{self.launch()}\nE"
        if kind == 19:
            return self.pick(
                "bash ./sub.sh", f"{n}=w bash ./sub.sh", "./sub.sh a b", f"env {n}=v ./sub.sh", "source ./sub.sh"
            )
        return self.pick(
            f"{self.condition()} && : > log",
            f"[ a = b ] || {self.launch()} > log",
            f"return || {self.assignment_plain()}",
            f"{self.start()} && {self.start()}",
            f'echo "{self.launch()}" | bash',
            f"cd sub && {self.launch()}; cd ..",
        )

    def assignment_plain(self) -> str:
        return self.pick(
            f"{self.name()}={self.simple()}",
            f"export {self.name()}={self.word()}",
            f"unset {self.name()}",
            f"R+=({self.simple()})",
        )

    def statement(self) -> str:
        kind = self.random.random()
        if self.depth < 3 and kind < 0.3:
            return self.compound()
        if self.inside_function and kind < 0.4:
            n = self.name()
            return self.pick(
                f"local {n}={self.word()}",
                f"local {n}",
                "return",
                "maybe1 && return 1",
                f"declare -g {n}=glob",
                f"local -x {n}=lx",
            )
        if self.inside_loop and kind < 0.36:
            return self.pick("break", "continue", "maybe0 && break", "maybe2 && continue")
        return self.assignment() if kind < 0.72 else self.start()

    def block(self) -> str:
        self.depth += 1
        lines = [self.statement() for _ in range(self.random.randint(1, 3))]
        self.depth -= 1
        return "\n".join(lines)

    def loop(self) -> str:
        before, self.inside_loop = self.inside_loop, True
        try:
            return self.block()
        finally:
            self.inside_loop = before

    def script(self) -> str:
        lines = [self.statement() for _ in range(self.random.randint(3, 9))]
        return "\n".join([*lines, self.launch(), ""])


def write(folder: Path, name: str, text: str, *, program: bool = False) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if program:
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


PROGRAMS = ("python", "python3", "torchrun", "ray", "uv", "srun", "accelerate", "deepspeed", "vllm")
# What a script of others must not do here.
_NOTHING = [
    "pip",
    "pip3",
    "rm",
    "wget",
    "hf",
    "huggingface-cli",
    "git",
    "apt",
    "apt-get",
    "sudo",
    "conda",
    "curl",
    "mkdir",
    "mv",
    "cp",
    "ln",
    "touch",
    "sleep",
    "nvidia-smi",
    "npu-smi",
    "tee",
    "cat",
    "scontrol",
    "docker",
    "kill",
    "pkill",
    "unzip",
    "tar",
    "chmod",
    "mktemp",
    "chown",
    "dd",
    "reboot",
    "ssh",
    "kubectl",
]


def started_by(script: Path, tree: Path, folder: Path) -> list[Started]:
    """What a script of a checkout starts, where nothing that it names is run."""
    out = folder / "out"
    out.mkdir(parents=True)
    for name in PROGRAMS:
        write(folder, f"bin/{name}", _RECORD.format(out=out), program=True)
    for name in _NOTHING:
        write(folder, f"bin/{name}", "#!/bin/sh\n", program=True)
    environ = {"HOME": str(folder), "PATH": f"{folder}/bin:/usr/bin:/bin"}
    _bash(script, tree, environ)
    return [_started(path.read_bytes().decode(errors="replace")) for path in out.iterdir()]


class Bash:
    """The real bash in a folder of its own, with programs that record how they are started."""

    def __init__(self, folder: Path) -> None:
        self.work, self.out = folder / "work", folder / "out"
        self.out.mkdir(parents=True)
        write(folder, "bin/launch", _RECORD.format(out=self.out), program=True)
        write(folder, "bin/docker", _DOCKER, program=True)
        write(folder, "bin/bash", _SHALLOW, program=True)
        for way in range(CHANCES):
            for number in range(4):
                status = int((way == 0) or (way > 1 and (number + way) % 2))
                write(folder, f"way{way}/maybe{number}", f"#!/bin/sh\nexit {status}\n", program=True)
            write(folder, f"way{way}/val", f"#!/bin/sh\necho u{way}\n", program=True)
        write(self.work, "sub/empty", "")
        self.folder = folder
        self.environ = {"HOME": str(folder / "home"), "B": "outer", "PWD": str(self.work)}

    def prepare(self, text: str) -> Path:
        """A fresh working folder with the script."""
        for path in self.work.glob("*"):
            if path.is_file():
                path.unlink()
        write(self.work, "env.sh", "export A=sourced\nC=quiet\n[ $# -gt 0 ] && D=given\nreturn 0\nD=never\n")
        write(self.work, "sub.sh", '#!/bin/bash\nexport D=${D:-deep}\nlaunch sub "$@" $0\n', program=True)
        return write(self.work, "run.sh", text)

    def run(self, way: int) -> tuple[list[Started], str]:
        """What the script starts where the unknown answers are those of this way, and what bash complains of."""
        for path in self.out.iterdir():
            path.unlink()
        found = f"{self.folder}/bin:{self.folder}/way{way}:/usr/bin:/bin"
        said = _bash(Path("run.sh"), self.work, {**self.environ, "PATH": found})
        return [_started(path.read_bytes().decode(errors="replace")) for path in self.out.iterdir()], said


def _bash(script: Path, folder: Path, environ: dict[str, str]) -> str:
    """What bash complains of; whatever the script has started ends with it, because some start themselves for ever."""
    with subprocess.Popen(
        ["bash", script], cwd=folder, env=environ, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            return process.communicate(timeout=300)[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _started(text: str) -> Started:
    words, _, variables = text.partition("\1\0")
    pairs = [one.partition("=") for one in variables.split("\0") if one]
    return Started(tuple(words.split("\0")[:-1]), {name: value for name, _, value in pairs})
