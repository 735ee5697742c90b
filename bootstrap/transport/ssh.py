"""Run scripts on a node over SSH (paramiko), with pinned host keys and a deadline on every operation."""

from __future__ import annotations

import base64
import io
import logging
import shlex
import socket
import time
from collections.abc import Callable

import paramiko

from bootstrap.transport.base import (
    DEFAULT_TIMEOUT_S,
    Completed,
    Lines,
    LostConnectionError,
    OnLine,
    TransportError,
    put_script,
)
from cluster.inventory import Node

CONNECT_DEADLINE_S = 30.0
KEEPALIVE_S = 2
# The connection ends if data is unacknowledged for this long, because a killed container sends no reset.
DEAD_PEER_MS = 5000
ATTEMPT_S = 5.0

# Without a handler, Python prints paramiko's own tracebacks to stderr, next to the error that we raise.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class SshTransport:
    """An SSH connection to one node; every script runs as root."""

    def __init__(self, node: str, client: paramiko.SSHClient, sudo: bool) -> None:
        self._node = node
        self._client = client
        self._sudo = sudo

    @classmethod
    def connect(
        cls, node: Node, private_key: str, user: str | None = None, deadline_s: float = CONNECT_DEADLINE_S
    ) -> SshTransport:
        """Connect, and retry while the node boots.

        Log in as `user`, by default the node's SSH user, who becomes root through sudo.
        """
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
        deadline = time.monotonic() + deadline_s
        pause = 0.05
        while True:
            try:
                client = _attempt(node, key, user or node.ssh_user, max(0.1, deadline - time.monotonic()))
                return cls(node.name, client, sudo=user is None and node.ssh_user != "root")
            except _NotReadyError as error:
                if time.monotonic() + pause >= deadline:
                    raise TransportError(node.name, f"{error} for {deadline_s:.0f} s", _fix(node)) from None
            time.sleep(pause)
            pause = min(pause * 1.6, 1.0)

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,
    ) -> Completed:
        deadline = time.monotonic() + timeout
        body = script.encode()
        # The script is sent on stdin, where it has no length limit and its secrets are not in the process list.
        command = shlex.join(["sh", "-c", f'eval "$(head -c {len(body)})"'])
        if self._sudo:
            command = f"sudo -n {command}"
        try:
            return self._exchange(command, body + (stdin or b""), deadline, Lines(on_line))
        except TimeoutError:
            raise TransportError(self._node, f"no answer within {timeout:.0f} s") from None
        except (paramiko.SSHException, OSError, EOFError):
            raise LostConnectionError(
                self._node, "the connection was lost: the node stopped or is unreachable"
            ) from None

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None:
        completed = self.run(put_script(path, mode, owner, len(data)), stdin=data)
        if completed.code != 0:
            raise TransportError(self._node, f"cannot write {path}: {completed.err.strip()}")

    def get(self, path: str) -> bytes:
        completed = self.run(f"base64 {shlex.quote(path)}")
        if completed.code != 0:
            raise TransportError(self._node, f"cannot read {path}: {completed.err.strip()}")
        return base64.b64decode(completed.out)

    def close(self) -> None:
        self._client.close()

    def _exchange(self, command: str, data: bytes, deadline: float, lines: Lines) -> Completed:
        transport = self._client.get_transport()
        if transport is None:
            raise EOFError
        channel = transport.open_session(timeout=_left(deadline))
        try:
            channel.settimeout(_left(deadline))
            channel.exec_command(command)
            _send(channel, data)
            out = _read(channel.recv, channel, deadline, lines)
            err = _read(channel.recv_stderr, channel, deadline, Lines(None))
            if not channel.status_event.wait(_left(deadline)):
                raise TimeoutError
            code = channel.recv_exit_status()
        finally:
            channel.close()
        if code == -1:
            raise EOFError
        return Completed(code, out, err)


