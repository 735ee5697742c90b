"""The SSH transport against a real server on loopback: pinned keys, timeouts and error messages."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bootstrap.action import Action, join_actions, write_file
from bootstrap.facts.model import Facts
from bootstrap.transport.base import Completed, TransportError
from bootstrap.transport.ssh import SshTransport, public_key
from cluster.inventory import Node
from tests.bootstrap.sshd import Sshd
from tests.fault_matrix.times import record
from tests.harness import wait_until


def private_key() -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


KEY, HOST_KEY, STRANGER = private_key(), private_key(), private_key()


def parsed(text: str) -> paramiko.PKey:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(text))


def node(port: int, host_key: str = HOST_KEY) -> Node:
    return Node(
        name="gpu-1",
        role="compute",
        address="127.0.0.1",
        host_key=public_key(host_key),
        machine_id="m",
        ssh_port=port,
        cpus=1,
        memory_mb=512,
    )


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    server = Sshd(parsed(HOST_KEY), parsed(KEY).get_base64())
    yield server
    server.close()


@pytest.fixture
def transport(sshd: Sshd) -> Iterator[SshTransport]:
    connected = SshTransport.connect(node(sshd.port), KEY)
    yield connected
    connected.close()


def test_output_errors_exit_code_and_stdin(transport: SshTransport) -> None:
    assert transport.run("cat; echo err >&2; exit 7", stdin=b"data\n") == Completed(7, "data\n", "err\n")


def test_a_script_that_fails_before_it_has_read_its_stdin_says_why(transport: SshTransport) -> None:
    for _ in range(20):
        done = transport.run("echo the disk is full >&2; exit 28", stdin=bytes(4 << 20))
        assert (done.code, done.err) == (28, "the disk is full\n")


def test_the_script_is_not_in_the_process_list(transport: SshTransport) -> None:
    assert "hush" not in transport.run("ps -eo args | grep h[u]sh || true; : hush").out


def test_a_long_script_and_concurrent_scripts_run(transport: SshTransport) -> None:
    results: list[str] = []
    work = [
        threading.Thread(target=lambda i=i: results.append(transport.run("true\n" * 40_000 + f"echo {i}").out))
        for i in range(3)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert sorted(results) == ["0\n", "1\n", "2\n"]


def test_lines_are_reported_while_the_script_runs(transport: SshTransport, tmp_path: Path) -> None:
    seen, lines = tmp_path / "seen", []

    def report(line: str) -> None:
        lines.append(line)
        seen.touch()

    transport.run(f"echo a; for try in $(seq 600); do [ -e {seen} ] && break; sleep 0.1; done\n[ -e {seen} ] && echo b",
                  on_line=report)  # fmt: skip
    assert [line.strip() for line in lines] == ["a", "b"]


def test_put_and_get(transport: SshTransport, tmp_path: Path) -> None:
    path = str(tmp_path / "x" / "f")
    transport.put(path, b"\x00\xff\n", 0o600)
    assert transport.get(path) == b"\x00\xff\n"
    with pytest.raises(TransportError, match="node gpu-1: cannot read /nowhere"):
        transport.get("/nowhere")


@pytest.mark.fault(20, place="real processes")
def test_a_command_that_hangs_ends_at_its_timeout(transport: SshTransport) -> None:
    began = time.monotonic()
    with pytest.raises(TransportError, match="node gpu-1: no answer within 0 s"):
        transport.run("sleep 600", timeout=0.3)
    assert time.monotonic() - began < 300


@pytest.mark.fault(20, place="real processes")
def test_a_node_that_dies_is_detected_at_once(transport: SshTransport, sshd: Sshd) -> None:
    dropped: list[float] = []

    def drop(_line: str) -> None:
        dropped.append(time.monotonic())
        sshd.drop()

    with pytest.raises(TransportError, match="the connection was lost: the node stopped or is unreachable"):
        transport.run("echo runs; sleep 600", timeout=600, on_line=drop)
    detect_s = time.monotonic() - dropped[0]
    assert detect_s < 300
    record(20, detect_s=detect_s)


@pytest.mark.fault(20, place="real processes")
@pytest.mark.parametrize("by", ["put", "write_file"])
def test_a_copy_that_is_cut_leaves_the_old_file(transport: SshTransport, sshd: Sshd, tmp_path: Path, by: str) -> None:
    """For the command on the node, the end of the connection looks like the end of the file."""
    target, part, data = tmp_path / "file", tmp_path / "file.muster-new", b"new" * 10_000_000
    target.write_text("old")
    after = tmp_path / "after"

    def cut() -> None:
        wait_until(lambda: part.exists() and part.stat().st_size > 0, "a part has arrived")
        sshd.drop()

    cutter = threading.Thread(target=cut)
    cutter.start()
    script, stdin = join_actions([*write_file(Facts(), str(target), data), Action("restart", f"touch {after}")])
    with pytest.raises(TransportError, match="the connection was lost: the node stopped or is unreachable"):
        transport.put(str(target), data) if by == "put" else transport.run(script, stdin=stdin)
    cutter.join()
    wait_until(lambda: not part.exists(), "the command on the node has ended")
    assert target.read_text() == "old"
    assert not after.exists(), "what uses the file is not done"


@pytest.mark.fault(21, place="real processes")
def test_a_wrong_host_key_is_rejected_with_both_fingerprints(sshd: Sshd) -> None:
    with pytest.raises(TransportError) as caught:
        SshTransport.connect(node(sshd.port, host_key=STRANGER), KEY, deadline_s=60)
    text = str(caught.value)
    assert f"expected {parsed(STRANGER).fingerprint}, got {parsed(HOST_KEY).fingerprint}" in text
    assert "Fix:" in text


def test_a_rejected_key_fails_at_once(sshd: Sshd) -> None:
    began = time.monotonic()
    with pytest.raises(TransportError, match="rejected the cluster's key for user root"):
        SshTransport.connect(node(sshd.port), STRANGER, deadline_s=600)
    assert time.monotonic() - began < 300


@pytest.mark.fault(20, place="real processes")
def test_connecting_retries_while_a_node_boots() -> None:
    late: list[Sshd] = []
    # Nobody else gets the port meanwhile.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]

        def boot() -> None:
            late.append(Sshd(parsed(HOST_KEY), parsed(KEY).get_base64(), port))

        threading.Timer(0.4, boot).start()
        transport = SshTransport.connect(node(port), KEY, deadline_s=240)
        assert transport.run("echo up").out == "up\n"
        transport.close()
        late[0].close()


@pytest.mark.fault(20, place="real processes")
def test_refused_reset_and_unanswered_connections_have_their_own_messages() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            TransportError, match=r"SSH at 127.0.0.1:\d+: connected, but could not start an SSH session for 1 s"
        ):
            SshTransport.connect(node(port), KEY, deadline_s=1)
    with pytest.raises(
        TransportError, match=r"SSH at 127.0.0.1:\d+: connection refused for 1 s. Fix: check that gpu-1"
    ):
        SshTransport.connect(node(port), KEY, deadline_s=1)


def test_errors_contain_no_key(sshd: Sshd) -> None:
    with pytest.raises(TransportError) as caught:
        SshTransport.connect(node(sshd.port), STRANGER, deadline_s=60)
    assert "PRIVATE" not in repr(caught.value) + str(caught.value)


@pytest.mark.parametrize("host_key", ["", "ssh-ed25519", "ssh-ed25519 AAAA!", "ssh-weird AAAA", "ssh-ed25519 AAAAC3Nz"])
def test_an_invalid_pinned_key_is_reported(host_key: str) -> None:
    with pytest.raises(TransportError, match="node gpu-1: the pinned host key cannot be read"):
        SshTransport.connect(node(9).model_copy(update={"host_key": host_key}), KEY, deadline_s=1)
