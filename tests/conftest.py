"""Fixtures for every test, and the options that say how much of the release matrix to run."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fixtures import environments, releases
from fixtures.cache import Once, cached
from patcher import interrupts
from tests.matrix import ends, thinned

# Helper modules, too, say what differed; pytest rewrites only test modules by itself.
pytest.register_assert_rewrite("fixtures.rays", "tests.pages", "tests.patcher", "tests.patches", "tests.site")

# Two cores shared with engines that import torch: a slow example says nothing.
settings.register_profile("rlpatch", deadline=None)
settings.register_profile("short", deadline=None, max_examples=10, derandomize=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-releases",
        action="store_true",
        help="run the whole matrix: every release of every project instead of a sample, and the long lists of cases",
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="try every point, fault and race of tests/patcher/reliability, and train with tests/patches/test_on_trainer",
    )
    parser.addoption(
        "--mindspeed-rl",
        type=Path,
        metavar="DIR",
        help="run the tests of MindSpeed-RL on real checkouts, too: DIR/v2.1.0, v2.2.0, v2.3.0 and master",
    )
    parser.addoption(
        "--checkouts",
        type=Path,
        metavar="DIR",
        help="run test_checkouts on real clones: DIR/slime, DIR/miles and so on, with their tags",
    )


REST = ("engine", "matrix", "crash")
"""The marks of what only `.ci/run`, and whoever asks for it, has the time for."""
LONG_OPTIONS = ("--all-releases", "--thorough", "--mindspeed-rl", "--checkouts")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["XDG_STATE_HOME"] = os.devnull  # where tests patch, nobody is to remember
    for name in ("RLPATCH_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if os.environ.get(name, "").startswith("zh"):  # English is tested, whoever tests it
            os.environ[name] = "C.UTF-8"
    # Before the tests are imported, which ask for it.
    settings.load_profile("rlpatch" if _asks_for_all(config) or _files_with_named_tests(config) else "short")


def _asks_for_all(config: pytest.Config) -> bool:
    return bool(config.option.markexpr) or any(map(config.getoption, LONG_OPTIONS))


def _files_with_named_tests(config: pytest.Config) -> set[Path]:
    """The files of those arguments that name a test: ``FILE::test``."""
    files = (arg.partition("::")[0] for arg in config.args if "::" in arg)
    return {(config.invocation_params.dir / file).resolve() for file in files}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the rest out, in named files and folders, too, unless ``-m``, ``FILE::test`` or an option asks for it."""
    if _asks_for_all(config):
        return
    named_files = _files_with_named_tests(config)
    unasked = {item for item in items if item.path not in named_files and any(map(item.get_closest_marker, REST))}
    config.hook.pytest_deselected(items=[item for item in items if item in unasked])
    items[:] = [item for item in items if item not in unasked]


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--thorough"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with its fixtures; not as a fixture of each test, which takes longer than many of them."""
    with _watched_for_coverage(item), _stopped_by_ctrl_c():
        return (yield)


@contextlib.contextmanager
def _watched_for_coverage(item: pytest.Item) -> Iterator[None]:
    """Watch no marked test for coverage, and none that is `unwatched`: that doubles its time, and others run the lines.

    What is marked is the rest of lists of which the short run sees some, and runs of other programs.
    """
    plugin = item.config.pluginmanager.getplugin("_cov")
    coverage = getattr(getattr(plugin, "cov_controller", None), "cov", None)
    skipped = "unwatched" in getattr(item, "fixturenames", ()) or any(map(item.get_closest_marker, REST))
    if coverage is None or not skipped:
        yield
        return
    coverage.stop()
    try:
        yield
    finally:
        coverage.start()


@contextlib.contextmanager
def _stopped_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C stop the tests again: a command that is done ignores it until its process ends.

    A run in the background of a shell begins with Ctrl-C ignored, which all that it starts would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGINT)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.signal(signal.SIGINT, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # `rlpatch run` leaves them blocked, too
    with contextlib.suppress(KeyboardInterrupt):  # pressed in a command that then failed of something else
        interrupts.raise_pending()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collected tests, some 9,000, away from the garbage collector, which spent a fifth of the run on them."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """Say why tests were skipped, a line for each reason, and how to run what is marked if nothing else was asked for."""
    places = [report.longrepr for report in terminalreporter.getreports("skipped")]
    reasons = Counter(place[2].removeprefix("Skipped: ") for place in places if isinstance(place, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    # Workers of pytest-xdist do not say what they leave out.
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not _asks_for_all(config):
        terminalreporter.write_line(
            f"what is marked runs where it is asked for: -m '{' or '.join(REST)}', or FILE::test"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ascend_release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        cases = releases.VLLM_ASCEND if everything else releases.SAMPLE
        metafunc.parametrize("ascend_release", thinned(cases, (*ends(cases), "0.11.0rc1")))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """``once(name, make)`` is a folder that ``make(folder)`` fills once for all tests of a run.

    In whichever process of pytest-xdist they run. Where it fails, it fails all of them, without another try.
    """
    basetemp = tmp_path_factory.getbasetemp()
    root = basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp

    def fill_once(name: str, make: Callable[[Path], object]) -> Path:
        def make_or_note(folder: Path) -> None:
            try:
                make(folder)
            except Exception:
                (folder / "failure").write_text(traceback.format_exc())

        folder = cached(name, make_or_note, root)
        failure = folder / "failure"
        assert not failure.exists(), failure.read_text()
        return folder

    return fill_once


@pytest.fixture(scope="session")
def npu_python() -> Path:
    """A Python with torch_npu on the fake CANN; run it with ``environments.variables()``."""
    return environments.torch_npu_env()
