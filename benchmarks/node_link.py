"""The network of a node of `benchmarks.nodes`, as its ranks see it."""

from __future__ import annotations

import os
import socket
import subprocess
import time

_NAME_POLLS, _POLL_S = 100, 0.2


def wait_for_first_node() -> None:
    """Wait, on a node, until the first one has a name in the network; raise OSError if it gets none."""
    first = os.environ["MASTER_ADDR"]
    for _ in range(_NAME_POLLS):
        try:
            socket.gethostbyname(first)
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    seconds = _NAME_POLLS * _POLL_S
    raise OSError(f"MASTER_ADDR: {first} has no address after {seconds:.0f} s; has the first node ended?")


def limit_link(mbit: int) -> None:
    """Limit what this node sends; ranks of the same node reach each other through its loopback interface."""
    rate = ["rate", f"{mbit}mbit", "burst", "256k", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate], check=True)


def free_link() -> None:
    """Remove the limit of what this node sends."""
    subprocess.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
