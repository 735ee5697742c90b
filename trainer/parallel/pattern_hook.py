"""Average the buckets of torch's DDP with our own all-reduce: `communication.pattern`."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.futures

from trainer.collectives.choice import Setting, choose_pattern
from trainer.collectives.operations import all_reduce
from trainer.config.errors import ConfigError, ConfigProblem


class PatternHook:
    """A communication hook of DDP that averages buckets in the background, and the error that it met."""

    def __init__(self, setting: Setting, group: Any, device: torch.device) -> None:
        """Refuse a pattern that these ranks cannot use."""
        where, fix = "communication.pattern", "set it to backend"
        if device.type != "cpu":
            message = f"{setting}, but it has only been tried on CPUs, not on {device.type}"
            raise ConfigError([ConfigProblem(where, message, fix)])
        self._setting, self._group = setting, group
        self._ranks = dist.get_world_size(group)
        self._ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._error: Exception | None = None
        try:
            choose_pattern(setting, 0, self._ranks, self._ranks_per_node)
        except ValueError as error:
            raise ConfigError([ConfigProblem(where, f"{setting}, but {error}", f"{fix}, ring or tree")]) from None

    def average(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses other types
        """Start to average a bucket and return its future."""
        values = bucket.buffer()
        choice = choose_pattern(self._setting, values.nbytes, self._ranks, self._ranks_per_node)
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
            async_op=True,
            on_end=end,
        )
        return future

    def raise_error(self) -> None:
        """Raise the first error of the backward pass that has ended: its gradients are not averages."""
        if self._error:
            raise self._error
