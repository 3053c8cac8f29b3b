"""An option of the command line, declared once: as a field of the `Options` that its value belongs to.

From the field follow click's option and its place in the help (``patcher.cli.options``), the words that print a value
again (:func:`words_of`), and the reference in the docs, which is the help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, TypeVar

from patcher.options.notations import Flag, Notation

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        """Return a decorator that does nothing: it tells type checkers alone how the class is made."""
        return lambda kind: kind


T = TypeVar("T")
D = TypeVar("D")


class OptionSpec(NamedTuple):
    """Option of the command line: `name` is its field, `default_text` the default in the help.

    `aliases` are older names that still work but are not shown.
    """

    name: str
    notation: Notation[Any]
    heading: str
    about: str
    default: object = None
    default_text: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Option as typed, such as `--export-type`."""
        return flag(self.name)

    @property
    def help(self) -> str:
        """Help text in English: what the option does, the words that it takes, and the default."""
        default = f"[default: {self.default_text}]" if self.default_text else ""
        return " ".join(filter(None, (self.about, self.notation.offer, default)))


def flag(name: str) -> str:
    """Return the option for the field `name`: `--export-type` for export_type."""
    return f"--{name.replace('_', '-')}"


def option(notation: Notation[T], heading: str, about: str, *, default: D, default_text: str | None = None) -> T | D:
    """Declare an option with this `default` as a field of `Options`.

    `notation` reads and writes its values. `heading` is one of `patcher.options.headings`, `about` the help.
    `default_text` replaces the default in the help. The result is an `OptionSpec`; its declared type is that of the
    field, for type checkers.
    """
    if default_text is None:
        default_text = "" if default is None or isinstance(notation, Flag) else notation.text(default)  # type: ignore[arg-type]
    declared: Any = OptionSpec("", notation, heading, about, default, default_text)
    return declared  # type: ignore[no-any-return]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class Options:
    """Values of options and more fields: like a frozen dataclass, which takes 30 times as long to create.

    A subclass declares its fields with annotations, and gives each a default, an `option`, or neither, which makes the
    value required. Subclasses may check the values in `__post_init__`.
    """

    SPECS: ClassVar[Mapping[str, OptionSpec]] = {}
    """The options among the fields, by field name."""
    _REQUIRED: ClassVar[frozenset[str]] = frozenset()
    _DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = [name for name, annotation in cls.__annotations__.items() if not annotation.startswith("ClassVar")]
        declared = {name: vars(cls)[name] for name in names if name in vars(cls)}
        specs = {name: spec._replace(name=name) for name, spec in declared.items() if isinstance(spec, OptionSpec)}
        defaults = declared | {name: spec.default for name, spec in specs.items()}
        cls.SPECS = {**cls.SPECS, **specs}
        cls._DEFAULTS = {**cls._DEFAULTS, **defaults}
        cls._REQUIRED = cls._REQUIRED.union(names) - cls._DEFAULTS.keys()
        for name, value in defaults.items():
            setattr(cls, name, value)

    def __init__(self, **values: Any) -> None:
        if missing := self._REQUIRED - values.keys():
            raise TypeError(f"{type(self).__name__} needs {', '.join(sorted(missing))}")
        if unknown := values.keys() - self._DEFAULTS.keys() - self._REQUIRED:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(self._DEFAULTS, **values)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values of a new instance. Raises Problem (USAGE) for a combination that makes no sense."""

    def replace(self, **values: Any) -> Self:
        """Return a copy with other `values` of some fields."""
        return type(self)(**{**vars(self), **values})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), frozenset(vars(self).items())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def options_of(*types: type[Options]) -> dict[str, OptionSpec]:
    """Return the options that the fields of these types declare, by field name."""
    return {name: spec for kind in types for name, spec in kind.SPECS.items()}


def changed(value: Options) -> tuple[str, ...]:
    """Return the names of the options whose values are not the default."""
    return tuple(name for name, spec in value.SPECS.items() if getattr(value, name) != spec.default)


def words_of(value: Options, always: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the words that type options again: those whose values are not the default, and the names in `always`."""
    printed = {*changed(value), *always}
    options = [(getattr(value, name), spec) for name, spec in value.SPECS.items() if name in printed]
    return tuple(word for current, spec in options for word in spec.notation.typed(spec.flag, current))
