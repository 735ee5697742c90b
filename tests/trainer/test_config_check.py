"""Settings that conflict with each other are rejected with an exact message.

Those of parallelism and of communication are in files of their own.
"""

from __future__ import annotations

import pytest

from tests.trainer.rejected_settings import assert_rejected
from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.load import load

CONFLICTS = [
    (
        "tiny-llama",
        ["parallel.context=3"],
        "model.seq_len: 64 tokens are not divisible by 2 x parallel.context 3 = 6; use 60 or 66",
    ),
    (
        "tiny-gpt2",
        ["parallel.context=2", "data.seq_len=50"],
        "data.seq_len: 50 tokens are not divisible by 2 x parallel.context 2 = 4; use 48 or 52",
    ),
    (
        "tiny-llama",
        ["parallel.context=2", "parallel.tensor=4", "model.kv_heads=4", "data.seq_len=36"],
        "data.seq_len: 36 tokens are not divisible by context 2 x tensor 4 = 8; use 32 or 40",
    ),
    (
        "tiny-llama",
        ["lora.rank=4"],
        "lora.rank: 4, but checkpoint.initial is empty, so the frozen weights would stay random; set checkpoint.ini",
    ),
    (
        "tiny-llama",
        ["lora.rank=4", "checkpoint.initial=x", "lora.alpha=0"],
        "lora.alpha: 0 leaves the model as it is; use more than 0, such as 16",
    ),
    (
        "tiny-llama",
        ["lora.rank=4", "checkpoint.initial=x", "lora.layers=[]"],
        "lora.layers: is empty, so nothing is trained; use [attention.*, ffn.*]",
    ),
    ("tiny-moe", ["model.top_k=9"], "model.top_k: 9 experts per token, but model.experts is 8; use at most 8"),
    (
        "tiny-moe",
        ["model.balance_loss=0"],
        "model.balance_loss: 0 balances nothing, but model.balance is loss; use more than 0, or set model.balance to",
    ),
    (
        "tiny-moe",
        ["model.balance=bias", "model.balance_rate=0"],
        "model.balance_rate: 0 balances nothing, but model.balance is bias; use more than 0, or set model.balance to",
    ),
    (
        "tiny-moe",
        ["optimizer.moments=int8", "parallel.strategy=fsdp"],
        "optimizer.moments: int8 stores blocks of a row, but fsdp may split the rows of experts; use bf16 or fp32",
    ),
    (
        "tiny-llama",
        ["model.heads=6"],
        "model.heads: 6 heads do not divide dim 64; use 60 or 66 for dim, or a number of",
    ),
    (
        "tiny-mlp",
        ["health.spike=rollback", "checkpoint.keep=1"],
        "checkpoint.keep: 1, but the newest checkpoint may contain the update that caused the spike "
        "(health.spike=rollback); "
        "use 2 or more",
    ),
    ("tiny-gpt2", ["model.heads=5"], "model.heads: 5 heads do not divide dim 64; use 60 or 65 for dim, or a number of"),
    (
        "tiny-llama",
        ["model.dim=12"],
        "model.heads: dim 12 / heads 4 = 3 is odd, but rotary positions need an even number; use dim 24",
    ),
    ("tiny-llama", ["model.kv_heads=3"], "model.kv_heads: 3 key-value heads do not divide 4 heads; use one of 1, 2, 4"),
    (
        "tiny-llama",
        ["model.head_dim=15"],
        "model.head_dim: 15 is odd, but rotary positions need an even number; use 16",
    ),
    (
        "tiny-llama",
        ["model.rope_factor=8"],
        "model.rope_factor: 8, but model.rope_scaling is none; set model.rope_scaling to linear or llama3, or",
    ),
    (
        "tiny-llama",
        ["model.rope_scaling=llama3"],
        "model.rope_factor: 1, which stretches nothing, but model.rope_scaling is llama3; set it to more than 1",
    ),
    (
        "tiny-llama",
        ["model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_low_freq_factor=4"],
        "model.rope_low_freq_factor: 4 is not below model.rope_high_freq_factor 4; use less than 4",
    ),
    (
        "tiny-mlp",
        ["model.hidden=[8, 0]"],
        "model.hidden: [8, 0] has a layer of width 0 or less; use 1 or more for each",
    ),
    ("tiny-mlp", ["name=a/b"], "name: 'a/b' is not a valid folder name; use letters, digits, '.', '_' and '-'"),
    ("tiny-mlp", ["name=''"], "name: '' is not a valid folder name"),
    (
        "tiny-mlp",
        ["run.folder=x/{nam}"],
        "run.folder: {nam} is not a placeholder; give a path; {name} in it is replaced",
    ),
    ("tiny-mlp", ["run.folder="], "run.folder: is empty"),
    (
        "tiny-mlp",
        ["data.kind=tokens", "data.path=x"],
        "data.kind: mlp does not read tokens; use synthetic, or a model of llama, mistral, qwen2, qwen3, mixtral, qwen",
    ),
    (
        "tiny-llama",
        ["data.kind=images", "data.path=x"],
        "data.kind: llama does not read images; use synthetic, or a res",
    ),
    (
        "tiny-llama",
        ["data.kind=tokens"],
        "data.path: is empty, but tokens are read from a folder; set data.path (make shar",
    ),
    (
        "tiny-llama",
        ["data.seq_len=65"],
        "data.seq_len: 65 is longer than the model's 64; use at most 64, or raise model",
    ),
    (
        "tiny-resnet",
        ["data.documents=separate"],
        "data.documents: separate, but resnet samples have no tokens; set it to joined, or use a model of llama",
    ),
    (
        "tiny-llama",
        ["data.documents=packed"],
        "data.documents: packed, but synthetic samples are not made of whole documents; set it to separate, or data.ki",
    ),
    ("tiny-resnet", ["data.seq_len=8"], "data.seq_len: 8, but resnet samples have no tokens; set it to 0"),
    (
        "tiny-llama",
        ["batch.micro=3"],
        "batch.micro: 3 does not divide batch.size 8; use a batch.size of 6 or 9, or a batc",
    ),
    (
        "tiny-resnet",
        ["batch.micro=1"],
        "batch.micro: 1 sample of 32 pixels leaves a single value per channel for batch norm",
    ),
    ("tiny-mlp", ["optimizer.beta2=1"], "optimizer.beta2: at 1 the moving average never decays; use less than 1"),
    (
        "tiny-mlp",
        ["optimizer.name=muon", "optimizer.muon_momentum=1"],
        "optimizer.muon_momentum: at 1 the moving average never decays",
    ),
    (
        "tiny-mlp",
        ["optimizer.muon_momentum=0.9"],
        "optimizer.muon_momentum: 0.9 has no effect, because optimizer.name is adamw; leave it out, or set optimizer.",
    ),
    (
        "tiny-mlp",
        ["optimizer.name=sgd", "optimizer.muon_exclude=[a.*]"],
        "optimizer.muon_exclude: ['a.*'] has no effect, because optimizer.name is sgd; leave it out, or set optimizer",
    ),
    (
        "tiny-mlp",
        ["schedule.decay_share=0.2"],
        "schedule.decay_share: 0.2 has no effect, because schedule.kind is cosine; leave it out, or set schedule.kind ",
    ),
    (
        "tiny-mlp",
        ["schedule.kind=linear", "schedule.decay_shape=cosine"],
        "schedule.decay_shape: cosine has no effect, because schedule.kind is linear; leave it out, or set schedule.ki",
    ),
    (
        "tiny-moe",
        ["model.balance_rate=0.01"],
        "model.balance_rate: 0.01 has no effect, because model.balance is loss; leave it out, or set model.balance to",
    ),
    (
        "qwen3-30b-a3b",
        ["model.balance=none", "model.balance_loss=0.02"],
        "model.balance_loss: 0.02 has no effect, because model.balance is none; leave it out, or set model.balance to",
    ),
    (
        "tiny-llama",
        ["lora.alpha=32"],
        "lora.alpha: 32, but lora.rank is 0, which trains all weights; set lora.rank, such as to 16, or leave it out",
    ),
    (
        "tiny-llama",
        ["lora.layers=[attention.q]"],
        "lora.layers: ['attention.q'], but lora.rank is 0, which trains all weights; set lora.rank, such as to 16",
    ),
    (
        "tiny-mlp",
        ["optimizer.decay_groups=[head.*=0, embed.*]"],
        "optimizer.decay_groups: 'embed.*' is not PATTERN=DECAY with a decay of 0 or more; write entries such as "
        "embed.*=0",
    ),
    ("tiny-mlp", ["optimizer.decay_groups=[=0]"], "optimizer.decay_groups: '=0' is not PATTERN=DECAY with a decay"),
    ("tiny-mlp", ["optimizer.decay_groups=[a=-1]"], "optimizer.decay_groups: 'a=-1' is not PATTERN=DECAY with a"),
    ("tiny-mlp", ["optimizer.decay_groups=[a=nan]"], "optimizer.decay_groups: 'a=nan' is not PATTERN=DECAY with a"),
    (
        "tiny-llama",
        ["optimizer.name=muon", "parallel.tensor=2"],
        "optimizer.name: muon needs whole matrices, but tensor parallelism splits them; use adamw, or set "
        "parallel.tensor to 1",
    ),
    (
        "tiny-llama",
        ["optimizer.name=muon", "parallel.offload=true", "parallel.strategy=fsdp"],
        "optimizer.name: muon multiplies matrices, which parallel.offload would leave to the host; use adamw, or",
    ),
    (
        "tiny-llama",
        ["optimizer.moments=int8", "parallel.tensor=2"],
        "optimizer.moments: int8 stores blocks of a row, but tensor parallelism splits rows; use bf16 or fp32, or",
    ),
    (
        "tiny-mlp",
        ["schedule.kind=inverse_sqrt", "schedule.warmup=0"],
        "schedule.warmup: 0, but inverse_sqrt decays from the end of the warm-up; use 1 or more, such as 1000",
    ),
    (
        "tiny-mlp",
        ["schedule.kind=wsd", "schedule.decay_share=0"],
        "schedule.decay_share: 0, but wsd ends with a decay; use more than 0, or kind constant",
    ),
    (
        "tiny-mlp",
        ["steps=10", "schedule.kind=wsd", "schedule.warmup=4", "schedule.decay_share=0.7"],
        "schedule.decay_share: 0.7 of 10 steps is a decay of 7, which does not fit after a warm-up of 4; use a smaller "
        "schedule.decay_share or schedule.warmup, or more steps",
    ),
    (
        "tiny-llama",
        ["evaluation.share=1"],
        "evaluation.share: 1 leaves nothing to train on; use less than 1",
    ),
    (
        "tiny-llama",
        ["evaluation.share=0.1", "evaluation.path=x", "data.kind=tokens", "data.path=y"],
        "evaluation.share: 0.1, but evaluation.path names another evaluation set; set only one of them",
    ),
    (
        "tiny-llama",
        ["evaluation.path=x"],
        "evaluation.path: 'x', but synthetic data has no folder; set evaluation.share instead",
    ),
    (
        "tiny-llama",
        ["evaluation.every=10", "data.kind=tokens", "data.path=y"],
        "evaluation: has settings, but there is no evaluation set; set evaluation.share or evaluation.path",
    ),
    (
        "tiny-llama",
        ["checkpoint.best=loss"],
        "checkpoint.best: 'loss', but there is no evaluation set; set evaluation.share",
    ),
    (
        "tiny-mlp",
        ["checkpoint.best=perplexity", "evaluation.share=0.1"],
        "checkpoint.best: 'perplexity', but mlp is not a language model; use loss or accuracy",
    ),
    (
        "tiny-mlp",
        ["checkpoint.best=loss", "evaluation.share=0.1", "checkpoint.every=never"],
        "checkpoint.best: 'loss', but checkpoint.every is never; set checkpoint.every to a number",
    ),
    (
        "tiny-mlp",
        ["health.spike=rollback", "checkpoint.every=never"],
        "checkpoint.every: never, but a loss spike rolls back to a checkpoint (health.spike=rollback); set it to a num",
    ),
]


