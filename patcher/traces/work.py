"""The least work of an operator, by the shapes of its inputs.

Two operations for each product of a matmul, and each tensor read or written once: what lies in a cache, or is one row
that is repeated, takes less. The inputs stand in the order of the operator's schema, as kineto writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from patcher.traces.messages import element_size

Shape = tuple[int, ...]


class Inputs(NamedTuple):
    """Inputs of a call; an input that is no tensor has the shape ().

    ``sizes`` are the bytes of an element of each, 0 if unknown; ``values`` are the texts of inputs that are no tensors.
    """

    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    values: tuple[str, ...] = ()

    def bytes(self, *tensors: int) -> int:
        """Return the sum of the bytes of the tensors at these positions; a position without a tensor adds 0."""
        return sum(
            math.prod(self.shapes[at]) * self.sizes[at] for at in tensors if at < len(self.shapes) and self.shapes[at]
        )

    @property
    def every(self) -> int:
        """Bytes of all tensors."""
        return self.bytes(*range(len(self.shapes)))

    @property
    def widest(self) -> int:
        """Bytes of the result of an elementwise operation, with the type of the first input."""
        return max(map(math.prod, filter(None, self.shapes)), default=0) * self.sizes[0]


Work = tuple[int, int]
"""Operations, and bytes that have to be moved."""


def _matmul(first: int) -> Callable[[Inputs], Work]:
    """Return the work function of a product of input ``first`` and the next input: matrices, or batches of these."""

    def work(call: Inputs) -> Work:
        a, b = call.shapes[first], call.shapes[first + 1]
        if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2] or a[:-2] != b[:-2]:
            raise ValueError("no such product")
        rows = math.prod(a[:-1])
        return 2 * rows * a[-1] * b[-1], call.every + rows * b[-1] * call.sizes[first]

    return work


def _linear(call: Inputs) -> Work:
    """Return floating-point operations and bytes of a linear layer, a call with an input and a weight (out, in).

    Raises ValueError or IndexError for other shapes.
    """
    data, weight = call.shapes[:2]
    if len(weight) != 2 or data[-1] != weight[-1]:
        raise ValueError("no such product")
    rows = math.prod(data[:-1])
    return 2 * rows * weight[0] * weight[1], call.every + rows * weight[0] * call.sizes[0]


def _streamed(written: Callable[[Inputs], int]) -> Callable[[Inputs], Work]:
    """Return the work function of an operator without products: it reads all inputs, and writes so many bytes."""
    return lambda call: (0, call.every + written(call))


def _attention(
    first: int, causal: int, *, heads: int = 2, times: float = 1, lengths: int = 0
) -> Callable[[Inputs], Work]:
    """Return the work function of an attention operator, whose query, key and value are the inputs from ``first`` on.

    ``causal`` is the position of the argument that tells whether attention is causal; the mask then ends with the last
    key. ``heads`` is the index of the shapes' dimension that counts heads: 1 or 2. ``times`` is the number of
    operations as a multiple of the forward's.
    If the input at position ``lengths`` is a tensor, the lengths of sequences, and so the work, are unknown.
    """

    def work(call: Inputs) -> Work:
        query, key, value = call.shapes[first : first + 3]
        if not len(query) == len(key) == len(value) == 4 or (lengths and call.shapes[lengths]):
            raise ValueError("no such attention")
        asking, asked = query[3 - heads], key[3 - heads]
        pairs = asking * asked
        if call.values[causal] in ("True", "1", "2"):
            if asking > asked:
                raise ValueError("queries without a key")
            pairs -= asking * (asking - 1) // 2
        elif call.values[causal] not in ("False", "0"):
            raise ValueError("whether it is causal is unknown")
        each = 2 * pairs * query[0] * query[heads]
        return round(times * each * (query[3] + value[3])), call.every + call.bytes(first)

    return work


CONCRETE = {
    "aten::_flash_attention_forward": _attention(0, 8, lengths=3),
    "aten::_flash_attention_backward": _attention(1, 11, times=2.5, lengths=6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6, heads=1),
    "aten::_cudnn_attention_forward": _attention(0, 10, heads=1, lengths=4),
    "aten::_cudnn_attention_backward": _attention(1, 14, heads=1, times=2.5, lengths=9),
}
"""Operator → the work of a call, of those of which a value has to be known, too."""

_MAPPED = (
    "add", "sub", "mul", "div", "neg", "pow", "exp", "rsqrt", "sigmoid", "silu", "gelu", "relu", "tanh", "clamp",
    "clamp_min", "where", "threshold_backward", "sigmoid_backward", "silu_backward", "gelu_backward", "_softmax",
    "_log_softmax",
)  # fmt: skip
_CHANGED = ("add_", "sub_", "mul_", "div_", "clamp_", "clamp_min_", "relu_", "sigmoid_", "native_layer_norm")
_MOVED = ("sum", "mean", "_softmax_backward_data", "_log_softmax_backward_data")

_MOVED_ONCE = _streamed(lambda _call: 0)
"""The work of an operator whose inputs are all of its tensors."""

WORK: Mapping[str, Callable[[Inputs], Work]] = {
    "aten::mm": _matmul(0), "aten::bmm": _matmul(0), "aten::_scaled_mm": _matmul(0), "aten::addmm": _matmul(1),
    "aten::baddbmm": _matmul(1), "aten::linear": _linear, **CONCRETE,
    **{f"aten::{name}": _streamed(lambda call: call.widest) for name in _MAPPED},
    **{f"aten::{name}": _streamed(lambda call: call.bytes(0)) for name in _CHANGED},
    **{f"aten::{name}": _MOVED_ONCE for name in _MOVED},
    "_C::rms_norm": _MOVED_ONCE, "_C::silu_and_mul": _MOVED_ONCE,
    "_C::fused_add_rms_norm": _streamed(lambda call: call.bytes(0, 1)),
}  # fmt: skip
"""Operator → the work of a call, by its inputs in the order of its schema."""


def inputs_of(shapes: str, types: str, values: str = "") -> Inputs | None:
    """Return the inputs of a call from kineto's JSON texts of their shapes, types and values; None if malformed."""
    try:
        dims, names, concrete = json.loads(shapes), tuple(map(str, json.loads(types))), json.loads(values or "[]")
        tensors = [dim if isinstance(dim, list) and all(type(number) is int for number in dim) else () for dim in dims]
    except (ValueError, TypeError, RecursionError):
        return None
    sizes = [element_size(name) or 0 for name in names] + [0] * (len(tensors) - len(names))
    return Inputs(tuple(map(tuple, tensors)), names, tuple(sizes[: len(tensors)]), tuple(map(str, concrete or ())))


def work_of(operator: str, inputs: Inputs) -> tuple[int, int, int] | None:
    """Return (operations, bytes moved, bytes of an element) of an operator's call; None if unknown.

    The element is that of the first tensor.
    """
    try:
        operations, moved = WORK[operator](inputs)
        elements = {size for shape, size in zip(inputs.shapes, inputs.sizes, strict=True) if shape}
    except (KeyError, IndexError, ValueError):
        return None
    if 0 in elements or not 0 < moved < 1 << 60 or not 0 <= operations < 1 << 80:
        return None
    return operations, moved, next(size for shape, size in zip(inputs.shapes, inputs.sizes, strict=True) if shape)
