"""How far the simulator's collectives are from measured ones, fitted and on systems that the fit did not see.

python -m benchmarks.simulator_collectives: one fit for each system, a minute or two; a line on stderr for each
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from simulator.collective_cross_validation import by_system, errors_of, left_out, measured, table
from simulator.collectives.constants import fitted
from simulator.collectives.fit import fit
from simulator.tables import read_table

DATA = Path(__file__).parents[1] / "simulator" / "data" / "collectives.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit anew and print the constants")
    every = measured(read_table(DATA))
    if parser.parse_args().fit:
        print(yaml.safe_dump(fit(every)))
        return
    unseen = left_out(every, _progress)
    print(table({system: errors_of(rows, fitted()) for system, rows in by_system(every).items()}, unseen))


def _progress(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
