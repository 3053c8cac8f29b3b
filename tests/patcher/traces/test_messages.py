"""The bytes of a collective, by how profilers write its elements and their type."""

from __future__ import annotations

import pytest

from patcher.traces.messages import CollectiveMessage, element_size, message


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4), ("c10::BFloat16", 2), ("BFP16", 2), ("DT_BF16", 2), ("FP32", 4), ("Long", 8), ("long int", 8),
        ("Float8_e4m3fn", 1), ("c10::Float8_e5m2", 1), ("unsigned char", 1), ("Bool", 1), ("INVALID_TYPE", None), ("", None),
    ],
)  # fmt: skip
def test_an_element_has_the_size_of_its_type(dtype: str, size: int | None) -> None:
    assert element_size(dtype) == size


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        (("allreduce", 1000, 1000, "Float", 8), CollectiveMessage("allreduce", 4000, None, 8)),
        (("_allgather_base", 1000, 8000, "BFloat16", 8), CollectiveMessage("_allgather_base", 16_000, None, 8)),
        (("_reduce_scatter_base", 8000, 1000, "Half", 8), CollectiveMessage("_reduce_scatter_base", 16_000, None, 8)),
        (("", 1000, None, "FP16", None), CollectiveMessage("", 2000)),
        (("barrier", 0, 0, "Byte", 8), CollectiveMessage("barrier", None, None, 8)),
        (("allreduce", 1000, 1000, "Quantum", 8), CollectiveMessage("allreduce", None, None, 8)),
        ((7, "many", 1 << 60, 4, -1), CollectiveMessage()),
    ],
)
def test_a_message_is_the_larger_of_what_goes_in_and_comes_out(
    fields: tuple[object, ...], known: CollectiveMessage
) -> None:
    assert message(*fields) == known
