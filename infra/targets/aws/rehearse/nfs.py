"""The NFS side of EFS in a rehearsal: it tells a machine which filesystem the name that it used stands for."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serve_file_systems(address: str, tls: ssl.SSLContext) -> Iterator[int]:
    """Serve at an address of this machine and yield the port; the answer is the first label of the requested host."""
    hosts: dict[int, str] = {}

    def remember(connection: ssl.SSLObject, host: str | None, _context: ssl.SSLContext) -> None:
        hosts[id(connection)] = host or ""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            plain: socket.socket = self.request
            try:
                with tls.wrap_socket(plain, server_side=True) as connection:
                    host = hosts.pop(id(connection), "")
                    connection.sendall(f"{host.partition('.')[0]}\n".encode())
                    connection.recv(1)
            except OSError:
                return

    tls.sni_callback = remember
    with socketserver.ThreadingTCPServer((address, 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
