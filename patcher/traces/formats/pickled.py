"""Pickles of plain containers, read without running anything: dicts, lists, tuples, numbers and texts.

Python's own unpickler calls what a file names, and grows its memo to an index that a file chooses. Here every opcode
that is not for a plain value is refused by its name.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any

from patcher.messages import Kind, Problem, Text
from patcher.progress import Progress, ignore

MOST_BYTES = 4 << 30
"""Bytes of a pickle that is read; torch writes some 100 for each allocation."""

_STEP = 1 << 20
_MARK = object()

_VALUES = frozenset(
    (
        "BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "LONG4", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
    )
)  # fmt: skip
"""Opcodes that push their argument."""

_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "EMPTY_SET": list, "MARK": lambda: _MARK,
}  # fmt: skip
"""Opcode → the value that it pushes; an empty set becomes a list."""

_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_LONGEST_NUMBER = 8 * 64
"""Bits of an integer: the hash of a longer one takes time whenever it is a key."""


def load(data: bytes, name: str, progress: Progress = ignore) -> Any:
    """Return the value of a pickle of protocol 2 to 5, which may have only plain containers and values.

    Raises Problem (TRACE) for any other object, and if the data is damaged.

    ``name`` is the file's name for messages; ``progress`` is called with the number of bytes read since the last call.
    """
    try:
        return _value_of(data, progress)
    except _RefusedError as refused:
        hint = Text(
            "rlpatch reads only plain containers and values from a pickle, because a pickle can run arbitrary code"
        )
        raise Problem(
            Kind.TRACE,
            Text(
                "{file} contains data that does not belong in a memory snapshot: {reason}",
                file=name,
                reason=refused.args[0],
            ),
            name,
            hint,
        ) from None
    except (IndexError, KeyError, TypeError, ValueError, struct.error, AttributeError, OverflowError, StopIteration):
        cause = Text("{name} is damaged, or not a memory snapshot", name)
        raise Problem(Kind.TRACE, cause, name, Text("record the memory snapshot again")) from None


class _RefusedError(Exception):
    """Error for an opcode that is not for plain values; its argument is a text."""


def _value_of(data: bytes, progress: Progress) -> Any:
    """Return the value that a pickle holds.

    Raises _RefusedError for an opcode that is not for plain values, and errors such as IndexError for damaged data.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    told = 0
    for opcode, argument, at in pickletools.genops(data):
        if at is not None and at - told >= _STEP:
            progress(at - told)
            told = at
        name = opcode.name
        if name in _VALUES:
            if type(argument) is int and argument.bit_length() > _LONGEST_NUMBER:
                raise ValueError(name)
            stack.append(argument)
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name == "STOP":
            break
        else:
            _build(stack, name, argument)
    return stack.pop()


def _build(stack: list[Any], name: str, argument: object) -> None:
    """Apply an opcode that fills or makes a container from values on the stack; skip PROTO and FRAME.

    Raises _RefusedError for any other opcode; IndexError, TypeError, ValueError or StopIteration if the stack does not
    fit it.
    """
    if name == "SETITEMS":
        values = _pop_to_mark(stack)
        _add_items(stack, values[::2], values[1::2])
    elif name == "SETITEM":
        key, value = _pop(stack, 2)
        _add_items(stack, [key], [value])
    elif name in ("APPENDS", "ADDITEMS"):
        values = _pop_to_mark(stack)
        _container(stack, list).extend(values)
    elif name == "APPEND":
        (value,) = _pop(stack, 1)
        _container(stack, list).append(value)
    elif name in _TUPLES:
        stack.append(tuple(_pop(stack, _TUPLES[name])))
    elif name == "TUPLE":
        stack.append(tuple(_pop_to_mark(stack)))
    elif name not in ("PROTO", "FRAME"):
        raise _RefusedError(_refusal(stack, name, argument))


def _refusal(stack: list[Any], name: str, argument: object) -> Text:
    """Return the reason why an opcode is refused: it would import a Python object, or rlpatch does not run it."""
    imported = str(argument)[:120].replace(" ", ".") if name in ("GLOBAL", "INST") else ""
    if name == "STACK_GLOBAL":
        imported = ".".join(part[:60] for part in stack[-2:] if isinstance(part, str))
    if imported:
        return Text(
            "loading the file would import the Python object {name}; rlpatch does not allow this import",
            repr(imported),
        )
    return Text("the file contains the pickle opcode {opcode}, which rlpatch does not run", name)


def _container(stack: list[Any], kind: type) -> Any:
    """Return the container on top of the stack, which stays there. Raises TypeError for another type."""
    if type(stack[-1]) is not kind:
        raise TypeError(kind)
    return stack[-1]


def _add_items(stack: list[Any], keys: list[Any], values: list[Any]) -> None:
    """Add items to the dict on top of the stack. Raises TypeError for a tuple as a key, or if the top is no dict.

    Raises ValueError for a key without a value. Tuples are refused because a small file can hold nested ones whose hash
    takes hours to compute.
    """
    if any(type(key) is tuple for key in keys):
        raise TypeError(tuple)
    _container(stack, dict).update(zip(keys, values, strict=True))


def _pop(stack: list[Any], count: int) -> list[Any]:
    """Pop ``count`` values and return them. Raises IndexError for a short stack, ValueError if a mark is among them."""
    if len(stack) < count:
        raise IndexError(count)
    values = stack[-count:]
    del stack[-count:]
    if any(value is _MARK for value in values):
        raise ValueError("mark")
    return values


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    """Pop the values above the last mark, and the mark; return the values. Raises StopIteration without one."""
    at = next(at for at in range(len(stack) - 1, -1, -1) if stack[at] is _MARK)
    values = stack[at + 1 :]
    del stack[at:]
    return values
