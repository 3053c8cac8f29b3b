"""The families of kernels, by their names: which library a collective is of, and what any other kernel does."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from patcher.messages import Text

GEMM, ATTENTION, MOE, ELEMENTWISE, SAMPLING, COPIES, COLLECTIVE, OTHER = (
    "gemm", "attention", "moe", "elementwise", "sampling", "copy", "collective", "other",
)  # fmt: skip
HOST_BOUND, OUTSIDE_FORWARD = "host-bound", "outside-forward"

FAMILIES: Mapping[str, str] = {
    GEMM: Text("matmuls and convolutions"),
    ATTENTION: Text("attention"),
    MOE: Text("experts"),
    ELEMENTWISE: Text("elementwise and normalization"),
    SAMPLING: Text("sampling"),
    COPIES: Text("copies"),
    COLLECTIVE: Text("communication"),
    OTHER: Text("other kernels"),
    HOST_BOUND: Text("host-bound"),
    OUTSIDE_FORWARD: Text("outside the forward pass"),
}
"""Family → its label; the last two are idle times of the device, which belong to no kernel."""

_LONGEST = 1000
"""Characters of a name that are searched: a damaged name can have millions."""

_OPERATION = r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
_VARIANT = (
    r"(?:[_-]?(?:kernels?|fusion|fused|(?:one|two|1|2)_?(?:shot|stage)|ring|tree|nvls|lamport|multimem|mnnvl|prototype|push"
    r"|pull|sync|async|ll\d*|simple|intra_?node|inter_?node|low_?latency|single|base|into_tensor|residual|rms_?norm"
    r"|bf16|fp16|half|float\d*|v(?:dev\w*)?|\d+))*(?=$|[^a-z0-9_])"
)
"""What may follow the operation in the name of a collective; ``all_reduce_sum_dim`` reduces over dimensions."""

COLLECTIVES: Mapping[str, str] = {
    # ncclDevKernel_AllReduce_…, ncclKernel_…, ncclSymkDevKernel_… : NCCL src/device/common.h, RCCL the same names
    "NCCL, RCCL": r"\w*(?:nccl|rccl)\w*",
    # hcom_allReduce__586_0_1: torch_npu's trace_view.json and communication.json
    "HCCL": r"(?:hcom_|hccl)\w*|Hccl\w*",
    # MoeDistributeDispatchV2, MoeDistributeCombineV2 and …AddRmsNorm: CANN ops-transformer mc2/
    "CANN MC2": r"\w*MoeDistribute(?:Dispatch|Combine)\w*",
    # cross_device_reduce_1stage: vLLM csrc/custom_all_reduce.cuh, SGLang sgl-kernel/csrc/allreduce, aiter
    # allreduce_prototype_twoshot: vLLM csrc/quickreduce; reduce_scatter_cross_device_store: aiter custom_all_reduce.cuh
    "vLLM, SGLang, aiter": r"\w*cross_device_\w*|\w*allreduce_prototype\w*",
    # multimem_all_reduce_kernel, two_shot_all_reduce_kernel_inplace, multimem_one_shot_…: torch
    # torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu; nvshmem_extension.cu: allToAllV
    "torch symmetric memory": r"(?:multimem_|(?:one|two)_shot_|stream_write_value|allToAllV)\w*",
    # allreduce_fusion_kernel_oneshot_lamport, moereduce_allreduce_fusion_kernel_…, oneshotAllreduceFusionKernel,
    # twoshotAllreduceKernel, rmsNormLamport, moeA2ADispatchKernel, moeAllToAllKernel: flashinfer
    # include/flashinfer/comm/trtllm_*allreduce*.cuh, trtllm_alltoall.cuh; TensorRT-LLM communicationKernels
    "flashinfer, TensorRT-LLM": (
        r"\w*allreduce_fusion\w*|(?:one|two)_?shot_?all_?reduce\w*|\w*lamport\w*|moeA2A(?:Dispatch|Combine)\w*"
        r"|moe_?all_?to_?all\w*|lowPrecision(?:One|Two)ShotAllReduce\w*"
    ),
    # EpDispatchIntraNodeKernel_bf16, EpCombineInterNodeV1Kernel…: ROCm/mori src/ops/dispatch_combine
    "MORI": r"Ep(?:Dispatch|Combine)\w*",
    # a2a_dispatch_send_kernel: pplx-garden p2p-all-to-all/a2a-kernels; dispatchKernel: pplx-kernels csrc/all_to_all
    "pplx": r"a2a_(?:dispatch|combine)_\w*|(?:dispatch|combine)Kernel",
    # userbuffers_fp16_sum_inplace_gpu_rr: TransformerEngine common/comm_gemm_overlap/userbuffers
    "TransformerEngine": r"k?userbuffers_\w*",
    "NVSHMEM, ROCSHMEM": r"\w*(?:nvshmem|rocshmem)\w*",
    # allreduce7, allgather5: microsoft/mscclpp apps/nccl/src and test/mscclpp-test
    "MSCCL++": r"\w*mscclpp\w*",
    "others, by the operation": rf"(?:\w*[^a-z0-9])?_*{_OPERATION}{_VARIANT}",
}
"""Library → what the name of its kernels that communicate is; the function's own name has to match it whole."""

