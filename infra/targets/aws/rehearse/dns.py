"""A DNS server for the machines of a rehearsal: A records of IPv4 addresses, and nothing else."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

Resolve = Callable[[str], str | None]
"""Returns the IPv4 address of a name in lower case, or None if it does not exist."""

_HEADER = struct.Struct(">HHHHHH")
_TYPE_A, _CLASS_IN = 1, 1
_ANSWERED, _NO_SUCH_NAME, _MALFORMED = 0x8580, 0x8583, 0x8581
# A pointer to the question, which begins after the header.
_NAME_OF_QUESTION = 0xC00C
_TTL_S = 15


def answer_query(query: bytes, resolve: Resolve) -> bytes:
    """Return the response to a query; names that exist have no records of types other than A."""
    id_ = int.from_bytes(query[:2], "big")
    try:
        name, end = _read_name(query)
        kind, _class = struct.unpack_from(">HH", query, end)
    except (IndexError, struct.error, UnicodeDecodeError):
        return _HEADER.pack(id_, _MALFORMED, 0, 0, 0, 0)
    question = query[_HEADER.size : end + 4]
    address = resolve(name)
    if address is None:
        return _HEADER.pack(id_, _NO_SUCH_NAME, 1, 0, 0, 0) + question
    if kind != _TYPE_A:
        return _HEADER.pack(id_, _ANSWERED, 1, 0, 0, 0) + question
    record = struct.pack(">HHHIH", _NAME_OF_QUESTION, _TYPE_A, _CLASS_IN, _TTL_S, 4) + IPv4Address(address).packed
    return _HEADER.pack(id_, _ANSWERED, 1, 1, 0, 0) + question + record


@contextmanager
def serve_names(address: str, resolve: Resolve) -> Iterator[int]:
    """Answer queries at an address of this machine and yield the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, server = self.request
            server.sendto(answer_query(query, resolve), self.client_address)

    with socketserver.ThreadingUDPServer((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _read_name(query: bytes) -> tuple[str, int]:
    """Return the name of the first question, and the position after it."""
    labels, position = [], _HEADER.size
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode("ascii"))
        position += 1 + length
    return ".".join(labels).lower(), position + 1
