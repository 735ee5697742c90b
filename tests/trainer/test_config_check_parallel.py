"""Settings of parallelism and compilation that conflict with others or with the number of ranks are rejected."""

from __future__ import annotations

import pytest

from tests.trainer.rejected_settings import assert_rejected
from trainer.config.check import check, check_world
from trainer.config.load import list_presets, load

CONFLICTS = [
    (
        "tiny-resnet",
        ["parallel.context=2"],
        "parallel.context: 2, but resnet has no sequences to split; set it to 1, or use a model of llama",
    ),
    (
        "tiny-moe",
        ["parallel.tensor=2", "parallel.expert=2"],
        "parallel.expert: 2, but parallel.tensor=2 splits every expert; set one of the two to 1",
    ),
    ("tiny-moe", ["parallel.expert=3"], "parallel.expert: 3 ranks do not divide 8 experts; use one of 1, 2, 4, 8"),
    (
        "tiny-moe",
        ["parallel.expert=2", "parallel.strategy=fsdp", "parallel.offload=true"],
        "parallel.expert: 2, but parallel.offload moves no experts to the host; set it to 1, or parallel.offload to",
    ),
    (
        "tiny-llama",
        ["parallel.expert=2"],
        "parallel.expert: 2, but llama has no experts; set it to 1, or use a model of mixtral, qwen3_moe",
    ),
    (
        "tiny-llama",
        ["compile.cuda_graph=true", "parallel.recompute=full"],
        "compile.cuda_graph: true, but parallel.recompute=full repeats the forward pass within a micro-batch; set it t",
    ),
    (
        "tiny-mlp",
        ["parallel.shard=2", "parallel.strategy=fsdp"],
        "parallel.shard: 2, but the strategy is fsdp; set para",
    ),
    (
        "tiny-llama",
        ["parallel.find_unused_parameters=true", "parallel.strategy=fsdp"],
        "parallel.find_unused_parameters: true, but the strategy is fsdp, which needs no search; set it to false, or",
    ),
    (
        "tiny-llama",
        ["parallel.find_unused_parameters=true", "parallel.strategy=ddp", "parallel.static_graph=true"],
        "parallel.find_unused_parameters: true, but parallel.static_graph assumes that every step uses all weights",
    ),
    (
        "tiny-llama",
        ["parallel.find_unused_parameters=true", "parallel.strategy=ddp", "parallel.pipeline=2"],
        "parallel.find_unused_parameters: true, but pipeline stages do not search their graphs; set it to false, or",
    ),
    (
        "tiny-mlp",
        ["parallel.offload=true", "parallel.strategy=ddp"],
        "parallel.offload: ddp does not support offload; set parallel",
    ),
    *(
        ("tiny-llama", ["parallel.engine=muster", *overrides], message)
        for overrides, message in (
            (
                ["parallel.strategy=single"],
                "parallel.engine: muster, which has no strategy single; set it to torch, or parallel.strategy to ddp",
            ),
            (
                ["parallel.strategy=single", "parallel.pipeline=5"],
                "parallel.pipeline: 5 ranks x 1 stages need at least 5 layers, the model has 4;",
            ),
            *(
                (
                    ["parallel.pipeline=2", "parallel.schedule=zero_bubble", "precision=bf16", f"{where}={value}"],
                    f"parallel.schedule: zero_bubble, but with {where}={value}, layers ",
                )
                for where, value in (
                    ("parallel.recompute", "full"),
                    ("compile.mode", "blocks"),
                    ("fp8.scaling", "tensor"),
                )
            ),
            (
                ["parallel.strategy=fsdp", "parallel.offload=true", "parallel.pipeline=2"],
                "parallel.offload: true, but parallel.engine=muster moves no stages of parallel.pipeline=2 to the host",
            ),
            *(
                (
                    ["parallel.strategy=single", "parallel.tensor=2", "batch.micro=1", f"{where}={value}"],
                    f"parallel.engine: muster, whose parallel.tensor=2 works on its own, but {where} is {value}; "
                    f"set it to torch, or {where} to {allowed}",
                )
                for where, value, allowed in (
                    ("parallel.strategy", "ddp", "single"),
                    ("parallel.strategy", "fsdp", "single"),
                    ("parallel.pipeline", "2", "1"),
                    ("parallel.context", "2", "1"),
                    ("compile.mode", "blocks", "none"),
                )
            ),
            (
                ["parallel.strategy=single", "parallel.tensor=2", "batch.micro=auto"],
                "batch.micro: auto, but the estimate of memory does not know parallel.tensor=2 of engine=muster; se",
            ),
            (["parallel.static_graph=true"], "parallel.static_graph: true, but parallel.engine=muster needs no such"),
            (
                ["parallel.strategy=ddp", "parallel.check_blocks=true"],
                "parallel.check_blocks: true, but parallel.strategy=ddp has no blocks; set it to false, or parallel.s",
            ),
            (["parallel.bucket_view=false"], "parallel.bucket_view: false, but parallel.engine=muster always keeps"),
            (
                ["compile.cuda_graph=true"],
                "compile.cuda_graph: true, but the hooks of parallel.engine=muster cannot be",
            ),
        )
    ),
    (
        "tiny-gpt2",
        [
            *("parallel.engine=muster", "parallel.strategy=single", "parallel.tensor=2", "batch.micro=1"),
            "model.dropout=0.5",
        ],
        "parallel.engine: muster, whose parallel.tensor=2 works on its own, but model.dropout is 0.5; set it to torch",
    ),
    (
        "tiny-moe",
        ["parallel.engine=muster", "parallel.strategy=single", "parallel.tensor=2", "batch.micro=1"],
        "parallel.engine: muster, which splits no experts, but mixtral has experts and parallel.tensor is 2; set it to",
    ),
    (
        "tiny-llama",
        ["parallel.strategy=single", "parallel.pipeline=2", "parallel.schedule=zero_bubble"],
        "parallel.schedule: zero_bubble, but parallel.engine=torch has no such schedule; set it to gpipe, 1f1b or inte",
    ),
    (
        "tiny-llama",
        ["parallel.strategy=fsdp", "parallel.check_blocks=true"],
        "parallel.check_blocks: true, but parallel.engine=torch has no such check; set it to false, or parallel.engine",
    ),
    (
        "tiny-llama",
        ["compile.cuda_graph=true", "parallel.strategy=fsdp"],
        "compile.cuda_graph: true, but fsdp gathers weights within a micro-batch; set it to false, or change parallel",
    ),
    (
        "tiny-llama",
        ["compile.cuda_graph=true", "parallel.tensor=2"],
        "compile.cuda_graph: true, but ranks of parallel.tensor=2 communicate within a micro-batch; set it to false, o",
    ),
    (
        "tiny-moe",
        ["compile.cuda_graph=true"],
        "compile.cuda_graph: true, but mixtral sends other numbers of tokens to its experts within a micro-batch; set",
    ),
    (
        "tiny-mlp",
        ["compile.mode=whole", "parallel.strategy=fsdp"],
        "compile.mode: whole, but fsdp runs code between the bloc",
    ),
    (
        "tiny-llama",
        ["compile.mode=whole", "parallel.pipeline=2"],
        "compile.mode: whole, but a pipeline runs code between",
    ),
    (
        "tiny-resnet",
        ["parallel.tensor=2"],
        "parallel.tensor: 2, but resnet has no tensor-parallel plan; set it",
    ),
    (
        "tiny-llama",
        ["parallel.reduce=bf16", "parallel.strategy=single"],
        "parallel.reduce: bf16, but the strategy is single, which reduces no gradients; set it to fp32, or parallel.st",
    ),
    (
        "tiny-mlp",
        ["parallel.reduce=bf16", "parallel.strategy=fsdp", "parallel.accumulate=defer"],
        "parallel.reduce: bf16, but parallel.accumulate=defer would sum micro-batches in bf16 under fsdp; set it to fp",
    ),
    (
        "tiny-llama",
        ["parallel.reduce=bf16", "parallel.strategy=hsdp", "parallel.pipeline=2"],
        "parallel.reduce: bf16, but pipeline stages would sum micro-batches in bf16 under fsdp; set it to fp32, or par",
    ),
    (
        "tiny-mlp",
        ["parallel.reduce=bf16", "parallel.strategy=ddp", "parallel.accumulate=sync"],
        "parallel.reduce: bf16, but parallel.accumulate=sync would sum micro-batches in bf16 under ddp; set it to fp32",
    ),
    (
        "tiny-mlp",
        ["parallel.reduce=bf16", "parallel.strategy=auto", "parallel.accumulate=sync"],
        "parallel.reduce: bf16, but parallel.accumulate=sync would sum micro-batches in bf16 under ddp; set it to fp32",
    ),
    (
        "tiny-llama",
        ["parallel.reduce=bf16", "parallel.strategy=single", "parallel.context=2", "parallel.accumulate=sync"],
        "parallel.reduce: bf16, but parallel.accumulate=sync would sum micro-batches in bf16 under ddp; set it to fp32",
    ),
    (
        "tiny-llama",
        ["parallel.tensor=4", "model.kv_heads=4", "model.vocab_size=5"],
        "parallel.tensor: 4, but parts of 2 of the 5 tokens of the vocabulary leave none for the last rank; use one o",
    ),
    ("tiny-llama", ["parallel.tensor=4"], "parallel.tensor: 4 ranks do not divide kv_heads 2; use one of 1, 2"),
    ("tiny-llama", ["parallel.tensor=2", "data.seq_len=63"], "parallel.tensor: 2 ranks do not divide seq_len 63"),
    (
        "tiny-llama",
        ["parallel.tensor=2", "model.ffn=127"],
        "parallel.tensor: 2 ranks do not divide ffn 127; use one of",
    ),
    (
        "tiny-mlp",
        ["parallel.pipeline=2"],
        "parallel.pipeline: 2, but mlp cannot be cut into stages; set it to 1, or use a",
    ),
    (
        "tiny-gpt2",
        ["parallel.pipeline=2"],
        "parallel.pipeline: 2 stages, but embedding and head share weights and would",
    ),
    (
        "tiny-llama",
        ["parallel.pipeline=5"],
        "parallel.pipeline: 5 ranks x 1 stages need at least 5 layers, the model has 4;",
    ),
    (
        "tiny-llama",
        ["parallel.pipeline=3", "parallel.schedule=interleaved"],
        "parallel.pipeline: 3 ranks x 2 stages need at least 6 layers, the model has 4; use at most 2",
    ),
]


