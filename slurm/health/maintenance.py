"""When to run the deep checks: once a day on an idle node in a maintenance reservation."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

STATE = "maint"
"""State of an idle node in a reservation with the flag MAINT, as sinfo prints it."""
# slurmd ends the health program after a minute.
START = (
    "systemd-run",
    "--quiet",
    "--collect",
    "--unit=muster-deep-check",
    "python3",
    "/etc/muster/health.pyz",
    "maintenance",
)
REPEAT_S = 86400.0
ASK_S = 600.0
"""How often a healthy node asks slurmctld whether it is in a reservation."""


SHOW_RESERVATIONS = ("scontrol", "show", "reservation", "--oneliner")
"""Command whose output `parse_reservations` parses."""


def parse_reservations(text: str) -> list[tuple[str, float]]:
    """Return the hostlist and the end, in seconds since 1970, of each active maintenance reservation."""
    reservations = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "MAINT" in fields.get("Flags", "").split(",") and fields.get("State") == "ACTIVE":
            # slurmctld prints the local time without a zone.
            end = datetime.fromisoformat(fields["EndTime"]).timestamp()
            reservations.append((fields.get("Nodes", ""), end))
    return reservations


def is_due(folder: Path, now: float) -> bool:
    """Return whether to ask now, and remember it; `folder` is emptied at boot."""
    started, last_query = folder / "deep-check", folder / "maintenance-asked"
    if _is_recent(started, now, REPEAT_S) or _is_recent(last_query, now, ASK_S):
        return False
    last_query.touch()
    return True


def note_start(folder: Path) -> None:
    """Remember that the checks were started."""
    (folder / "deep-check").touch()


def _is_recent(path: Path, now: float, seconds: float) -> bool:
    return path.exists() and now - path.stat().st_mtime < seconds
