"""gpu: all GPUs answer, none has uncorrectable memory errors, none is throttled by its hardware."""

from __future__ import annotations

from slurm.health.check import Check, Expected

FIELDS = (
    "index",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks_throttle_reasons.active",
)
# Bits of the throttle reasons that the hardware sets: slowdown, thermal slowdown, power brake.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_SLOWED = {0x8: "hardware slowdown", 0x40: "thermal slowdown", 0x80: "power brake"}
_NOT_AVAILABLE = ("[N/A]", "N/A", "[Not Supported]")


def judge(output: str, expected: Expected) -> list[str]:
    """Return missing GPUs and the faults of the others."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    problems = [] if len(rows) == expected.gpus else [f"{len(rows)} of {expected.gpus} GPUs answer"]
    for row in rows:
        if len(row) != len(FIELDS):
            problems.append(f"cannot parse {', '.join(row)!r}")
            continue
        problems += [f"GPU {row[0]} {fault}" for fault in _list_faults(row)]
    return problems


def _list_faults(row: list[str]) -> list[str]:
    _index, uncorrected, pending, failed, reasons = row
    faults = []
    if uncorrected not in ("0", *_NOT_AVAILABLE):
        faults.append(f"has {uncorrected} uncorrectable memory error{'' if uncorrected == '1' else 's'}")
    if pending not in ("0", "No", *_NOT_AVAILABLE):
        faults.append("needs a reset to replace bad memory rows")
    if failed not in ("0", "No", *_NOT_AVAILABLE):
        faults.append("could not replace bad memory rows")
    if reasons not in _NOT_AVAILABLE:
        active = int(reasons, 16)
        faults += [f"runs slow: {cause}" for bit, cause in _SLOWED.items() if active & bit]
    return faults


CHECK = Check(
    "gpu",
    about="all GPUs answer; none has uncorrectable memory errors or is slowed down by its hardware",
    applies=lambda expected: expected.gpus > 0,
    command=lambda _: f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits",
    judge=judge,
    contexts=("gate", "prolog", "periodic"),
    # A healthy driver answers in a second or two, and every job waits for it. But a busy one can take several seconds,
    # and a node that is drained by mistake costs more than a late job.
    limit_s=20.0,
    blame="node",
    remedies=("rounds", "reset", "reboot", "replace"),
)
