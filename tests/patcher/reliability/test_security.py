"""Values from a user or an environment variable are data: in the inserted code, in the store, on the disk."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import patches.probes
from tests.patcher.reliability import package
from tests.patcher.reliability.package import V1, Picture

WINDOW = ("apply", "vllm-ascend", "--decode", "30:60")
PLAIN = "/tmp/traces"
INJECTIONS = (
    "/tmp/x'; import os; os._exit(3)  #",
    '/tmp/x"; import os #',
    '/tmp/"""\nimport os\n"""',
    "/tmp/x\nimport os",
    "/tmp/x\r\nimport os",
    "/tmp/{__import__('os')}",
    "/tmp/{{x}}%(name)s%s",
    "/tmp/x\\",
    "/tmp/\\N{DIGIT ONE}\\x41",
    "/tmp/\u2028x\u2029y",
    "/tmp/x # <<< rlpatch vllm-ascend rollout",
    "/tmp/x\n    # <<< rlpatch vllm-ascend rollout\n",
    "/tmp/$(id)`id`",
    "~/x y.z-1",
    "x y",
    "-n",
)
# `{text}` is where the words of a user go in.
OPTIONS = (
    ("--save-path", "{text}"),
    ("--save-path", "/tmp/{text}"),
    ("--contents", "npu,{text}"),
    ("--aic-metrics", "{text}", "--level", "level1"),
    ("--ranks", "0,{text}"),
    ("--ranks", "{text}"),
    ("--stage", "{text}"),
    ("--level", "{text}"),
    ("--export-type", "{text}"),
    ("--tool", "{text}"),
    ("--rollout", "{text}"),
    ("--repeat", "{text}"),
    ("--warmup", "{text}"),
    ("--decode", "{text}"),
)


def shape(data: bytes) -> str:
    """The code without its literals: what would run, whatever the user has chosen."""
    tree = ast.parse(data)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
    return ast.dump(tree)


def names(data: bytes) -> set[str]:
    """Every name that the code uses or makes."""
    fields = ("id", "attr", "arg", "name")
    return {str(getattr(node, field, "")) for node in ast.walk(ast.parse(data)) for field in fields}


def literals(data: bytes) -> Iterator[object]:
    return (node.value for node in ast.walk(ast.parse(data)) if isinstance(node, ast.Constant))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The worker, patched with an innocent choice."""
    site = package.install(tmp_path_factory.mktemp("plain") / "site")
    assert package.rlpatch(site, *WINDOW, "--save-path", PLAIN).exit_code == 0
    return (site / V1).read_bytes()


def test_no_option_becomes_code(request, plain: bytes, tmp_path: Path) -> None:
    thorough = request.config.getoption("--thorough", default=False)
    site = package.install(tmp_path / "site")
    original = Picture(site)
    texts = st.one_of(
        st.sampled_from(INJECTIONS),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
        st.text("'\"{}\\\n\r#()[]=,;: \tax/._~-$%\u2028", max_size=20),
    )

    @settings(max_examples=2000 if thorough else 40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(OPTIONS), texts)
    @example(OPTIONS[0], INJECTIONS[0])
    @example(OPTIONS[0], INJECTIONS[-2])
    def check(option: tuple[str, ...], text: str) -> None:
        words = [word.replace("{text}", text) for word in option]
        window = WINDOW if "--decode" not in words else WINDOW[:2]
        said = package.rlpatch(site, *window, *words)
        assert said.exit_code in (0, 2, 3), (said.output, said.exception)
        if said.exit_code == 0:
            data = (site / V1).read_bytes()
            assert names(data) <= names(plain)  # `--contents npu` has fewer
            if option[0] == "--save-path":
                assert shape(data) == shape(plain)
                assert os.path.realpath(words[1]) in literals(data)
            assert package.rlpatch(site, "revert").exit_code == 0
        assert Picture(site) == original

    check()


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a\nb", "{a}", "a\\", "a#b", "a b", "a'''b"])
def test_no_folder_name_becomes_code(plain: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without --save-path the working directory decides where the traces go."""
    site = package.install(tmp_path / "site")
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    said = package.rlpatch(site, *WINDOW)
    if said.exit_code == 0:
        assert shape((site / V1).read_bytes()) == shape(plain)
        assert str(folder / "rlpatch_traces") in literals((site / V1).read_bytes())
    else:
        assert (said.exit_code, "torch_npu does not accept this path" in said.output + said.stderr) == (2, True)
        assert not (site / ".rlpatch").exists()


def test_no_environment_variable_becomes_code(plain: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = package.install(tmp_path / "site")
    for name in (
        "RLPATCH_SAVE_PATH",
        "RLPATCH_WINDOW",
        "RLPATCH_RANKS",
        "RLPATCH_ROLLOUT",
        "RLPATCH",
        "PWD",
        "HOME",
        "USER",
    ):
        monkeypatch.setenv(name, "'; import os; os._exit(3)  #{x}\n")
    assert package.rlpatch(site, *WINDOW, "--save-path", PLAIN).exit_code == 0
    assert (site / V1).read_bytes() == plain


def test_the_inserted_code_never_evaluates_a_text() -> None:
    """The probes read environment variables while the engine runs: nothing there turns a text into code."""
    forbidden = {
        "eval",
        "exec",
        "compile",
        "__import__",
        "system",
        "popen",
        "Popen",
        "loads",
        "globals",
        "literal_eval",
    }
    for path in Path(patches.probes.__path__[0]).glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
        named = [call for call in calls if ast.unparse(call) != "json.loads"]  # unlike pickle's it makes data alone
        assert not forbidden & {getattr(call, "attr", getattr(call, "id", "")) for call in named}, path.name


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize(
    ("file", "folder", "readers"),
    [
        (0o644, 0o755, 0o644),
        (0o600, 0o755, 0o600),
        (0o440, 0o755, 0o440),
        (0o666, 0o777, 0o666),
        (0o4755, 0o755, 0o755),
        (0o644, 0o700, 0o600),  # nobody else gets to the original
        (0o664, 0o750, 0o660),
        (0o644, 0o711, 0o644),
    ],
)
def test_a_backup_can_be_read_by_nobody_who_cannot_read_the_original(
    tmp_path: Path, umask: int, file: int, folder: int, readers: int
) -> None:
    site = package.install(tmp_path / "site")
    (site / V1).chmod(file)
    (site / V1).parent.chmod(folder)
    original = (site / V1).read_bytes()
    before = os.umask(umask)
    try:
        assert package.rlpatch(site, *WINDOW, "--save-path", PLAIN).exit_code == 0
    finally:
        os.umask(before)
    copies = [path for path in (site / ".rlpatch").iterdir() if path.read_bytes() == original]
    assert {path.stat().st_mode & 0o7777 for path in copies} == {readers}


def test_a_backup_follows_when_fewer_people_may_read_the_original(tmp_path: Path) -> None:
    site = package.install(tmp_path / "site")
    pristine = (site / V1).read_bytes()
    assert package.rlpatch(site, *WINDOW, "--save-path", PLAIN).exit_code == 0
    (site / V1).chmod(0o600)
    assert package.rlpatch(site, *WINDOW[:-1], "1:2", "--save-path", PLAIN).exit_code == 0
    (copy,) = (path for path in (site / ".rlpatch").iterdir() if path.read_bytes() == pristine)
    assert copy.stat().st_mode & 0o777 == 0o600
