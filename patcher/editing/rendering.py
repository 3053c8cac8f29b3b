"""From the classes of a probe to the text that goes into a target class.

The classes that a recipe composes are flattened along Python's own order of resolution, specialised for one profile
configuration and one release, and written in the order of reading: what the user chose, what the patched class calls,
then what that calls. A method that nobody calls is left out, and a short one stands where it is called, if that makes
the text no longer.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from patcher.changes.change import PatchId
from patcher.config import ProfileConfig, Stage
from patcher.editing.specialise import Specialiser, literal
from patcher.recipe import Probe, Recipe

_SHORT = 14
"""Lines of a method that may go into its caller."""


class Rendered(NamedTuple):
    """Unindented lines to append to a class: those of the patch, and those that it shares with others of the class."""

    patch_lines: tuple[str, ...]
    shared_lines: tuple[str, ...] = ()


def render(
    recipe: Recipe,
    config: ProfileConfig[Stage],
    release: str,
    patch: PatchId,
    shared: PatchId,
    about: Mapping[str, object] = MappingProxyType({}),
) -> Rendered:
    """Return the lines that `recipe` appends to its class or module, for `config` in `release` ("" if unknown).

    The result keeps two blocks apart: that of `patch`, with the recorder if there is one, and that of `shared`. The
    second is a base class that other patches of the class use, too; it is empty if the recorder needs none. `about` is
    the metadata that the recorder writes. Raises ValueError for a mistake in a recipe or probe: a method defined twice,
    or an unknown constant or keyword.
    """
    probe = recipe.probe
    members = _members(probe.members)
    if members and not recipe.class_name:
        members = _for_functions(members, recorded=probe.recorder is not None)
    if probe.beside:
        members.append(probe.beside)
    if probe.recorder is None:
        return Rendered(tuple(map(patch.rename, members)))
    lines = (line for insertion in recipe.insertions for line in insertion.lines)
    calls = "\n".join([*lines, *members, *probe.callers])
    recorder = _Recorder(probe, config, release, calls, about)
    name, base = patch.rename("_RlpatchStage"), shared.rename("_RlpatchStage")
    patch_lines: list[str] = []
    shared_lines: list[str] = []
    for number, layer in enumerate(recorder.layers):
        if layer.shared:
            shared_lines = [f"class {base}:", *recorder.body(number, _summary(probe.shared[0]))]
        elif not patch_lines:
            derived = f"({base})" if shared_lines else ""
            patch_lines = [f"class {name}{derived}:", *recorder.body(number, probe.summary(config))]
        else:  # it takes the name of the one from which it derives, so that nothing else knows of it
            patch_lines += ["", f"class {name}({name}):", *recorder.body(number, _summary(layer.classes[-1]))]
    return Rendered(tuple(map(patch.rename, [*patch_lines, "", *members])), tuple(map(shared.rename, shared_lines)))


# --- the sources ---


class _Source(NamedTuple):
    """Source text and syntax tree of a probe's class."""

    text: str
    node: ast.ClassDef

    @property
    def members(self) -> Iterator[ast.FunctionDef | ast.ClassDef]:
        """Methods and nested classes."""
        return (node for node in self.node.body if isinstance(node, ast.FunctionDef | ast.ClassDef))

    def assigned(self) -> Iterator[tuple[str, ast.stmt, bool]]:
        """Yield (name, statement, whether it is a compile-time constant) for each attribute with a value."""
        for node in self.node.body:
            if isinstance(node, ast.Assign):
                yield ast.unparse(node.targets[0]), node, False
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                yield ast.unparse(node.target), node, ast.unparse(node.annotation).startswith("CompileTime[")

    def lines(self, node: ast.stmt) -> str:
        """Return the source of a statement of the class."""
        return "\n".join(self.text.split("\n")[node.lineno - 1 : node.end_lineno])


