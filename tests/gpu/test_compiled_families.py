"""Every family compiled by inductor, on the CPU of a machine with a compiler: the cases of tests/trainer."""

from __future__ import annotations

import pytest

from tests.trainer.test_compiled import CASES, compare_with_eager

# Inductor fuses operations, so sums are rounded differently.
TOLERANCE = 1e-4


@pytest.mark.parametrize(("family", "strategy", "mode"), CASES)
def test_a_model_compiled_by_inductor_trains_like_an_eager_one(family: str, strategy: str, mode: str) -> None:
    compare_with_eager(family, strategy, mode, "inductor", TOLERANCE)
