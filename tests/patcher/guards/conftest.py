from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from patcher.guards import compose, hydra

_BASES: dict[object, Any] = {}


class _Here:
    """A child that answers in this process."""

    def __init__(self) -> None:
        self.session, self.reason = compose.Session(), ""

    def ask(self, request: Mapping[str, object]) -> list[Any] | None:
        return self.session.answer(json.loads(json.dumps(request))) or None


def _once(really: Callable[..., Any]) -> Callable[..., Any]:
    """Compose what is of files once a session; keys that are typed over it are changed in a copy, as Hydra does."""

    def composed(folders: list[Any], name: str | None, overrides: list[Any], *, everything: bool) -> Any:
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        # Groups, and keys of the root, which defaults lists are made of.
        first = [one for one in overrides if "." not in one.key]
        key = (*folders, name, *(one.text for one in first))
        if key not in _BASES:
            _BASES[key] = really(folders, name, first, everything=everything)
        base = _BASES[key]
        found = replace(base, config=copy.deepcopy(base.config), overrides=overrides, everything=everything)
        try:
            for one in overrides:
                read = OverridesParser.create().parse_override(one.text)
                if one not in first:
                    force = read.is_add() or read.is_force_add()
                    OmegaConf.update(found.config, one.key, read.value(), merge=True, force_add=force)
        except OmegaConfBaseException:
            return really(folders, name, overrides, everything=everything)
        return found

    return composed


_PLACES: dict[object, str] = {}


def _placed_once(really: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    def place(composed: Any, key: str) -> str:
        asked = (*composed.folders, composed.name, *composed.texts, key)
        if asked not in _PLACES:
            _PLACES[asked] = really(composed, key)
        return _PLACES[asked]

    return place


@pytest.fixture
def composed_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of what configurations mean; that they are composed as the run does it is tested beside this."""

    monkeypatch.setattr(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    monkeypatch.setattr(compose, "_compose", _once(compose._compose))

    monkeypatch.setattr(compose._Composed, "place", _placed_once(compose._Composed.place))
    monkeypatch.setattr(hydra, "child", cache(lambda _python: _Here()))
    threshold = gc.get_threshold()
    gc.set_threshold(100_000)  # as in the child: a configuration is thousands of small objects
    yield
    gc.set_threshold(*threshold)
