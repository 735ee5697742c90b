"""The state of a cluster of hosts: each machine's uptime and Slurm's state, over SSH with the access files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bootstrap.transport.base import TransportError
from bootstrap.transport.ssh import SshTransport
from cluster.inventory import Inventory, Node
from infra.home import StackHome
from infra.shell import ask_slurm
from infra.targets.facts import Facts, Machine, Slurm

HOSTS_AT_ONCE = 16
ANSWER_S = 10.0
_KIND = "host"


def gather(inventory: Inventory, stack: StackHome) -> Facts:
    """Return the state of hosts, nodes and queue."""
    private_key = (stack.folder / "id_ed25519").read_text()
    with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
        states = pool.map(partial(_ask, private_key=private_key), inventory.nodes)
        machines = dict(zip((node.name for node in inventory.nodes), states, strict=True))
    controller = inventory.controller.name
    if machines[controller].state != "running":
        return Facts(inventory, inventory.nodes, machines, Slurm(problem="the controller does not answer"))
    return Facts(inventory, inventory.nodes, machines, ask_slurm(stack, controller))


def _ask(node: Node, private_key: str) -> Machine:
    try:
        transport = SshTransport.connect(node, private_key, deadline_s=ANSWER_S)
        try:
            uptime = transport.run("cat /proc/uptime", timeout=ANSWER_S).out
        finally:
            transport.close()
    except TransportError:
        return Machine("unreachable", kind=_KIND)
    return Machine("running", float(uptime.split()[0]), kind=_KIND)
