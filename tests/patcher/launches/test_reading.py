"""What shell scripts, Python scripts and commands start, and with which variables."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import tree_sitter

from patcher.errors import Kind, Problem
from patcher.guards.detect import detect
from patcher.launches import RUN_TIME, Placed, grammar, quoted, read, statements
from patcher.switches import State
from patches.switches import ENGINE_OPTION, MSPROF
from patches.vllm_ascend.switches import SWITCHES as VLLM_ASCEND

OFF, UNKNOWN, ON = State.OFF, State.UNKNOWN, State.ON
P = "export PROFILING_MODE=true\n"
MATCH = "match x:\n    case 1:\n        os.environ['PROFILING_MODE'] = 'true'\n"


def state(
    script: Path | None = None,
    environ: dict[str, str] | None = None,
    command: tuple[str, ...] = (),
    lines: int = 1,
) -> tuple[State, str]:
    """The state of msprof, whose variable is on as soon as it is set, and the place: the severest of so many lines."""
    findings = detect(VLLM_ASCEND, version="0.11.0rc1", environ=environ or {}, script=script, command=command)
    found = [one for one in findings if one.profiler == MSPROF]
    assert len(found) == lines, found
    where = found[0].where
    return found[0].state, where.rpartition("/")[2] if found[0].found else ""


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "expected", "where"),
    [
        ("export PROFILING_MODE=true", ON, "run.sh:1"),
        ("python a\n" + P + "python b\n", ON, "run.sh:2"),
        ("PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("PROFILING_MODE=true\npython a\n", OFF, "run.sh:1"),
        ("PROFILING_MODE=true\nexport PROFILING_MODE\npython a\n", ON, "run.sh:1"),
        ("set -a\nPROFILING_MODE=true\nset +a\npython a\n", ON, "run.sh:2"),
        ("set -o allexport\nPROFILING_MODE=true\npython a\n", ON, "run.sh:2"),
        ("declare -x PROFILING_MODE=true\npython a\n", ON, "run.sh:1"),
        (P + "export -n PROFILING_MODE\npython a\n", OFF, "run.sh:1"),
        (P + "unset PROFILING_MODE\npython a\n", OFF, "run.sh:2"),
        (P + "python a\nunset PROFILING_MODE\n", ON, "run.sh:1"),
        (P + "export PROFILING_MODE=''\npython a\n", OFF, "run.sh:2"),
        ("export PROFILING_MODE=\npython a\n", OFF, "run.sh:1"),
        ("export PROFILING_MODE=''\npython a\n", OFF, "run.sh:1"),
        (P + "env -u PROFILING_MODE python a\n", OFF, "run.sh:2"),
        (P + "env -i python a\n", OFF, ""),
        (P + "env -iu A python a\n", OFF, ""),
        (P + "env -vu PROFILING_MODE python a\n", OFF, "run.sh:2"),
        ("env -S 'A=b PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("env -S'-u A PROFILING_MODE=true' python a\n", ON, "run.sh:1"),
        (P + "env -iS 'A=b python' a\n", OFF, ""),
        ("env --split-string='PROFILING_MODE=${X} python a'\n", UNKNOWN, "run.sh:1"),
        ("env -S \"it's\" python a\n", UNKNOWN, "run.sh:1"),
        ("sudo -E --user root PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        (P + "sudo -nHE -u root python a\n", ON, "run.sh:1"),
        (P + "sudo -uEve python a\n", UNKNOWN, "run.sh:2"),
        ("nice --adjustment 10 stdbuf --output L env PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("env PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("nohup nice -n 5 env PROFILING_MODE=true python a &\n", ON, "run.sh:1"),
        ("# " + P, OFF, ""),
        ("echo a # " + P, OFF, ""),
        ("echo 'export PROFILING_MODE=true'\n", OFF, ""),
        ("echo \"\n" + P + "\"\npython a\n", OFF, ""),
        ("exit 0\n" + P + "python a\n", OFF, ""),
        ("exec python a\n" + P + "python b\n", OFF, ""),
        ("export \\\n  PROFILING_MODE=true\npython a\n", ON, "run.sh:2"),
        ("export A=1 PROFILING_MODE=true B=2\npython a\n", ON, "run.sh:1"),
        ('M="true"; export PROFILING_MODE="$M"\npython a\n', ON, "run.sh:1"),
        ("M='$X'; export PROFILING_MODE=${M}\npython a\n", ON, "run.sh:1"),
        ("export PROFILING_MODE=${M:-true}\npython a\n", ON, "run.sh:1"),
        ("export PROFILING_MODE=${M:-}\npython a\n", OFF, "run.sh:1"),
        ("M=true\nexport PROFILING_MODE=${M:-0}\npython a\n", ON, "run.sh:2"),
        ("export PROFILING_MODE=${A:-${B:-true}}\npython a\n", ON, "run.sh:1"),
        ("export PROFILING_MODE=$M\npython a\n", UNKNOWN, "run.sh:1"),
        ("export PROFILING_MODE=$1\npython a\n", UNKNOWN, "run.sh:1"),
        ("export PROFILING_MODE=$(cat mode)\npython a\n", UNKNOWN, "run.sh:1"),
        ("export PROFILING_MODE=`cat mode`\npython a\n", UNKNOWN, "run.sh:1"),
        ("export PROFILING_MODE=${M%x}\npython a\n", UNKNOWN, "run.sh:1"),
        ("set -- true\nexport PROFILING_MODE=$1\npython a\n", ON, "run.sh:2"),
        ("if x; then " + P + "fi\npython a\n", UNKNOWN, "run.sh:1"),
        ("if x; then " + P + "else export PROFILING_MODE=dynamic\nfi\npython a\n", ON, "run.sh:2"),
        ("if x; then " + P + "else unset PROFILING_MODE\nfi\npython a\n", UNKNOWN, "run.sh:1"),
        (P + "if [ x ]; then unset PROFILING_MODE; fi\npython a\n", OFF, "run.sh:2"),
        (P + "if [ -f x ]; then unset PROFILING_MODE; fi\npython a\n", UNKNOWN, "run.sh:1"),
        (
            P + "if [ x ]; then unset PROFILING_MODE; else unset PROFILING_MODE; fi\npython a\n",
            OFF,
            "run.sh:2",
        ),
        ("case $1 in\n a) " + P + ";;\n b) ;;\nesac\npython a\n", UNKNOWN, "run.sh:2"),
        ("case $1 in\n a) " + P + ";;\n *) export PROFILING_MODE=true ;;\nesac\npython a\n", ON, "run.sh:4"),
        ("for i in 1 2; do\n" + P + "done\npython a\n", ON, "run.sh:2"),
        ("for i in $(cat x); do\n" + P + "done\npython a\n", UNKNOWN, "run.sh:2"),
        ("while [ -f x ]; do\n" + P + "done\npython a\n", UNKNOWN, "run.sh:2"),
        # A loop that nothing leaves is the end, and its body is surely run; what stands behind a way out is not.
        (P + "while :; do python a; sleep 1; done\n", ON, "run.sh:1"),
        ("while true; do\nPROFILING_MODE=true python a\ndone\n" + P, ON, "run.sh:2"),
        ("until false; do python a; done\n" + P + "python b\n", OFF, ""),
        ("for ((;;)); do python a; done\n" + P + "python b\n", OFF, ""),
        ("while :; do python a\n" + P + "done\n", UNKNOWN, "run.sh:2"),
        ("while :; do\n[ $x = x ] && break\nPROFILING_MODE=true python a\ndone\npython b\n", UNKNOWN, "run.sh:3"),
        ("f() {\n[ $x = x ] && return\nPROFILING_MODE=true python a\n}\nf\npython b\n", UNKNOWN, "run.sh:3"),
        ("f() {\n[ $x = x ] && return\n" + P + "}\nf\n" + P + "python b\n", ON, "run.sh:6"),
        # tree-sitter-bash 0.25 takes lines that follow for words of a command, or of a test.
        ("a | b | xargs -r kill -9\n" + P + "python a\n[ -n x ] && c\n", ON, "run.sh:2"),
        ("x= y=\n # comment\n" + P + "python a\n", ON, "run.sh:3"),
        ("x=1 y=2 # comment\n" + P + "python a\n", ON, "run.sh:2"),
        ('[ "$x" ] && y=1 > log\n' + P + "python a\n", ON, "run.sh:2"),
        ('[ "$I" -gt 1 ] && b > log\n' + P + "python a\n[ -n x ] && c\n", ON, "run.sh:2"),
        ("[ -d x ] || mkdir x > log 2>&1\n" * 20 + P + "python a > log\n[ -z x ] && c\n", ON, "run.sh:21"),
        ("[ -d x ] && b < c\n[ -z '' ] && " + P + "python a\n[ -n x ]\n", ON, "run.sh:2"),
        ("return || exit\n" + P + "python a\n", OFF, ""),
        ("(return 0) || " + P + "python a\n", ON, "run.sh:1"),
        ("f() {\n" + P + "}\npython a\n", OFF, ""),
        ("f() {\n" + P + "}\nf\npython a\n", ON, "run.sh:2"),
        ("function f {\n" + P + "}\nx && f\npython a\n", UNKNOWN, "run.sh:2"),
        ("[ -n x ] && " + P + "python a\n", ON, "run.sh:1"),
        ("[ -n $x ] && " + P + "python a\n", UNKNOWN, "run.sh:1"),
        # The table of what was wrong.
        (": ${PROFILING_MODE:=true}; export PROFILING_MODE\npython a\n", ON, "run.sh:1"),
        ("read PROFILING_MODE <<< true; export PROFILING_MODE\npython a\n", UNKNOWN, "run.sh:1"),
        ("printf -v PROFILING_MODE true; export PROFILING_MODE\npython a\n", ON, "run.sh:1"),
        ("source <(echo export PROFILING_MODE=true)\npython a\n", ON, "run.sh:1"),
        ("export PROFILING_MODE=true | tee log\npython a\n", OFF, ""),
        ("export PROFILING_MODE=true &\npython a\n", OFF, ""),
        ("{ export PROFILING_MODE=true; } | cat\npython a\n", OFF, ""),
        ("x || " + P + "python a\n", UNKNOWN, "run.sh:1"),
        ("cd /w && export PROFILING_MODE=true && python a\n", ON, "run.sh:1"),
        ("( " + P + ")\npython a\n", OFF, ""),
        ("( " + P + "python a )\n", ON, "run.sh:1"),
        ("{ " + P + "}\npython a\n", ON, "run.sh:1"),
        ("[[ a > b && c < d ]]\n" + P + "python a\n", ON, "run.sh:2"),
        ("((i << 2))\n" + P + "python a\n", ON, "run.sh:2"),
        ("X=$((1 << 2))\n" + P + "python a\n", ON, "run.sh:2"),
        ("python a > log 2>&1 <<< x\n" + P + "python a\n", ON, "run.sh:2"),
        ("cat > other.sh <<EOF\n" + P + "EOF\npython a\n", OFF, ""),
        ("cat > other.sh <<-'EOF'\n\t" + P + "\tEOF\npython a\n", OFF, ""),
        ("cat <<EOF\n'unclosed\nEOF\n" + P + "python a\n", ON, "run.sh:4"),
        ("bash <<EOF\n" + P + "python a\nEOF\n", ON, "run.sh:2"),
        ("cat <<EOF | bash\n" + P + "python a\nEOF\n", ON, "run.sh:2"),
        ("python - <<EOF\nimport os\nos.environ['PROFILING_MODE'] = 'true'\nEOF\n", ON, "run.sh:3"),
        ("bash -s -- true <<'EOF'\nexport PROFILING_MODE=$1\npython a\nEOF\n", ON, "run.sh:2"),
        ("bash -es x <<< 'PROFILING_MODE=$1 python a'\n", ON, "run.sh:1"),
        ("bash -c 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("conda run -n env env PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("docker run --name env -e A=b image env PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("python -c 'import os; os.environ[\"PROFILING_MODE\"] = \"true\"'\n", ON, "run.sh:1"),
        ("eval 'export PROFILING_MODE=true'\npython a\n", ON, "run.sh:1"),
        ("OUT=$(PROFILING_MODE=true python a)\n", ON, "run.sh:1"),
        ("docker run -e PROFILING_MODE=true image python a\n", ON, "run.sh:1"),
        (P + "docker run image python a\n", OFF, ""),
        (P + "docker run -e PROFILING_MODE image python a\n", ON, "run.sh:1"),
        ("docker -H h run -e PROFILING_MODE=true image python a\n", ON, "run.sh:1"),
        ("docker run -v/x:/x -e PROFILING_MODE=true image python a\n", ON, "run.sh:1"),
        ("docker run -e=PROFILING_MODE=true image python a\n", ON, "run.sh:1"),
        ("docker run --publish-all -e PROFILING_MODE=true image python a\n", ON, "run.sh:1"),
        ("podman run --replace --no-hosts --env PROFILING_MODE=true image python a\n", ON, "run.sh:1"),
        ("docker compose run -T -e PROFILING_MODE=true box python a\n", ON, "run.sh:1"),
        (P + "podman run --env-host image python a\n", ON, "run.sh:1"),
        (P + "podman run --env-host -e PROFILING_MODE= image python a\n", OFF, "run.sh:2"),
        ("docker compose -f x.yml run -e PROFILING_MODE=true box python a\n", ON, "run.sh:1"),
        ("docker run $OPTIONS image python a\n", UNKNOWN, "run.sh:1"),
        ("ray job submit --runtime-env $FILE -- python a\n", UNKNOWN, "run.sh:1"),
        ("cd $X\nray job submit --runtime-env env.yaml -- python a\n", UNKNOWN, "run.sh:2"),
        ("exit \u00b2\n" + P + "python a\n", OFF, ""),
        ("unset HOME\nexport PROFILING_MODE=~/x\npython a\n", UNKNOWN, "run.sh:2"),
        (
            """ray job submit --runtime-env-json='{"env_vars": {"PROFILING_MODE": "true"}}' -- python a\n""",
            ON,
            "run.sh:1",
        ),
        (
            """ray job submit --runtime-env-json '{"env_vars": {"PROFILING_MODE": ""}}' -- python a\n""",
            OFF,
            "run.sh:1",
        ),
        ("ray job submit --runtime-env-json=\"$ENV\" -- python a\n", UNKNOWN, "run.sh:1"),
        ("ray job submit --runtime-env=gone.yaml -- python a\n", UNKNOWN, "run.sh:1"),
        ("if x; then exit; fi\n" + P + "python a\n", ON, "run.sh:2"),
        ("mpirun -np 2 -x PATH -x PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("mpirun -np 2 -x PATH python a -x PROFILING_MODE=true\n", UNKNOWN, "run.sh:1"),
        ("mpirun $(args) python a\n", UNKNOWN, "run.sh:1"),
        ("mpiexec -n 2 -genv PROFILING_MODE true python a\n", ON, "run.sh:1"),
        ("srun --export=ALL,PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("srun --export ALL,$(one) python a\n", UNKNOWN, "run.sh:1"),
        (P + "srun --export=NONE python a\n", OFF, ""),
        (P + "srun --export=A=1 python a\n", OFF, ""),
        (P + "srun --export=A=1,PROFILING_MODE python a\n", ON, "run.sh:1"),
        (P + "srun --export=$E python a\n", UNKNOWN, "run.sh:2"),
        ("mpirun -np \"$N\" python a\n", OFF, ""),
        ("mpirun -np $N --hostfile $H python a\n", OFF, ""),
        ("mpirun --oversubscribe $A python a\n", UNKNOWN, "run.sh:1"),
        ("mpirun -x A=b,PROFILING_MODE=true python a\n", UNKNOWN, "run.sh:1"),
        ("nsys profile -o $OUT python a\n", OFF, ""),
        ("sbatch --export=ALL,PROFILING_MODE=true --wrap='python a'\n", ON, "run.sh:1"),
        (P + "sbatch --export NONE --wrap 'python a'\n", OFF, ""),
        ("sbatch --wrap 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("sbatch -N 2 <<EOF\n#!/bin/bash\n" + P + "srun python a\nEOF\n", ON, "run.sh:3"),
        (P + "srun -n 2 python a\n", ON, "run.sh:1"),
        ("nsys profile -e A=1,PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("apptainer exec --env PROFILING_MODE=true i.sif python a\n", ON, "run.sh:1"),
        ("apptainer exec --env-file e i.sif python a\n", UNKNOWN, "run.sh:1"),
        ("export APPTAINERENV_PROFILING_MODE=true\napptainer exec i.sif python a\n", ON, "run.sh:1"),
        ("ssh h 'export PROFILING_MODE=true; python a'\n", ON, "run.sh:1"),
        (P + "ssh h 'python a'\n", OFF, ""),
        ('ssh h "$(cat c)"\n', UNKNOWN, "run.sh:1"),
        ("ssh -o 'StrictHostKeyChecking no' h 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("ssh -p 22 h PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("ssh \"$H\" 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("ssh $H 'python a'\n", OFF, ""),
        ("ssh $O h PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("ssh h -- PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("su \"$U\" -c 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("su --command='PROFILING_MODE=true python a' u\n", ON, "run.sh:1"),
        ("runuser -u u -- env PROFILING_MODE=true python a\n", ON, "run.sh:1"),
        ("tmux new -s \"$S\" 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("docker run --entrypoint bash image -c 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("docker run --entrypoint=/bin/sh image -c 'python a'\n", OFF, ""),
        (P + "docker run --entrypoint python image a\n", OFF, ""),
        ("parallel -j 2 'PROFILING_MODE=true python {}' ::: a b\n", ON, "run.sh:1"),
        ("ls | parallel python a {}\n", OFF, ""),
        (P + "time -p python a\n", ON, "run.sh:1"),
        ("tmux send-keys -t s 'PROFILING_MODE=true python a' Enter\n", ON, "run.sh:1"),
        ('bash -c "A=$(b) python a"\n', UNKNOWN, "run.sh:1"),
        (P + "su - u -c 'python a'\n", OFF, ""),
        (P + "su u -c 'python a'\n", ON, "run.sh:1"),
        ("tmux new -d 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
        ("tmux new -d 'python a'\n", UNKNOWN, "run.sh:1"),
        ("screen -dm bash -c 'PROFILING_MODE=true python a'\n", ON, "run.sh:1"),
    ],
)  # fmt: skip
def test_shell(tmp_path: Path, text: str, expected: State, where: str) -> None:
    found = state(write(tmp_path, "run.sh", text))
    assert found == (expected, where)


def test_what_has_nothing_to_read_loads_no_reader() -> None:
    program = "import sys; from patcher.launches import read; read({}); print('tree_sitter' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"export PROFILING_MODE=true\r\npython a\r\n", (ON, "run.sh:1")),
        (b"export PROFILING_MODE=''\r\npython a\r\n", (OFF, "run.sh:1")),
        (b"export \\\r\n  PROFILING_MODE=true\r\npython a\r\n", (ON, "run.sh:2")),
        (b"\xef\xbb\xbfexport PROFILING_MODE=true\n", (ON, "run.sh:1")),
        ("# 性能\nexport PROFILING_MODE=true\n".encode("gbk"), (ON, "run.sh:2")),
        (b"", (OFF, "")),
    ],
)
def test_bytes_of_every_kind(tmp_path: Path, text: bytes, expected: tuple[State, str]) -> None:
    assert state(write(tmp_path, "run.sh", text)) == expected


@pytest.mark.parametrize(
    ("text", "expected", "where"),
    [
        ("import os\nos.environ['PROFILING_MODE'] = 'true'\n", ON, "run.py:2"),
        ("from os import environ\nenviron['PROFILING_MODE'] = 'true'\n", ON, "run.py:2"),
        ("import os\nos.environ['PROFILING_MODE'] = ''\n", OFF, "run.py:2"),
        ("import os\nos.environ.setdefault('PROFILING_MODE', 'true')\n", ON, "run.py:2"),
        ("import os\nos.putenv('PROFILING_MODE', 'true')\n", ON, "run.py:2"),
        ("import os\nos.environ.update({'PROFILING_MODE': 'true'})\n", ON, "run.py:2"),
        ("import os\nos.environ.update(PROFILING_MODE='true')\n", ON, "run.py:2"),
        ("import os\nM = 'tr'\nos.environ['PROFILING_MODE'] = f'{M}ue'\n", ON, "run.py:3"),
        ("import os\nos.environ['PROFILING_MODE'] = mode()\n", UNKNOWN, "run.py:2"),
        ("import os\nfor k, v in x.items():\n    os.environ[k] = v\n", UNKNOWN, "run.py:3"),
        ("import os\nos.environ.update(x)\n", UNKNOWN, "run.py:2"),
        ("import os\nos.environ['PROFILING_MODE'] = 'true'\nos.environ.update(os.environ)\n", ON, "run.py:2"),
        ("import os\nos.environ |= {**os.environ, 'PROFILING_MODE': ''}\n", OFF, "run.py:2"),
        ("import os\nos.environ.update({os.environ: x})\n", UNKNOWN, "run.py:2"),
        ("import os\nos.environ.update(A='1', **x)\n", UNKNOWN, "run.py:2"),
        ("import os\nos.environ.update({**x, 'PROFILING_MODE': 'true'})\n", ON, "run.py:2"),
        ("import os\nos.environ['PROFILING_MODE'] = 'true'\nos.environ.pop(x)\n", UNKNOWN, "run.py:2"),
        ("import os\nos.environ['PROFILING_MODE'] = ''\nos.environ.setdefault('PROFILING_MODE', 'true')\n", OFF, "run.py:2"),
        ("import os\nos.environ |= x\n", UNKNOWN, "run.py:2"),
        ("import os\nos.environ |= {'PROFILING_MODE': 'true'}\n", ON, "run.py:2"),
        ("import os\nos.environ.clear()\n", OFF, ""),
        ("import os\nif x:\n    os.environ['PROFILING_MODE'] = 'true'\n", UNKNOWN, "run.py:3"),
        ("import os\ndef never():\n    os.environ['PROFILING_MODE'] = 'true'\n", UNKNOWN, "run.py:3"),
        ("import os\ndef main():\n    os.environ['PROFILING_MODE'] = 'true'\nmain()\n", ON, "run.py:3"),
        (
            "import os\nif __name__ == '__main__':\n    os.environ['PROFILING_MODE'] = 'true'\n",
            ON,
            "run.py:3",
        ),
        (
            "import os\nos.environ['PROFILING_MODE'] = 'true'\ndel os.environ['PROFILING_MODE']\n",
            OFF,
            "run.py:3",
        ),
        (
            "import os\nos.environ['PROFILING_MODE'] = 'true'\nos.environ.pop('PROFILING_MODE', None)\n",
            OFF,
            "run.py:3",
        ),
        ("import ray\nray.init(runtime_env={'env_vars': {'PROFILING_MODE': 'true'}})\n", ON, "run.py:2"),
        ("subprocess.run(['python', 'a'], env=dict(os.environ, PROFILING_MODE='true'))\n", ON, "run.py:1"),
        ("env = os.environ.copy()\nenv['PROFILING_MODE'] = 'true'\nsubprocess.run(['a'], env=env)\n", ON, "run.py:2"),
        ("env = dict(os.environ)\nif x:\n    env['PROFILING_MODE'] = 'true'\n", UNKNOWN, "run.py:3"),
        ("env = os.environ\nenv['PROFILING_MODE'] = 'true'\nLLM('m')\n", ON, "run.py:2"),
        ("env = os.environ\nenv.update(PROFILING_MODE='true')\nenv.pop('PROFILING_MODE')\n", OFF, "run.py:3"),
        ("from subprocess import run\nrun(['env', 'PROFILING_MODE=true', 'python', 'a'])\n", ON, "run.py:2"),
        ("import os\nos.system('PROFILING_MODE=true python a')\n", ON, "run.py:1"),
        ("import os\nos.environ['PROFILING_MODE'] = '0'\nos.environ['PROFILING_MODE'] += '1'\n", UNKNOWN, "run.py:3"),
        ("import os\nM = '0'\nM += '1'\nos.environ['PROFILING_MODE'] = M\n", UNKNOWN, "run.py:4"),
        ("@ray.remote(runtime_env={'env_vars': {'PROFILING_MODE': 'true'}})\ndef f(): ...\nf()\n", ON, "run.py:1"),
        ("# os.environ['PROFILING_MODE'] = 'true'\nprint('PROFILING_MODE=true')\n", OFF, ""),
        ("print 'python two'\nos.environ['PROFILING_MODE'] = 'true'\n", UNKNOWN, "run.py:2"),
        (MATCH + "    case _:\n        os.environ['PROFILING_MODE'] = 'true'\n", ON, "run.py:5"),
        (MATCH + "    case _ if y:\n        os.environ['PROFILING_MODE'] = 'true'\n", UNKNOWN, "run.py:5"),
        (MATCH, UNKNOWN, "run.py:3"),
        ("import os as o\no.environ['PROFILING_MODE'] = 'true'\n", ON, "run.py:2"),
        ("from os import environ as e\ne['PROFILING_MODE'] = 'true'\n", ON, "run.py:2"),
        ("os.environ['A'], os.environ['PROFILING_MODE'] = '1', 'true'\n", ON, "run.py:1"),
        ("a, os.environ['PROFILING_MODE'] = f()\n", UNKNOWN, "run.py:1"),
        ("load_dotenv()\n", UNKNOWN, "run.py:1"),
        ("subprocess.run(f'PROFILING_MODE={y} python a', shell=True)\n", UNKNOWN, "run.py:1"),
        ("subprocess.run(command, shell=shell)\n", UNKNOWN, "run.py:1"),
        ("subprocess.run(command)\n", UNKNOWN, "run.py:1"),
        ("cmd = ['env', 'A=1']\ncmd.extend(more)\nsubprocess.run(cmd)\n", UNKNOWN, "run.py:3"),
        ("subprocess.run(args=['env', 'PROFILING_MODE=true', 'python', 'a'])\n", ON, "run.py:1"),
        ("os.execvp('env', ['env', 'PROFILING_MODE=true', 'python', 'a'])\n", ON, "run.py:1"),
        ("create_subprocess_exec('env', 'PROFILING_MODE=true', 'python', 'a')\n", ON, "run.py:1"),
        ("subprocess.call(f'rm -rf {d}', shell=True)\n", OFF, ""),
        ("os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'PROFILING_MODE=true python a.py')\n", UNKNOWN, "run.py:1"),
        ("c.submit_job(entrypoint='PROFILING_MODE=true python a.py')\n", UNKNOWN, "run.py:1"),
        ("c.exec_command(f'cd {d}; export PROFILING_MODE=true; python a.py')\n", UNKNOWN, "run.py:1"),
        ("set_variable('PROFILING_MODE', 'true')\n", UNKNOWN, "run.py:1"),
        ("log('PROFILING_MODE=true')\n", OFF, ""),
        ("exec(open('settings.py').read())\n", UNKNOWN, "run.py:1"),
    ],
)  # fmt: skip
def test_python(tmp_path: Path, text: str, expected: State, where: str) -> None:
    found = state(write(tmp_path, "run.py", text))
    assert found[0] is expected
    if "os.system" not in text:
        assert found[1] == where


def test_python_does_not_warn_of_a_script_that_is_just_read(tmp_path: Path) -> None:
    script = write(tmp_path, "run.py", "import os\nos.environ['PROFILING_MODE'] = '\\d'\nif 1 is 1: 0x1for\n")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        state(script)
    assert warned == []


ENGINE_CALLS = [
    ("LLM('m', profiler_config={'profiler': 'torch', 'torch_profiler_dir': d})", State.ARMED),
    ("LLM('m', profiler_config=ProfilerConfig(profiler='torch', torch_profiler_dir='/t'))", State.ARMED),
    ("c = {'profiler': 'torch'}\nLLM('m', profiler_config=c)", State.ARMED),
    ("LLM(**{'model': 'm', 'profiler_config': {'profiler': 'torch'}})", State.ARMED),
    ("args = {'model': 'm'}\nargs['profiler_config'] = {'profiler': 'torch'}\nLLM(**args)", State.ARMED),
    ("LLM('m', profiler_config=None)", OFF),
    ("LLM('m', profiler_config=args.profiler)", UNKNOWN),
    ("llm = LLM('m', profiler_config={'profiler': 'torch'})\nllm.start_profile()", ON),
    ("llm = LLM('m', profiler_config={'profiler': 'torch'})\nif x:\n    llm.start_profile()", UNKNOWN),
    ("llm = LLM('m', profiler_config={'profiler': 'torch'})\nprint('see /start_profile')", State.ARMED),
    ("LLM('m', profiler_config={'profiler': 'torch'})\nrequests.post(f'{url}/start_profile')", ON),
    ("subprocess.Popen(['vllm', 'serve', '--profiler-config.profiler=torch'])", State.ARMED),
    ("pty.spawn(['vllm', 'serve', 'm', '--profiler-config.profiler=torch'])", UNKNOWN),
    ("c.exec_command('vllm serve m --profiler-config.profiler=torch')", UNKNOWN),
    ("hydra.main(config_path='../verl/config', config_name='ppo_trainer')", OFF),
    (
        "cmd = ['vllm', 'serve', '--profiler-config', '{\"profiler\": \"torch\"}']\nsubprocess.run(cmd)",
        State.ARMED,
    ),
]


@pytest.mark.parametrize(("text", "expected"), ENGINE_CALLS)
def test_engine_calls_in_python(tmp_path: Path, text: str, expected: State) -> None:
    script = write(tmp_path, "run.py", text + "\n")
    findings = detect(VLLM_ASCEND, version="0.14.0rc1", environ={}, script=script)
    assert max(findings, key=lambda one: one.state.severity).state is expected


@pytest.mark.parametrize(
    "command",
    ["bash {0}", "sh -x {0}", "bash -eo pipefail {0} a b", "{0}", "env A=b bash {0}", "env -u B A=b {0}",
     "nohup bash {0}", "sudo -E bash {0}", "timeout 10m bash {0}", "bash -c {0}",
     "ray job submit --working-dir . -- bash {0}", "srun -n 2 bash {0}",
     "docker exec box bash {0}", "sbatch -N 2 {0}"],
)  # fmt: skip
def test_commands_that_name_a_script(tmp_path: Path, command: str) -> None:
    script = write(tmp_path, "run.sh", "# nothing\n" + P + "python a\n")
    assert state(command=tuple(command.format(script).split())) == (ON, "run.sh:2")


@pytest.mark.parametrize(
    "command", ["python {0}", "python3.11 -u -W ignore {0}", "torchrun --nproc_per_node 8 {0}", "{0}"]
)
def test_commands_that_name_a_python_script(tmp_path: Path, command: str) -> None:
    script = write(tmp_path, "train.py", "import os\nos.environ['PROFILING_MODE'] = 'true'\n")
    assert state(command=tuple(command.format(script).split())) == (ON, "train.py:2")


def test_arguments_of_the_command_reach_the_script(tmp_path: Path) -> None:
    script = write(tmp_path, "run.sh", 'export PROFILING_MODE=$2\npython a "$@"\n')
    assert state(command=("bash", str(script), "x", "")) == (OFF, "run.sh:1")
    assert state(command=("bash", str(script), "x", "true")) == (ON, "run.sh:1")
    assert read({}, command=("bash", str(script), "x", "--y"))[0].argv == ("python", "a", "x", "--y")


def test_variables_of_the_command_reach_the_script(tmp_path: Path) -> None:
    script = write(tmp_path, "run.sh", "python a\n")
    assert state(command=("env", "PROFILING_MODE=true", "bash", str(script))) == (ON, "command after --")
    assert state(environ={"PROFILING_MODE": "true"}, command=("env", "-u", "PROFILING_MODE", str(script)))[0] is OFF


@pytest.mark.parametrize(
    "call",
    ["source env.sh", ". ./env.sh", "bash other.sh", "./other.sh", 'source "$(dirname "$0")/env.sh"',
     'bash "$HERE/other.sh"',
     "python train.py"],
)  # fmt: skip
def test_scripts_that_a_script_calls(tmp_path: Path, call: str) -> None:
    write(tmp_path, "env.sh", P)
    write(tmp_path, "other.sh", P + "python a\n")
    write(tmp_path, "train.py", "import os\nos.environ['PROFILING_MODE'] = 'true'\n")
    name = "train.py:2" if "train" in call else "env.sh:1" if "env" in call else "other.sh:1"
    assert state(write(tmp_path, "run.sh", call + "\npython a\n")) == (ON, name)


def test_a_child_script_does_not_change_its_parent(tmp_path: Path) -> None:
    write(tmp_path, "other.sh", "unset PROFILING_MODE\n")
    assert state(write(tmp_path, "run.sh", P + "bash other.sh\npython a\n")) == (ON, "run.sh:1")
    assert state(write(tmp_path, "run.sh", P + "source other.sh\npython a\n")) == (OFF, "other.sh:1")


def test_scripts_that_call_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, "b.sh", "source a.sh\nbash a.sh\nbash b.sh\n" + P + "python a\n")
    assert state(write(tmp_path, "a.sh", "bash b.sh\nsource a.sh\n"), lines=3)[0] is ON


def test_arrays_and_split_words_become_options(tmp_path: Path) -> None:
    text = """ARGS=(
  --model m  # the model
  --profiler-config '{"profiler": "torch"}'
)
ARGS+=("$X")
MORE="--a b"
vllm serve "${ARGS[@]}" $MORE "$MORE"
"""
    (launch,) = read({"X": "1 2"}, write(tmp_path, "run.sh", text))
    assert launch.argv == (
        *("vllm", "serve", "--model", "m", "--profiler-config", '{"profiler": "torch"}'),
        *("1 2", "--a", "b", "--a b"),
    )
    assert launch.where.endswith("run.sh:7")


MAYBE = [
    "vllm serve m --profiler-config=$P",
    'vllm serve m --profiler-config.profiler="$P"',
    "vllm serve m --profiler-config $(cat p.json)",
    "E=\nif x; then E='--profiler-config.profiler=torch'; fi\nvllm serve m $E",
    "if x; then E='--profiler-config.profiler torch'; fi\nvllm serve m $E",
    'A=(-a)\nif x; then A+=(--profiler-config \'{"profiler": "torch"}\'); fi\nvllm serve m "${A[@]}"',
    'if x; then A=(--profiler-config \'{"profiler": "torch"}\'); fi\nvllm serve m "${A[@]}"',
    "if x; then vllm serve m --profiler-config.profiler=torch; fi",
]


@pytest.mark.parametrize("text", MAYBE)
def test_options_that_may_be_given_are_unknown(tmp_path: Path, text: str) -> None:
    findings = detect(VLLM_ASCEND, version="0.14.0rc1", environ={}, script=write(tmp_path, "run.sh", text + "\n"))
    (found,) = [one for one in findings if one.state is not OFF]
    assert (found.state, found.found[:17]) == (UNKNOWN, "--profiler-config")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m $(args)", UNKNOWN), ("vllm serve m --port 1 $ARGS", UNKNOWN), ('vllm serve "${A[@]}" $B', UNKNOWN),
        ("python -m vllm.entrypoints.openai.api_server $ARGS", UNKNOWN), ("vllm serve m --port $PORT --seed $S", OFF),
        ('MODEL=m; vllm serve "$MODEL" --port 1', OFF), ("vllm serve m --port=$P", OFF), ("python train.py $ARGS", OFF),
        ("vllm serve m $ARGS --profiler-config.profiler=torch", State.ARMED),
        ("vllm serve m --enforce-eager $(flags)", UNKNOWN), ("vllm serve m --no-enable-x $F --port 1", UNKNOWN),
        ("vllm serve a --profiler-config null; vllm serve b $ARGS", UNKNOWN),
        ("vllm serve m --profiler-config null $ARGS", UNKNOWN), ("vllm serve m $ARGS --profiler-config null", UNKNOWN),
        ("xargs vllm serve m < flags", UNKNOWN), ("parallel -a flags vllm serve m", UNKNOWN),
        ("$(which vllm) serve m $(flags)", UNKNOWN), ("$V/bin/vllm serve m $(flags)", UNKNOWN),
        ("docker run -p 1:1 vllm/vllm-openai:v0.11 --model m $(flags)", UNKNOWN),
        ('MODEL=$(ls | head -1); vllm serve "$MODEL"', OFF), ('vllm serve m --port "$(one)"', OFF),
        ("vllm serve m --profiler-config.profiler=torch --config serve.yaml", State.ARMED),
    ],
)  # fmt: skip
def test_options_among_words_that_only_the_run_tells(tmp_path: Path, text: str, expected: State) -> None:
    script = write(tmp_path, "run.sh", text + "\n")
    findings = detect([ENGINE_OPTION], version="0.20.2rc1", environ={}, script=script)
    assert [one.state for one in findings] == [expected]
    assert "some of its words" in findings[0].reason or expected is not UNKNOWN


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vllm serve --config serve.yaml", "in the file"), ("vllm serve --config=serve.yaml m", "in the file"),
        ("bash gone.sh", "not here"), ("source ./gone.sh; vllm serve m", "not here"), ("./launch m", "not here"),
        ('python -c "$(cat x)"', "only known"),
        ('eval "$(cat x)"', "only known"), ('bash -c "$(cat x)"', "only known"), ('$PROGRAM serve m', "which program"),
        ('ssh h "vllm serve m $(cat flags)"', "only known"), ("ssh h < run.sh", "only known"),
        ("make serve", "stands in a file"), ("docker compose -f a.yml up -d", "stands in a file"),
        ("kubectl apply -f job.yaml", "stands in a file"),
        ("pdsh -w h 'vllm serve m --profiler-config.profiler=torch'", "may not run"),
        ("start <<EOF\nvllm serve m --profiler-config.profiler=torch\nEOF", "may not run"),
        ("start vllm serve m --profiler-config.profiler=torch", "may not run"),
    ],
)  # fmt: skip
def test_what_starts_elsewhere_may_have_an_option(tmp_path: Path, text: str, reason: str) -> None:
    script = write(tmp_path, "run.sh", text + "\n")
    findings = detect([ENGINE_OPTION], version="0.20.2rc1", environ={}, script=script)
    assert {one.state for one in findings if reason in one.reason} == {UNKNOWN}


# In Python: a function is run when it is called, and nobody knows of most when and whether.
E = "os.environ['PROFILING_MODE'] = 'true'\n"
D = "del os.environ['PROFILING_MODE']\n"
CLOSURE = f"def go():\n    {E}    e = dict(os.environ)\n    def f(): subprocess.run(['python', 'a'], env=e)\n    {D}    f()\ngo()\n"
BRANCHES = """e = dict(os.environ)
if x: e.update(settings())
else: e['PROFILING_MODE'] = ''
subprocess.run(['python', 'a'], env=e)
"""
SHADOWED = """e = dict(os.environ)
def f(): e['PROFILING_MODE'] = 'true'
def g():
    e = {}
    f()
