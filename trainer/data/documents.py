"""Token samples whose documents do not see each other: windows that are separated at their ends, or packed documents.

Such samples have a third array, "documents": the number of each input token's document within its sample, counted from
0 and never decreasing. The targets that would cross the end of a document are ignored.
"""

from __future__ import annotations

import os

import numpy as np

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.order import Ids
from trainer.data.packing import Packing
from trainer.data.packing_file import load_or_pack
from trainer.data.shard_folder import LocalFolder
from trainer.data.source import Arrays
from trainer.data.tokens import TokenShards
from trainer.models.functional import IGNORED_TARGET


class SeparateDocuments:
    """The windows of token shards, with the documents in them separated."""

    def __init__(self, shards: TokenShards) -> None:
        self._shards = shards
        self._eos = require_eos(shards)
        self.fingerprint = shards.fingerprint
        self.is_remote = shards.is_remote

    @property
    def length(self) -> int:
        return self._shards.length

    @property
    def group_sizes(self) -> Ids:
        return self._shards.group_sizes

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        arrays = self._shards.fetch(ids, epoch)
        return separate(arrays, arrays["inputs"] == self._eos)


class PackedDocuments:
    """Samples that are filled with whole documents; only those that are longer than a sample are cut.

    What is left of a sample is padding, a document of its own without targets.
    """

    is_remote = False

    def __init__(self, shards: TokenShards) -> None:
        self._shards = shards
        self._eos = require_eos(shards)
        folder = _require_local(shards)
        packings: dict[int, Packing] = {}
        for number in _order_visits(len(shards.tokens)):
            shard = shards.contents.shards[number]
            packings[number] = load_or_pack(
                shards.tokens[number], folder.get(shard, 0), shard.sha256, self._eos, shards.seq_len
            )
        self._packings = [packings[number] for number in range(len(packings))]
        self._ends = np.cumsum([packing.samples for packing in self._packings])
        self.fingerprint = f"{shards.fingerprint}-packed"

    @property
    def length(self) -> int:
        return int(self._ends[-1])

    @property
    def group_sizes(self) -> Ids:
        return np.diff(self._ends, prepend=0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log should say: the number of samples and the share of padding."""
        used = sum(int(packing.lengths[:].sum()) for packing in self._packings)
        padding = 1 - used / (self.length * self._shards.seq_len)
        samples = f"documents are packed into {self.length:,} samples"
        return (f"{self._shards.path}: {samples}; padding is {padding:.1%} of them",)

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:  # noqa: ARG002 - the same in every epoch
        shape = (len(ids), self._shards.seq_len)
        inputs, targets = np.full(shape, self._eos, np.int64), np.full(shape, IGNORED_TARGET, np.int64)
        documents = np.zeros(shape, np.int32)
        numbers = np.searchsorted(self._ends, ids, side="right").tolist()
        for row, (number, sample) in enumerate(zip(numbers, ids.tolist(), strict=True)):
            packing: Packing = self._packings[number]
            tokens, filled = self._shards.tokens[number], 0
            for start, length in packing.list_pieces(sample - int(self._ends[number]) + packing.samples):
                own = slice(filled, filled + length)
                piece = tokens[start : start + length + 1]
                inputs[row, own], targets[row, own] = piece[:-1], piece[1:]
                filled += length
                documents[row, filled:] += 1
        return {"inputs": inputs, "targets": targets, "documents": documents}


def separate(arrays: Arrays, is_end: np.typing.NDArray[np.bool_]) -> Arrays:
    """Add the documents' numbers to token samples, given which inputs end a document, and ignore targets after ends."""
    documents = np.cumsum(is_end, axis=1, dtype=np.int32) - is_end
    return {**arrays, "targets": np.where(is_end, IGNORED_TARGET, arrays["targets"]), "documents": documents}


def require_eos(shards: TokenShards) -> int:
    """Return the token that ends a document, or raise a ConfigError if the shards have none."""
    eos = shards.contents.eos
    if eos is None:
        tokenizer = shards.contents.tokenizer
        message = f"{shards.path} does not show where documents end: its tokenizer {tokenizer} has no "
        message += "end-of-text token"
        fix = "set data.documents to joined, or name eos_token in the tokenizer's tokenizer_config.json and prepare "
        raise ConfigError([ConfigProblem("data.path", message, fix + "the text again, in another folder")])
    return eos


def _order_visits(count: int) -> list[int]:
    """Return the order in which this rank packs shards: each begins elsewhere, and later loads what others wrote."""
    rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    first = rank * count // ranks
    return [*range(first, count), *range(first)]


def _require_local(shards: TokenShards) -> LocalFolder:
    if not isinstance(shards.folder, LocalFolder):
        message = f"{shards.path} is remote, but data.documents=packed reads all shards at the start"
        fix = "copy the folder to a filesystem of the nodes, or set data.documents to separate"
        raise ConfigError([ConfigProblem("data.path", message, fix)])
    return shards.folder
