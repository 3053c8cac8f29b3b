"""Work of operators by the shapes of their inputs, and what those do not tell."""

from __future__ import annotations

import json

import pytest

from patcher.traces.work import inputs_of, work_of

HALF, SINGLE = "c10::BFloat16", "float"


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "work"),
    [
        ("aten::mm", [[8, 16], [16, 4]], [HALF, HALF], (2 * 8 * 16 * 4, 2 * (8 * 16 + 16 * 4 + 8 * 4), 2)),
        ("aten::bmm", [[3, 8, 16], [3, 16, 4]], [SINGLE] * 2, (2 * 3 * 8 * 16 * 4, 4 * 3 * (128 + 64 + 32), 4)),
        (
            "aten::addmm", [[4], [8, 16], [16, 4], [], []], [HALF] * 3 + ["Scalar"] * 2,
            (1024, 2 * (4 + 128 + 64 + 32), 2),
        ),
        ("aten::baddbmm", [[3, 8, 4], [3, 8, 16], [3, 16, 4]], [HALF] * 3, (3 * 1024, 2 * 3 * (32 + 128 + 64 + 32), 2)),
        ("aten::linear", [[2, 4, 16], [4, 16], [4]], [HALF] * 3, (1024, 2 * (128 + 64 + 4 + 32), 2)),
        (
            "aten::_scaled_mm", [[8, 16], [16, 4], [], []], ["c10::Float8_e4m3fn"] * 2 + [SINGLE] * 2,
            (1024, 128 + 64 + 32, 1),
        ),
        ("aten::add", [[8, 4], [4], []], [SINGLE, SINGLE, "Scalar"], (0, 4 * (32 + 4 + 32), 4)),
        ("aten::add_", [[8, 4], [8, 4], []], [SINGLE, SINGLE, "Scalar"], (0, 4 * 32 * 3, 4)),
        ("aten::sum", [[8, 4], [], [], []], [SINGLE, "", "Scalar", ""], (0, 4 * 32, 4)),
        ("aten::native_layer_norm", [[8, 4], [], [4], [4], []], [SINGLE, "", SINGLE, SINGLE, "Scalar"], (0, 4 * 72, 4)),
        ("_C::fused_add_rms_norm", [[8, 4], [8, 4], [4], []], [HALF] * 3 + ["Scalar"], (0, 2 * (4 * 32 + 4), 2)),
        ("_C::silu_and_mul", [[8, 4], [8, 8]], [HALF] * 2, (0, 2 * 96, 2)),
        # What no such operator takes, what is of no known type, and what is empty.
        ("aten::mm", [[8, 16], [8, 4]], [HALF, HALF], None),
        ("aten::mm", [[8, 16]], [HALF], None),
        ("aten::linear", [[8, 16], [16]], [HALF, HALF], None),
        ("aten::add", [[8, 4], [4]], [SINGLE, "Quantum"], None),
        ("aten::add", [[8, 4], [4]], [SINGLE], None),
        ("aten::add", [[], []], ["Scalar", "Scalar"], None),
        ("aten::mm", [[0, 16], [16, 0]], [HALF, HALF], None),
        ("aten::mm", [[1 << 40, 1 << 40], [1 << 40, 1]], [HALF, HALF], None),
        ("aten::unknown", [[8, 4]], [SINGLE], None),
    ],
)  # fmt: skip
def test_the_work_of_a_call(operator: str, shapes: object, types: object, work: tuple[int, int, int] | None) -> None:
    inputs = inputs_of(json.dumps(shapes), json.dumps(types))
    assert inputs is not None
    assert work_of(operator, inputs) == work


QUERY, KEY = [2, 64, 8, 16], [2, 96, 4, 16]


@pytest.mark.parametrize(
    ("operator", "tensors", "values", "flops"),
    [
        ("aten::_flash_attention_forward", [QUERY, QUERY, QUERY], {8: "False"}, 2 * 64 * 64 * 16 * 32),
        ("aten::_flash_attention_forward", [QUERY, QUERY, QUERY], {8: "True"}, 64 * 65 * 16 * 32),
        ("aten::_flash_attention_forward", [QUERY, KEY, KEY], {8: "True"}, 2 * (64 * 96 - 64 * 63 // 2) * 16 * 32),
        ("aten::_flash_attention_backward", [QUERY] * 4, {11: "False"}, 5 * 64 * 64 * 16 * 32),
        ("aten::_scaled_dot_product_cudnn_attention", [[2, 8, 64, 16]] * 3, {6: "False"}, 2 * 64 * 64 * 16 * 32),
        ("aten::_cudnn_attention_forward", [[2, 8, 64, 16]] * 3, {10: "True"}, 64 * 65 * 16 * 32),
        ("aten::_cudnn_attention_backward", [[2, 8, 64, 16]] * 6, {14: "False"}, 5 * 64 * 64 * 16 * 32),
        (
            "aten::_cudnn_attention_forward",
            [[2, 8, 64, 16]] * 3 + [[]] + [[3]],
            {10: "True"},
            None,
        ),  # lengths of their own
        ("aten::_cudnn_attention_backward", [[2, 8, 64, 16]] * 6 + [[]] * 3 + [[3]], {14: "True"}, None),
        ("aten::_flash_attention_forward", [KEY, QUERY, QUERY], {8: "True"}, None),
        ("aten::_flash_attention_forward", [QUERY, QUERY, QUERY], {8: ""}, None),
        ("aten::_flash_attention_forward", [QUERY, QUERY, QUERY], {}, None),
        ("aten::_flash_attention_forward", [QUERY, QUERY, QUERY, [3]], {8: "True"}, None),  # lengths of their own
        ("aten::_flash_attention_forward", [QUERY[1:]] * 3, {8: "True"}, None),
    ],
)
def test_the_work_of_attention(
    operator: str, tensors: list[list[int]], values: dict[int, str], flops: int | None
) -> None:
    shapes = [*tensors, *[[]] * (12 - len(tensors))]
    known = [values.get(at, "") for at in range(max(values, default=-1) + 1)]
    inputs = inputs_of(json.dumps(shapes), json.dumps([HALF if one else "" for one in shapes]), json.dumps(known))
    assert inputs is not None
    work = work_of(operator, inputs)
    assert (work and work[0]) == flops


def test_lists_of_tensors_are_no_shapes() -> None:
    inputs = inputs_of('[[[8, 4], [8, 4]], [8, true], "x", null, [3]]', '["TensorList"]')
    assert inputs is not None
    assert (inputs.shapes, inputs.sizes) == (((), (), (), (), (3,)), (0, 0, 0, 0, 0))


@pytest.mark.parametrize("text", ["", "7", "{", "[" * 9999, "null"])
def test_what_kineto_does_not_write_is_nothing(text: str) -> None:
    assert inputs_of(text, "[]") is None
    assert inputs_of("[]", text) is None
