"""Traces of every kind from the real profilers: python recording.py BACKEND FOLDER

On torch one window is recorded whole and compressed, one whole and plain, and into FOLDER/full one whose file cannot grow
beyond a limit, as on a full disk, and one whose file cannot even begin. On npu one is recorded whole, and the process waits in
a second one for a line on stdin, by which it is killed; with FULL instead of that, one more whose files cannot grow.
"""

import contextlib
import os
import resource
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


def fill(size):
    """From now on no file can grow beyond ``size``."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


if backend == "npu":
    profiler = window("dp0_rank0")
    run(profiler)
    profiler.stop()
    if full:
        fill(1000)
        profiler = window("dp0_rank0", f"{folder}/full")
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
    for rank, size in enumerate((3000, 0)):
        fill(size)
        profiler = window(f"dp0_rank{rank}", f"{folder}/full")
        with contextlib.suppress(OSError, RuntimeError):
            run(profiler)
            profiler.stop()
