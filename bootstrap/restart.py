"""Restart a machine during set-up, and continue afterwards. A step requests it by writing a reason to a file."""

from __future__ import annotations

from bootstrap.action import enable_unit
from bootstrap.transport.base import Transport, TransportError

REQUEST = "/run/muster/restart"
"""File with the reason; a restart removes it, because /run is in memory."""
RESTART_TIMEOUT_S = 30.0
_UNIT = """\
[Unit]
Description=Continue the set-up of this machine after a restart
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
# Only after this restart, not after later ones.
ExecStartPre=/bin/rm -f /etc/systemd/system/multi-user.target.wants/muster-continue.service
ExecStart=/bin/sh {script}

[Install]
WantedBy=multi-user.target
"""


def read_request(transport: Transport) -> str:
    """Return why a step requested a restart; empty if none did."""
    return transport.run(f"cat {REQUEST} 2>/dev/null || true", timeout=RESTART_TIMEOUT_S).out.strip()


def restart(transport: Transport, script: str) -> None:
    """Restart the machine and run the script, a file on its disk, when it is up again."""
    transport.put("/etc/systemd/system/muster-continue.service", _UNIT.format(script=script).encode())
    reboot = f"set -e\n{enable_unit('muster-continue')}\nsystemctl daemon-reload\nsystemctl --no-block reboot"
    done = transport.run(reboot, timeout=RESTART_TIMEOUT_S)
    if done.code != 0:
        raise TransportError("this machine", f"cannot restart: {done.err.strip() or f'exit code {done.code}'}")
