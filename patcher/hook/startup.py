"""The start of each Python process of ``rlpatch run``: it imports planned bytes, and no file on disk is changed.

The text of this module is copied as the package ``sitecustomize`` into the folder of a run, which is the first of
PYTHONPATH. So it runs alone, on Python 3.8 or newer, and knows nothing of the rest of rlpatch. Every process of a run
pays for it, most of which import no target: at its head it imports only what each interpreter has loaded by then.

Beside it lie ``plan`` and, for the file of number N, ``N.before`` and ``N.after``. The fields of ``plan`` end in NUL:
the folder of the run, ``1`` if a process must not go on unpatched, and the root and the path of each file.
"""

import _frozen_importlib
import _frozen_importlib_external
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import SourceFileLoader
    from typing import Any

NAME = "_rlpatch_run"
"""This module, in whatever process: ``sitecustomize`` may become the name of another one."""
HOOK, RUN_HOOK = "RAY_RUNTIME_ENV_HOOK", "RLPATCH_RAY_HOOK"
RAY = "/ray/_private/ray_constants.py"
"""The module in which Ray keeps the name of the variable that it looks for, ``HOOK``."""


class File:
    """Planned file.

    ``path`` is relative to its root, ``number`` the file's index in the plan of ``package``, ``run`` the folder of the
    run. ``require`` forbids importing the file unpatched.
    """

    def __init__(self, path: str, number: int, package: str, run: str, require: bool) -> None:
        self.path, self.number = path, number
        self.package, self.run, self.require = package, run, require

    def read(self, kind: str) -> bytes:
        """Return the planned bytes of ``kind`` ``before`` or ``after``; raises OSError."""
        with open(os.path.join(self.package, f"{self.number}.{kind}"), "rb") as file:
            return file.read()


files: "dict[str, File]" = {}
"""By the real path."""
names = {os.path.basename(RAY)}
"""The last parts of their paths: a module of another name is passed on without a further look."""
packages: "list[str]" = []
plans: "list[int]" = []
"""The open plans: by them the command finds who needs its folder, also who has written a title over its environment."""
receipts: "set[tuple[str, int, str]]" = set()
"""Receipts that this process wrote: package, number of a file in it, and state."""


def add(package: str) -> None:
    """Register the files in the plan of ``package``, a folder, and note in the run's folder that this process started.

    A file in two plans stays with the first, that of the inner run. The plan stays open, which shows that this process
    uses it. Raises OSError or ValueError if the plan cannot be read.
    """
    plan = os.open(os.path.join(package, "plan"), os.O_RDONLY | os.O_CLOEXEC)
    plans.append(plan)
    with open(plan, "rb", closefd=False) as file:
        run, require, *pairs = [os.fsdecode(field) for field in file.read().split(b"\0")[:-1]]
    packages.append(package)
    for number, (root, path) in enumerate(zip(pairs[::2], pairs[1::2])):
        files.setdefault(os.path.join(root, path), File(path, number, package, run, bool(require)))
        names.add(os.path.basename(path))
    _append_text(run, "started", f"{os.getpid()} {sys.prefix}\n")


