"""Launch scripts as people write them: no "off" where a profiler is on, no "on" where it is off."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from patcher.switches import State
from patches.verl.profiling import PROFILING
from patches.verl.verl_switches import SWITCHES
from tests.alarms import at_most
from tests.matrix import thinned
from tests.patcher.guards.detecting import detect

OFF, ARMED, UNKNOWN, ON = State.OFF, State.ARMED, State.UNKNOWN, State.ON
STARTERS = Path(os.environ.get("RLPATCH_TEST_SHARED") or REPOSITORY.parent / "shared") / "guard-starters"
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"
SET = "export PROFILING_MODE=dynamic"
ARGS = "global_profiler.tool=torch_memory"
STEPS = (
    "global_profiler.steps=${S:-null} global_profiler.tool=npu actor_rollout_ref.actor.profiler.enable=True"
    " actor_rollout_ref.actor.profiler.all_ranks=True"
)
ON_FOR_ALL = "# @package _global_\nglobal_profiler:\n  tool: torch_memory\n"
MINE = "defaults:\n  - ppo_trainer\n  - _self_\nglobal_profiler:\n  steps: null\n"

# What a script may be said to be; files beside it are written, too.
SCRIPTS: dict[str, tuple[set[State], dict[str, str]]] = {
    f"{SET}\n{VERL}": ({ON}, {}),
    f"PROFILING_MODE=dynamic {VERL}": ({ON}, {}),
    f"env PROFILING_MODE=dynamic {VERL}": ({ON}, {}),
    f"declare -x PROFILING_MODE=dynamic\n{VERL}": ({ON}, {}),
    f"{SET}\n{VERL} 2>&1 | tee log": ({ON}, {}),
    f"{VERL} 2>&1 | tee log": ({OFF}, {}),
    f"if [[ $(uname) == Linux ]]; then A=1; fi\n{VERL}": ({OFF}, {}),
    f"# {SET}\n{VERL} \"$@\"": ({OFF}, {}),
    f"{SET}\nunset PROFILING_MODE\n{VERL}": ({OFF, UNKNOWN}, {}),
    f"PROFILING_MODE=\nexport PROFILING_MODE\n{VERL}": ({UNKNOWN}, {}),
    f"set -a\nPROFILING_MODE=dynamic\n{VERL}": ({UNKNOWN}, {}),
    f"set -u\n: $NONE\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f": ${{PROFILING_MODE:=dynamic}}\nexport PROFILING_MODE\n{VERL}": ({UNKNOWN}, {}),
    f"f() {{ A=[1]; }}\nA=null\nf\n{VERL} global_profiler.steps=$A": ({UNKNOWN}, {}),
    f"declare -i A=1\nA=2+3\n{VERL} global_profiler.steps=[$A]": ({UNKNOWN}, {}),
    f"A=(trainer.nnodes=2 # it's one\n)\n{VERL} \"${{A[@]}}\"": ({OFF}, {}),
    f"msprof --output=/o {VERL}": ({ON}, {}),
    # what may not be passed
    f"set -e\nfalse\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"set -e\ncd /\nNAME=run_$(date +%s)\n{SET}\n{VERL}": ({ON}, {}),
    f"[ -d x ]\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"A=$(cat args)\n{SET}\n{VERL}": ({UNKNOWN}, {"args": ARGS}),
    f"[ -d x ] || exit 0\nmsprof {VERL}": ({UNKNOWN}, {}),
    f"exit 0\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"while sleep 1; do :; done\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"if x; then {SET}; fi\n{VERL}": ({UNKNOWN}, {}),
    f"f() {{ {SET}; }}\nf\n{VERL}": ({UNKNOWN}, {}),
    f"{SET} | cat\n{VERL}": ({UNKNOWN}, {}),
    f"({SET})\n{VERL}": ({UNKNOWN}, {}),
    f"{SET}\nenv -i {VERL}": ({UNKNOWN}, {}),
    f"{SET}\nunset $(cat names)\n{VERL}": ({UNKNOWN}, {}),
    f"{SET}\npython3() {{ :; }}\n{VERL}": ({UNKNOWN}, {}),
    # names that are put together, and what hides a text
    f"export \"PROFILING_\"'MODE'=dynamic\n{VERL}": ({ON, UNKNOWN}, {}),
    f"A=PROFILING_\nexport ${{A}}MODE=dynamic\n{VERL}": ({ON, UNKNOWN}, {}),
    f"export $'\\x50ROFILING_MODE'=dynamic\n{VERL}": ({ON, UNKNOWN}, {}),
    f"export PROFILING_\\\nMODE=dynamic\n{VERL}": ({ON, UNKNOWN}, {}),
    f"for n in PROFILING_MODE; do export $n=1; done\n{VERL}": ({UNKNOWN}, {}),
    f"if x; then A=global_pro; else A=global_pro; fi\n{VERL} ${{A}}filer.steps=[1]": ({UNKNOWN}, {}),
    f"eval \"$(cat env)\"\n{VERL}": ({UNKNOWN}, {}),
    f"export $(cat env)\n{VERL}": ({UNKNOWN}, {}),
    f"curl -s h/x | bash\n{VERL}": ({UNKNOWN}, {}),
    f"echo x | base64 -d | sh -s\n{VERL}": ({UNKNOWN}, {}),
    f"bash <(curl h/x)\n{VERL}": ({UNKNOWN}, {}),
    f"source none.sh\n{VERL}": ({UNKNOWN}, {}),
    f"{VERL} $(cat args)": ({UNKNOWN}, {}),
    f"{VERL} {{global_profiler.steps=[1],global_profiler.tool=npu}}": ({UNKNOWN}, {}),
    f"{VERL} $EXTRA": ({UNKNOWN}, {}),
    f"mapfile -t A < args\n{VERL} \"${{A[@]}}\"": ({UNKNOWN}, {}),
    f"bash -c \"echo 'a'\n{SET}\n{VERL}\"": ({ON, UNKNOWN}, {}),
    f"bash -c 'S=[1]\n{VERL} {STEPS}'": ({ON, UNKNOWN}, {}),
    f"S=[1]\nbash -c '{VERL} {STEPS}'": ({OFF, UNKNOWN}, {}),
    f"bash -c '{VERL} \"$@\"' _ {ARGS}": ({UNKNOWN}, {}),
    "$STARTER": ({UNKNOWN}, {}),
    "make train": ({UNKNOWN}, {}),
    f"trap '{SET}' DEBUG\n{VERL}": ({UNKNOWN}, {}),
    f"shopt -s extdebug\ntrap false DEBUG\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"sleep infinity\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"set -n\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"{VERL} --help global_profiler.tool=torch_memory": ({UNKNOWN}, {}),
    f"export PROFILING_{{MODE,X}}=1\n{VERL}": ({UNKNOWN}, {}),
    f"set -- $(cat args)\n{VERL} \"$@\"": ({UNKNOWN}, {}),
    f"set -e\nX=$(false)\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"{VERL} PROFILING_MODE=1": ({UNKNOWN}, {}),
    f"{SET}\nexport PROFILING_MODE=\n{VERL}": ({OFF, UNKNOWN}, {}),
    f"x=PROFILING_MODE\neval \"export $x=1\"\n{VERL}": ({UNKNOWN}, {}),
    f"declare -n r=PROFILING_MODE\nr=1\nexport PROFILING_MODE\n{VERL}": ({UNKNOWN}, {}),
    f"read -r k v <<< 'PROFILING_MODE 1'\nexport $k=$v\n{VERL}": ({UNKNOWN}, {}),
    f"f() {{ exit 0; }}\nf\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"{SET}\nfor v in ${{!PROF*}}; do unset $v; done\n{VERL}": ({UNKNOWN}, {}),
    f"{SET} &\n{VERL}": ({UNKNOWN}, {}),
    f"kill $$\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    "./inner": ({UNKNOWN}, {"inner": f"#!/bin/bash\n{SET}\n{VERL}"}),
    f"alias python3='PROFILING_MODE=1 python3'\n{VERL}": ({UNKNOWN}, {}),
    f"bash <<EOF\n{SET}\n{VERL}\nEOF": ({UNKNOWN}, {}),
    f"python3 -c \"import os; os.environ['PROFILING_MODE'] = '1'\"\n{VERL}": ({UNKNOWN}, {}),
    "ray job submit --runtime-env=env.yaml -- " + VERL: ({UNKNOWN}, {"env.yaml": "env_vars: {PROFILING_MODE: dynamic}\n"}),
    "ray job submit --runtime-env=none.yaml -- " + VERL: ({UNKNOWN}, {}),
    # handed over by a program that is fed, a file, or what a file comes to
    f"xargs -a args {VERL}": ({UNKNOWN}, {"args": ARGS}),
    f"xargs {VERL} < args": ({UNKNOWN}, {"args": ARGS}),
    f"echo 1 2 | xargs echo\n{VERL}": ({OFF}, {}),
    f"{VERL} $(sed -n 's/^#//p' args)": ({UNKNOWN}, {"args": f"#{ARGS}"}),
    f"A=($(sed s/x/y/ args))\n{VERL} \"${{A[@]}}\"": ({UNKNOWN}, {"args": ARGS}),
    f"{VERL} $(<args)": ({UNKNOWN}, {"args": ARGS}),
    f"{VERL} ${{EXTRA:-$(cat args)}}": ({UNKNOWN}, {"args": ARGS}),
    f"{VERL} ${{EXTRA:-trainer.nnodes=1}}": ({OFF}, {}),
    f"P=1\n{VERL} ${{P:+{ARGS}}}": ({ON, UNKNOWN}, {}),
    f"T=\n{VERL} global_profiler.tool=${{T:-torch_memory}}": ({ON, UNKNOWN}, {}),
    f"env $(cat on.env) {VERL}": ({UNKNOWN}, {"on.env": "PROFILING_MODE=1"}),
    f"env -S 'PROFILING_MODE=1 {VERL}'": ({UNKNOWN}, {}),
    f"find . -name on -exec bash -c '. {{}}; {VERL}' ';'": ({UNKNOWN}, {"on": SET}),
    f"trap 'source on; {VERL}' ERR\nfalse": ({UNKNOWN}, {"on": SET}),
    "T=$(cat args)\ntrap \"$T\" EXIT": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "shopt -s expand_aliases\nalias go=\"$(cat args)\"\ngo": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    f"export BASH_ENV=./on\nbash -c '{VERL}'": ({UNKNOWN}, {"on": SET}),
    "bash < args": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    f"cp on copied.sh\n. ./copied.sh\n{VERL}": ({UNKNOWN}, {"on": SET, "copied.sh": "export A=1"}),
    f"pushd sub\n. ./off.sh\n{VERL}": ({UNKNOWN}, {"off.sh": "export A=1", "sub/off.sh": SET}),
    "python3 start.py   ": ({UNKNOWN}, {"start.py": "import subprocess\nsubprocess.run(open('args').read().split())\n"}),
    f"C=\"{VERL}\"\n$C $(cat args)": ({UNKNOWN}, {"args": ARGS}),
    f"C=({VERL})\n\"${{C[@]}}\" $(cat args)": ({UNKNOWN}, {"args": ARGS}),
    # where a command is hard to see: behind others, in an expansion, in what is fed to a shell
    f"uv run {VERL} $(cat args)": ({UNKNOWN}, {"args": ARGS}),
    f"uv run {VERL} trainer.nnodes=1": ({OFF}, {}),
    "python3 -m $(cat main) $(cat args)": ({UNKNOWN}, {"args": ARGS, "main": "verl.trainer.main_ppo"}),
    f"for M in {VERL.split()[2]}; do python3 -m $M $(cat args); done": ({UNKNOWN}, {"args": ARGS}),
    f"A=x=1\nfor A in $(cat args); do {VERL} $A; done": ({UNKNOWN}, {"args": ARGS}),
    f"A=x=1\nread A < args\n{VERL} $A": ({UNKNOWN}, {"args": ARGS}),
    f"R=$({VERL} $(cat args))": ({UNKNOWN}, {"args": ARGS}),
    f"(( x = $({VERL} $(cat args); echo 1) ))": ({UNKNOWN}, {"args": ARGS}),
    f"if [[ $({VERL} $(cat args)) ]]; then :; fi": ({UNKNOWN}, {"args": ARGS}),
    f"cat <<EOF\n$({VERL} $(cat args))\nEOF": ({UNKNOWN}, {"args": ARGS}),
    f"ssh h <<EOF\n{VERL} \\$(cat args)\nEOF": ({UNKNOWN}, {"args": ARGS}),
    f"false || ssh h true\n{VERL}": ({OFF}, {}),
    "cat args |& ssh h": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "cat args | if ssh h; then :; fi": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "cat args | ssh h": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "cat args | sudo bash": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "cat args > >(bash)": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "P=(bash)\n\"${P[@]}\" < args": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    "bash -c 'bash<args'": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    f"bash -c \"bash -c '{VERL} \\$(cat args)'\"": ({UNKNOWN}, {"args": ARGS}),
    f"bash -c 'cat args|xargs {VERL}'": ({UNKNOWN}, {"args": ARGS}),
    f"cat > start.py <<EOF\nprint(1)\nEOF\npython3 start.py\n{VERL}": ({UNKNOWN}, {}),
    # what a launch edits, and what a program that is not known hands on
    f"sed -i s/null/[1]/ my.yaml\n{VERL} --config-path=$PWD --config-name=my": ({UNKNOWN}, {"my.yaml": MINE}),
    f"{VERL} --config-path=$PWD --config-name=my": ({OFF}, {"my.yaml": MINE}),
    f"{VERL} --config-path=$PWD --config-name=my +more=on": ({ON}, {"my.yaml": MINE.partition("global")[0], "more/on.yaml": ON_FOR_ALL}),
    f"A=(+more=on)\n{VERL} --config-path=$PWD --config-name=my \"${{A[@]}}\"": ({UNKNOWN}, {"my.yaml": MINE.partition("global")[0], "more/on.yaml": ON_FOR_ALL}),
    f"{VERL} hydra.searchpath=[file://$PWD] +more=on": ({UNKNOWN}, {"my.yaml": MINE.partition("global")[0], "more/on.yaml": ON_FOR_ALL}),
    f"srun {VERL} $(cat args)": ({UNKNOWN}, {"args": ARGS}),
    "torchrunner $(cat args)": ({UNKNOWN}, {"args": f"{VERL} {ARGS}"}),
    f"ln -sf on l.sh\n. ./l.sh\n{VERL}": ({UNKNOWN}, {"on": SET, "l.sh": ""}),
    f"| tee log\n{VERL}": ({OFF, UNKNOWN}, {}),
    "./echo x": ({UNKNOWN}, {"echo": f"#!/bin/bash\n{SET}\n{VERL}\n"}),
    f"command xargs -a args {VERL}": ({UNKNOWN}, {"args": ARGS}),
    f"env -S \"A=1 {VERL} $(cat args)\"": ({UNKNOWN}, {"args": ARGS}),
    f"retry() {{ \"$@\"; }}\nretry {VERL} trainer.nnodes=1": ({OFF}, {}),
    # values that a variable has only later, elsewhere, or not any more
    f"S=[1] true\n{VERL} {STEPS}": ({OFF, UNKNOWN}, {}),
    f"echo $(S=[1])\n{VERL} {STEPS}": ({OFF, UNKNOWN}, {}),
    f"S=[1] | tee log\n{VERL} {STEPS}": ({OFF, UNKNOWN}, {}),
    f"S=[1] &\n{VERL} {STEPS}": ({OFF, UNKNOWN}, {}),
    f"{VERL} {STEPS}; S=[1]": ({OFF, UNKNOWN}, {}),
    f"S=[1]\nunset S\n{VERL} {STEPS}": ({OFF, UNKNOWN}, {}),
    f"S=[1]\n{VERL} {STEPS}": ({ON}, {}),
    f"set -e\nS=[1]\nexport A=b\n{VERL} {STEPS}": ({ON}, {}),
    f"OFF=(global_profiler.steps=null)\n{VERL} {STEPS.replace('${S:-null}', '[1]')} \"${{OFF[@]}}\"": ({UNKNOWN}, {}),
    # names that are put together
    f"n=PROFILING\nn+=_MODE\nexport $n=1\n{VERL}": ({UNKNOWN}, {}),
    f"printf -v n '%s_%s' PROFILING MODE\nexport $n=1\n{VERL}": ({UNKNOWN}, {}),
    f"n=XPROFILING_MODE\nexport ${{n#X}}=1\n{VERL}": ({UNKNOWN}, {}),
    f"f() {{ export \"$1_$2=1\"; }}\nf PROFILING MODE\n{VERL}": ({UNKNOWN}, {}),
    f"if :; then P=global_profiler; fi\nA=($P.tool=torch_memory)\n{VERL} \"${{A[@]}}\"": ({UNKNOWN}, {}),
    f"P=global_pro\nA=(${{P}}filer.steps=[1])\n{VERL} \"${{A[@]}}\"": ({UNKNOWN}, {}),
    f"P=actor_rollout_ref.actor\nif :; then A=($P.strategy=fsdp); fi\n{VERL} \"${{A[@]}}\"": ({OFF}, {}),
    f"eval \"${{c}}_MODE=1\"\n{VERL}": ({UNKNOWN}, {}),
    # comments and quotes that look as if they held more than they do
    f"echo a # \"\n{VERL} $(cat args) # \"": ({UNKNOWN}, {"args": ARGS}),
    f"# see $(\n{VERL} $(cat args)\n# )": ({UNKNOWN}, {"args": ARGS}),
    f"(( x = 1<<2 ))\n{VERL} $(cat args)\n2": ({UNKNOWN}, {"args": ARGS}),
    f"echo \"don't (x)\"; {VERL} $(cat args); echo \"isn't\"": ({UNKNOWN}, {"args": ARGS}),
    f"case x in a|x) {VERL} $(cat args);; esac": ({UNKNOWN}, {"args": ARGS}),
    # from a here-document on, nothing is read
    f"cat <<X\nit's\nX\n{VERL}": ({UNKNOWN}, {}),
    f"cat <<X\nit's\nX\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"cat <<X\n{SET}\nX\n{VERL}": ({UNKNOWN}, {}),
    f"{SET}\n{VERL}\ncat <<X\nit's\nX": ({ON}, {}),
    # whatever comes behind a pipe or a list, its first program starts
    f"{VERL} {ARGS} | grep x": ({ON}, {}),
    f"{VERL} {ARGS} && echo x": ({ON}, {}),
    f"{VERL} {ARGS} || exit 1": ({ON}, {}),
    f"{VERL} | grep x": ({OFF}, {}),
    f"x && {VERL} {ARGS}": ({UNKNOWN}, {}),
    f"{VERL} &&\n{VERL} {ARGS}": ({UNKNOWN}, {}),
    f"{VERL} ||\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"python3() {{ :; }} && {VERL} {ARGS}": ({UNKNOWN}, {}),
    f"eval \"$(conda shell.bash hook)\"\n{VERL}": ({OFF}, {}),
    "srun shell.bash": ({UNKNOWN}, {"shell.bash": f"{SET}\n{VERL}"}),
    f"echo '\n{SET}\n'\n{VERL}": ({UNKNOWN}, {}),
    f"(\n{SET}\n)\n{VERL}": ({UNKNOWN}, {}),
    f"{SET}\nexec -c {VERL}": ({UNKNOWN}, {}),
    f"{SET}\nn=PROFILING\nunset ${{n}}_MODE\n{VERL}": ({OFF, UNKNOWN}, {}),
    f"echo 'exit 0' > set_env.sh\n. ./set_env.sh\n{SET}\n{VERL}": ({UNKNOWN}, {"set_env.sh": "exit 0"}),
    f"N=${{N:-1}}\n{VERL} trainer.nnodes=$N x=$HOME/$(date +%s) \"$@\" 2>&1 | tee log": ({OFF}, {}),
    f"run() {{ local n=$1; shift; {VERL} trainer.nnodes=$n \"$@\"; }}\nrun 2 trainer.seed=1": ({OFF}, {}),
    # files
    f"source env.sh\n{VERL}": ({UNKNOWN}, {"env.sh": SET}),
    f". \"$(dirname \"$0\")/env.sh\"\n{VERL} ": ({OFF}, {"env.sh": "export A=1"}),
    f"source env.sh\n{VERL}  ": ({UNKNOWN}, {"env.sh": "source more.sh", "more.sh": "source last.sh", "last.sh": SET}),
    f"source env.sh\n{VERL}   ": ({OFF}, {"env.sh": "source more.sh", "more.sh": "source last.sh", "last.sh": "A=1"}),
    f"source env.sh\n{VERL}    ": ({OFF}, {"env.sh": "source ./more.sh", "more.sh": "source env.sh"}),
    "PROFILING_MODE=dynamic bash other.sh": ({UNKNOWN}, {"other.sh": VERL}),
    "env PROFILING_MODE=dynamic bash other.sh": ({UNKNOWN}, {"other.sh": VERL}),
    f"exec {VERL}\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"exit 0\nsource /opt/none/set_env.sh\n{SET}\n{VERL}": ({UNKNOWN}, {}),
    f"run() {{ {VERL} \"$@\"; }}\nrun $(cat args)": ({UNKNOWN}, {}),
    "bash recipe/run.sh": ({UNKNOWN}, {"recipe/run.sh": f"{SET}\n{VERL}", "verl/__init__.py": ""}),
    "bash large.sh": ({UNKNOWN}, {"large.sh": "#" * (1 << 20) + f"\n{SET}\n{VERL}"}),
    "bash other.sh": ({UNKNOWN}, {"other.sh": f"{SET}\n{VERL}"}),
    "python3 start.py": ({UNKNOWN}, {"start.py": "import os\nos.environ['PROFILING_' + 'MODE'] = '1'\n"}),
    "python3 start.py ": ({UNKNOWN}, {"start.py": "import os\nos.environ[name()] = '1'\n"}),
    "python3 start.py  ": ({OFF}, {"start.py": "import os\nos.environ['A'] = '1'\n"}),
    "python3 none.py": ({UNKNOWN}, {}),
    "python3 -m start": ({UNKNOWN}, {"start.py": "import os\nos.environ['PROFILING_' + 'MODE'] = '1'\n"}),
    "kubectl apply -f job.yaml": ({UNKNOWN}, {"job.yaml": "command: bash on.sh\n", "on.sh": f"{SET}\n{VERL}"}),
    "source /opt/none/set_env.sh\n" + VERL: ({OFF}, {}),
}  # fmt: skip


def severest(*command: str, **environ: str) -> State:
    found = detect(
        SWITCHES, version="0.7.0", environ={"PATH": "/bin", "HOME": "/root", **environ}, command=command, package="verl",
        root=releases.release("0.7.0", "verl"), published=releases.VERL, application=PROFILING,
    )  # fmt: skip
    return found[0].state


@pytest.mark.parametrize("text", SCRIPTS)
def test_scripts(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, files = SCRIPTS[text]
    monkeypatch.chdir(tmp_path)
    for name, content in {**files, "run.sh": text + "\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert severest("bash", "run.sh") in states


@pytest.mark.parametrize(
    "command",
    [
        ("docker", "run", "image", "bash", "on.sh"),
        ("ssh", "host", f"{SET}; {VERL}"),
        ("env", "-i", "bash", "off.sh"),
        ("bash", "-c", f"if x; then S=null; fi; {VERL} {STEPS.replace(':-null', ':-[1]')}"),
        ("bash", "-c", f"{SET}; {VERL}"),
    ],
)
def test_a_command_that_starts_it_elsewhere(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "on.sh").write_text(f"{SET}\n{VERL}\n")
    (tmp_path / "off.sh").write_text(f"{VERL}\n")
    monkeypatch.chdir(tmp_path)
    assert severest(*command, PROFILING_MODE="dynamic" if command[0] == "env" else "") is UNKNOWN


def test_a_command_that_sets_it_for_a_script(tmp_path: Path) -> None:
    (tmp_path / "off.sh").write_text(f"{VERL}\n")
    assert severest("env", "PROFILING_MODE=dynamic", "bash", str(tmp_path / "off.sh")) is ON


def test_many_branches_take_no_time(tmp_path: Path) -> None:
    text = "case $1 in\n a) A=1 ;;\n *) A=2 ;;\nesac\n" * 150
    (tmp_path / "run.sh").write_text(f"{text}{VERL}\n")
    begin = time.process_time()
    assert severest("bash", str(tmp_path / "run.sh")) is OFF
    assert time.process_time() - begin < 5, "not for each way through them"


# Just below 128 KiB. What a reader that looks ahead for each opened bracket, or reads a file each time that it is named, takes minutes for.
HOSTILE = {
    "brackets": "$(" * 60_000,
    "backticks": "`" * 120_000,
    "tests": "[[ " * 40_000,
    "documents without an end": "<<A " * 30_000,
    "functions": "".join(f"f{number}() {{ :; }}\n" for number in range(9_000)),
    "names of names": "".join(f"A{number}=$A{number - 1}$A{number - 1}\n" for number in range(6_000)),
    "itself": ". ./run.sh\n" * 10_000,
    "a quote without an end": 'echo "' + "$ABC $(b) $((1 + 2)) ${c} " * 4_000,
    "comments in a bracket without an end": "A=(\n" + "a # it is x\n" * 9_000 + "'",
}


@pytest.mark.parametrize("name", thinned([*HOSTILE], ("brackets", "a quote without an end")))
def test_a_text_that_is_made_to_take_long_does_not(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text(f"{HOSTILE[name]}\n")
    monkeypatch.chdir(tmp_path)
    begin = time.process_time()
    with at_most(60):
        severest("bash", "run.sh")
    assert time.process_time() - begin < 20, "minutes, for a reader that looks ahead from each bracket"


@pytest.mark.skipif(not STARTERS.is_dir(), reason="needs launch scripts, in $RLPATCH_TEST_SHARED/guard-starters")
def test_starters_whose_truth_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STARTERS)
    for name, truth in (line.split() for line in Path("truth.txt").read_text().splitlines()):
        assert severest("bash", f"{name}.sh") in ({OFF, UNKNOWN} if truth == "off" else {ON, ARMED, UNKNOWN}), name
