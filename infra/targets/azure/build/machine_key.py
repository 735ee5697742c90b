"""The SSH host key of a machine as a Pulumi resource, read through Azure, so that the first login can check it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed_or_unknown
from infra.targets.azure.client import open_cloud
from infra.targets.azure.kinds import COMPUTE_API

TIMEOUT_S = 1800.0
# The first boot generates the key; Azure's agent may answer before it has.
SCRIPT = """if command -v cloud-init >/dev/null; then cloud-init status --wait >/dev/null || test $? = 2; fi
cat /etc/ssh/ssh_host_ed25519_key.pub"""
_KEY = re.compile(r"\bssh-ed25519 [A-Za-z0-9+/=]+")


class MachineKeyProvider(ResourceProvider):
    """The provider of MachineKey. Its inputs are MachineKeyArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        with open_cloud(props["where"]) as cloud:
            body = {"commandId": "RunShellScript", "script": SCRIPT.splitlines()}
            answer = cloud.operate("POST", f"{props['arm_id']}/runCommand", COMPUTE_API, TIMEOUT_S, body)
        key = parse_key(answer)
        if key is None:
            what = f"{props['node']}: Azure's agent on the machine has not printed its SSH host key"
            fix = "look at the machine's boot diagnostics in Azure's portal, then run it again"
            raise ResourceError(props["where"], what, fix)
        return CreateResult(f"key-{props['machine']}", props | {"public": key})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed_or_unknown(olds, news, ("machine",))
        return DiffResult(changes=bool(replaces), replaces=replaces, delete_before_replace=True)


@dataclass(frozen=True)
class MachineKeyArgs:
    """The inputs of a MachineKey."""

    node: str
    machine: pulumi.Input[str]
    """Its id, which no other machine has, not even one that replaces it."""
    arm_id: pulumi.Input[str]
    """Its id in the API, which is a name."""
    where: str
    """The property that it comes from, for errors."""


class MachineKey(Resource, module="muster", name="AzureMachineKey"):
    """The public host key of a machine."""

    public: pulumi.Output[str]

    def __init__(self, name: str, args: MachineKeyArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(MachineKeyProvider(), name, {**vars(args), "public": None}, opts)


def parse_key(answer: dict[str, Any]) -> str | None:
    """Return the key that a command on a machine has printed; None if there is none."""
    printed = "\n".join(str(status.get("message", "")) for status in answer.get("value", []))
    match = _KEY.search(printed)
    return match[0] if match else None
