"""A real SSH server on loopback that runs commands with the local shell, for tests of the transport."""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import suppress

import paramiko

Address = tuple[str, int]
Stream = socket.socket | paramiko.Channel


# paramiko fixes these signatures, so some arguments are unused.
class KeyOnlyServer(paramiko.ServerInterface):
    def __init__(self, allowed: str) -> None:
        self.allowed = allowed
        self.forwarded: dict[int, socket.socket] = {}
        """Connections of clients to other servers, by channel."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = key.get_base64() == self.allowed
        return paramiko.common.AUTH_SUCCESSFUL if good else paramiko.common.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_direct_tcpip_request(self, chanid: int, origin: Address, destination: Address) -> int:
        """Forward a connection, as a jump host does."""
        try:
            self.forwarded[chanid] = socket.create_connection(destination, timeout=60)
        except OSError:
            return paramiko.common.OPEN_FAILED_CONNECT_FAILED
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=_serve, args=(channel, command), daemon=True).start()
        return True


class Sshd:
    """An SSH server on `port`; `drop()` cuts every connection, as a dying node would."""

    def __init__(self, host_key: paramiko.PKey, allowed: str, port: int = 0, *other_keys: paramiko.PKey) -> None:
        self._host_keys, self._allowed = (host_key, *other_keys), allowed
        self.logins = 0
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
            for key in self._host_keys:
                transport.add_server_key(key)
            self._transports.append(transport)
            server = KeyOnlyServer(self._allowed)
            try:
                transport.start_server(server=server)
            except (paramiko.SSHException, EOFError, OSError):
                continue
            self.logins += 1
            threading.Thread(target=_forward, args=(transport, server), daemon=True).start()


def _forward(transport: paramiko.Transport, server: KeyOnlyServer) -> None:
    """Pass on what arrives in forwarded channels; other channels have their own threads."""
    accepted: list[paramiko.Channel | None] = []  # paramiko closes a channel that nothing refers to.
    while transport.is_active():
        channel = transport.accept(timeout=1)
        accepted.append(channel)
        if channel is None or channel.chanid not in server.forwarded:
            continue
        target = server.forwarded[channel.chanid]
        for source, sink in ((channel, target), (target, channel)):
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: Stream, sink: Stream) -> None:
    with suppress(OSError):
        while chunk := source.recv(65536):
            sink.sendall(chunk)
    sink.close()


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
