"""Stop the real command line at its n-th change of the file system, for every n, and look at what is left.

Run as a program with the library of ``fixtures.faults`` preloaded: ``faulty.py FOLDER SCENE FAULT EVERY``. It forks
from here, where everything is imported already, once for each point. On stdout: a line for each loss, and last the
number of points tried.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[3]))  # it is run by its path

from fixtures import faults, releases
from patcher import __version__
from patcher.changes import markers
from patcher.changes.change import Change, Edit, PatchId, Record
from patcher.cli import COMMANDS, rlpatch
from patcher.messages.errors import Problem
from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem.files import TEMPORARY, digest
from patcher.store.folder import StoreFolder
from tests.patcher.reliability import package
from tests.patcher.reliability.package import V0, V1, Picture

SECOND = PatchId("vllm-ascend", "compute-log-prob")
FAULTS = {
    "kill": (0, False),
    "ENOSPC": (errno.ENOSPC, False),
    "EACCES": (errno.EACCES, False),
    "EIO": (errno.EIO, False),
    "ENOSPC lasting": (errno.ENOSPC, True),
    "EIO lasting": (errno.EIO, True),
}


def command(*words: str) -> Callable[[Path], object]:
    """The real command line."""
    return lambda site: rlpatch.main([*words, "--path", str(site)], prog_name="rlpatch")


def apply(window: str) -> Callable[[Path], object]:
    """``rlpatch apply`` of a window."""
    return command("apply", "vllm-ascend", "--decode", window, "--save-path", "/tmp/traces")


def second(site: Path) -> None:
    """Another stage in the same two classes, for which there is no recipe: as lines, by way of the store."""
    store.recover([site])
    changes = []
    for path in map(PurePosixPath, (V0, V1)):
        before = (site / path).read_bytes()
        if b"_second" not in before:
            changes.append(Change(path, before, second_lines(before), markers.strip(before)))
    files = tuple(str(change.path) for change in changes)
    record = Record(SECOND, "0.9.1", ("--iterations", "0:1"), files, "2026-11-20", __version__)
    store.commit([Edit(site, tuple(changes), add=(record,) if changes else ())])


def second_lines(before: bytes) -> bytes:
    """``before`` with the block of another stage at its end, which is the end of a class."""
    block = (
        f"    {markers.begin(SECOND, __version__)}",
        "    def _second(self):",
        "        pass",
        f"    {markers.end(SECOND)}",
    )
    return markers.seal(before + "".join(f"{line}\n" for line in block).encode(), SECOND)


class Scene(NamedTuple):
    """Commands that make the state before, the one that is stopped, and what it may answer when it is done already."""

    before: tuple[Callable[[Path], object], ...]
    stopped: Callable[[Path], object]
    answers: tuple[int, ...] = (0,)


SCENES = {
    "apply": Scene((), apply("30:60")),
    "re-apply": Scene((apply("30:60"),), apply("10:20")),
    "second stage": Scene((apply("30:60"),), second),
    "revert one stage": Scene((apply("30:60"), second), command("revert", "--stage", "rollout"), answers=(0, 2)),
    "revert": Scene((apply("30:60"), second), command("revert")),
}


def forked(work: Callable[[Path], object], site: Path, said: Path, ready: Callable[[], None] = lambda: None) -> int:
    """Do ``work`` in a child; gives its exit code, -9 if it was killed. What it prints goes to ``said``."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 99
        with said.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        try:
            ready()
            work(site)
            code = 0
        except SystemExit as done:
            code = int(done.code or 0)
        except Problem as problem:  # only `second` is no command, whose report would say it
            os.write(2, f"Error: {problem}".encode())
            code = problem.kind.exit_code
        except BaseException as error:
            os.write(2, f"Traceback: {error!r}".encode())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _pid, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def imported(site: Path) -> None:
    """Import both workers, which must have our members exactly where the source has them."""
    sys.path.insert(0, str(site))
    sys.dont_write_bytecode = True
    for file in (V0, V1):
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        for name in ("_rlpatch_rollout", "_second"):
            assert hasattr(module.NPUWorker, name) == (f"def {name}" in (site / file).read_text()), (file, name)


