"""Name the ranks that a failed collective has waited for: the backend's errors name addresses, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


@contextmanager
def name_peers(group: Any, purpose: str) -> Iterator[None]:
    """Add to an error of a collective what it was for, and which ranks it needed."""
    try:
        yield
    except RuntimeError as error:
        ranks = [rank for rank in dist.get_process_group_ranks(group) if rank != dist.get_rank()]
        peers = f"rank {ranks[0]}" if len(ranks) == 1 else f"at least one of the ranks {', '.join(map(str, ranks))}"
        error.add_note(f"rank {dist.get_rank()} got no answer from {peers} in the {purpose}")
        raise
