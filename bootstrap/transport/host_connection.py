"""Connect to machines that exist already, with a key file or the SSH agent, directly or through jump hosts.

Host keys are compared with a fingerprint or a known_hosts file. An unknown key is refused before anything is sent,
unless the login says that it may be trusted on first use; the key is then reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from bootstrap.transport.base import TransportError
from bootstrap.transport.host_login import HostLogin
from bootstrap.transport.ssh import DEAD_PEER_MS, KEEPALIVE_S, SshTransport, describe_failure, is_timeout

# A machine that is busy or far away may need seconds for each of the three parts of a login.
CONNECT_TIMEOUT_S = 20.0
AGENT_SOCKET = "SSH_AUTH_SOCK"
# The names under which a server offers keys of one type.
_ALGORITHMS = {"ssh-rsa": ("ssh-rsa", "rsa-sha2-256", "rsa-sha2-512")}
_KEY_FIX = "compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on its console"


@dataclass(frozen=True)
class HostConnection:
    """An open connection to a machine, and the host key that it has shown."""

    transport: SshTransport
    """Runs scripts as the login's user, or as root."""
    host_key: str
    """Public key in the form `ssh-ed25519 AAAA...`."""
    fingerprint: str
    first_use: bool
    """Whether the key was trusted without anything to compare it with."""


