"""Replay steps on other ranks and compare bits: the gradients of each rank, and the copies of the weights.

In a step that is due, before anything else, the ranks that hold the same weights and optimizer state compare them.
Then each rank computes the gradients of another rank's samples, as that rank does, and drops them. In the step itself,
each rank takes the fingerprints of its own gradients before they are averaged, and all ranks compare both. If any
differ, more replays at the same weights settle which rank is wrong (`blame.choose_shifts`).

A wrong copy of a weight changes the averaged gradients, and so all copies, and the next update may round the difference
away. So ranks with copies also add up the bits of their weights in each step (`history.WeightHistory`), and compare
these sums too. Of three copies, the one that differs is wrong. Of two, either may be: the run goes back and repeats the
steps up to the first difference, and the rank that has other weights than before is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from trainer.checkpoint.group import RankGroup
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.host import processor_name
from trainer.parallel.engine import Batch
from trainer.replay.blame import Blame, Result, choose_shifts, find_blame
from trainer.replay.corruption import Corruption, CorruptionDetected
from trainer.replay.fingerprint import GradientFingerprints, compute_fingerprint, read_fingerprints
from trainer.replay.history import Undecided, WeightHistory
from trainer.step import RunningStatistics, Step
from trainer.world import World

# Found early if a node is bad from the start; the first step may compile.
_FIRST_REPLAY = 2

Fetch = Callable[[int, int], Batch]
"""A function that reads the samples of a data-parallel rank at a position, on the device."""


class Replays:
    """The replays of one rank; all ranks replay at the same steps."""

    def __init__(self, step: Step, world: World, every: int, fetch: Fetch, micro: int) -> None:
        """Replay every `every` steps; 0 never does."""
        self._step = step
        self._every = every
        self._fetch = fetch
        self._micro = micro
        self._count = 0
        self._group = RankGroup(world.rank, world.size, world.group)
        self._hosts = [member.host for member in world.members]
        self._shift, self._settling_shifts = choose_shifts(self._hosts)
        self._statistics = RunningStatistics(step.engine.named_buffers())
        self._copies = step.engine.mesh.weights.replicate
        self._history = WeightHistory(step.engine.named_parameters(), self._group)
        self._undecided: Undecided | None = None
        """Weights that differed, until the same steps have been repeated."""
        self.confirmed_step = -1
        """Completed steps before the last step, if it was replayed and nothing differed; otherwise -1."""

    @property
    def is_active(self) -> bool:
        """Whether the run replays at all."""
        return self._every > 0

    def is_due(self, step: int) -> bool:
        """Return whether the next step, which is `step`, is to be replayed."""
        return self.is_active and (step % self._every == 0 or self._count + 1 == _FIRST_REPLAY)

    def describe(self) -> list[str]:
        """Return what this run's replays can find, for the log."""
        if not self.is_active:
            return []
        if len(self._hosts) == 1:
            return ["replay: a single rank compares with itself, so only errors that do not repeat are found"]
        lines = [f"replay: each rank repeats a step of the rank {self._shift} after it every {self._every} steps"]
        if self._copies == 1:
            lines.append("replay: gradients only, because no rank has a copy of another's weights (hsdp has)")
        elif self._copies == 2:  # noqa: PLR2004 - of two copies, none has a majority
            lines.append("replay: two copies of the weights, so steps are repeated to find which of them is wrong")
        return lines

    @contextmanager
    def around(self, step: int, position: int) -> Iterator[None]:
        """Run a step in this block, and replay it if it is due; raise CorruptionDetected if anything differs.

        `position` is that of the step's first sample.
        """
        is_due = self.is_due(step)
        self._count += 1
        self.confirmed_step = -1
        if is_due or (self._undecided is not None and self._undecided.is_at(self._step.index, in_step=False)):
            self.check_weights()
        replayed = self._replay(position, self._shift) if is_due else {}
        recorder = self._make_recorder() if is_due else None

        def compare(batch: Batch, loss: torch.Tensor) -> None:
            if self._needs_history:
                self._record_weights()
            if recorder is not None:
                own = read_fingerprints(self._describe_run(recorder, batch, loss))
                self._compare_gradients(position, [(self._shift, replayed), (0, own)])

        self._step.after_gradients = compare if is_due or self._needs_history else None
        try:
            with nullcontext() if recorder is None else recorder.record():
                yield
        finally:
            self._step.after_gradients = None
        if is_due:
            self.confirmed_step = step - 1

    def check_weights(self) -> None:
        """Compare the copies of weights and optimizer state; raise CorruptionDetected on all ranks if any differ."""
        if not self.is_active or self._copies == 1:
            return
        tensors = self._list_copied_tensors()
        own = read_fingerprints({name: compute_fingerprint(value) for name, value in tensors.items()})
        watched = self._gather_weights(self._history.summarise())
        self._compare_weights(self._gather_weights(_digest(own)), own, in_step=False, watched=watched)
        self._history.clear()

    def forget_undecided(self) -> None:
        """Forget weights that differed: after a rollback with other data, the same step has other weights."""
        self._undecided = None
        self._history.clear()

    @property
    def _needs_history(self) -> bool:
        return self.is_active and self._copies > 1

    def _record_weights(self) -> None:
        """Record the weights before an update, and compare them if they are the first that differed last time."""
        index = self._step.index
        self._history.record(index)
        if self._undecided is not None and self._undecided.is_at(index, in_step=True):
            self._compare_weights(self._gather_weights(self._history.read(index)), {}, in_step=True)

    def _gather_weights(self, fingerprint: str) -> list[Result]:
        part = self._step.engine.mesh.coordinate("shard")
        return [Result(item, rank, value) for rank, (item, value) in enumerate(self._group.gather([part, fingerprint]))]

    def _compare_weights(
        self, results: list[Result], own: dict[str, int], *, in_step: bool, watched: Sequence[Result] = ()
    ) -> None:
        """Raise CorruptionDetected if weights differ, now or from those of the same step before a rollback.

        `watched` are the weights in the steps since the ranks last agreed.
        """
        index, earlier = self._step.index, self._undecided
        is_repeated = earlier is not None and earlier.is_at(index, in_step=in_step)
        blame = find_blame([*(earlier.results if earlier is not None and is_repeated else ()), *results], self._hosts)
        blame = blame or find_blame(watched, self._hosts)
        if blame is None:
            return
        differs = find_blame(results, self._hosts) is not None or find_blame(watched, self._hosts) is not None
        self._undecided = None
        if not blame.is_decided and not is_repeated:
            first = self._history.find_first_difference(results)
            self._undecided = Undecided(index, results) if first is None else first
        tensors = self._find_different(own) if differs and own else ()
        self._history.clear()
        corruption = self._make_corruption("weights", blame, tensors)
        may_be_decided = self._undecided is not None
        raise CorruptionDetected(replace(corruption, is_past=not differs, may_be_decided=may_be_decided))

    def _list_copied_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that all ranks with the same part of the model should hold with equal values.

        Statistics of batch norms are those of each rank's own samples.
        """
        private = self._step.private_tensors()
        tensors = self._step.tensors()
        return {name: v for name, v in tensors.items() if name not in private and not name.startswith("buffer.")}

    def _replay(self, position: int, shift: int) -> dict[str, int]:
        """Compute the gradients of the rank that is `shift` after this one, and return their fingerprints."""
        owner = (self._group.rank + shift) % self._group.world_size
        batch = self._fetch(position, owner)
        recorder = self._make_recorder()
        self._statistics.record()
        try:
            with recorder.record():
                loss = self._step.replay(batch, self._micro, owner)
        finally:
            # Also after a stop request, which gives up the replay: the state is saved next.
            self._statistics.restore(torch.ones((), device=self._step.engine.mesh.device))
        return read_fingerprints(self._describe_run(recorder, batch, loss))

    def _make_recorder(self) -> GradientFingerprints:
        return GradientFingerprints(self._step.engine.differentiated_parameters())

    def _describe_run(
        self, recorder: GradientFingerprints, batch: Mapping[str, torch.Tensor], loss: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        samples = {f"samples {name}": compute_fingerprint(value).to(loss.device) for name, value in batch.items()}
        return {**samples, **recorder.values, "loss": compute_fingerprint(loss)}

    def _compare_gradients(self, position: int, runs: list[tuple[int, dict[str, int]]]) -> None:
        results = [result for shift, values in runs for result in self._gather_run(shift, values)]
        if find_blame(results, self._hosts) is None:
            return
        self._step.optimizer.zero_gradients()
        for shift in self._settling_shifts:
            values = self._replay(position, shift)
            runs.append((shift, values))
            results += self._gather_run(shift, values)
        blame = find_blame(results, self._hosts)
        assert blame is not None  # noqa: S101 - more results cannot make them agree
        self._history.clear()
        tensors = self._find_different_gradients(runs)
        raise CorruptionDetected(self._make_corruption("gradients", blame, tensors))

    def _gather_run(self, shift: int, values: dict[str, int]) -> list[Result]:
        count = self._group.world_size
        digests = self._group.gather(_digest(values))
        return [Result((rank + shift) % count, rank, digest) for rank, digest in enumerate(digests)]

    def _find_different(self, own: dict[str, int]) -> tuple[str, ...]:
        """Return the names whose fingerprints differ between ranks with the same part of the model."""
        part = self._step.engine.mesh.coordinate("shard")
        return _list_different(own, [(item, values) for item, values in self._group.gather([part, own])])

    def _find_different_gradients(self, runs: Sequence[tuple[int, dict[str, int]]]) -> tuple[str, ...]:
        """Return the names whose fingerprints differ between ranks that had the same samples."""
        count = self._group.world_size
        gathered = [(shift, rank, row) for shift, own in runs for rank, row in enumerate(self._group.gather(own))]
        return _list_different(runs[0][1], [((rank + shift) % count, row) for shift, rank, row in gathered])

    def _make_corruption(self, what: str, blame: Blame, tensors: tuple[str, ...]) -> Corruption:
        return Corruption(
            step=self._step.index,
            what=what,
            ranks=blame.ranks,
            hosts=tuple(self._hosts[rank] for rank in blame.ranks),
            is_decided=blame.is_decided,
            tensors=tensors,
        )


def check_equal_machines(world: World) -> None:
    """Raise ConfigError if equal computations may have different bits: other kernels, processors or threads.

    Every rank must call it.
    """
    if world.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        message = "set, but kernels of a GPU may add up in another order each time (run.deterministic=false)"
        fix = "set run.deterministic to true, or health.replay_every to 0"
        raise ConfigError([ConfigProblem("health.replay_every", message, fix)])
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else processor_name()
    machines = RankGroup(world.rank, world.size, world.group).gather(f"{name} with {torch.get_num_threads()} threads")
    for member, machine in zip(world.members, machines, strict=True):
        if machine != machines[0]:
            message = "set, but ranks whose processors differ compute different bits: rank 0 on "
            message += f"{world.members[0].host} has {machines[0]}, rank {member.rank} on {member.host} has {machine}"
            fix = "use equal nodes and the same OMP_NUM_THREADS, or set health.replay_every to 0"
            raise ConfigError([ConfigProblem("health.replay_every", message, fix)])


def _list_different(names: Iterable[str], runs: Iterable[tuple[int, Mapping[str, int]]]) -> tuple[str, ...]:
    """Return the names whose fingerprints differ between runs of the same item."""
    seen: dict[tuple[int, str], set[int | None]] = {}
    names = list(names)
    for item, values in runs:
        for name in names:
            seen.setdefault((item, name), set()).add(values.get(name))
    different = {name for (_, name), fingerprints in seen.items() if len(fingerprints) > 1}
    return tuple(name for name in names if name in different)


def _digest(values: Mapping[str, int]) -> str:
    return hashlib.sha256(json.dumps(list(values.items())).encode()).hexdigest()[:16]