EXPERT_LIBRARIES = r"deep_?ep|dpsk::ep|uccl|nixl_ep|hybrid_ep|mori|pplx|mscclpp(?:::ep)?|grpcoll"
"""Namespaces of DeepEP (csrc/kernels/{intranode,internode,internode_ll}.cu, elastic/) and of what follows its names:
UCCL (ep/src), NIXL EP (examples/device/ep/csrc/kernels), HybridEP (DeepEP csrc/hybrid_ep/backend), MSCCL++, pplx."""

# DeepEP's kernels without their namespace, as a JIT compiles them: csrc/kernels/elastic/dispatch.hpp, hybrid_ep/jit.
_EXPERT_NODES = r"(?:intra_?node|inter_?node|inter_?node_ll|low_?latency|elastic)::"
_EXPERT_KERNEL = (
    r"(?:hybrid_)?(?:dispatch|combine)(?:_(?:kernel|impl|jit_\w+|send|recv)\w*)?|(?:cached_)?notify\w*|barrier\w*"
    r"|device_sync_kernel|clean_low_latency_buffer|pp_(?:send|recv)\w*|all_?gather\w*"
)
_EXPERT = re.compile(rf"(?:^|[^a-z_])(?:(?:{EXPERT_LIBRARIES})::(?:\w+::)*|{_EXPERT_NODES})(?:{_EXPERT_KERNEL})$", re.I)
_EXPERT_BARE = re.compile(r"(?:hybrid_)?(?:dispatch|combine)_impl|(?:cached_)?notify_(?:dispatch|combine)", re.I)
_EXPERT_MANGLED = re.compile(
    r"(?:deep_ep|dpsk2ep|nixl_ep|hybrid_ep|4uccl)\w*?\d(?:dispatch|combine|(?:cached_)?notify\w*|barrier)(?:I|E|_kernel)"
)
_COLLECTIVE = re.compile("|".join(f"(?:{pattern})" for pattern in COLLECTIVES.values()), re.I)
_NEVER = re.compile(r"at::native|^triton_|cutlass::|cub::|thrust::")
"""Parts of names of kernels that never communicate: torch's own, those of its compiler, and of algorithm libraries."""

