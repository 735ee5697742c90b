"""Measure the links between two nodes with perftest: one node serves all measurements, the other makes them in turn."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

from slurm.fabric.links import Link
from slurm.fabric.pairs import Pair
from slurm.fabric.perftest import BANDWIDTH, FIRST_TCP_PORT, LATENCY, build_command, find_error, parse_result
from slurm.rdma.ports import RdmaError, find_roce_gid
from slurm.rdma.sysfs import RdmaFacts, RdmaPort, parse_rdma, render_reader, split_lines

# The first node's servers may start later than the second node's client.
_START_TIMEOUT_S = 60.0
_PROGRAM_TIMEOUT_S = 30.0
_POLL_S = 0.5
_PROGRAMS = (BANDWIDTH, LATENCY)
_NOT_STARTED = ("Couldn't connect", "Unable to open file descriptor for socket connection")


def read_devices() -> RdmaFacts:
    """Return the RDMA ports of this node, with GIDs and counters."""
    script = f"{render_reader(gids=True, counters=True)}read_rdma"
    done = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, text=True)
    return parse_rdma(split_lines(done.stdout))


def serve_links(rates: Mapping[str, float], facts: RdmaFacts, is_done: Callable[[], bool]) -> None:
    """Run the servers of all measurements until they end or the client is done."""
    commands = [command for name in rates for command in _list_commands(name, rates, facts).values()]
    servers = [subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in commands]
    deadline = time.monotonic() + _START_TIMEOUT_S + len(servers) * _PROGRAM_TIMEOUT_S
    while time.monotonic() < deadline and not is_done() and any(server.poll() is None for server in servers):
        time.sleep(_POLL_S)
    for server in servers:
        server.kill()
        server.wait()


def measure_links(pair: Pair, rates: Mapping[str, float], facts: RdmaFacts) -> list[Link]:
    """Measure every port with the same port of the first node of the pair, which serves."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    links = []
    for name, rate in rates.items():
        try:
            commands = _list_commands(name, rates, facts)
        except RdmaError as refused:
            links.append(Link(pair, name, rate, error=str(refused)))
            continue
        outputs = {program: _run_client([*command, pair[0]], deadline) for program, command in commands.items()}
        gbps, us = (parse_result(program, outputs[program]) for program in _PROGRAMS)
        links.append(Link(pair, name, rate, gbps, us, "" if gbps else find_error(outputs[BANDWIDTH])))
    return links


def _list_commands(name: str, rates: Mapping[str, float], facts: RdmaFacts) -> dict[str, list[str]]:
    """Return the server's command of each program for a port; both nodes number the ports alike."""
    first = FIRST_TCP_PORT + list(rates).index(name) * len(_PROGRAMS)
    gid = _find_gid(next((port for port in facts.ports if port.name == name), None))
    return {program: build_command(program, name, gid, first + place) for place, program in enumerate(_PROGRAMS)}


def _find_gid(port: RdmaPort | None) -> int | None:
    """Return the index of the GID for RoCE; InfiniBand needs none."""
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
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROGRAM_TIMEOUT_S:g} s"