class HostConnections:
    """Opens connections; each jump host is connected once, however many machines are behind it."""

    def __init__(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._jumps: dict[HostLogin, _Jump] = {}

    @contextmanager
    def open(self, login: HostLogin, *, as_root: bool = False) -> Iterator[HostConnection]:
        """Connect to a machine for the block; raise TransportError.

        Scripts run as the login's user, or as root: then a user other than root needs sudo without a password.
        """
        client, policy = self.connect(login)
        try:
            key = require_transport(client, login).get_remote_server_key()
            public = f"{key.get_name()} {key.get_base64()}"
            transport = SshTransport(login.name, client, sudo=as_root and login.user != "root")
            yield HostConnection(transport, public, key.fingerprint, policy.first_use)
        finally:
            client.close()

    def connect(self, login: HostLogin) -> tuple[paramiko.SSHClient, _KeyPolicy]:
        """Connect; if the server shows a key of another type than the expected one, ask for its other keys."""
        key, policy = _load_identity(login), _KeyPolicy(login)
        while True:
            try:
                return self._attempt(login, key, policy), policy
            except _OtherKeyError:
                continue

    def close(self) -> None:
        """Close the connections to jump hosts."""
        for jump in self._jumps.values():
            jump.close()

    def _attempt(self, login: HostLogin, key: paramiko.PKey | None, policy: _KeyPolicy) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(policy)
        try:
            sock = self._open_socket(login)
            client.connect(
                login.address, login.port, username=login.user, pkey=key, sock=sock, timeout=self._timeout_s,
                banner_timeout=self._timeout_s, auth_timeout=self._timeout_s, allow_agent=key is None,
                look_for_keys=False, disabled_algorithms={"keys": policy.excluded},
            )  # fmt: skip
        except (_OtherKeyError, TransportError):
            client.close()
            raise
        except IncompatiblePeer as error:
            client.close()
            raise (policy.describe_mismatch() if policy.refused else _fail(login, error)) from None
        except paramiko.AuthenticationException as error:
            client.close()
            raise (_fail(login, TimeoutError()) if is_timeout(error) else _describe_rejection(login)) from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            client.close()
            raise _fail(login, error) from None
        require_transport(client, login).set_keepalive(KEEPALIVE_S)
        return client

    def _open_socket(self, login: HostLogin) -> socket.socket | paramiko.Channel:
        if login.jump:
            with self._lock:
                jump = self._jumps.setdefault(login.jump, _Jump(self, login.jump))
            return jump.open_channel(login, self._timeout_s)
        sock = socket.create_connection((login.address, login.port), timeout=self._timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        return sock


class _Jump:
    """A jump host, connected when the first machine behind it is."""

    def __init__(self, connections: HostConnections, login: HostLogin) -> None:
        self._connections, self._login = connections, login
        self._lock = Lock()
        self._client: paramiko.SSHClient | None = None
        self._error: TransportError | None = None

    def open_channel(self, login: HostLogin, timeout_s: float) -> paramiko.Channel:
        transport = require_transport(self._require_client(), self._login)
        target = (login.address, login.port)
        try:
            return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=timeout_s)
        except paramiko.ChannelException as error:
            line = f"jump host {self._login.name} cannot reach {login.address}:{login.port} ({error.text})"
            fix = f"check the address, and that {self._login.name} allows forwarding (AllowTcpForwarding)"
            raise TransportError(login.name, line, fix) from None

    def close(self) -> None:
        if self._client:
            self._client.close()

    def _require_client(self) -> paramiko.SSHClient:
        with self._lock:
            if self._error:
                raise self._error
            if self._client is None:
                try:
                    self._client, _ = self._connections.connect(self._login)
                except TransportError as error:
                    name = self._login.name
                    self._error = TransportError(name, f"jump host {name}: {error.line}", error.fix)
                    raise self._error from None
            return self._client


class _OtherKeyError(Exception):
    """The server has shown another key than the expected one; it may have one of another type."""


class _KeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges the host key of one machine; paramiko calls it before it sends who logs in."""

    def __init__(self, login: HostLogin) -> None:
        self.first_use = False
        self._login = login
        self._listed = {} if login.fingerprint else _read_known_keys(login)
        self.refused: list[paramiko.PKey] = []
        """Keys that are not the expected one, each of another type."""

    @property
    def excluded(self) -> list[str]:
        """The algorithms of the keys that were refused."""
        return [name for key in self.refused for name in _ALGORITHMS.get(key.get_name(), (key.get_name(),))]

    def missing_host_key(self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey) -> None:
        """Accept the key or raise."""
        if self._login.fingerprint or self._listed:
            if not self._is_expected(key):
                self.refused.append(key)
                raise _OtherKeyError
        elif self._login.trust_first_use:
            self.first_use = True
        else:
            raise _describe_unlisted(self._login, key)

    def describe_mismatch(self) -> TransportError:
        """Return the error of a machine that has shown all its keys, none of them the expected one."""
        login = self._login
        source = "the spec" if login.fingerprint else str(login.known_hosts)
        expected = login.fingerprint or ", ".join(map(_format_key, self._listed.values()))
        shown = ", ".join(map(_format_key, self.refused))
        line = f"the host key at {login.where} is not the one of {source}: expected {expected}, got {shown}"
        fix = f"{_KEY_FIX}; if the machine was installed again, write its new key to {source}"
        return TransportError(login.name, line, fix)

    def _is_expected(self, key: paramiko.PKey) -> bool:
        if self._login.fingerprint:
            return bool(key.fingerprint == self._login.fingerprint)
        return bool(self._listed.get(key.get_name()) == key)


def require_transport(client: paramiko.SSHClient, login: HostLogin) -> paramiko.Transport:
    """Return the transport of a client; raise TransportError if the connection is closed."""
    transport = client.get_transport()
    if transport is None:
        raise TransportError(login.name, f"SSH at {login.where}: the connection was lost")
    return transport


def _load_identity(login: HostLogin) -> paramiko.PKey | None:
    """Return the private key of a login; None if the agent has it. Raise TransportError if there is neither."""
    if login.identity_file is None:
        if os.environ.get(AGENT_SOCKET):
            return None
        fix = "name a key with `identity_file`, or start an agent and add one: `eval $(ssh-agent) && ssh-add`"
        raise TransportError(login.name, f"there is neither an identity file nor an SSH agent ({AGENT_SOCKET})", fix)
    path = Path(login.identity_file).expanduser()
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        line, fix = "does not exist", "correct `identity_file`, or remove it to use the SSH agent"
    except OSError as error:
        line, fix = f"cannot be read: {error.strerror}", "make it readable for you, and for nobody else"
    except (paramiko.PasswordRequiredException, TypeError):
        # cryptography raises TypeError for an encrypted key without a passphrase.
        line, fix = "needs a passphrase", f"run `ssh-add {login.identity_file}` and remove `identity_file`"
    except (paramiko.SSHException, ValueError):
        line, fix = "is not a private key", "name the private half of an OpenSSH key, not the one that ends in .pub"
    raise TransportError(login.name, f"identity file {login.identity_file} {line}", fix)


def _read_known_keys(login: HostLogin) -> dict[str, paramiko.PKey]:
    """Return the keys of a machine in its known_hosts file, by type, without those that the file revokes."""
    if login.known_hosts is None:
        return {}
    try:
        lines = Path(login.known_hosts).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        fix = "correct `known_hosts`, or write a `fingerprint` for each machine"
        raise TransportError(login.name, f"known_hosts {login.known_hosts}: {reason}", fix) from None
    keys = paramiko.HostKeys()
    revoked = {key for line in lines if line.startswith("@revoked") for key in line.split()[3:4]}
    for line in lines:
        for name, key in _parse_known_host(line):
            if key.get_base64() not in revoked:
                keys.add(name, key.get_name(), key)
    # OpenSSH writes addresses this way, and so does paramiko.
    hostname = login.address if login.port == paramiko.config.SSH_PORT else f"[{login.address}]:{login.port}"
    return dict(keys.lookup(hostname) or {})


def _parse_known_host(line: str) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield the names and the key of a line; names may be hashed. Markers and unknown types of key yield nothing."""
    if line.startswith(("@", "#")):
        return
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(line.strip())
    except (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey):
        return
    if entry and entry.key:
        yield from ((name, entry.key) for name in entry.hostnames)


def _format_key(key: paramiko.PKey) -> str:
    return f"{key.fingerprint} ({key.get_name()})"


def _describe_unlisted(login: HostLogin, key: paramiko.PKey) -> TransportError:
    listed = f"{login.known_hosts} has no key for it" if login.known_hosts else "nothing says which one is right"
    line = f"the host key at {login.where} is {_format_key(key)}, and {listed}"
    return TransportError(login.name, line, f"{_KEY_FIX}; if it is the same, write `fingerprint: {key.fingerprint}`")


def _describe_rejection(login: HostLogin) -> TransportError:
    what = f"the key {login.identity_file}" if login.identity_file else "every key of the SSH agent"
    fix = f"correct `user` or the key, or add its public half to ~{login.user}/.ssh/authorized_keys there"
    return TransportError(login.name, f"SSH at {login.where} rejected {what} for user {login.user}", fix)


def _fail(login: HostLogin, error: Exception) -> TransportError:
    if isinstance(error, socket.gaierror):
        line, fix = f"'{login.address}' has no address ({error.strerror})", "correct `address`, or add the name to DNS"
    else:
        line = describe_failure(login.where, error)
        fix = "check that the machine runs, its address and port, and that no firewall blocks SSH"
    return TransportError(login.name, line, fix)