@cache
def source_of(kind: type) -> _Source:
    """Return the source of a probe's class `kind`, parsed alone, because parsing its whole module takes longer."""
    lines = _module(kind.__module__)
    heads = (f"class {kind.__name__}:", f"class {kind.__name__}(")
    start = next(at for at, line in enumerate(lines) if line.startswith(heads))
    end = next((at for at in range(start + 1, len(lines)) if lines[at][:1].strip()), len(lines))
    text = "\n".join(lines[start:end])
    (node,) = ast.parse(text).body
    return _Source(text, cast(ast.ClassDef, node))


@cache
def _module(name: str) -> list[str]:
    return Path(sys.modules[name].__file__ or "").read_text("ascii").split("\n")


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _members(kinds: Sequence[type]) -> list[str]:
    """Return the source lines of the members of the classes `kinds`, which go into the target class itself.

    Base classes come first; docstrings and annotations are left out.
    """
    lines: list[str] = []
    for base in dict.fromkeys(base for kind in kinds for base in reversed(kind.__mro__[:-1])):
        source = source_of(base)
        for node in source.node.body[1:]:  # after the docstring
            text = Specialiser(source.text, {}).rewritten(node)
            lines += [*([""] if lines and isinstance(node, ast.FunctionDef) else []), *text]
    return lines


def _for_functions(members: Sequence[str], *, recorded: bool) -> list[str]:
    """Return lines that let the functions of a module call the methods whose source lines are `members`.

    The lines define a class with the methods, its only object, and a module name for each method. `members` without
    methods, which only define classes, are returned unchanged. With `recorded`, the class has the recorder as an
    attribute.
    """
    names = [match[1] for line in members if (match := re.match(r"def (\w+)", line))]
    if not names:  # classes, of which the module makes its own objects
        return [*members]
    return [
        "class _RlpatchStageMembers:",
        '    """What the functions of this module call, as methods call the members of their object."""',
        "",
        *(["    _RlpatchStage = _RlpatchStage"] if recorded else []),
        *(f"    {line}" if line else "" for text in members for line in text.split("\n")),
        "",
        "_rlpatch_stage_members = _RlpatchStageMembers()",
        *(f"{name} = _rlpatch_stage_members.{name}" for name in names),
    ]


# --- the recorder ---


class _Layer(NamedTuple):
    """Classes to flatten into a single class, in Python's method resolution order."""

    classes: tuple[type, ...]
    shared: bool = False


def _layers(probe: Probe, config: ProfileConfig[Stage], release: str) -> tuple[type, list[_Layer]]:
    """Return the class composed of all parts that a probe needs for `config` in `release`, and its layers.

    A layer is a group of base classes that becomes one class of the generated code. The layers go from the lowest base
    class up; what other patches share is in the first one.
    """
    assert probe.recorder is not None  # noqa: S101  (the caller looked)
    tools = [probe.tools[config.profiler.TOOL]] if config.profiler.TOOL else []
    parts, above = probe.parts(config, release), probe.layers(config, release)
    lowest = type("Lowest", (*parts, probe.recorder, *tools), {})
    composed = type("Composed", (*reversed(above), lowest), {})
    linear = tuple(kind for kind in composed.__mro__[1:-1] if kind is not lowest)
    shared = {base for kind in (*probe.shared, *(tools if probe.shared else ())) for base in kind.__mro__}
    flat = {*lowest.__mro__[1:]}
    for kind in reversed(linear):  # a part that stands on what is shared is shared, too
        if shared and kind in flat and kind is not probe.recorder and shared.issuperset(kind.__mro__[1:]):
            shared.add(kind)
    groups = [shared, flat - shared] if shared else [flat]
    for kind in above:  # with the classes from which it derives, and that are not below it yet
        groups.append({*kind.__mro__}.difference(*groups))
    return composed, [_Layer(tuple(filter(group.__contains__, linear)), group is shared) for group in groups]


class _Definition(NamedTuple):
    """Method or nested class defined in the probe class `kind`."""

    kind: type
    node: ast.FunctionDef | ast.ClassDef

    @property
    def text(self) -> str:
        """Source of the definition in its module."""
        return source_of(self.kind).lines(self.node)

    @property
    def goes_on(self) -> bool:
        """Whether the method calls the method that it overrides."""
        return f"super().{self.node.name}(" in self.text

    @property
    def is_empty(self) -> bool:
        """Whether the method does nothing: a hook, or abstract."""
        return not isinstance(self.node, ast.ClassDef) and all(map(_does_nothing, self.node.body))