g()
subprocess.run(['python', 'a'], env=e)
"""
CALLS = [
    (f"def f():\n    {E}\ndef main():\n    if args.p: f()\nmain()\n", UNKNOWN),
    (f"def main():\n    if not args.p: return\n    {E}\nmain()\n", UNKNOWN),
    (f"def f():\n    {E}\nif x: f()\n", UNKNOWN),
    (f"def main():\n    {E}\nif __name__ == '__main__':\n    main()\n", ON),
    (f"import sys\nsys.exit()\n{E}", OFF),
    (f"import sys\nif x: sys.exit()\n{E}", UNKNOWN),
    (f"def main():\n    subprocess.run(['python', 'a'])\n{E}main()\n", ON),
    (f"from vllm import LLM\ndef f():\n    subprocess.run(['python', 'a'])\n{E}f()\nLLM()\n", ON),
    ("subprocess.run(['a'], env={**os.environ, **extra})\n", UNKNOWN),
    ("subprocess.run(['a'], env=make())\n", UNKNOWN),
    ("e = os.environ.copy()\ne.update(extra)\nsubprocess.run(['a'], env=e)\n", UNKNOWN),
    ("e = os.environ.copy()\ne[x] = 'true'\nsubprocess.run(['a'], env=e)\n", UNKNOWN),
    ("e = os.environ.copy()\nsubprocess.run(['a'], env=e)\n", OFF),
    ("subprocess.run(['a'], env={**os.environ, 'PROFILING_MODE': 'true'})\n", ON),
    ("os.execve('/bin/python', ['python', 'a'], env)\n", UNKNOWN),
    # The process of the file itself: it may be an engine wherever it calls something that is not Python's own.
    (f"{E}LLM('m')\ndel os.environ['PROFILING_MODE']\n", UNKNOWN),
    (f"{E}LLM('m')\n", ON),
    (f"LLM('m')\n{E}", UNKNOWN),
    (f"{E}run()\nos.environ.pop('PROFILING_MODE')\nrun()\n", UNKNOWN),
    (f"{E}os.environ['PROFILING_MODE'] = ''\nLLM('m')\n", OFF),
    (f"import argparse\np = argparse.ArgumentParser()\na = p.parse_args()\n{E}LLM(a.model)\n", ON),
    (f"import threading\nthreading.Thread(target=serve).start()\n{E}", UNKNOWN),
    (f"app()\ndef main():\n    {E}\napp()\n", UNKNOWN),
    (f"def f():\n    LLM('m')\n{E}f()\ndel os.environ['PROFILING_MODE']\n", UNKNOWN),
    (f"def main():\n    LLM('m')\nmain()\n{E}main()\n", UNKNOWN),
    (f"def main():\n    LLM('m')\n{E}main()\ndel os.environ['PROFILING_MODE']\nmain()\n", UNKNOWN),
    ("import os\n" + "".join(f"os.environ['A'] = '{n}'\nrun()\n" for n in range(60)), UNKNOWN),
    # One that imports nothing else is none, and what it starts may be.
    (f"{E}subprocess.run(['python', 'a'], env={{'A': 'b'}})\n", OFF),
    (f"{E}subprocess.run(['python', 'a'])\ndel os.environ['PROFILING_MODE']\n", ON),
    (f"subprocess.run(['python', 'a'])\n{E}", OFF),
    (f"import torch\n{E}subprocess.run(['python', 'a'], env={{'A': 'b'}})\n", ON),
    (f"from . import a\n{E}subprocess.run(['python', 'a'], env={{'A': 'b'}})\n", ON),
    (f"{E}subprocess.run(['python', 'a'], env={{'A': 'b'}})\n__import__('torch')\n", ON),
    ("os.environb[b'PROFILING_MODE'] = b'true'\n", ON),
    ("subprocess.run([b'env', b'PROFILING_MODE=true', b'python', b'a'])\n", ON),
    # A function of the file is followed where it is called, and a loop begins again with what it left.
    (f"from vllm import LLM\ndef go():\n    {E}go()\nLLM('m')\n", ON),
    (f"from vllm import LLM\ndef go():\n    {E}LLM('m')\ngo()\n", UNKNOWN),
    (f"from vllm import LLM\ndef go():\n    if x: return\n    {E}go()\nLLM('m')\n", UNKNOWN),
    (f"def go():\n    subprocess.run(['python', 'a'])\n{E}go()\n{D}", ON),
    (f"def go():\n    if x: return\n    {D}{E}go()\nrun()\n", UNKNOWN),
    (f"def go():\n    {E}def run():\n    go()\n    subprocess.run(['python', 'a'])\nrun()\n", ON),
    (f"def go():\n    {E}    LLM('m')\n    {D}Thread(target=go).start()\n", UNKNOWN),
    (f"class C:\n    def __init__(self):\n        {E}C()\n{D}C()\nLLM('m')\n", UNKNOWN),
    (f"import asyncio, vllm\nasync def go():\n    {E}    vllm.LLM('m')\nasyncio.run(go())\n", ON),
    (f"import asyncio, vllm\nasync def go():\n    {E}    vllm.LLM('m')\ngo()\n", UNKNOWN),
    (f"def go():\n    go()\n    {E}go()\nsubprocess.run(['python', 'a'])\n", ON),
    (f"def go():\n    if x: go()\n    subprocess.run(['python', 'a'])\n    {E}go()\n", UNKNOWN),
    ("".join(f"def f{n}():\n    f{n + 1}()\n" for n in range(30)) + f"def f30():\n    {E}f0()\nrun()\n", UNKNOWN),
    ("e = dict(os.environ)\ne = {'PROFILING_MODE': 'true'}\nsubprocess.run(['python', 'a'], env=e)\n", ON),
    (f"e = dict(os.environ)\n{E}e = os.environ.copy()\nsubprocess.run(['python', 'a'], env=e)\n", ON),
    (f"{E}e = dict(os.environ)\ne = {{}}\nsubprocess.run(['python', 'a'], env=e)\n", OFF),
    (f"def go():\n    global e\n    e = dict(os.environ)\n{E}go()\nsubprocess.run(['python', 'a'], env=e)\n", ON),
    ("e = {'PROFILING_MODE': 'true'}\nsubprocess.run(['python', 'a'], env=e)\n", ON),
    ("e = dict(os.environ)\ne['PROFILING_MODE'] = 'true'\nlaunch(e)\n", UNKNOWN),
    ("e = {'PROFILING_MODE': 'true'}\nlaunch(e)\n", UNKNOWN),
    ("e = dict(os.environ)\ne['PROFILING_MODE'] = 'true'\nload_dotenv()\nsubprocess.run(['python', 'a'], env=e)\n", ON),
    (f"{E}e = dict(os.environ)\nos.environ.clear()\nos.environ.update(e)\nsubprocess.run(['python', 'a'])\n", ON),
    (BRANCHES, UNKNOWN),
    ("e = {'PROFILING_MODE': 'true'}\ne['PROFILING_MODE'] = ''\nray.init(runtime_env={'env_vars': e})\n", OFF),
    ("e = {}\ne['PROFILING_MODE'] = 'true'\nray.init(runtime_env={'env_vars': e})\n", ON),
    ("ray.init(runtime_env={'env_vars': {**settings(), 'A': 'b'}})\n", UNKNOWN),
    ("from a import *\ne = e.copy()\nsubprocess.run(['python', 'a'], env=e)\n", UNKNOWN),
    ("from a import *\ne = e | f\nf = e | {'A': 'b'}\nsubprocess.run(['python', 'a'], env=f)\n", UNKNOWN),
    ("def go():\n    d = e | c\n    e = d | c\n    subprocess.run(['python', 'a'], env=e)\ngo()\n", UNKNOWN),
    (CLOSURE, ON),
    (SHADOWED, UNKNOWN),
    (f"while x():\n    LLM('m')\n    {E}os.environ.pop('PROFILING_MODE', None)\n", UNKNOWN),
    (f"for i in x:\n    {E}    if i: break\n    {D}run()\n", UNKNOWN),
    (f"for i in x:\n    {E}else:\n    {D}subprocess.run(['python', 'a'])\n", OFF),
    # What may not be run, and what may be left early.
    ("os.environ.update({'PROFILING_MODE': 'true'}) if x else None\n", UNKNOWN),
    ("x and os.environ.update({'PROFILING_MODE': 'true'})\n", UNKNOWN),
    ("f = lambda: os.environ.update({'PROFILING_MODE': 'true'})\nf()\n", UNKNOWN),
    ("[os.environ.update({'PROFILING_MODE': 'true'}) for i in x]\n", UNKNOWN),
    (f"{E}try:\n    {D}    run()\n    {E}except E:\n    pass\nsubprocess.run(['python', 'a'])\n", UNKNOWN),
    ("LLM(os.environ.setdefault('PROFILING_MODE', 'true'))\n", ON),
]


@pytest.mark.parametrize(
    "env",
    ["dict(os.environ)\ne['V'] = '/t'", "{}\ne['V'] = '/t'", "{**os.environ, 'V': '/t'}", "dict(os.environ, V='/t')"],
)
def test_what_a_child_surely_gets_is_not_unknown(tmp_path: Path, env: str) -> None:
    text = (
        f"import os, subprocess\ne = {env.replace('V', 'VLLM_TORCH_PROFILER_DIR')}\nsubprocess.run(['vllm'], env=e)\n"
    )
    findings = detect(VLLM_ASCEND, version="0.11.0rc1", environ={}, script=write(tmp_path, "run.py", text))
    assert [one.state for one in findings if one.state is not OFF] == [State.ARMED]


@pytest.mark.parametrize(("text", "expected"), CALLS)
def test_when_python_runs_something(tmp_path: Path, text: str, expected: State) -> None:
    script = write(tmp_path, "run.py", "import os, subprocess\n" + text)
    findings = detect(VLLM_ASCEND, version="0.11.0rc1", environ={}, script=script)
    assert max((one.state for one in findings if one.profiler == MSPROF), key=lambda one: one.severity) is expected


LATER = [
    # The text, what holds of the variable, and whether bash says so where the launcher is what its name says.
    ("if x; then bash p.sh; fi\n", UNKNOWN),
    ("if x; then bash -c 'export PROFILING_MODE=true; python a'; fi\n", UNKNOWN),
    ("if x; then env PROFILING_MODE=true python a; fi\n", UNKNOWN),
    ("if x; then docker run -e PROFILING_MODE=true image python a; fi\n", UNKNOWN),
    ("for i in $(seq 4); do srun --export=ALL,PROFILING_MODE=true python a; done\n", UNKNOWN),
    ("[ $X ] && ssh h 'export PROFILING_MODE=true; python a'\n", UNKNOWN),
    (P + "if x; then bash -c 'python a'; else env A=b python a; fi\n", ON),
    (P + "if x; then bash q.sh; fi\n", ON),
    ("ssh h <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("ssh h bash <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("ssh h bash -s <<'EOF'\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("su u <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("sudo -i <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("docker exec -i x bash <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("kubectl exec -i p -- bash <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("bash -c bash <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", ON),
    ("ssh h < launch.sh\n", UNKNOWN),
    ("parallel < commands\n", UNKNOWN),
    ("cat <<EOF | parallel\nPROFILING_MODE=true python a\nEOF\n", ON),
    ("sbatch job\n", ON),
    ("su u ./p.sh\n", ON),
    ("#SBATCH --export=ALL,PROFILING_MODE=true\npython a\n", UNKNOWN),
    ("ssh -o SetEnv=PROFILING_MODE=true h 'python a'\n", UNKNOWN),
    ("ssh -o SendEnv=PROFILING_MODE h 'python a'\n", UNKNOWN),
    (P + "su -w PROFILING_MODE -l u -c 'python a'\n", UNKNOWN),
    ("parallel PROFILING_MODE=true python {} ::: a\n", UNKNOWN),
    ("screen -X setenv PROFILING_MODE true\n", UNKNOWN),
    (P + "su -lc 'python a' u\n", OFF),
    (P + "runuser -l u -c 'python a'\n", OFF),
    (P + "apptainer exec --cleanenv i.sif python a\n", UNKNOWN),
    (P + "mpiexec -genvnone -n 2 python a\n", UNKNOWN),
    (P + "parallel -S host python a ::: b\n", UNKNOWN),
    (P + "export SLURM_EXPORT_ENV=NONE\nsrun python a\n", UNKNOWN),
    (P + "export SBATCH_EXPORT=NONE\nsbatch --wrap 'python a'\n", UNKNOWN),
    (P + "export SLURM_EXPORT_ENV=ALL\nsrun python a\n", ON),
    ("docker cp p.sh c:/ && python a\n", OFF),
    ("find . -name '*.sh' -exec bash p.sh \\;\n", UNKNOWN),
    ("python a +x.runtime_env=PROFILING_MODE\n", UNKNOWN),
    # Of a program that nobody knows, what it is told may be a launch.
    ("pdsh -w h 'export PROFILING_MODE=true; python a'\n", UNKNOWN),
    ("pdsh -w h bash p.sh\n", UNKNOWN),
    ("script -c 'bash p.sh' log\n", ON),
    ("sshpass -p x ssh h 'export PROFILING_MODE=true; python a'\n", UNKNOWN),
    ("salloc -N 2 bash p.sh\n", UNKNOWN),
    ("start <<EOF\nexport PROFILING_MODE=true\npython a\nEOF\n", UNKNOWN),
    ("start PROFILING_MODE=true python a\n", UNKNOWN),
    (P + "pdsh -w h python a\n", UNKNOWN),
    (P + "start --port 1\n", ON),
    ("start --port 1 'a text of words' '{\"a\": [1, 2]}'\n", OFF),
    ("jq '. | length' a.json | yq '.a // eval'; curl -d 'source of it' h; start <<EOF\nread on\nEOF\n", OFF),
    ("pdsh -w h 'source ./env.sh; python a'\n", UNKNOWN),
    ("pdsh -w h 'cd /w; ./launch'\n", UNKNOWN),
    ("flock /tmp/l bash p.sh\n", ON),
    ("./launch a\n", UNKNOWN),
    ("/opt/gone/launch a\n", UNKNOWN),
    ("make run\n", UNKNOWN),
    ("source /home/u/env.sh\npython a\n", UNKNOWN),
    ("source /usr/local/Ascend/set_env.sh; . /r/c/bin/activate; source activate e\npython a\n", OFF),
    (
        "".join(f"f{n}() {{ f{n + 1}; }}\n" for n in range(13)) + "f13() { PROFILING_MODE=true python a; }\nf0\n",
        UNKNOWN,
    ),
    (
        "f0() { f1; }\n"
        + "".join(f"f{n}() {{ f{n + 1}; }}\n" for n in range(1, 11))
        + "f11() { x=$(bash p.sh); }\nf0\n",
        UNKNOWN,
    ),
    # A file that the launch writes is not the one that is here.
    ("cp p.sh q.sh\nbash q.sh\n", UNKNOWN),
    ("cat > q.sh <<EOF\n" + P + "python a\nEOF\nbash q.sh\n", ON),
    ("cat <<EOF > new.sh\n" + P + "python a\nEOF\nbash new.sh\n", ON),
    ("cat > p.sh <<EOF\npython a\nEOF\nbash p.sh\n", OFF),
    ("cat > new.py <<EOF\nprint(1)\nEOF\npython new.py\n", OFF),
    ("cat >> q.sh <<EOF\n" + P + "EOF\nbash q.sh\n", UNKNOWN),
    ("if x; then cat > q.sh <<EOF\n" + P + "EOF\nfi\nbash q.sh\n", UNKNOWN),
    ("cat > q.sh <<EOF\n$(x)\nEOF\nbash q.sh\n", UNKNOWN),
    ("tee q.sh < x; bash q.sh\n", UNKNOWN),
    ("echo 'export A=b' >> q.sh; source ./q.sh\npython a\n", UNKNOWN),
    ("sed -i s/a/b/ q.sh\nsource ./q.sh\n", UNKNOWN),
    ("python gen.py > gen2.py; python gen2.py\n", UNKNOWN),
    ("chmod +x q.sh; bash q.sh > log 2>&1\n", OFF),
    ("srun ./launch2\n", ON),
    ("uv run ./launch2\n", ON),
    ("srun ./gone\n", UNKNOWN),
    ("python -m prof\n", ON),
    ("torchrun -m prof\n", ON),
    ("python -m torch.distributed.run --nproc_per_node 8 prof.py\n", ON),
    ("cd /workspace && source env2.sh && python a\n", UNKNOWN),
    ("trap 'python a' EXIT\n" + P, ON),
    ("trap cleanup EXIT\ncleanup() { python a; }\n" + P, ON),
    (P + "runuser -u u -- python a -lr 1\n", ON),
    (P + "apptainer exec i.sif python a -epochs 3\n", ON),
    ("python3 -m m +env_vars.PROFILING_MODE=true\n", UNKNOWN),
    ("helm install x c --set env.PROFILING_MODE=true\n", UNKNOWN),
    ("docker service create --env PROFILING_MODE=true i\n", UNKNOWN),
    ("mpirun --mca mca_base_env_list 'PROFILING_MODE=true' python a\n", UNKNOWN),
    ("xargs -I{} sh -c '{}' < c.txt\n", UNKNOWN),
    ("xargs -I CMD bash -c CMD < c.txt\n", UNKNOWN),
    ("parallel :::: c.txt\n", UNKNOWN),
    ("f() { " + P + "python a; }; export -f f; parallel f ::: 1\n", UNKNOWN),
    ("flock /tmp/l -c 'PROFILING_MODE=true python a'\n", ON),
    ("docker compose run box python a\n", UNKNOWN),
    ("docker restart x\n", UNKNOWN),
    ("systemctl enable --now x\n", UNKNOWN),
    ("qsub job.pbs\n", UNKNOWN),
    ("ansible-playbook p.yml\n", UNKNOWN),
    ("srun --multi-prog f\n", UNKNOWN),
    ("find . -ok bash p.sh \\;\n", UNKNOWN),
    # What people write, and what is known of it.
    ('export "A=b" "C=$X"\npython a\n', OFF),
    ('export "PROFILING_MODE=true"\npython a\n', ON),
    ('declare -x "PROFILING_MODE=true"\npython a\n', ON),
    ('export "A_$i=1"\npython a\n', UNKNOWN),
    ('eval "$(conda shell.bash hook)"\nconda activate e\npython a\n', OFF),
    ("curl -O https://h/x.sh; aws s3 cp x.sh s3://b/\npython a\n", OFF),
    ("set -fC -o monitor +o history\ntrap 'echo failed' ERR INT\npython a\n", OFF),
    # The grammar ends the second value before its second parameter.
    ("a=x-$b\nc=$D/e/$p/$f\npython a\n", OFF),
    ("a=x-$b\nc=$D/e/$p/$f\nexport PROFILING_MODE=$c\npython a\n", UNKNOWN),
]


@pytest.mark.parametrize(("text", "expected"), LATER)
def test_what_launchers_start_and_what_they_may_start(tmp_path: Path, text: str, expected: State) -> None:
    write(tmp_path, "p.sh", P + "python a\n")
    write(tmp_path, "q.sh", "python a\n")
    write(tmp_path, "job", "#!/bin/bash\n" + P + "srun python a\n")
    (tmp_path / "job").chmod(0o644)
    write(tmp_path, "launch2", "#!/bin/bash\n" + P + "python a\n")
    write(tmp_path, "prof.py", "import os\nos.environ['PROFILING_MODE'] = 'true'\n")
    findings = detect(VLLM_ASCEND, version="0.11.0rc1", environ={}, script=write(tmp_path, "run.sh", text))
    assert max((one.state for one in findings if one.profiler == MSPROF), key=lambda one: one.severity) is expected


def test_options_that_every_branch_gives_are_armed(tmp_path: Path) -> None:
    text = 'A=(--profiler-config.profiler=torch)\nif x; then A+=(-b); else A+=(-c); fi\nvllm serve m "${A[@]}"\n'
    findings = detect(VLLM_ASCEND, version="0.14.0rc1", environ={}, script=write(tmp_path, "run.sh", text))
    assert [one.state for one in findings if one.state is not OFF] == [State.ARMED]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("env_vars:\n  A: b\n  # PROFILER_SAMPLECONFIG: x\n  PROFILING_MODE: 'true'\n", (ON, "env.yaml:4")),
        ("env_vars: {PROFILING_MODE: 'true'}\n", (ON, "env.yaml:1")),
        ("env_vars: {PROFILING_MODE: '', A: {B: c}}\n", (OFF, "env.yaml:1")),
        ("env_vars:\n  ? PROFILING_MODE\n  : >-\n    true\n", (ON, "env.yaml:2")),
        ("x: &x {PROFILING_MODE: 'true'}\nenv_vars:\n  <<: *x\n", (ON, "env.yaml:1")),
        ("x: &x {PROFILING_MODE: 'true'}\nenv_vars:\n  <<: *x\n  PROFILING_MODE: ''\n", (OFF, "env.yaml:4")),
        ("env_vars: {PROFILING_MODE: [a]}\n", (UNKNOWN, "env.yaml:1")),
        ("env_vars:\n  A: b\nworking_dir: PROFILING_MODE\n", (OFF, "")),
        ("", (OFF, "")),
        ("env_vars:\n", (OFF, "")),
        ("a text\n", (UNKNOWN, "command after --")),
        ("env_vars: a text\n", (UNKNOWN, "command after --")),
        ("env_vars: [PROFILING_MODE]\n", (UNKNOWN, "command after --")),
        ("env_vars: {\n", (UNKNOWN, "command after --")),
        (b"\xff\xfe\0", (UNKNOWN, "command after --")),
    ],
)
def test_ray_yaml(tmp_path: Path, text: str | bytes, expected: tuple[State, str]) -> None:
    file = write(tmp_path, "env.yaml", text)
    assert state(command=("ray", "job", "submit", "--runtime-env", str(file), "--", "python", "a")) == expected


def test_nothing_of_the_folder_is_run_to_read_a_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "env.yaml", "env_vars: {PROFILING_MODE: 'true'}\n")
    write(tmp_path, "yaml.py", "open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    found = state(command=("ray", "job", "submit", "--runtime-env", "env.yaml", "--", "python", "a"))
    assert found == (ON, "env.yaml:1")
    assert not (tmp_path / "executed").exists()


def test_a_python_that_fails_is_not_the_last_one(tmp_path: Path) -> None:
    write(tmp_path, "env.yaml", "env_vars: {PROFILING_MODE: 'true'}\n")
    command = ("ray", "job", "submit", "--runtime-env", f"{tmp_path}/env.yaml", "--", "python", "a")
    found = detect(VLLM_ASCEND, version="0.11.0rc1", environ={}, command=command, pythons=["/bin/false"])
    assert [one.state for one in found if one.profiler == MSPROF] == [ON]


def test_a_launcher_starts_a_script_of_either_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.sh", "a.bash"):
        write(tmp_path, name, "PROFILING_MODE=true python a\n")
        assert state(command=("srun", f"./{name}"))[0] is ON


@pytest.mark.parametrize(("have", "expected"), [([False, True], ON), ([False, False], UNKNOWN)])
def test_the_yaml_of_a_job_is_read_by_whoever_has_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: list[bool], expected: State
) -> None:
    pythons = [
        write(tmp_path, f"python{at}", f'#!/bin/sh\nexec {sys.executable} {"" if has else "-S -I"} "$@"\n')
        for at, has in enumerate(have)
    ]
    for python in pythons:
        python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pythons[0]))
    write(tmp_path, "run.sh", "ray job submit --runtime-env=env.yaml -- python a\n")
    write(tmp_path, "env.yaml", "env_vars: {PROFILING_MODE: 'true'}\n")
    monkeypatch.chdir(tmp_path)
    found = detect(
        VLLM_ASCEND, version="0.11.0rc1", environ={}, script=Path("run.sh"), pythons=["/no/python", *map(str, pythons)]
    )
    (one,) = [one for one in found if one.profiler == MSPROF]
    assert one.state is expected
    assert ("no PyYAML here: --python EXE" in one.found) == (expected is UNKNOWN)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("gone.sh", None, "No such file"),
        ("binary.sh", b"\x7fELF\0\0", "binary"),
        ("settings.json", b"{}", "JSON"),
        ("folder", "dir", "directory"),
    ],
)
def test_what_is_no_script_is_a_problem(tmp_path: Path, name: str, content: bytes | str | None, reason: str) -> None:
    path = tmp_path / name
    if content == "dir":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    asked: tuple[dict[str, Any], ...] = ({"script": path}, {"command": ("bash", str(path))})
    for arguments in asked:
        with pytest.raises(Problem) as caught:
            read({}, **arguments)
        assert caught.value.kind is Kind.USAGE
        assert reason in caught.value.cause
        assert caught.value.where == str(path)
        assert caught.value.hint


def test_a_script_called_by_a_script_may_be_missing(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "run.sh",
        "source /usr/local/Ascend/gone.sh\nbash gone.sh\npython gone.py\n" + P + "python a\n",
    )
    assert state(script, lines=2) == (ON, "run.sh:4")


@pytest.mark.parametrize("call", ["bash gone.sh", "./gone.sh a", "bash $X/gone.sh", "srun bash gone.sh"])
def test_what_a_script_that_is_not_here_sets_is_unknown(tmp_path: Path, call: str) -> None:
    script = write(tmp_path, "run.sh", f"{call}\npython a\n")
    assert state(script) == (UNKNOWN, "run.sh:1")
    found = [
        one for one in detect(VLLM_ASCEND, version="0.11.0rc1", environ={}, script=script) if one.profiler == MSPROF
    ]
    assert "script" in found[0].reason
    assert found[0].off == "unset PROFILING_MODE there, if it is set there"


def test_a_script_that_doubles_its_text_stays_small(tmp_path: Path) -> None:
    doubling = "A=aaaaaaaa\n" + "A=$A$A\n" * 60 + "export PROFILING_MODE=$A\npython a\n"
    assert state(write(tmp_path, "run.sh", doubling)) == (UNKNOWN, "run.sh:62")
    branching = "".join(f"if x; then A=$A{n}; fi\n" for n in range(60)) + "export PROFILING_MODE=$A\npython a\n"
    assert state(write(tmp_path, "run.sh", branching))[0] is UNKNOWN


@pytest.mark.parametrize(
    ("word", "argument"),
    [
        ("a.b=$X", f"a.b={RUN_TIME}"),
        ('++a.b="x/$X"', f"++a.b=x/{RUN_TIME}"),
        ("a.b=[1,$X]", f"a.b=[1,{RUN_TIME}]"),
        ("a@b/c=$(date)", f"a@b/c={RUN_TIME}"),
        ("a.b=$K.$X", f"a.b=known.{RUN_TIME}"),
        ("a.b=$K", "a.b=known"),
        ("$X=1", None),
        ("a.$X=1", None),
        ("--a=$X", "--a"),
        ("$X", None),
        ("a/$X", None),
        ('"$X"', RUN_TIME),
    ],
)
def test_a_word_keeps_its_key_where_the_value_is_not_known(tmp_path: Path, word: str, argument: str | None) -> None:
    launch = read({}, write(tmp_path, "run.sh", f"K=known\npython a {word}\n"))[-1]
    assert launch.argv[2] == argument


def test_a_python_word_keeps_its_key_too(tmp_path: Path) -> None:
    text = "import subprocess\nsubprocess.run(['python', 'a',\n  f'a.b={x}', f'{x}=1', 'c=2'])\n"
    argv = next(one.argv for one in read({}, write(tmp_path, "run.py", text)) if one.argv[:1] == ("python",))
    assert argv[2:] == (f"a.b={RUN_TIME}", None, "c=2")
    assert [word.where for word in argv[2:] if isinstance(word, Placed)] == [f"{tmp_path}/run.py:3"] * 2


@pytest.mark.parametrize(
    "command", ["env PROFILING_MODE=$X python a", "docker run -e PROFILING_MODE=$X image python a"]
)
def test_a_variable_whose_value_is_partly_known_is_not_known(tmp_path: Path, command: str) -> None:
    script = write(tmp_path, "run.sh", command + "\n")
    assert state(script)[0] is UNKNOWN
    (finding,) = [
        one for one in detect(VLLM_ASCEND, version="0.11.0", environ={}, script=script) if one.state is UNKNOWN
    ]
    assert finding.found.endswith("PROFILING_MODE=…")


def test_every_word_knows_where_it_stands(tmp_path: Path) -> None:
    text = 'A=(\n  x=1\n  "y=$Z"\n)\npython a \\\n  b=2 \\\n  "${A[@]}" $@\n'
    script = write(tmp_path, "run.sh", text)
    launch = read({}, command=("bash", str(script), "c=3"))[0]
    places = {str(word): word.where for word in launch.argv if isinstance(word, Placed)}
    lines = {"python": 5, "a": 5, "b=2": 6, "x=1": 2, f"y={RUN_TIME}": 3}
    assert places == {word: f"{script}:{line}" for word, line in lines.items()} | {"c=3": "command after --"}
    assert quoted(launch.argv) == "python a b=2 x=1 'y=…' c=3"


def test_words_of_a_branch_are_marked(tmp_path: Path) -> None:
    script = write(tmp_path, "run.sh", 'if x; then A+=(b=1); fi\npython a "${A[@]}"\n')
    assert [(one.argv, one.perhaps) for one in read({}, script) if one.argv[:1] == ("python",)] == [
        (("python", "a"), False),
        (("python", "b=1"), True),
    ]


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        (
            'L=(python)\nif [ "${U:-1}" != 0 ]; then L=(uv run --extra vllm --frozen python); fi\n"${L[@]}" -m m a=1',
            "python -m m a=1",
        ),
        ('L=(python)\nif x; then L=(uv run --extra vllm --frozen python); fi\n"${L[@]}" -m m a=1', "python -m m a=1"),
        (
            'if x; then L=(python); R=(a=1); else L=(uv run python); R=(a=2); fi\n"${L[@]}" -m m "${R[@]}"',
            f"python -m m a={RUN_TIME}",
        ),
        ('if [ "${M:-s}" = s ]; then C="torchrun -m m"; else C="python -m n"; fi\n$C a=1', "torchrun -m m a=1"),
        ("if x; then A=1; else A=1; fi\npython a.b=$A", "python a.b=1"),
        ('python --config-path "$(pwd)/c"', "python --config-path {0}/c"),
        ('python --config-path "$(cd .. && pwd)/c"', "python --config-path {1}/c"),
        ('cd "$(dirname "$0")"\npython --config-path "$PWD"', "python --config-path {0}"),
        ('D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\npython --config-path $D', "python --config-path {0}"),
        ("python a.b=${X:-~/data}", "python a.b=/root/data"),
        ("python a.b=$(basename /x/y.sh .sh) c=$((2 * (3 + 1)))", "python a.b=y c=8"),
        ("python a.b=1 \\", "python a.b=1"),
        ("python a.b=1 \\\n", "python a.b=1"),
        ('X=(1 2)\npython "${#X[@]}" ${X[1]} "${X[*]}"', "python 2 2 '1 2'"),
        ("A=1 B=2\npython $A$B", "python 12"),
        ('IFS=,\nX=(a=1 b)\npython "${X[*]}" "${X[@]}"', "python … a=1 b"),
        ('C="a=${A:-1} ${B:-b=2} $Z"\npython $C', "python a=1 b=2 …"),
        ("while [[ $# -gt 0 ]]; do A=$1; shift; done\npython ${A:-a}", "python a"),
        (
            'D=$(d)\ncase $D in a) L=(uv run python);; b) L=(python);; *) exit;; esac\ncase $D in [ab]) E=1; esac\n"${L[@]}" e=$E',
            "python e=1",
        ),
    ],
)
def test_what_a_person_can_decide_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, argv: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "run.sh", text)
    invocations = read({"HOME": "/root", "PWD": "/stale"}, Path("run.sh"))
    expected = argv.format(tmp_path, tmp_path.parent).replace(RUN_TIME, "…")
    assert expected.replace("'", "") in [quoted(one.argv).replace("'", "") for one in invocations if one.sure]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("S=[1]\npython a.b=$S", "run.sh:1"),
        ("S=[1]\nT=$S\npython a.b=$T", "run.sh:2"),
        ("C='a.b=1 c=2'\n\npython $C", "run.sh:1"),
        ("S=1\npython a.b=[$S]", "run.sh:2"),
        ("python a.b=${HOME}", "run.sh:1"),
        ("S=1\nA=(\n a.b=$S\n)\npython ${A[@]}", "run.sh:1"),
    ],
)
def test_the_line_of_a_word_is_where_its_value_is_set(tmp_path: Path, text: str, where: str) -> None:
    words = read({"HOME": "/root"}, write(tmp_path, "run.sh", text))[-1].argv
    assert [word.where for word in words if isinstance(word, Placed) and word.startswith("a.b")] == [
        f"{tmp_path}/{where}"
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("case x in ((\npython a", "parsed"),
        ("bash $SCRIPT", "only known when it runs"),
        ("bash gone.sh", "not here"),
        ("python a \\ \n b", "a blank behind a backslash"),
        ("export PROFILING_\\\nMODE=true\npython a", "goes on in the next line"),
        ("export PROFILING_MODE=tr\\\nue\npython a", "goes on in the next line"),
        ("for i in 1; do break 2x; done\npython a", "several loops"),
        ("case x in a) b ;& c) d ;; esac", "fall through"),
        ("exec -a b python a", "exec with an option"),
        ("( " * 3000 + "x" + " )" * 3000, "nested too deeply"),
        ('echo "' + "${A:-" * 1500 + "}" * 1500 + '"', "nested too deeply"),
        ("bash -c '" + "{ " * 3000 + "x; " + "}; " * 3000 + "'", "nested too deeply"),
        ("A=1\n" * 1001, "too long to follow"),
    ],
)
def test_what_is_not_understood_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setattr(statements, "_MOST_STEPS", 1000)  # ten times as many take ten times as long
    assert any(reason in one.reason for one in read({}, write(tmp_path, "run.sh", text + "\n")))


def test_where_the_grammar_cannot_be_mended_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "_ROUNDS", 1)
    (lost,) = read({}, write(tmp_path, "run.sh", "a | b | xargs -r kill -9\n" + P + "python a\n[ -n x ] && c\n"))
    assert "cannot be parsed" in lost.reason


def test_after_what_is_not_understood_nothing_is_certain(tmp_path: Path) -> None:
    for text in (
        "eval $X",
        "source $X",
        "source ./gone.sh",
        "$X=1; case (",
        "declare -n R=A; R=1",
        "trap x DEBUG",
        "shopt -s lastpipe",
    ):
        for more in ("", "if x; then A=$(cat f); fi\n"):
            assert state(write(tmp_path, "run.sh", f"{text}\n{more}python a\n"))[0] is UNKNOWN, text


@pytest.mark.parametrize(
    "text",
    [
        "python a \\\n  b\\\n  c",
        "python 'a\\\nb' \"c\\\nd\" $'e\\\nf'",
        "#a\\\nb\npython a",
        "cat <<E\na\\\nb\nE\npython a",
    ],
)
def test_a_line_that_goes_on_splits_no_word(tmp_path: Path, text: str) -> None:
    assert not any(one.reason for one in read({}, write(tmp_path, "run.sh", f"{text}\n")))


@pytest.mark.parametrize("sign", ["\x01", "\x0b", "\x0c", "\x1b", "\x7f"])
def test_a_script_with_control_characters_is_unknown_for_its_parser_may_die_of_them(tmp_path: Path, sign: str) -> None:
    (tmp_path / "env.sh").write_text(f"export PROFILING_MODE=true{sign}\n")
    (tmp_path / "run.sh").write_text("source ./env.sh\nvllm serve m\n")
    lost, *started = read({}, tmp_path / "run.sh")
    assert (lost.argv, lost.reason) == ((None,), "it holds control characters: ")
    assert [one.variables["*"][0].text for one in started] == [None]


def test_a_sourced_file_that_is_not_text_may_set_anything(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export PROFILING_MODE=true\0\n")  # bash drops the sign, and sets it
    (tmp_path / "run.sh").write_text("source ./env.sh\nvllm serve m\n")
    assert {one.variables["*"][0].text for one in read({}, tmp_path / "run.sh")} == {None}


def test_emoji_are_read_though_their_parser_dies_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []

    class Recording:
        def __init__(self, language: tree_sitter.Language) -> None:
            self.parser = parser(language)

        def parse(self, source: bytes) -> tree_sitter.Tree:
            given.append(source)
            return self.parser.parse(source)

    parser = tree_sitter.Parser
    monkeypatch.setattr(grammar, "Parser", Recording)
    text = "# \U0001f680\nA=\U0001f680x\nexport PROFILING_MODE=$A\necho \U0001f680; vllm serve \U0001f680$A\n"
    (tmp_path / "run.sh").write_text(text * 50)
    *_, started = read({}, tmp_path / "run.sh")
    assert started.argv == ("vllm", "serve", "\U0001f680\U0001f680x")
    assert [one.text for one in started.variables["PROFILING_MODE"]] == ["\U0001f680x"]
    assert given
    assert all(ord(sign) <= 0xFFFF for source in given for sign in source.decode())
