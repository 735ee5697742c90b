"""The context of the power programs: the target's launcher, slurmctld, a memory and a clock; and their log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from logging.handlers import SysLogHandler
from pathlib import Path

from slurm.power.launcher import Launcher
from slurm.power.memory import Memory
from slurm.power.slurmctld import Slurmctld

log = logging.getLogger("muster-power")
_SYSLOG = "/dev/log"


@dataclass
class Context:
    """What a power program works with; tests pass their own folders, clocks and stubs."""

    launcher: Launcher
    slurmctld: Slurmctld
    memory: Memory
    etc: Path
    """Folder of Slurm's configuration files."""
    now: Callable[[], float] = field(default=time.time)


def log_to_journal(program: str) -> None:
    """Send log lines to the journal (`journalctl -t muster-power`), because slurmctld discards its programs' output."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if Path(_SYSLOG).exists() and not sys.stderr.isatty():
        handler = SysLogHandler(_SYSLOG)
        handler.ident = "muster-power: "
    handler.setFormatter(logging.Formatter(f"{program}: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
