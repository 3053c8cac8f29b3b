"""The families of kernels by names as the libraries' own kernels have them in traces."""

from __future__ import annotations

import pytest

from patcher.traces.families import (
    COLLECTIVES,
    FAMILIES,
    family_of,
    function_of,
    is_collective,
    is_quantization,
    kernel_label,
)

COMMUNICATE = """\
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)
ncclSymkDevKernel_AllReduce_LL
void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)
void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)
quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::Pattern)1, 8>(flashinfer::Params)
void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16, true>(flashinfer::Params)
void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(tensorrt_llm::kernels::AllReduceParams)
void flashinfer::moe_alltoall::moeA2ADispatchKernel<8>(int const*)
void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)
void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)
void deep_ep::intranode::dispatch<8, 768>(int4*, float*)
void deep_ep::internode_ll::combine<true, 7168, 8>(void*)
deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)
void deep_ep::intranode::barrier<8>(int**, int)
void deep_ep::elastic::hybrid_dispatch_impl<true, 1>(x)
void dpsk::ep::internode::cached_notify<false>(int, int)
_ZN7deep_ep12internode_ll8dispatchILb1ELb0ELi7168EEEvPv
void uccl::internode_ll::dispatch<true, 7168>(void*)
void nixl_ep::ep_kernels::dispatch<true, false, 7168>(void*)
void hybrid_ep::dispatch_kernel<unsigned char, 1>(hybrid_ep::dispatch_kernel_param_t)
void mscclpp::ep::intranode::dispatch<8>(int4*)
EpDispatchIntraNodeKernel_bf16
void mori::moe::EpCombineIntraNodeKernel<hip_bfloat16, true>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)
void pplx::(anonymous namespace)::dispatchKernel<4, true>(x)
a2a_combine_recv_kernel
hcom_allReduce_
MoeDistributeDispatchV2
userbuffers_fp16_sum_inplace_gpu_rr
nvshmemi_barrier_all_kernel
all_reduce_kernel
allreduce7
all_to_all_vdev_2d""".splitlines()

COMPUTE = """\
all_reduce_sum_dim
all_reduce_sum_dim_kernel<float>(float*)
all_reduce_softmax_dim
all_gather_indices
all_to_all_heads_transpose
reduce_all_dims
triton_poi_fused_add_all_reduce_4
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, at::native::func_wrapper_t<bool> > >(x)
void at::native::all_reduce_mean_rows<float>(float*)
void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)
deep_ep::elastic::dispatch_copy_epilogue_impl<1>(x)
flash_fwd_splitkv_combine_kernel
void vllm::dispatch_scaled_mm<x>(y)
void cub::DispatchReduce<x>(y)
moe_dispatch_indices
MatmulAllReduce""".splitlines()


@pytest.mark.parametrize("name", COMMUNICATE)
def test_kernels_of_libraries_that_communicate(name: str) -> None:
    assert is_collective(name)
    assert family_of(name, "communication") == "collective"


@pytest.mark.parametrize("name", COMPUTE)
def test_kernels_that_only_sound_like_it(name: str) -> None:
    assert not is_collective(name)