_BY_NAME: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        SAMPLING,
        re.compile(
            r"sampl|multinomial|gumbel|penalt|min_?p_|top_?p(?![a-z])|top_?k_?top_?p|(?<!with)arg_?max|logits_?process|"
            r"speculative|rejection|softmax_?temp",
            re.I,
        ),
    ),
    (
        MOE,
        re.compile(
            r"moe(?![a-z]*ntum)|expert|group(?:ed)?_?(?:gemm|mat_?mul|topk)|m_grouped|matmul_ogs|topk_?(?:softmax|gating|sigmoid)"
            r"|gating_?topk|routing|(?<![a-z])permute_?(?:kernel|tokens)|moe_?sum"
            r"|bmm_.*dynBatch|ptpc_group|swiglu_?and_?group|get_dispatch_layout|expand_?to_?fused|scatter_bf16$|deep_?ep|dpsk::ep",
            re.I,
        ),
    ),
    (
        ATTENTION,
        re.compile(
            r"fmha|flash_?attn|flash_?attention|flash_?fwd|flash_?bwd|flash::|flash_mla|(?<![a-z])mla(?![a-z])|mha_|attention|attn"
            r"|attn_|paged_?(?:kv|att)|BatchDecode|BatchPrefill|splitkv|sdpa|reshape_and_cache|kv_?cache|InferAttention"
            r"|indexer|radix_?attention|flash|sage_?(?:fwd|bwd|attn)|dot_do_o|convert_dq",
            re.I,
        ),
    ),
    (
        GEMM,
        re.compile(
            r"gemm|gemv|mat_?mul|nvjet|Cijk_|xmma|wgmma|(?<![a-z])[bs]?mm(?![a-z])|addmm|splitk|cublas|marlin|machete|conv(?:\d|_|[A-Z]|olve|olution)"
            r"|(?<![a-z])conv(?![a-z])|igemm|[dw]grad|fprop|im2d?2?col|scaled_mm|cutlass.*(?:Gemm|Universal)|w8a8|linear_kernel|wvSplitK|batched_dot"
            r"|[his]\d*cudnn_",  # volta_scudnn_128x128_relu_small_nn_v1: a convolution, with the ReLU fused into it
            re.I,
        ),
    ),
    (OTHER, re.compile(r"radix_?sort|onesweep|merge_?sort|bitonic|(?<![a-z])sort(?:_?kernel\w*)?$", re.I)),
    (
        ELEMENTWISE,
        re.compile(
            r"elementwise|norm|reduce|softmax|silu|gelu|swiglu|glu(?![a-z])|act_and|relu|rotary|rope|cast|convert|quant|amax(?![a-z])|copy|fill"
            r"|cat(?:_|array|batch)|transpose|embedding|ind(?:ex|ices)|gather|clamp|To(?:Nhwc|Nchw)|GammaBeta|RowwiseMoments|FusedParams|InternalGradients|scatter|triton_(?:poi|per|red)|dropout|adam|foreach|multi_tensor"
            r"|(?<![a-z])bn_|arange|where|sort|scan|nonzero|memset|pad(?![a-z])|pool|cumsum|topk|distribution"
            r"|grad_weight|partial\w*_segment|memcpy|interleave|concat|split|slice|loss|nll|sqrt|sigmoid|tanh|(?:functor)|sum(?![a-z])"
            r"|^(?:\w+::)*(?:Foreach)?(?:Add|Sub|Mul|Div|RealDiv|Exp|Neg|Pow|Log|Abs|Less|Greater|Equal|Select|Sin|Cos|Tile|Range"
            r"|ZerosLike|OnesLike|Trans|Swish|TensorMove|Masked|Broadcast|StridedSlice|Identity|Clip|Square|Minimum|Maximum"
            r"|Logical|DropOut|Bitwise|Ones|Zeros|Stateless|Apply|Not|Floor|Mod)\w*$",
            re.I,
        ),
    ),
)
"""Family → what the name of a kernel of it contains; the first that matches counts."""

_QUANTIZES = re.compile(
    r"(?!.*(?:norm|act_|silu|gelu|glu|rope|softmax)).*(?:(?<!broad)cast|quant|amax(?![a-z]))",
    re.I,
)
"""Name of an elementwise kernel that does nothing but cast, or find and apply the scales of a smaller data type."""

_ARGMAX = re.compile(r"ArgM(?:ax|in)Ops")
_FLASHINFER = re.compile(r"flashinfer::(?:norm|sampling|activation|quantization|pos_enc|page|trtllm)?(?:::)?", re.I)


_TEMPLATE, _COMPARED = re.compile(r"<[^<>]*>"), re.compile(r"\)[<>]=?\(")


