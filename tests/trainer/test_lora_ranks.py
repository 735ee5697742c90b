"""LoRA's matrices on several ranks: gradients, resumed runs and exported weights are those of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.curves import config_of
from tests.trainer.lora_rank import compute_gradients
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import DECODER, LLAMA, LORA, MIXTURE, settings
from trainer.config.load import from_dict
from trainer.models import hf
from trainer.weights import export

HERE = "tests.trainer.lora_rank"
RESUMED = "tests.trainer.resumed_rank"
NIGHTLY = pytest.mark.nightly
# Only the order of sums differs.
GRADIENT_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-5


@pytest.mark.nightly_cases("tiny-gpt2-model1-single tensor=2-2")
@pytest.mark.parametrize(
    ("preset", "model", "strategy", "ranks"),
    [
        pytest.param(
            "tiny-llama", (*LLAMA, "lora.layers=[attention.*, ffn.*, head]"), "fsdp tensor=2", 4, marks=NIGHTLY
        ),
        # It has biases, and its norms have two weights.
        ("tiny-gpt2", DECODER, "single tensor=2", 2),
        ("tiny-moe", MIXTURE, "fsdp expert=2", 2),
        ("tiny-moe", MIXTURE, "single tensor=2", 2),
        pytest.param("tiny-moe", MIXTURE, "ddp expert=2", 2, marks=NIGHTLY),
        # The ranks do not divide the experts, so they share the weights of each expert.
        pytest.param("tiny-moe", (*MIXTURE, "model.experts=7"), "fsdp", 2, marks=NIGHTLY),
        pytest.param("tiny-moe", (*MIXTURE, "model.experts=7"), "fsdp tensor=2", 4, marks=NIGHTLY),
    ],
)
def test_gradients_are_those_of_one_rank(preset: str, model: tuple[str, ...], strategy: str, ranks: int) -> None:
    """Frozen weights have none, and all ranks agree."""
    base = [*model, *LORA]
    expected = compute_gradients(config_of(preset, [*base, *settings("single")]), micro=4)
    config = config_of(preset, [*base, *settings(strategy)])
    for gradients in on_ranks(f"{HERE}:compute_gradients", ranks=ranks, config=config, micro=4):
        assert gradients.keys() == expected.keys()
        for name, gradient in expected.items():
            difference = np.abs(gradients[name] - gradient).max()
            assert difference <= GRADIENT_TOLERANCE * np.abs(gradient).max(), name


@NIGHTLY
@pytest.mark.parametrize(
    ("preset", "model", "strategy", "ranks"),
    [
        ("tiny-llama", LLAMA, "single tensor=2", 2),
        ("tiny-llama", LLAMA, "fsdp tensor=2", 4),
        ("tiny-moe", MIXTURE, "fsdp expert=2", 2),
        ("tiny-moe", MIXTURE, "fsdp expert=2", 4),
        ("tiny-moe", MIXTURE, "fsdp tensor=2", 4),
    ],
)
def test_a_run_resumes_exactly_and_exports_what_one_rank_exports(
    preset: str, model: tuple[str, ...], strategy: str, ranks: int, tmp_path: Path
) -> None:
    alone = train_and_export(preset, model, "single", 1, tmp_path / "alone")
    together = train_and_export(preset, model, strategy, ranks, tmp_path / "together")
    assert alone.keys() == together.keys()
    for name, weight in alone.items():
        assert torch.allclose(together[name], weight, atol=WEIGHT_TOLERANCE, rtol=0), name


def train_and_export(
    preset: str, model: tuple[str, ...], strategy: str, ranks: int, folder: Path
) -> dict[str, torch.Tensor]:
    """Return the exported weights of a run that is shown to resume exactly."""
    config: dict[str, Any] = config_of(preset, [*model, *LORA, *settings(strategy), f"run.folder={folder}"])
    written = on_ranks(f"{RESUMED}:train_and_save", ranks=ranks, config=config, steps=3, more=2)
    resumed = on_ranks(f"{RESUMED}:load_and_train", ranks=ranks, config=config, more=2)
    assert [result["losses"] for result in resumed] == written
    export(folder, folder / "exported")
    settings_of_model = from_dict(config).model
    return {name: value.clone() for name, value in hf.load(folder / "exported", settings_of_model).items()}