OF_FAMILY = {
    "gemm": [
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs", "MatMulV3",
        "ampere_sgemm_128x128_tn", "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(Params)",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32", "Conv2DBackpropFilter", "volta_scudnn_128x128_relu_small_nn_v1",
        "turing_h1688cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "volta_fp16_s884cudnn_fp16_128x128_relu_interior_nn_v1",
    ],
    "attention": [
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "attn_fwd",
        "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>(Params)",
        "kernel_unified_attention_3d", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(x)", "FlashAttentionScoreGrad",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(x)", "void cudnn::fusion::convert_dq_to_16bits<true>(x)", "sage_fwd",
    ],
    "moe": [
        "fused_moe_kernel", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "GroupedMatmul",
        "void moe::dev::routing::routingIndicesHistogramKernel<x>(y)", "void vllm::moe::topkGatingSoftmax<x>(y)",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_swiGlu_dynBatch_sm100f",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(Params)",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(x)",
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<x>(y)",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(x)", "RmsNormGrad", "ForeachAddList", "Add",
        "void fbgemm_gpu::permute_indices_weights_kernel<false, int>(int)", "MaxPoolWithArgmaxV1", "triton_poi_fused__to_copy_1",
        "void cunn_SoftMaxForward<4, float>(x)", "memcpy32_post", "void transformer_engine::detail::amax_kernel<8, true, __nv_bfloat16>(x)",
        "void transformer_engine::detail::compute_scale_from_amax_kernel<float>(x)",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(x)",
        "void at::native::(anonymous namespace)::krn_partials_per_segment<long>(x)",
    ],
    "sampling": [
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<x>(y)", "_gumbel_sample_kernel",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int> >(x)",
    ],
    "copy": ["void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(x)"],
    "other": [
        "void rocprim::detail::onesweep_iteration<rocprim::wrapped_radix_sort_onesweep_config, true>(x)", "Sort",
        "void at::native::radixSortKVInPlace<-2, -1, 32, 4, float, long, unsigned int>(x)", "DSAGenBitMask", "resolve_future_token_ids_kernel", "",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in OF_FAMILY.items() for name in names])
def test_the_family_of_what_computes(family: str, name: str) -> None:
    assert family_of(name, "compute") == family


def test_every_family_has_a_label_and_every_library_a_pattern() -> None:
    assert {*OF_FAMILY, "collective", "host-bound", "outside-forward"} == set(FAMILIES)
    assert all(COLLECTIVES.values())
    assert family_of("Memcpy DtoD (Device -> Device)", "copy") == "copy"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void a::f<(b::c)1, d<e> >(g<h>)", "a::f"), ("f", "f"), ("", ""), ("(anonymous namespace)::", "(anonymous namespace)::"),
        ("x" * 10**6, "x" * 1000), ("<" * 5000, "<" * 1000),
    ],
)  # fmt: skip
def test_the_function_of_a_kernel(name: str, function: str) -> None:
    assert function_of(name) == function


NATIVE = "at::native::"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (
            f"void {NATIVE}vectorized_elementwise_kernel<4, {NATIVE}CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)",
            "vectorized_elementwise_kernel<CUDAFunctor_add>",
        ),
        (
            f"void {NATIVE}elementwise_kernel<128, 2, {NATIVE}gpu_kernel_impl<{NATIVE}BinaryFunctor<{NATIVE}MulFunctor<f> > > >(x)",
            "elementwise_kernel<MulFunctor>",
        ),
        ("void deep_ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "internode::dispatch<false, 8, true, 8>"),
        (
            "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(Params)",
            "cutlass::device_kernel<fp8_ptp128c::GemmKernel>",
        ),
        ("ncclDevKernel_AllReduce_Sum_i8_RING_LL(ncclArgs<4ul>)", "ncclDevKernel_AllReduce_Sum_i8_RING_LL"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"), ("MatMulV3", "MatMulV3"), ("", ""),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", "_ZN5aiter24add_rmsnorm_quant_kernelIDF16b"),
    ],
)  # fmt: skip
def test_a_kernel_keeps_what_tells_it_apart(name: str, label: str) -> None:
    assert kernel_label(name) == label


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("void transformer_engine::detail::amax_kernel<8, true, __nv_bfloat16>(x)", True),
        ("void transformer_engine::detail::compute_scale_from_amax_kernel<float>(x)", True),
        ("void transformer_engine::detail::cast_transpose_fused_kernel<float>(x)", True),
        ("void vllm::scaled_fp8_quant_kernel<float>(x)", True), ("Cast", True), ("BroadcastTo", False),
        ("void vllm::act_and_mul_quant_kernel<x>(y)", False), ("silu_mul_fp8_quant", False), ("gelu_cast_kernel", False),
        ("DequantSwigluQuant", False), ("fused_rope_quant_kernel", False), ("scaled_softmax_cast_kernel", False),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", False), ("void vllm::moe_align_quant<x>(y)", False),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(x)", False),
    ],
)  # fmt: skip
def test_kernels_that_only_cast_scale_or_quantize(name: str, is_one: bool) -> None:
    assert (is_quantization(name) and family_of(name, "compute") == "elementwise") == is_one
