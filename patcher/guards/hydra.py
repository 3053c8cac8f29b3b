"""What a Hydra application will be configured by: composed as the run will compose it, without running anything.

hydra-core composes the installed YAML files with the overrides of one start, OmegaConf resolves the interpolations. A
part that only the run tells makes just those keys unknown that it reaches.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patcher.guards.scope import OVERRIDE, RUN_TIME, Argument, Placed, Settings

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Stands in the configuration for what only the run tells; an identifier, so that it is valid wherever a text is.
_TOKEN = "rlpatch_run_time_"  # noqa: S105 - no password
_TOKENS = re.compile(rf"{_TOKEN}\d+")
_INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([A-Za-z_][\w.]*)")


class Start(NamedTuple):
    """A start of the application: the words behind the program, and the folder and name of its configuration.

    A ``folder`` that is None is not known; ``base`` is what an option for another one is relative to. ``perhaps`` are
    words that the start has on some way through the script, ``fixed`` is a configuration that the user names. With a
    ``reason`` nothing is known of the start.
    """

    where: str
    sure: bool
    words: tuple[Argument, ...]
    settings: Settings
    folder: Path | None = None
    name: str | None = None
    base: Path | None = None
    perhaps: tuple[str, ...] = ()
    fixed: bool = False
    reason: str = ""


class Origin(NamedTuple):
    """Where a value is decided: the key that is written there, the place, and whether it is an override."""

    key: str
    where: str
    typed: bool = True


class Configuration(NamedTuple):
    """The values of one start, with ``unknown`` true of those that only the run tells; or why none is known."""

    where: str
    sure: bool
    values: Mapping[str, object]
    origin: Callable[[str], Origin | None]
    reason: str = ""


def unknown(value: object) -> bool:
    """Whether a value, or a part of it, is only known when the run is started."""
    return _TOKEN in str(value)


def typed(value: object) -> str:
    """A value as one types it in an override, with … for what is not known."""
    text = "null" if value is None else str(value).replace(", ", ",") if isinstance(value, list) else str(value)
    return _TOKENS.sub("…", text)


class _NotKnown(Exception):  # noqa: N818 - it is an answer
    """Why nothing is known of a whole configuration."""


class _Override(NamedTuple):
    """``text`` as Hydra gets it; the key is empty for a group, whose keys nobody can tell from the word."""

    key: str
    text: str
    where: str


def configuration(start: Start, root: Path | None, home: str, extra: str, keys: Sequence[str]) -> Configuration:
    """What one start says of ``keys``.

    ``root`` is the folder of the project, None if it is not here; ``home`` the folder in it that holds what its
    configurations are made of, and is searched last; ``extra`` brings Hydra along with rlpatch.
    """
    try:
        return _composed(start, root, home, extra, keys)
    except _NotKnown as answer:
        return Configuration(start.where, start.sure, {}, lambda _key: None, str(answer))


def _composed(start: Start, root: Path | None, home: str, extra: str, keys: Sequence[str]) -> Configuration:
    import warnings

    if start.reason:
        raise _NotKnown(start.reason)
    try:
        import hydra  # noqa: F401
    except ImportError:
        command = f"pip install 'rlpatch[{extra}]'"
        raise _NotKnown(f"only hydra-core can tell: {command}") from None
    tokens = (f"{_TOKEN}{number}" for number in itertools.count())
    folder, name, words, added = _arguments(start)
    if folder is None or not name:
        known = "its program is not here: --config FILE" if root else "it is not here: --path DIR or --python EXE"
        raise _NotKnown(f"{known} leads to the configuration")
    if not (folder / f"{name}.yaml").is_file():
        raise _NotKnown(f"there is no {folder / name}.yaml")
    try:
        with warnings.catch_warnings(), _environment(start.settings, tokens):
            warnings.simplefilter("ignore")
            folders = [folder, *_searched(folder / f"{name}.yaml", words, root), *added]
            folders += [root / home] if root else []
            overrides = _overrides(words, start, folders, tokens)
            config, texts = _compose(name, folders, overrides)
            values = {key: _value(config, key, tokens) for key in keys}
    except _NotKnown:
        raise
    except Exception as error:  # whatever YAML and resolvers of others raise is an answer, not a failure
        said = _TOKENS.sub("…", str(error)).strip().partition("\n")[0]
        raise _NotKnown(f"Hydra cannot compose it: {said}"[:300]) from error
    return Configuration(start.where, start.sure, values, _Origins(name, folders, overrides, texts))


def _arguments(start: Start) -> tuple[Path | None, str, tuple[str, ...], list[Path]]:
    """What Hydra takes from the words of a start: the folder and the name of the configuration, overrides, folders."""
    from hydra._internal.utils import get_args_parser

    given = [RUN_TIME if word is None else word for word in start.words]
    try:
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            read = get_args_parser().parse_intermixed_args(given)
    except SystemExit:
        raise _NotKnown("Hydra does not take the words behind the program") from None
    words = tuple(read.overrides)
    if any(RUN_TIME in word.partition("=")[0] for word in words) or any(word[:1] == "-" for word in start.perhaps):
        raise _NotKnown("a word is only known when it runs, and may be any override")
    folder, name = start.folder, start.name or ""
    if not start.fixed:
        chosen = (read.config_path, read.config_name, read.config_dir)
        if any(RUN_TIME in word for word in chosen if word):
            raise _NotKnown("which configuration it takes is only known when it runs; --config FILE names it")
        name = read.config_name or name
        if read.config_path:
            folder = Path(start.base or "", read.config_path)
            folder = folder if folder.is_absolute() else None
    added = [Path(read.config_dir)] if read.config_dir and RUN_TIME not in read.config_dir else []
    return folder, name.removesuffix(".yaml"), words, added


def _searched(primary: Path, words: Sequence[str], root: Path | None) -> list[Path]:
    """The folders of ``hydra.searchpath``: packages, and folders that are not absolute, are those of the target."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    listed = OmegaConf.select(OmegaConf.load(primary), "hydra.searchpath") or []
    for word in words:
        if word.lstrip("+").startswith("hydra.searchpath="):
            listed = OverridesParser.create().parse_override(word).value()
    found = []
    for path in listed:
        scheme, _, rest = path.rpartition("://")
        if scheme == "pkg":
            found.append(Path(root or "", rest.replace(".", "/")))
        elif scheme in {"", "file"}:
            found.append(root / rest if root and (root / rest).is_dir() else Path(rest).absolute())
    return found


