"""Measure what a run of thousands of ranks asks of rank 0: votes, plans of saves, folders of checkpoints; needs torch.

    python -m benchmarks.many_ranks [--ranks 4096] [--tensors 50] [--folder DIR] [--json FILE]

The ranks are emulated in one process: what they would send to rank 0 is made up, and what rank 0 does with it is
measured, in the trainer's own code: only the collectives of torch are replaced. The network between the ranks is not
part of it, nor are their own writes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.figures import Figure, report
from trainer import json_exchange
from trainer.checkpoint import folder, plan
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.job import SaveJob
from trainer.checkpoint.manifest import compute_checksum
from trainer.checkpoint.newest import find_newest
from trainer.checkpoint.publish import publish
from trainer.life.straggler import StragglerDetector
from trainer.life.vote import Ballot, Vote
from trainer.world import World

ROUNDS = 21
# A vote must not show in a step, and a plan is made once: a save of the first step may wait for it as for a compiler.
VOTE_AT_MOST_MS, PLAN_AT_MOST_MS, PUBLISH_AT_MOST_S = 5.0, 1.0, 60.0
# To each rank: its parts of 50 tensors and its part of the index, if that is divided.
SENT_AT_MOST_KB = 20.0
HOST_RANKS = 8


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--tensors", type=int, default=50, help="tensors that all ranks share equally")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # The largest index that rank 0 writes alone, and one that all ranks share.
    undivided = min(options.ranks, plan.MAX_INDEX_CHUNKS // options.tensors)
    figures = measure_votes(options.ranks)
    for ranks in dict.fromkeys((undivided, options.ranks)):
        figures += measure_plan(ranks, options.tensors)
    with tempfile.TemporaryDirectory(prefix="many-ranks-", dir=options.folder) as path:
        figures += measure_folder(options.ranks, Path(path))
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure_votes(ranks: int) -> list[Figure]:
    """Measure what a rank does for the vote of a step: fill in its ballot, read the result, look for stragglers."""
    vote = Vote(World(0, ranks, 0, 1, "", torch.device("cpu"), ()))
    detector = StragglerDetector([f"node-{rank // HOST_RANKS}" for rank in range(ranks)], 1.3)

    def count() -> None:
        agreed = vote.exchange(Ballot(work_s=0.1, step_s=0.1))
        if agreed is not None:
            detector.observe(agreed.work_s, agreed.step_s)

    times = [measure(count) for _ in range(ROUNDS)]
    return [
        Figure("a vote, sent by each rank", 8 * (ranks + 7) / 1e3, "kB"),
        Figure("a vote on each rank", 1e3 * median(times), "ms", f"{ranks} ranks", VOTE_AT_MOST_MS),
        Figure("the same in the last step of a window", 1e3 * max(times), "ms"),
    ]


def measure_plan(ranks: int, tensors: int) -> list[Figure]:
    """Measure the plan of a save, which rank 0 makes once for all ranks, and the index that they write."""
    state = {f"model.{number}": torch.zeros(4) for number in range(tensors)}
    recorder = _Recorder(0, 1)
    plan.make_plan(state, recorder)  # also imports what it needs
    others = _EmulatedRanks([_shard(recorder.values[0], rank, ranks) for rank in range(ranks)])
    memory_mb = read_memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    began = time.perf_counter()
    with others.connected():
        own = plan.make_plan(state, RankGroup(0, ranks, others))
    plan_s = time.perf_counter() - began
    peak_mb = read_memory_mb("VmHWM") - memory_mb
    received = [own.index, *(json.loads(row.numpy().tobytes())["value"][1] for row in others.rows[1:])]
    sizes = [sum(map(len, files.values())) for files in received]
    chunks = ranks * tensors
    return [
        Figure(f"the plan of a save, {ranks:,} ranks and {chunks:,} chunks", plan_s),
        Figure("the same for each chunk", 1e3 * plan_s / chunks, "ms", at_most=PLAN_AT_MOST_MS),
        Figure("sent to rank 0", others.gathered / 1e6, "MB"),
        Figure("sent by rank 0", sum(map(len, others.rows)) / 1e6, "MB", at_most=SENT_AT_MOST_KB * ranks / 1e3),
        Figure("more memory of rank 0 at the peak", peak_mb, "MB"),
        Figure("the index, all of its files", sum(sizes) / 1e6, "MB"),
        Figure("ranks that write a part of it", sum(size > 0 for size in sizes), ""),
        Figure("the longest part", max(sizes) / 1e3, "kB"),
    ]


@dataclass(frozen=True)
class _Recorder(RankGroup):
    """A single process that keeps what it would send to rank 0."""

    values: list[Any] = field(default_factory=list)

    def decide_on_first(self, value: Any, decide: Callable[[list[Any]], Sequence[Any]]) -> Any:
        self.values.append(value)
        return super().decide_on_first(value, decide)


def _shard(items: list[Any], rank: int, ranks: int) -> bytes:
    """Return what a rank sends that holds an equal share of every tensor, as the trainer encodes it."""
    shards = []
    for name, _, _, _, (length,), code, _ in items:
        shards.append([name, [rank * length], "SHARD", [rank * length], [length], code, [length * ranks]])
    return json.dumps(shards).encode()


class _EmulatedRanks:
    """The collectives of torch.distributed on rank 0, with what the other ranks would send."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self.ReduceOp = torch.distributed.ReduceOp
        self.rows: list[torch.Tensor] = []
        """What rank 0 has sent to each rank."""
        self.gathered = 0
        """Bytes that rank 0 has received."""
        self._values = values
        self._longest = max(map(len, values))

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let the trainer exchange values with these ranks."""
        real, json_exchange.dist = json_exchange.dist, self
        try:
            yield
        finally:
            json_exchange.dist = real

    def get_rank(self, _group: Any) -> int:
        return 0

    def get_world_size(self, _group: Any) -> int:
        return len(self._values)

    def all_reduce(self, longest: torch.Tensor, **_options: Any) -> None:
        longest.clamp_(min=self._longest)

    def gather(self, _own: torch.Tensor, rows: Sequence[torch.Tensor], **_options: Any) -> None:
        for row, value in zip(rows, self._values, strict=True):
            row.copy_(torch.frombuffer(bytearray(value.ljust(len(row))), dtype=torch.uint8))
        self.gathered = sum(map(len, rows))
        # What follows is the answer of rank 0; the others have none.
        self._longest = 0

    def scatter(self, own: torch.Tensor, rows: Sequence[torch.Tensor], **_options: Any) -> None:
        own.copy_(rows[0])
        self.rows = list(rows)


def read_memory_mb(name: str) -> float:
    """Return a size of this process as the kernel names it: VmRSS, or VmHWM, its peak."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1e3


