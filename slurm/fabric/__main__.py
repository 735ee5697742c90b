"""`python3 -m slurm.fabric`: the parts of the fabric job that are no shell: counters, the verdict, the slow node."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from slurm.fabric import counters, pairs
from slurm.fabric.nccl_log import Network, network
from slurm.fabric.verdict import Evidence, Wanted, findings

EXPECTED = Path("/etc/muster/expected.json")
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
    found = findings(_evidence(folder), _wanted())
    for finding in found:
        print(f"fabric: {finding}")
    (folder / "findings.json").write_text(json.dumps([{"node": f.node, "text": f.text} for f in found]))
    return BAD if found else 0


def _rounds(_folder: Path, nodes: list[str]) -> int:
    """One line per round, its pairs as `a,b`."""
    for part in pairs.rounds(nodes):
        print(" ".join(",".join(pair) for pair in part))
    return 0


def _slow(folder: Path, _arguments: list[str]) -> int:
    measured = {_pair(file): _fastest(file) for file in sorted(folder.glob("pair.*.json"))}
    for pair, speed in measured.items():
        print(f"fabric: {' and '.join(pair)}: {speed:.2f} GB/s")
    slow = pairs.slow_nodes(measured)
    print(f"fabric: slow: {', '.join(slow)}" if slow else "fabric: no single node is slower than the others")
    (folder / "slow.json").write_text(json.dumps(slow))
    return 0


_COMMANDS = {"count": _count, "judge": _judge, "rounds": _rounds, "slow": _slow}


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
    return Evidence(networks, idle, {int(size): speed for size, speed in _json(folder / "all.json").items()})


def _wanted() -> Wanted:
    known = _json(EXPECTED)
    busbw = {int(size): speed for size, speed in known.get("busbw", {}).items()}
    return Wanted(known["fabric"], known.get("efa", 0), busbw)


def _pair(file: Path) -> pairs.Pair:
    first, second = file.name.split(".")[1].split(",")
    return first, second


def _fastest(file: Path) -> float:
    return max(float(speed) for speed in _json(file).values())


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
