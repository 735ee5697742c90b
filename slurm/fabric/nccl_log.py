"""What NCCL's log (NCCL_DEBUG=INFO) says about the network it chose. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[\w;-]+).*?\(found (?P<nics>\d+) nics\)")
_INFINIBAND = re.compile(r"NET/IB\s*: Using (?P<devices>(?:\[\d+\]\S+\s*)+)")
_USING = re.compile(
    r"(?:Using network|Assigned NET plugin|Initialized NET plugin) (?P<name>[\w /-]+?)(?: to comm|\s*$)", re.M
)
# Each of these means that a plugin was looked for and something slower is used, or nothing.
_COMPLAINTS = (
    "No plugin found",
    "Failed to initialize NET plugin",
    "Failed to initialize any NET plugin",
    "version 'EFA_",
    "NET/OFI No eligible providers",
    "NET/OFI Unable to find a provider",
)


@dataclass(frozen=True)
class Network:
    name: str
    """efa, infiniband, socket, or empty where the log does not say."""
    devices: int = 0
    complaints: tuple[str, ...] = ()


def network(log: str) -> Network:
    complaints = tuple(dict.fromkeys(line.strip() for line in log.splitlines() if any(c in line for c in _COMPLAINTS)))
    if match := _PROVIDER.search(log):
        return Network("efa" if match["name"].startswith("efa") else match["name"], int(match["nics"]), complaints)
    if match := _INFINIBAND.search(log):
        return Network("infiniband", len(match["devices"].split()), complaints)
    if "NET/Socket" in log or any(match["name"].strip() == "Socket" for match in _USING.finditer(log)):
        return Network("socket", complaints=complaints)
    return Network("", complaints=complaints)