def measure_folder(ranks: int, path: Path) -> list[Figure]:
    """Measure how rank 0 publishes a checkpoint once all ranks have reported, and how it is found again."""
    values: dict[str, Any] = {
        "directory": str(path),
        "step": 1,
        "token": "emulated",
        "rank": 0,
        "world_size": ranks,
        "size": 0,
    }
    job = SaveJob(**values, texts={}, metric=None, keep=3, best="")
    job.partial.mkdir(parents=True)
    content = b"shard"
    checksum = asdict(compute_checksum(content))
    for rank in range(ranks):
        files = [folder.shard_name(rank), folder.own_name(rank)]
        for name in files:
            (job.partial / name).write_bytes(content)
        done = json.dumps(dict.fromkeys(files, checksum))
        (job.partial / f"done-{rank:05d}.json").write_text(done)
    publish_s = measure(lambda: publish(job, set()))
    manifest_mb = (path / "step-00000001" / folder.MANIFEST).stat().st_size / 1e6
    sizes_s = measure(lambda: find_newest(path, RankGroup(0, 1), "size"))
    full_s = measure(lambda: find_newest(path, RankGroup(0, 1), "full"))
    return [
        Figure("publish a checkpoint whose ranks have all reported", publish_s, at_most=PUBLISH_AT_MOST_S),
        Figure("its manifest", manifest_mb, "MB"),
        Figure("find it again by the sizes of its files", sizes_s, at_most=PUBLISH_AT_MOST_S),
        Figure("the same with checksums, by a single rank", full_s),
    ]


def measure(function: Callable[[], object]) -> float:
    """Return the seconds that a function takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())
