"""Check that all ranks of a group call the same collective with the same arguments, before any of them sends data.

Without it, a rank with fewer elements would wait forever, or leave a part of the others' tensors unchanged. Every rank
describes its call in a line of text. The lines are gathered in ceil(log2(n)) steps (Bruck et al., 1997): in each step a
rank sends the lines that it has to the rank `distance` below and receives as many from the rank `distance` above, which
doubles what it has. Every rank sees all lines, so all of them raise the same error, and the group remains usable.

Only on a CPU: on a GPU, reading the lines would make the host wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainer.collectives.exchange import Messenger

LINE_BYTES = 128


class CallsDiffer(ValueError):
    """Ranks called different collectives, or the same one with different arguments."""


def check_agreement(line: str, group: Any, rank: int, ranks: int) -> None:
    """Raise CallsDiffer on all ranks if their lines, of which the first 128 bytes count, are not equal."""
    if ranks == 1:
        return
    own = torch.frombuffer(bytearray(line.encode()[:LINE_BYTES].ljust(LINE_BYTES)), dtype=torch.uint8)
    gathered = own.repeat(ranks, 1)
    messenger = Messenger(group, own.device)
    distance = 1
    while distance < ranks:
        count = min(distance, ranks - distance)
        sent, received = gathered[:count], gathered[distance : distance + count]
        below, above = (rank - distance) % ranks, (rank + distance) % ranks
        messenger.finish(messenger.start([(True, sent, below), (False, received, above)]))
        distance *= 2
    if not bool((gathered == own).all()):
        lines = [bytes(row.tolist()).decode(errors="replace").rstrip() for row in gathered.roll(rank, 0)]
        raise CallsDiffer(describe_difference(lines))


def describe_difference(lines: Sequence[str]) -> str:
    """Return which ranks made which call; the line of a rank is at its position in the group."""
    ranks_by_line: dict[str, list[str]] = {}
    for rank, line in enumerate(lines):
        ranks_by_line.setdefault(line, []).append(str(rank))
    calls = "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {line}" for line, ranks in ranks_by_line.items()
    )
    return f"all ranks of a group must make the same call, but they differ: {calls}"
