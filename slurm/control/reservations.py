"""Reservations of nodes: the commands that read them, and what their output means."""

from __future__ import annotations

import re
from datetime import datetime

SHOW_RESERVATIONS = ("scontrol", "show", "reservation", "--oneliner")
"""Command whose output `parse_reservations` parses."""


def show_hosts(hostlist: str) -> tuple[str, ...]:
    """Return the command that prints the nodes of a Slurm list, one per line."""
    return ("scontrol", "show", "hostnames", hostlist)


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
