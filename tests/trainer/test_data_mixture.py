"""Mixtures: every prefix holds the weights, each source runs through its own epochs, and nothing depends on ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.token_shards import write_shards
from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.mixture import name_sources
from trainer.config.models import LlamaConfig, MlpConfig
from trainer.config.schema import Config, DataConfig, EvaluationConfig
from trainer.data import index
from trainer.data.identity import identify_data, list_data_changes
from trainer.data.interleave import count_draws, scale_weights
from trainer.data.loader import Loader
from trainer.data.mixture import Ingredient, Mixture, describe_mixture
from trainer.data.order import Ids
from trainer.data.registry import Sources, open_sources
from trainer.data.source import Arrays


@dataclass
class Numbers:
    """A data set whose inputs are its ids plus an offset, and whose targets are epochs."""

    length: int
    offset: int = 0
    fingerprint = "numbers"
    is_remote: bool = False

    @property
    def group_sizes(self) -> Ids:
        return np.array([self.length])

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        assert ids.min() >= 0
        assert ids.max() < self.length
        return {"inputs": ids + self.offset, "targets": np.full(len(ids), -1 if epoch is None else epoch)}


def make_mixture(*weights: float, lengths: tuple[int, ...] = (7, 100, 31)) -> Mixture:
    names = ("web", "code", "books")
    sources = [Numbers(length, 1000 * number) for number, length in enumerate(lengths)]
    return Mixture([Ingredient(*item) for item in zip(names, sources, weights, strict=False)])


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1, 1, 1), (5, 0.001), (0.4, 0.3, 0.2, 0.05, 0.05), (1,), (1,) * 12])
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_every_prefix_holds_the_weights(weights: tuple[float, ...], seed: int) -> None:
    bound = sum(1 / n for n in range(1, len(weights) + 1))
    share = np.array(weights)[:, None] / sum(weights)
    for start in (0, 10**12):
        positions = np.arange(start, start + 5000)
        counts = count_draws(scale_weights(weights), seed, positions)
        # A position takes exactly one sample.
        assert (counts.sum(axis=0) == positions).all()
        assert (np.diff(counts, axis=1) >= 0).all()
        rounding = start / (1 << 20)
        assert np.abs(counts - share * positions).max() < bound + rounding
    assert (count_draws(scale_weights(weights), seed, np.array([0])) == 0).all()


def test_another_seed_takes_other_sources_at_the_same_position() -> None:
    patterns = {tuple(np.diff(count_draws([1, 1], seed, np.arange(9)))[0].tolist()) for seed in range(20)}
    assert len(patterns) == 2


def test_each_source_runs_through_epochs_of_its_own() -> None:
    mixture = make_mixture(0.5, 0.3, 0.2)
    draws = mixture.draw(3, 0, 1000)
    for number, (length, count) in enumerate(zip((7, 100, 31), (500, 300, 200), strict=True)):
        start = (0, 7, 107)[number]
        is_own = (draws.ids >= start) & (draws.ids < start + length)
        ids, epochs = draws.ids[is_own], draws.epochs[is_own]
        assert abs(len(ids) - count) <= 1
        assert epochs.tolist() == [n // length for n in range(len(ids))]
        for epoch in range(len(ids) // length):
            assert sorted(ids[epochs == epoch]) == list(range(start, start + length))


def test_draws_do_not_depend_on_the_first_position_requested() -> None:
    mixture = make_mixture(0.5, 0.3, 0.2)
    whole = mixture.draw(5, 0, 600)
    part = mixture.draw(5, 123, 300)
    assert np.array_equal(whole.ids[123:423], part.ids)
    assert np.array_equal(whole.epochs[123:423], part.epochs)


def test_the_order_does_not_change_between_versions() -> None:
    """A run resumed with a newer version of muster must continue in the same order."""
    assert make_mixture(0.7, 0.2, 0.1).draw(1, 20, 12).ids.tolist() == FROM_20


FROM_20 = [23, 0, 6, 119, 1, 4, 5, 64, 3, 2, 70, 3]


@pytest.mark.parametrize("seed", range(4))
def test_crashes_and_resizes_never_skip_or_repeat_a_sample(seed: int) -> None:
    rng = random.Random(seed)
    mixture = make_mixture(0.6, 0.3, 0.1)
    draws = mixture.draw(seed, 0, 480)
    # The inputs and targets of Numbers show which sample was fetched and in which epoch.
    expected = mixture.fetch(draws.ids, 0)["inputs"].tolist()
    seen: list[int] = []
    epochs: list[int] = []
    sources: list[int] = []
    while len(seen) < 480:
        dp_size = rng.choice([1, 2, 4, 8])
        loaders = [
            Loader(mixture, seed, 16, dp_rank=rank, dp_size=dp_size, position=len(seen), workers=rng.choice([0, 2]))
            for rank in range(dp_size)
        ]
        for _ in range(min(rng.randrange(1, 8), (480 - len(seen)) // 16)):
            batches = [next(loader) for loader in loaders]
            seen += [value for batch in batches for value in batch.tensors["inputs"].tolist()]
            epochs += [value for batch in batches for value in batch.tensors["targets"].tolist()]
            sources += [value for batch in batches for value in batch.tensors["sources"].tolist()]
            counts = {name: sources[-16:].count(number) for number, name in enumerate(("web", "code", "books"))}
            assert all(batch.source_counts == counts for batch in batches)
        counts = loaders[0].source_counts
        assert sum(counts.values()) == len(seen)
        assert counts["samples/code"] == sum(1000 <= value < 2000 for value in seen)
        for loader in loaders:
            loader.close()
    assert seen == expected
    assert sources == [value // 1000 for value in seen]
    assert epochs == draws.epochs.tolist()


def test_a_plain_source_has_no_counts() -> None:
    loader = Loader(Numbers(10), 1, 2, workers=0)
    assert loader.source_counts == next(loader).source_counts == {}


def test_the_mixture_is_described_with_the_epochs_of_a_run() -> None:
    assert describe_mixture(make_mixture(3, 1), 1, 400) == [
        "web: 75.0% of the samples, 300 in this run, which is 42.86 epochs of its 7",
        "code: 25.0% of the samples, 100 in this run, which is 1.00 epochs of its 100",
    ]


def mix(*entries: str, **evaluation: float) -> Config:
    return Config(
        name="test",
        model=LlamaConfig(vocab_size=100, seq_len=4),
        data=DataConfig(kind="tokens", mixture=entries),
        evaluation=EvaluationConfig(**evaluation),
    )


def open_mixture(*entries: str, **evaluation: float) -> Sources:
    return open_sources(mix(*entries, **evaluation))


def test_shards_are_mixed_and_held_out_from_each_source(tmp_path: Path) -> None:
    web, code = write_shards(tmp_path / "web", range(41)), write_shards(tmp_path / "code", range(50, 71))
    sources = open_mixture(f"{web}=3", f"{code}=1", share=0.2)
    assert isinstance(sources.training, Mixture)
    assert isinstance(sources.evaluation, Mixture)
    assert [item.source.length for item in sources.training.ingredients] == [8, 4]
    held_out = {
        item.name: item.source.fetch(np.arange(item.source.length), None) for item in sources.evaluation.ingredients
    }
    assert held_out["web"]["inputs"].tolist() == [[32, 33, 34, 35], [36, 37, 38, 39]]
    assert held_out["code"]["inputs"].tolist() == [[66, 67, 68, 69]]
    draws = sources.training.draw(1, 0, 40)
    inputs = sources.training.fetch(draws.ids, 0)["inputs"]
    assert (inputs[:, 0] < 50).sum() == 30


def test_all_bad_sources_are_named(tmp_path: Path) -> None:
    web, empty = write_shards(tmp_path / "web", range(41)), write_shards(tmp_path / "empty", [])
    with pytest.raises(ConfigError) as caught:
        open_mixture(f"{web}=1", f"{empty}=1", f"{tmp_path}/nowhere=1")
    assert [problem.where for problem in caught.value.problems] == ["data.mixture", "data.mixture"]
    assert f"no shard of {empty} has the 5 tokens of a sample" in str(caught.value)
    assert f"there is no folder {tmp_path}/nowhere; make it: python -m trainer prepare" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vocab_size": 90}, "the tokenizer bytes (90 tokens, no end-of-text token)"),
        ({"eos": 7}, "the tokenizer bytes (100 tokens, end-of-text token 7)"),
        ({"tokenizer": "Qwen3"}, "the tokenizer Qwen3 (100 tokens, no end-of-text token)"),
    ],
)
def test_sources_of_other_tokenizers_are_rejected(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    web, code = write_shards(tmp_path / "web", range(41)), write_shards(tmp_path / "code", range(41))
    index.write(code, replace(index.read(code), **changes))
    with pytest.raises(ConfigError) as caught:
        open_mixture(f"{web}=1", f"{code}=1")
    message = f"data.mixture: {code} was made with {text}, but {web} with the tokenizer bytes (100 tokens, no end-of"
    assert str(caught.value).startswith(message)


def test_a_share_that_holds_out_nothing_of_a_source_names_it(tmp_path: Path) -> None:
    web, code = write_shards(tmp_path / "web", range(81)), write_shards(tmp_path / "code", range(9))
    with pytest.raises(ConfigError, match=rf"evaluation.share: 0.1 of 2 samples of {code} leaves none to evaluate on"):
        open_mixture(f"{web}=1", f"{code}=1", share=0.1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataConfig(kind="tokens", mixture=("a",)), "data.mixture: 'a' is not PATH=WEIGHT with a weight above 0"),
        (DataConfig(kind="tokens", mixture=("=1",)), "'=1' is not PATH=WEIGHT"),
        (DataConfig(kind="tokens", mixture=("a=0",)), "'a=0' is not PATH=WEIGHT"),
        (DataConfig(kind="tokens", mixture=("a=-1",)), "'a=-1' is not PATH=WEIGHT"),
        (DataConfig(kind="tokens", mixture=("a=nan",)), "'a=nan' is not PATH=WEIGHT"),
        (DataConfig(kind="tokens", mixture=("a=inf",)), "'a=inf' is not PATH=WEIGHT"),
        (DataConfig(kind="tokens", mixture=("a=much",)), "'a=much' is not PATH=WEIGHT"),
        (DataConfig(kind="tokens", mixture=("a=1", "./a/=2")), "a is listed 2 times; list it once"),
        (DataConfig(kind="tokens", path="b", mixture=("a=1",)), "is set, but so is data.path=b; add that path to the"),
        (DataConfig(kind="synthetic", mixture=("a=1",)), "is set, but data.kind is synthetic; only token shards"),
    ],
)
def test_nonsense_is_rejected(data: DataConfig, message: str) -> None:
    problems = check(Config(name="test", model=LlamaConfig(), data=data))
    assert len(problems) == 1
    assert message in str(problems[0])


def test_a_path_may_contain_the_separator_and_models_without_tokens_are_rejected() -> None:
    data = DataConfig(kind="tokens", mixture=("runs/lr=1/shards=0.5",))
    assert check(Config(name="test", model=LlamaConfig(), data=data)) == []
    assert "mlp does not read tokens" in str(check(Config(name="test", model=MlpConfig(), data=data))[0])


def test_sources_have_short_names_where_these_differ() -> None:
    assert name_sources(["/data/web", "/data/code/"]) == ["web", "code"]
    assert name_sources(["/a/shards", "/b/shards", "/c/code"]) == ["/a/shards", "/b/shards", "code"]


def test_changes_since_a_checkpoint_name_the_source() -> None:
    config = mix("web=1", "code=1")
    before = identify_data(make_mixture(0.5, 0.5), config)
    assert list_data_changes(before, identify_data(make_mixture(0.5, 0.5), config)) == []
    other_weight = identify_data(make_mixture(0.5, 0.25), config)
    assert list_data_changes(before, other_weight) == ["weight of source code 0.5 then, 0.25 now"]
    assert list_data_changes(before, identify_data(make_mixture(7, 7), config)) == []
    renamed = {**before, "mixture": {"text": before["mixture"]["web"], "code": before["mixture"]["code"]}}
    assert list_data_changes(before, renamed) == []
    replaced = {**renamed, "mixture": {**renamed["mixture"], "text": {**before["mixture"]["web"], "content": "other"}}}
    assert list_data_changes(before, replaced) == ["source web was removed", "source text was added"]
    longer = identify_data(make_mixture(0.5, 0.5, lengths=(7, 120)), config)
    assert list_data_changes(before, longer) == ["samples of source code 100 then, 120 now"]
    third = identify_data(make_mixture(0.5, 0.5, 0.5), config)
    assert list_data_changes(before, third) == ["source books was added"]
    assert list_data_changes(third, before) == ["source books was removed"]
    plain = identify_data(Numbers(10), config)
    assert list_data_changes(plain, {**plain, "seed": 2}) == ["seed 1 then, 2 now"]
    windowed = replace(config, data=replace(config.data, shuffle_shards=2))
    assert list_data_changes(plain, identify_data(Numbers(10), windowed)) == ["shuffle_shards 0 then, 2 now"]
    # A checkpoint of an earlier version lacks values.
    assert list_data_changes({"samples": 10}, plain) == []
