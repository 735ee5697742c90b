"""Logs that outlive the machine: stored at intervals, and once more when the machine stops."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, enable_unit, reload_units, write_file
from bootstrap.bundle import INSTALLED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

UNIT = "muster-logs"
INTERVAL_S = 600
"""A machine that dies without a shutdown loses the logs of at most this time."""
_FIRST_S, _SPREAD_S = 60, 60
FIRST_STORED_S = _FIRST_S + _SPREAD_S
"""Longest time from the set-up until logs are stored for the first time."""
SERVICE = """\
[Unit]
Description=Store the logs of this machine

[Service]
Type=oneshot
SyslogIdentifier=muster-logs
WorkingDirectory={folder}
ExecStart={command}
"""
TIMER = """\
[Unit]
Description=Store the logs of this machine at intervals

[Timer]
OnActiveSec={first_s}
OnUnitActiveSec={interval_s}
RandomizedDelaySec={spread_s}

[Install]
WantedBy=timers.target
"""
# systemd stops a unit before those that it is ordered after: here while the network is still up.
AT_STOP = """\
[Unit]
Description=Store the logs of this machine when it stops
After=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
SyslogIdentifier=muster-logs
WorkingDirectory={folder}
ExecStart=/bin/true
ExecStop={command}
TimeoutStopSec=30

[Install]
WantedBy=multi-user.target
"""
_TIMERS = "/etc/systemd/system/timers.target.wants"
# As `systemctl enable` does, but without SysV scripts and without reading all units a second time.
_ENABLE = (
    f"{enable_unit(f'{UNIT}-at-stop')}\n"
    f"mkdir -p {_TIMERS} && ln -sfn /etc/systemd/system/{UNIT}.timer {_TIMERS}/{UNIT}.timer\n"
)
_START = f"systemctl start {UNIT}.timer {UNIT}-at-stop.service"


def plan_logs(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Install and start the timer, and the unit that acts when the machine stops."""
    texts = {f"{UNIT}.service": SERVICE, f"{UNIT}.timer": TIMER, f"{UNIT}-at-stop.service": AT_STOP}
    command = shlex.join(desired.cloud.log_shipper if desired.cloud else ())
    todo = [
        action
        for name, text in texts.items()
        for action in write_file(
            facts,
            f"/etc/systemd/system/{name}",
            text.format(folder=INSTALLED, command=command, interval_s=INTERVAL_S, first_s=_FIRST_S, spread_s=_SPREAD_S),
        )
    ]
    if todo or not {f"{UNIT}.timer", f"{UNIT}-at-stop"} <= facts.active:
        todo.append(
            Action(f"start {UNIT}", f"{_ENABLE}{reload_units(facts, *texts)}{_START}", log=f"journalctl -u {UNIT}")
        )
    return todo


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clouds that store no logs."""
    return "" if desired.cloud and desired.cloud.log_shipper else "the cloud stores no logs"


STEP = Step("logs", "logs that outlive the machine", plan_logs, skip=skip, units=(f"{UNIT}.timer", f"{UNIT}-at-stop"))
