"""Several data sets in one, mixed by weight; each has its own order and its own epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from trainer.data.hashing import make_key
from trainer.data.interleave import count_draws, scale_weights
from trainer.data.order import Ids, sample_ids
from trainer.data.shard_order import ShardOrder
from trainer.data.source import Arrays, Source


@dataclass(frozen=True)
class Ingredient:
    """A data set of a mixture."""

    name: str
    source: Source
    weight: float


@dataclass(frozen=True)
class Draws:
    """Samples in the order of training."""

    ids: Ids
    epochs: Ids
    """For each sample, how often its data set had been read to the end before."""


class Mixture:
    """A data set whose samples come from several others in proportion to their weights.

    Its ids number the samples of all data sets, one data set after the other.
    """

    def __init__(self, ingredients: Sequence[Ingredient]) -> None:
        self.ingredients = tuple(ingredients)
        self._shares = scale_weights([ingredient.weight for ingredient in ingredients])
        self._ends = np.cumsum([ingredient.source.length for ingredient in ingredients])

    @property
    def length(self) -> int:
        return int(self._ends[-1])

    @property
    def group_sizes(self) -> Ids:
        return np.concatenate([ingredient.source.group_sizes for ingredient in self.ingredients])

    @property
    def fingerprint(self) -> str:
        """The checksum of the samples; weights are compared on their own."""
        return sha256(" ".join(item.source.fingerprint for item in self.ingredients).encode()).hexdigest()[:16]

    @property
    def is_remote(self) -> bool:
        """Whether any of the data sets is remote."""
        return any(ingredient.source.is_remote for ingredient in self.ingredients)

    def draw(self, seed: int, position: int, count: int, window: int = 0) -> Draws:
        """Return the samples at positions [position, position + count); for `window` see `draw_samples`."""
        counts = count_draws(self._shares, seed, np.arange(position, position + count + 1, dtype=np.int64))
        ids, epochs = np.empty(count, np.int64), np.empty(count, np.int64)
        for number, ingredient in enumerate(self.ingredients):
            first, last = int(counts[number, 0]), int(counts[number, -1])
            if first == last:
                continue
            is_own = np.diff(counts[number]) > 0
            draws = draw_samples(ingredient.source, derive_seed(seed, number), first, last - first, window)
            ids[is_own], epochs[is_own] = self._starts[number] + draws.ids, draws.epochs
        return Draws(ids, epochs)

    def count_samples(self, seed: int, position: int) -> dict[str, int]:
        """Return how many samples of each data set come before a position, in the order of the data sets."""
        counts = count_draws(self._shares, seed, np.array([position]))[:, 0].tolist()
        return {ingredient.name: count for ingredient, count in zip(self.ingredients, counts, strict=True)}

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        numbers = np.searchsorted(self._ends, ids, side="right")
        parts = [(numbers == number).nonzero()[0] for number in range(len(self.ingredients))]
        arrays = join_parts(
            [
                (rows, ingredient.source.fetch(ids[rows] - self._starts[number], epoch))
                for number, (rows, ingredient) in enumerate(zip(parts, self.ingredients, strict=True))
                if rows.size
            ]
        )
        return {**arrays, "sources": numbers}

    @property
    def _starts(self) -> Ids:
        return np.concatenate([[0], self._ends[:-1]])


def derive_seed(seed: int, number: int) -> int:
    """Return the seed of the order of one data set of a mixture."""
    return make_key(seed, number)


def draw_samples(source: Source, seed: int, position: int, count: int, window: int = 0) -> Draws:
    """Return the samples of any data set at positions [position, position + count).

    `window` is the number of shards that are shuffled together; 0 means all.
    """
    if isinstance(source, Mixture):
        return source.draw(seed, position, count, window)
    epochs = np.arange(position, position + count, dtype=np.int64) // source.length
    if window:
        return Draws(ShardOrder(seed, source.group_sizes, window).sample_ids(position, count), epochs)
    return Draws(sample_ids(seed, position, count, source.length), epochs)


def fetch_draws(source: Source, draws: Draws) -> Arrays:
    """Fetch samples in their order, with one call per epoch."""
    epochs = np.unique(draws.epochs).tolist()
    parts = [(draws.epochs == epoch).nonzero()[0] for epoch in epochs]
    return join_parts([(rows, source.fetch(draws.ids[rows], epoch)) for rows, epoch in zip(parts, epochs, strict=True)])


def join_parts(parts: Sequence[tuple[Ids, Arrays]]) -> Arrays:
    """Put rows that were fetched in parts into one array per name; each part comes with the numbers of its rows."""
    if len(parts) == 1:
        return parts[0][1]
    rows = sum(len(numbers) for numbers, _ in parts)
    joined: Arrays = {}
    for name, array in parts[0][1].items():
        joined[name] = np.empty((rows, *array.shape[1:]), array.dtype)
        for numbers, arrays in parts:
            joined[name][numbers] = arrays[name]
    return joined


def describe_mixture(mixture: Mixture, seed: int, samples: int) -> list[str]:
    """Return a line for each data set: its share, and how often a run of so many samples reads it."""
    counts = mixture.count_samples(seed, samples)
    total = sum(ingredient.weight for ingredient in mixture.ingredients)
    return [
        f"{ingredient.name}: {ingredient.weight / total:.1%} of the samples, {counts[ingredient.name]:,} in this run, "
        f"which is {counts[ingredient.name] / ingredient.source.length:.2f} epochs of its {ingredient.source.length:,}"
        for ingredient in mixture.ingredients
    ]
