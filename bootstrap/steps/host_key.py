"""host_key: the SSH host key that was pinned before the machine existed, in place of the one it made for itself."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

PATH = "/etc/ssh/ssh_host_ed25519_key"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = write(facts, PATH, desired.secrets.host_key, 0o600)
    if todo:
        public = f"ssh-keygen -y -f {PATH} > {PATH}.pub\nsystemctl restart ssh"
        todo.append(Action("show the pinned host key", public, log="journalctl -u ssh"))
    return todo


STEP = Step("host-key", "the pinned SSH host key", actions)
