"""vllm-ascend: where the engine's own profiler is set up."""

from __future__ import annotations

from patcher.config import WHOLE, BuiltinStage
from patcher.messages import Text
from patcher.recipe import Recipe, Structure
from patches import builtin
from patches.shared_switches import ENGINE
from patches.vllm_ascend import RELEASES

_IN_INIT = Text(
    "the profiler is created in __init__() if VLLM_TORCH_PROFILER_DIR is set; it records Level0 with stacks, modules"
    " and memory"
)

_V1_INIT = Recipe(
    name="V1 profiler, __init__",
    stage=BuiltinStage.NAMES[0],
    class_name="NPUWorker",
    method="__init__",
    insertions=(),
    calls=builtin.CALLS,
    profiler=ENGINE,
    windows=(WHOLE,),
    probe=builtin.PROBE,
    structures=(
        Structure(
            "",
            RELEASES.between("0.7.3rc2", "0.7.3.post1"),
            "vllm_ascend/worker/worker_v1.py",
            ("e7ecc4905257", "7e2fade8d4c5"),
            _IN_INIT,
        ),
    ),
    why=Text(
        "the usual guides tell you to edit the profiler's level, contents, metrics and export types in the source by"
        " hand, because the engine has no options for them"
    ),
    how=Text(
        "rlpatch changes only the chosen arguments in the calls of torch_npu.profiler. Each replaced line"
        " stays above the new line as a comment `# was:`; `rlpatch revert` restores it from there"
    ),
    upstream=Text("{file}, up to {release}", file="vllm_ascend/worker/worker_v1.py", release="0.7.3.post1"),
    needed_until=Text("the patch is no longer needed once the engine accepts these settings in --profiler-config"),
)

_V0_INIT = _V1_INIT._replace(
    name="V0 profiler, __init__",
    structures=(
        Structure(
            "",
            ("0.7.1rc1",),
            "vllm_ascend/worker.py",
            ("b36480f558ef",),
            _IN_INIT,
        ),
        Structure(
            "",
            RELEASES.between("0.7.3rc1", "0.9.2rc1"),
            "vllm_ascend/worker/worker.py",
            ("668771cb171f", "267b4446e5d3", "00e12211101b", "8965a2e27228", "4037aa2fdaea"),
            Text(
                "same code as in release 0.7.1rc1, in another file, which imports torch_npu; from 0.9.0rc1 on, the"
                " profiler records Level1 without stacks, modules and memory"
            ),
        ),
    ),
    upstream=Text("vllm_ascend/worker.py in 0.7.1rc1; vllm_ascend/worker/worker.py up to 0.9.2rc1"),
)

_INIT_PROFILER = _V1_INIT._replace(
    name="V1 profiler, _init_profiler",
    method="_init_profiler",
    structures=(
        Structure(
            "",
            RELEASES.between("0.8.4rc1", "0.12.0rc1"),
            "vllm_ascend/worker/worker_v1.py",
            ("9828375f173a", "f6d36b545402", "525ed6af61d1", "6c70d618b12a"),
            Text(
                "_init_profiler() creates the profiler if VLLM_TORCH_PROFILER_DIR is set. The profiler records Level1"
                " from 0.9.0rc1 on. From 0.10.1rc1 on, environment variables enable the recording of stacks and memory"
            ),
        ),
        Structure(
            "",
            RELEASES.between("0.13.0rc1", "0.15.0rc1"),
            "vllm_ascend/worker/worker.py",
            ("6c70d618b12a", "95830d6f8f5d", "ad3ae248c156", "a4afd4985cb0", "bbcab2f1bf71"),
            Text(
                "same code as in release 0.12.0rc1, in another file; from 0.14.0rc1 on, the profiler is created only"
                " if --profiler-config sets a directory"
            ),
        ),
    ),
    upstream=Text(
        "vllm_ascend/worker/worker_v1.py, 0.8.4rc1 to 0.12.0rc1; then vllm_ascend/worker/worker.py, up to 0.15.0rc1"
    ),
)

_CREATE_PROFILER = _V1_INIT._replace(
    name="V1 profiler, _create_profiler",
    method="_create_profiler",
    structures=(
        Structure(
            "",
            RELEASES.between("0.16.0rc1", "0.19.1rc1"),
            "vllm_ascend/worker/worker.py",
            ("d1218db687f6", "b2155e19eeb6"),
            Text("_create_profiler() creates the profiler in the first call of profile()"),
        ),
    ),
    upstream=Text(
        "{file}, {first} to {last}", file="vllm_ascend/worker/worker.py", first="0.16.0rc1", last="0.19.1rc1"
    ),
)

_WRAPPER = _V1_INIT._replace(
    name="TorchNPUProfilerWrapper",
    class_name="TorchNPUProfilerWrapper",
    method="_create_profiler",
    structures=(
        Structure(
            "",
            RELEASES.since("0.20.2rc1"),
            "vllm_ascend/profiler/torch_npu_profiler.py",
            ("5acebbc0d28c", "60f9b2f6a95a", "7912a9f441c5"),
            Text(
                "a wrapper class creates the profiler and applies delay_iterations and max_iterations of"
                " --profiler-config"
            ),
        ),
    ),
    upstream=Text("{file}, from {release} on", file="vllm_ascend/profiler/torch_npu_profiler.py", release="0.20.2rc1"),
)

RECIPES = (_WRAPPER, _CREATE_PROFILER, _INIT_PROFILER, _V1_INIT, _V0_INIT)
