"""`python -m simulator predict CONFIG [key=value ...]`: one run of the trainer; --runs or --collectives: a table."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

from simulator.commands import predict_table
from simulator.commands.refused import refused
from simulator.machines.profile import read
from simulator.machines.stack_names import MAX_NODES
from simulator.search.question import node_count
from trainer.config.errors import ConfigError, ConfigProblem

USUAL = "p5.48xlarge"
OF_ONE_RUN = ("stack", "instance", "group", "profile", "nodes", "ranks", "json")
ABOUT = """One run of the trainer by its own settings, or a table of runs or collectives.

  python -m simulator predict llama-8b parallel.strategy=auto --stack aws-p5en-lustre --nodes 4
  python -m simulator predict train.yaml --profile profile.json --ranks 4 --json
  python -m simulator predict --runs IN.csv --out OUT.csv"""


def main(words: list[str]) -> int:
    parser = _parser()
    asked = parser.parse_intermixed_args(words)
    if kind := next((kind for kind in predict_table.MODULES if getattr(asked, kind)), ""):
        if asked.config:
            parser.error(f"--{kind} takes no CONFIG: a table, or one run")
        if alien := [name for name in OF_ONE_RUN if getattr(asked, name)]:
            parser.error(f"--{kind} takes no --{alien[0]}, which is for one run: a row has its own machines")
        if not asked.out:
            parser.error(f"--{kind} needs --out OUT.csv")
        return predict_table.main(kind, getattr(asked, kind), asked.out)
    if not asked.config:
        parser.error("CONFIG, --runs or --collectives is needed: one run, or a table of them")
    if asked.group and not asked.stack:
        parser.error("--group is one of a stack's: name it with --stack")
    if asked.out:
        parser.error("--out is for tables; --json prints one run for programs")
    try:
        return _one(asked)
    except ConfigError as bad:
        return refused(bad)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator predict", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="preset or YAML file of the trainer")
    parser.add_argument("settings", metavar="key=value", nargs="*", help="settings, as for `python -m trainer`")
    where = parser.add_argument_group("machines of one run")
    which = where.add_mutually_exclusive_group()
    which.add_argument("--stack", default="", help="name in stacks/, or a stack file; its nodes and prices")
    which.add_argument("--instance", default="", metavar="TYPE", help=f"of the catalog; without any other {USUAL}")
    where.add_argument("--group", default="", help="node group of the stack; by default the one that jobs go to")
    where.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="as calibrate measured them; beside --stack or --instance: their GPU",
    )
    many = where.add_mutually_exclusive_group()
    many.add_argument("--nodes", help=f"1 to {MAX_NODES}; by default the stack's, the most of the profile, or 1")
    many.add_argument("--ranks", help="of all nodes together; by default every GPU of the nodes")
    where.add_argument("--json", action="store_true", help="for programs")
    tables = parser.add_argument_group("tables")
    either = tables.add_mutually_exclusive_group()
    for kind in predict_table.MODULES:
        columns = f"columns of simulator/data/{kind}.csv; what a row leaves out is inferred"
        either.add_argument(f"--{kind}", type=Path, metavar="IN.csv", help=columns)
    tables.add_argument("--out", type=Path, metavar="OUT.csv", help="the rows, with what was predicted")
    return parser


def _one(asked: argparse.Namespace) -> int:
    from simulator import terminal  # noqa: PLC0415
    from simulator.forecast import as_json, words  # noqa: PLC0415  # not for tables
    from simulator.forecast.forecast import forecast  # noqa: PLC0415
    from simulator.machines import requested  # noqa: PLC0415  # not for tables
    from trainer.config.load import load  # noqa: PLC0415

    config = load(asked.config, asked.settings)
    known = read(asked.profile) if asked.profile else None
    wanted = requested.Asked(
        stack=asked.stack,
        group=asked.group,
        instance=asked.instance or ("" if known else USUAL),
        profile=known,
        nodes=node_count(asked.nodes) if asked.nodes else 0,
        ranks=_ranks(asked.ranks) if asked.ranks else 0,
    )
    found = forecast(config, requested.on(wanted))
    # Whoever closes a pipe has read enough.
    with suppress(BrokenPipeError):
        print(
            json.dumps(as_json.as_json(found), indent=2) if asked.json else words.told(found, terminal.terminal_width())
        )
        sys.stdout.flush()
    return refused(ConfigError([found.problem])) if found.problem else 0


def _ranks(word: str) -> int:
    if word.isascii() and word.isdecimal() and int(word) >= 1:
        return int(word)
    raise ConfigError([ConfigProblem("--ranks", f"{word!r}; allowed: a whole number from 1 on", "write for example 8")])