class _Recorder:
    """Specialised layers of a recorder; `calls` is the text of all lines that call its methods.

    Raises ValueError for an unknown constant, setting or keyword argument.
    """

    def __init__(
        self, probe: Probe, config: ProfileConfig[Stage], release: str, calls: str, about: Mapping[str, object]
    ) -> None:
        composed, self.layers = _layers(probe, config, release)
        self.constants: dict[str, object] = {}
        self.settings: dict[str, object] = {}
        for kind in (kind for layer in self.layers for kind in reversed(layer.classes)):
            for name, _, constant in source_of(kind).assigned():
                if name.isupper():
                    (self.constants if constant else self.settings)[name] = getattr(composed, name)
        _update(self.constants, probe.constants(config, release))
        _update(self.settings, probe.settings(config))
        if "ABOUT" in self.settings:
            self.settings["ABOUT"] = {**about, **cast(Mapping[str, object], self.settings["ABOUT"])}
        self.keywords, self.used = probe.arguments(config), set[tuple[str, str]]()
        self.defined = self._definitions()
        self.specialisers = {
            kind: Specialiser(source_of(kind).text, self.constants, self.keywords, self.used, self.hooks)
            for layer in self.layers
            for kind in layer.classes
        }
        self.text: dict[tuple[int, str], list[str]] = {}
        self.order = self._needed_methods(["__init__", *_names_in(calls)])
        if missing := {*self.keywords} - self.used:
            raise ValueError(f"the probe has no {sorted(missing)}")
        for number, name in [*self.text]:
            self._inline_into_callers(number, name, calls)

    def _inline_into_callers(self, number: int, name: str, calls: str) -> None:
        """Inline the method `name` of the layer `number` into all callers and remove it, unless the source gets longer.

        Do nothing if the method has no caller, or one in another layer, in `calls` (the lines outside of the recorder),
        or for which `_inline` is not safe. Do nothing, either, if the layer is shared or another layer has the method.
        """
        method = self.text[number, name]
        if self.layers[number].shared or name in _names_in(calls):
            return
        callers = {
            key: lines
            for key, lines in self.text.items()
            if key != (number, name) and name in _names_in("\n".join(lines))
        }
        if not callers or len(self.defined[name]) > 1 or any(layer != number for layer, _ in callers):
            return
        merged = {key: _inline(lines, method, name) for key, lines in callers.items()}
        lengths = (sum(map(len, texts)) for texts in (merged.values(), [*callers.values(), method, [""]]))
        if all(merged.values()) and next(lengths) <= next(lengths):
            self.text.update(merged)
            del self.text[number, name]

    def _definitions(self) -> dict[str, dict[int, list[_Definition]]]:
        """Return the definitions of methods and nested classes, by name and layer number.

        The first in a list overrides the others, which are reached by `super()`. Other overridden definitions and empty
        methods are left out. Names with nothing but empty methods go into `hooks`. Raises ValueError if two classes of
        a layer define the same method.
        """
        defined: dict[str, dict[int, list[_Definition]]] = {}
        for number, layer in reversed([*enumerate(self.layers)]):
            for kind in layer.classes:
                for node in source_of(kind).members:
                    layers = defined.setdefault(node.name, {})
                    definition = _Definition(kind, node)
                    above = [*layers.values()][-1][-1] if layers else None
                    if definition.is_empty:
                        continue
                    if above is None or above.goes_on:
                        layers.setdefault(number, []).append(definition)
                    elif number in layers:
                        raise ValueError(f"{kind.__name__}.{node.name} is defined in another class of the probe, too")
        self.hooks = {name for name, layers in defined.items() if not layers}
        return {name: layers for name, layers in defined.items() if layers}

    def _needed_methods(self, roots: Sequence[str]) -> list[str]:
        """Return the names of the methods that the generated code needs, in the order in which they are reached.

        First come `roots` and all methods that they call, directly or indirectly. Then come the methods of shared
        layers that are not among them.
        """
        order: dict[str, None] = {}
        for start in (roots, self._shared_entry_points()):
            wave: Sequence[str] = start
            while wave := [name for name in dict.fromkeys(wave) if name in self.defined and name not in order]:
                order.update(dict.fromkeys(wave))
                wave = [
                    other for name in wave for at in self.defined[name] for other in _names_in(self._lines(at, name))
                ]
        return list(order)

    def _shared_entry_points(self) -> list[str]:
        """Return the methods of layers shared with other patches to which no other method of these layers refers.

        They are generated even if this patch does not call them, because another patch may.
        """
        shared = {
            name: {other for definition in definitions for other in _names_in(definition.text)} - {name}
            for name, layers in self.defined.items()
            for number, definitions in layers.items()
            if self.layers[number].shared
        }
        return [name for name in shared if not any(name in referred for referred in shared.values())]

    def _lines(self, number: int, name: str) -> str:
        """Return the text of the method or nested class `name` in layer `number`, a generated class of the recorder.

        The text is specialised for the recorder's configuration and release. `super()` calls within the layer are
        replaced by the body that they call. Raises ValueError if an overridden method has other parameters, or returns
        before the end.
        """
        if (number, name) not in self.text:
            *above, last = self.defined[name][number]
            lines = self.specialisers[last.kind].rewritten(last.node)
            if number == min(self.defined[name]):  # what it would go on with does nothing
                lines = [line for line in lines if not line.lstrip().startswith(f"super().{name}(")]
            for definition in reversed(above):
                lines = _inline_super(self.specialisers[definition.kind].rewritten(definition.node), lines)
            self.text[number, name] = lines
        return "\n".join(self.text[number, name])

    def body(self, number: int, about: str) -> list[str]:
        """Return the indented body of layer `number`, a generated class of the recorder, with `about` as docstring."""
        lines = [f'"""{about}"""', *self._attributes(number)]
        layer = self.layers[number]
        defined = dict.fromkeys(node.name for kind in layer.classes for node in source_of(kind).members)
        for name in defined if layer.shared else self.order:  # whoever calls it first, what is shared reads the same
            if (number, name) in self.text:
                lines += ["", *self.text[number, name]]
        return [f"    {line}" if line else "" for line in lines]

    def _attributes(self, number: int) -> Iterable[str]:
        """Return the lines that set the class attributes of layer `number`, a generated class of the recorder.

        Of the user's choices, which have names in capitals, only `STAGE` and those that a method reads are set. Those
        of a shared layer are set in the layer above it. Compile-time constants are left out, since their values are in
        the code.
        """
        text = "\n".join(line for lines in self.text.values() for line in lines)
        looked_at = {"STAGE", *re.findall(r"\.([A-Z_]+)\b", text)}
        layer, below = self.layers[number], self.layers[number - 1]
        lines: dict[str, str] = {}
        for kind in reversed((*layer.classes, *(below.classes if number and below.shared else ()))):
            for name, node, constant in source_of(kind).assigned():
                if name.isupper():
                    if name in looked_at and not constant and not layer.shared:
                        lines[name] = f"{name} = {literal(self.settings[name])}"
                elif kind in layer.classes:
                    lines[name] = "\n".join(self.specialisers[kind].rewritten(node))
        return lines.values()


