"""Samples whose documents are separated or packed: no prediction is lost, doubled or made across documents."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import numpy as np
import pytest

from trainer.config.errors import ConfigError
from trainer.config.models import LlamaConfig
from trainer.config.schema import Config, DataConfig, EvaluationConfig
from trainer.data import index
from trainer.data.loader import Loader
from trainer.data.packing import cut_documents, find_documents, pack, pack_shard
from trainer.data.prepare import main as prepare
from trainer.data.registry import open_source, open_sources
from trainer.data.source import Arrays, Source
from trainer.models.functional import IGNORED_TARGET

EOS = 256
SEQ_LEN = 16
# Lengths without the end token: an empty document, one that fills a sample exactly, and ones that are cut.
TEXTS = ["", "a", "bc", "def" * 3, "x" * SEQ_LEN, "y" * (SEQ_LEN - 1), "0123456789" * 5, "z" * (2 * SEQ_LEN), "end"] * 4


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    lines = (json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    folder = tmp_path / "shards"
    options = ["--workers", "1", "--shard-tokens", "200"]
    assert prepare([str(tmp_path / "texts.jsonl"), "--out", str(folder), *options]) == 0
    assert len(index.read(folder).shards) > 1
    return folder


def make_config(folder: Path, documents: Literal["joined", "separate", "packed"], **evaluation: Any) -> Config:
    data = DataConfig(kind="tokens", path=str(folder), documents=documents)
    model = LlamaConfig(vocab_size=257, seq_len=SEQ_LEN)
    return Config(name="test", model=model, data=data, evaluation=EvaluationConfig(**evaluation))


def fetch_all(source: Source) -> Arrays:
    return source.fetch(np.arange(source.length), 0)


def list_predictions(batch: Arrays) -> Counter[tuple[int, ...]]:
    """Return each counted target with all the tokens before it in its document."""
    predictions: Counter[tuple[int, ...]] = Counter()
    for inputs, targets, documents in zip(batch["inputs"], batch["targets"], batch["documents"], strict=True):
        for at in np.flatnonzero(targets != IGNORED_TARGET):
            seen = inputs[: at + 1][documents[: at + 1] == documents[at]]
            predictions[*seen.tolist(), int(targets[at])] += 1
    return predictions


def check_numbers(batch: Arrays) -> None:
    documents = batch["documents"]
    assert documents.shape == batch["inputs"].shape == batch["targets"].shape
    assert documents.dtype == np.int32
    assert (documents[:, 0] == 0).all()
    assert set(np.unique(np.diff(documents, axis=1))) <= {0, 1}


def test_separate_samples_are_the_same_windows_without_targets_across_documents(shards: Path) -> None:
    joined, separate = (fetch_all(open_source(make_config(shards, mode))) for mode in ("joined", "separate"))
    check_numbers(separate)
    is_end = joined["inputs"] == EOS
    assert (separate["inputs"] == joined["inputs"]).all()
    assert (separate["targets"] == np.where(is_end, IGNORED_TARGET, joined["targets"])).all()
    # A document begins after each end, and only there.
    assert (np.diff(separate["documents"], axis=1) == is_end[:, :-1]).all()
    assert is_end.sum() > SEQ_LEN


def test_packed_samples_predict_every_token_of_every_document_once(shards: Path) -> None:
    source = open_source(make_config(shards, "packed"))
    batch = fetch_all(source)
    check_numbers(batch)
    expected: Counter[tuple[int, ...]] = Counter()
    for text in TEXTS:
        tokens = [*text.encode(), EOS]
        for at in range(1, len(tokens)):
            # A document that is longer than a sample is cut into pieces of SEQ_LEN predictions.
            expected[tuple(tokens[(at - 1) // SEQ_LEN * SEQ_LEN : at + 1])] += 1
    assert list_predictions(batch) == expected


def test_padding_is_a_document_of_its_own_and_its_share_is_reported(shards: Path) -> None:
    sources = open_sources(make_config(shards, "packed", path=str(shards)))
    batch = fetch_all(sources.training)
    is_padding = batch["targets"] == IGNORED_TARGET
    assert is_padding.any()
    for documents, padding in zip(batch["documents"], is_padding, strict=True):
        assert not set(documents[padding]) & set(documents[~padding])
        assert len(set(documents[padding])) <= 1
    share = f"padding is {is_padding.mean():.1%} of them"
    note = f"{shards}: documents are packed into {sources.training.length} samples; {share}"
    assert sources.notes == (note, note)


@pytest.mark.parametrize("documents", ["separate", "packed"])
def test_the_order_does_not_depend_on_the_ranks_and_any_position_can_be_resumed(shards: Path, documents: Any) -> None:
    source = open_source(make_config(shards, documents))
    alone = read(Loader(source, 3, 4, workers=0), 6)
    ranks = [read(Loader(source, 3, 4, dp_rank=rank, dp_size=2, workers=0), 6) for rank in range(2)]
    resumed = read(Loader(open_source(make_config(shards, documents)), 3, 4, position=8, workers=0), 4)
    for step, batch in enumerate(alone):
        for name, array in batch.items():
            assert (np.concatenate([rank[step][name] for rank in ranks]) == array).all()
            assert step < 2 or (resumed[step - 2][name] == array).all()


def read(loader: Loader, batches: int) -> list[Arrays]:
    return [{name: tensor.numpy() for name, tensor in next(loader).tensors.items()} for _ in range(batches)]


def test_the_packing_is_stored_next_to_the_shards_and_replaced_if_damaged(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_files() -> list[Path]:
        return sorted(shards.glob("*.packed-*"))

    def refuse(*_: object) -> None:
        raise AssertionError("the shard is read again")

    expected = fetch_all(open_source(make_config(shards, "packed")))
    files = list_files()
    assert len(files) == len(index.read(shards).shards)
    with monkeypatch.context() as patched:
        patched.setattr("trainer.data.packing_file.pack_shard", refuse)
        assert (fetch_all(open_source(make_config(shards, "packed")))["inputs"] == expected["inputs"]).all()
        # Samples of another length are packed anew.
        with pytest.raises(AssertionError, match="read again"):
            open_source(replace(make_config(shards, "packed"), model=LlamaConfig(vocab_size=257, seq_len=8)))
    whole = files[0].read_bytes()
    for damaged in (b"", whole[:50], whole[:-8]):
        files[0].write_bytes(damaged)
        assert (fetch_all(open_source(make_config(shards, "packed")))["inputs"] == expected["inputs"]).all()
        assert files[0].read_bytes() == whole
    assert list_files() == files


def test_a_packing_that_becomes_shorter_is_named(shards: Path) -> None:
    open_source(make_config(shards, "packed"))
    source = open_source(make_config(shards, "packed"))
    file = min(shards.glob("*.packed-*"))
    os.truncate(file, 130)
    with pytest.raises(ConfigError, match=rf"{file} became shorter .*; start the run again, which writes it again"):
        fetch_all(source)
    assert fetch_all(open_source(make_config(shards, "packed")))


def test_ranks_begin_to_pack_at_different_shards(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fetch_all(open_source(make_config(shards, "packed")))
    for path in shards.glob("*.packed-*"):
        path.unlink()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    source = open_source(make_config(shards, "packed"))
    assert all((array == expected[name]).all() for name, array in fetch_all(source).items())
    written = sorted(shards.glob("*.packed-*"), key=lambda path: path.stat().st_mtime_ns)
    names = [shard.file for shard in index.read(shards).shards]
    half = len(names) // 2
    assert [path.name.partition(".packed-")[0] for path in written] == names[half:] + names[:half]


def test_a_folder_that_cannot_be_written_is_packed_at_every_start(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("trainer.data.packing_file.publish", fail)
    assert open_source(make_config(shards, "packed")).length
    assert not list(shards.glob("*.packed-*"))


def test_held_out_samples_are_the_last_of_each_shard_and_not_trained_on(shards: Path) -> None:
    sources = open_sources(make_config(shards, "packed", share=0.25))
    whole = open_source(make_config(shards, "packed"))
    assert sources.evaluation is not None
    parts = [fetch_all(sources.training), fetch_all(sources.evaluation)]
    assert sum((list_predictions(part) for part in parts), Counter()) == list_predictions(fetch_all(whole))
    assert sources.training.length + sources.evaluation.length == whole.length


def test_documents_that_were_joined_before_have_another_fingerprint(shards: Path) -> None:
    prints = {mode: open_source(make_config(shards, mode)).fingerprint for mode in ("joined", "separate", "packed")}
    # The same windows are read, so a run may change from joined to separate and continue.
    assert prints["joined"] == prints["separate"] != prints["packed"]


@pytest.mark.parametrize("documents", ["separate", "packed"])
def test_shards_without_an_end_token_are_rejected(shards: Path, documents: Any) -> None:
    without_end = shards.with_name("without_end")
    shutil.copytree(shards, without_end)
    index.write(without_end, replace(index.read(shards), eos=None))
    message = (
        r"data.path: .*without_end does not show where documents end: its tokenizer bytes has no end-of-text token; "
    )
    with pytest.raises(ConfigError, match=message + "set data.documents to joined, or name eos_token in"):
        open_source(make_config(without_end, documents))
    with pytest.raises(ConfigError, match=r"^evaluation.path: .*without_end does not show where documents end"):
        open_sources(make_config(shards, documents, path=str(without_end)))


def test_packed_documents_must_be_local(shards: Path, tmp_path: Path) -> None:
    with serve(shards) as url:
        data = DataConfig(kind="tokens", path=url, documents="separate", cache=str(tmp_path / "cache"))
        config = replace(make_config(shards, "separate"), data=data)
        assert (fetch_all(open_source(config))["documents"].max(axis=1) > 0).any()
        message = (
            "data.path: http.* is remote, but data.documents=packed reads all shards at the start; copy the folder"
        )
        with pytest.raises(ConfigError, match=message):
            open_source(replace(config, data=replace(data, documents="packed")))


@pytest.mark.parametrize("documents", ["separate", "packed"])
def test_each_source_of_a_mixture_has_its_own_documents(shards: Path, documents: Any) -> None:
    other = shards.with_name("other")
    shutil.copytree(shards, other)
    whole = make_config(shards, documents)
    mixture = replace(whole.data, path="", mixture=(f"{shards}=0.5", f"{other}=0.5"))
    sources = open_sources(replace(whole, data=mixture))
    mixed = fetch_all(sources.training)
    check_numbers(mixed)
    alone = list_predictions(fetch_all(open_source(whole)))
    assert list_predictions(mixed) == alone + alone
    assert len(sources.notes) == (2 if documents == "packed" else 0)
    index.write(other, replace(index.read(other), eos=None))
    with pytest.raises(ConfigError, match=r"data.mixture: .*other"):
        open_sources(replace(whole, data=mixture))


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_synthetic_documents_end_at_jumps_of_the_same_tokens() -> None:
    model = LlamaConfig(vocab_size=512, seq_len=64)
    joined, separate = (
        fetch_all(open_source(Config(name="test", model=model, data=DataConfig(samples=64, documents=mode))))
        for mode in ("joined", "separate")
    )
    assert set(joined) == {"inputs", "targets"}
    check_numbers(separate)
    is_end = separate["targets"] == IGNORED_TARGET
    assert (separate["inputs"] == joined["inputs"]).all()
    assert (separate["targets"] == np.where(is_end, IGNORED_TARGET, joined["targets"])).all()
    assert (np.diff(separate["documents"], axis=1) == is_end[:, :-1]).all()
    assert 64 * 64 / 256 < is_end.sum() < 64 * 64 / 64


@pytest.mark.parametrize(
    ("lengths", "samples"),
    [
        ([10], [0]),
        ([4, 3, 3], [0, 0, 0]),
        # The longest come first: 6 + 4 and 7 + 3, where one after the other would need a third sample.
        ([3, 4, 6, 7], [0, 1, 1, 0]),
        # The best fit is the sample with the least room: 2 joins 8, not 5.
        ([5, 8, 2], [0, 1, 1]),
        ([10, 10, 1], [0, 1, 2]),
        ([], []),
    ],
)
def test_pieces_go_to_the_fullest_sample_with_room(lengths: list[int], samples: list[int]) -> None:
    assert pack(np.array(lengths, np.int64), 10).tolist() == samples


@pytest.mark.parametrize("seq_len", [7, 100, 1000])
def test_no_sample_is_overfull_and_little_is_padding(seq_len: int) -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1, 3000).astype(np.int64) + 1
    _, pieces = cut_documents(np.cumsum(lengths), lengths, seq_len)
    assert pieces.max() <= seq_len
    assert pieces.sum() == lengths.sum()
    samples = pack(pieces, seq_len)
    filled = np.bincount(samples, pieces)
    assert filled.max() <= seq_len
    assert 1 - filled.mean() / seq_len < 0.01
    # Samples are numbered in the order of the text.
    assert (np.diff(np.unique(samples, return_index=True)[1]) > 0).all()


def test_documents_are_packed_with_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last samples of a shard hold its last text, so that held-out samples do not mix with the others."""
    monkeypatch.setattr("trainer.data.packing._WINDOW_SAMPLES", 4)
    tokens = np.where(np.arange(4000) % 7 == 6, 0, 1).astype(np.uint16)
    packing = pack_shard(tokens, 0, 20)
    middles = [np.mean([start for start, _ in packing.list_pieces(sample)]) for sample in range(packing.samples)]
    assert np.abs(np.diff(middles)).max() < 4 * 20 * 3
    # Every token is predicted but the first of each document; the last document has no end.
    assert packing.lengths[:].sum() == (tokens == 1).sum() - 1


def test_documents_are_found_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.packing._SCAN_TOKENS", 3)
    tokens = np.array([5, 6, 0, 0, 7, 8, 9, 0, 4, 3], np.uint16)
    starts, lengths = find_documents(tokens, 0)
    assert (starts.tolist(), lengths.tolist()) == ([0, 4, 8], [2, 3, 1])
    assert [part.tolist() for part in find_documents(np.array([], np.uint16), 0)] == [[], []]
    assert pack_shard(np.array([], np.uint16), 0, 4).samples == 0
