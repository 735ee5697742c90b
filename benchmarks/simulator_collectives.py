"""Compare predicted with measured collectives, in the fit and on systems or sources left out of it.

python -m benchmarks.simulator_collectives [--by source]: one fit for each, minutes; a line on stderr for each
python -m benchmarks.simulator_collectives --later: fitted to collectives.csv alone, evaluated on new_collectives.csv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from simulator.collectives.constants import Constants, load_fitted_constants, parse_constants
from simulator.fit.collective_errors import (
    cross_validate,
    cross_validation_table,
    errors_with_constants,
    group_by,
    group_measured_rows,
)
from simulator.fit.collectives import MeasuredCollective, fit_constants
from simulator.rows.tables import read_table

DATA = Path(__file__).parents[1] / "simulator" / "data"


def main() -> None:
    """Print the errors of collectives, or refit the constants and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--by", choices=("system", "source"), default="system", help="leave out each system or each source in turn"
    )
    parser.add_argument("--fit", action="store_true", help="refit and print the constants")
    parser.add_argument(
        "--later", action="store_true", help="evaluate on the systems collected after the model was finished"
    )
    options = parser.parse_args()
    first, later = (group_measured_rows(read_table(DATA / name)) for name in ("collectives.csv", "new_collectives.csv"))
    every = first + later
    if options.fit:
        print(yaml.safe_dump(fit_constants(every)))
        return
    if options.later:
        refitted = parse_constants(fit_constants(first))
        seen, unseen = (_errors(group_by(later), constants) for constants in (load_fitted_constants(), refitted))
        print(cross_validation_table(seen, unseen))
        return
    unseen = cross_validate(every, _progress, options.by)
    print(cross_validation_table(_errors(group_by(every, options.by), load_fitted_constants()), unseen, options.by))


def _errors(groups: dict[str, list[MeasuredCollective]], constants: Constants) -> dict[str, list[float]]:
    return {name: errors_with_constants(rows, constants) for name, rows in groups.items()}


def _progress(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