def describe_failure(where: str, error: Exception) -> str:
    """Return why no SSH session could be started at an address and port."""
    if isinstance(error, ConnectionRefusedError):
        return f"SSH at {where}: connection refused"
    if isinstance(error, ConnectionResetError | EOFError):
        return f"SSH at {where}: connection reset"
    if isinstance(error, TimeoutError):
        return f"SSH at {where}: no answer (timeout)"
    if isinstance(error, paramiko.SSHException):
        # paramiko's own message depends on when the connection failed.
        return f"SSH at {where}: connected, but could not start an SSH session"
    return f"SSH at {where}: {error}"


def is_timeout(error: paramiko.AuthenticationException) -> bool:
    """Return whether a login ended without an answer: a machine that is busy has not rejected anything."""
    return "timeout" in str(error).lower()


class _NotReadyError(Exception):
    """A failure to connect to a node that may still be booting."""


def _attempt(node: Node, key: paramiko.PKey, user: str, left: float) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    pinned = _pinned_key(node)
    name = (
        node.login_address if node.ssh_port == paramiko.config.SSH_PORT else f"[{node.login_address}]:{node.ssh_port}"
    )
    client.get_host_keys().add(name, pinned.get_name(), pinned)
    wait = min(left, ATTEMPT_S)
    try:
        sock = socket.create_connection((node.login_address, node.ssh_port), timeout=wait)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        client.connect(
            node.login_address, node.ssh_port, username=user, pkey=key, sock=sock, timeout=wait, banner_timeout=wait,
            auth_timeout=max(wait, ATTEMPT_S), allow_agent=False, look_for_keys=False,
        )  # fmt: skip
    except paramiko.BadHostKeyException as error:
        client.close()
        raise TransportError(
            node.name,
            f"the host key is not the pinned one: expected {pinned.fingerprint}, got {error.key.fingerprint}",
            f"check whether another machine uses {node.login_address}; if the node was replaced outside muster, "
            "run `muster up`, which reads its new key, or `muster teardown` and `muster up`",
        ) from None
    except paramiko.AuthenticationException as error:
        client.close()
        if is_timeout(error):
            raise _NotReadyError(describe_failure(f"{node.login_address}:{node.ssh_port}", TimeoutError())) from None
        raise TransportError(
            node.name,
            f"SSH at {node.login_address} rejected the cluster's key for user {user}",
            "the key in the stack's state and the node's authorized_keys differ: replace the node",
        ) from None
    except (OSError, EOFError, paramiko.SSHException) as error:
        client.close()
        raise _NotReadyError(describe_failure(f"{node.login_address}:{node.ssh_port}", error)) from None
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(KEEPALIVE_S)
    return client


def _pinned_key(node: Node) -> paramiko.PKey:
    try:
        kind, blob = node.host_key.split()[:2]
        return paramiko.PKey.from_type_string(kind, base64.b64decode(blob))
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType):
        fix = "the inventory must contain the node's public host key in the form `ssh-ed25519 AAAA...`"
        raise TransportError(node.name, "the pinned host key cannot be read", fix) from None


def _fix(node: Node) -> str:
    return f"check that {node.name} and its sshd are running; `muster up` replaces a node that is gone"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _send(channel: paramiko.Channel, data: bytes) -> None:
    try:
        channel.sendall(data)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        # A script that fails early does not read all of its input, and the node closes the channel. Its exit code and
        # its output, which says why it failed, have arrived by then.
        if not channel.status_event.is_set():
            raise


def _read(receive: Callable[[int], bytes], channel: paramiko.Channel, deadline: float, lines: Lines) -> str:
    chunks: list[bytes] = []
    while True:
        channel.settimeout(_left(deadline))
        chunk = receive(65536)
        if not chunk:
            return b"".join(chunks).decode(errors="replace")
        chunks.append(chunk)
        lines.feed(chunk)


def public_key(private_key: str) -> str:
    """Return the public half of an Ed25519 private key in OpenSSH form."""
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
    return f"{key.get_name()} {key.get_base64()}"
