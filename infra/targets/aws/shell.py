"""SSH to nodes on AWS: what it needs on this side, and the way to nodes that are launched by name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from cluster.inventory import Inventory, NodeSet
from cluster.names import member
from infra.engine.stop import Stop
from infra.engine.typed import typed
from infra.home import StackHome

# Without them ssh says "Connection closed by UNKNOWN port 65535".
_TOOLS = {
    "aws": "install the AWS CLI (docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)",
    "session-manager-plugin": "install the Session Manager plugin "
    "(docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html)",
}


def check_tools(known: Inventory) -> None:
    """Stops where something is missing that SSH through Session Manager needs."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None] if known.target == "aws" else []
    if missing:
        what = f"nodes on AWS are reached through Session Manager, and this machine has no {' and no '.join(missing)}"
        raise Stop(what, "; ".join(_TOOLS[tool] for tool in missing))


def launched(sets: Sequence[NodeSet], node: str) -> bool:
    """Whether it is a node of a group that is launched by name."""
    return any(node == member(one.group, number) for one in sets for number in range(1, one.count + 1))


def way_to(stack: StackHome, node: str) -> list[str]:
    """Options of ssh: which machine has the name now is EC2's to say."""
    from infra.targets.aws.build.access import through_session_manager  # noqa: PLC0415
    from infra.targets.aws.instances import asking, instances  # noqa: PLC0415
    from muster.commands.known_cluster import known_cluster  # noqa: PLC0415  # these load AWS's libraries, and Pulumi's

    placed = known_cluster(stack)
    if placed is None:
        raise Stop(f"nothing says where stack {stack.name} is", typed("status", stack.name))
    with asking("machines", placed.region):
        found = {one.name: one for one in instances(placed.region, placed.name, placed.stack)}
    machine = found.get(node)
    if machine is None or machine.state != "running":
        what = (
            f"node {node} has no machine now" if machine is None else f"the machine of node {node} is {machine.state}"
        )
        raise Stop(what, f"a job brings it up: `{typed('ssh', stack.name, then=f'srun -w {node} true')}`")
    chosen = {
        "HostName": machine.id,
        "HostKeyAlias": node,
        "ProxyCommand": through_session_manager(placed.region),
    }
    return [part for key, value in chosen.items() for part in ("-o", f"{key}={value}")]
