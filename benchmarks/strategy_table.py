"""Compare each model family, under each strategy that can split it, with a single rank; needs torch and pytest.

    python -m benchmarks.strategy_table

Each cell is the largest difference of a loss on any rank in any of 20 steps on CPU. The cells, the ranks and the
tolerances are in tests/trainer/strategies.py.
"""

from __future__ import annotations

import sys

from tests.trainer.strategies import (
    CELLS,
    FAMILIES,
    LOSS_TOLERANCE,
    NORM_TOLERANCE,
    STEPS,
    STRATEGIES,
    compare_with_single,
)


def main() -> int:
    """Print the table row by row and return 1 if a cell exceeds the tolerances."""
    print(f"| loss difference after {STEPS} steps | {' | '.join(STRATEGIES)} |")
    print(f"|---|{'---|' * len(STRATEGIES)}")
    failed = []
    for family in FAMILIES:
        row = []
        for strategy in STRATEGIES:
            if (family, strategy) not in CELLS:
                row.append("")
                continue
            agreement = compare_with_single(family, strategy)
            row.append(f"{agreement.loss:.1e}")
            if not agreement.is_close:
                failed.append(f"{family} x {strategy}: {agreement}")
        print(f"| {family} | {' | '.join(row)} |", flush=True)
    print(f"\ntolerances: {LOSS_TOLERANCE:g} (losses), {NORM_TOLERANCE:g} (gradient norms, relative)")
    for line in failed:
        print(f"EXCEEDED {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
