"""`python3 -m slurm.fabric COMMAND FOLDER ...`: the parts of the fabric job that are not shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm.fabric import measure
from slurm.fabric.evidence import Network, list_idle_ports, parse_nccl_log, read_counters, subtract_counters
from slurm.fabric.link_plan import NodePort, plan_links
from slurm.fabric.links import Link, judge_errors, judge_links
from slurm.fabric.pairs import Blame, Pair, PairSpeed, blame_nodes, list_slow_pairs, plan_rounds
from slurm.fabric.verdict import Evidence, ExpectedFabric, Finding, compare

EXPECTED = Path("/etc/muster/expected.json")
RESULT = "result.json"
PLANNED_LINKS = "links.json"
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
    # A machine that muster did not create has a name of its own, and NCCL's logs have that.
    (folder / f"{_name_node()}.host").write_text(os.uname().nodename.partition(".")[0])
    ports = _read_expected().ports
    sent = read_counters(Path(os.environ.get("SYSFS", "/sys")))
    # Other ports lead to storage, and may send nothing during the run.
    used = set(ports) or set(sent)
    _write(folder / f"{_name_node()}.{arguments[0]}.json", {name: sent[name] for name in sent if name in used})
    if ports:
        facts = measure.read_devices()
        errors = {port.name: dict(port.counters) for port in facts.ports if port.name in ports}
        _write(folder / f"{_name_node()}.{arguments[0]}.errors", errors)
        listed = measure.list_node_ports(ports, facts)
        _write(folder / f"{_name_node()}.ports", {name: asdict(port) for name, port in listed.items()})
    return 0


def _links(folder: Path, nodes: list[str]) -> int:
    """Print the rounds in which the links of RDMA ports are measured; nothing if the fabric has none."""
    if not _read_expected().ports:
        return 0
    planned = [pair for pairs in plan_rounds(nodes) for pair in pairs]
    for pair in planned:
        # Of an earlier try of the same job: a server ends as soon as its file is there.
        (folder / _name_link_file(*pair)).unlink(missing_ok=True)
    _write(folder / PLANNED_LINKS, planned)
    return _rounds(folder, nodes)


def _link(folder: Path, arguments: list[str]) -> int:
    """Measure the links of a pair, given as `a,b`: runs on both nodes, and writes what the second one measures."""
    first, second = arguments[0].split(",")
    file, facts = folder / _name_link_file(first, second), measure.read_devices()
    # The nodes may use different ports, so both plan with what both have written.
    planned = plan_links((first, second), *(_read_node_ports(folder / f"{node}.ports") for node in (first, second)))
    if _name_node() == first:
        measure.serve_links(planned, facts, file.exists)
        return 0
    _write(file, [asdict(link) for link in measure.measure_links((first, second), planned, facts)])
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
    for link in _read_links(folder):
        latency = "" if link.us is None else f", {link.us:.1f} us"
        print(f"fabric: {' and '.join(link.nodes)}: {link}{latency}")
    for node, reason in blame.reasons.items():
        print(f"fabric: below: {node}: {reason}")
    if blame.unclear:
        print(f"fabric: {blame.unclear}")
    result = _as_result(blame, findings, pairs, expected, _read_evidence(folder).networks)
    _write(folder / RESULT, {**result, "links": [asdict(link) for link in _read_links(folder)]})
    return FAILED if blame.reasons or blame.unclear else 0


_COMMANDS = {
    "count": _count,
    "links": _links,
    "link": _link,
    "judge": _judge,
    "rounds": _rounds,
    "suspects": _suspects,
    "result": _result,
}


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
    of_links = [*_list_unmeasured(folder), *judge_links(_read_links(folder)), *_list_error_findings(folder)]
    if not (folder / "all.json").exists():
        return [Finding("", "the run across all nodes failed"), *of_links]
    return [*compare(_read_evidence(folder), _read_expected()), *of_links]


def _list_unmeasured(folder: Path) -> list[Finding]:
    """Return the pairs whose links were to be measured and are not: a proof that did not run is no proof."""
    if not (folder / PLANNED_LINKS).exists():
        return [Finding("", "no link was measured")] if _read_expected().ports else []
    return [
        Finding("", f"the links of {' and '.join(pair)} could not be measured")
        for pair in _read_json(folder / PLANNED_LINKS)
        if not (folder / _name_link_file(*pair)).exists()
    ]


def _name_link_file(first: str, second: str) -> str:
    return f"link.{first},{second}.json"


def _list_error_findings(folder: Path) -> list[Finding]:
    findings = []
    for file in sorted(folder.glob("*.after.errors")):
        before = folder / file.name.replace(".after.", ".before.")
        node = file.name.split(".")[0]
        grown = judge_errors(_read_json(before) if before.exists() else {}, _read_json(file))
        findings += [Finding(node, text) for text in grown]
    return findings


def _read_node_ports(file: Path) -> dict[str, NodePort]:
    """Return the ports that a node has listed when it counted."""
    return {name: NodePort(**row) for name, row in _read_json(file).items()}


def _read_links(folder: Path) -> list[Link]:
    rows = [row for file in sorted(folder.glob("link.*.json")) for row in _read_json(file)]
    return [Link(**{**row, "nodes": tuple(row["nodes"])}) for row in rows]


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
    expected = _read_expected()
    # Over TCP, RDMA ports send nothing.
    uses_ports = expected.nccl and expected.fabric != "tcp"
    nodes = {file.read_text(): file.name.split(".")[0] for file in sorted(folder.glob("*.host"))}
    networks: dict[str, Network] = {}
    for file in sorted(folder.glob("nccl.*")):
        network = parse_nccl_log(file.read_text(errors="replace"))
        host = file.name.split(".")[1]
        node = nodes.get(host, host)
        # Each process has a log; the first log that names a network decides for the node.
        if node not in networks or not networks[node].name:
            networks[node] = network
    idle = {}
    for file in sorted(folder.glob("*.after.json")):
        before = folder / file.name.replace(".after.", ".before.")
        sent = subtract_counters(_read_json(before) if before.exists() else {}, _read_json(file))
        idle[file.name.split(".")[0]] = list_idle_ports(sent, _MIN_BYTES) if uses_ports else []
    devices = {file.name.split(".")[0]: len(_read_node_ports(file)) for file in sorted(folder.glob("*.ports"))}
    return Evidence(networks, idle, _read_busbw(folder / "all.json"), devices)


def _read_expected() -> ExpectedFabric:
    content = _read_json(EXPECTED)
    busbw = {int(size): speed for size, speed in content.get("busbw", {}).items()}
    ports = content.get("rdma", {})
    # Without GPUs, the ranks of the run use TCP whatever the fabric is.
    nccl = not ports or bool(content.get("gpus"))
    return ExpectedFabric(content["fabric"], content.get("efa", 0) or len(ports), busbw, ports, nccl)


def _read_busbw(file: Path) -> dict[int, float]:
    """Return GB/s by message size in bytes; empty if the run failed."""
    return {int(size): float(speed) for size, speed in (_read_json(file) if file.exists() else {}).items()}


def _name_node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _write(path: Path, content: object) -> None:
    """Write a file that other nodes read as soon as it is there."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content))
    part.replace(path)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
