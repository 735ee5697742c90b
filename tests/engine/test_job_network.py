"""A user who connects to another user's program: the real rules of two nodes, in networks of their own."""

from __future__ import annotations

import os
import subprocess

import pytest

from bootstrap.steps.job_network import render_script
from cluster import names
from infra.targets.local.build.node_container import UNCONFINED
from tests.bootstrap.clusters import desired

# `near` is the container, on which alice's programs listen; `far` is a second node.
NODES = """
mkdir -p /run/muster
ip link set lo up
ip netns add far
ip link add eth0 type veth peer name eth0 netns far
ip link set eth0 up
ip -n far link set lo up
ip -n far link set eth0 up
ip addr add 10.1.0.1/24 dev eth0
ip -n far addr add 10.1.0.2/24 dev eth0
ip -6 addr add fd01::1/64 dev eth0 nodad
ip -n far -6 addr add fd01::2/64 dev eth0 nodad
# Loaded twice, as at a restart of slurmd.
printf %s "$1" >/tmp/rules
for _ in 1 2; do sh /tmp/rules; ip netns exec far sh /tmp/rules; done
[ "$(cat /run/muster/job-network)" = closed ]
timeout 300 python3 -c "$2"
nft list ruleset >/dev/null
# As with a kernel that has no nftables, with one that lacks an expression, and with another error.
fail() { printf '#!/bin/sh\\nif [ "$*" = "%s" ]; then echo "Error: %s" >&2; exit 1; fi\\n' "$1" "$2" >/usr/sbin/nft; }
fail "list tables" "cache initialization failed: Protocol not supported"
sh /tmp/rules
cat /run/muster/job-network
fail "-f -" "Could not process rule: No such file or directory"
sh /tmp/rules
cat /run/muster/job-network
fail "-f -" "syntax error"
if sh /tmp/rules || [ -e /run/muster/job-network ]; then echo loaded; fi
"""
# Prints a line per attempt: the protocol, who, from where, the address, and whether the program was reached.
ATTEMPTS = """
import socket, subprocess, sys, time

ALICE, CAROL, NOBODY = (["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] for uid in (2001, 2003, 2009))
FAR = ["ip", "netns", "exec", "far"]
SERVE = '''
import socket, sys, threading
listener = socket.create_server(("", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.bind(("", int(sys.argv[1])))
print("ready", flush=True)
def receive():
    while True:
        print(datagrams.recv(100).decode(), flush=True)
threading.Thread(target=receive, daemon=True).start()
while True:
    listener.accept()[0].sendall(b"alice")
'''
CONNECT = '''
import socket, sys
address, port, protocol, own_port = sys.argv[1], *map(int, sys.argv[2:])
client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, protocol)
client.settimeout(60)
if own_port:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("", own_port))
try:
    client.connect((address, port))
    print(client.recv(5) == b"alice")
except (ConnectionRefusedError, TimeoutError):
    print(False)
'''
SEND = '''
import socket, sys
client = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
try:
    client.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))
    print(True)
except PermissionError:
    print(False)
'''
WHO = {
    "root": [],
    "alice": ALICE,
    "carol": CAROL,
    "carol as root of a namespace": [*CAROL, "unshare", "--user", "--map-root-user"],
    "a user who is not in the spec": NOBODY,
}
PLACES = [("near", "127.0.0.1"), ("near", "10.1.0.1"), ("far", "10.1.0.1"), ("near", "::1"), ("far", "fd01::1")]


def start(program, prefix, *arguments):
    command = [*prefix, sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def serve(port):
    server = start(SERVE, ALICE, port)
    assert server.stdout.readline() == "ready\\n"
    return server


def connect(prefix, address, port=7000, protocol=socket.IPPROTO_TCP, own_port=0):
    return start(CONNECT, prefix, address, port, int(protocol), own_port)


def report(running):
    for name, attempt in running.items():
        print(*name, attempt.communicate()[0].strip(), sep="|", flush=True)


server = serve(7000)
running = {}
for who, prefix in WHO.items():
    for place, address in PLACES:
        from_here = [*(FAR if place == "far" else []), *prefix]
        running["tcp", who, place, address] = connect(from_here, address)
        # Kernels differ in whether they show the owner of these: then nobody's are let in.
        if who.startswith("carol"):
            running["mptcp", who, place, address] = connect(from_here, address, protocol=socket.IPPROTO_MPTCP)
# Only containers let users have such a port.
running["tcp from a low port", "carol", "near", "127.0.0.1"] = connect(CAROL, "127.0.0.1", own_port=700)
report(running)
# carol takes over a connection that alice has tried before alice's program listened.
report({("tcp too early", "alice", "far", "10.1.0.1"): connect([*FAR, *ALICE], "10.1.0.1", 7001, own_port=33333)})
late = serve(7001)
report({("tcp of another", "carol", "far", "10.1.0.1"): connect([*FAR, *CAROL], "10.1.0.1", 7001, own_port=33333)})
for who in ("alice", "carol", "root"):
    for place, address in PLACES:
        send = start(SEND, [*(FAR if place == "far" else []), *WHO[who]], address, 7000, f"udp|{who}|{place}|{address}")
        report({("sent", who, place, address): send})
# A datagram is received before the one that is sent after it.
for _ in PLACES:
    print(server.stdout.readline().strip(), "received", sep="|", flush=True)
for each in (server, late):
    each.kill()
"""


@pytest.mark.attack(2, place="real processes")
def test_programs_of_a_user_are_reached_by_the_same_user_and_the_system_only() -> None:
    target = desired(users={"alice": {"uid": 2001}, "carol": {"uid": 2003}})
    rules = render_script(target.inventory.compute[0], target)
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += ["--rm", "--network=none", "--cap-add=NET_ADMIN", "--cap-add=SYS_ADMIN", "--entrypoint=sh"]
    options += ["--sysctl=net.ipv6.conf.all.disable_ipv6=0", "--sysctl=net.ipv4.ip_unprivileged_port_start=0"]
    label = f"--label={names.CLUSTER}=eng{os.getpid()}-jobs"
    command = ["docker", "run", *options, label, names.IMAGE, "-ec", NODES, "sh", rules, ATTEMPTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *attempts, without, incomplete = [line.split("|") for line in done.stdout.splitlines()]
    assert without == ["open: Error: cache initialization failed: Protocol not supported"]
    assert incomplete == ["open: Error: Could not process rule: No such file or directory"]
    connected = [attempt for attempt in attempts if "tcp" in attempt[0]]
    assert len(connected) == 5 * 5 + 2 * 5 + 3
    for protocol, who, place, address, reached in connected:
        expected = who in ("root", "alice") and protocol == "tcp"
        assert reached == str(expected), f"{protocol} by {who} from {place} to {address}"
    assert {who for kind, who, *_, done in attempts if kind == "sent" and done == "True"} == {"root"}
    received = [attempt[1] for attempt in attempts if attempt[0] == "udp"]
    assert received == ["root"] * 5
