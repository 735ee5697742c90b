"""Properties of memory: more samples never need less; more ranks and recompute never need more."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.nearest import list_layout_changes
from simulator.memory.peak import predict_memory
from simulator.model import Transformer

H100 = System(name="h100", gpu=load_gpu("h100"), gpus_per_node=8, nodes=128, intra_gb_s=450, inter_gb_s=400)
SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def models(draw: st.DrawFn) -> Transformer:
    heads = draw(st.sampled_from([8, 16, 32, 64]))
    return Transformer(
        layers=draw(st.sampled_from([16, 32, 64])),
        hidden=heads * 128,
        heads=heads,
        kv_heads=8,
        ffn=heads * 128 * draw(st.integers(2, 5)),
        gated=draw(st.booleans()),
        vocab=draw(st.sampled_from([32000, 128256])),
        seq=draw(st.sampled_from([1024, 4096, 16384])),
        tied=draw(st.booleans()),
        flash=draw(st.booleans()),
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dp, micro = draw(SIZES) * 2, draw(SIZES)
    tp, pp = draw(SIZES), draw(st.sampled_from([1, 2, 4]))
    return Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        micro_batch=micro,
        global_batch=dp * micro * draw(st.sampled_from([1, 4, 16])),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        sequence_parallel=draw(st.booleans()) and tp > 1,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        dtype=draw(st.sampled_from(["fp32", "bf16", "fp8"])),
        framework=draw(st.sampled_from(["torch", "megatron", "deepspeed"])),
        compiled=draw(st.booleans()),
        trainer=draw(st.sampled_from(["", "torchtitan", "kempnerforge", "unknown"])),
        loss=draw(st.sampled_from(["plain", "compiled", "fused", "in_head"])),
        chunk_tokens=draw(st.sampled_from([0, 1024, 4096])),
        memory_figure=draw(st.sampled_from(["", "reserved", "device"])),
    )


def total(model: Transformer, layout: Layout) -> float:
    return predict_memory(model, layout, H100).total * (1 + 1e-9)


@given(models(), layouts())
def test_larger_micro_batch_needs_more_memory(model: Transformer, layout: Layout) -> None:
    more = replace(layout, micro_batch=2 * layout.micro_batch, global_batch=2 * layout.global_batch)
    assert total(model, layout) < total(model, more)


@given(models(), layouts())
def test_more_data_ranks_never_need_more_memory(model: Transformer, layout: Layout) -> None:
    more = replace(layout, dp=2 * layout.dp, global_batch=2 * layout.global_batch)
    assert predict_memory(model, more, H100).total <= total(model, layout)


@given(models(), layouts())
def test_more_tensor_ranks_never_need_more_memory(model: Transformer, layout: Layout) -> None:
    if layout.tp > 1 and 2 * layout.tp <= model.heads:
        assert predict_memory(model, replace(layout, tp=2 * layout.tp), H100).total <= total(model, layout)


@given(models(), layouts())
def test_full_recompute_needs_the_least_memory(model: Transformer, layout: Layout) -> None:
    least = predict_memory(model, replace(layout, recompute="full"), H100).total
    assert least <= total(model, replace(layout, recompute="selective"))
    assert least <= total(model, replace(layout, recompute="none"))


@given(models(), layouts())
def test_higher_zero_stage_never_holds_more_state(model: Transformer, layout: Layout) -> None:
    """Gathered weights are excluded: with few large layers they take as much as the last stage saves."""
    parts = [predict_memory(model, replace(layout, zero=zero), H100).parts for zero in (0, 1, 2, 3)]
    state = [sum(part[name] for name in ("weights", "gradients", "optimizer")) for part in parts]
    if layout.pp > 1 and layout.framework == "torch":
        state.pop()
    assert state == sorted(state, reverse=True)


@given(models(), layouts())
def test_offload_never_needs_more_device_memory(model: Transformer, layout: Layout) -> None:
    assert predict_memory(model, replace(layout, offload=True), H100).total <= total(model, layout)


@given(models(), layouts())
def test_peak_lies_between_the_largest_part_and_the_sum(model: Transformer, layout: Layout) -> None:
    memory = predict_memory(model, layout, H100)
    assert max(memory.parts.values()) <= memory.total * (1 + 1e-9)
    assert memory.total <= sum(memory.parts.values()) * (1 + 1e-9)
    assert min(memory.parts.values()) >= 0
    assert memory.on_device > memory.total


@given(models(), layouts())
def test_suggested_changes_are_valid_and_name_a_changed_gpu_count(model: Transformer, layout: Layout) -> None:
    for change, changed in list_layout_changes(model, layout):
        assert changed.micro_batches >= 1
        assert changed.global_batch % (changed.micro_batch * changed.dp) == 0
        assert changed.gpus == layout.gpus or f"{changed.gpus} GPUs" in change