def _overrides(words: Sequence[str], start: Start, folders: Sequence[Path], tokens: Iterator[str]) -> list[_Override]:
    """The overrides that count, as Hydra gets them: each unknown part is a token, and so is a sweep."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, found = OverridesParser.create(), []
    # What stands there on some ways only comes last: then its key is unknown.
    perhaps = [
        Placed(f"++{match.group().lstrip('+~')}{RUN_TIME}", getattr(word, "where", start.where))
        for word in start.perhaps
        if (match := OVERRIDE.match(word))
    ]
    for word in [*words, *perhaps]:
        text = re.sub(RUN_TIME, lambda _: next(tokens), word)
        where = getattr(word, "where", start.where)
        try:
            read = parser.parse_override(text)
        except HydraException:
            raise _NotKnown(f"Hydra cannot read {typed(text)}") from None
        key = read.key_or_group
        if key.startswith(("hydra.", "hydra/")):
            continue
        group = "/" in key or read.package is not None or any((folder / key).is_dir() for folder in folders)
        if read.is_sweep_override():
            text = f"{text.partition('=')[0]}={next(tokens)}"
        found.append(_Override("" if group else key, text.lstrip("+") if group else text, where))
    return found


@contextmanager
def _initialized(folders: Sequence[Path]) -> Iterator[str]:
    """Hydra with the first of the folders as its own; gives the override that adds the others."""
    from hydra import initialize_config_dir

    listed = ",".join("'file://{}'".format(str(folder).replace("'", "\\'")) for folder in folders[1:])
    with initialize_config_dir(str(folders[0]), version_base=None):
        yield f"hydra.searchpath=[{listed}]"


def _compose(name: str, folders: Sequence[Path], overrides: Sequence[_Override]) -> tuple[DictConfig, list[str]]:
    """The configuration, and the overrides that made it."""
    from hydra import compose
    from hydra.errors import HydraException

    with _initialized(folders) as path:
        texts = [path, *(one.text for one in overrides)]
        try:
            return compose(name, texts), texts
        except HydraException:
            # A key that this release does not have stops the run there; what is said of the others still counts.
            plain = [one for one in overrides if not one.text.startswith("~")]
            texts = [path, *(f"++{one.text.lstrip('+')}" if one.key else one.text for one in plain)]
            return compose(name, texts), texts


def _value(config: DictConfig, key: str, tokens: Iterator[str]) -> object:
    """A value with its interpolations resolved; a token where they cannot be."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(config, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return next(tokens)


