"""Samples from token shards: windows of files that are checked before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

import numpy as np

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.index import DTYPES, Index
from trainer.data.order import Ids
from trainer.data.remote import is_remote
from trainer.data.shard_arrays import ShardArrays
from trainer.data.shard_folder import LOCAL, Reading
from trainer.data.source import Arrays


class TokenShards:
    """A data set of windows of seq_len + 1 tokens, one every seq_len tokens.

    Each token is a target once, and no window spans two shards.
    """

    def __init__(self, path: str, seq_len: int, vocab_size: int, reading: Reading = LOCAL) -> None:
        folder = reading.open_folder(path)
        contents = folder.read_index()
        problems = [*folder.check_files(contents), *_check_vocabulary(path, contents, vocab_size)]
        windows = [max(0, shard.tokens - 1) // seq_len for shard in contents.shards]
        if not sum(windows):
            longest = max((shard.tokens for shard in contents.shards), default=0)
            message = f"no shard of {path} has the {seq_len + 1} tokens of a sample; the longest has {longest}"
            problems.append(
                ConfigProblem("data.path", message, f"prepare more text, or set data.seq_len below {longest}")
            )
        if problems:
            raise ConfigError(problems)
        self.path = path
        self.folder = folder
        self.is_remote = is_remote(path)
        self.contents = contents
        self.seq_len = seq_len
        self.tokenizer = _describe_tokenizer(contents)
        self.fingerprint = _compute_fingerprint(contents)
        self.tokens = ShardArrays(folder, contents, reading)
        """The tokens of each shard."""
        self.cache_bytes = self.tokens.cache_bytes
        self._dtype = np.dtype(DTYPES[contents.dtype])
        self._ends = np.cumsum(windows)

    @property
    def length(self) -> int:
        return int(self._ends[-1])

    @property
    def group_sizes(self) -> Ids:
        return np.diff(self._ends, prepend=0)

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        raw = np.empty((len(ids), self.seq_len + 1), self._dtype)
        rows, width = raw.reshape(-1).view(np.uint8).data, raw.shape[1] * raw.itemsize
        numbers = np.searchsorted(self._ends, ids, side="right").tolist()
        if epoch is not None:
            self.tokens.read_ahead(numbers[0], epoch)
        for row, (number, sample) in enumerate(zip(numbers, ids.tolist(), strict=True)):
            start = (sample - (int(self._ends[number - 1]) if number else 0)) * self.seq_len
            self.tokens[number].read_into(rows[row * width : (row + 1) * width], start)
        tokens = raw.astype(np.int64)
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def find_other_tokenizers(sources: Mapping[str, TokenShards]) -> Iterator[ConfigProblem]:
    """Yield a problem for each source, by its path, whose tokens mean something else than those of the first."""
    first = next(iter(sources), "")
    for path, source in sources.items():
        if source.tokenizer != sources[first].tokenizer:
            message = f"{path} was made with {source.tokenizer}, but {first} with {sources[first].tokenizer}"
            yield ConfigProblem("data.mixture", message, "prepare them with the same tokenizer")


def _describe_tokenizer(contents: Index) -> str:
    end = "no end-of-text token" if contents.eos is None else f"end-of-text token {contents.eos}"
    return f"the tokenizer {contents.tokenizer} ({contents.vocab_size} tokens, {end})"


def _compute_fingerprint(contents: Index) -> str:
    """Return a checksum of the shards' own checksums, so that it need not read the shards."""
    checksums = [shard.sha256 for shard in contents.shards]
    return sha256(" ".join(checksums).encode()).hexdigest()[:16]


def _check_vocabulary(folder: str, contents: Index, vocab_size: int) -> Iterator[ConfigProblem]:
    fix = "set model.vocab_size to {} or more, or prepare the text with the model's tokenizer"
    if contents.vocab_size > vocab_size:
        message = (
            f"{folder} was made with the tokenizer {contents.tokenizer}, whose vocabulary of {contents.vocab_size} is "
            f"larger than the model's {vocab_size}"
        )
        yield ConfigProblem("data.path", message, fix.format(contents.vocab_size))
        return
    for shard in contents.shards:
        if shard.max_token >= vocab_size:
            message = f"{folder}/{shard.file} contains token {shard.max_token}, "
            message += f"but the model's vocabulary ends at {vocab_size - 1}"
            yield ConfigProblem("data.path", message, fix.format(shard.max_token + 1))
