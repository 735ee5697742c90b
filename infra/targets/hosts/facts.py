"""The state of a cluster of hosts, over SSH with the access files: each machine's uptime and clock, and Slurm."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from bootstrap.transport.base import TransportError
from bootstrap.transport.ssh import SshTransport
from cluster.inventory import Inventory, Node
from infra.home import StackHome
from infra.shell import ask_slurm
from infra.targets.facts import Facts, Machine, Slurm
from slurm.health.clock import MAX_OFFSET_S, describe_offset

HOSTS_AT_ONCE = 16
ANSWER_S = 10.0
_KIND = "host"


@dataclass(frozen=True)
class ClockReading:
    """Between which two offsets to this machine's clock that of a host is: an answer over SSH takes a while."""

    least_s: float
    most_s: float


@dataclass(frozen=True)
class _Answer:
    machine: Machine
    clock: ClockReading | None = None


def gather(inventory: Inventory, stack: StackHome) -> Facts:
    """Return the state of hosts, nodes and queue."""
    private_key = (stack.folder / "id_ed25519").read_text()
    with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
        answers = pool.map(partial(_ask, private_key=private_key), inventory.nodes)
        by_name = dict(zip((node.name for node in inventory.nodes), answers, strict=True))
    controller = inventory.controller.name
    clocks = {name: answer.clock for name, answer in by_name.items() if answer.clock}
    wrong = judge_clocks(clocks, controller)
    machines = {name: replace(answer.machine, problem=wrong.get(name, "")) for name, answer in by_name.items()}
    if machines[controller].state != "running":
        return Facts(inventory, inventory.nodes, machines, Slurm(problem="the controller does not answer"))
    return Facts(inventory, inventory.nodes, machines, ask_slurm(stack, controller))


def judge_clocks(clocks: Mapping[str, ClockReading], controller: str) -> dict[str, str]:
    """Return by node what is wrong with its clock: only what is certainly too far from the controller's."""
    reference = clocks.get(controller)
    if reference is None:
        return {}
    wrong = {}
    for name, clock in clocks.items():
        least_s, most_s = clock.least_s - reference.most_s, clock.most_s - reference.least_s
        if name != controller and (least_s > MAX_OFFSET_S or most_s < -MAX_OFFSET_S):
            wrong[name] = f"its clock is {describe_offset((least_s + most_s) / 2)}"
    return wrong


def _ask(node: Node, private_key: str) -> _Answer:
    try:
        transport = SshTransport.connect(node, private_key, deadline_s=ANSWER_S)
        try:
            began = time.time()
            uptime, _, clock = transport.run("cat /proc/uptime; date +%s.%N", timeout=ANSWER_S).out.partition("\n")
            answered = time.time()
        finally:
            transport.close()
    except TransportError:
        return _Answer(Machine("unreachable", kind=_KIND))
    reading = ClockReading(float(clock) - answered, float(clock) - began)
    return _Answer(Machine("running", float(uptime.split()[0]), kind=_KIND), reading)
