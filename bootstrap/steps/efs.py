"""EFS over TLS: one stunnel per filesystem, kept alive by systemd; Ubuntu has no package of Amazon's mount helper."""

from __future__ import annotations

from bootstrap.action import Action, enable, write
from bootstrap.facts.model import Facts
from cluster.inventory import Filesystem

FIRST_PORT = 20490

CONF = """\
foreground = yes
pid =
[efs]
client = yes
accept = 127.0.0.1:{port}
connect = {host}:2049
sslVersionMin = TLSv1.2
verifyChain = yes
CAfile = /etc/ssl/certs/ca-certificates.crt
checkHost = {host}
TIMEOUTbusy = 20
TIMEOUTclose = 0
"""
UNIT = """\
[Unit]
Description=TLS to {host}
After=network-online.target
Before=muster-mounts.service

[Service]
ExecStart=/usr/bin/stunnel /etc/muster/efs-{number}.conf
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


def port(number: int) -> int:
    return FIRST_PORT + number


def tunnel(facts: Facts, filesystem: Filesystem, number: int) -> list[Action]:
    unit = f"muster-efs-{number}"
    todo = [
        *write(facts, f"/etc/muster/efs-{number}.conf", CONF.format(host=filesystem.host, port=port(number))),
        *write(facts, f"/etc/systemd/system/{unit}.service", UNIT.format(host=filesystem.host, number=number)),
    ]
    if todo:
        start = f"{enable(unit)}\nsystemctl daemon-reload\nsystemctl restart {unit}"
        todo.append(Action(f"start {unit}", start, log=f"journalctl -u {unit}"))
    return todo
