"""Composes what starts of a Hydra application are configured by: a program of its own, for the Python of the run.

It answers each line of JSON with one, an empty list where there is no Hydra. It imports nothing of rlpatch, and nothing
of the target is run: hydra-core composes the installed YAML files with the overrides of a start, OmegaConf resolves the
interpolations. A part that only the run tells makes just those keys unknown that it reaches. Python 3.9 and Hydra 1.2
will do.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import io
import itertools
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

if __name__ == "__main__":
    # The folder of this file has a `hydra` of its own, and the working directory may hold anything.
    sys.path[:] = [path for path in sys.path if path not in ("", str(Path(__file__).parent))]
try:
    import yaml

    if __name__ == "__main__":
        yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # before OmegaConf builds on it: half the time
    from hydra import compose, initialize, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from omegaconf.resolvers import oc
except ImportError:
    HERE = False
else:
    HERE = True

# Stands in the configuration for what only the run tells; an identifier, so that it is valid wherever a text is.
TOKEN = "rlpatch_run_time_"  # noqa: S105 - no password
# The same in a word of a start.
RUN_TIME = "\0"
_TOKENS = re.compile(rf"{TOKEN}\d+")
_KEY = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@:-]*)=", re.ASCII)
_INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([A-Za-z_][\w.]*)")

_NUMBERS = itertools.count()
_NOWHERE = object()

_Job = dict[str, Any]


class _NotKnown(Exception):  # noqa: N818 - it is an answer
    """Why nothing is known of a start."""


class _NotBased(Exception):  # noqa: N818 - it is an answer
    """Why the files are not known that the words of a start change."""


def _token() -> str:
    return f"{TOKEN}{next(_NUMBERS)}"


class _Override(NamedTuple):
    """``text`` as Hydra gets it; the key is empty for a group, whose keys nobody can tell from the word."""

    key: str
    text: str
    where: str


@dataclass(frozen=True)
class _Composed:
    """A configuration and what it was made of; without ``everything`` only those keys count that an override sets."""

    config: Any
    folders: list[Path]
    name: str | None
    overrides: list[_Override]
    texts: list[str]
    everything: bool

    def values(self, job: _Job) -> dict[str, Any]:
        """The values of the job's keys with their interpolations resolved; a token for each that is not known."""
        found = {}
        for key in job["keys"]:
            try:
                value = OmegaConf.select(self.config, key)
                found[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            except OmegaConfBaseException:
                found[key] = _token()
            # Where the project's own files name all that is read, what is not in them need not be known.
            there = not job["whole"] or self.name is None or self._raw(key) is not _NOWHERE
            if not self.everything and there and self.origin(key)[1] is None:
                found[key] = _token()
        return found

    def origin(self, key: str, steps: int = 8) -> tuple[str, str | None]:
        """The key that decides ``key``, itself or the one that it is interpolated from, and the override's place."""
        where, raw = None, None
        for one in reversed(self.overrides):
            if one.key and (f"{key}.".startswith(f"{one.key}.") or one.key.startswith(f"{key}.")):
                where, raw = one.where, one.text.partition("=")[2]
                break
        else:
            raw = self._raw(key)
        other = _INTERPOLATION.match(raw) if isinstance(raw, str) and steps else None
        found = self.origin(other.group(1), steps - 1) if other else None
        # An interpolation whose key is written nowhere has a default, which stands where the interpolation does.
        return found if found and (found[1] is not None or self._raw(found[0]) is not _NOWHERE) else (key, where)

    @cached_property
    def _written(self) -> Any:
        return OmegaConf.to_container(self.config, resolve=False)

    def _raw(self, key: str) -> Any:
        node = self._written
        for part in key.split("."):
            node = node.get(part, _NOWHERE) if isinstance(node, dict) else _NOWHERE
        return node

    def change(self, override: str) -> None:
        """Put one more override behind the others, as Hydra does. Raises what Hydra would refuse it with."""
        read = OverridesParser.create().parse_override(override)
        OmegaConf.update(self.config, read.key_or_group, read.value(), merge=True)
        self.overrides.append(_Override(read.key_or_group, override, ""))

    def place(self, key: str) -> str:
        """The file and line in which a key is written last, empty if it is written nowhere."""
        if not self.name:
            return ""
        with _initialized(self.folders):
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list(self.name, list(self.texts), RunMode.RUN).defaults
        for default in reversed(defaults):
            package = default.package or ""
            inside = key if not package else key[len(package) + 1 :] if key.startswith(f"{package}.") else ""
            files = [folder / f"{default.config_path}.yaml" for folder in self.folders]
            for file in [file for file in files if inside and file.is_file()][:1]:
                pair = (None, yaml.compose(file.read_text(encoding="utf-8", errors="replace"), Loader=yaml.SafeLoader))
                for part in inside.split("."):
                    pairs = pair[1].value if isinstance(pair[1], yaml.MappingNode) else ()
                    pair = next(((name, value) for name, value in pairs if name.value == part), (None, None))
                if pair[0] is not None:
                    return f"{file}:{pair[0].start_mark.line + 1}"
        return ""


class Session:
    """Composes, and remembers the configurations for the questions that follow."""

    def __init__(self) -> None:
        self._composed: list[tuple[_Composed | None, _Job]] = []

    def answer(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """What ``starts`` are configured by, or which of the changes that are asked for Hydra accepts."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if "starts" in request:
                    self._composed = []
                    return [self._start(job) for job in request["starts"]]
                return [self._changes(one) for one in request["changes"]]
            finally:
                OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)  # which each of them has made its own

    def _start(self, job: _Job) -> dict[str, Any]:
        _give_environment(job)
        reason, values, composed = job["reason"], None, None
        try:
            if not reason:
                try:
                    composed = _exact(job)
                except _NotBased as answer:
                    reason = str(answer)
                    composed = _stand_in(job, _overrides(_arguments(job).overrides, job, []))
                values = composed.values(job) if composed else None
        except Exception as error:  # whatever YAML and resolvers of others raise is an answer
            said = _TOKENS.sub("…", str(error)).strip().partition("\n")[0]
            said = str(error) if isinstance(error, _NotKnown) else f"Hydra cannot compose it: {said}"[:300]
            composed, reason = None, reason or said
        # What may be anything still has the keys that the advice to switch it off needs.
        with contextlib.suppress(Exception):
            composed = composed or _stand_in(job, [])
        self._composed.append((composed, job))
        return {"reason": reason, "values": values or {}, "known": values is not None}

    def _changes(self, request: dict[str, Any]) -> dict[str, Any]:
        composed, job = self._composed[request["start"]]
        accepted, overrides, place = [], [], ""
        if composed is None:
            return {"origins": {}, "place": "", "accepted": [], "overrides": [], "values": {}}
        _give_environment(job)
        origins = {key: composed.origin(key) for key in [*request["keys"], *request["changes"]]}
        decisive, typed_at = origins[request["decisive"]]
        with contextlib.suppress(Exception):
            place = "" if typed_at else composed.place(decisive)
        changed = replace(composed, config=copy.deepcopy(composed.config), overrides=list(composed.overrides))
        for key, text in request["changes"].items():
            override = f"{origins[key][0]}={text}"
            with contextlib.suppress(Exception):  # refused, so it is no advice
                if override not in overrides:
                    changed.change(override)
                    overrides.append(override)
                accepted.append(key)
        values = changed.values(job)
        return {"origins": origins, "place": place, "accepted": accepted, "overrides": overrides, "values": values}


def _exact(job: _Job) -> _Composed:
    given = _arguments(job)
    folder, name = job["folder"] and Path(job["folder"]), job["name"] or ""
    if not job["fixed"]:
        if any(RUN_TIME in word for word in (given.config_path, given.config_name, given.config_dir) if word):
            raise _NotBased("which configuration it takes is only known when it runs; --config FILE names it")
        name = given.config_name or name
        if given.config_path:
            folder = Path(job["base"] or "", given.config_path)
            folder = folder if folder.is_absolute() else None
    name = name.removesuffix(".yaml")
    if folder is None or not name:
        known = "its program is not here: --config FILE" if job["root"] else "it is not here: --path DIR, --python EXE"
        raise _NotBased(f"{known} leads to the configuration")
    if not (folder / f"{name}.yaml").is_file():
        raise _NotBased(f"there is no {folder / name}.yaml")
    folders = [folder, *_searched(folder / f"{name}.yaml", given.overrides, job["root"])]
    folders += [Path(given.config_dir)] if given.config_dir and RUN_TIME not in given.config_dir else []
    folders += [Path(job["root"], job["home"])] if job["root"] else []
    return _compose(folders, name, _overrides(given.overrides, job, folders), everything=True)


def _stand_in(job: _Job, overrides: list[_Override]) -> _Composed | None:
    """The words over the configuration that the start has by default, else over the first of the project."""
    homes = [(Path(job["root"], job["home"]), name) for name in job["defaults"]] if job["root"] else []
    homes = [(Path(job["folder"]), job["name"]), *homes] if job["folder"] and job["name"] else homes
    found = next(((folder, name) for folder, name in homes if (folder / f"{name}.yaml").is_file()), None)
    forced = [one._replace(text=f"++{one.text.lstrip('+')}") for one in overrides if one.key and one.text[0] != "~"]
    if found is None:
        return _compose([], None, forced, everything=False) if forced else None
    folders = [found[0], Path(job["root"], job["home"])] if job["root"] else [found[0]]
    return _compose(folders, found[1], forced, everything=False)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # noqa: ARG002
        raise _NotKnown("Hydra does not take the words behind the program")


def _arguments(job: _Job) -> argparse.Namespace:
    """What Hydra takes from the words of a start: the folder and the name of the configuration, overrides, folders."""
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    for names in ("--config-path -cp", "--config-name -cn", "--config-dir -cd", "--package -p", "--experimental-rerun"):
        parser.add_argument(*names.split())
    for flags in ("--help -h", "--hydra-help", "--resolve", "--run -r", "--multirun -m", "--shell-completion -sc"):
        parser.add_argument(*flags.split(), action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--info", "-i", nargs="?")
    given = parser.parse_intermixed_args([RUN_TIME if word is None else word for word, _ in job["words"]])
    if any(RUN_TIME in word.partition("=")[0] for word in given.overrides) or any(
        word[:1] == "-" for word, _ in job["perhaps"]
    ):
        raise _NotKnown("a word is only known when it runs, and may be any override")
    return given


def _searched(primary: Path, words: list[str], root: str | None) -> list[Path]:
    """The folders of ``hydra.searchpath``: packages, and folders that are not absolute, are those of the target."""
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
            found.append(Path(root, rest) if root and Path(root, rest).is_dir() else Path(rest).absolute())
    return found


def _overrides(words: list[str], job: _Job, folders: list[Path]) -> list[_Override]:
    """The overrides that count, as Hydra gets them: each unknown part is a token, and so is a sweep."""
    places = {word: where for word, where in job["words"]}  # noqa: C416 - of words that are there twice the last counts
    # What stands there on some ways only comes last: then its key is unknown.
    matches = [(_KEY.match(word), where) for word, where in job["perhaps"]]
    perhaps = [(f"++{match.group(1)}={RUN_TIME}", where) for match, where in matches if match]
    parser, found = OverridesParser.create(), []
    for word, where in [*((word, places[word]) for word in words), *perhaps]:
        text = re.sub(RUN_TIME, lambda _: _token(), word)
        try:
            read = parser.parse_override(text)
        except HydraException:
            raise _NotKnown(f"Hydra cannot read {_TOKENS.sub('…', text)}") from None
        key = read.key_or_group
        if key.startswith(("hydra.", "hydra/")):
            continue
        group = "/" in key or read.package is not None or any((folder / key).is_dir() for folder in folders)
        if read.is_sweep_override():
            text = f"{text.partition('=')[0]}={_token()}"
        found.append(_Override("" if group else key, text.lstrip("+") if group else text, where))
    return found


@contextlib.contextmanager
def _initialized(folders: list[Path]) -> Iterator[list[str]]:
    """Hydra with the first of the folders as its own; gives the override that adds the others."""
    listed = ",".join("'file://{}'".format(str(folder).replace("'", "\\'")) for folder in folders[1:])
    own = initialize_config_dir(str(folders[0]), version_base=None) if folders else None
    with own or initialize(None, version_base=None):
        yield [f"hydra.searchpath=[{listed}]"] if listed else []


def _compose(folders: list[Path], name: str | None, overrides: list[_Override], *, everything: bool) -> _Composed:
    with _initialized(folders) as path:
        texts = [*path, *(one.text for one in overrides)]
        try:
            config = compose(name, texts)
        except HydraException:
            # A key that this release does not have stops the run there; what is said of the others still counts.
            plain = [one for one in overrides if not one.text.startswith("~")]
            texts = [*path, *(f"++{one.text.lstrip('+')}" if one.key else one.text for one in plain)]
            config = compose(name, texts)
    return _Composed(config, folders, name, overrides, texts, everything)


def _give_environment(job: _Job) -> None:
    """Let ``oc.env`` see the variables of the start, not our own."""

    def env(name: str, *default: str | None) -> str | None:
        if name in job["environ"]:
            return str(job["environ"][name])
        if job["open"] is None or name in job["open"]:
            return _token()
        if not default:
            raise KeyError(f"the environment variable {name} is not set")
        return default[0]

    OmegaConf.register_new_resolver("oc.env", env, replace=True)


def main() -> None:
    """Answer until standard input ends; nothing else reaches standard output, whatever plugins print."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
    gc.set_threshold(100_000)  # a configuration is thousands of small objects: a third of the time
    session = Session()
    for line in requests:
        request = json.loads(line)
        os.chdir(request["here"])  # where paths begin that the words have
        answers.write(json.dumps(session.answer(request) if HERE else [], default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
