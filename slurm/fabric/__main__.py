"""`python3 -m slurm.fabric`: the parts of the fabric job that are no shell: counters, the verdict, the nodes below."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm.fabric import counters, pairs
from slurm.fabric.below import Below, Measured, below, slow_pairs
from slurm.fabric.nccl_log import Network, network
from slurm.fabric.verdict import Evidence, Finding, Wanted, findings

EXPECTED = Path("/etc/muster/expected.json")
RESULT = "result.json"
# Less than this in a run of gigabytes is management traffic.
_LEAST = 2**20
BAD = 1


def main(argv: list[str]) -> int:
    command, *arguments = argv or [""]
    if command not in _COMMANDS:
        print(f"usage: python3 -m slurm.fabric {'|'.join(_COMMANDS)} FOLDER ...", file=sys.stderr)
        return 2
    return _COMMANDS[command](Path(arguments[0]), arguments[1:])


def _count(folder: Path, arguments: list[str]) -> int:
    """On every node, before and after: `count FOLDER before`."""
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    (folder / f"{node}.{arguments[0]}.json").write_text(json.dumps(counters.read()))
    return 0


def _judge(folder: Path, _arguments: list[str]) -> int:
    found = _findings(folder)
    for finding in found:
        print(f"fabric: {finding}")
    return BAD if found else 0


def _rounds(_folder: Path, nodes: list[str]) -> int:
    """One line per round, its pairs as `a,b`."""
    for part in pairs.rounds(nodes):
        print(" ".join(",".join(pair) for pair in part))
    return 0


def _suspects(folder: Path, _arguments: list[str]) -> int:
    """Slow pairs, one a line: these are measured again before anybody is blamed."""
    for pair in slow_pairs(_pairs(folder), _wanted()):
        print(",".join(pair.nodes))
    return 0


def _result(folder: Path, _arguments: list[str]) -> int:
    """For whoever may take nodes away, and in words."""
    found, measured, wanted = _findings(folder), _pairs(folder), _wanted()
    judged = below(found, measured, wanted)
    for pair in measured:
        print(f"fabric: {' and '.join(pair.nodes)}: {pair.speed(wanted):.2f} GB/s")
    for node, reason in judged.reasons.items():
        print(f"fabric: below: {node}: {reason}")
    if judged.unclear:
        print(f"fabric: {judged.unclear}")
    (folder / RESULT).write_text(json.dumps(_as_result(judged, found, measured, wanted, _evidence(folder).networks)))
    return BAD if judged.reasons or judged.unclear else 0


_COMMANDS = {"count": _count, "judge": _judge, "rounds": _rounds, "suspects": _suspects, "result": _result}


def _as_result(
    judged: Below, found: list[Finding], measured: list[Measured], wanted: Wanted, networks: Mapping[str, Network]
) -> dict[str, Any]:
    return {
        "fabric": wanted.fabric,
        "networks": {node: used.name for node, used in networks.items()},
        "findings": [str(finding) for finding in found],
        "pairs": [
            {"nodes": list(one.nodes), "gb_per_s": one.speed(wanted), "expected": one.expected(wanted)}
            for one in measured
        ],
        "below": dict(judged.reasons),
        "unclear": judged.unclear,
    }


def _findings(folder: Path) -> list[Finding]:
    """One that failed as a whole has no figures; pairs tell then with whom."""
    if not (folder / "all.json").exists():
        return [Finding("", "the run across all nodes failed")]
    return findings(_evidence(folder), _wanted())


def _pairs(folder: Path) -> list[Measured]:
    """Of what was measured twice the better counts: somebody else may have been busy the first time."""
    best: dict[pairs.Pair, Measured] = {}
    for file in sorted(folder.glob("pair.*.json")):
        first, second = file.name.split(".")[1].split(",")
        found = Measured((first, second), _busbw(file))
        known = best.get(found.nodes)
        best[found.nodes] = found if known is None or found.fastest > known.fastest else known
    return list(best.values())


def _evidence(folder: Path) -> Evidence:
    networks: dict[str, Network] = {}
    for file in sorted(folder.glob("nccl.*")):
        found = network(file.read_text(errors="replace"))
        node = file.name.split(".")[1]
        # One log per process; the first that names its network speaks for the node.
        if node not in networks or not networks[node].name:
            networks[node] = found
    idle = {}
    for file in sorted(folder.glob("*.after.json")):
        before = folder / file.name.replace(".after.", ".before.")
        sent = counters.moved(_json(before) if before.exists() else {}, _json(file))
        idle[file.name.split(".")[0]] = counters.idle(sent, _LEAST)
    whole = folder / "all.json"
    return Evidence(
        networks, idle, {int(size): speed for size, speed in (_json(whole) if whole.exists() else {}).items()}
    )


def _wanted() -> Wanted:
    known = _json(EXPECTED)
    busbw = {int(size): speed for size, speed in known.get("busbw", {}).items()}
    return Wanted(known["fabric"], known.get("efa", 0), busbw)


def _busbw(file: Path) -> dict[int, float]:
    """GB/s by size; none where the run failed."""
    return {int(size): float(speed) for size, speed in (_json(file) if file.exists() else {}).items()}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