@contextmanager
def _environment(settings: Settings, tokens: Iterator[str]) -> Iterator[None]:
    """Let ``oc.env`` see the variables of the start, not our own."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def env(name: str, *default: str | None) -> str | None:
        found = settings.get(name, settings.get("*", ()))
        ways = {(one.present and one.exported, one.text) for one in found} or {(False, None)}
        present, text = next(iter(ways))
        if len(ways) > 1 or not settings or (present and text is None):
            return next(tokens)
        if not present and not default:
            raise KeyError(f"the environment variable {name} is not set")
        return text if present else default[0]

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


class _Origins:
    """Where the values of keys are decided: in an override, or in a YAML file."""

    def __init__(
        self, name: str, folders: Sequence[Path], overrides: Sequence[_Override], texts: Sequence[str]
    ) -> None:
        self._name, self._folders, self._overrides, self._texts = name, folders, overrides, texts
        self._nodes: dict[Path, Any] = {}

    def __call__(self, key: str, steps: int = 8) -> Origin | None:
        """The place of a key, or of the one that it is interpolated from; None if it is written nowhere."""
        raw, origin = "", None
        for one in reversed(self._overrides):
            if one.key and (f"{key}.".startswith(f"{one.key}.") or one.key.startswith(f"{key}.")):
                raw, origin = one.text.partition("=")[2], Origin(key, one.where, typed=True)
                break
        else:
            for file, package in reversed(self._sources):
                inside = key if not package else key[len(package) + 1 :] if key.startswith(f"{package}.") else ""
                node = self._find(file, inside) if inside else None
                if node is not None:
                    raw, origin = str(node[1].value), Origin(key, f"{file}:{node[0].start_mark.line + 1}", typed=False)
                    break
        from_key = _INTERPOLATION.match(raw)
        return (self(from_key.group(1), steps - 1) if from_key and steps else None) or origin

    @cached_property
    def _sources(self) -> list[tuple[Path, str]]:
        """The files that the configuration is made of with the packages that they fill, the last one winning."""
        import warnings

        from hydra.core.global_hydra import GlobalHydra
        from hydra.types import RunMode

        with warnings.catch_warnings(), _initialized(self._folders):
            warnings.simplefilter("ignore")
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list(self._name, list(self._texts), RunMode.RUN).defaults
        found = []
        for default in defaults:
            files = [folder / f"{default.config_path}.yaml" for folder in self._folders]
            found += [(file, default.package or "") for file in files if file.is_file()][:1]
        return found

    def _find(self, file: Path, key: str) -> tuple[Any, Any] | None:
        """The node of a key, and the one of its value; OmegaConf keeps no lines."""
        import yaml

        if file not in self._nodes:
            text = file.read_text(encoding="utf-8", errors="replace")
            self._nodes[file] = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        pair = (None, self._nodes[file])
        for part in key.split("."):
            if not isinstance(pair[1], yaml.MappingNode):
                return None
            pair = next(((name, value) for name, value in pair[1].value if name.value == part), (None, None))
        return pair if pair[0] is not None else None
