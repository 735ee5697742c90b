"""Each model family trains as on a single rank, under each strategy that can split it."""

from __future__ import annotations

import pytest

from tests.trainer.curves import BATCHES
from tests.trainer.strategies import CELLS, FAMILIES, STEPS, STRATEGIES, choose_diagonal, compare_with_single

# By day a diagonal that covers each family and each strategy, at night the whole table: differences that grow slowly
# would show in its 20 steps.
DAILY = choose_diagonal()
DAILY_STEPS = 2 * BATCHES


@pytest.mark.parametrize(("family", "strategy"), DAILY)
def test_a_diagonal_of_the_table_trains_as_on_one_rank(family: str, strategy: str) -> None:
    check_cell(family, strategy, DAILY_STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "strategy"), CELLS)
def test_a_family_trains_under_a_strategy_as_on_one_rank(family: str, strategy: str) -> None:
    check_cell(family, strategy, STEPS)


def check_cell(family: str, strategy: str, steps: int) -> None:
    agreement = compare_with_single(family, strategy, steps)
    assert agreement.is_close, agreement
    # All batches have been seen before, so a model that learns has a lower loss.
    losses = agreement.single_losses
    assert sum(losses[-BATCHES:]) < sum(losses[:BATCHES])


def test_the_daily_diagonal_covers_every_family_and_every_strategy() -> None:
    families, strategies = zip(*DAILY, strict=True)
    assert set(families) == set(FAMILIES)
    assert set(strategies) == set(STRATEGIES)
