"""The identity of a cloud machine in the network: the cluster's DNS domain, and the pinned SSH host key."""

from __future__ import annotations

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

RESOLVED_CONF = "/etc/systemd/resolved.conf.d/muster.conf"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"


def plan_resolver(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Search the cluster's domain first, so that nodes resolve each other by short name."""
    domain = desired.cloud.domain if desired.cloud else ""
    todo = write_file(facts, RESOLVED_CONF, f"[Resolve]\nDomains={domain}\n")
    if todo:
        todo.append(Action("restart the resolver", "systemctl restart systemd-resolved"))
    return todo


def skip_resolver(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip images without systemd-resolved."""
    return "" if "systemd-resolved" in facts.active else "the image does not use systemd-resolved"


def plan_host_key(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Replace the host key that the machine generated with the one pinned before the machine existed."""
    todo = write_file(facts, HOST_KEY, desired.secrets.host_key, 0o600)
    if todo:
        # On a machine from an image without keys, sshd may have failed too often to be started again.
        restart = "systemctl reset-failed ssh 2>/dev/null || true\nsystemctl restart ssh"
        script = f"ssh-keygen -y -f {HOST_KEY} > {HOST_KEY}.pub\n{restart}"
        todo.append(Action("use the pinned host key", script, log="journalctl -u ssh"))
    return todo


RESOLVER_STEP = Step(
    "resolver", "the cluster's domain is searched", plan_resolver, skip=skip_resolver, units=("systemd-resolved",)
)
HOST_KEY_STEP = Step("host-key", "the pinned SSH host key", plan_host_key)
