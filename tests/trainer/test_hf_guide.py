"""The guide "Train a Hugging Face model" works from start to end: settings, tokens, training, evaluation, export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.launch import events, losses
from trainer.__main__ import main
from trainer.life.outcome import Code

SENTENCE = "the quick brown fox jumps over the lazy dog and runs away from the sleeping cat"


@pytest.mark.nightly_cases("mistral-extra1")
@pytest.mark.parametrize(("family", "extra"), [("qwen3", []), ("mistral", ["lora.rank=4", "lora.alpha=32"])])
def test_a_folder_of_transformers_is_trained_on_text_evaluated_and_exported(
    family: str, extra: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    original = make_folder(family, tmp_path / "theirs")
    (tmp_path / "text.txt").write_text(f"{SENTENCE}\n" * 200)
    assert main(["settings", "--from", "theirs"]) == 0
    Path("mine.yaml").write_text(capfd.readouterr().out)
    assert main(["prepare", "text.txt", "--out", "shards", "--tokenizer", "theirs", "--workers", "1"]) == 0
    data = ["data.kind=tokens", "data.path=shards", "steps=6", "batch.size=8", "optimizer.lr=0.01"]
    run = ["model.seq_len=8", "run.folder=run", "run.device=cpu", "metrics.every=1", "metrics.peak_tflops=1"]
    held_out = ["evaluation.share=0.2", "evaluation.every=3", "checkpoint.best=loss"]
    assert main(["mine.yaml", *data, *run, *held_out, *extra]) == Code.FINISHED
    curve = losses(tmp_path / "run")
    assert curve[6] < 0.95 * curve[1]
    recorded = events(tmp_path / "run", "evaluated")[-1]
    capfd.readouterr()
    assert main(["evaluate", "run", "--json"]) == 0
    again = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert again["step"] == recorded["step"] == 6
    assert again["loss"] == pytest.approx(recorded["loss"], rel=1e-3)
    capfd.readouterr()
    # The run has recorded what an export needs of this file.
    Path("theirs/config.json").unlink()
    assert main(["export", "--best", "run", "mine"]) == 0
    assert capfd.readouterr().out.endswith(
        f"to the Hugging Face folder mine, with the tokenizer of {tmp_path}/theirs\n"
    )
    assert Path("mine/tokenizer.json").read_bytes() == Path("theirs/tokenizer.json").read_bytes()
    trained = AutoModelForCausalLM.from_pretrained("mine").eval()
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        assert not torch.allclose(trained(tokens).logits, original(tokens).logits, atol=1e-2)
    assert trained.config.model_type == family
    assert trained.config.max_position_embeddings == 16
    assert (trained.config.bos_token_id, trained.config.eos_token_id) == (3, 15)


def test_the_positions_and_special_tokens_of_a_folder_outlive_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_folder("qwen3", tmp_path / "theirs")
    assert main(["settings", "--from", "theirs"]) == 0
    Path("mine.yaml").write_text(capfd.readouterr().out)
    short = ["mine.yaml", "model.seq_len=8", "data.samples=64", "batch.size=8", "schedule.warmup=0"]
    short += ["run.device=cpu", "metrics.peak_tflops=1"]
    assert main([*short, "steps=1", "run.folder=run"]) == Code.FINISHED
    shutil.rmtree("theirs")
    resumed = [*short, "steps=2", "run.folder=run"]
    from_run = [*short, "steps=1", "run.folder=second", "checkpoint.initial=run"]
    for arguments, run in ((resumed, "run"), (from_run, "second")):
        assert main(arguments) == Code.FINISHED
        assert main(["export", run, f"{run}-exported"]) == 0
        exported = json.loads(Path(f"{run}-exported/config.json").read_text())
        assert exported["max_position_embeddings"] == 16
        assert (exported["bos_token_id"], exported["eos_token_id"]) == (3, 15)


def make_folder(family: str, folder: Path) -> torch.nn.Module:
    """Write a small model and its tokenizer as transformers does."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 16, "head_dim": 8}
    sizes |= {"bos_token_id": 3, "eos_token_id": 15}
    model: torch.nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
    model.save_pretrained(folder)
    vocabulary = {text: index for index, text in enumerate(dict.fromkeys([*SENTENCE.split(), "<unk>", "</s>"]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return model
