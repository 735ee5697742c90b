"""Times of all-reduces that were measured on the ranks of a cluster, and the file that keeps them for later runs.

`python -m trainer measure-collectives` writes a file per topology into a folder of the home, which the nodes of a
cluster share. `communication.pattern=auto` reads it. The file is replaced in one step, so a reader never sees a part of
it, and of several writers the last one wins. A file that cannot be read, or that describes another topology, is as good
as none: the reason is logged, and `auto` follows its rule without a table.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from trainer.bandwidth import format_size

Method = Literal["backend", "ring", "halving_doubling", "tree", "hierarchical"]
FORMAT = 2
"""Increased whenever the patterns change so much that older times mislead."""


class TableError(ValueError):
    """A file that cannot be used as a table; the message gives the reason."""


@dataclass(frozen=True)
class Topology:
    """What the times depend on. Equal topologies share a table, whatever their hosts are called."""

    nodes: str
    """Ranks per node, such as 4x8 for four nodes with eight ranks each, or 2+1."""
    host: str
    """Processor and cores of the first node."""
    network: str
    """Kind and rate of the interface between the nodes; empty on one node."""
    torch: str

    @property
    def file_name(self) -> str:
        """The name of the table's file."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16] + ".json"


@dataclass(frozen=True)
class TimingTable:
    """Seconds of an all-reduce by method and size in bytes; all methods have the same sizes, in rising order."""

    seconds: Mapping[Method, Mapping[int, float]]

    @property
    def sizes(self) -> list[int]:
        return list(next(iter(self.seconds.values())))

    def estimate(self, method: Method, size: int) -> float:
        """Return the time at a size: linear between measured sizes, and in proportion to the size above the largest."""
        times, sizes = self.seconds[method], self.sizes
        if size >= sizes[-1]:
            return times[sizes[-1]] * size / sizes[-1]
        above = bisect_left(sizes, size)
        if above == 0:
            return times[sizes[0]]
        low, high = sizes[above - 1], sizes[above]
        return times[low] + (times[high] - times[low]) * (size - low) / (high - low)

    def find_fastest(self, size: int) -> Method:
        """Return the fastest method at a size; of equally fast ones the first of `Method`."""
        return min(self.seconds, key=lambda method: (self.estimate(method, size), get_args(Method).index(method)))

    def describe(self) -> str:
        """Return the fastest method of each measured size, such as 'tree up to 2 MB, then backend'."""
        fastest = [(size, self.find_fastest(size)) for size in self.sizes]
        runs = [(method, [size for size, _ in group][-1]) for method, group in groupby(fastest, lambda pair: pair[1])]
        parts = [f"{method} up to {format_size(size)}" for method, size in runs[:-1]]
        return ", then ".join([*parts, runs[-1][0]])


def describe_nodes(hosts: Sequence[str]) -> str:
    """Return the numbers of ranks per node, from the host of each rank; ranks of a node may be apart."""
    counts = list(Counter(hosts).values())
    nodes = f"{len(counts)}x{counts[0]}" if len(set(counts)) == 1 else "+".join(map(str, counts))
    is_interleaved = len(list(groupby(hosts))) > len(counts)
    # Neighbours in a ring are on other nodes then.
    return f"{nodes} interleaved" if is_interleaved else nodes


def default_folder() -> Path:
    """Return the folder of the tables, which XDG_CACHE_HOME moves; raise TableError if there is no home."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(cache).expanduser() / "muster" / "collectives"
    except RuntimeError:
        raise TableError(f"there is no home folder for {cache}; set XDG_CACHE_HOME to a folder") from None


def write_table(folder: Path, topology: Topology, table: TimingTable) -> Path:
    """Write or replace the table of a topology and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / topology.file_name
    content = {"format": FORMAT, "topology": asdict(topology), "seconds": table.seconds}
    # A name of its own, because jobs on different nodes may write at the same time.
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as part:
        json.dump(content, part, indent=1)
        part.flush()
        os.fsync(part.fileno())
    try:
        Path(part.name).chmod(0o644)
        Path(part.name).replace(path)
    except OSError:
        Path(part.name).unlink(missing_ok=True)
        raise
    return path


def read_table(folder: Path, topology: Topology) -> TimingTable | None:
    """Return the table of a topology, or None if there is none; raise TableError if its file cannot be used."""
    path = folder / topology.file_name
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TableError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TableError(f"{path} has another format than {FORMAT}")
    if content.get("topology") != asdict(topology):
        raise TableError(f"{path} was measured on another topology")
    try:
        return parse_seconds(content.get("seconds"))
    except TableError as error:
        raise TableError(f"{path}: {error}") from None


def parse_seconds(values: Any) -> TimingTable:
    """Return the table of times by method and size, or raise TableError."""
    if not isinstance(values, dict) or not values or not all(isinstance(times, dict) for times in values.values()):
        raise TableError("seconds is not a table of methods and sizes")
    unknown = sorted(set(values) - set(get_args(Method)))
    if unknown:
        raise TableError(f"unknown method {', '.join(unknown)}; allowed: {', '.join(get_args(Method))}")
    try:
        seconds = {method: {int(size): float(time) for size, time in times.items()} for method, times in values.items()}
    except (TypeError, ValueError, OverflowError):
        raise TableError("sizes and seconds are not all numbers") from None
    sizes = [list(times) for times in seconds.values()]
    if not sizes[0] or any(other != sizes[0] for other in sizes):
        raise TableError("methods have different sizes, or none")
    if sizes[0][0] <= 0 or any(low >= high for low, high in pairwise(sizes[0])):
        raise TableError("sizes are not positive and in rising order")
    if not all(math.isfinite(time) and time > 0 for times in seconds.values() for time in times.values()):
        raise TableError("seconds are not all positive")
    return TimingTable(seconds)
