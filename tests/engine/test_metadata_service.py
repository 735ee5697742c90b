"""A job user who asks the metadata service of Nebius for user data: the rules of a node, in a network of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bootstrap.desired import Desired, Secrets
from bootstrap.facts.model import Facts
from bootstrap.steps import metadata
from cluster import names
from infra.targets.local.build.node_container import UNCONFINED
from infra.targets.nebius.plan import plan_nebius
from infra.targets.nebius.user_data import render_user_data
from infra.targets.rented.inventory import build_inventory
from tests.infra.targets.nebius.specs import make_spec

KEY = "a private host key"
# Loads the rules twice, as at a restart of slurmd; then a line for each who asks: what the service has answered.
SCRIPT = """
import http.server, subprocess, sys, threading

rules, text = sys.argv[1:]

class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.headers.get("Metadata") == "true" else 400)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "169.254.169.254/32", "dev", "lo"], check=True)
server = http.server.ThreadingHTTPServer(("169.254.169.254", 80), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
for _ in range(2):
    subprocess.run(["sh", "-c", rules], check=True)
USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
WHO = {"root": [], "user": USER, "user as root of a namespace": [*USER, "unshare", "--user", "--map-root-user"]}
ASK = '''
import urllib.request
request = urllib.request.Request("http://169.254.169.254/v1/user-data", headers={"Metadata": "true"})
try:
    print("a private host key" in urllib.request.urlopen(request, timeout=5).read().decode())
except OSError as refused:
    print(refused)
'''
for who, prefix in WHO.items():
    done = subprocess.run([*prefix, sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    print(who, done.stdout.strip() or done.stderr, sep=": ", flush=True)
"""


def render_rules() -> str:
    """Return the script that loads the rules on a compute node."""
    plan = plan_nebius(make_spec())
    machine = {"address": "10.88.0.4", "host_key": "", "machine_id": "", "cpus": 8, "memory_mb": 1, "path": []}
    inventory = build_inventory(plan, {node.name: machine for node in plan.nodes}, public=False)
    desired = Desired(inventory, make_spec(), Secrets(b"", "password", "ssh-ed25519 AAAA"), Path(__file__).parents[2])
    actions = metadata.plan_metadata(Facts(), inventory.compute[0], desired)
    return next(action.data for action in actions if action.title == "write /etc/muster/metadata").decode()


def test_only_root_reads_the_private_host_key_from_the_metadata_service() -> None:
    text = render_user_data("gpu-1", {"private": KEY, "public": ""}, "ssh-ed25519 AAAA", {"shared": "/shared"})
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += ["--rm", "--network=none", "--cap-add=NET_ADMIN", "--cap-add=SYS_ADMIN", "--entrypoint=python3"]
    label = f"--label={names.CLUSTER}=eng{os.getpid()}-metadata"
    docker = ["docker", "run", *options, label, names.IMAGE, "-c", SCRIPT, render_rules(), text]
    done = subprocess.run(docker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "root: True",
        "user: <urlopen error [Errno 111] Connection refused>",
        "user as root of a namespace: <urlopen error [Errno 111] Connection refused>",
    ]
