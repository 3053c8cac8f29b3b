"""A vllm-ascend 0.9.1 of our own few lines that Python can import: both workers, so one apply changes two files."""

from __future__ import annotations

import os
import py_compile
import signal
import stat
from pathlib import Path

from click.testing import Result

from patcher import cli
from patcher.store import STORE
from tests.patcher.cli.conftest import runner

V0, V1 = "vllm_ascend/worker/worker.py", "vllm_ascend/worker/worker_v1.py"
BASE = '''\
"""What the workers inherit."""


class WorkerBase:
    def prepare_input(self, request=None):
        return request
'''
FILES = {
    "vllm_ascend/__init__.py": "",
    "vllm_ascend/base.py": BASE,
    "vllm_ascend/worker/__init__.py": "",
    V1: '''\
"""The worker of V1."""

from vllm_ascend.base import WorkerBase


class NPUWorker(WorkerBase):
    def sleep(self, level=1):
        return level

    def execute_model(self, scheduler_output):
        output = self.model_runner.execute_model(scheduler_output)
        return output

    def profile(self, is_start=True):
        if is_start:
            self.profiler.start()
        else:
            self.profiler.stop()
''',
    V0: '''\
"""The worker of V0."""

from vllm_ascend.base import WorkerBase


class NPUWorker(WorkerBase):
    def sleep(self, level=1):
        return level

    def start_profile(self):
        self.profiler.start()

    def stop_profile(self):
        self.profiler.stop()

    def execute_worker(self, worker_input):
        self.cache(worker_input)
''',
}
WINDOW = ("--decode", "1:2", "--tool", "npu", "--save-path", "/traces")
MODE = 0o640
OLD = 1_500_000_000_123_456_789


def install(site: Path, version: str = "0.9.1") -> Path:
    """An installed wheel of an old date; its bytecode is of the kind that Python never compares with the source."""
    for name, text in FILES.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(MODE)
        py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    info = site / f"vllm_ascend-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-ascend\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in FILES))
    age(site)
    return site


def age(root: Path) -> None:
    """Give everything an old date, folders after what is in them."""
    for folder, _folders, names in os.walk(root, topdown=False):
        for name in [*names, "."]:
            os.utime(Path(folder) / name, ns=(OLD, OLD), follow_symlinks=False)


def rlpatch(site: Path, *words: str) -> Result:
    """One command line, in this process."""
    return runner().invoke(cli.rlpatch, [*words, "--path", str(site)])


def invoked(*words: object) -> Result:
    """A command line in this process, which has its signals back then, also where they came meanwhile."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        return runner().invoke(cli.rlpatch, list(map(str, words)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Picture:
    """What lies below ``root``, our store left out: ``held`` is all that reads and runs, ``times`` when it changed.

    The time of the root itself is no part of it: a process that is killed between mkdir and utime cannot tell it. Nor
    is bytecode, which rlpatch removes and Python makes anew, or the time of its folder.
    """

    def __init__(self, root: Path) -> None:
        self.held: dict[str, tuple[str, bytes | str | None]] = {}
        self.times: dict[str, int] = {}
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if name.split("/")[0] == STORE or path.suffix == ".pyc":
                continue
            status = path.lstat()
            held: bytes | str | None = None
            if stat.S_ISLNK(status.st_mode):
                held = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                held = path.read_bytes()
            self.held[name] = (oct(status.st_mode), held)
            self.times[name] = 0 if path.name == "__pycache__" else status.st_mtime_ns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and (self.held, self.times) == (other.held, other.times)

    __hash__ = None  # type: ignore[assignment]

    def differences(self, other: Picture) -> list[str]:
        """The names that are not the same in ``other``."""
        names = sorted({*self.held, *other.held})
        held = [name for name in names if self.held.get(name) != other.held.get(name)]
        return held or [f"{name} (time)" for name in names if self.times.get(name) != other.times.get(name)]


def named(top, name: str) -> None:
    top["records"][0]["files"] = [name]


def kept(top, name: str) -> None:
    top["files"] = {name: top["files"][V1]}
