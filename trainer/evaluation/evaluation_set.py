"""The samples of an evaluation: a fixed choice from the held-out set, padded to whole batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainer.data.order import Ids, sample_ids
from trainer.data.source import Arrays, Source
from trainer.models.functional import IGNORED_TARGET

# The choice is the same for all runs, so that runs with different seeds can be compared.
_CHOICE_SEED = 0


class EvaluationSet:
    """A data set of the first `limit` samples in a fixed random order, or of all samples if `limit` is 0.

    It is as long as `batches` whole batches. The samples at its end are padding: their targets are ignored, so the
    result does not depend on the batch size.
    """

    fingerprint = ""

    def __init__(self, source: Source, limit: int, batch_size: int) -> None:
        self.samples = min(limit, source.length) if limit else source.length
        self.batches = -(-self.samples // batch_size)
        self.length = self.batches * batch_size
        self._source = source
        self._chosen = sample_ids(_CHOICE_SEED, 0, self.samples, source.length) if limit else None

    @property
    def is_remote(self) -> bool:
        return self._source.is_remote

    @property
    def group_sizes(self) -> Ids:
        return np.array([self.length])

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:  # noqa: ARG002 - the same in every evaluation
        is_padding = ids >= self.samples
        samples = np.where(is_padding, 0, ids)
        arrays = self._source.fetch(samples if self._chosen is None else self._chosen[samples], None)
        if is_padding.any():
            # A copy, because inputs and targets of a token source are views of the same array.
            targets = arrays["targets"].copy()
            targets[is_padding] = IGNORED_TARGET
            arrays = {**arrays, "targets": targets}
        return arrays


def divide_samples(samples: int, weights: Sequence[float]) -> list[int]:
    """Return the `limit` of each data set of a mixture, rounded up; the sum of the weights is 1."""
    # 0.7 / (0.7 + 0.2 + 0.1) of 10 is 7.000000000000001, which must not become 8; and 0 would mean all samples.
    return [max(1, math.ceil(round(samples * weight, 6))) if samples else 0 for weight in weights]
