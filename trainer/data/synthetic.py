"""Learnable samples without files, each a pure function of its number, for tests, demos and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trainer.data.hashing import hash_uniform, hash_values, make_key
from trainer.data.order import Ids
from trainer.data.source import Arrays

Number = TypeVar("Number", np.uint8, np.float32)

_JUMP_INTERVAL, _DOCUMENT_INTERVAL = 16, 128
"""Mean number of tokens between jumps, and of a document; a document ends at a jump."""

# The purpose of a hash is part of its key, so that hashes for different purposes are independent.
_RESTART, _SYMBOL, _LABEL, _CENTRE, _NOISE, _OFFSET = range(1, 7)


class _Computed:
    """The properties of a data set whose samples are computed: one group, determined by the settings."""

    length: int
    fingerprint = ""
    is_remote = False

    @property
    def group_sizes(self) -> Ids:
        return np.array([self.length])


@dataclass(frozen=True)
class Tokens(_Computed):
    """Sequences that count in steps of seven through at most 256 tokens, with a random jump every 16 tokens on average.

    A model first learns which tokens occur and then their order, so the loss falls early with any vocabulary. The jumps
    cannot be predicted, so the loss stays above about ln(symbols) / 16. If `is_separate`, every eighth jump on average
    begins a document.
    """

    length: int
    seq_len: int
    vocab_size: int
    seed: int
    is_separate: bool = False

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:  # noqa: ARG002 - the same in every epoch
        symbols = min(self.vocab_size, 256)
        steps = np.arange(self.seq_len + 1)
        positions = (ids[:, None] * (self.seq_len + 1) + steps).astype(np.uint64)
        restarts = hash_values(make_key(self.seed, _RESTART), positions)
        jumps = restarts % np.uint64(_JUMP_INTERVAL) == 0
        jumps[:, 0] = True
        last_jump = np.maximum.accumulate(np.where(jumps, steps, 0), axis=1)
        landings = hash_values(make_key(self.seed, _SYMBOL), positions) % np.uint64(symbols)
        start = np.take_along_axis(landings, last_jump, axis=1).astype(np.int64)
        tokens = (start + 7 * (steps - last_jump)) % symbols * (self.vocab_size // symbols)
        arrays = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
        if not self.is_separate:
            return arrays
        from trainer.data.documents import separate  # noqa: PLC0415 - most runs do not need it

        return separate(arrays, restarts[:, 1:] % np.uint64(_DOCUMENT_INTERVAL) == 0)


@dataclass
class Images(_Computed):
    """Images with a pattern of four by four coloured patches per class, plus noise."""

    length: int
    image_size: int
    classes: int
    seed: int
    _patches: NDArray[np.uint8] = field(init=False, repr=False)
    _noise: NDArray[np.uint8] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        patches = (_draw_centres(self.seed, self.classes, 3 * 4 * 4) * 192).astype(np.uint8)
        self._patches = patches.reshape(-1, 3, 4, 4)
        size = 3 * self.image_size**2 + _OFFSET_COUNT
        self._noise = (_make_noise_strip(self.seed, size) * 64).astype(np.uint8)

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:  # noqa: ARG002 - the same in every epoch
        labels = _draw_labels(self.seed, ids, self.classes)
        patch = np.arange(self.image_size) * 4 // self.image_size
        images = np.take(np.take(self._patches[labels], patch, axis=3), patch, axis=2)
        for image, noise in zip(images, _slice_noise(self._noise, self.seed, ids, images[0].size), strict=True):
            np.add(image, noise.reshape(image.shape), out=image)
        return {"inputs": images, "targets": labels}


@dataclass
class Vectors(_Computed):
    """Vectors around one centre per class."""

    length: int
    inputs: int
    classes: int
    seed: int
    _centres: NDArray[np.float32] = field(init=False, repr=False)
    _noise: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        centres = _draw_centres(self.seed, self.classes, self.inputs) * 2 - 1
        self._centres = centres.astype(np.float32)
        noise = _make_noise_strip(self.seed, self.inputs + _OFFSET_COUNT) * 2 - 1
        self._noise = noise.astype(np.float32)

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:  # noqa: ARG002 - the same in every epoch
        labels = _draw_labels(self.seed, ids, self.classes)
        noise = np.stack(list(_slice_noise(self._noise, self.seed, ids, self.inputs)))
        return {"inputs": self._centres[labels] + noise, "targets": labels}


# Hashing every pixel would take longer than a training step, so all samples take their noise from one strip, each at
# its own offset.
_OFFSET_COUNT = 65536


def _make_noise_strip(seed: int, size: int) -> NDArray[np.float64]:
    return hash_uniform(make_key(seed, _NOISE), np.arange(size, dtype=np.uint64))


def _slice_noise(strip: NDArray[Number], seed: int, ids: Ids, size: int) -> Iterator[NDArray[Number]]:
    offsets = hash_values(make_key(seed, _OFFSET), ids.astype(np.uint64)) % np.uint64(_OFFSET_COUNT)
    return (strip[offset : offset + size] for offset in offsets.tolist())


def _draw_labels(seed: int, ids: Ids, classes: int) -> Ids:
    return (hash_values(make_key(seed, _LABEL), ids.astype(np.uint64)) % np.uint64(classes)).astype(np.int64)


def _draw_centres(seed: int, classes: int, size: int) -> NDArray[np.float64]:
    return hash_uniform(make_key(seed, _CENTRE), np.arange(classes * size, dtype=np.uint64)).reshape(classes, size)
