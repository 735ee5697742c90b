"""imex: NVIDIA's service that lets the GPUs of an UltraServer map each other's memory over NVLink.

Every job has an IMEX domain of its own: the prolog starts the service with the addresses of the job's nodes, and the
epilog stops it. Services with different lists of nodes refuse each other until both are restarted, so that none may
still run with the list of an earlier job
(https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/deployment.html,
https://docs.aws.amazon.com/pcs/latest/userguide/capacity-blocks-nvidia-imex.html).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slurm.control.nodes import NodeState
from slurm.health.check import Check, Expected

SERVICE = "nvidia-imex"
# With these, nvidia-imex-ctl can ask all services of the domain for their state.
OPTIONS = {"IMEX_CMD_ENABLED": "1", "IMEX_CMD_PORT": "50005"}
_NODE = re.compile(r"^Node #\d+\s+- (\S+)\s+- (.+?)\s+- ")
_DOMAIN = re.compile(r"^Domain State: (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class DomainStatus:
    """What `nvidia-imex-ctl -N` reports."""

    state: str
    """UP once all nodes are connected with each other; empty if there is no answer."""
    nodes: Mapping[str, str]
    """State of each node's service by address, e.g. READY."""


def select_addresses(nodes: Mapping[str, NodeState], ultraserver: Collection[str]) -> dict[str, str]:
    """Return the addresses of a job's nodes by name, without other UltraServers, which NVLink does not reach."""
    return {name: node.address for name, node in nodes.items() if name in ultraserver}


def set_options(config: str) -> str:
    """Return the service's configuration file with the options that the prolog needs."""
    lines = [line for line in config.splitlines() if line.partition("=")[0].strip() not in OPTIONS]
    return "\n".join([*lines, *(f"{key}={value}" for key, value in OPTIONS.items()), ""])


def parse_status(output: str) -> DomainStatus:
    """Parse the table that `nvidia-imex-ctl -N` prints."""
    nodes = {match[1]: match[2] for line in output.splitlines() if (match := _NODE.match(line))}
    domain = _DOMAIN.search(output)
    return DomainStatus(domain[1] if domain else "", nodes)


def describe_missing(status: DomainStatus, addresses: Mapping[str, str]) -> str:
    """Return which nodes keep the domain from being up."""
    missing = [
        f"{name} ({address}) {status.nodes.get(address, 'no answer')}"
        for name, address in addresses.items()
        if status.nodes.get(address) != "READY"
    ]
    return ", ".join(missing) or f"all nodes are READY, but the domain is {status.state or 'unknown'}"


def find_major(devices: str) -> int | None:
    """Return the major number of IMEX channels, given /proc/devices; None if the driver has none."""
    match = re.search(r"^\s*(\d+) nvidia-caps-imex-channels$", devices, re.MULTILINE)
    return int(match[1]) if match else None


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the problem if the service is missing or has failed; between jobs it does not run, which is no problem."""
    state = output.strip()
    if state == "missing":
        return [f"{SERVICE} is not installed"]
    return [f"{SERVICE} has failed; see journalctl -u {SERVICE}"] if state == "failed" else []


CHECK = Check(
    "imex",
    about="IMEX is installed and has not failed (UltraServers)",
    applies=lambda expected: bool(expected.ultraserver),
    command=lambda _: (
        f"if command -v {SERVICE}-ctl >/dev/null; then systemctl is-failed {SERVICE} || :; else echo missing; fi"
    ),
    judge=judge,
    # Not before jobs: the prolog starts the service anew, and reports by itself what is wrong then.
    contexts=("gate", "periodic"),
    limit_s=20.0,
    # Another node of the UltraServer may be the cause.
    blame="unknown",
    remedies=("rounds", "replace"),
)
