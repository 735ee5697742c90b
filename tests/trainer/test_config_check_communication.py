"""Settings of compression, communication patterns and inner steps that conflict with others are rejected."""

from __future__ import annotations

import pytest

from tests.trainer.rejected_settings import assert_rejected

CONFLICTS = [
    (
        "tiny-mlp",
        ["communication.compression=topk"],
        "communication.compression: topk, but the strategy is auto, which may choose one that averages no whole",
    ),
    (
        "tiny-llama",
        ["communication.compression=int8", "parallel.strategy=fsdp"],
        "communication.compression: int8, but the strategy is fsdp, whose ranks hold no copies of the model between",
    ),
    (
        "tiny-llama",
        ["communication.compression=bf16", "parallel.strategy=single"],
        "communication.compression: bf16, but the strategy is single, which averages no gradients; set parallel.strat",
    ),
    (
        "tiny-llama",
        ["communication.compression=powersgd", "parallel.strategy=hsdp"],
        "communication.compression: powersgd, but ranks of hsdp hold parts of matrices; use topk, randomk, bf16, fp8",
    ),
    (
        "tiny-llama",
        ["communication.compression=topk", "parallel.strategy=ddp", "parallel.pipeline=2"],
        "communication.compression: topk, but parallel.pipeline=2 averages gradients in another way; set parallel.pip",
    ),
    (
        "tiny-llama",
        ["communication.compression=topk", "parallel.strategy=ddp", "parallel.reduce=bf16"],
        "communication.compression: topk, but parallel.reduce=bf16 rounds the same gradients; set parallel.reduce to",
    ),
    *(
        (
            "tiny-llama",
            [f"communication.compression={method}", "parallel.strategy=ddp", "precision=fp16"],
            f"communication.compression: {method}, but precision=fp16 changes the loss scale, which the residual "
            "does not follow; set precision to bf16 or fp32, or use bf16, fp8 or int8 here",
        )
        for method in ("topk", "randomk", "powersgd")
    ),
    (
        "tiny-llama",
        ["communication.compression=topk", "parallel.strategy=ddp", "parallel.accumulate=sync"],
        "communication.compression: topk, but parallel.accumulate=sync would compress every micro-batch; set parallel",
    ),
    (
        "tiny-llama",
        ["communication.compression=topk", "parallel.strategy=ddp", "communication.warmup_steps=50", "steps=50"],
        "communication.warmup_steps: 50, but the run has 50 steps, so none would be compressed; use less than 50",
    ),
    (
        "tiny-llama",
        ["communication.compression=topk", "parallel.strategy=ddp", "communication.rank=8"],
        "communication.rank: 8 has no effect, because communication.compression is topk; leave it out, or set",
    ),
    (
        "tiny-llama",
        ["communication.smoothing=0.5", "communication.compression=randomk", "parallel.strategy=ddp"],
        "communication.smoothing: 0.5 has no effect, because communication.compression is randomk; leave it out, or",
    ),
    (
        "tiny-llama",
        ["communication.ratio=0.1"],
        "communication.ratio: 0.1 has no effect, because communication.compression is none; leave it out, or set",
    ),
    (
        "tiny-llama",
        ["communication.warmup_steps=5"],
        "communication.warmup_steps: 5 has no effect, because communication.compression is none; leave it out, or",
    ),
    (
        "tiny-mlp",
        ["communication.pattern=ring", "parallel.strategy=fsdp"],
        "communication.pattern: ring, but the strategy is fsdp; only ddp can use it; set parallel.strategy to ddp, or ",
    ),
    (
        "tiny-mlp",
        ["communication.pattern=auto", "parallel.strategy=auto"],
        "communication.pattern: auto, but the strategy is auto; only ddp can use it; set parallel.strategy to ddp, or ",
    ),
    (
        "tiny-mlp",
        ["communication.pattern=tree", "parallel.strategy=ddp", "parallel.reduce=bf16"],
        "communication.pattern: tree, but parallel.reduce=bf16 uses the backend's sums; set parallel.reduce to fp32, o",
    ),
    (
        "tiny-llama",
        [
            "communication.pattern=ring",
            "parallel.strategy=ddp",
            "precision=bf16",
            "optimizer.weights=bf16",
            "optimizer.gradients=bf16",
        ],
        "communication.pattern: ring, but optimizer.gradients=bf16 is averaged with the backend's fp32 sums; set ",
    ),
    (
        "tiny-mlp",
        ["communication.pattern=tree", "parallel.strategy=ddp", "communication.compression=int8"],
        "communication.pattern: tree, but communication.compression=int8 sends gradients in its own way; set communica",
    ),
    (
        "tiny-llama",
        ["communication.inner_steps=4"],
        "communication.inner_steps: 4, but the strategy is auto, which may choose one without copies of the model; ",
    ),
    (
        "tiny-llama",
        ["communication.inner_steps=4", "parallel.strategy=fsdp"],
        "communication.inner_steps: 4, but the strategy is fsdp, whose ranks share a single copy of the model; set ",
    ),
    (
        "tiny-llama",
        ["communication.inner_steps=4", "parallel.strategy=single"],
        "communication.inner_steps: 4, but the strategy is single, which has a single copy of the model; set paral",
    ),
    *(
        (
            "tiny-llama",
            ["communication.inner_steps=4", "parallel.strategy=ddp", *options],
            f"communication.inner_steps: 4, but {message}",
        )
        for options, message in (
            (["parallel.tensor=2"], "parallel.tensor=2 needs its ranks in every step; set parallel.tensor to 1, or "),
            (["parallel.context=2"], "parallel.context=2 needs its ranks in every step; set parallel.context to 1, o"),
            (["parallel.pipeline=2"], "parallel.pipeline=2 needs its ranks in every step; set parallel.pipeline to 1"),
            (["communication.compression=int8"], "communication.compression=int8 compresses gradients, which are not "),
            (["communication.pattern=ring"], "communication.pattern=ring averages gradients, which are not sent; set"),
            (["precision=bf16", "optimizer.weights=bf16", "optimizer.gradients=bf16"], "optimizer.weights=bf16 would"),
            (["precision=bf16", "fp8.scaling=delayed"], "fp8.scaling=delayed has one history of scales for all copies"),
            (["health.replay_every=10"], "health.replay_every=10 compares copies, which differ; set health.replay_ev"),
            (["parallel.static_graph=true"], "parallel.static_graph=true has no effect on gradients that are not se"),
            (["optimizer.name=muon"], "optimizer.name=muon divides its work between copies with the same gradients; s"),
            (["steps=3"], "the run has 3 steps, so the copies would meet only at its end; use at most 3"),
        )
    ),
    (
        "tiny-llama",
        ["communication.inner_steps=4", "parallel.strategy=hsdp", "parallel.offload=true"],
        "communication.inner_steps: 4, but parallel.offload=true has no weights on the device to average; set parall",
    ),
    (
        "tiny-moe",
        ["communication.inner_steps=4", "parallel.strategy=ddp", "parallel.expert=2"],
        "communication.inner_steps: 4, but parallel.expert=2 needs its ranks in every step; set parallel.expert to 1",
    ),
    (
        "tiny-llama",
        ["communication.inner_steps=20", "parallel.strategy=ddp", "evaluation.share=0.1", "evaluation.every=50"],
        "evaluation.every: 50 is not a multiple of communication.inner_steps 20, and in between, the copies differ; "
        "use 40 or 60",
    ),
    (
        "tiny-llama",
        ["communication.outer_lr=0.5"],
        "communication.outer_lr: 0.5 has no effect, because communication.inner_steps is 0; leave it out, or set commu",
    ),
    (
        "tiny-llama",
        ["communication.outer_momentum=0.5"],
        "communication.outer_momentum: 0.5 has no effect, because communication.inner_steps is 0; leave it out, or set",
    ),
    (
        "tiny-llama",
        ["communication.pattern=ring", "parallel.strategy=ddp", "parallel.pipeline=2"],
        "communication.pattern: ring, but parallel.pipeline=2 averages gradients in another way; set parallel.pipeline",
    ),
]


@pytest.mark.parametrize(("preset", "overrides", "message"), CONFLICTS, ids=[" ".join(case[1]) for case in CONFLICTS])
def test_conflicting_settings_of_communication_are_rejected(preset: str, overrides: list[str], message: str) -> None:
    assert_rejected(preset, overrides, message)