def function_of(name: str) -> str:
    """Return the name of a kernel's function: without return type, template arguments and parameters.

    ``void a::f<(b::c)1, d>(e)`` gives ``a::f``; a name that is not C++ stays as it is. At most 1000 characters are
    read.
    """
    text, shorter = "", name[:_LONGEST].replace("(anonymous namespace)::", "").replace("->", "")
    shorter = _COMPARED.sub(")(", shorter)  # a condition on values, as of std::enable_if: (8)>(0)
    while text != shorter:
        text, shorter = shorter, _TEMPLATE.sub("", shorter)
    return re.split(r"[<(]", text, maxsplit=1)[0].strip().rpartition(" ")[2] or name[:_LONGEST]


_FUNCTOR = re.compile(r"\w*(?:[fF]unctor\w*|Ops|_kernel_cuda|_kernel_impl|CUDAKernelImpl|FlashAttn\w+)\b")
_GENERIC = re.compile(r"[AB]?(?:Unary|Binary)Functor|gpu_(?:index_)?kernel\w*")
"""Functors around the one that tells kernels apart: taken only where no other is there."""

_QUALIFIERS = re.compile(r"(?:\w+::)+(?=\w+::)|(?:native|c10|std|detail|binary_internal|cutlass|flash|cute)::")
_CPP = re.compile(r"void |[\w:]+<.*>|(?:\w+::)+\w+\(|\w+\(.*\)$")
"""Names of functions of C++; a range of Python, as ``enumerate(DataLoader)#…``, is none."""

_ROOM = 36


def kernel_label(name: str) -> str:
    """Return a short label for a kernel: the last two parts of its C++ name (``a::b``), and its template arguments.

    Long template arguments are replaced by a functor among them, or cut: ``void at::native::elementwise_kernel<4,
    at::native::CUDAFunctor_add<float>, …>(…)`` gives ``elementwise_kernel<CUDAFunctor_add>``. ``native::`` and
    parameters are left out. A name that is not C++ stays as it is.
    """
    text = name[:_LONGEST].replace("(anonymous namespace)::", "")
    function = function_of(text)
    if not _CPP.match(text) or function == text or not function:
        return name
    label = "::".join(function.split("::")[-2:]).removeprefix("native::")
    template = text[text.index(function) + len(function) :]
    if not template.startswith("<"):
        return label if template.startswith("(") else name
    depth = 0
    for at, character in enumerate(template):
        depth += (character == "<") - (character == ">" and template[at - 1] != "-")
        if not depth:
            template = template[: at + 1]
            break
    plain = _QUALIFIERS.sub("", template)
    if len(plain) <= _ROOM:
        return f"{label}{plain}"
    functors = _FUNCTOR.findall(plain)
    telling = [functor for functor in functors if not _GENERIC.fullmatch(functor)] or functors
    return f"{label}<{telling[0]}>" if telling else f"{label}{plain[:_ROOM]}…>"


@functools.lru_cache(maxsize=1 << 16)  # names are long, few, and met millions of times
def is_collective(name: str) -> bool:
    """Tell by its name whether a kernel communicates with other devices, as those of libraries for collectives do."""
    function = function_of(name)
    if _EXPERT.search(function) or _EXPERT_MANGLED.search(function) or _EXPERT_BARE.fullmatch(function):
        return True
    return not _NEVER.search(function) and _COLLECTIVE.fullmatch(function.rpartition("::")[2]) is not None


@functools.lru_cache(maxsize=1 << 16)
def family_of(name: str, kind: str) -> str:
    """Return the family of a kernel, a key of `FAMILIES`, by its kind if it communicates or copies, else by name.

    It is `OTHER` if the name fits no family.
    """
    if kind == "communication":
        return COLLECTIVE
    if kind == "copy" or "copy_kernel_cuda" in name:
        return COPIES
    text = _FLASHINFER.sub("", name[:_LONGEST])
    if _ARGMAX.search(text):
        return SAMPLING
    function = function_of(text)
    # Template arguments decide only where function and namespaces tell nothing, as in cutlass::device_kernel.
    for searched in (function.rpartition("::")[2], function, text):
        for family, pattern in _BY_NAME:
            if pattern.search(searched):
                return family
    return OTHER


def is_quantization(name: str) -> bool:
    """Tell by its name whether an elementwise kernel only casts, scales or quantizes."""
    return _QUANTIZES.match(function_of(name)) is not None
