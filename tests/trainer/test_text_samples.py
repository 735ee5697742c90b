"""Text samples: what a model writes after a prompt, under every strategy, and where a run records it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.launch import SMALL_LLAMA, digests, lines
from tests.trainer.logit_counter import LogitCounter
from tests.trainer.phase_limits import record_limits
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings
from trainer.__main__ import main
from trainer.config.errors import ConfigError
from trainer.config.load import from_dict, load
from trainer.data import index
from trainer.data.registry import open_sources
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.text_sampler import TextSampler
from trainer.life.hang_limit import BEFORE_STEPS_S
from trainer.life.outcome import Code

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
STRATEGIES = {
    "fsdp": ("fsdp", 2),
    "tensor": ("single tensor=2", 2),
    "context": ("single context=2", 2),
    "pipeline": ("single pipeline=2", 2),
    "pipeline, interleaved": ("single pipeline=2 schedule=interleaved", 2),
}
NIGHTLY = ("tensor", "context", "pipeline")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text").write_text(ALPHABET * 200)
    assert main(["prepare", str(folder / "text"), "--out", str(folder / "shards"), "--workers", "1"]) == 0
    return folder / "shards"


def set_up(shards: Path, *more: str) -> list[str]:
    data = ["data.kind=tokens", f"data.path={shards}", "model.vocab_size=258", "evaluation.share=0.1"]
    return [*data, 'evaluation.prompts=["abc", "uvwxy"]', "evaluation.prompt_tokens=6", *more]


def test_a_run_records_what_its_model_writes(shards: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, *set_up(shards), "parallel.strategy=single", "batch.size=8", "optimizer.lr=0.03"]
    arguments += ["evaluation.every=20", f"run.folder={folder}", "checkpoint.every=40"]
    assert main([*arguments, "steps=60"]) == Code.FINISHED
    content = lines(folder / "metrics" / "texts-00000.jsonl")
    assert [line["step"] for line in content] == [20, 40, 60]
    assert content[-1]["texts"] == [{"prompt": "abc", "text": "defghi"}, {"prompt": "uvwxy", "text": "zabcde"}]
    assert "text at step 60: 'abc' -> 'defghi'" in capfd.readouterr().out
    assert main(["report", str(folder)]) == 0
    page = (folder / "report" / "index.html").read_text()
    assert "<td>60</td><td>uvwxy</td><td>zabcde</td>" in page


def test_text_samples_change_no_bit_of_the_training(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*SMALL_LLAMA, *set_up(shards), "parallel.strategy=single", "steps=3", "evaluation.every=1"]
    plain = [argument for argument in arguments if "prompt" not in argument]
    limits = record_limits(monkeypatch)
    assert main([*arguments, f"run.folder={tmp_path / 'run'}"]) == Code.FINISHED
    # Only the first batch and the first token of a process may compile the model.
    assert limits["text samples"] == [BEFORE_STEPS_S, None, None]
    first, *later = split_before_last(limits["evaluation"], BEFORE_STEPS_S)
    assert first[0] == BEFORE_STEPS_S
    assert [set(limits_of_one) for limits_of_one in (first[1:], *later)] == [{None}] * 3
    assert main([*plain, f"run.folder={tmp_path / 'plain'}"]) == Code.FINISHED
    assert len(lines(tmp_path / "run" / "metrics" / "texts-00000.jsonl")) == 3
    assert digests(tmp_path / "plain", 3) == digests(tmp_path / "run", 3)


@pytest.mark.nightly_cases("fsdp")
@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in STRATEGIES]
)
def test_a_strategy_writes_what_one_rank_writes(strategy: str, shards: Path) -> None:
    options, ranks = STRATEGIES[strategy]
    (expected,) = write("single", 1, shards)
    assert len(set(expected.values())) == 2
    assert write(options, ranks, shards) == [expected] * ranks


def test_only_the_logits_of_the_next_tokens_exist(shards: Path) -> None:
    """A micro-batch has 2 rows of 64 tokens."""
    config = load("tiny-llama", set_up(shards, "parallel.strategy=single"))
    sampler = TextSampler(make_step(config).engine, config, micro=2)
    with LogitCounter(config.model.vocab_size) as counter:
        sampler.run()
    assert counter.rows == 2


@pytest.mark.parametrize("documents", ["joined", "separate"])
def test_blocks_compiled_for_an_evaluation_are_not_compiled_again(documents: str, shards: Path) -> None:
    compiled = ["compile.mode=blocks", "compile.backend=eager", f"data.documents={documents}", "model.layers=1"]
    config = load("tiny-llama", set_up(shards, *compiled, "parallel.strategy=single", "batch.micro=2"))
    engine = make_step(config).engine
    source = open_sources(config).evaluation
    assert source is not None
    counters.clear()
    torch.compiler.reset()
    assert Evaluator(engine, source, config, micro=2).run() is not None
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    assert TextSampler(engine, config, micro=2).run() is not None
    assert counters["stats"]["unique_graphs"] == graphs


def test_a_stop_ends_the_writing(shards: Path) -> None:
    config = load("tiny-llama", set_up(shards, "parallel.strategy=single"))
    sampler = TextSampler(make_step(config).engine, config, micro=2)
    answers = iter([False, False, True])
    assert sampler.run(lambda: next(answers)) is None
    assert list(answers) == []


def test_a_tokenizer_of_a_model_is_stored_with_the_shards(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"one": 0, "two": 1, "three": 2, "[UNK]": 3, "</s>": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Replace("zero", "")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "text").write_text("one two three " * 100)
    shards = tmp_path / "shards"
    arguments = ["prepare", str(tmp_path / "text"), "--out", str(shards), "--workers", "1"]
    arguments += ["--tokenizer", str(tmp_path / "model")]
    assert main(arguments) == 0
    config = load("tiny-llama", set_up(shards, "parallel.strategy=single", "evaluation.prompts=[one two]"))
    engine = make_step(config).engine
    (text,) = (TextSampler(engine, config, micro=2).run() or {}).values()
    assert set(text.split()) <= set(vocabulary)

    silent = replace(config, evaluation=replace(config.evaluation, prompts=("zero",)))
    with pytest.raises(ConfigError, match=r"evaluation\.prompts: the tokenizer of the data turns 'zero' into no token"):
        TextSampler(engine, silent, micro=2)

    # Shards of an earlier version lack the file; the same command adds it.
    (shards / "tokenizer.json").unlink()
    with pytest.raises(ConfigError) as error:
        TextSampler(engine, config, micro=2)
    assert f"evaluation.prompts: need the tokenizer model, but {shards} has no tokenizer.json; run pre" in str(
        error.value
    )
    assert main(arguments) == 0
    assert index.read(shards).tokenizer == "model"
    assert (shards / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.kind=synthetic"], "evaluation.prompts: are set, but synthetic data has no tokenizer; set data.kind to"),
        (["evaluation.prompts=[' ']"], "evaluation.prompts: one of them is empty; give each prompt at least a word"),
        (["evaluation.prompts=[a, a]"], "evaluation.prompts: one of them is there twice; give each prompt once"),
        (["evaluation.prompts=abc"], "evaluation.prompts: 'abc' is not allowed; allowed: list of texts"),
        (["evaluation.prompts=[]"], "evaluation.prompt_tokens: 6, but there are no prompts; set evaluation.prompts"),
        (["evaluation.prompt_tokens=0"], "evaluation.prompt_tokens: 0 is below 1"),
        (["evaluation.share=0"], "evaluation: has settings, but there is no evaluation set"),
        (["evaluation.prompt_tokens=62"], "evaluation.prompts: 'abc' has 3 tokens, and 62 are to follow, but a sequ"),
    ],
)
def test_invalid_prompts_are_rejected(more: list[str], message: str, shards: Path) -> None:
    def start() -> TextSampler:
        config = load("tiny-llama", [*set_up(shards), *more, "parallel.strategy=single"])
        return TextSampler(make_step(config).engine, config, micro=2)

    with pytest.raises(ConfigError) as error:
        start()
    assert message in str(error.value)


def split_before_last(limits: list[float | None], last: float) -> list[list[float | None]]:
    """Return the limits of each evaluation without its last one, which keeps it out of the step times."""
    evaluations: list[list[float | None]] = [[]]
    for index_, limit in enumerate(limits):
        if limit == last and index_ > 0:
            evaluations.append([])
        else:
            evaluations[-1].append(limit)
    return evaluations[:-1]


def write(strategy: str, ranks: int, shards: Path) -> list[dict[str, str]]:
    config = config_of("tiny-llama", [*set_up(shards), *settings(strategy), "model.dim=32", "optimizer.lr=0.02"])
    texts: list[dict[str, str]] = on_ranks(f"{__name__}:train_and_write", ranks=ranks, config=config)
    return texts


def train_and_write(config: dict[str, Any]) -> dict[str, str]:
    """Train a few steps on this rank, so that the predictions are clear, and return what the model writes."""
    parsed = from_dict(config)
    step = make_step(parsed)
    size = parsed.batch.size // step.engine.mesh.layout.dp_size
    for index_ in range(4):
        whole = global_batch(parsed, index_)
        step.run({key: value[step.engine.mesh.dp_rank * size :][:size] for key, value in whole.items()}, 2)
    texts = TextSampler(step.engine, parsed, micro=2).run()
    assert texts is not None
    return texts
