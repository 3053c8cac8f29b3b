"""Every upstream project that rlpatch knows; a new one is a module of ``patches`` and a line here."""

from __future__ import annotations

from patches import verl, vllm_ascend

UPSTREAMS = (vllm_ascend.UPSTREAM, verl.UPSTREAM)
