"""LoRA trains only its own layers, can be merged into the weights, and survives checkpoints and export."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests.trainer.curves import make_step
from tests.trainer.launch import SMALL_LLAMA, losses
from trainer.__main__ import main
from trainer.api import Trainer
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.config.models import LlamaConfig, MixtralConfig
from trainer.config.schema import LoraConfig, OptimizerConfig
from trainer.life.outcome import Code
from trainer.models import hf
from trainer.models.experts import Groups
from trainer.models.functional import compute_loss
from trainer.models.init import fill
from trainer.models.lora import LoraExpertLinear, LoraLinear, add_lora, is_adapter, merge
from trainer.models.registry import build_model
from trainer.models.shape import shape_of

LLAMA = LlamaConfig(vocab_size=61, dim=32, layers=2, heads=4, kv_heads=2, ffn=48, seq_len=16)
MIXTURE = MixtralConfig(vocab_size=61, dim=32, layers=2, heads=4, kv_heads=2, ffn=24, seq_len=16, experts=6, top_k=3)
LORA = LoraConfig(rank=3, alpha=6.0)
MODEL: Any = load(SMALL_LLAMA[0], list(SMALL_LLAMA[1:])).model
TOKENS = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(3))


def test_only_the_added_weights_are_trained() -> None:
    plain, changed = make_model(), add_lora(make_model(), LORA)
    fill([changed], seed=1)
    assert torch.equal(changed(TOKENS[:, :-1]), plain(TOKENS[:, :-1]))
    trained = {name for name, parameter in changed.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in changed.named_parameters() if is_adapter(name)}
    # Queries, keys, values, outputs and three feed-forward layers, in two blocks.
    assert len(trained) == 2 * 2 * 7
    curve = train(changed)
    assert curve[-1] < curve[0] - 0.2
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, changed.get_parameter(name))


@pytest.mark.parametrize("config", [LLAMA, MIXTURE], ids=["llama", "mixture of experts"])
def test_merged_weights_compute_the_same(config: Any) -> None:
    changed = add_lora(make_model(config), LORA)
    train(changed)
    assert all(weight.any() for name, weight in changed.named_parameters() if is_adapter(name))
    plain = build_model(config)
    plain.load_state_dict(merge(dict(changed.named_parameters()), LORA))
    expected = changed(TOKENS[:, :-1])
    assert not torch.allclose(make_model(config)(TOKENS[:, :-1]), expected, atol=1e-3)
    assert torch.allclose(plain(TOKENS[:, :-1]), expected, atol=1e-5)


def test_layers_are_chosen_by_the_end_of_their_names() -> None:
    model = add_lora(make_model(), replace(LORA, layers=("attention.[qv]", "layers.1.ffn.up", "head")))
    chosen = {name for name, part in model.named_modules() if isinstance(part, LoraLinear)}
    blocks = {f"layers.{i}.attention.{part}" for i in range(2) for part in "qv"}
    assert chosen == {*blocks, "layers.1.ffn.up", "head"}


def test_each_expert_has_a_change_of_its_own() -> None:
    """Rows of an expert are multiplied by its own matrices, and the router stays as it was."""
    model = add_lora(make_model(MIXTURE), LORA)
    layer = model.layers["0"].ffn.experts.down
    assert isinstance(layer, LoraExpertLinear)
    assert (layer.lora_a.shape, layer.lora_b.shape) == ((6, 3, 24), (6, 32, 3))
    torch.nn.init.normal_(layer.lora_b)
    rows = torch.randn(5, 24)
    outputs = layer(rows, Groups(torch.tensor([]), [2, 0, 0, 3, 0, 0]))
    weight = layer.weight + layer.scale * layer.lora_b @ layer.lora_a
    expected = torch.cat([rows[:2] @ weight[0].T, rows[2:] @ weight[3].T])
    assert torch.allclose(outputs, expected, atol=1e-5)
    assert not model.layers["0"].ffn.router.weight.requires_grad


def test_layers_of_any_model_can_be_changed() -> None:
    model = add_lora(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), replace(LORA, layers=("*",)))
    assert isinstance(model[0], LoraLinear)
    assert isinstance(model[2], LoraLinear)
    assert model[2].bias is not None
    assert not model[2].bias.requires_grad


def test_a_model_trained_from_python_can_be_merged(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    lora = replace(LORA, layers=("*",))
    model = add_lora(deepcopy(plain), lora)
    trainer = Trainer(model, optimizer=OptimizerConfig(lr=0.1), folder=tmp_path, device="cpu")
    batch = {"inputs": torch.randn(16, 4), "targets": torch.randint(2, (16,))}
    for _ in range(2):
        trainer.train_step(batch)
    weights = trainer.state_dict()
    trainer.close()
    assert all(torch.equal(weights[name], value) for name, value in before.items()), "these are frozen"
    plain.load_state_dict(merge(weights, lora))
    assert not torch.equal(plain[0].weight, before["0.weight"])
    torch.testing.assert_close(plain(batch["inputs"]), model(batch["inputs"]))


def test_layers_that_cannot_be_changed_are_rejected() -> None:
    with pytest.raises(ConfigError) as caught:
        add_lora(make_model(), replace(LORA, layers=("attention.*", "mlp.*", "q_proj")))
    options = "attention.q, attention.k, attention.v, attention.o, ffn.gate, ffn.up, ffn.down, head"
    assert str(caught.value).splitlines() == [
        f"lora.layers: mlp.* fits no linear layer; use: {options}",
        f"lora.layers: q_proj fits no linear layer; use: {options}",
    ]
    tied = build_model(replace(LLAMA, tie_embeddings=True))
    with pytest.raises(ConfigError, match=r"lora\.layers: head shares its weight with another layer"):
        add_lora(tied, replace(LORA, layers=("head",)))


def test_a_rank_that_no_chosen_layer_can_have_is_rejected() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ConfigError) as caught:
        add_lora(model, replace(LORA, rank=5, layers=("*",)))
    assert str(caught.value) == "lora.rank: 5, but the chosen layers are smaller: 0 is 8 x 4; use at most 4"
    assert all(parameter.requires_grad for parameter in model.parameters()), "a rejected model is not changed"
    assert isinstance(add_lora(model, replace(LORA, rank=4, layers=("*",)))[2], LoraLinear)


def test_frozen_weights_have_no_gradients_to_count() -> None:
    shape = shape_of(LLAMA)
    saved = shape.flops_per_sample() - shape.flops_per_sample(is_frozen=True)
    assert saved == 2 * shape.multiplied * LLAMA.seq_len


def test_frozen_weights_have_no_optimizer_state() -> None:
    overrides = ["lora.rank=2", "checkpoint.initial=unused", "parallel.strategy=single"]
    step = make_step(load(SMALL_LLAMA[0], [*SMALL_LLAMA[1:], *overrides]))
    names = {name.rpartition(".")[0] for name in step.optimizer.tensors() if name != "updates"}
    assert names == {name for name, _ in step.engine.named_parameters() if is_adapter(name)}


def test_a_run_starts_from_weights_resumes_exactly_and_exports_them_merged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base = build_model(MODEL)
    fill([base], seed=7)
    weights = {name: parameter.detach() for name, parameter in base.named_parameters()}
    hf.export(weights, MODEL, tmp_path / "base")
    settings = ["lora.rank=2", f"checkpoint.initial={tmp_path / 'base'}", "schedule.kind=constant", "metrics.every=1"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for folder, steps in ((whole, 4), (resumed, 2), (resumed, 4)):
        assert main([*SMALL_LLAMA, *settings, f"run.folder={folder}", f"steps={steps}"]) == Code.FINISHED
    assert losses(resumed) == losses(whole)
    state = weights_in(whole)
    assert all(torch.equal(state[name], value) for name, value in weights.items())
    assert main(["export", str(whole), str(tmp_path / "merged")]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    ours = build_model(MODEL)
    ours.load_state_dict(merge(state, LoraConfig(rank=2)))
    with torch.no_grad():
        assert torch.allclose(ours(TOKENS[:, :-1]), theirs(TOKENS[:, :-1]).logits, atol=1e-5)
        assert not torch.allclose(ours(TOKENS[:, :-1]), base(TOKENS[:, :-1]), atol=1e-4)
    capfd.readouterr()
    again = [*SMALL_LLAMA, f"run.folder={tmp_path / 'again'}", f"checkpoint.initial={whole}"]
    assert main(again) == Code.BAD_INPUT
    assert f"checkpoint.initial: {whole} is a run with lora.rank 2, which stores its changes" in capfd.readouterr().err


def make_model(config: Any = LLAMA) -> Any:
    model = build_model(config)
    fill([model], seed=1)
    return model


def train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    curve = []
    for _ in range(15):
        loss = compute_loss(model(TOKENS[:, :-1]), TOKENS[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    return curve


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run's newest checkpoint, those of LoRA included."""
    checkpoints = Checkpoints(folder)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    with torch.device("meta"):
        shell = add_lora(build_model(MODEL), LoraConfig(rank=2))
    state = {name: torch.empty(parameter.shape) for name, parameter in shell.named_parameters()}
    checkpoints.load(checkpoint, {f"model.{name}": value for name, value in state.items()}, partial=True)
    return state
