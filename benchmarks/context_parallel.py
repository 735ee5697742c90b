"""Compare context parallelism on 2, 4 and 8 CPU ranks with a single rank over 20 steps; needs torch and pytest.

    python -m benchmarks.context_parallel

Each row has the largest difference of a loss, and the largest relative difference of a gradient norm, of any rank in
any step. The strategies and the tolerances are those of the test.
"""

from __future__ import annotations

import sys

from tests.trainer.strategies import LOSS_TOLERANCE, NORM_TOLERANCE
from tests.trainer.test_context_parallel import DENSE_MODELS, NIGHTLY_STRATEGIES, STEPS, compare_with_single
from trainer.table import table


def main() -> int:
    """Print the table and return 1 if a difference exceeds its tolerance."""
    rows, is_close = [], True
    for ranks, strategies in NIGHTLY_STRATEGIES.items():
        for strategy in strategies:
            for model in DENSE_MODELS:
                loss, norm = compare_with_single(model, strategy, ranks=ranks, steps=STEPS)
                rows.append([str(ranks), strategy, model, f"{loss:.1e}", f"{norm:.1e}"])
                is_close = is_close and loss <= LOSS_TOLERANCE and norm <= NORM_TOLERANCE
    print(table(["ranks", "strategy", "model", "loss", "gradient norm"], rows))
    print(f"tolerances over {STEPS} steps: {LOSS_TOLERANCE:g} (losses), {NORM_TOLERANCE:g} (gradient norms, relative)")
    return 0 if is_close else 1


if __name__ == "__main__":
    sys.exit(main())