def compiled(site: Path) -> None:
    """What can be asked of a real release without the engine that it plugs into."""
    for file in (V0, V1):
        compile((site / file).read_bytes(), file, "exec")


class Trial:
    """One scene on one tree: its state before and after, and what is wrong with a state that was left behind."""

    def __init__(self, folder: Path, scene: Scene, released: str) -> None:
        self.folder, self.scene, self.said = folder, scene, folder / "said"
        self.template, self.site = folder / "template", folder / "site"
        self.loads = compiled if released else imported
        if released:
            arrange_release(self.template, released)
        else:
            package.install(self.template)
        self.original = Picture(self.template)
        for work in scene.before:
            assert forked(work, self.template, self.said) == 0, self.said.read_text()
        self.before, self.records_before = Picture(self.template), records(self.template)
        self.fresh()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        code = forked(scene.stopped, self.site, self.said, lambda: faults.arm([self.site], log=log))
        os.close(log)
        assert code == 0, self.said.read_text()
        self.calls = (folder / "log").read_text().splitlines()
        self.after, self.records_after = Picture(self.site), records(self.site)
        assert self.after.held != self.before.held
        held = [state.held[file][1] for state in (self.original, self.before, self.after) for file in (V0, V1)]
        self.secrets = {digest(content) for content in held if isinstance(content, bytes)}

    def fresh(self) -> None:
        """The state before, once more."""
        shutil.rmtree(self.site, ignore_errors=True)
        shutil.copytree(self.template, self.site, symlinks=True)

    def stop(self, point: int, fault: str) -> int:
        """Run the scene with the fault at ``point``."""
        number, lasting = FAULTS[fault]
        self.fresh()
        return forked(
            self.scene.stopped, self.site, self.said,
            lambda: faults.arm([self.site], point, number, lasting=lasting),
        )  # fmt: skip

    def is_before(self) -> bool:
        """Whether everything is as it was, times too."""
        return (Picture(self.site), records(self.site)) == (self.before, self.records_before)

    def is_after(self) -> bool:
        """Whether the scene has been carried out; the times are those of the run."""
        return (Picture(self.site).held, records(self.site)) == (self.after.held, self.records_after)

    def killed(self, point: int, again: bool) -> list[str]:
        """Losses after a kill at ``point``, when the next command is ``recover`` or (``again``) the same one."""
        wrong = []
        if self.stop(point, "kill") != -signal.SIGKILL:
            return ["it was not killed"]
        wrong += self.too_readable()
        if again:
            wrong += self.run(self.scene.stopped, self.scene.answers)
            wrong += [] if self.is_after() else ["the same command again does not end in its result"]
        else:
            wrong += self.run(command("recover"))
            wrong += [] if self.is_before() or self.is_after() else [f"neither before nor after: {self.differs()}"]
        return wrong + self.afterwards()

    def failed(self, point: int, fault: str) -> list[str]:
        """Losses after a call has failed: the exit code must tell the truth at once, not only after a recovery."""
        code = self.stop(point, fault)
        text = self.said.read_text()
        wrong = [] if "Traceback" not in text else [text[-300:]]
        before, after = self.is_before(), self.is_after()
        if code in (5, 6):
            wrong += [] if before else [f"exit {code}, but not as before: {self.differs()}"]
        elif code == 0:
            wrong += [] if after else ["exit 0, but not as after"]
        elif code != 7:
            wrong += [f"exit {code}: {text[-300:]}"]
        if code != 0 and "Error: " not in text:
            wrong += [f"exit {code} without a word: {text}"]
        wrong += self.run(command("recover"))
        if not self.is_before() and not self.is_after():
            wrong += [f"neither before nor after: {self.differs()}"]
        return wrong + self.afterwards()

    def killed_twice(self, point: int, fault: str) -> tuple[list[str], int]:
        """Losses when the recovery of a run that was killed at ``point`` is stopped at every point of its own."""
        self.stop(point, "kill")
        left = self.folder / "left"
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(self.site, left, symlinks=True)
        number, lasting = FAULTS[fault]
        wrong, inner, code = [], 0, -1
        while code != 0:
            shutil.rmtree(self.site)
            shutil.copytree(left, self.site, symlinks=True)
            code = forked(
                command("recover"), self.site, self.said,
                lambda: faults.arm([self.site], inner, number, lasting=lasting),  # noqa: B023  (called at once)
            )  # fmt: skip
            wrong += self.run(command("recover"))
            if not self.is_before() and not self.is_after():
                wrong += [f"{inner} of the recovery: neither before nor after: {self.differs()}"]
            wrong += self.afterwards()
            inner += 1
        return wrong, inner

    def afterwards(self) -> list[str]:
        """What must hold after any recovery: it loads, nothing is left, and a revert brings every byte back."""
        wrong = [f"left: {path}" for path in self.site.rglob(f"{TEMPORARY}*")]
        wrong += ["still pending"] if StoreFolder(self.site).unfinished() else []
        wrong += self.run(self.loads)
        wrong += self.run(command("revert"))
        differences = self.original.differences(Picture(self.site))
        wrong += [f"the revert is not exact: {differences}"] if differences else []
        return wrong + (["the store is left"] if (self.site / STORE).exists() else [])

    def run(self, work: Callable[[Path], object], codes: tuple[int, ...] = (0,)) -> list[str]:
        """Run a command that must succeed."""
        code = forked(work, self.site, self.said)
        return [] if code in codes else [f"exit {code}: {self.said.read_text()[-300:]}"]

    def too_readable(self) -> list[str]:
        """Copies of a file of the target that more people can read than the file."""
        copies = [path for path in self.site.rglob("*") if path.is_file() and not path.is_symlink()]
        return [
            f"{path}: {path.stat().st_mode:o}"
            for path in copies
            if path.stat().st_mode & 0o777 & ~package.MODE and digest(path.read_bytes()) in self.secrets
        ]

    def differs(self) -> tuple[list[str], list[str]]:
        """What differs from before and from after."""
        now = Picture(self.site)
        return self.before.differences(now), self.after.differences(now)


