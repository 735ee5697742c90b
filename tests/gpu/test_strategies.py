"""On the GPU, every strategy gives the loss curve of a plain run, and saves the memory it is meant to save."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import DEVICE, LLAMA, MICRO, Curve, batch, curve
from trainer.config.load import load
from trainer.parallel.gradients import to_local

# Other kernels round the last bits differently, which accumulates over 20 steps of AdamW.
LOSS_TOLERANCE = 1e-3
NORM_TOLERANCE = 1e-2
# Half precision products change each loss by about a hundredth.
HALF_TOLERANCE = 0.03
SINGLE = ("parallel.strategy=single",)
# Large enough that activations and not weights fill the memory.
DEEP = ("model.dim=512", "model.ffn=1536", "model.heads=8", "model.kv_heads=8", "model.layers=8", "model.seq_len=512")


@pytest.mark.parametrize(
    "strategy",
    [
        *("fsdp", "fsdp zero=1", "fsdp zero=2", "fsdp offload=true", "fsdp offload=true zero=2", "hsdp"),
        *("fsdp engine=muster offload=true", "fsdp engine=muster offload=true zero=2"),
    ],
)
def test_a_strategy_on_one_rank_trains_like_single(strategy: str) -> None:
    compare(curve(parallel(strategy)))


@pytest.mark.parametrize("engine", ["torch", "muster"])
def test_offloaded_state_lives_on_the_host(engine: str) -> None:
    wide = ("model.dim=1024", "model.ffn=4096", "model.heads=16", "model.kv_heads=16", "batch.size=4")
    config = load("tiny-llama", [*wide, *parallel(f"fsdp offload=true engine={engine}")])
    # Other tests of this process may have left some: compiled code and process groups outlive their tests.
    before = torch.cuda.memory_allocated(DEVICE)
    step = make_step(config)
    step.run(batch(config, 0), MICRO)
    homes = {name: to_local(tensor).device.type for name, tensor in step.tensors().items() if name != "optim.updates"}
    assert set(homes.values()) == {"cpu"}, homes
    # Less memory is in use between steps than the weights alone would need.
    torch.cuda.synchronize()
    weights = sum(4 * to_local(p).numel() for _, p in step.engine.named_parameters())
    assert torch.cuda.memory_allocated(DEVICE) - before < weights


@pytest.mark.parametrize("strategy", ["single", "fsdp", "fsdp offload=true", "fsdp offload=true engine=muster"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_follows_full_precision(strategy: str, precision: str) -> None:
    result = curve((*parallel(strategy), f"precision={precision}"), steps=5)
    assert result.losses == pytest.approx(train_plain("tiny-llama").losses[:5], abs=HALF_TOLERANCE)
    assert result.losses != train_plain("tiny-llama").losses[:5]
    assert result.skipped == [0.0] * 5


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
@pytest.mark.parametrize(("precision", "largest_error"), [("bf16", 0.06), ("fp16", 0.01)])
def test_each_gradient_in_half_precision_is_close_to_that_in_full_precision(
    strategy: str, precision: str, largest_error: float
) -> None:
    """A wrong scale, a lost micro-batch or a weight that is left out would show in the gradient of some weight."""
    expected, gradients = (
        collect_gradients((*parallel(strategy), f"precision={name}")) for name in ("fp32", precision)
    )
    errors = {
        name: float((gradients[name] - reference).norm() / reference.norm()) for name, reference in expected.items()
    }
    assert max(errors.values()) < largest_error, errors
    assert min(errors.values()) > 0


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputed_activations_are_the_same(strategy: str, mode: str) -> None:
    compare(curve(parallel(f"{strategy} recompute={mode}")))


def test_each_recompute_mode_needs_less_memory_than_the_previous_one() -> None:
    none, selective, full = (measure_peak(f"single recompute={mode}") for mode in ("none", "selective", "full"))
    assert full < 0.9 * selective
    assert selective < 0.9 * none


@pytest.mark.parametrize("preset", ["tiny-gpt2", "tiny-resnet", "tiny-mlp"])
def test_other_families_train_under_fsdp(preset: str) -> None:
    compare(curve(parallel("fsdp"), preset, steps=5), preset)


def collect_gradients(arguments: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return the gradient of each weight in the first step, without the loss scale."""
    config = load("tiny-llama", [*LLAMA, *arguments])
    step, gradients = make_step(config), dict[str, torch.Tensor]()
    scale = 1.0 if step.scale is None else float(step.scale.scale)

    def collect() -> None:
        for name, weight in step.engine.named_parameters():
            assert weight.grad is not None, name
            gradients[name] = to_local(weight.grad).float() / scale

    step.before_update = collect
    step.run(batch(config, 0), MICRO)
    return gradients


def compare(result: Curve, preset: str = "tiny-llama") -> None:
    expected, steps = train_plain(preset), len(result.losses)
    assert result.losses == pytest.approx(expected.losses[:steps], abs=LOSS_TOLERANCE)
    assert result.norms == pytest.approx(expected.norms[:steps], rel=NORM_TOLERANCE)
    assert expected.losses[-1] < expected.losses[0]


@cache
def train_plain(preset: str) -> Curve:
    return curve(SINGLE, preset)


def measure_peak(strategy: str) -> int:
    """Return the peak memory of a step in bytes, without what is in use between steps."""
    config = load("tiny-llama", [*DEEP, "batch.size=16", "precision=bf16", *parallel(strategy)])
    step = make_step(config)
    tokens = torch.randint(config.model.vocab_size, (16, 513), device=DEVICE)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(DEVICE)
        before = torch.cuda.memory_allocated(DEVICE)
        step.run({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}, 16)
    return torch.cuda.max_memory_allocated(DEVICE) - before


def parallel(strategy: str) -> tuple[str, ...]:
    name, *options = strategy.split()
    return (f"parallel.strategy={name}", *(f"parallel.{option}" for option in options))
