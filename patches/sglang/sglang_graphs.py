"""SGLang: the capture of graphs by the model runner of each scheduler."""

from __future__ import annotations

from patcher.messages import Note, Text
from patcher.recipe import Before, Insertion, Recipe, Structure
from patches import graphs
from patches.probes.graphs import SglangGraphCapture
from patches.sglang import RELEASES, replicas

_FILE = "sglang/srt/model_executor/model_runner.py"
_CAPTURES = Text(
    "this statement runs the graph capture and its warm-up, in the scheduler's process and thread. If"
    " no graph is to be captured, the function returns before this statement, and nothing is recorded"
)
_PREFILL_AND_DECODE = Text(
    "the graphs of prefill and of decode are captured from here on, in the scheduler's process and thread"
)

FIRST = Recipe(
    name=Text("graph capture of the model runner, code structure {structure}", "A"),
    stage=graphs.STAGE,
    class_name="ModelRunner",
    method="init_cuda_graphs",
    windows=graphs.WINDOWS,
    probe=graphs.probe(SglangGraphCapture),
    insertions=(graphs.enclosing("init_cuda_graphs", "CudaGraphRunner(self)", "init_cuda_graphs", _CAPTURES),),
    structures=(
        Structure(
            "A",
            RELEASES.until("0.5.0rc2"),
            _FILE,
            (
                *("66f84caf7f4a", "692e49a3707a", "2597754102b2", "12fb17609ae8", "840a0e1ec033", "729a4f621896"),
                "5d28db8b474a",
            ),
            Text("the function creates a CudaGraphRunner, which captures the graphs of decode"),
        ),
    ),
    why=Text(
        "a replayed graph shows one launch and no operators. Only the capture of a graph shows which operator"
        " launched which kernel, and with which shapes (--contents npu,cpu,shapes)"
    ),
    how=Text(
        "inserts one line before the graph capture and one after it. The first capture of each model runner is"
        " recorded, except for draft models. If the graphs are captured again after a weight update from disk, that"
        " capture is not recorded. --repeat N records the first N captures, but only in releases up to 0.5.13.post1."
        " If a capture fails, its trace is saved only when the process ends or the next capture begins. In releases up"
        " to 0.5.13.post1, the trace has only the graphs of decode. In releases up to 0.5.0rc2, a model runner does"
        " not know its data-parallel rank, so with --dp-size every replica has a rank 0 that records"
    ),
    upstream=_FILE,
    needed_until=Text(
        "the patch is no longer needed once SGLang's own profiler can write a trace of the graph capture for chosen"
        " ranks"
    ),
    notes=(
        Note(
            Text("with --disable-cuda-graph little or nothing is recorded"),
            Text(
                "no decode graph is captured, so the trace of the capture is missing (up to SGLang 0.5.13.post1) or"
                " can be almost empty (from 0.5.14 on)"
            ),
        ),
        Note(
            Text("leave out --enable-profile-cuda-graph"),
            Text("with this option, SGLang also profiles the graph capture; two profilers at once lose data or crash"),
        ),
        Note(
            Text("to make the trace smaller, capture graphs for fewer batch sizes"),
            Text(
                "the warm-up run of each batch size is in the trace, too. --cuda-graph-max-bs (from 0.5.14 on"
                " --cuda-graph-max-bs-decode) sets the largest batch size"
            ),
        ),
    ),
)


def _later_recipe(
    letter: str,
    releases: tuple[str, ...],
    fingerprints: tuple[str, ...],
    shape: Text,
    *insertions: Insertion,
) -> Recipe:
    """Return the recipe for the model runner of later `releases`, which have the same structure, called `letter`.

    `shape` describes this structure in words, `fingerprints` are hashes of its method, `insertions` are its lines.
    """
    return FIRST._replace(
        name=Text("graph capture of the model runner, code structure {structure}", letter),
        method=insertions[0].method,
        insertions=insertions,
        structures=(Structure(letter, releases, _FILE, fingerprints, shape),),
    )


BY_DEVICE = _later_recipe(
    "B",
    RELEASES.between("0.5.1", "0.5.2rc2"),
    ("ff54ab28afa8",),
    Text("same code as structure A, in the method init_device_graphs(); NPUs have their own class, NPUGraphRunner"),
    graphs.enclosing(
        "init_device_graphs",
        "CudaGraphRunner(self) if not _is_npu else NPUGraphRunner(self)",
        "init_device_graphs",
        _CAPTURES,
    ),
)
FROM_TABLE = _later_recipe(
    "C",
    RELEASES.between("0.5.2", "0.5.10.post1"),
    ("3db54a85dce9", "9d9f4da1c5c2", "6993a7f08f7d"),
    Text("same code as structure B, except that the class of the graph runner is looked up by device"),
    graphs.enclosing("init_device_graphs", "graph_runners[self.device](self)", "init_device_graphs", _CAPTURES),
)
BY_PLATFORM = _later_recipe(
    "D",
    RELEASES.between("0.5.11", "0.5.13.post1"),
    ("047a40676e36",),
    Text("same code as structure C, except that a platform outside of SGLang can supply its own graph runner class"),
    graphs.enclosing(
        "init_device_graphs", "if current_platform.is_out_of_tree(): ...", "init_device_graphs", _CAPTURES
    ),
)
BOTH = _later_recipe(
    "E",
    RELEASES.between("0.5.14", "0.5.15.post1"),
    ("58d41e2f0efd", "2b830ddec927"),
    Text("the function calls one function that captures the graphs of prefill, then one that captures those of decode"),
    Insertion(
        "init_cuda_graphs",
        where=Before("self.init_prefill_cuda_graph()"),
        line='self._rlpatch_stage("enter", "init_cuda_graphs")',
        why=_PREFILL_AND_DECODE,
    ),
    Insertion(
        "init_cuda_graphs",
        where=Before("if self.server_args.forward_hooks: ..."),
        line='self._rlpatch_stage("leave")',
        why=Text("all graphs have been captured when this line runs"),
    ),
)
TOGETHER = _later_recipe(
    "F",
    RELEASES.since("0.5.16"),
    ("f88f9fd6910b", "ee7687db9c36", "32a52e837ee8", "6448963ed16b", "bbd881528d68"),
    Text("one call captures the graphs of prefill and of decode, after a warm-up without graphs"),
    graphs.enclosing("init_cuda_graphs", "capture_cuda_graphs(...)", "capture_cuda_graphs", _PREFILL_AND_DECODE),
)

_CAPTURING = (FIRST, BY_DEVICE, FROM_TABLE, BY_PLATFORM, BOTH, TOGETHER)
RECIPES = (*_CAPTURING, *replicas.recipes(*_CAPTURING))
