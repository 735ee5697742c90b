"""Models of transformers train as they are: their layers are found, and sharding and recomputing change no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.schema import OptimizerConfig, ParallelConfig
from trainer.models.functional import compute_loss

VOCABULARY, STEPS = 32, 4
SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "num_hidden_layers": 3, "num_attention_heads": 2}
WIDTHS: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_key_value_heads": 1}
MODELS = {
    "llama": (
        {**SMALL, **WIDTHS},
        "units: 3 x LlamaDecoderLayer (model.layers.0 to model.layers.2) hold 85% of the weights, the largest 28.3%; "
        "other weights: model.embed_tokens, model.norm, lm_head",
    ),
    # The embedding is the head.
    "gpt2": (
        {"vocab_size": VOCABULARY, "n_layer": 3, "n_head": 2, "n_embd": 16, "n_positions": 16},
        "units: 3 x GPT2Block (transformer.h.0 to transformer.h.2) hold 92% of the weights, the largest 30.8%; "
        "other weights: transformer.wte, transformer.wpe, transformer.ln_f, lm_head",
    ),
}

TOKENS = torch.arange(4 * 9).view(4, 9) % VOCABULARY
BATCH = {"inputs": TOKENS[:, :-1], "targets": TOKENS[:, 1:]}


@pytest.mark.parametrize("family", MODELS)
def test_a_model_of_transformers_is_sharded_and_recomputed_layer_by_layer(family: str, tmp_path: Path) -> None:
    expected, _ = train(family, tmp_path / "plain", ParallelConfig(strategy="single"))
    assert expected[-1]["loss"] < expected[0]["loss"]
    sharded, lines = train(family, tmp_path / "sharded", ParallelConfig(strategy="fsdp", recompute="full"))
    assert lines[0] == MODELS[family][1]
    for step, plain in zip(sharded, expected, strict=True):
        assert step == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("family", MODELS)
def test_a_trained_model_is_evaluated_saved_and_opened_by_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    trainer = make_trainer(model, tmp_path / "run", ParallelConfig(strategy="fsdp"))
    trainer.train_step(BATCH)
    loss = trainer.evaluate([BATCH])["loss"]
    weights = trainer.state_dict()
    assert float(trainer.train_step(BATCH)) == pytest.approx(loss, rel=1e-5)
    trainer.close()
    copy = make_model(family)
    copy.load_state_dict(weights)
    copy.save_pretrained(tmp_path / "exported")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    with torch.no_grad():
        assert float(compute_loss(again(BATCH["inputs"]).logits, BATCH["targets"])) == pytest.approx(loss, rel=1e-5)


def test_a_cache_that_recomputing_would_fill_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        train("llama", tmp_path, ParallelConfig(strategy="single", recompute="full"), use_cache=True)
    assert str(error.value) == (
        "parallel.recompute: full, but config.use_cache of LlamaForCausalLM is true; "
        "set model.config.use_cache to False, which training does not need, or use none"
    )


def train(family: str, folder: Path, parallel: ParallelConfig, **options: Any) -> tuple[list[Any], list[str]]:
    """Return loss and gradient norm of each step, and what the trainer says about the model."""
    trainer = make_trainer(make_model(family, **options), folder, parallel)
    results = []
    for _ in range(STEPS):
        trainer.train_step(BATCH)
        metrics = trainer.metrics()
        results.append({name: metrics[name] for name in ("loss", "grad_norm")})
    trainer.close()
    return results, trainer.describe()


def make_model(family: str, *, use_cache: bool = False) -> Any:
    """Return a model with the same weights every time, not in training mode, so without dropout."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **MODELS[family][0], use_cache=use_cache)
    return AutoModelForCausalLM.from_config(config).eval()


def make_trainer(model: Any, folder: Path, parallel: ParallelConfig) -> Trainer:
    return Trainer(model, strategy=parallel, optimizer=OptimizerConfig(lr=0.01), folder=folder, device="cpu")
