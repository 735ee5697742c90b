"""The formats of weights, gradients and state decide memory, updates, offload and the choice of a layout.

tests/trainer/test_predicted_state.py compares the same predictions with what the trainer's ranks allocate.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.commands.layout_option import parse_layout
from simulator.job import DEFAULT_LAYOUT, base_layout, layout_from_config
from simulator.layout import Layout
from simulator.machines.instances import system
from simulator.memory.peak import predict_memory
from simulator.memory.state import stage_parameters, state_bytes
from simulator.models import build_transformer
from simulator.parameters import checkpoint_gb, count_parameters
from simulator.search import auto_layout
from simulator.search.trainer_config import unsupported_reason
from simulator.step.prediction import predict
from simulator.step.update import update_bytes
from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.load import load

P5 = system("p5.48xlarge", 1)
WEIGHTS, GRADIENTS, MASTER = "optimizer.weights=bf16", "optimizer.gradients=bf16", "optimizer.master=true"
ROUNDED, COPIED = (WEIGHTS, GRADIENTS), (WEIGHTS, GRADIENTS, MASTER)
# Settings -> bytes per parameter of weights, gradients and optimizer state, with one micro-batch per step. Copies for
# bf16 products of fp32 weights, and weights that stay gathered (zero=2), take two bytes per parameter of the model.
TABLE = [
    ("single", (), (6, 4, 8)),
    ("single", ROUNDED, (2, 2, 8)),
    ("single", COPIED, (2, 2, 12)),
    ("single", (WEIGHTS,), (2, 4, 8)),
    ("single", (GRADIENTS,), (6, 2, 8)),
    ("single", (*ROUNDED, "optimizer.moments=bf16"), (2, 2, 4)),
    # Buckets are summed in fp32.
    ("ddp", ROUNDED, (2, 2 + 4, 8)),
    ("ddp", (*ROUNDED, "parallel.reduce=bf16"), (2, 2, 8)),
    ("fsdp zero=3", (), (4 / 8, 4 / 8, 8 / 8)),
    ("fsdp zero=3", ROUNDED, (2 / 8, 2 / 8, 8 / 8)),
    ("fsdp zero=3", COPIED, (2 / 8, 2 / 8, 12 / 8)),
    ("fsdp zero=2", COPIED, (2 / 8 + 2, 2 / 8, 12 / 8)),
    ("fsdp zero=1", COPIED, (2 / 8 + 2, 2 / 8, 12 / 8)),
    ("hsdp zero=3 shard=4", COPIED, (2 / 4, 2 / 4, 12 / 4)),
    ("hsdp zero=2 shard=4", COPIED, (2 / 4 + 2, 2 / 4, 12 / 4)),
]
# The same with two micro-batches: what waits for its reduction has the format of the reduction.
TWICE = [
    ("fsdp zero=3", COPIED, 2 / 8),
    ("fsdp zero=2", COPIED, 2 / 8),
    ("fsdp zero=1", COPIED, 4),
    ("fsdp zero=1", (*COPIED, "parallel.reduce=bf16"), 2),
    ("hsdp shard=4", COPIED, 4 / 4),
    ("hsdp shard=4", (*COPIED, "parallel.reduce=bf16"), 2 / 4),
]


def resolve(strategy: str, settings: tuple[str, ...], passes: int = 1) -> tuple[Layout, int]:
    first, *options = strategy.split()
    ranks = 1 if first == "single" else 8
    spread = [f"parallel.strategy={first}", *(f"parallel.{option}" for option in options)]
    config = load("llama-1b", [*spread, f"batch.size={ranks * passes}", "batch.micro=1", *settings])
    assert check(config) == []
    return layout_from_config(config, ranks, ranks, 1), count_parameters(build_transformer(config.model)).total


def count_state(layout: Layout) -> dict[str, float]:
    model = build_transformer(load("llama-1b", []).model)
    return state_bytes(stage_parameters(count_parameters(model), layout, first=True, last=True), layout)


@pytest.mark.parametrize(("strategy", "settings", "each"), TABLE)
def test_state_has_the_bytes_of_its_formats(
    strategy: str, settings: tuple[str, ...], each: tuple[float, float, float]
) -> None:
    layout, parameters = resolve(strategy, settings)
    held = count_state(layout)
    assert [held[name] / parameters for name in ("weights", "gradients", "optimizer")] == pytest.approx(each)


@pytest.mark.parametrize(("strategy", "settings", "each"), TWICE)
def test_gradients_that_wait_have_the_format_of_the_reduction(
    strategy: str, settings: tuple[str, ...], each: float
) -> None:
    layout, parameters = resolve(strategy, settings, passes=2)
    assert count_state(layout)["gradients"] / parameters == pytest.approx(each)


def test_default_settings_are_fp32() -> None:
    config = load("llama-1b", ["compile.mode=none"])
    assert base_layout(config) == replace(DEFAULT_LAYOUT, recompute=config.parallel.recompute)


def test_checkpoints_contain_weights_copies_and_moments() -> None:
    def measure(*settings: str) -> float:
        config = load("llama-1b", ["parallel.strategy=single", *settings])
        model = build_transformer(config.model)
        return 1e9 * checkpoint_gb(model, config.optimizer) / count_parameters(model).total

    assert [measure(), measure(*ROUNDED), measure(*COPIED)] == pytest.approx([12, 10, 14])


def test_an_update_of_bf16_weights_moves_more_bytes() -> None:
    exact, copied, rounded = (update_bytes(resolve("single", formats)[0]) for formats in ((), COPIED, ROUNDED))
    assert exact == update_bytes(Layout())
    assert exact < copied < 1.5 * exact < rounded < 4 * exact
    # Other trainers with two-byte weights round in their update kernel.
    assert update_bytes(Layout(weight_bytes=2)) < exact


def test_the_formats_change_the_step_and_the_peak() -> None:
    model = build_transformer(load("llama-1b", []).model)
    steps = {}
    for name, formats in (("exact", ()), ("copied", COPIED), ("rounded", ROUNDED)):
        layout, _ = resolve("fsdp zero=3", formats)
        steps[name] = (predict(model, layout, P5).parts["optimizer"], predict_memory(model, layout, P5).total)
    assert steps["exact"][0] < steps["copied"][0] < steps["rounded"][0]
    assert steps["rounded"][1] < steps["exact"][1]


@pytest.mark.parametrize("formats", [(WEIGHTS,), (WEIGHTS, MASTER), (GRADIENTS,)])
def test_the_search_chooses_no_ddp_for_gradients_in_another_format(formats: tuple[str, ...]) -> None:
    free = ["parallel.strategy=auto", "batch.size=64"]
    overrides, chosen = auto_layout.choose_layout(load("llama-1b", [*free, *formats]), P5)
    assert "parallel.strategy=fsdp" in overrides or "parallel.strategy=hsdp" in overrides
    assert check(load("llama-1b", [*free, *formats, *overrides])) == []
    model = build_transformer(load("llama-1b", []).model)
    assert "ddp stores gradients in the format" in unsupported_reason(model, replace(chosen.layout, zero=0, shard=0))
    # With tensor parallelism, fully_shard takes the place of ddp.
    assert not unsupported_reason(model, replace(chosen.layout, zero=0, shard=0, tp=2, dp=4))


def test_a_layout_option_takes_the_formats() -> None:
    layout = parse_layout("dp=8,weight_bytes=2,master_bytes=4,moment_bytes=4,stored_gradient_bytes=2")
    assert (layout.optimizer_bytes, layout.summed_gradient_bytes) == (8, 2)
    assert parse_layout("moment_bytes=0").optimizer_bytes == 0
    for text in ("moment_bytes=many", "moment_bytes=-1", "moment_bytes=nan", "stored_gradient_bytes=0"):
        with pytest.raises(ConfigError, match="allowed: "):
            parse_layout(text)
    with pytest.raises(ConfigError, match="allowed: above 0, up to 1"):
        parse_layout("compression=1.5")
