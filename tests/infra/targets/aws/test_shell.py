"""`muster ssh` on AWS: what it needs is asked for first, and a node by name leads to whichever machine has it."""

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
from tests.infra.targets.aws.test_facts import KNOWN, start
from tests.infra.targets.aws.test_state import PROVIDER, keep
from tests.moto_server import REGION, Moto, aws, moto  # noqa: F401  # fixtures


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    made = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    made.folder.mkdir()
    made.inventory.write_text(KNOWN.model_dump_json())
    keep(made, {"type": PROVIDER["type"], "inputs": {"region": REGION}})
    return made


def test_a_node_by_name_is_the_machine_that_has_it_now(aws: Moto, stack: StackHome) -> None:  # noqa: F811
    machine = start(aws, "gpu-2", "compute")
    options = ssh._options(stack, KNOWN, "gpu-2")
    assert options[:4] == ["-o", f"HostName={machine}", "-o", "HostKeyAlias=gpu-2"]
    assert options[5].startswith("ProxyCommand=aws ssm start-session --target %h ")
    assert options[5].endswith(f"--region {REGION}")


def test_a_node_that_is_off_says_how_it_comes_up(aws: Moto, stack: StackHome) -> None:  # noqa: F811
    with pytest.raises(Stop, match="node gpu-2 has no machine now") as stopped:
        ssh._options(stack, KNOWN, "gpu-2")
    assert "srun -w gpu-2 true" in stopped.value.fix
    machine = start(aws, "gpu-2", "compute")
    aws.client("ec2").stop_instances(InstanceIds=[machine])
    with pytest.raises(Stop, match="the machine of node gpu-2 is stopped"):
        ssh._options(stack, KNOWN, "gpu-2")


@pytest.mark.parametrize("node", ["gpu-65", "gpu-0", "other-1"])
def test_a_name_that_no_group_has_is_refused_with_those_there_are(stack: StackHome, node: str) -> None:
    with pytest.raises(Stop, match=f"stack s has no '{node}'") as stopped:
        ssh._options(stack, KNOWN, node)
    assert stopped.value.fix == "choose one of: controller, gpu-[1-64], cpu-1"
    assert stopped.value.code == BAD_INPUT


def test_fixed_nodes_are_in_the_config(stack: StackHome) -> None:
    assert ssh._options(stack, KNOWN, "controller") == []


def test_what_is_missing_on_this_side_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _tool: None)
    with pytest.raises(Stop, match="this machine has no aws and no session-manager-plugin") as stopped:
        ssh_aws.check_tools()
    assert "install the Session Manager plugin" in stopped.value.fix
    LocalTarget().check_shell_tools()
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")
    ssh_aws.check_tools()


def test_a_session_gets_time_to_begin(stack: StackHome) -> None:
    assert "ConnectTimeout=15" in unattended(stack, "controller", None, ["true"])
    stack.inventory.write_text(KNOWN.model_copy(update={"target": "local"}).model_dump_json())
    assert "ConnectTimeout=5" in unattended(stack, "controller", None, ["true"])


def test_bootstrap_pushes_nothing_and_says_what_does(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "require_running_stack", lambda _name: stack)
    with pytest.raises(Stop, match="nodes on target aws pull their configuration") as stopped:
        bootstrap.bootstrap("s")
    assert stopped.value.fix == "`make up STACK=s` publishes the changes to them"


def test_nodes_are_drained_where_they_are_whatever_the_stack_file_says(aws: Moto, stack: StackHome) -> None:  # noqa: F811
    """There is no stack file here at all."""
    assert isinstance(fabric._queue(stack), NoQueue)
    assert {call.action for call in aws.calls} >= {"DescribeInstances", "GetParameter"}
