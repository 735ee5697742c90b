"""Measure what a run of thousands of ranks asks of rank 0: votes, plans of saves, folders of checkpoints; needs torch.

    python -m benchmarks.many_ranks [--ranks 4096] [--tensors 50] [--folder DIR] [--json FILE]

The ranks are emulated in one process: what they would send to rank 0 is made up, and what rank 0 does with it is
measured. The network between them is not part of it, nor are their own writes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.figures import Figure, report
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
HOST_RANKS = 8


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--tensors", type=int, default=50, help="tensors that all ranks share equally")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = [*measure_votes(options.ranks), *measure_plan(options.ranks, options.tensors)]
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
        agreed = vote.exchange(Ballot(work_s=0.1))
        if agreed is not None:
            detector.observe(agreed.work_s)

    times = [measure(count) for _ in range(ROUNDS)]
    return [
        Figure("a vote, sent by each rank", 8 * (ranks + 7) / 1e3, "kB"),
        Figure("a vote on each rank", 1e3 * median(times), "ms", f"{ranks} ranks", VOTE_AT_MOST_MS),
        Figure("the same in the last step of a window", 1e3 * max(times), "ms"),
    ]


def measure_plan(ranks: int, tensors: int) -> list[Figure]:
    """Measure the plan of a save, which rank 0 makes once for all ranks, and the index that they write."""
    state = {f"model.{number}": torch.zeros(4) for number in range(tensors)}
    plan.make_plan(state, _EmulatedGroup(0, 1))  # imports what it needs
    group = _EmulatedGroup(0, ranks)
    plan_s = measure(lambda: plan.make_plan(state, group))
    sizes = [sum(map(len, files.values())) for _, files in group.answers]
    chunks = ranks * tensors
    return [
        Figure(f"the plan of a save, {chunks:,} chunks", plan_s),
        Figure("the same for each chunk", 1e3 * plan_s / chunks, "ms", at_most=PLAN_AT_MOST_MS),
        Figure("the index, all of its files", sum(sizes) / 1e6, "MB"),
        Figure("ranks that write a part of it", sum(size > 0 for size in sizes), ""),
        Figure("the longest part", max(sizes) / 1e3, "kB"),
    ]


@dataclass(frozen=True)
class _EmulatedGroup(RankGroup):
    """Rank 0 among ranks that each hold an equal share of every tensor."""

    answers: list[Any] = field(default_factory=list)
    """The last decision for each rank."""

    def decide_on_first(self, value: Any, decide: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Decide as rank 0 about what all ranks would send, which travels as JSON."""
        text = json.dumps([[self._shard(item, rank) for item in value] for rank in range(self.world_size)])
        self.answers[:] = decide(json.loads(text))
        return self.answers[0]

    def _shard(self, item: list[Any], rank: int) -> list[Any]:
        name, _, _, _, (length,), code, _ = item
        return [name, [rank * length], "SHARD", [rank * length], [length], code, [length * self.world_size]]


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
