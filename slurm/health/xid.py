"""xid: the kernel log since boot shows no error after which a GPU cannot be trusted."""

from __future__ import annotations

import re

from slurm.health.check import Check, Expected

# https://docs.nvidia.com/deploy/xid-errors: errors that need a reset, a reboot or a new machine, with the reason.
# Not here: errors that a faulty program causes (13, 31, 43, 45, 68) and contained memory errors (92, 94).
FATAL = {
    46: "GPU stopped processing",
    48: "uncorrectable memory error",
    61: "internal micro-controller stopped",
    62: "internal micro-controller halted",
    63: "memory row could not be remapped now",
    64: "memory row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "GPU system processor does not answer",
    120: "GPU system processor error",
    136: "link training failed",
    140: "unrecovered memory error",
    143: "GPU initialisation failed",
    149: "NVLink fatal error",
}
_LINE = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)")


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the fatal errors by device."""
    counts: dict[tuple[str, int], int] = {}
    for match in _LINE.finditer(output):
        key = (match["device"].removeprefix("PCI:"), int(match["number"]))
        counts[key] = counts.get(key, 0) + 1
    return [
        f"Xid {number} on {device}: {FATAL[number]}" + (f" ({count} times)" if count > 1 else "")
        for (device, number), count in counts.items()
        if number in FATAL
    ]


CHECK = Check(
    "xid",
    about="the kernel log since boot shows no Xid after which a GPU cannot be trusted",
    applies=lambda expected: expected.gpus > 0,
    # grep exits with 1 if no line matches, which is the healthy case, but a failure of dmesg must still be reported.
    command=lambda _: 'log=$(dmesg --color=never) || exit $?; printf "%s\\n" "$log" | grep -F "NVRM: Xid" || true',
    judge=judge,
    contexts=("gate", "prolog", "periodic"),
    limit_s=20.0,
    blame="node",
    # Without a reset: the lines stay in the kernel log until the next boot, so nothing would show that it helped.
    remedies=("reboot", "replace"),
)