def _does_nothing(node: ast.stmt) -> bool:
    """Tell whether a statement is a docstring or `raise NotImplementedError`."""
    if isinstance(node, ast.Raise):
        return ast.unparse(node) == "raise NotImplementedError"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _inline_super(lines: list[str], overridden: list[str]) -> list[str]:
    """Return the `lines` of a method with its `super().NAME(...)` statement replaced by the body of `overridden`.

    Imports of that body move to the start of the method. Raises ValueError if the parameters differ, or if statements
    follow and `overridden` contains a return.
    """
    if lines[0].partition("  #")[0] != overridden[0].partition("  #")[0]:
        raise ValueError(f"a class overrides a method with other parameters: {lines[0]} {overridden[0]}")
    (at,) = (number for number, line in enumerate(lines) if line.lstrip().startswith("super()."))
    if at < len(lines) - 1 and any(line.lstrip().startswith("return") for line in overridden):
        raise ValueError(f"a class goes on with what returns: {overridden[0]}")
    indent = lines[at][: -len(lines[at].lstrip()) - 4]
    body = [indent + line for line in overridden[1:]]
    imports = [line for line in body if line.lstrip().startswith(("import ", "from "))]
    body_without_imports = [line for line in body if line not in imports]
    above = [line for line in lines[1:at] if line not in imports]
    return [lines[0], *imports, *above, *body_without_imports, *lines[at + 1 :]]


