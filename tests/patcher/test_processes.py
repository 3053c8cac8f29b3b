"""Which running processes are named after a patch."""

from __future__ import annotations

import os
from pathlib import Path

from patcher import processes


def test_processes_are_known_by_their_command_line(tmp_path: Path) -> None:
    commands = {
        "17": b"python3\0-m\0vllm.entrypoints.openai.api_server\0",
        "18": b"VLLM::Worker_TP0\0",
        "19": b"bash\0",
        "20": b"rlpatch\0apply\0vllm-ascend\0",
        "22": b"/usr/bin/python3\0/usr/local/bin/vllm\0serve\0/models/x\0",
        "23": b"python3\0-m\0pip\0install\0vllm\0",
        "24": b"ray::WorkerDict.actor_rollout_update_actor\0",
        "25": b"vim\0/src/vllm/worker.py\0",
        str(os.getpid()): b"vllm\0",
    }
    for pid, command in commands.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(command)
    (tmp_path / "21").mkdir()  # it ended while we looked
    (tmp_path / "self").mkdir()
    assert processes.running(("vllm", "VLLM::", "ray::WorkerDict"), tmp_path) == (
        "17 python3 -m vllm.entrypoints.openai.api_server",
        "18 VLLM::Worker_TP0",
        "22 /usr/bin/python3 /usr/local/bin/vllm serve /models/x",
        "24 ray::WorkerDict.actor_rollout_update_actor",
    )
    assert processes.running(("vllm",), tmp_path / "nowhere") == ()
