"""Connections to machines that exist already, against real servers on loopback: host keys, identities, jump hosts."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from bootstrap.transport.base import TransportError
from bootstrap.transport.host_connection import AGENT_SOCKET, HostConnections
from bootstrap.transport.host_login import HostLogin
from infra.resources import ssh_key
from tests.bootstrap.sshd import KeyOnlyServer, Sshd

ME, STRANGER = ssh_key.generate("me"), ssh_key.generate("stranger")


def load_key(text: str) -> paramiko.PKey:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(text))


HOST, OTHER_HOST = load_key(ssh_key.generate("host").private), load_key(ssh_key.generate("other").private)
ECDSA = paramiko.ECDSAKey.generate()
ALLOWED = load_key(ME.private).get_base64()
FIX = "compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on its console"


@pytest.fixture
def start() -> Iterator[Callable[..., Sshd]]:
    """Return a function that starts a server with host keys."""
    servers: list[Sshd] = []

    def start_server(*keys: paramiko.PKey) -> Sshd:
        servers.append(Sshd(keys[0], ALLOWED, 0, *keys[1:]))
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()


@pytest.fixture
def identity(tmp_path: Path) -> str:
    return write_key(tmp_path / "id_ed25519", ME.private)


@pytest.fixture
def connections() -> Iterator[HostConnections]:
    opened = HostConnections(timeout_s=60)
    yield opened
    opened.close()


def write_key(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def write_known_hosts(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def public(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def refusal(connections: HostConnections, login: HostLogin) -> TransportError:
    with pytest.raises(TransportError) as refused, connections.open(login):
        pass
    return refused.value


def test_a_script_runs_as_the_login_user(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    login = HostLogin("a", "127.0.0.1", start(HOST).port, identity_file=identity, fingerprint=HOST.fingerprint)
    with connections.open(login) as connection:
        assert connection.transport.run("echo $((6 * 7))").out == "42\n"
        assert connection.host_key == public(HOST)
        assert connection.fingerprint == HOST.fingerprint
        assert not connection.first_use


def test_the_fingerprint_may_be_that_of_any_key_of_the_server(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    port = start(HOST, ECDSA).port
    for key in (HOST, ECDSA):
        login = HostLogin("a", "127.0.0.1", port, identity_file=identity, fingerprint=key.fingerprint)
        with connections.open(login) as connection:
            assert connection.host_key == public(key)


def test_another_host_key_is_refused_before_the_login(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    server = start(HOST, ECDSA)
    login = HostLogin("a", "127.0.0.1", server.port, identity_file=identity, fingerprint=OTHER_HOST.fingerprint)
    error = refusal(connections, login)
    where = f"127.0.0.1:{server.port}"
    assert error.line.startswith(
        f"the host key at {where} is not the one of the spec: expected {OTHER_HOST.fingerprint}, got "
    )
    assert f"{HOST.fingerprint} (ssh-ed25519)" in error.line
    assert f"{ECDSA.fingerprint} ({ECDSA.get_name()})" in error.line
    assert error.fix == f"{FIX}; if the machine was installed again, write its new key to the spec"


@pytest.mark.parametrize("hashed", [False, True])
def test_a_known_hosts_file_may_have_the_key(
    connections: HostConnections, start: Callable[..., Sshd], identity: str, tmp_path: Path, *, hashed: bool
) -> None:
    port = start(HOST, ECDSA).port
    name = f"[127.0.0.1]:{port}"
    written = paramiko.HostKeys.hash_host(name) if hashed else f"other.lan,{name}"
    lines = ("# comment", f"@cert-authority * {public(OTHER_HOST)}", "garbage", f"{written} {public(ECDSA)}")
    file = write_known_hosts(tmp_path / "known_hosts", *lines)
    with connections.open(HostLogin("a", "127.0.0.1", port, identity_file=identity, known_hosts=file)) as connection:
        assert connection.host_key == public(ECDSA)


def test_another_key_than_the_known_one_is_refused_even_if_first_use_is_trusted(
    connections: HostConnections, start: Callable[..., Sshd], identity: str, tmp_path: Path
) -> None:
    port = start(HOST).port
    file = write_known_hosts(tmp_path / "known_hosts", f"[127.0.0.1]:{port} {public(OTHER_HOST)}")
    login = HostLogin("a", "127.0.0.1", port, identity_file=identity, known_hosts=file, trust_first_use=True)
    error = refusal(connections, login)
    assert error.line == (
        f"the host key at 127.0.0.1:{port} is not the one of {file}: expected {OTHER_HOST.fingerprint} (ssh-ed25519), "
        f"got {HOST.fingerprint} (ssh-ed25519)"
    )


@pytest.mark.parametrize("revoked", [False, True])
def test_a_key_that_is_not_listed_or_is_revoked_is_refused(
    connections: HostConnections, start: Callable[..., Sshd], identity: str, tmp_path: Path, *, revoked: bool
) -> None:
    port = start(HOST).port
    listed = [f"@revoked * {public(HOST)}", f"[127.0.0.1]:{port} {public(HOST)}"] if revoked else []
    file = write_known_hosts(tmp_path / "known_hosts", *listed)
    error = refusal(connections, HostLogin("a", "127.0.0.1", port, identity_file=identity, known_hosts=file))
    assert error.line == (
        f"the host key at 127.0.0.1:{port} is {HOST.fingerprint} (ssh-ed25519), and {file} has no key for it"
    )
    assert error.fix == f"{FIX}; if it is the same, write `fingerprint: {HOST.fingerprint}`"


def test_a_first_use_is_trusted_only_if_that_is_allowed_and_is_reported(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    login = HostLogin("a", "127.0.0.1", start(HOST).port, identity_file=identity)
    assert "nothing says which one is right" in refusal(connections, login).line
    with connections.open(replace(login, trust_first_use=True)) as connection:
        assert connection.first_use
        assert connection.fingerprint == HOST.fingerprint


def test_the_keys_of_an_agent_are_used(
    connections: HostConnections, start: Callable[..., Sshd], identity: str, tmp_path: Path, monkeypatch
) -> None:
    address = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()  # It listens when it has printed its address.
        monkeypatch.setenv(AGENT_SOCKET, str(address))
        subprocess.run(["ssh-add", "-q", identity], check=True, env=os.environ)
        login = HostLogin("a", "127.0.0.1", start(HOST).port, fingerprint=HOST.fingerprint)
        with connections.open(login) as connection:
            assert connection.transport.run("echo hello").out == "hello\n"
    finally:
        agent.terminate()
        agent.wait(60)


def test_identities_that_cannot_be_used(connections: HostConnections, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv(AGENT_SOCKET, raising=False)
    login = HostLogin("a", "127.0.0.1", 9)
    assert refusal(connections, login).line == "there is neither an identity file nor an SSH agent (SSH_AUTH_SOCK)"
    for name, text, message in (
        ("public", ME.public, "is not a private key"),
        ("empty", "", "is not a private key"),
        ("encrypted", encrypt(tmp_path / "protected"), "needs a passphrase"),
    ):
        path = write_key(tmp_path / name, text)
        assert refusal(connections, replace(login, identity_file=path)).line == f"identity file {path} {message}"
    missing = str(tmp_path / "missing")
    assert refusal(connections, replace(login, identity_file=missing)).line == f"identity file {missing} does not exist"


def encrypt(path: Path) -> str:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "a long passphrase", "-f", str(path)]
    subprocess.run(command, check=True)
    return path.read_text()


def test_a_rejected_key_names_user_and_key(
    connections: HostConnections, start: Callable[..., Sshd], tmp_path: Path
) -> None:
    path, port = write_key(tmp_path / "stranger", STRANGER.private), start(HOST).port
    login = HostLogin("a", "127.0.0.1", port, user="ubuntu", identity_file=path, fingerprint=HOST.fingerprint)
    error = refusal(connections, login)
    assert error.line == f"SSH at 127.0.0.1:{port} rejected the key {path} for user ubuntu"
    assert error.fix == "correct `user` or the key, or add its public half to ~ubuntu/.ssh/authorized_keys there"


def test_a_machine_that_is_too_busy_to_judge_the_key_has_not_rejected_it(
    start: Callable[..., Sshd], identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = threading.Event()
    monkeypatch.setattr(KeyOnlyServer, "check_auth_publickey", lambda *_: judged.wait(60))
    port = start(HOST).port
    hasty = HostConnections(timeout_s=5)
    try:
        error = refusal(hasty, HostLogin("a", "127.0.0.1", port, identity_file=identity, fingerprint=HOST.fingerprint))
    finally:
        judged.set()
        hasty.close()
    assert error.line == f"SSH at 127.0.0.1:{port}: no answer (timeout)"


def test_a_machine_that_does_not_answer(connections: HostConnections, identity: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        login = HostLogin("a", "127.0.0.1", port, identity_file=identity, fingerprint=HOST.fingerprint)
        error = refusal(connections, login)
    assert error.line == f"SSH at 127.0.0.1:{port}: connection refused"
    unknown = replace(login, address="no-such-host.invalid")
    assert re.match(r"'no-such-host\.invalid' has no address \(", refusal(connections, unknown).line)


def test_machines_behind_a_jump_host_share_its_connection(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    gate, first, second = start(OTHER_HOST), start(HOST), start(ECDSA)
    jump = HostLogin("gate", "127.0.0.1", gate.port, identity_file=identity, fingerprint=OTHER_HOST.fingerprint)
    for server, key in ((first, HOST), (second, ECDSA)):
        login = HostLogin("a", "127.0.0.1", server.port, identity_file=identity, fingerprint=key.fingerprint, jump=jump)
        with connections.open(login) as connection:
            assert connection.transport.run("echo inside").out == "inside\n"
            assert connection.host_key == public(key)
    assert gate.logins == 1


def test_a_jump_host_that_cannot_reach_the_machine(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    jump = HostLogin("gate", "127.0.0.1", start(HOST).port, identity_file=identity, fingerprint=HOST.fingerprint)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = refusal(connections, HostLogin("a", "127.0.0.1", port, identity_file=identity, jump=jump))
    assert error.line == f"jump host gate cannot reach 127.0.0.1:{port} (Connect failed)"
    assert error.node == "a"


def test_a_jump_host_with_another_key_is_refused_for_every_machine(
    connections: HostConnections, start: Callable[..., Sshd], identity: str
) -> None:
    gate = start(HOST)
    jump = HostLogin("gate", "127.0.0.1", gate.port, identity_file=identity, fingerprint=OTHER_HOST.fingerprint)
    for name in ("a", "b"):
        error = refusal(connections, HostLogin(name, "10.0.0.1", 22, identity_file=identity, jump=jump))
        assert error.line.startswith(
            f"jump host gate: the host key at 127.0.0.1:{gate.port} is not the one of the spec"
        )
