"""A proxy in front of the Docker engine that a test can stop."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

DOCKER_SOCKET = "/var/run/docker.sock"


class DockerProxy:
    """A socket that forwards connections to the Docker engine until it is stopped."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        for connection in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(DOCKER_SOCKET)
                self._connections += [client, engine]
                threading.Thread(target=_copy, args=(client, engine), daemon=True).start()
                threading.Thread(target=_copy, args=(engine, client), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
