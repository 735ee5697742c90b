"""The names of pods and headless services in a test's cluster: a DNS server that reads them from the API server.

    python -m tests.e2e.kubernetes.dns KUBECONFIG ADDRESS

CoreDNS would take minutes to build, for two kinds of names. Answers A queries over UDP, and nothing else.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

PORT = 53
DOMAIN = "svc.cluster.local"
CACHE_S = 1.0
_ENDPOINTS = "/apis/discovery.k8s.io/v1/endpointslices"
_ADDRESS = 1
_NO_SUCH_NAME = 3
_RESPONSE, _AUTHORITATIVE = 0x8000, 0x0400


def list_names(slices: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the addresses by name that the endpoints of services have: of the service, and of its named pods."""
    names: dict[str, list[str]] = {}
    for part in slices["items"]:
        metadata = part["metadata"]
        service = f"{metadata['labels'].get('kubernetes.io/service-name')}.{metadata['namespace']}.{DOMAIN}"
        for endpoint in part.get("endpoints") or ():
            names.setdefault(service, []).extend(endpoint["addresses"])
            if endpoint.get("hostname"):
                names.setdefault(f"{endpoint['hostname']}.{service}", []).extend(endpoint["addresses"])
    return names


def answer(query: bytes, names: Mapping[str, list[str]]) -> bytes:
    """Return the response to a query; a name that exists has an empty one for types other than A."""
    name, end = _read_name(query)
    kind, _ = struct.unpack_from(">HH", query, end)
    addresses = names.get(name.lower())
    answers = (addresses or []) if kind == _ADDRESS else []
    flags = _RESPONSE | _AUTHORITATIVE | (0 if addresses else _NO_SUCH_NAME)
    header = query[:2] + struct.pack(">HHHHH", flags, 1, len(answers), 0, 0)
    # The name is a reference to that of the question, and nobody may remember the answer.
    records = [struct.pack(">HHHIH", 0xC00C, _ADDRESS, 1, 0, 4) + socket.inet_aton(address) for address in answers]
    return header + query[12 : end + 4] + b"".join(records)


def _read_name(query: bytes) -> tuple[str, int]:
    """Return the name in the question, and where it ends."""
    labels, place = [], 12
    while length := query[place]:
        labels.append(query[place + 1 : place + 1 + length].decode())
        place += 1 + length
    return ".".join(labels), place + 1


@dataclass
class Reader:
    """Reads the endpoints from the API server, at most once a second."""

    kubeconfig: Path
    _read_at: float = 0.0
    _names: dict[str, list[str]] = field(default_factory=dict)

    def read(self) -> Mapping[str, list[str]]:
        """Return the addresses by name."""
        if time.monotonic() - self._read_at > CACHE_S:
            config = json.loads(self.kubeconfig.read_text())
            cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
            host = str(cluster["server"]).removeprefix("https://")
            context = ssl.create_default_context(cafile=cluster["certificate-authority"])
            connection = HTTPSConnection(host, context=context, timeout=5)
            connection.request("GET", _ENDPOINTS, headers={"Authorization": f"Bearer {user['token']}"})
            self._names = list_names(json.load(connection.getresponse()))
            connection.close()
            self._read_at = time.monotonic()
        return self._names


def main(kubeconfig: str, address: str) -> None:
    """Serve until the process ends; errors are in the log, and clients ask again."""
    reader = Reader(Path(kubeconfig))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, PORT))
        while True:
            query, client = server.recvfrom(4096)
            try:
                server.sendto(answer(query, reader.read()), client)
            except (OSError, HTTPException, ValueError, IndexError, KeyError, struct.error) as error:
                print(f"dns: {client}: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
