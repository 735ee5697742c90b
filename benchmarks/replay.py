"""Measure what replays cost (`health.replay_every`); needs torch. Under torchrun, several ranks replay for each other.

    python -m benchmarks.replay [--every 500] [--rounds 15] [--device cpu|cuda] [--json FILE] [key.sub=value ...]
    torchrun --nproc-per-node 2 -m benchmarks.replay parallel.strategy=ddp ...

Steps with and without a replay take turns, so that other load affects both alike; the medians are compared. The cost of
a run is that of one replay in `--every` steps, and, with copies of the weights, that of adding up their bits in each
step. That takes so little that it is measured alone: the difference of two steps would be mostly noise. It reads all
weights from memory once, however many tokens a step has: `batch.size` and `batch.micro` show its share in longer steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, report
from benchmarks.overhead import MODEL, synchronized_clock
from trainer.api import Trainer
from trainer.checkpoint.group import RankGroup
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.data.loader import Loader
from trainer.data.registry import open_sources
from trainer.determinism import require_deterministic_kernels
from trainer.replay.history import WeightHistory
from trainer.replay.replays import Replays
from trainer.world import World, start

COST_AT_MOST_PERCENT = 1.0
WARM_UP_STEPS = 3


def main() -> int:
    """Measure, print the figures and return 1 if the cost exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"run.folder={folder}", f"run.device={options.device}", "run.deterministic=true"]
        config = load("tiny-llama", [*MODEL, *settings, *options.overrides])
        world = start(options.device, config.run.join_timeout_s)
        if world.device.type == "cuda":
            require_deterministic_kernels()
        figures = measure(config, world, options.rounds, options.every)
        if not world.rank:
            print(report(figures))
            if options.json:
                options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
        world.close()
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure(config: Config, world: World, rounds: int, every: int) -> list[Figure]:
    """Run steps with and without a replay in turn, and return the figures."""
    micro = config.batch.micro if isinstance(config.batch.micro, int) else config.batch.size // world.size
    trainer = Trainer.from_config(config, world, micro)
    source = open_sources(config).training
    plain, replayed, adding = [], [], []
    with closing(
        Loader(source, 0, config.batch.size, dp_rank=world.rank, dp_size=world.size, device=world.device)
    ) as loader:
        never, always = (Replays(trainer._step, world, every_step, loader.read_share, micro) for every_step in (0, 1))
        history = WeightHistory(trainer.engine.named_parameters(), RankGroup(world.rank, world.size, world.group))
        targets = next(loader).tensors["targets"].numel()
        for _ in range(WARM_UP_STEPS + rounds):
            plain.append(time_step(trainer, loader, never))
            replayed.append(time_step(trainer, loader, always))
            adding.append(time_sum(trainer, history))
    step_s, replayed_s = median(plain[WARM_UP_STEPS:]), median(replayed[WARM_UP_STEPS:])
    sum_s = median(adding[WARM_UP_STEPS:])
    copies = "" if trainer.layout.replicate > 1 else " if other ranks had copies of the weights"
    cost = 100 * (sum_s + (replayed_s - step_s) / every) / step_s
    weights_gb = sum(value.nbytes for _, value in trainer.engine.named_parameters()) / 1e9
    step = f"step {1000 * step_s:.1f} ms"
    return [
        Figure("targets of each rank in a step", targets, ""),
        Figure("a step without a replay", 1000 * step_s, "ms"),
        Figure("a step that is replayed and compared", 1000 * replayed_s, "ms", step),
        Figure("that step, times one without a replay", replayed_s / step_s, "x", step),
        Figure(f"adding up the bits of the weights in each step{copies}", 1000 * sum_s, "ms", step),
        Figure("their rate", weights_gb / sum_s, "GB/s", f"{1000 * weights_gb:.1f} MB of weights"),
        Figure(f"cost of health.replay_every={every}{copies}", cost, "%", step, COST_AT_MOST_PERCENT),
    ]


def time_sum(trainer: Trainer, history: WeightHistory) -> float:
    """Return the seconds that it takes to add up the bits of the weights."""
    began = synchronized_clock(trainer.world.device)
    history.record(trainer.step)
    return synchronized_clock(trainer.world.device) - began


def time_step(trainer: Trainer, loader: Loader, replays: Replays) -> float:
    """Return the seconds of a step, with its replay if that is due."""
    position = loader.position
    batch = next(loader).tensors
    began = synchronized_clock(trainer.world.device)
    with replays.around(trainer.step + 1, position):
        trainer.run_step(batch)
    return synchronized_clock(trainer.world.device) - began


if __name__ == "__main__":
    raise SystemExit(main())
