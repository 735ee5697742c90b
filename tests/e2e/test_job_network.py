"""A job of alice's on two nodes, whose processes talk to each other; carol reaches none of them from anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bootstrap.steps.job_network import ADMIT_USERS, PATH, UNIT_NAME
from tests.harness import Stack, wait_until

HEAD, OTHER = "gpu-1", "gpu-2"
# On the head node, a server that tells everyone a secret, and how many datagrams have reached its port. On the other
# node, a client that writes down what it got.
JOB = """
import os, select, socket, sys

home = os.path.expanduser("~/job-network")
if os.environ["SLURMD_NODENAME"] == sys.argv[1]:
    server = socket.create_server(("", 0))
    port = server.getsockname()[1]
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", port))
    with open(home + "/port.new", "w") as file:
        file.write(str(port))
    os.rename(home + "/port.new", home + "/port")
    received = 0
    while True:
        # A datagram that was sent before a connection is counted before the answer.
        for ready in select.select([datagrams, server], [], [])[0]:
            if ready is datagrams:
                datagrams.recv(100)
                received += 1
            else:
                client, _ = server.accept()
                client.sendall(f"secret of alice, {received} datagrams".encode())
                client.close()
else:
    while not os.path.exists(home + "/port"):
        select.select([], [], [], 0.1)
    client = socket.create_connection((sys.argv[1], int(open(home + "/port").read())), 120)
    with open(home + "/answer.new", "w") as file:
        file.write(client.recv(100).decode())
    os.rename(home + "/answer.new", home + "/answer")
    select.select([], [], [])
"""
# Prints what the server of a port says, or why it says nothing. Sends a datagram to it before.
ATTEMPT = """
import socket, sys

for address in sys.argv[2:]:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        datagrams.sendto(b"x", (address, int(sys.argv[1])))
    except PermissionError:
        pass
    try:
        print(socket.create_connection((address, int(sys.argv[1])), 60).recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""
SECRET = "secret of alice, 0 datagrams"
REFUSED = ("ConnectionRefusedError", "TimeoutError")


@dataclass(frozen=True)
class Server:
    """The server in alice's job."""

    stack: Stack
    job: str
    port: str

    def attempt(self, user: str, node: str, *addresses: str) -> list[str]:
        """Connect in a job on a compute node, or on the login node, and return an answer for each address."""
        command = f"python3 -c {shlex.quote(ATTEMPT)} {self.port} {' '.join(addresses)}"
        if node != "login":
            command = f"srun -p gpu -w {node} -n1 {command}"
        return self.stack.ssh("login", command, user=user).splitlines()


@pytest.fixture
def server(cluster: Stack) -> Iterator[Server]:
    cluster.ssh(
        "login",
        "rm -rf ~/job-network; mkdir ~/job-network; cat >~/job-network/job.py <<'JOB'\n" + JOB + "JOB",
        user="alice",
    )
    wrap = shlex.quote(f"srun python3 ~/job-network/job.py {HEAD}")
    submit = f"sbatch --parsable -p gpu -N2 -n2 --ntasks-per-node=1 -o ~/job-network/log --wrap {wrap}"
    job = cluster.ssh("login", submit, user="alice")
    listed = f"squeue -h -j {job} 2>/dev/null || true"
    try:
        answered = "cat ~/job-network/answer 2>/dev/null || true"
        wait_until(lambda: cluster.ssh("login", answered, user="alice") != "", "the nodes of the job are connected")
        assert cluster.ssh("login", answered, user="alice") == SECRET
        yield Server(cluster, job, cluster.ssh("login", "cat ~/job-network/port", user="alice"))
    finally:
        cluster.ssh("login", f"scancel {job}; rm -rf ~/job-network", user="alice")
        wait_until(lambda: cluster.ssh("controller", listed, user="root") == "", f"job {job} has ended")


@pytest.mark.attack(2)
def test_a_user_cannot_connect_to_the_job_of_another(server: Server) -> None:
    address = server.stack.ssh("login", f"getent ahostsv4 {HEAD} | awk 'NR == 1 {{ print $1 }}'")
    assert all(answer in REFUSED for answer in server.attempt("carol", HEAD, "127.0.0.1", address)), "same node"
    assert all(answer in REFUSED for answer in server.attempt("carol", OTHER, address)), "another node"
    assert all(answer in REFUSED for answer in server.attempt("carol", "login", address)), "no job"
    # What a job has left behind, or a crontab has started: root imitates it.
    left = f"runuser -u carol -- python3 -c {shlex.quote(ATTEMPT)} {server.port} {address}"
    for node in (HEAD, OTHER):
        assert server.stack.ssh(node, left, user="root") in REFUSED, f"after a job on {node}"
    # The owner reaches it from everywhere, and none of the datagrams has arrived.
    for node in (HEAD, OTHER, "login"):
        assert server.attempt("alice", node, address) == [SECRET], node
    # Daemons of the system reach it too, with datagrams: Slurm's own must reach the programs that they start.
    assert server.stack.ssh(OTHER, left.partition("-- ")[2], user="root") == SECRET.replace("0", "1")


@pytest.fixture
def login_without_rules(cluster: Stack) -> Iterator[Stack]:
    """Let the login node be as after a boot at which its rules could not be loaded."""
    boot = f"""systemctl daemon-reload
systemctl stop systemd-user-sessions {UNIT_NAME}
cp -p {PATH} /root/job-network.saved
printf '#!/bin/sh\nexit 1\n' >{PATH}
nft delete table inet muster_jobs
rm -f /run/muster/job-network
! systemctl start systemd-user-sessions
"""
    try:
        cluster.ssh("login", boot, user="root")
        yield cluster
    finally:
        repair = f"mv /root/job-network.saved {PATH}; {PATH}; systemctl start {UNIT_NAME} systemd-user-sessions"
        cluster.ssh("login", repair, user="root")


@pytest.mark.attack(2)
def test_users_cannot_log_in_until_the_rules_are_loaded(login_without_rules: Stack) -> None:
    """They could pretend to be others: nothing would write into their connections who opens them."""
    stack = login_without_rules
    assert stack.ssh("login", "id -un", user="alice", check=False) == ""
    assert stack.ssh("login", "id -un", user="root") == "root"
    stack.ssh("login", f"cp -p /root/job-network.saved {PATH}\n{PATH}\n{ADMIT_USERS}", user="root")
    wait_until(lambda: stack.ssh("login", "id -un", user="alice", check=False) == "alice", "alice can log in", 60)
    assert stack.ssh("login", f"systemctl is-active {UNIT_NAME}", user="root") == "active"
