"""Traces of every kind from the real profilers: python recording.py BACKEND FOLDER [FULL]

On npu one window is recorded whole, and the process waits in a second one for a line on stdin and is then killed. On
torch one is recorded whole and compressed, and one plain. With FULL, a folder whose disk has no more room, one more goes there.
"""

import os
import signal
import socket
import sys

import torch

backend, folder, *full = sys.argv[1:]
host = "".join(c if c.isalnum() else "_" for c in socket.gethostname())
ones = torch.ones(8, 8)


def window(name, folder=folder, **handler):
    """A profiler of the units 3 and 4, in WAIT."""
    if backend == "npu":
        import torch_npu

        module, handler = torch_npu.profiler, {**handler, "analyse_flag": False}
        chosen = {"activities": [module.ProfilerActivity.CPU, module.ProfilerActivity.NPU]}
    else:
        module, chosen = torch.profiler, {"activities": [torch.profiler.ProfilerActivity.CPU]}
    return module.profile(
        schedule=module.schedule(wait=2, warmup=1, active=2, repeat=1),
        on_trace_ready=module.tensorboard_trace_handler(folder, worker_name=f"{host}_{name}_{os.getpid()}", **handler),
        **chosen,
    )


def run(profiler, units=6):
    profiler.start()
    for _ in range(units):
        torch.mm(ones, ones)
        profiler.step()


if backend == "npu":
    profiler = window("dp0_rank0")
    run(profiler)
    profiler.stop()
    if full:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        profiler = window("dp0_rank0", full[0])
        run(profiler)
        profiler.stop()
    else:
        profiler = window("update_policy_actor_step2_rank0")
        run(profiler, 4)
        print("inside", flush=True)
        sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
else:
    for name, options in (("dp0_rank0", {"use_gzip": True}), ("compute_log_prob_ref_step1_rank0", {})):
        profiler = window(name, **options)
        run(profiler)
        profiler.stop()
    for packed in (False, True) if full else ():
        profiler = window(f"dp0_rank{int(packed)}", full[0], use_gzip=packed)
        try:
            run(profiler)
            profiler.stop()
        except (OSError, RuntimeError) as error:
            print(type(error).__name__, error, flush=True)
