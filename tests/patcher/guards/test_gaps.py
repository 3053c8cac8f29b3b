"""Places in a command and its scripts where processes begin without the hook."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from patcher.guards.gaps import HookGap, hook_gaps, submit_words
from patcher.guards.result import Launch
from patcher.hook.folder import VARIABLE
from patcher.messages.errors import Problem

SUBMITTED = submit_words(VARIABLE)

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain": ("python -m x", ()),
    "-I": ("python -I -m x", ("-I ignores PYTHONPATH",)),
    "-E among others": ("python3.11 -uE -m x", ("-E ignores PYTHONPATH",)),
    "-S": ("python -S -m x", ("-S does not import sitecustomize",)),
    "of the module": ("python -m x -I", ()),
    "of the code": ("python -c pass -I", ()),
    "behind values": ("python -W ignore -X utf8 -m x", ()),
    "a value of -W, then -E": ("python -Wignore -E -m x", ("-E ignores PYTHONPATH",)),
    "a value apart, then -E": ("python -W ignore -E -m x", ("-E ignores PYTHONPATH",)),
    "a value with letters of options, then -E": ("python -Xfrozen_modules -E -m x", ("-E ignores PYTHONPATH",)),
    "of another program": ("curl -I x", ()),
    "torchrun": ("torchrun --nproc-per-node 8 -m x", ()),
    "env -i": ("env -i A=1 python -m x", ("this command unsets PYTHONPATH, or empties the environment (env -i",)),
    "env -u": ("env -u PYTHONPATH python -m x", ("this command unsets PYTHONPATH",)),
    "env": ("env A=1 python -m x", ()),
    "anew": ("export PYTHONPATH=/a\npython -m x", ("the PYTHONPATH that rlpatch sets is overwritten",)),
    "anew for one": ("PYTHONPATH=/a python -m x", ("the PYTHONPATH that rlpatch sets is overwritten",)),
    "anew by what only the run tells": ("export PYTHONPATH=$(tool)\npython -m x", ("(perhaps) the PYTHONPATH that rlpatch sets might be overwritten",)),
    "unset": ("unset PYTHONPATH\npython -m x", ("this command unsets PYTHONPATH",)),
    "kept": ("export PYTHONPATH=/a:$PYTHONPATH\npython -m x", ()),
    "kept if there": ("export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}/a\npython -m x", ()),
    "kept beside what only the run tells": ("export PYTHONPATH=$(tool):$PYTHONPATH\npython -m x", ()),
    "in a branch": ("if [ -e $X ]; then export PYTHONPATH=/a; fi\npython -m x", ("(perhaps) the PYTHONPATH that rlpatch sets is overwritten",)),
    "in a function that nothing may call": ("f() { PYTHONPATH=/a python -m x; }", ("(perhaps) the PYTHONPATH that rlpatch sets is overwritten",)),
    "srun": ("srun --export=NONE python -m x", ("srun passes on only the variables in --export",)),
    "srun with all": ("srun --export=ALL,A=1 python -m x", ()),
    "anew behind all": ("python -m x\nexport PYTHONPATH=/a", ()),
    "sudo": ("sudo python -m x", ("(perhaps) sudo passes on",)),
    "docker": ("docker run -e A=1 image python -m x", ("the container has neither rlpatch's environment variables nor rlpatch's folder",)),
    "ssh": ("ssh host python -m x", ("the other machine has neither rlpatch's environment variables nor rlpatch's folder",)),
    "a pattern": ("case $1 in\n  ssh|docker) A=1;;\n  srun) A=2;;\nesac\npython -m x", ()),
    "ray job submit": ("ray job submit -- python -m x", ("the job runs with the cluster's environment variables, not with those of this shell",)),
    "ray job submit with ours": (f"ray job submit {SUBMITTED} -- python -m x", ()),
    "ray job submit with what only the run tells": ("ray job submit --runtime-env-json $(cat env) -- python -m x", ()),
    "ray job submit with others": ("ray job submit --runtime-env-json '{}' -- python -m x", ("the job runs with the cluster's environment variables, not with those of this shell",)),
    "ray start": ("ray start --head", ()),
}  # fmt: skip


def gaps(environ: dict[str, str], script: Path | None, command: Sequence[str]) -> tuple[HookGap, ...]:
    return hook_gaps(Launch(environ=environ, script=script, command=tuple(command)), VARIABLE)


@pytest.mark.parametrize("case", CASES)
def test_a_line_of_a_script(case: str, tmp_path: Path) -> None:
    text, expected = CASES[case]
    (tmp_path / "run.sh").write_text(f"{text}\n")
    found = gaps({"PATH": "/bin", "PYTHONPATH": "/before"}, None, ["bash", str(tmp_path / "run.sh")])
    said = [("" if gap.sure else "(perhaps) ") + gap.why for gap in found]
    assert len(said) == len(expected), found
    assert all(want in why for want, why in zip(expected, said, strict=True)), said
    assert all(gap.where.startswith(f"{tmp_path}/run.sh:") and gap.instead for gap in found)


def test_the_line_that_sets_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("cd /\nexport PYTHONPATH=/verl\nexport A=1\npython -m x\ntorchrun -m y\n")
    (gap,) = gaps({}, tmp_path / "run.sh", ())
    assert (gap.where, gap.found) == (f"{tmp_path}/run.sh:2", "PYTHONPATH=/verl")
    assert gap.instead == "use `export PYTHONPATH=…:$PYTHONPATH`, which keeps the old value"


def test_a_command_without_a_script() -> None:
    (gap,) = gaps({}, None, ("python", "-I", "-m", "x"))
    assert (gap.where, gap.found, gap.sure) == ("command after --", "python -I -m x", True)


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "run.sh").write_text("python -I -m x\n")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (gap,) = gaps({}, tmp_path / "run.sh", ())
    assert gap.where == f"{tmp_path}/run.sh:1"


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(Problem, match="cannot read"):
        gaps({}, Path("/none/run.sh"), ())


# Scripts that start `program`, and whether it gets what was in PYTHONPATH before: bash itself tells.
PATHS = {
    "in front": "export PYTHONPATH=/x:$PYTHONPATH\nprogram",
    "if it is not empty": "export PYTHONPATH=/x${PYTHONPATH:+:$PYTHONPATH}\nprogram",
    "in braces in quotes": 'export PYTHONPATH="/x${PYTHONPATH:+:${PYTHONPATH}}"\nprogram',
    "behind, for one": 'PYTHONPATH="$PYTHONPATH:/x" program',
    "by env": "env PYTHONPATH=/x:$PYTHONPATH program",
    "exported later": "PYTHONPATH=/x:$PYTHONPATH\nexport PYTHONPATH\nprogram",
    "appended": "export PYTHONPATH+=:/x\nprogram",
    "a default": "export PYTHONPATH=${PYTHONPATH:-/y}:/x\nprogram",
    "by another name": "OLD=$PYTHONPATH\nexport PYTHONPATH=/x:$OLD\nprogram",
    "perhaps by one of two": "if [ $A ]; then P=/x:$PYTHONPATH; else P=$PYTHONPATH; fi\nexport PYTHONPATH=$P\nprogram",
    "in a function": "f() { export PYTHONPATH=/x:$PYTHONPATH; }\nf\nprogram",
    "with a command": "export PYTHONPATH=$(pwd):$PYTHONPATH\nprogram",
    "a name that contains it": "export PYTHONPATH=/opt/PYTHONPATH:$PYTHONPATH_2\nprogram",
    "replaced if it is not empty": "export PYTHONPATH=${PYTHONPATH:+/y}\nprogram",
    "anew": "export PYTHONPATH=/x\nprogram",
    "anew, exported later": "PYTHONPATH=/x\nexport PYTHONPATH\nprogram",
    "anew by another name": "P=/x\nexport PYTHONPATH=$P\nprogram",
    "anew, then kept": "export PYTHONPATH=/x\nexport PYTHONPATH=/y:$PYTHONPATH\nprogram",
    "anew by env": "env PYTHONPATH=/x program",
    "emptied": "export PYTHONPATH=\nprogram",
    "unset": "unset PYTHONPATH\nprogram",
}


@pytest.mark.parametrize("case", PATHS)
@pytest.mark.parametrize("program", ["python", "./start"])
def test_the_verdict_on_pythonpath_is_that_of_bash(
    case: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PATHS[case].replace("program", program)
    for name in ("python", "start"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$PYTHONPATH"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "inner.sh").write_text(f"{text}\n")
    (tmp_path / "outer.sh").write_text("bash inner.sh\n")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": "/before"}
    ran = subprocess.run(["bash", "inner.sh"], env=environ, capture_output=True, text=True, check=True)
    is_kept = "/before" in ran.stdout
    for command in (["bash", "inner.sh"], ["bash", "outer.sh"], ["bash", "-c", text]):
        losses = gaps(environ, None, command)
        if case.startswith("perhaps"):
            assert [(loss.why, loss.sure) for loss in losses] == [
                ("the PYTHONPATH that rlpatch sets might be overwritten", False)
            ], command
        else:
            assert bool(losses) is not is_kept, command
        assert program == "python" or not any(loss.sure for loss in losses), (
            "found no Python program that starts after this setting"
        )
