"""Offload: the parts of the state that leave the GPU, and the time that their transfer takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.peak import predict_memory
from simulator.memory.state import list_offloaded
from simulator.models import find_model
from simulator.parameters import count_parameters
from simulator.step.offload import offload_s
from simulator.step.prediction import predict

H100 = System(name="h100", gpu=load_gpu("h100"), gpus_per_node=8, nodes=2, intra_gb_s=450, inter_gb_s=400)
LLAMA = find_model("llama-8b").model
EIGHT = Layout(dp=8, micro_batch=1, global_batch=8, zero=3, recompute="full", offload=True)


@pytest.mark.parametrize(
    ("zero", "names"),
    [
        (0, ["optimizer"]),
        (1, ["optimizer"]),
        (2, ["optimizer", "gradients"]),
        (3, ["optimizer", "gradients", "weights"]),
    ],
)
def test_parts_split_by_zero_are_offloaded(zero: int, names: list[str]) -> None:
    layout = replace(EIGHT, zero=zero)
    assert list_offloaded(layout) == names
    assert list_offloaded(replace(layout, offload=False)) == []
    held = predict_memory(LLAMA, layout, H100).parts
    assert [name for name in ("optimizer", "gradients", "weights") if held[name] == 0] == names


def test_no_offload_costs_no_time() -> None:
    assert offload_s(LLAMA, replace(EIGHT, offload=False), H100) == 0


def test_every_micro_batch_fetches_the_weights_again() -> None:
    one_pass, two_passes = (offload_s(LLAMA, replace(EIGHT, global_batch=8 * count), H100) for count in (1, 2))
    share = count_parameters(LLAMA).total / 8
    assert two_passes - one_pass == pytest.approx(2 * 4 * share / (H100.host_gb_s * 1e9))


def test_offload_is_faster_with_faster_host_links_or_more_ranks() -> None:
    before = offload_s(LLAMA, EIGHT, H100)
    assert offload_s(LLAMA, EIGHT, replace(H100, host_gb_s=50.0)) < before
    assert offload_s(LLAMA, replace(EIGHT, dp=16, global_batch=16), H100) < before


def test_step_with_offload_is_slower_and_lists_the_offload_part() -> None:
    on_gpu, offloaded = (predict(LLAMA, replace(EIGHT, offload=offload), H100) for offload in (False, True))
    assert offloaded.step_s > on_gpu.step_s
    assert offloaded.parts["offload"] == offload_s(LLAMA, EIGHT, H100)
    assert offloaded.parts["optimizer"] == 0
    assert "offload" not in on_gpu.parts
    assert offloaded.memory.total < on_gpu.memory.total


def test_offload_fits_llama_8b_on_one_gpu() -> None:
    alone = Layout(micro_batch=1, global_batch=1, zero=3, recompute="full")
    assert not predict(LLAMA, alone, H100).fits
    assert predict(LLAMA, replace(alone, offload=True), H100).fits
