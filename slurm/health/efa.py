"""efa: the machine has all EFA devices of its type, each with an active port."""

from __future__ import annotations

from slurm.health.check import Check, Expected

# PCI vendor id of EFA devices: other RDMA devices do not count.
_EFA_VENDOR = "0x1d0f"


def judge(output: str, expected: Expected) -> list[str]:
    """Return missing devices and ports that are not active."""
    rows = [line.split(None, 2) for line in output.splitlines() if line.strip()]
    devices = {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == _EFA_VENDOR}  # noqa: PLR2004
    problems = [] if len(devices) == expected.efa else [f"{len(devices)} of {expected.efa} devices are present"]
    return problems + [
        f"port of {name} is {state.split(':')[-1].strip()}"
        for name, state in devices.items()
        if not state.startswith("4:")
    ]


CHECK = Check(
    "efa",
    about="all EFA devices are present and active",
    applies=lambda expected: expected.efa > 0,
    command=lambda _: (
        'for device in /sys/class/infiniband/*; do [ -e "$device" ] || continue; '
        'echo "${device##*/} $(cat "$device/device/vendor") $(cat "$device/ports/1/state")"; done'
    ),
    judge=judge,
    contexts=("gate", "prolog", "periodic"),
    limit_s=20.0,
    blame="node",
    remedies=("rounds", "reboot", "replace"),
)
