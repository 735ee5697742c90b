"""The table of model families and strategies that are compared with a single rank: a row or a column is one line."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks

STEPS = 20
# All runs start from the same weights and see the same samples; only the rounding of sums over ranks differs.
LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4

# Small enough that 20 steps are quick; a sample has 16 tokens.
DECODER = ("model.dim=32", "model.heads=4", "model.layers=2", "model.vocab_size=64", "batch.size=8")
LLAMA = (*DECODER, "model.ffn=48", "model.kv_heads=4")
MIXTURE = (*DECODER, "model.ffn=16")
MIXTURE_AXES = ("tensor", "context", "pipeline", "expert")
# A balance loss is that of a rank's own tokens: with parts of sequences, the loss differs by 3.4e-5 after 20 steps.
BALANCED_BY_BIAS = ("model.balance=bias", "model.balance_rate=0.01")
# An odd rank, which no number of ranks divides. With the default alpha, the runs are so unstable that rounding grows to
# 1e-2 after 20 steps, also under fsdp.
LORA = ("lora.rank=3", "lora.alpha=3", "checkpoint.initial=unused", "optimizer.lr=0.01")


@dataclass(frozen=True)
class Family:
    """A row: the settings of a model, small enough to train in seconds, and the axes by which it can be split."""

    settings: tuple[str, ...] = LLAMA
    preset: str = "tiny-llama"
    axes: tuple[str, ...] = ("tensor", "context", "pipeline")
    micro: int = 2
    context_model: tuple[str, ...] = ()
    """Changes of the model where sequences are split, and of the single rank that it is compared with."""


@dataclass(frozen=True)
class Strategy:
    """A column: the settings of a strategy, its ranks, the axis by which it splits the model, and changes of the model.

    `micro` replaces that of the family.
    """

    settings: str
    ranks: int = 2
    axis: str = ""
    model: tuple[str, ...] = ()
    micro: int = 0


FAMILIES = {
    "llama": Family(),
    "llama, llama3 scaling": Family(
        (*LLAMA, "model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_len=32")
    ),
    "mistral": Family((*LLAMA, "model.family=mistral", "model.window=5")),
    "qwen2": Family((*LLAMA, "model.family=qwen2")),
    "qwen3": Family((*LLAMA, "model.family=qwen3", "model.head_dim=12")),
    "gpt2": Family(DECODER, "tiny-gpt2"),
    "llama, LoRA": Family((*LLAMA, *LORA, "lora.layers=[attention.*, ffn.*, head]")),
    "gpt2, LoRA": Family((*DECODER, *LORA), "tiny-gpt2"),
    "mixtral": Family(MIXTURE, "tiny-moe", MIXTURE_AXES, context_model=BALANCED_BY_BIAS),
    "mixtral, LoRA": Family((*MIXTURE, *LORA), "tiny-moe", MIXTURE_AXES, context_model=BALANCED_BY_BIAS),
    "qwen3_moe": Family(
        (*MIXTURE, "model.family=qwen3_moe", "model.head_dim=12"),
        "tiny-moe",
        MIXTURE_AXES,
        context_model=BALANCED_BY_BIAS,
    ),
    # A batch norm sees micro-batches, which contain the same samples for any number of ranks. With few samples and a
    # high learning rate it amplifies rounding: to 1e-2 after 20 steps at 0.05 with micro-batches of 4.
    "resnet": Family(("batch.size=32", "optimizer.lr=0.01"), "tiny-resnet", axes=(), micro=8),
    "mlp": Family(("batch.size=16",), "tiny-mlp", axes=()),
}
# A pipeline cannot share weights between its first and its last stage.
UNTIED = ("model.tie_embeddings=false",)
STRATEGIES = {
    "ddp": Strategy("ddp"),
    "fsdp": Strategy("fsdp"),
    "hsdp": Strategy("hsdp shard=2", ranks=4),
    # Larger micro-batches, because DTensors are slow to dispatch.
    "tensor": Strategy("single tensor=2", axis="tensor", micro=4),
    "context": Strategy("single context=2", axis="context"),
    "pipeline": Strategy("single pipeline=2", axis="pipeline", model=UNTIED),
    "expert": Strategy("fsdp expert=2", axis="expert"),
    "tensor x pipeline": Strategy("single tensor=2 pipeline=2", ranks=4, axis="tensor", model=UNTIED, micro=4),
}
# Each of them loads the checkpoints of all others; interleaved stages need four layers.
CHECKPOINT_BATCH = ("batch.size=4", "batch.micro=1", "optimizer.clip_norm=0.3")
CHECKPOINT_MODEL = (*LLAMA, *CHECKPOINT_BATCH, "model.dim=16", "model.layers=4")
CHECKPOINT_STRATEGIES = {
    "single": Strategy("single", ranks=1),
    "ddp": Strategy("ddp"),
    "ddp, muster": Strategy("ddp engine=muster"),
    "fsdp, zero 1": Strategy("fsdp zero=1"),
    "fsdp, zero 2": Strategy("fsdp zero=2"),
    "fsdp, zero 3": Strategy("fsdp zero=3"),
    "hsdp": Strategy("hsdp shard=2", ranks=4),
    # Another number of ranks than that of torch's fsdp.
    "fsdp, muster": Strategy("fsdp engine=muster", ranks=4),
    "fsdp, zero 1, muster": Strategy("fsdp engine=muster zero=1"),
    "hsdp, muster": Strategy("hsdp shard=2 engine=muster", ranks=4),
    "tensor": Strategy("single tensor=2"),
    "tensor with fsdp": Strategy("fsdp tensor=2", ranks=4),
    "tensor, muster": Strategy("single tensor=2 engine=muster"),
    "context": Strategy("single context=2"),
    "pipeline": Strategy("single pipeline=2"),
    "pipeline, interleaved": Strategy("single pipeline=2 schedule=interleaved"),
    "pipeline, interleaved, with fsdp, muster": Strategy("fsdp pipeline=2 schedule=interleaved engine=muster", ranks=4),
    "pipeline, zero bubble, with ddp, muster": Strategy("ddp pipeline=2 schedule=zero_bubble engine=muster", ranks=4),
}
EXPERT_CHECKPOINT_MODEL = (*MIXTURE, *CHECKPOINT_BATCH, "model.dim=16", "model.balance=bias")
EXPERT_CHECKPOINT_STRATEGIES = {
    "single": Strategy("single", ranks=1),
    "ddp": Strategy("ddp"),
    "ddp, expert": Strategy("ddp expert=2"),
    "fsdp": Strategy("fsdp"),
    "fsdp, expert": Strategy("fsdp expert=2", ranks=4),
    "hsdp": Strategy("hsdp shard=2", ranks=4),
    "hsdp, expert": Strategy("hsdp shard=2 expert=2", ranks=4),
    "tensor": Strategy("single tensor=2"),
    "context": Strategy("single context=2"),
    "context, expert": Strategy("fsdp context=2 expert=2", ranks=4),
    "pipeline": Strategy("single pipeline=2"),
}
# The embedding of GPT-2 is its head too.
TIED_CHECKPOINT_MODEL = (*DECODER, *CHECKPOINT_BATCH, "model.dim=16")
TIED_CHECKPOINT_STRATEGIES = {
    name: strategy for name, strategy in CHECKPOINT_STRATEGIES.items() if "pipeline" not in name
}
# A batch norm has buffers, which differ by rank until they are loaded.
BATCH_NORM_CHECKPOINT_MODEL = ("batch.size=16", "batch.micro=4", "optimizer.lr=0.01")
BATCH_NORM_CHECKPOINT_STRATEGIES = {
    name: CHECKPOINT_STRATEGIES[name]
    for name in (
        *("single", "ddp", "ddp, muster", "fsdp, zero 1", "fsdp, zero 2", "fsdp, zero 3", "hsdp"),
        *("fsdp, muster", "fsdp, zero 1, muster", "hsdp, muster"),
    )
}
CELLS = [
    (family, strategy)
    for family, row in FAMILIES.items()
    for strategy, column in STRATEGIES.items()
    if not column.axis or column.axis in row.axes
]


@dataclass(frozen=True)
class Agreement:
    """The largest differences from a single rank over all steps and ranks, and the losses of the single rank."""

    loss: float
    """Absolute difference of the losses."""
    norm: float
    """Relative difference of the gradient norms."""
    is_close: bool
    """Whether both are within their tolerances."""
    single_losses: list[float]


def compare_with_single(family: str, strategy: str, steps: int = STEPS) -> Agreement:
    """Train a cell of the table and compare it with the same model on one rank."""
    row, column = FAMILIES[family], STRATEGIES[strategy]
    context_model = row.context_model if column.axis == "context" else ()
    base, micro = (*row.settings, *column.model, *context_model), column.micro or row.micro
    expected = train_alone(row.preset, base, micro, steps)
    config = config_of(row.preset, [*base, *settings(column.settings)])
    curves = on_ranks("tests.trainer.curves:curve", ranks=column.ranks, config=config, micro=micro, steps=steps)
    differences: dict[str, list[float]] = {"loss": [], "norm": []}
    for curve, (name, values) in product(curves, differences.items()):
        for value, reference in zip(curve[name], expected[name], strict=True):
            assert math.isfinite(value - reference), (name, curve[name], expected[name])
            values.append(abs(value - reference) / (1.0 if name == "loss" else reference))
    loss, norm = max(differences["loss"]), max(differences["norm"])
    is_close = loss <= LOSS_TOLERANCE and norm <= NORM_TOLERANCE
    return Agreement(loss, norm, is_close, expected["loss"])


@cache
def train_alone(preset: str, base: tuple[str, ...], micro: int, steps: int) -> dict[str, list[float]]:
    config = config_of(preset, [*base, "parallel.strategy=single"])
    curves: dict[str, list[float]] = on_ranks(
        "tests.trainer.curves:curve", ranks=1, config=config, micro=micro, steps=steps
    )[0]
    return curves


def settings(strategy: str) -> list[str]:
    """Return the settings of a strategy that is written as its name and options, such as "hsdp shard=2"."""
    name, *options = strategy.split()
    return [f"parallel.strategy={name}", *(f"parallel.{option}" for option in options)]


def choose_diagonal() -> list[tuple[str, str]]:
    """Return a cell for each family, so that every strategy is covered: unused strategies first, then rare ones."""
    rows = Counter(strategy for _, strategy in CELLS)
    columns = {family: [strategy for row, strategy in CELLS if row == family] for family in FAMILIES}
    uses: Counter[str] = Counter()
    cells = []
    for family in sorted(FAMILIES, key=lambda name: len(columns[name])):
        strategy = min(columns[family], key=lambda name: (uses[name], rows[name]))
        uses[strategy] += 1
        cells.append((family, strategy))
    return cells
