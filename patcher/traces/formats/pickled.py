"""Pickles of plain containers, read without running anything: dicts, lists, tuples, numbers and texts.

Python's own unpickler calls what a file names, and grows its memo to an index that a file chooses. Here every opcode
that is not for a plain value is refused by its name.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from patcher.messages import Kind, Problem, Text
from patcher.progress import Progress, ignore

MOST_BYTES = 4 << 30
"""Bytes of a pickle that is read; torch writes some 100 for each allocation."""

_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_GLOBALS = {ord(code) for code in ("c", "i")}
_STEP = 1 << 20
_MARK = object()

_CONSTANTS: dict[int, Callable[[], Any]] = {
    ord("N"): lambda: None, 0x88: lambda: True, 0x89: lambda: False, ord("}"): dict, ord("]"): list, ord(")"): tuple,
    0x8F: list,
}  # fmt: skip
"""Opcode without an argument → the value that it pushes; an empty set becomes a list."""

_NUMBERS = {ord("J"): struct.Struct("<i"), ord("K"): struct.Struct("<B"), ord("M"): struct.Struct("<H"),
            ord("G"): struct.Struct(">d")}  # fmt: skip
_SIZED = {
    0x8C: ("<B", "text"), ord("X"): ("<I", "text"), 0x8D: ("<Q", "text"), 0x8A: ("<B", "long"), 0x8B: ("<i", "long"),
    ord("C"): ("<B", "bytes"), ord("B"): ("<I", "bytes"), 0x8E: ("<Q", "bytes"),
}  # fmt: skip
"""Opcode whose argument has a size → the form of the size, and what it is."""

_MEMO = {ord("q"): "<B", ord("r"): "<I", ord("h"): "<B", ord("j"): "<I"}
_GETS = (ord("h"), ord("j"))
_IGNORED = {0x80: 1, 0x95: 8}
"""PROTO and FRAME with the bytes of their arguments."""
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


def load(data: bytes, name: str, progress: Progress = ignore) -> Any:
    """Return the value of a pickle of protocol 2 to 5, which may have only plain containers and values.

    Raises Problem (TRACE) for any other object, and if the data is damaged.

    ``name`` is the file's name for messages; ``progress`` is called with the number of bytes read since the last call.
    """
    try:
        return _Loader(data, progress).load()
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


class _Loader:
    """State of reading a pickle: the stack of values, and the memo."""

    def __init__(self, data: bytes, progress: Progress) -> None:
        self.data, self.progress, self.at = data, progress, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Apply the opcodes up to the final ``.``, and return the value that the pickle holds. Call it once.

        Raises _RefusedError for an opcode that is not for plain values, and errors such as IndexError for damaged data.
        """
        told = 0
        while True:
            if self.at - told >= _STEP:
                self.progress(self.at - told)
                told = self.at
            code = self.data[self.at]
            self.at += 1
            if code == ord("."):
                return self.stack.pop()
            self.apply_opcode(code)

    def apply_opcode(self, code: int) -> None:
        """Apply an opcode of the pickle, with the operands that follow it, to the stack or the memo.

        Raises _RefusedError if the opcode is not for plain values, and errors such as IndexError for damaged data.
        """
        if code == 0x94:
            self.memo[len(self.memo)] = self.stack[-1]
        elif code in _SIZED:
            self.stack.append(self.read_sized(*_SIZED[code]))
        elif code in _MEMO:
            index = self.number(struct.Struct(_MEMO[code]))
            if code in _GETS:
                self.stack.append(self.memo[index])
            else:
                self.memo[index] = self.stack[-1]
        elif code in _NUMBERS:
            self.stack.append(self.number(_NUMBERS[code]))
        elif code in _CONSTANTS:
            self.stack.append(_CONSTANTS[code]())
        else:
            self.build_container(code)

    def build_container(self, code: int) -> None:
        """Apply an opcode that builds a container; skip PROTO and FRAME.

        Raises _RefusedError for any other opcode; IndexError, TypeError, ValueError or StopIteration if the stack does
        not fit it.
        """
        if code == ord("("):
            self.stack.append(_MARK)
        elif code == ord("u"):
            values = self.pop_to_mark()
            self.add_items(values[::2], values[1::2])
        elif code == ord("s"):
            key, value = self.pop(2)
            self.add_items([key], [value])
        elif code in (ord("e"), 0x90):
            values = self.pop_to_mark()
            self.container(list).extend(values)
        elif code == ord("a"):
            (value,) = self.pop(1)
            self.container(list).append(value)
        elif code in _TUPLES:
            self.stack.append(tuple(self.pop(_TUPLES[code])))
        elif code == ord("t"):
            self.stack.append(tuple(self.pop_to_mark()))
        elif code in _IGNORED:
            self.at += _IGNORED[code]
        else:
            raise _RefusedError(self.refusal(code))

    def refusal(self, code: int) -> Text:
        """Return the reason why an opcode is refused: it would import a Python object, or rlpatch does not run it."""
        if code in _GLOBALS:
            module, attribute = self.data[self.at :].split(b"\n", 2)[:2]
            name = f"{module[:60].decode(errors='replace')}.{attribute[:60].decode(errors='replace')}"
            return Text(
                "loading the file would import the Python object {name}; rlpatch does not allow this import", repr(name)
            )
        if code == 0x93 and len(self.stack) > 1:
            return Text(
                "loading the file would import the Python object {name}; rlpatch does not allow this import",
                repr(".".join(str(part)[:60] for part in self.stack[-2:])),
            )
        return Text(
            "the file contains the pickle opcode {opcode}, which rlpatch does not run", _NAMES.get(code, hex(code))
        )

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def read_sized(self, form: str, kind: str) -> Any:
        """Read a value with its size before it, a number in the format ``form`` of `struct`.

        ``kind`` is "text", "bytes" or "long" (an integer). Raises ValueError for a negative size, one beyond the end of
        the data, or over 64 bytes for an integer; struct.error if the data ends within the size.
        """
        size = self.number(struct.Struct(form))
        data = self.data[self.at : self.at + size]
        if size < 0 or len(data) < size or (kind == "long" and size > 64):
            raise ValueError(kind)
        self.at += size
        if kind == "long":
            return int.from_bytes(data, "little", signed=True)
        return data.decode("utf-8", "surrogatepass") if kind == "text" else data

    def container(self, kind: type) -> Any:
        """Return the container on top of the stack, which stays there. Raises TypeError for another type."""
        if type(self.stack[-1]) is not kind:
            raise TypeError(kind)
        return self.stack[-1]

    def add_items(self, keys: list[Any], values: list[Any]) -> None:
        """Add items to the dict on top of the stack. Raises TypeError for a tuple as a key, or if the top is no dict.

        Raises ValueError for a key without a value. Tuples are refused because a small file can hold nested ones whose
        hash takes hours to compute.
        """
        if any(type(key) is tuple for key in keys):
            raise TypeError(tuple)
        self.container(dict).update(zip(keys, values, strict=True))

    def pop(self, count: int) -> list[Any]:
        """Pop ``count`` values and return them.

        Raises IndexError for a short stack, ValueError if a mark is among them.
        """
        if len(self.stack) < count:
            raise IndexError(count)
        values = self.stack[-count:]
        del self.stack[-count:]
        if any(value is _MARK for value in values):
            raise ValueError("mark")
        return values

    def pop_to_mark(self) -> list[Any]:
        """Pop the values above the last mark, and the mark; return the values. Raises StopIteration without one."""
        at = next(at for at in range(len(self.stack) - 1, -1, -1) if self.stack[at] is _MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values
