"""What every program here needs: the fleet, AWS, slurmctld, a memory, the time; and one log line per decision."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging.handlers import SysLogHandler
from pathlib import Path

from cluster.inventory import Fleet
from slurm.power.cloud import Cloud
from slurm.power.memory import Memory
from slurm.power.slurmctld import Slurmctld

log = logging.getLogger("muster-power")
_SYSLOG = "/dev/log"


@dataclass
class Desk:
    """Where a program works; tests give it other folders, clocks and answers."""

    fleet: Fleet
    cloud: Cloud
    slurmctld: Slurmctld
    memory: Memory
    etc: Path
    """Slurm's configuration."""
    now: Callable[[], float] = field(default=time.time)


def run(name: str, act: Callable[[Desk], object]) -> int:
    """The exit status. Slurm only logs it, so what went wrong is said here; the sweep puts right what was left."""
    _log_to_journal(name)
    try:
        act(_desk())
    except Exception:
        log.exception("%s failed", name)
        return 1
    return 0


def _desk() -> Desk:
    root = Path(os.environ.get("MUSTER_ROOT", "/"))
    fleet = Fleet.model_validate_json((root / "etc/muster/fleet.json").read_text())
    memory = Memory(root / "var/lib/muster/power")
    return Desk(fleet, Cloud(fleet.region), Slurmctld(), memory, root / "etc/slurm")


def _log_to_journal(name: str) -> None:
    """slurmctld throws away what its programs print; the journal keeps it: `journalctl -t muster-power`."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if Path(_SYSLOG).exists() and not sys.stderr.isatty():
        handler = SysLogHandler(_SYSLOG)
        handler.ident = "muster-power: "
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
