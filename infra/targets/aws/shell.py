"""SSH to nodes on AWS: what it needs on this side, and the way to nodes that are launched by name."""

from __future__ import annotations

import shutil

from infra.engine.stop import Stop
from infra.engine.typed import typed
from infra.targets.aws.instances import asking, instances
from infra.targets.aws.session_manager import through_session_manager
from infra.targets.target import Deployment

# Without them ssh says "Connection closed by UNKNOWN port 65535".
_TOOLS = {
    "aws": "install the AWS CLI (docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)",
    "session-manager-plugin": "install the Session Manager plugin "
    "(docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html)",
}


def check_tools() -> None:
    """Raise Stop where a program that SSH through Session Manager needs is missing."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        what = f"nodes on AWS are reached through Session Manager, and this machine has no {' and no '.join(missing)}"
        raise Stop(what, "; ".join(_TOOLS[tool] for tool in missing))


def ssh_options(deployment: Deployment, node: str) -> list[str]:
    """Return options of ssh for a node that is launched by name: EC2 says which machine has the name now."""
    with asking("machines", deployment.region):
        every = instances(deployment.region, deployment.cluster, deployment.stack)
    machine = next((instance for instance in reversed(every) if instance.name == node), None)
    if machine is None or machine.state != "running":
        what = (
            f"node {node} has no machine now" if machine is None else f"the machine of node {node} is {machine.state}"
        )
        raise Stop(what, f"a job brings it up: `{typed('ssh', deployment.stack, then=f'srun -w {node} true')}`")
    chosen = {
        "HostName": machine.id,
        "HostKeyAlias": node,
        "ProxyCommand": through_session_manager(deployment.region),
    }
    return [part for key, value in chosen.items() for part in ("-o", f"{key}={value}")]
