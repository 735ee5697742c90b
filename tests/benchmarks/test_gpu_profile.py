"""What a profile of a step says: its kinds of kernels, the idle time and the largest kernels."""

from __future__ import annotations

import pytest

from benchmarks.gpu_profile import Profile, classify, measure_busy


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matmul"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)", "attention"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", "convolution"),
        ("triton_poi_fused__native_batch_norm_legit_functional_convolution_backward_relu_11", "other"),
        ("_differentiate_row", "other"),
        ("Memset (Device)", "other"),
    ],
)
def test_kernels_are_recognised_by_their_names(name: str, kind: str) -> None:
    assert classify(name) == kind


def test_overlapping_kernels_are_counted_once() -> None:
    assert measure_busy([(10.0, 20.0), (15.0, 18.0), (19.0, 25.0), (30.0, 31.0)]) == (21.0, 16.0)


def test_a_profile_names_the_largest_kernels_and_the_rest() -> None:
    profile = Profile(step_ms=10.0, idle_ms=0.5, kernels={"nvjet_large": 6.0, "triton_poi_small": 3.5})
    assert profile.other_share == pytest.approx(0.4)
    lines = profile.describe(count=1).splitlines()
    assert lines[0].split() == ["6.00", "ms", "matmul", "nvjet_large"]
    assert "40.0% of 10.0 ms; idle: 0.50 ms" in lines[1]
    assert "triton_poi_small" not in profile.describe(count=1)
