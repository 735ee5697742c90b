"""The `predict` command: predict one run from its trainer settings, or a CSV file of runs or collectives."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.commands.console import BAD_INPUT, print_problems
from simulator.machines.profile import read
from simulator.machines.stack_names import MAX_NODES
from simulator.rows.tables import TableError, describe_unread_columns, read_table, write_table
from simulator.search.question import parse_node_count
from simulator.terminal import error_prefix, program_name
from trainer.config.errors import ConfigError, ConfigProblem

DEFAULT_INSTANCE = "p5.48xlarge"
SINGLE_RUN_OPTIONS = ("stack", "instance", "group", "profile", "nodes", "ranks", "json")
TABLE_MODULES = {"runs": "simulator.rows.run_table", "collectives": "simulator.rows.collective_table"}
"""By kind of row: where `list_columns()` and `predict_rows(rows) -> rows with more columns` are."""
NOTHING_PREDICTED = 1
"""Exit status if every row of a table has an error."""
ABOUT = """Predict a run of the trainer from its settings, or a CSV file of runs or collectives.

  %(prog)s llama-8b parallel.strategy=auto --stack aws-p5en-lustre --nodes 4
  %(prog)s train.yaml --profile profile.json --ranks 4 --json
  %(prog)s --runs IN.csv --out OUT.csv"""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if kind := next((kind for kind in TABLE_MODULES if getattr(options, kind)), ""):
        if options.config:
            parser.error(f"--{kind} takes no CONFIG: predict a table or a single run")
        if conflicting := [name for name in SINGLE_RUN_OPTIONS if getattr(options, name)]:
            parser.error(f"--{kind} takes no --{conflicting[0]}, which is for a single run: a row has its own machines")
        if not options.out:
            parser.error(f"--{kind} needs --out OUT.csv")
        return _predict_table(kind, getattr(options, kind), options.out)
    if not options.config:
        parser.error("CONFIG, --runs or --collectives is required: a single run, or a table")
    if options.group and not options.stack:
        parser.error("--group is a node group of a stack: add --stack")
    if options.out:
        parser.error("--out is for tables; --json prints a single run for programs")
    try:
        return _predict_run(options)
    except ConfigError as error:
        return print_problems(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name("predict"), description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="preset or YAML file of the trainer")
    parser.add_argument("settings", metavar="key=value", nargs="*", help="settings, as for `python -m trainer`")
    where = parser.add_argument_group("a single run")
    which = where.add_mutually_exclusive_group()
    which.add_argument("--stack", "-s", default="", help="name in stacks/, or a stack file: use its nodes and prices")
    instance = f"instance type of the catalog (default: {DEFAULT_INSTANCE})"
    which.add_argument("--instance", default="", metavar="TYPE", help=instance)
    where.add_argument("--group", default="", help="node group of the stack (default: the default partition)")
    profile = "use rates that `calibrate` measured; with --stack or --instance, only those of the GPU"
    where.add_argument("--profile", type=Path, metavar="FILE", help=profile)
    count = where.add_mutually_exclusive_group()
    nodes = f"number of nodes, 1 to {MAX_NODES} (default: the stack's, the most that the profile measured, or 1)"
    count.add_argument("--nodes", help=nodes)
    count.add_argument("--ranks", help="total number of ranks (default: one per GPU)")
    where.add_argument("--json", action="store_true", help="print JSON instead of text")
    tables = parser.add_argument_group("a CSV file")
    either = tables.add_mutually_exclusive_group()
    for kind in TABLE_MODULES:
        columns = f"columns as in simulator/data/{kind}.csv; missing values are inferred"
        either.add_argument(f"--{kind}", type=Path, metavar="IN.csv", help=columns)
    tables.add_argument("--out", type=Path, metavar="OUT.csv", help="file to write the rows and their predictions to")
    return parser


def _predict_run(options: argparse.Namespace) -> int:
    # Imported here, because tables do not need these modules and --help should be fast.
    from simulator import terminal  # noqa: PLC0415
    from simulator.forecast.as_json import as_json  # noqa: PLC0415
    from simulator.forecast.forecast import forecast  # noqa: PLC0415
    from simulator.forecast.summary_text import format_forecast  # noqa: PLC0415
    from simulator.machines.job_machines import MachineRequest, find_job_machines  # noqa: PLC0415
    from trainer.config.load import load  # noqa: PLC0415

    config = load(options.config, options.settings)
    profile = read(options.profile) if options.profile else None
    request = MachineRequest(
        stack=options.stack,
        group=options.group,
        instance=options.instance or ("" if profile else DEFAULT_INSTANCE),
        profile=profile,
        nodes=parse_node_count(options.nodes) if options.nodes else 0,
        ranks=_parse_ranks(options.ranks) if options.ranks else 0,
    )
    result = forecast(config, find_job_machines(request))
    # The reader of a pipe may close it early, which is not an error.
    with suppress(BrokenPipeError):
        columns = terminal.terminal_width()
        print(json.dumps(as_json(result), indent=2) if options.json else format_forecast(result, columns))
        sys.stdout.flush()
    return print_problems(ConfigError([result.problem])) if result.problem else 0


def _predict_table(kind: str, file: Path, out: Path) -> int:
    """Write the rows of a CSV file with their predictions, and return the exit status."""
    module: Any = import_module(TABLE_MODULES[kind])
    try:
        given = read_table(file)
        for warning in describe_unread_columns(given[0], module.list_columns()):
            print(f"{error_prefix()}: {warning}", file=sys.stderr)
        rows: list[dict[str, str]] = module.predict_rows(given)
        write_table(out, rows)
    except TableError as error:
        print(f"{error_prefix()}: {error}", file=sys.stderr)
        return BAD_INPUT
    errors = [row["error"] for row in rows if row["error"]]
    print(f"{len(rows) - len(errors)} of {len(rows)} rows predicted, {len(errors)} with an error: {out}")
    if len(errors) == len(rows):
        print(f"{error_prefix()}: no row could be predicted; the first: {errors[0]}", file=sys.stderr)
        return NOTHING_PREDICTED
    return 0


def _parse_ranks(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) >= 1:
        return int(text)
    raise ConfigError([ConfigProblem("--ranks", f"{text!r}; allowed: a whole number from 1 on", "write for example 8")])
