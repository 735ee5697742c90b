"""A network of virtual machines: a bridge in a namespace that ends with this process, however it ends.

This machine is on the network too, so that muster reaches the virtual machines. They have no route elsewhere.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

RANGES = tuple(IPv4Network(f"10.177.{third}.0/24") for third in range(256))
BITS = 24
# The parent of all processes of the namespace: when it ends, the kernel kills them. It ends with its parent.
HOLD = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child=KILL")
READY = "ready"
BRIDGE = f"""set -e
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
echo {READY}
exec sleep infinity"""


@dataclass(frozen=True)
class Network:
    """A namespace with a bridge, to which this machine is connected."""

    holder: int
    """Process id of the first process of the namespace."""
    addresses: IPv4Network

    @property
    def link(self) -> str:
        """The network device of this machine that leads there."""
        return name_link(self.addresses)

    def enter(self, *command: str) -> list[str]:
        """Return the command line that runs a command in the namespace."""
        return ["nsenter", "--target", str(self.holder), "--net", "--pid", "--", *command]

    def run(self, script: str) -> None:
        subprocess.run(self.enter("sh", "-ec", script), check=True)

    def address(self, number: int) -> IPv4Interface:
        """Return the address of a machine by its number, from 1."""
        return IPv4Interface(f"{self.addresses[number]}/{BITS}")


def name_link(addresses: IPv4Network) -> str:
    return f"mvm-{addresses.network_address.packed[2]}"


def choose_range(links: set[str]) -> IPv4Network:
    """Return the first range of addresses that no network of other tests on this machine uses."""
    return next(addresses for addresses in RANGES if name_link(addresses) not in links)


def find_child(pid: int) -> int:
    """Return the only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@contextmanager
def open_network() -> Iterator[Network]:
    """Create a network; remove it with all processes in it at the end."""
    holder = subprocess.Popen([*HOLD, "sh", "-c", BRIDGE], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == READY, "the namespace of the virtual machines did not come up"
        network = _connect(find_child(holder.pid))
        yield network
    finally:
        holder.kill()
        holder.wait()


def _connect(holder: int) -> Network:
    """Connect this machine to the bridge by a pair of devices, which disappears with the namespace."""
    for _ in RANGES:
        links = {path.name for path in Path("/sys/class/net").iterdir()}
        network = Network(holder, choose_range(links))
        # Another test may have taken the name meanwhile.
        pair = ("type", "veth", "peer", "name", "uplink", "netns", str(holder))
        if subprocess.run(["ip", "link", "add", network.link, *pair], check=False).returncode == 0:
            break
    else:
        raise AssertionError(f"this machine cannot be connected to the network by {network.link}")
    own = f"{network.addresses.broadcast_address - 1}/{BITS}"
    subprocess.run(["ip", "address", "add", own, "dev", network.link], check=True)
    subprocess.run(["ip", "link", "set", network.link, "up"], check=True)
    network.run("ip link set uplink master bridge up")
    return network
