"""The message of a collective: the bytes of its message, from the elements and the type that profilers write."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

_SIZES = {
    "bool": 1, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "unsigned char": 1, "signed char": 1, "hif8": 1,
    "short": 2, "int16": 2, "uint16": 2, "half": 2, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "bfp16": 2,
    "int": 4, "int32": 4, "uint32": 4, "float": 4, "float32": 4, "fp32": 4,
    "long": 8, "long int": 8, "int64": 8, "uint64": 8, "double": 8, "float64": 8, "fp64": 8, "int128": 16,
}  # fmt: skip
"""Bytes of an element, by how torch (Float, c10::BFloat16), HCCL (BFP16) and CANN (DT_BF16) write its type."""


@dataclass(frozen=True, slots=True)
class LinkPiece:
    """Pieces of so many ``bytes`` that a collective moved over the links of a node: ``count`` of them, in ``ns``."""

    bytes: int
    count: int
    ns: int


class CollectiveMessage(NamedTuple):
    """The message that a collective carries.

    ``kind`` is what it does as the trace calls it, "" where its name alone tells. ``bytes`` are those of its tensors on
    one rank, the larger of what goes in and what comes out; ``sent_bytes`` is what this rank moved over links, as the
    vendor counts it. ``ranks`` is the size of the group. None is what nobody wrote down. ``pieces`` are those in which
    it went over the links of a node, none where the vendor does not tell.
    """

    kind: str = ""
    bytes: int | None = None
    sent_bytes: int | None = None
    ranks: int | None = None
    pieces: tuple[LinkPiece, ...] = ()


def element_size(dtype: str) -> int | None:
    """Return the bytes of an element of a type, as torch, HCCL or CANN names it; None for an unknown type."""
    name = dtype.lower().removeprefix("c10::").removeprefix("dt_")
    return 1 if name.startswith("float8") else _SIZES.get(name)


@functools.lru_cache(maxsize=1 << 12)  # a trace repeats few of them, and they are kept
def message(kind: object, elements: object, received: object, dtype: object, ranks: object) -> CollectiveMessage:
    """Build the message of a collective from what a trace says; a value of another type counts as unknown.

    ``kind`` is the operation, such as "allreduce". ``elements`` go in and ``received`` come out; the larger number,
    times the size of ``dtype``, is the message's size, unknown if 0. ``ranks`` is the size of its group.
    """
    counts = [value for value in (elements, received) if type(value) is int and 0 <= value < 1 << 48]
    size = element_size(dtype) if isinstance(dtype, str) else None
    carried = max(counts) * size if counts and size else None
    return CollectiveMessage(
        kind if isinstance(kind, str) else "",
        carried or None,
        None,
        ranks if type(ranks) is int and ranks > 0 else None,
    )
