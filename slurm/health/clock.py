"""clock: the node's time is that of the others; a credential from another time is refused."""

from __future__ import annotations

import re

from slurm.health.check import Check, Expected

# Slurm refuses credentials that seem to come from the future or are too old; long before that logs cannot be compared.
MOST_S = 1.0
_OFFSET = re.compile(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", re.MULTILINE)


def judge(output: str, _expected: Expected) -> list[str]:
    if "absent" in output.split():
        return []
    match = _OFFSET.search(output)
    if match is None:
        return [f"cannot read chronyc's answer {output.strip()[:60]!r}"]
    off = float(match[1])
    return [f"{off:.1f} s {match[2]}"] if off > MOST_S else []


CHECK = Check(
    "clock",
    applies=lambda _: True,
    # Containers share the clock of their machine and run no chronyd.
    command=lambda _: "if systemctl -q is-active chrony; then chronyc -n tracking; else echo absent; fi",
    judge=judge,
    before_jobs=False,
)
