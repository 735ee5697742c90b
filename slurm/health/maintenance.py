"""When to run the deep checks: once a day on an idle node in a maintenance reservation."""

from __future__ import annotations

from pathlib import Path

STATE = "maint"
"""State of an idle node in a reservation with the flag MAINT, as sinfo prints it."""
REPEAT_S = 86400.0
ASK_S = 600.0
"""How often a healthy node asks slurmctld whether it is in a reservation."""


def is_due(folder: Path, now: float) -> bool:
    """Return whether to ask now, and remember it; `folder` is emptied at boot."""
    started, last_query = folder / "deep-check", folder / "maintenance-asked"
    if _is_recent(started, now, REPEAT_S) or _is_recent(last_query, now, ASK_S):
        return False
    last_query.touch()
    return True


def render_start(node: str) -> list[str]:
    """Return the command that starts the checks of a node, detached: slurmd ends the health program before they end."""
    options = ["--quiet", "--collect", "--unit=muster-deep-check", f"--setenv=SLURMD_NODENAME={node}"]
    return ["systemd-run", *options, "python3", "/etc/muster/health.pyz", "maintenance"]


def note_start(folder: Path) -> None:
    """Remember that the checks were started."""
    (folder / "deep-check").touch()


def _is_recent(path: Path, now: float, seconds: float) -> bool:
    return path.exists() and now - path.stat().st_mtime < seconds
