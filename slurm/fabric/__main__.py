"""`python3 -m slurm.fabric COMMAND FOLDER ...`: the parts of the fabric job that are not shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm.fabric.evidence import Network, list_idle_devices, parse_nccl_log, read_counters, subtract_counters
from slurm.fabric.pairs import Blame, Pair, PairSpeed, blame_nodes, list_slow_pairs, plan_rounds
from slurm.fabric.verdict import Evidence, ExpectedFabric, Finding, compare

EXPECTED = Path("/etc/muster/expected.json")
RESULT = "result.json"
# In a run that sends gigabytes, less than this is only management traffic.
_MIN_BYTES = 2**20
FAILED = 1


def main(argv: list[str]) -> int:
    """Run a command and return its exit code."""
    command, *arguments = argv or [""]
    if command not in _COMMANDS:
        print(f"usage: python3 -m slurm.fabric {'|'.join(_COMMANDS)} FOLDER ...", file=sys.stderr)
        return 2
    return _COMMANDS[command](Path(arguments[0]), arguments[1:])


def _count(folder: Path, arguments: list[str]) -> int:
    """Save this node's counters; the argument is `before` or `after`."""
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    (folder / f"{node}.{arguments[0]}.json").write_text(json.dumps(read_counters()))
    return 0


def _judge(folder: Path, _arguments: list[str]) -> int:
    """Print the findings of the run across all nodes."""
    findings = _list_findings(folder)
    for finding in findings:
        print(f"fabric: {finding}")
    return FAILED if findings else 0


def _rounds(_folder: Path, nodes: list[str]) -> int:
    """Print one line per round, with its pairs as `a,b`."""
    for pairs in plan_rounds(nodes):
        print(" ".join(",".join(pair) for pair in pairs))
    return 0


def _suspects(folder: Path, _arguments: list[str]) -> int:
    """Print slow pairs, one per line: they are measured again before a node is blamed."""
    for pair in list_slow_pairs(_read_pairs(folder), _read_expected()):
        print(",".join(pair.nodes))
    return 0


def _result(folder: Path, _arguments: list[str]) -> int:
    """Print the result, and write it to a file for `muster fabric`, which may drain nodes."""
    findings, pairs, expected = _list_findings(folder), _read_pairs(folder), _read_expected()
    blame = blame_nodes(findings, pairs, expected)
    for pair in pairs:
        print(f"fabric: {' and '.join(pair.nodes)}: {pair.speed(expected):.2f} GB/s")
    for node, reason in blame.reasons.items():
        print(f"fabric: below: {node}: {reason}")
    if blame.unclear:
        print(f"fabric: {blame.unclear}")
    result = _as_result(blame, findings, pairs, expected, _read_evidence(folder).networks)
    (folder / RESULT).write_text(json.dumps(result))
    return FAILED if blame.reasons or blame.unclear else 0


_COMMANDS = {"count": _count, "judge": _judge, "rounds": _rounds, "suspects": _suspects, "result": _result}


def _as_result(
    blame: Blame,
    findings: list[Finding],
    pairs: list[PairSpeed],
    expected: ExpectedFabric,
    networks: Mapping[str, Network],
) -> dict[str, Any]:
    return {
        "fabric": expected.fabric,
        "networks": {node: used.name for node, used in networks.items()},
        "findings": [str(finding) for finding in findings],
        "pairs": [
            {"nodes": list(pair.nodes), "gb_per_s": pair.speed(expected), "expected": pair.expected(expected)}
            for pair in pairs
        ],
        "below": dict(blame.reasons),
        "unclear": blame.unclear,
    }


def _list_findings(folder: Path) -> list[Finding]:
    """Return the findings of the run across all nodes; after a failed run, the pairs show where the fault is."""
    if not (folder / "all.json").exists():
        return [Finding("", "the run across all nodes failed")]
    return compare(_read_evidence(folder), _read_expected())


def _read_pairs(folder: Path) -> list[PairSpeed]:
    """Return the better measurement of each pair, because other work may have disturbed the other one."""
    best: dict[Pair, PairSpeed] = {}
    for file in sorted(folder.glob("pair.*.json")):
        first, second = file.name.split(".")[1].split(",")
        pair = PairSpeed((first, second), _read_busbw(file))
        earlier = best.get(pair.nodes)
        best[pair.nodes] = pair if earlier is None or pair.fastest > earlier.fastest else earlier
    return list(best.values())


def _read_evidence(folder: Path) -> Evidence:
    networks: dict[str, Network] = {}
    for file in sorted(folder.glob("nccl.*")):
        network = parse_nccl_log(file.read_text(errors="replace"))
        node = file.name.split(".")[1]
        # Each process has a log; the first log that names a network decides for the node.
        if node not in networks or not networks[node].name:
            networks[node] = network
    idle = {}
    for file in sorted(folder.glob("*.after.json")):
        before = folder / file.name.replace(".after.", ".before.")
        sent = subtract_counters(_read_json(before) if before.exists() else {}, _read_json(file))
        idle[file.name.split(".")[0]] = list_idle_devices(sent, _MIN_BYTES)
    return Evidence(networks, idle, _read_busbw(folder / "all.json"))


def _read_expected() -> ExpectedFabric:
    content = _read_json(EXPECTED)
    busbw = {int(size): speed for size, speed in content.get("busbw", {}).items()}
    return ExpectedFabric(content["fabric"], content.get("efa", 0), busbw)


def _read_busbw(file: Path) -> dict[int, float]:
    """Return GB/s by message size in bytes; empty if the run failed."""
    return {int(size): float(speed) for size, speed in (_read_json(file) if file.exists() else {}).items()}


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
