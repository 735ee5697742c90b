"""`muster ssh` on AWS: it checks its tools first, and a node name leads to the instance that has it now."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home, StackHome
from infra.resources.job_queue import NoQueue
from infra.shell import unattended
from infra.targets.aws import shell as ssh_aws
from infra.targets.local.target import LocalTarget
from muster.commands import bootstrap, fabric, ssh
from tests.infra.targets.aws.test_facts import INVENTORY, start_instance
from tests.infra.targets.aws.test_state import PROVIDER, write_state
from tests.moto_server import REGION, Moto


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    home = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    home.folder.mkdir()
    home.inventory.write_text(INVENTORY.model_dump_json())
    write_state(home, {"type": PROVIDER["type"], "inputs": {"region": REGION}})
    return home


def test_a_node_name_leads_to_its_current_instance(aws: Moto, stack: StackHome) -> None:
    machine = start_instance(aws, "gpu-2", "compute")
    options = ssh._options(stack, INVENTORY, "gpu-2")
    assert options[:4] == ["-o", f"HostName={machine}", "-o", "HostKeyAlias=gpu-2"]
    assert options[5].startswith("ProxyCommand=aws ssm start-session --target %h ")
    assert options[5].endswith(f"--region {REGION}")


def test_a_powered_off_node_is_an_error_with_the_fix(aws: Moto, stack: StackHome) -> None:
    with pytest.raises(Stop, match="node gpu-2 has no machine now") as stopped:
        ssh._options(stack, INVENTORY, "gpu-2")
    assert "srun -w gpu-2 true" in stopped.value.fix
    machine = start_instance(aws, "gpu-2", "compute")
    aws.client("ec2").stop_instances(InstanceIds=[machine])
    with pytest.raises(Stop, match="the machine of node gpu-2 is stopped"):
        ssh._options(stack, INVENTORY, "gpu-2")


@pytest.mark.parametrize("node", ["gpu-65", "gpu-0", "other-1"])
def test_an_unknown_node_is_an_error_that_lists_the_nodes(stack: StackHome, node: str) -> None:
    with pytest.raises(Stop, match=f"stack s has no '{node}'") as stopped:
        ssh._options(stack, INVENTORY, node)
    assert stopped.value.fix == "choose one of: controller, gpu-[1-64], cpu-1"
    assert stopped.value.code == BAD_INPUT


def test_fixed_nodes_are_in_the_config(stack: StackHome) -> None:
    assert ssh._options(stack, INVENTORY, "controller") == []


def test_missing_tools_are_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _tool: None)
    with pytest.raises(Stop, match="this machine has no aws and no session-manager-plugin") as stopped:
        ssh_aws.check_tools()
    assert "install the Session Manager plugin" in stopped.value.fix
    LocalTarget().check_shell_tools()
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")
    ssh_aws.check_tools()


def test_sessions_on_aws_have_a_longer_timeout(stack: StackHome) -> None:
    assert "ConnectTimeout=15" in unattended(stack, "controller", None, ["true"])
    stack.inventory.write_text(INVENTORY.model_copy(update={"target": "local"}).model_dump_json())
    assert "ConnectTimeout=5" in unattended(stack, "controller", None, ["true"])


def test_bootstrap_names_the_command_to_use_instead(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "require_running_stack", lambda _name: stack)
    with pytest.raises(Stop, match="nodes on target aws pull their configuration") as stopped:
        bootstrap.bootstrap("s")
    assert stopped.value.fix == "`make up STACK=s` publishes the changes to them"


def test_nodes_are_drained_without_a_stack_file(aws: Moto, stack: StackHome) -> None:
    """The stack of this test has no stack file."""
    assert isinstance(fabric._queue(stack), NoQueue)
    assert {call.action for call in aws.calls} >= {"DescribeInstances", "GetParameter"}
