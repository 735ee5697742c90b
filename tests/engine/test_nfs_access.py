"""A job user who speaks NFS without the kernel: the real rules of a machine, loaded into a network of their own."""

from __future__ import annotations

import os
import subprocess

import pytest

from bootstrap.steps.cloud import mounts, nfs_access
from cluster import names
from infra.targets.local.build.node_container import UNCONFINED
from tests.infra.targets.aws.node.clusters import EFS, NFS, desired, ubuntu
from tests.infra.targets.aws.node.step_actions import LOGIN, written

TUNNEL, OTHER = mounts.FIRST_TUNNEL_PORT, 8080
# A server on each port, then one line per attempt: who, address, port, protocol, and whether the server answered.
ATTEMPTS = """
import os, socket, subprocess, sys, threading

def serve(family, address, port):
    server = socket.create_server((address, port), family=family)
    while True:
        server.accept()[0].sendall(b"NFS")

CONNECT = '''
import socket, sys
family, address, port, protocol = sys.argv[1:]
try:
    client = socket.socket(int(family), socket.SOCK_STREAM, int(protocol))
    client.settimeout(5)
    client.connect((address, int(port)))
    print(client.recv(3) == b"NFS")
except ConnectionRefusedError:
    print(False)
'''
USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
WHO = {"root": [], "user": USER, "user as root of a namespace": [*USER, "unshare", "--user", "--map-root-user"]}
PLACES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
for family, address in PLACES:
    for port in map(int, sys.argv[1:]):
        threading.Thread(target=serve, args=(family, address, port), daemon=True).start()
for who, prefix in WHO.items():
    for family, address in PLACES:
        for port in sys.argv[1:]:
            for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_MPTCP):
                connect = [*prefix, sys.executable, "-c", CONNECT, str(int(family)), address, port, str(int(protocol))]
                done = subprocess.run(connect, capture_output=True, text=True, check=False)
                print(who, address, port, protocol, done.stdout.strip() or done.stderr, sep="|", flush=True)
"""
# A machine that is reached through this one, as one from a container of its own network would be.
THROUGH = """
for side in near far; do
  ip netns add $side
  ip link add to-$side type veth peer name eth0 netns $side
  ip link set to-$side up
  ip -n $side link set eth0 up
done
ip addr add 10.1.0.1/24 dev to-near
ip addr add 10.2.0.1/24 dev to-far
ip -n near addr add 10.1.0.2/24 dev eth0
ip -n far addr add 10.2.0.2/24 dev eth0
ip -n near route add default via 10.1.0.1
ip -n far route add default via 10.2.0.1
ip netns exec far python3 -c "
import socket, time
servers = [socket.create_server(('10.2.0.2', port)) for port in (2049, 8080)]
time.sleep(600)" &
reach() { ip netns exec near python3 -c "import socket; socket.create_connection(('10.2.0.2', $1), 5)" 2>/dev/null; }
until reach 8080; do sleep 0.1; done
for port in 2049 8080; do if reach $port; then echo $port; fi; done
kill $!
"""


def run_in_container(*command: str) -> list[str]:
    """Load the rules in a container with a network of its own, run a command there and return the lines it prints."""
    rules = written(nfs_access.STEP.actions(ubuntu(), LOGIN, desired(EFS, NFS)), "/etc/muster/nfs-access")
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += ["--rm", "--network=none", "--cap-add=NET_ADMIN", "--cap-add=SYS_ADMIN", "--entrypoint=sh"]
    options += ["--sysctl=net.ipv6.conf.all.disable_ipv6=0", "--sysctl=net.ipv4.ip_forward=1"]
    label = f"--label={names.CLUSTER}=eng{os.getpid()}-nfs"
    # Loaded twice, as at a restart of slurmd.
    load = 'printf %s "$1" > /tmp/rules; shift; sh /tmp/rules && sh /tmp/rules && exec "$@"'
    docker = ["docker", "run", *options, label, names.IMAGE, "-c", load, "sh", rules, *command]
    done = subprocess.run(docker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.attack(1, place="real processes")
def test_only_root_connects_to_nfs_and_to_the_tunnels() -> None:
    lines = run_in_container("python3", "-c", ATTEMPTS, "2049", str(TUNNEL), str(OTHER))
    attempts = [line.split("|") for line in lines]
    assert len(attempts) == 3 * 2 * 3 * 2
    for who, address, port, protocol, answered in attempts:
        expected = who == "root" or port == str(OTHER)
        assert answered == str(expected), f"{who}, {address}, {port}, {protocol}"


@pytest.mark.attack(1, place="real processes")
def test_a_container_with_a_network_of_its_own_does_not_reach_nfs() -> None:
    assert run_in_container("sh", "-c", THROUGH) == [str(OTHER)]
