"""A real SSH server on loopback that runs commands with the local shell, for tests of the transport."""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import suppress

import paramiko


# paramiko fixes these signatures, so some arguments are unused.
# ruff: noqa: ARG002
class KeyOnlyServer(paramiko.ServerInterface):
    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = key.get_base64() == self.allowed
        return paramiko.common.AUTH_SUCCESSFUL if good else paramiko.common.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=_serve, args=(channel, command), daemon=True).start()
        return True


class Sshd:
    """An SSH server on `port`; `drop()` cuts every connection, as a dying node would."""

    def __init__(self, host_key: paramiko.PKey, allowed: str, port: int = 0) -> None:
        self._host_key, self._allowed = host_key, allowed
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._transports: list[paramiko.Transport] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self) -> None:
        for transport in self._transports:
            transport.close()

    def close(self) -> None:
        self.drop()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._host_key)
            self._transports.append(transport)
            try:
                transport.start_server(server=KeyOnlyServer(self._allowed))
            except (paramiko.SSHException, EOFError, OSError):
                continue


def _serve(channel: paramiko.Channel, command: bytes) -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    def pump() -> None:
        assert process.stdin is not None
        # The command may end before it has read everything.
        with suppress(BrokenPipeError):
            while chunk := channel.recv(65536):
                process.stdin.write(chunk)
                process.stdin.flush()
            process.stdin.close()

    threading.Thread(target=pump, daemon=True).start()
    # A client that is gone gets no answer.
    with suppress(OSError):
        while line := process.stdout.readline():
            channel.sendall(line)
        channel.sendall_stderr(process.stderr.read())
        channel.send_exit_status(process.wait())
    channel.close()
