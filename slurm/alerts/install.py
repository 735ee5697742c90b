"""The files of the alert program on the controller, and how other programs hand it an alert."""

from __future__ import annotations

import json
import shlex

NAME = "muster-alerts"
PROGRAM = "/etc/muster/alerts.pyz"
CONFIG = "/etc/muster/alerts.json"
"""Settings with the address of the webhook: only Slurm's user may read it."""
STATE = "/var/lib/muster/alerts"
SPOOL = f"{STATE}/spool"
"""Folder of alerts from other programs, one text per file."""
MAX_SPOOLED = 100
UNIT_PATH = f"/etc/systemd/system/{NAME}.service"
UNIT = f"""\
[Unit]
Description=muster: tell people about drains, lost nodes, stuck queues and spent budgets
After=network-online.target slurmctld.service

[Service]
User=slurm
ExecStart=/usr/bin/python3 {PROGRAM}
Restart=always
RestartSec=10
MemoryMax=256M
Nice=10
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
NoNewPrivileges=yes
ReadWritePaths={STATE}

[Install]
WantedBy=multi-user.target
"""


def render_config(webhook: str, cluster: str, stuck_s: float) -> str:
    """Return the program's settings."""
    return json.dumps({"webhook": webhook, "cluster": cluster, "stuck_s": stuck_s})


def hand_over(text: str) -> str:
    """Return a shell script for the controller that leaves an alert for the program; without the program, nothing."""
    return (
        f'if [ -d {SPOOL} ] && [ "$(ls {SPOOL} | wc -l)" -lt {MAX_SPOOLED} ]; then\n'
        f"  file=$(mktemp {STATE}/new.XXXXXX) && printf '%s' {shlex.quote(text)} >\"$file\" &&\n"
        f'    chmod 644 "$file" && mv "$file" {SPOOL}/\nfi'
    )
