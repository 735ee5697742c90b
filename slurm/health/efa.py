"""efa: the machine shows as many EFA devices as its type has, each with an active port."""

from __future__ import annotations

from slurm.health.check import Check, Expected

# Amazon's PCI vendor id: other RDMA devices do not count.
_AMAZON = "0x1d0f"


def judge(output: str, expected: Expected) -> list[str]:
    rows = [line.split(None, 2) for line in output.splitlines() if line.strip()]
    devices = {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == _AMAZON}  # noqa: PLR2004
    problems = [] if len(devices) == expected.efa else [f"{len(devices)} devices of {expected.efa} are there"]
    return problems + [
        f"port of {name} is {state.split(':')[-1].strip()}"
        for name, state in devices.items()
        if not state.startswith("4:")
    ]


CHECK = Check(
    "efa",
    applies=lambda expected: expected.efa > 0,
    command=lambda _: (
        'for device in /sys/class/infiniband/*; do [ -e "$device" ] || continue; '
        'echo "${device##*/} $(cat "$device/device/vendor") $(cat "$device/ports/1/state")"; done'
    ),
    judge=judge,
)
