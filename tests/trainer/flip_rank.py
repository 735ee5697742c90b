"""Ranks of which one computes wrong results: a bit of its gradients or weights is flipped.

FLIPS='[{"what": "gradients", "rank": 1, "step": 3}]' python -m tests.trainer.flip_rank CONFIG ...

Every rank pretends to be a host of its own, `node-RANK`, so that it shows whether the right one is blamed.
FAILED_CONFIRMATIONS is how many of the first confirmations find a full disk, and THREADS_OF_THE_LAST the number of
threads of the last rank.
"""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer import __main__ as program
from trainer.api import Trainer
from trainer.checkpoint import confirmed
from trainer.checkpoint.fence import Fence
from trainer.parallel.gradients import to_local

RANK = int(os.environ.get("RANK", "0"))


@dataclass(frozen=True)
class Flip:
    """Flips of one bit on one rank."""

    what: str
    """gradients, weights or moments."""
    rank: int
    step: int
    """The first step in which a gradient is wrong, or before which a weight is changed."""
    seed: int = 0
    """Decides which bit of which tensor it is."""
    repeats: bool = True
    """Whether gradients are wrong in all later steps, or only in the first backward pass."""
    bit: int | None = None
    """The bit of a value; None is any. The lowest may be rounded away by the next update."""
    undo: bool = False
    """Whether the weight is right again after the step."""
    same: bool = False
    """Whether it is the same bit each time."""


class Flipper:
    """The flips of this rank."""

    def __init__(self, flip: Flip) -> None:
        self._flip = flip
        self._random = random.Random(flip.seed)
        self._is_active = False
        self._is_done = False
        self._hooked = False

    def before_step(self, trainer: Trainer) -> None:
        # Registered before the first replay, so that replays see what it changes.
        if self._flip.what == "gradients" and not self._hooked:
            self._hooked = True
            parameters = trainer.engine.differentiated_parameters()
            parameters[self._random.choice(sorted(parameters))].register_hook(self._flip_gradient)
        self._is_active = trainer.step + 1 >= self._flip.step
        if self._flip.what != "gradients" and self._is_active and not self._is_done:
            self._is_done = True
            prefix = "model." if self._flip.what == "weights" else "optim."
            parts = {
                name: to_local(value) for name, value in trainer._step.tensors().items() if name.startswith(prefix)
            }
            names = sorted(name for name, part in parts.items() if part.numel() > 1)
            name = self._random.choice(names)
            before = parts[name].clone()
            flip_bit(parts[name], self._random, self._flip.bit)
            if self._flip.undo:
                self._undo_before_update(trainer, parts[name], before)

    @staticmethod
    def _undo_before_update(trainer: Trainer, part: torch.Tensor, before: torch.Tensor) -> None:
        prepare = trainer._step.before_update

        def undo() -> None:
            with torch.no_grad():
                part.detach().copy_(before)
            trainer._step.before_update = prepare
            prepare()

        trainer._step.before_update = undo

    def _flip_gradient(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if not self._is_active or self._is_done:
            return None
        self._is_done = not self._flip.repeats
        changed = gradient.clone()
        if self._flip.same:
            self._random.seed(self._flip.seed)
        flip_bit(changed, self._random, self._flip.bit)
        return changed


def flip_bit(tensor: torch.Tensor, choose: random.Random, bit: int | None) -> None:
    """Flip any bit of any value but its sign, which would change nothing if the value is 0."""
    with torch.no_grad():
        values = tensor.detach().view(-1).view(torch.int32)
        place = choose.randrange(values.numel())
        values[place] ^= 1 << (choose.randrange(31) if bit is None else bit)


def install(flips: list[Flip]) -> None:
    flippers = [Flipper(flip) for flip in flips if flip.rank == RANK]
    flipped: Any = Trainer
    run_step = flipped.run_step

    def step_with_flips(trainer: Trainer, batch: Any) -> Any:
        trainer.engine.differentiated_parameters()  # on all ranks, because they may be gathered for it
        for flipper in flippers:
            flipper.before_step(trainer)
        return run_step(trainer, batch)

    flipped.run_step = step_with_flips


def fail_confirmations(count: int) -> None:
    """Let the first confirmations fail."""
    write = confirmed.write_confirmed
    failures = iter(range(count))

    def write_or_fail(path: Path, step: int, fence: Fence) -> None:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path / confirmed.FILE))
        write(path, step, fence)

    confirmed.write_confirmed = write_or_fail


if __name__ == "__main__":
    socket.gethostname = lambda: f"node-{RANK}"
    fail_confirmations(int(os.environ.get("FAILED_CONFIRMATIONS", "0")))
    if "THREADS_OF_THE_LAST" in os.environ and int(os.environ["WORLD_SIZE"]) - 1 == RANK:
        torch.set_num_threads(int(os.environ["THREADS_OF_THE_LAST"]))
    install([Flip(**each) for each in json.loads(os.environ.get("FLIPS", "[]"))])
    # No launcher ends the other ranks of a refused start.
    program.RANK_0_TIMEOUT_S = 0.5
    status = program.main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
