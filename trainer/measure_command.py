"""`python -m trainer measure-collectives`: time the patterns of an all-reduce on these ranks, for later runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import get_args

from trainer.bandwidth import format_size
from trainer.collectives.measure import FLOAT_BYTES, ROUNDS, SIZES, detect_topology, measure_table
from trainer.collectives.timing_table import Method, TableError, TimingTable, Topology, default_folder, write_table
from trainer.command_name import name_command
from trainer.table import table
from trainer.world import WorldError, start

MEBIBYTE = 1 << 20
MAX_BYTES = 1 << 36


def main(argv: list[str]) -> int:
    """Measure on all ranks; rank 0 prints the times, writes the table and reports what fails."""
    options = _parse(argv)
    try:
        world = start("cpu", options.timeout)
    except WorldError as error:
        print(f"measure-collectives: {error}", file=sys.stderr, flush=True)
        return 1
    try:
        if world.group is None:
            print("measure-collectives: a single rank has nothing to exchange; start it with torchrun", file=sys.stderr)
            return 2
        hosts = [member.host for member in world.members]
        topology = detect_topology(hosts, world.group)
        on_size = _print_size if world.rank == 0 else _print_nothing
        timings = measure_table(hosts, world.group, _list_sizes(options.mebibytes), options.rounds, on_size)
        return _save(topology, timings) if world.rank == 0 else 0
    finally:
        world.close()


def _print_size(size: int, seconds: dict[Method, float]) -> None:
    """Show that the command makes progress: large messages over a slow link take minutes."""
    times = ", ".join(f"{method} {each * 1e3:.2f} ms" for method, each in seconds.items())
    print(f"{format_size(size)}: {times}", flush=True)


def _print_nothing(_size: int, _seconds: dict[Method, float]) -> None:
    pass


def _save(topology: Topology, timings: TimingTable) -> int:
    print(f"\n{format_times(timings)}")
    try:
        path = write_table(default_folder(), topology, timings)
    except OSError as error:
        print(f"measure-collectives: the table cannot be written: {error}; set XDG_CACHE_HOME", file=sys.stderr)
        return 1
    except TableError as error:
        print(f"measure-collectives: the table cannot be written: {error}", file=sys.stderr)
        return 1
    print(f"\n{topology.nodes} ranks: {timings.describe()}\nwritten to {path}", flush=True)
    return 0


def format_times(timings: TimingTable) -> str:
    """Return a table of milliseconds by size and method."""
    methods = [method for method in get_args(Method) if method in timings.seconds]
    rows = [
        (
            format_size(size),
            *(f"{timings.seconds[method][size] * 1e3:.2f}" for method in methods),
            timings.find_fastest(size),
        )
        for size in timings.sizes
    ]
    return table(("size", *(f"{method} ms" for method in methods), "fastest"), rows)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        name_command("measure-collectives"),
        description="Time the all-reduces of communication.pattern on these ranks and keep the "
        "times for communication.pattern=auto. Start it with torchrun, on the nodes and ranks of the later runs.",
    )
    parser.add_argument("--rounds", type=_positive, default=ROUNDS, help=f"rounds per size (default: {ROUNDS})")
    sizes = [size / MEBIBYTE for size in SIZES]
    parser.add_argument("--mebibytes", type=_positive_size, nargs="+", default=sizes, help="sizes (4 KB to 128 MB)")
    parser.add_argument(
        "--timeout", type=_positive_seconds, default=300, help="seconds for all ranks to join (default: 300)"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use 1 or more")
    return number


def _positive_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use a number above 0")
    return seconds


def _positive_size(text: str) -> float:
    mebibytes = float(text)
    if not FLOAT_BYTES <= mebibytes * MEBIBYTE < MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use 0.000004 to 65535")
    return mebibytes


def _list_sizes(mebibytes: Sequence[float]) -> list[int]:
    """Return sizes in bytes, of whole fp32 numbers, in rising order."""
    return sorted({int(size * MEBIBYTE) // FLOAT_BYTES * FLOAT_BYTES for size in mebibytes})