@pytest.mark.parametrize(("preset", "overrides", "message"), CONFLICTS, ids=[" ".join(case[1]) for case in CONFLICTS])
def test_conflicting_settings_of_parallelism_are_rejected(preset: str, overrides: list[str], message: str) -> None:
    assert_rejected(preset, overrides, message)


@pytest.mark.parametrize(
    "settings",
    [
        "single context=2 accumulate=defer",
        "single context=2 pipeline=2",
        "ddp accumulate=defer",
        "ddp pipeline=2 accumulate=sync",
        "fsdp accumulate=sync",
        "auto",
    ],
)
def test_gradients_are_reduced_in_bf16_where_micro_batches_are_summed_in_fp32(settings: str) -> None:
    strategy, *options = settings.split()
    parallel = [f"strategy={strategy}", "reduce=bf16", *options]
    assert load("tiny-llama", [f"parallel.{option}" for option in parallel]).parallel.reduce == "bf16"


UNFIT_WORLDS = [
    ([], 3, "batch.size: 8 is not divisible by 3 data-parallel ranks", "use 6 or 9, or a number of data-parallel ranks "
     "out of 1, 2, 4, 8"),
    (["batch.micro=4"], 4, "batch.size: 8 is not divisible by 4 data-parallel ranks x batch.micro 4 = 16", "use 16, or "
     "a number of data-parallel ranks out of 1, 2"),
    (["parallel.tensor=2"], 3, "parallel: pipeline 1 x tensor 2 = 2 does not divide 3 ranks", "use 2 or 4 ranks"),
    (["parallel.strategy=single"], 2, "parallel.strategy: single uses pipeline 1 x tensor 1 ranks, but", "set"),
    (["parallel.strategy=hsdp", "parallel.shard=3"], 4, "parallel.shard: 3 does not divide the 4 data-parallel", ""),
    (["parallel.shard=3"], 4, "parallel.shard: 3 does not divide the 4 data-parallel ranks", "use one of 1, 2, 4"),
    (["parallel.pipeline=4", "batch.micro=4"], 4, "batch.size: 8 is 2 micro-batches of 4 on each of 1 data-parallel "
     "ranks, but the pipeline needs 4", "use 16 or more, or fewer stages"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "world", "message", "fix"), UNFIT_WORLDS)
def test_a_world_size_that_does_not_fit_is_rejected(overrides: list[str], world: int, message: str, fix: str) -> None:
    problems = check_world(load("tiny-llama", overrides), world, 4)
    assert len(problems) == 1
    assert str(problems[0]).startswith(message)
    assert problems[0].fix.startswith(fix)


def test_world_sizes_that_fit_are_accepted() -> None:
    for name in list_presets():
        config = load(name, [])
        assert check(config) == []
        assert check_world(config, 8, 8) == []
    assert check_world(load("llama-70b", []), 1024, 8) == []
    assert check_world(load("tiny-llama", ["parallel.pipeline=2", "parallel.tensor=2", "batch.micro=2"]), 8, 4) == []
