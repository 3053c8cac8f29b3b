"""From the classes of a probe to the text that goes into a target class.

The classes that a recipe composes are flattened along Python's own order of resolution, specialised for one capture
of one release (``patcher.folding``), and written in the order of reading: what the user chose, what the patched class
calls, then what that calls.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from patcher.change import PatchId
from patcher.config import ProfileConfig, Stage
from patcher.folding import Body, Folder, called, literal, stored, within
from patcher.recipe import Probe, Recipe

_SMALL = 14
"""Lines of a method that is written where it is called: it must not make of its caller more than a screen."""


class Rendered(NamedTuple):
    """The lines that go into a class, at the left margin: ``own`` of the patch, ``shared`` with others of the class."""

    own: tuple[str, ...]
    shared: tuple[str, ...] = ()


def render(
    recipe: Recipe,
    config: ProfileConfig[Stage],
    release: str,
    patch: PatchId,
    shared: PatchId,
    about: Mapping[str, object] = MappingProxyType({}),
) -> Rendered:
    """What ``recipe`` appends to its class for ``capture`` in ``release`` ("" for one that is not known).

    ``patch`` and ``shared`` name the recorder and the one from which it and others derive; ``about`` is what it says of
    itself in files of its own. What the user chose ends up
    as literals, whatever it holds. Raises ``ValueError`` for a mistake in a recipe or a probe: two classes that define
    the same method, a constant or a keyword that is not there.
    """
    probe = recipe.probe
    members = _members(probe.members)
    if probe.recorder is None:
        return Rendered(tuple(map(patch.rename, members)))
    called = "\n".join([*members, *(line for site in recipe.sites for line in site.lines)])
    recorder = _Recorder(probe, config, release, called, about)
    name, base = patch.rename("_RlpatchStage"), shared.rename("_RlpatchStage")
    own: list[str] = []
    common: list[str] = []
    for number, layer in enumerate(recorder.layers):
        if layer.shared:
            common = [f"class {base}:", *recorder.written(number, _about(layer.classes[0]))]
        elif not own:
            derived = f"({base})" if common else ""
            own = [f"class {name}{derived}:", *recorder.written(number, probe.summary(config))]
        else:  # it takes the name of the one from which it derives, so that nothing else knows of it
            own += ["", f"class {name}({name}):", *recorder.written(number, _about(layer.classes[-1]))]
    return Rendered(tuple(map(patch.rename, [*own, "", *members])), tuple(map(shared.rename, common)))


# --- the sources ---


class _Source(NamedTuple):
    """A class of a probe, as it stands in its module."""

    text: str
    node: ast.ClassDef

    @property
    def methods(self) -> Iterator[ast.FunctionDef]:
        """Those with a body of their own: what only raises NotImplementedError is for others to define."""
        functions = (node for node in self.node.body if isinstance(node, ast.FunctionDef))
        return (node for node in functions if not isinstance(node.body[0], ast.Raise))

    def assigned(self) -> Iterator[tuple[str, ast.stmt, bool]]:
        """Each attribute that has a value: its name, the statement, and whether it is settled."""
        for node in self.node.body:
            if isinstance(node, ast.Assign):
                yield _name(node.targets[0]), node, False
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                kind = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
                yield _name(node.target), node, _name(kind) == "Settled"


@cache
def _source(kind: type) -> _Source:
    text = _class(_module(kind.__module__), kind.__name__)
    (node,) = ast.parse(text).body
    return _Source(text, cast(ast.ClassDef, node))


@cache
def _module(name: str) -> list[str]:
    return Path(sys.modules[name].__file__ or "").read_text("utf-8").split("\n")


def _class(lines: Sequence[str], name: str) -> str:
    """The lines of a class at the top level; to parse all others would take as long again in some modules."""
    heads = (f"class {name}:", f"class {name}(")
    start = next(at for at, line in enumerate(lines) if line.startswith(heads))
    end = next((at for at in range(start + 1, len(lines)) if lines[at][:1].strip()), len(lines))
    return "\n".join(lines[start:end])


def _about(kind: type) -> str:
    """The first line of what is said of a class."""
    return (kind.__doc__ or "").partition("\n")[0]


def _members(kinds: Sequence[type]) -> list[str]:
    """What goes into the target class itself, the classes from which others derive first."""
    lines: list[str] = []
    for base in dict.fromkeys(base for kind in kinds for base in reversed(kind.__mro__[:-1])):
        source = _source(base)
        folder = Folder(source.text, {})
        for node in source.node.body[1:]:  # behind the docstring
            blank = [""] if lines and isinstance(node, ast.FunctionDef) else []
            lines += [*blank, *folder.block([node])] if folder.writes(node) else []
    return lines


# --- the recorder ---


class _Layer(NamedTuple):
    """Classes that are flattened into one, in the order in which Python looks for a method."""

    classes: tuple[type, ...]
    shared: bool = False


def _layers(probe: Probe, config: ProfileConfig[Stage]) -> tuple[type, list[_Layer]]:
    """The class that Python makes of the parts, and its layers from the bottom up."""
    assert probe.recorder is not None  # noqa: S101  (the caller looked)
    backend, above = probe.backends[config.profiler.BACKEND], probe.layers(config)
    upper = [kind for layer in reversed(above) for kind in reversed(layer)]
    composed = type("Composed", (*upper, probe.recorder, backend), {})
    linear = composed.__mro__[1:-1]
    shared = {base for kind in (*probe.shared, *((backend,) if probe.shared else ())) for base in kind.__mro__}
    layers = [_Layer(tuple(kind for kind in linear if kind in shared), shared=True)] if shared else []
    layers.append(_Layer(tuple(kind for kind in linear if kind not in shared and kind not in upper)))
    layers += [_Layer(tuple(kind for kind in linear if kind in layer)) for layer in above]
    return composed, layers


class _Recorder:
    """The layers of a recorder with their constants; ``called_from`` is the text from which its methods are called."""

    def __init__(
        self, probe: Probe, config: ProfileConfig[Stage], release: str, called_from: str, about: Mapping[str, object]
    ) -> None:
        composed, self.layers = _layers(probe, config)
        self.called_from, self.keywords = called_from, probe.arguments(config)
        self.places: dict[str, list[int]] = {}
        self.methods = {
            (number, node.name): (kind, node)
            for number, layer in enumerate(self.layers)
            for kind in layer.classes
            for node in self._defined(number, kind)
        }
        self.settled: dict[str, object] = {}
        self.chosen: dict[str, object] = {}
        for kind in reversed(composed.__mro__[1:-1]):
            for name, _, settled in _source(kind).assigned():
                if name.isupper():
                    (self.settled if settled else self.chosen)[name] = getattr(composed, name)
        _update(self.settled, probe.settled(config, release))
        _update(self.chosen, probe.chosen(config))
        if "ABOUT" in self.chosen:
            self.chosen["ABOUT"] = {**about, **cast(Mapping[str, object], self.chosen["ABOUT"])}
        self.met: set[tuple[str, str]] = set()
        self.text: dict[tuple[int, str], list[str]] = {}
        self._know({})
        self._know(self._one_liners())
        self._write()
        self._know({**self.bodies, **self._called_once()})
        self._write()
        if missing := {*self.keywords} - self.met:
            raise ValueError(f"the probe has no {sorted(missing)}")

    def _defined(self, number: int, kind: type) -> Iterator[ast.FunctionDef]:
        for node in _source(kind).methods:
            places = self.places.setdefault(node.name, [])
            if number in places or (places and not _goes_on(node)):
                raise ValueError(f"{kind.__name__}.{node.name} is defined in another class of the probe, too")
            places.append(number)
            yield node

    # --- what is written where it is called ---

    def _folder(self, kind: type, number: int) -> Folder:
        if (kind, number) not in self.folders:
            # What a layer above defines is not known to those below, which others may share.
            bodies = {name: body for name, body in self.bodies.items() if self.places[name] == [number]}
            folder = Folder(_source(kind).text, self.settled, bodies, self.keywords, self.met)
            self.folders[kind, number] = folder
        return self.folders[kind, number]

    def _know(self, bodies: Mapping[str, Body]) -> None:
        """Write the ``bodies``, and no others, where they are called from now on."""
        self.bodies = bodies
        self.folders: dict[tuple[type, int], Folder] = {}

    def _body(self, name: str, most: int) -> Body | None:
        number, *others = self.places[name]
        kind, node = self.methods[number, name]
        return None if others else self._folder(kind, number).body(node, most)

    def _one_liners(self) -> dict[str, Body]:
        """Methods that are one expression or one statement."""
        every = {name: body for name in self.places if (body := self._body(name, 1))}
        bodies = {name: body for name, body in every.items() if len(body.lines) + bool(body.value) == 1}
        for name, body in bodies.items():  # one may call another
            if not bodies.keys().isdisjoint(_referred("\n".join([*body.lines, body.value]))):
                self._know(bodies)
                bodies[name] = self._body(name, 1) or body
        return bodies

    def _called_once(self) -> dict[str, Body]:
        """Methods that are called from one place alone, as a statement, with the names that they have for it."""
        found: dict[str, Body] = {}
        text = "\n".join([self.called_from, *(line for lines in self.text.values() for line in lines)])
        uses = Counter(_referred(text))
        for (number, caller), (_, node) in self.methods.items():
            if caller not in self.order or self.layers[number].shared:  # for others may call it in other ways
                continue
            for statement in within(node.body):
                name, arguments = called(getattr(statement, "value", None))
                if uses[name] == 1 and self.places.get(name) == [number] and name not in found:
                    body = self._body(name, _SMALL)
                    fits = body and len(body.lines) <= _SMALL and body.parameters == arguments
                    if body and fits and not self._clash(name, caller, number, statement):
                        found[name] = body
        return found

    def _clash(self, name: str, caller: str, number: int, statement: ast.stmt) -> bool:
        """Whether a method assigns a name that its caller has, but for those that the ``statement`` there assigns."""
        ours, (kind, node) = stored(self.methods[number, name][1]), self.methods[number, caller]
        if ours.isdisjoint(re.findall(r"\w+", _text(kind, node))):  # to go through its tree takes ten times as long
            return False
        theirs = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        return not ours.isdisjoint(theirs - stored(statement))

    # --- what is written ---

    def _write(self) -> None:
        """Write what calls a method of which the body is known by now, and what was not asked for before."""
        known = self.bodies.keys()
        self.text = {key: lines for key, lines in self.text.items() if known.isdisjoint(_referred("\n".join(lines)))}
        self.nested = [self._nested(number) for number in range(len(self.layers))]
        self.order = self._reading_order()
        self.text = {(number, name): self._lines(number, name) for number, name in self.methods if name in self.order}

    def _lines(self, number: int, name: str) -> list[str]:
        if (number, name) not in self.text:
            kind, node = self.methods[number, name]
            self.text[number, name] = self._folder(kind, number).function(node)
        return self.text[number, name]

    def _nested(self, number: int) -> list[str]:
        lines: list[str] = []
        for kind in self.layers[number].classes:
            for node in _source(kind).node.body:
                if isinstance(node, ast.ClassDef):
                    lines += ["", *self._folder(kind, number).block([node])]
        return lines

    def _reading_order(self) -> list[str]:
        """What is shared as it is defined, whoever calls it; then what is called, each behind those that call it."""
        nested = "\n".join(line for lines in self.nested for line in lines)
        order = {name: None for name in self._shared() if name not in self.bodies}
        for roots in (["__init__", *_referred(self.called_from)], _referred(nested), ["tell", "interrupt"], [*order]):
            wave, seen = roots, set[str]()
            while wave := [name for name in dict.fromkeys(wave) if name in self.places and name not in seen]:
                seen.update(wave)
                order.update(dict.fromkeys(wave))
                texts = (self._lines(number, name) for name in wave for number in self.places[name])
                wave = [name for lines in texts for name in _referred("\n".join(lines))]
        return list(order)

    def _shared(self) -> list[str]:
        """The methods of the shared layer but for those that only what is ruled out would call."""
        shared = {name: key for key in self.methods for name in [key[1]] if self.layers[key[0]].shared}
        called = {name: {*_referred(_text(*self.methods[key]))} - {name} for name, key in shared.items()}
        wave, found = shared.keys() - set().union(*called.values()), set[str]()
        while wave:
            found |= wave
            texts = ("\n".join(self._lines(*shared[name])) for name in wave)
            wave = {name for text in texts for name in _referred(text) if name in shared} - found
        return [name for name in shared if name in found]

    def written(self, number: int, about: str) -> list[str]:
        """The body of the class of a layer."""
        lines = [f'"""{about}"""', *self._attributes(number)]
        for name in self.order:
            if (number, name) in self.text:
                lines += ["", *self.text[number, name]]
        return [f"    {line}" if line else "" for line in [*lines, *self.nested[number]]]

    def _attributes(self, number: int) -> Iterator[str]:
        """What the user chose, as far as a method looks at it, and what begins with a value."""
        looked_at = {
            "STAGE",
            *re.findall(r"\.([A-Z_]+)\b", "\n".join(line for lines in self.text.values() for line in lines)),
        }
        layer, below = self.layers[number], self.layers[number - 1]
        chosen: dict[str, str] = {}
        for kind in reversed((*layer.classes, *(below.classes if number and below.shared else ()))):
            for name, node, settled in _source(kind).assigned():
                if name.isupper():
                    if name in looked_at and not settled and not layer.shared:
                        chosen[name] = f"{name} = {literal(self.chosen[name])}"
                elif kind in layer.classes:
                    chosen[name] = "\n".join(self._folder(kind, number).block([node]))
        yield from chosen.values()


def _goes_on(method: ast.FunctionDef) -> bool:
    """Whether a method calls the one that it overrides."""
    names = (node for node in ast.walk(method) if isinstance(node, ast.Attribute) and node.attr == method.name)
    return any(ast.unparse(node.value) == "super()" for node in names)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _text(kind: type, method: ast.FunctionDef) -> str:
    """A method as it stands in its module."""
    return "\n".join(_source(kind).text.split("\n")[method.lineno - 1 : method.end_lineno])


def _referred(text: str) -> list[str]:
    """What a text refers to by an attribute or by a string of its name."""
    return [name for pair in re.findall(r'\.(\w+)|"(\w+)"', text) for name in pair if name]


def _update(constants: dict[str, object], more: Mapping[str, object]) -> None:
    if unknown := {*more} - {*constants}:
        raise ValueError(f"the probe has no {sorted(unknown)}")
    constants.update(more)