@pytest.mark.parametrize(("preset", "overrides", "message"), CONFLICTS, ids=[" ".join(case[1]) for case in CONFLICTS])
def test_conflicting_settings_are_rejected(preset: str, overrides: list[str], message: str) -> None:
    assert_rejected(preset, overrides, message)


def test_a_run_may_be_shorter_than_its_warm_up() -> None:
    assert check(load("llama-8b", ["steps=3"])) == []


def test_heads_need_not_divide_the_width_if_their_own_is_set() -> None:
    assert check(load("tiny-llama", ["model.heads=6", "model.head_dim=16"])) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.head_dim=-2", "model.head_dim: -2 is below 0; set it to 0 or more"),
        ("model.window=-1", "model.window: -1 is below 0; set it to 0 or more"),
        ("model.rope_factor=0.5", "model.rope_factor: 0.5 is below 1; set it to 1 or more"),
        ("model.rope_original_len=0", "model.rope_original_len: 0 is below 1; set it to 1 or more"),
        ("model.rope_low_freq_factor=-1", "model.rope_low_freq_factor: -1.0 is below 0; set it to 0 or more"),
        ("model.rope_high_freq_factor=-1", "model.rope_high_freq_factor: -1.0 is below 0; set it to 0 or more"),
        ("model.rope_scaling=yarn", "model.rope_scaling: 'yarn' is not allowed; allowed: none, linear, llama3"),
        ("model.qk_norm=true", "model.qk_norm: no such setting"),
        ("lora.rank=-1", "lora.rank: -1 is below 0; set it to 0 or more"),
        ("lora.alpha=-1", "lora.alpha: -1.0 is below 0; set it to 0 or more"),
        ("loss.chunk_tokens=-1", "loss.chunk_tokens: -1 is below 0; set it to 0 or more"),
        ("loss.chunk_tokens=few", "loss.chunk_tokens: 'few' is not allowed; allowed: whole number"),
        ("communication.ratio=0", "communication.ratio: 0.0 is below 0.0001; set it from 0.0001 to 0.5"),
        ("communication.ratio=1", "communication.ratio: 1.0 is above 0.5; set it from 0.0001 to 0.5"),
        ("communication.rank=0", "communication.rank: 0 is below 1; set it to 1 or more"),
        ("communication.compression=zip", "communication.compression: 'zip' is not allowed; allowed: none, topk"),
        ("parallel.reduce=fp16", "parallel.reduce: 'fp16' is not allowed; allowed: fp32, bf16"),
    ],
)
def test_invalid_settings_of_decoders_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("mistral-7b", [override])
    assert message in str(caught.value)


def test_a_window_is_a_setting_of_mistral_only() -> None:
    with pytest.raises(ConfigError, match=r"model\.window: no such setting for this model family"):
        load("qwen3-8b", ["model.window=4096"])
