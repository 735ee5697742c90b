"""The files that put these programs on the controller: what slurm.conf names, and the timer of the sweep."""

from __future__ import annotations

FOLDER = "/etc/muster/power"
RESUME = f"{FOLDER}/resume"
SUSPEND = f"{FOLDER}/suspend"
RESUME_FAILED = f"{FOLDER}/resume-failed"
STATE = "/var/lib/muster/power"
"""Must exist and belong to slurm."""
TIMER = "muster-sweep.timer"
SERVICE = "muster-sweep.service"
_UNITS = "/etc/systemd/system"


def scripts(python: str, root: str) -> dict[str, str]:
    """Executables by path. slurm.conf takes a path and no words after it; `root` is where this repository's code is."""
    modules = {RESUME: "resume", SUSPEND: "suspend", RESUME_FAILED: "resume_failed"}
    return {path: _script(python, root, module) for path, module in modules.items()}


def units(python: str, root: str) -> dict[str, str]:
    """systemd's files by path; enable and start TIMER."""
    return {f"{_UNITS}/{SERVICE}": _service(python, root), f"{_UNITS}/{TIMER}": _TIMER}


def _script(python: str, root: str, module: str) -> str:
    return f'#!/bin/sh\nexport PYTHONPATH={root}\nexec {python} -m slurm.power.{module} "$@"\n'


def _service(python: str, root: str) -> str:
    return f"""\
[Unit]
Description=muster: nodes and machines agree
After=slurmctld.service network-online.target

[Service]
Type=oneshot
Environment=PYTHONPATH={root}
ExecStart={python} -m slurm.power.sweep
TimeoutStartSec=300
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
NoNewPrivileges=yes
ReadWritePaths={STATE} /etc/slurm
"""


_TIMER = """\
[Unit]
Description=muster: nodes and machines agree, every minute

[Timer]
OnBootSec=60
OnUnitInactiveSec=60
AccuracySec=5

[Install]
WantedBy=timers.target
"""