def _append_text(run: str, name: str, text: str) -> None:
    """Append ``text`` to the file ``name`` in the folder ``run``; ignore errors, such as on another machine."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe waits
    try:
        with open(os.open(os.path.join(run, name), flags, 0o666), "ab", 0) as file:
            file.write(os.fsencode(text))
    except OSError:
        pass


def install() -> None:
    """Patch SourceFileLoader so that planned modules are compiled from the planned bytes.

    A finder would be bypassed: typeguard and jaxtyping put their own before it. Their loaders, like all those that
    change code, derive from SourceFileLoader.
    """
    loader = _frozen_importlib_external.SourceFileLoader
    read, stats = loader.get_data, loader.path_stats

    def get_data(self: "SourceFileLoader", path: str) -> bytes:
        """Return the planned bytes of a planned file, and show them in tracebacks; else read the disk."""
        planned = _planned_bytes(self, path, read) if type(path) is str and path.rpartition("/")[2] in names else None
        if planned is None:
            return read(self, path)
        _show_lines(path, planned)
        return planned

    def path_stats(self: "SourceFileLoader", path: str) -> "Any":
        """Raise OSError for a planned file, so that Python neither reads nor writes bytecode; else ask the loader."""
        if path.rpartition("/")[2] in names and _planned_bytes(self, path, read) is not None:
            raise OSError("rlpatch run: imported from its plan")
        return stats(self, path)

    loader.get_data, loader.path_stats = get_data, path_stats  # type: ignore[assignment,method-assign]


def _planned_bytes(loader: "SourceFileLoader", path: str, read: "Any") -> "bytes | None":
    """Return the bytes to import for ``path``; None if Python should read the disk.

    ``read`` is the loader's original ``get_data``. The import of a planned file is noted in the run's folder. A file
    with other bytes than planned, or another copy, is noted, too, and stays unpatched. Then ImportError is raised if
    the run forbids that. The module of Ray that names its hook is changed to name rlpatch's.
    """
    # py_compile writes for everybody what it reads.
    if getattr(loader, "name", "") == "<py_compile>":
        return None
    real = os.path.realpath(path)
    if real not in files and real.endswith(RAY):
        return _with_run_hook(read(loader, path))
    if real not in files:
        name = str(getattr(loader, "name", ""))
        for planned, file in files.items():
            # verl/third_party/vllm/__init__.py is no vllm/__init__.py.
            if real.endswith(os.sep + file.path) and name in ("", "__main__", _module(file.path)):
                _report_unpatched(file, "elsewhere", path, f"the plan is for {planned}")
                break
        return None
    file = files[real]
    try:
        before, after = file.read("before"), file.read("after")
    except OSError:  # the run is over, and its folder removed
        return None
    if read(loader, path) != before:
        _report_unpatched(file, "changed", path, "it has changed since the run was planned")
        return None
    _leave_receipt(file, "patched", path)
    return after


def _module(path: str) -> str:
    """Return the dotted module name of ``path``, which is relative to the root."""
    parts = os.path.splitext(path)[0].split(os.sep)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _leave_receipt(file: File, state: str, path: str) -> bool:
    """Write a receipt that this process imports ``file`` from ``path``, and tell whether it is new.

    It is not new, and not written again, if this process wrote one for the same file and ``state``, such as "patched".
    """
    key = file.package, file.number, state
    if key in receipts:
        return False
    receipts.add(key)
    _append_text(file.run, os.path.join("receipts", f"{os.getpid()}-{file.number}-{state}"), path)
    return True


def _report_unpatched(file: File, state: str, path: str, why: str) -> None:
    """Write a receipt and print once that ``path`` is imported instead of the planned ``file``, for the reason ``why``.

    ``state`` is "changed" (the planned file has other bytes) or "elsewhere" (another file is imported).
    Raises ImportError if the run forbids importing the file unpatched.
    """
    message = f"rlpatch run: {path} is imported unpatched: {why}"
    if _leave_receipt(file, state, path) and sys.stderr is not None:
        print(message, file=sys.stderr)
    if file.require:
        raise ImportError(message)


def _show_lines(path: str, data: bytes) -> None:
    """Make tracebacks, inspect and pdb show the planned ``data`` of ``path``, not the disk; ignore errors."""
    try:
        import io
        import linecache

        text = _frozen_importlib_external.decode_source(data)
        lines = io.StringIO(text if text.endswith("\n") else text + "\n").readlines()
        linecache.cache[path] = (len(text), None, lines, path)
        _use_python_tracebacks()
    except Exception:  # noqa: S110  (a file of the user's has the name of one of Python's modules: shown is the disk)
        pass


def _use_python_tracebacks() -> None:
    """Let the ``traceback`` module print uncaught exceptions, unless somebody else does.

    Do nothing from Python 3.13 on. Before, the default printer, in C, would read the unpatched lines from the disk.
    """
    if sys.version_info >= (3, 13):
        return
    import threading
    import traceback

    def in_thread(args: "Any") -> None:
        """Print the exception that ended a thread, unless that is SystemExit."""
        if args.exc_type is not SystemExit and sys.stderr is not None:
            name = args.thread.name if args.thread else threading.get_ident()
            print(f"Exception in thread {name}:", file=sys.stderr)
            traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = traceback.print_exception
    if threading.excepthook.__module__ == "_thread":
        threading.excepthook = in_thread


def _with_run_hook(constants: bytes) -> "bytes | None":
    """Return the source ``constants`` of a Ray module, changed so that Ray takes its hook from rlpatch's own variable.

    Set that variable, too. Return None if the source names no variable for the hook. Ray's own variable is left alone:
    it may name another hook, and a process that inherits it without this module would fail in ray.init.
    """
    if HOOK.encode() not in constants:
        return None
    os.environ[RUN_HOOK] = NAME + ".hook"
    return constants + f'\n{HOOK} = "{RUN_HOOK}"  # rlpatch run\n'.encode()


def hook(runtime_env: "Any") -> "dict[str, Any]":
    """Return ``runtime_env`` of a Ray job with rlpatch's packages in ``py_modules``, which Ray copies to every node.

    Packages that are there already, or no longer exist, are not added. If RAY_RUNTIME_ENV_HOOK names another hook, call
    that one first. Note in each run folder that Ray got the package.
    """
    module, _, function = os.environ.get(HOOK, "").rpartition(".")
    if module:
        __import__(module)
        runtime_env = getattr(sys.modules[module], function)(runtime_env)
    chosen = dict(runtime_env or {})
    modules = list(chosen.get("py_modules") or ())
    for package in packages:
        # One that came by `ray job submit` is known by the folder into which Ray has put it.
        there = os.path.basename(os.path.dirname(package))
        if os.path.isdir(package) and not any(there in str(module) for module in modules):
            modules.append(package)
    if modules:
        chosen["py_modules"] = modules
    for run in {file.run for file in files.values()}:
        _append_text(run, "ray", f"{os.getpid()}\n")
    return chosen


def chain(package: str) -> None:
    """Run the next ``sitecustomize`` on ``sys.path`` behind the folder that contains the folder ``package``, if any.

    It replaces this one, which comes first on the path, in ``sys.modules``. What it raises is raised here, too.
    """
    folder = os.path.dirname(package)
    later_entries = sys.path[sys.path.index(folder) + 1 :] if folder in sys.path else []
    for entry in later_entries:
        spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", [entry])
        if spec is not None and spec.loader is not None and spec.origin is not None:
            module = _frozen_importlib.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


def _begin() -> None:
    """Add this package's plan to those of the process, and run the next ``sitecustomize``.

    The first package also installs the import hook. If the plan cannot be read, print that this process is not patched,
    and go on.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    first: Any = sys.modules.setdefault(NAME, sys.modules[__name__])
    if package not in first.packages:
        try:
            first.add(package)
        except (OSError, ValueError) as error:
            print(f"rlpatch run: this process is not patched: {error}", file=sys.stderr)
        else:
            if len(first.packages) == 1:
                first.install()
    first.chain(package)


if __name__ == "sitecustomize":
    _begin()
