"""gpu: all GPUs answer, none has uncorrectable memory errors, none is slowed by its hardware."""

from __future__ import annotations

from slurm.health.check import Check, Expected

FIELDS = (
    "index",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks_throttle_reasons.active",
)
# Bits of the throttle reasons that hardware sets: slowdown, thermal slowdown, power brake.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_SLOWED = {0x8: "hardware slowdown", 0x40: "thermal slowdown", 0x80: "power brake"}
_NONE = ("[N/A]", "N/A", "[Not Supported]")


def judge(output: str, expected: Expected) -> list[str]:
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    problems = [] if len(rows) == expected.gpus else [f"{len(rows)} GPUs of {expected.gpus} answer"]
    for row in rows:
        if len(row) != len(FIELDS):
            problems.append(f"cannot read {', '.join(row)!r}")
            continue
        problems += [f"GPU {row[0]} {trouble}" for trouble in _troubles(row)]
    return problems


def _troubles(row: list[str]) -> list[str]:
    _index, uncorrected, pending, failed, reasons = row
    found = []
    if uncorrected not in ("0", *_NONE):
        found.append(f"has {uncorrected} uncorrectable memory errors")
    if pending not in ("0", "No", *_NONE):
        found.append("waits for a reset to replace bad memory rows")
    if failed not in ("0", "No", *_NONE):
        found.append("could not replace bad memory rows")
    if reasons not in _NONE:
        active = int(reasons, 16)
        found += [f"runs slow: {word}" for bit, word in _SLOWED.items() if active & bit]
    return found


CHECK = Check(
    "gpu",
    applies=lambda expected: expected.gpus > 0,
    command=lambda _: f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits",
    judge=judge,
)
