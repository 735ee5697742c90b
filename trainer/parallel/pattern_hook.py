"""Average the buckets of DDP, torch's or ours, with our own all-reduce: `communication.pattern`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
import torch.futures

from trainer.collectives.choice import Choice, Setting, choose_pattern, count_ranks_per_node
from trainer.collectives.measure import load_table
from trainer.collectives.operations import all_reduce
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.parallel.mesh import Mesh

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


class PatternHook:
    """A communication hook of DDP that averages buckets in the background, and the error that it met.

    Ranks have compared their models before, so their buckets are the same and need no check in every step.
    """

    def __init__(self, setting: Setting, group: Any, device: torch.device, hosts: Sequence[str]) -> None:
        """Refuse a pattern that these ranks cannot use; `hosts` has the host of each rank of the group.

        All ranks know all hosts, so they make the same choices and refuse the same patterns.
        """
        where, fix = "communication.pattern", "set it to backend"
        if device.type != "cpu":
            message = f"{setting}, but it has only been tried on CPUs, not on {device.type}"
            raise ConfigError([ConfigProblem(where, message, fix)])
        self._setting, self._group = setting, group
        self._ranks = len(hosts)
        self._error: Exception | None = None
        try:
            self._ranks_per_node = count_ranks_per_node(hosts)
        except ValueError as error:
            if setting == "hierarchical":
                problem = ConfigProblem(where, f"{setting}, but {error}", f"{fix}, auto, ring or tree")
                raise ConfigError([problem]) from None
            # Ranks without a hierarchy, as on nodes of one rank.
            self._ranks_per_node = 1
        self._table, self.choices = None, list[str]()
        if setting == "auto" and self._ranks > 1:
            self._table, reason = load_table(hosts, group)
            self.choices.append(f"communication.pattern: auto, {reason}")

    def average(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses other types
        """Start to average a bucket and return its future."""
        values = bucket.buffer()
        choice = self._choose(values)
        if choice.pattern == "backend":
            values.div_(self._ranks)
            return self._start_backend(values).get_future().then(lambda done: done.value()[0])
        future: Any = torch.futures.Future()

        def end(error: Exception | None) -> None:
            # DDP would replace an exception by one of its own.
            self._error = self._error or error
            future.set_result(values)

        all_reduce(
            values,
            self._group,
            pattern=choice.pattern,
            ranks_per_node=choice.ranks_per_node,
            average=True,
            is_checked=False,
            async_op=True,
            on_end=end,
        )
        return future

    def start_sum(self, values: torch.Tensor) -> Any:
        """Start to sum values, and return a handle whose `wait` raises what went wrong."""
        choice = self._choose(values)
        if choice.pattern == "backend":
            return self._start_backend(values)
        return all_reduce(
            values,
            self._group,
            pattern=choice.pattern,
            ranks_per_node=choice.ranks_per_node,
            is_checked=False,
            async_op=True,
        )

    def raise_error(self) -> None:
        """Raise the first error of the backward pass that has ended: its gradients are not averages."""
        if self._error:
            raise self._error

    def _choose(self, values: torch.Tensor) -> Choice:
        return choose_pattern(self._setting, values.nbytes, self._ranks, self._ranks_per_node, self._table)

    def _start_backend(self, values: torch.Tensor) -> Any:
        """Sum with the backend's all-reduce."""
        return dist.all_reduce(values, group=self._group, async_op=True)


def make_pattern_hook(setting: Setting, group: Any, mesh: Mesh) -> PatternHook:
    """Return the hook that averages over a group of the mesh."""
    hosts = [mesh.hosts[rank] for rank in dist.get_process_group_ranks(group)]
    return PatternHook(setting, group, mesh.device, hosts)
