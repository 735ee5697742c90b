"""The drill of an upgrade: the new release recovers a copy of queue and database on a twin of the controller."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.errors import BootstrapError
from bootstrap.transport.base import Transport
from bootstrap.upgrade.steps import CONVERSION_TIMEOUT_S, START_TIMEOUT_S
from cluster.inventory import Node
from slurm.control import accounting, config
from slurm.control.snapshot import TAKE

SCRIPT = (Path(__file__).parents[1] / "scripts" / "slurm-twin.sh").read_text()
ARCHIVE = "/root/muster-twin.tar.gz"


def copy_controller(transport: Transport, controller: Node) -> bytes:
    """Return an archive of the controller's queue, database and configuration; its daemons keep running."""
    _run(transport, controller, "copy")
    try:
        return transport.get(ARCHIVE)
    finally:
        transport.run(f"rm -f {ARCHIVE}")


def start_twin(twin: Transport, controller: Node, archive: bytes) -> str:
    """Start Slurm on the twin from the archive, and return its snapshot of queue and accounting as text."""
    twin.put(ARCHIVE, archive, 0o600)
    _run(twin, controller, "start")
    return twin.run(TAKE, timeout=START_TIMEOUT_S).out


def _run(transport: Transport, controller: Node, step: str) -> None:
    values = {
        "STEP": step,
        "ARCHIVE": ARCHIVE,
        "NAME": controller.name,
        "ADDRESS": controller.address,
        "WAIT_S": f"{CONVERSION_TIMEOUT_S:.0f}",
        "DATABASE_ANSWERS": accounting.DATABASE_ANSWERS,
        "CONTROLLER_ANSWERS": config.PING,
    }
    script = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + SCRIPT
    done = transport.run(script, timeout=CONVERSION_TIMEOUT_S)
    if done.code != 0:
        raise BootstrapError("controller" if step == "copy" else "twin", step, done.err.strip())