def _inline(lines: list[str], called: list[str], name: str) -> list[str]:
    """Return a method's `lines` with each call of the short method `name` replaced by its body; [] if not safe.

    `called` are the lines of the short method. Safe means: it is short, arguments have the parameters' names, only the
    last line returns, and no local name clashes.
    """
    head, *body = called
    defined = _DEFINITION.fullmatch(head)
    if not defined or len(body) > _SHORT:
        return []
    merged = [lines[0]]
    for line in lines[1:]:
        if name not in line or name not in _names_in(line):
            merged.append(line)
            continue
        call = _CALL.fullmatch(line)
        if not call or (call[3], call[4]) != (name, defined[1] or ""):
            return []
        replacement = _replacement(call, lines, called)
        if not replacement:
            return []
        merged += replacement
    return merged


def _replacement(call: re.Match[str], lines: list[str], called: list[str]) -> list[str]:
    """Return the lines that replace a `call` by the body of its method.

    `called` are the lines of that method, `lines` those of the caller, both with their ``def`` first. Imports that the
    caller has already are left out. Return [] if the body returns early, or if it would overwrite a name of the caller.
    """
    assigned = _body_assigning(called[1:], call[2] or "")
    if not assigned:
        return []
    text = "\n".join(lines)
    words = re.findall(r"(?<![.\w])\w+", text)  # mostly no name is among them, and parsing the text takes long
    clashing = (_names("\n".join(called), ast.Store) - {call[2]}).intersection(words)
    if clashing and clashing & _names(text, ast.expr_context):
        return []
    imported = {line for line in lines[1:] if line.startswith(_IMPORTS)}
    replacement = [call[1][4:] + line for line in assigned if line not in imported]
    replacement[-1] += call[5] or ""
    return replacement


_IMPORTS = ("    import ", "    from ")
_DEFINITION = re.compile(r"def \w+\(self(?:, (.*))?\):")
_CALL = re.compile(r"( +)(?:(\w+) = )?self\.(\w+)\(([^#]*)\)(  #.*)?")


def _body_assigning(body: list[str], target: str) -> list[str]:
    """Return the lines of a method's body with the return at its end turned into an assignment to `target`.

    Return [] if the body does not end with its only return. If `target` is "", the result of the method is not used:
    then return the body unchanged, or [] if it has a return.
    """
    returns = [line for line in body if line.lstrip().startswith("return")]
    if not target:
        return [] if returns else body
    if returns != body[-1:]:
        return []
    value = body[-1].strip().replace("return ", "", 1)
    return body[:-1] if value == target else [*body[:-1], f"    {target} = {value}"]


@cache
def _names(method: str, context: type[ast.expr_context]) -> frozenset[str]:
    """Return the names that the text of a method uses in a `context`, such as `ast.Store` for those it assigns."""
    nodes = (node for node in ast.walk(ast.parse(method)) if isinstance(node, ast.Name))
    return frozenset(node.id for node in nodes if isinstance(node.ctx, context))


@cache
def _names_in(text: str) -> tuple[str, ...]:
    """Return the names that a text mentions as attributes or in double quotes, in order and without duplicates."""
    return tuple(dict.fromkeys(name for pair in re.findall(r'\.(\w+)|"(\w+)"', text) for name in pair if name))


def _update(constants: dict[str, object], more: Mapping[str, object]) -> None:
    if unknown := {*more} - {*constants}:
        raise ValueError(f"the probe has no {sorted(unknown)}")
    constants.update(more)
