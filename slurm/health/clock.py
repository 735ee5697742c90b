"""clock: the node's clock agrees with the others'; Slurm rejects credentials with a wrong time."""

from __future__ import annotations

import re

from slurm.health.check import Check, Expected

# Slurm rejects credentials that are too old or from the future; logs become hard to compare long before that.
MAX_OFFSET_S = 1.0
_OFFSET = re.compile(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", re.MULTILINE)


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the offset if it is too large."""
    if "absent" in output.split():
        return []
    match = _OFFSET.search(output)
    if match is None:
        return [f"cannot parse the output of chronyc: {output.strip()[:60]!r}"]
    offset_s = float(match[1])
    return [f"{offset_s:.1f} s {match[2]}"] if offset_s > MAX_OFFSET_S else []


CHECK = Check(
    "clock",
    about="the clock is less than a second off",
    applies=lambda _: True,
    # Containers share the clock of their host and run no chronyd.
    command=lambda _: "if systemctl -q is-active chrony; then chronyc -n tracking; else echo absent; fi",
    judge=judge,
    contexts=("gate", "periodic"),
    limit_s=20.0,
    # The server of the time may be the cause.
    blame="unknown",
    remedies=("rounds", "replace"),
)
