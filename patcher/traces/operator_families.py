"""Families of the framework's operators, for traces in which nothing ran on a device."""

from __future__ import annotations

import functools
import re

from patcher.traces.families import ATTENTION, COLLECTIVE, COPIES, ELEMENTWISE, GEMM, MOE, SAMPLING

PATTERNS = (
    (COLLECTIVE, r"^c10d::|^_?c10d_functional::|(?:^|::)(?:gloo|nccl|hccl|xccl):|shm_(?:all|gather|send)"),
    (MOE, r"moe|expert|grouped_(?:gemm|mm)|topk_softmax"),
    (ATTENTION, r"attention|attn|flash|paged|kv_cache|reshape_and_cache"),
    (
        SAMPLING,
        r"sampl|multinomial|exponential|argmax|gumbel|rejection|penalt|::(?:_?softmax|_?log_softmax|sort|top_?[kp])$",
    ),
    (
        GEMM,
        r"::(?:linear|_?\w*mm|matmul|einsum|conv\dd|convolution)$|gemm|gemv|onednn_mm|weight_packed|_linear$",
    ),
    (
        COPIES,
        (
            r"::(?:copy_|_to_copy|to|clone|contiguous|index_select|index|index_put_|cat|stack|select|slice|view|reshape"
            r"|item|unsqueeze|squeeze|expand|as_strided|empty\w*|transpose|permute|t|split\w*)$"
        ),
    ),
)  # fmt: skip
"""Family → what the name of an operator of it contains; the first that matches counts."""


@functools.lru_cache(maxsize=1 << 16)
def operator_family(name: str) -> str:
    """Return the family of an operator, a key of `families.FAMILIES`; elementwise if no pattern fits."""
    return next((family for family, pattern in PATTERNS if re.search(pattern, name, re.IGNORECASE)), ELEMENTWISE)