def records(site: Path) -> list[object]:
    """The registered patches, without the time of the run."""
    return [(record.patch, record.options, record.files) for record in StoreFolder(site).records()]


def arrange_release(site: Path, version: str) -> None:
    """Both workers of a real release and its metadata, as pip leaves them."""
    source = releases.release(version)
    for name in (V0, V1, "vllm_ascend/__init__.py", "vllm_ascend/worker/__init__.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, site / name)
        (site / name).chmod(package.MODE)
    shutil.copytree(source / f"vllm_ascend-{version}.dist-info", site / f"vllm_ascend-{version}.dist-info")
    package.age(site)


def warm(folder: Path) -> None:
    """Load once what every fork will need, in an environment that says nothing."""
    for name in ("editing", "plan", *(f"cli.{name}" for name, _help in COMMANDS.values())):
        importlib.import_module(f"patcher.{name}")
    os.environ.clear()
    os.environ["PATH"] = "/usr/bin:/bin"
    os.chdir(folder)
    gc.freeze()  # a collection in a child would copy every page


def main(folder: Path, scene: str, fault: str, every: int, released: str = "") -> None:
    """Try every ``every``-th point of a scene."""
    warm(folder)
    trial = Trial(folder, SCENES[scene], released)
    tried = 0
    for point in range(every // 2, len(trial.calls), every):
        if fault.startswith("kill"):
            losses, tries = trial.killed(point, again=fault == "kill, again"), 1
        elif fault.startswith("twice"):
            losses, tries = trial.killed_twice(point, fault.removeprefix("twice, "))
        else:
            losses, tries = trial.failed(point, fault), 1
        tried += tries
        for loss in losses:
            print(f"{trial.calls[point]} ({point}): {loss}")
    print(f"points {len(trial.calls)} tried {tried}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
