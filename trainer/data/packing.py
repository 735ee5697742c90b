"""Pack whole documents of a token shard into samples of equal length, with little padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.file_array import Sliceable
from trainer.data.order import Ids

_SCAN_TOKENS = 1 << 24
# Documents are packed together with those near them, so that the end of a shard stays its end (`evaluation.share`).
# More samples per window waste less: the last sample of each window is rarely full.
_WINDOW_SAMPLES = 1024


@dataclass(frozen=True)
class Packing:
    """The samples of a shard, each made of pieces of documents.

    A piece of `lengths[i]` predictions takes that many tokens from `starts[i]` as inputs, and the tokens that follow
    them as targets. Sample s has the pieces from `first_pieces[s]` to `first_pieces[s + 1]`.
    """

    starts: Sliceable
    lengths: Sliceable
    first_pieces: Ids

    @property
    def samples(self) -> int:
        return len(self.first_pieces) - 1

    def list_pieces(self, sample: int) -> list[tuple[int, int]]:
        """Return start and length of the pieces of a sample."""
        own = slice(int(self.first_pieces[sample]), int(self.first_pieces[sample + 1]))
        return list(zip(self.starts[own].tolist(), self.lengths[own].tolist(), strict=True))


def pack_shard(tokens: Sliceable, eos: int, seq_len: int) -> Packing:
    """Return the samples of a shard: a function of its tokens and of the length of samples only."""
    starts, lengths = cut_documents(*find_documents(tokens, eos), seq_len)
    windows = np.split(lengths, _find_window_starts(lengths, seq_len)) if len(lengths) else []
    samples: list[Ids] = []
    count = 0
    for window in windows:
        samples.append(count + pack(window, seq_len))
        count = int(samples[-1].max()) + 1
    sample = np.concatenate(samples) if samples else np.empty(0, np.int64)
    order = np.argsort(sample, kind="stable")
    first_pieces = np.searchsorted(sample[order], np.arange(count + 1))
    return Packing(starts[order], lengths[order], first_pieces)


def find_documents(tokens: Sliceable, eos: int) -> tuple[Ids, Ids]:
    """Return start and number of predictions of each document with two tokens or more.

    A document ends with `eos`, the last one perhaps with the shard. Its last token is only ever a target.
    """
    blocks = range(0, len(tokens), _SCAN_TOKENS)
    parts = [at + np.flatnonzero(tokens[at : at + _SCAN_TOKENS] == eos) for at in blocks]
    ends = np.concatenate([*parts, [len(tokens) - 1]])
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    return starts[lengths > 0], lengths[lengths > 0]


def cut_documents(starts: Ids, lengths: Ids, seq_len: int) -> tuple[Ids, Ids]:
    """Cut documents that are longer than a sample into pieces of at most `seq_len` predictions."""
    counts = -(-lengths // seq_len)
    # Number of each piece within its document.
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = numbers * seq_len
    return np.repeat(starts, counts) + offsets, np.minimum(np.repeat(lengths, counts) - offsets, seq_len)


def pack(lengths: Ids, capacity: int) -> Ids:
    """Return the sample of each piece: best fit decreasing, samples numbered by their first piece.

    Each piece, the longest first, goes to the fullest sample that has room for it.
    """
    sample_of = np.empty(len(lengths), np.int64)
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    # Bit r is set if some sample has room for exactly r more predictions, so that the best fit is the lowest set bit.
    rooms = 0
    count = 0
    order = np.argsort(-lengths, kind="stable")
    for piece, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            sample = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, sample, count = capacity, count, count + 1
        sample_of[piece] = sample
        if room > length:
            with_room[room - length].append(sample)
            rooms |= 1 << (room - length)
    return _number_by_first_piece(sample_of)


def _number_by_first_piece(sample_of: Ids) -> Ids:
    _, first, inverse = np.unique(sample_of, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), np.int64)
    ranks[np.argsort(first)] = np.arange(len(first))
    return ranks[inverse]


def _find_window_starts(lengths: Ids, seq_len: int) -> Ids:
    """Return the first piece of each window but the first."""
    before = np.cumsum(lengths) - lengths
    number = before // (_WINDOW_SAMPLES * seq_len)
    return np.flatnonzero(np.diff(number)) + 1
