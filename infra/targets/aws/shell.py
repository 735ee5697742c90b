"""SSH to nodes on AWS: the programs it needs on this machine, and the options for nodes that Slurm launches."""

from __future__ import annotations

import shutil

from infra.engine.command_line import format_command
from infra.engine.stop import Stop
from infra.targets.aws.instances import list_instances, translate_errors
from infra.targets.aws.session_manager import render_proxy_command
from infra.targets.target import Deployment

# Without them ssh only reports "Connection closed by UNKNOWN port 65535".
_TOOLS = {
    "aws": "install the AWS CLI (docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html)",
    "session-manager-plugin": "install the Session Manager plugin "
    "(docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html)",
}


def check_tools() -> None:
    """Raise Stop if a program that SSH through Session Manager needs is missing."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        message = f"SSH to AWS nodes uses Session Manager, but this machine has no {' and no '.join(missing)}"
        raise Stop(message, "; ".join(_TOOLS[tool] for tool in missing))


def get_ssh_options(deployment: Deployment, node: str) -> list[str]:
    """Return the options of ssh for a node that Slurm launches, by the instance that has its name now."""
    with translate_errors("machines", deployment.region):
        instances = list_instances(deployment.region, deployment.cluster, deployment.stack)
    machine = next((instance for instance in reversed(instances) if instance.name == node), None)
    if machine is None or machine.state != "running":
        message = (
            f"node {node} has no machine now" if machine is None else f"the machine of node {node} is {machine.state}"
        )
        raise Stop(
            message, f"start it with a job: `{format_command('ssh', deployment.stack, then=f'srun -w {node} true')}`"
        )
    options = {
        "HostName": machine.id,
        "HostKeyAlias": node,
        "ProxyCommand": render_proxy_command(deployment.region),
    }
    return [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]
