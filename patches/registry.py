"""Every upstream project that rlpatch knows; a new one is a module of ``patches`` and a line here."""

from __future__ import annotations

from patches import mindspeed_rl, sglang, verl, vllm, vllm_ascend

UPSTREAMS = (vllm_ascend.UPSTREAM, vllm.UPSTREAM, sglang.UPSTREAM, verl.UPSTREAM, mindspeed_rl.UPSTREAM)
