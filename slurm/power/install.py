"""The files of the power programs on the controller: the scripts that slurm.conf names, and the sweep's timer."""

from __future__ import annotations

from collections.abc import Mapping

FOLDER = "/etc/muster/power"
RESUME = f"{FOLDER}/resume"
SUSPEND = f"{FOLDER}/suspend"
RESUME_FAILED = f"{FOLDER}/resume-failed"
WAIT_FOR_NODES = f"{FOLDER}/wait-for-nodes"
FLEET = "/etc/muster/fleet.json"
"""File that describes what the target's launcher may launch; its format belongs to the launcher."""
STATE = "/var/lib/muster/power"
"""Folder of the programs' memory; it must exist and belong to slurm."""
TIMER = "muster-sweep.timer"
SERVICE = "muster-sweep.service"
_UNITS = "/etc/systemd/system"
_WAIT_SCRIPT = "slurm/control/wait_for_nodes.sh"
# Settings in slurm.extra after which slurmctld kills a program that waits for nodes, and requeues the job.
_KILLING = ("prologepilogtimeout", "prologtimeout")
_KILL_MARGIN_S = 5


def write_scripts(python: str, root: str, module: str, wait_s: int) -> dict[str, str]:
    """Return the scripts by path; each program has its own, because slurm.conf takes a path without arguments.

    `root` is the folder of this repository's code, `module` the entry point of the target's launcher, `wait_s` how long
    a job's program waits for nodes at most.
    """
    programs = {RESUME: "resume", SUSPEND: "suspend", RESUME_FAILED: "resume-failed"}
    scripts = {path: _write_script(python, root, module, program) for path, program in programs.items()}
    return {**scripts, WAIT_FOR_NODES: _write_waiting(f"{root}/{_WAIT_SCRIPT}", wait_s)}


def limit_wait(resume_s: int, extra: Mapping[str, str]) -> int:
    """Return how many seconds the program of a job may wait for nodes, given slurm.resume_s and slurm.extra."""
    killed_s = [int(value) for key, value in extra.items() if key.lower() in _KILLING and value.isdigit()]
    return min([resume_s, *(max(limit_s - _KILL_MARGIN_S, 0) for limit_s in killed_s)])


def write_units(python: str, root: str, module: str) -> dict[str, str]:
    """Return systemd's unit files by path; TIMER is to be enabled and started."""
    return {f"{_UNITS}/{SERVICE}": _write_service(python, root, module), f"{_UNITS}/{TIMER}": _TIMER}


def _write_script(python: str, root: str, module: str, program: str) -> str:
    return f'#!/bin/sh\nexport PYTHONPATH={root}\nexec {python} -m {module} {program} "$@"\n'


def _write_waiting(script: str, wait_s: int) -> str:
    """Return the program that waits for a job's nodes; it must not fail, or slurmctld requeues every job."""
    return f"#!/bin/sh\n[ ! -r {script} ] || exec bash {script} {wait_s} {STATE}\n"


def _write_service(python: str, root: str, module: str) -> str:
    return f"""\
[Unit]
Description=muster: make Slurm's nodes and the machines agree
After=slurmctld.service network-online.target

[Service]
Type=oneshot
Environment=PYTHONPATH={root}
ExecStart={python} -m {module} sweep
TimeoutStartSec=300
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
NoNewPrivileges=yes
ReadWritePaths={STATE} /etc/slurm
"""


_TIMER = """\
[Unit]
Description=muster: make Slurm's nodes and the machines agree, every minute

[Timer]
OnBootSec=60
OnUnitInactiveSec=60
AccuracySec=5

[Install]
WantedBy=timers.target
"""
