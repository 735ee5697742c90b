"""clock: the node's clock agrees with the controller's; Slurm rejects credentials with a wrong time."""

from __future__ import annotations

import re
import shlex

from slurm.health.check import Check, Expected

# Slurm rejects credentials that are too old or from the future; logs become hard to compare long before that.
MAX_OFFSET_S = 1.0
FIX = "set it with `chronyc makestep` or `timedatectl set-ntp true`"
PROGRAM = "/etc/muster/health.pyz"
_OFFSET = re.compile(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", re.MULTILINE)
_MEASURED = re.compile(r"^offset (-?[\d.]+)$", re.MULTILINE)


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the offset if it is too large: to the controller, or else to the servers of chrony."""
    measured = _MEASURED.search(output)
    if measured and abs(float(measured[1])) > MAX_OFFSET_S:
        return [describe_offset(float(measured[1]))]
    if "absent" in output.split():
        return []
    match = _OFFSET.search(output)
    if match is None:
        return [f"cannot parse the output of chronyc: {output.strip()[:60]!r}"]
    offset_s = float(match[1])
    return [f"{offset_s:.1f} s {match[2]}"] if offset_s > MAX_OFFSET_S else []


def describe_offset(offset_s: float) -> str:
    """Return what is wrong with a clock that is so many seconds ahead of the controller's, and the fix."""
    direction = "ahead of" if offset_s > 0 else "behind"
    return f"{abs(offset_s):.1f} s {direction} the controller's; {FIX}"


def _write_script(expected: Expected) -> str:
    """Return a script that asks chrony where it runs, and the controller where it is another machine."""
    chrony = "if systemctl -q is-active chrony; then chronyc -n tracking; else echo absent; fi\n"
    if not expected.controller:
        return chrony
    # Without an answer, for example behind a firewall, only chrony is asked.
    return f"python3 {PROGRAM} clock {shlex.quote(expected.controller)} || true\n{chrony}"


CHECK = Check(
    "clock",
    about="the clock is less than a second off",
    applies=lambda _: True,
    command=_write_script,
    judge=judge,
    contexts=("gate", "periodic"),
    limit_s=20.0,
    # The server of the time may be the cause.
    blame="unknown",
    remedies=("rounds", "replace"),
)
