"""Measure the links between two nodes with perftest: one node serves all measurements, the other makes them in turn."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from slurm.fabric.link_plan import NodePort, PlannedLink
from slurm.fabric.links import Link
from slurm.fabric.pairs import Pair
from slurm.fabric.perftest import BANDWIDTH, PROGRAMS, build_command, find_error, parse_result
from slurm.rdma.ports import RdmaError, find_roce_gid
from slurm.rdma.sysfs import RdmaFacts, parse_rdma, render_reader, split_lines

# The first node's servers may start later than the second node's client.
_START_TIMEOUT_S = 60.0
_PROGRAM_TIMEOUT_S = 30.0
_POLL_S = 0.5
_NOT_STARTED = ("Couldn't connect", "Unable to open file descriptor for socket connection")


def read_devices() -> RdmaFacts:
    """Return the RDMA ports of this node, with GIDs and counters."""
    script = f"{render_reader(gids=True, counters=True)}read_rdma"
    done = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, text=True)
    return parse_rdma(split_lines(done.stdout))


def list_node_ports(rates: Mapping[str, float], facts: RdmaFacts) -> dict[str, NodePort]:
    """Return the ports that jobs use on this node, with the reasons why some cannot be measured."""
    missing = next((program for program in PROGRAMS if shutil.which(program) is None), "")
    return {
        name: NodePort(rate, f"{missing} is not installed" if missing else _describe_refusal(name, facts))
        for name, rate in rates.items()
    }


def serve_links(planned: Sequence[PlannedLink], facts: RdmaFacts, is_done: Callable[[], bool]) -> None:
    """Run the servers of all links that can be measured until they end or the client is done."""
    commands = [
        command
        for link in planned
        if not link.error
        for command in _list_commands(link.ports[0], link.tcp_port, facts).values()
    ]
    servers = [subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in commands]
    deadline = time.monotonic() + _START_TIMEOUT_S + len(servers) * _PROGRAM_TIMEOUT_S
    while time.monotonic() < deadline and not is_done() and any(server.poll() is None for server in servers):
        time.sleep(_POLL_S)
    for server in servers:
        server.kill()
        server.wait()


def measure_links(pair: Pair, planned: Sequence[PlannedLink], facts: RdmaFacts) -> list[Link]:
    """Measure the planned links from the second node of the pair; the first one serves."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    links = []
    for link in planned:
        if link.error:
            links.append(Link(pair, link.name, link.rate, error=link.error))
            continue
        commands = _list_commands(link.ports[1], link.tcp_port, facts)
        outputs = {program: _run_client([*command, pair[0]], deadline) for program, command in commands.items()}
        gbps, us = (parse_result(program, outputs[program]) for program in PROGRAMS)
        links.append(Link(pair, link.name, link.rate, gbps, us, "" if gbps else find_error(outputs[BANDWIDTH])))
    return links


def _list_commands(name: str, tcp_port: int, facts: RdmaFacts) -> dict[str, list[str]]:
    """Return the server's command of each program for a port."""
    gid = _find_gid(name, facts)
    return {program: build_command(program, name, gid, tcp_port + place) for place, program in enumerate(PROGRAMS)}


def _describe_refusal(name: str, facts: RdmaFacts) -> str:
    """Return why a port cannot be used; empty if it can be."""
    try:
        _find_gid(name, facts)
    except RdmaError as refused:
        return str(refused)
    return ""


def _find_gid(name: str, facts: RdmaFacts) -> int | None:
    """Return the index of the port's GID for RoCE, or raise RdmaError; InfiniBand needs none."""
    port = next((port for port in facts.ports if port.name == name), None)
    return find_roce_gid(port).index if port and port.link_layer == "Ethernet" else None


def _run_client(command: list[str], deadline: float) -> str:
    """Run the client, until the deadline again if the server has not started yet."""
    while True:
        output = _run(command)
        if not any(text in output for text in _NOT_STARTED) or time.monotonic() >= deadline:
            return output
        time.sleep(_POLL_S)


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROGRAM_TIMEOUT_S:g} s"
