"""Access to a cluster on AWS: SSH through Session Manager, scripts of the gate through Run Command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bootstrap.transport.base import Completed
from cluster.inventory import Inventory
from cluster.spec import ClusterSpec
from infra.targets.aws import run_command
from infra.targets.aws.build import gate
from infra.targets.aws.build.access import AccessProvider
from infra.targets.aws.build.inventory import add_static_nodes, build_inventory, compute_names, static_names
from infra.targets.registry import plan_of as plan
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import ROOT
from tests.moto_server import REGION, Moto
from tests.slurm.test_gate import Controller


def spec(stack: str = "aws-p5en-lustre") -> ClusterSpec:
    return read(ROOT / "stacks" / f"Pulumi.{stack}.yaml")


def inventory_of(cluster_spec: ClusterSpec) -> Inventory:
    machines = {
        name: {"address": f"10.0.0.{number}", "host_key": f"ssh-ed25519 {name}", "machine_id": f"i-{name}"}
        for number, name in enumerate(("controller", "login"), 10)
    }
    built = plan(cluster_spec)
    return build_inventory(built, machines, {name: f"ssh-ed25519 {name}" for name in compute_names(built)})


def props(cluster_spec: ClusterSpec) -> dict[str, Any]:
    return {
        "inventory": inventory_of(cluster_spec).model_dump_json(),
        "spec": cluster_spec.model_dump_json(),
        "stack": "s",
        "region": REGION,
        "ssh_private_key": "KEY",
    }


def test_ssh_goes_through_session_manager_to_pinned_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    AccessProvider().create(props(spec()))
    folder = tmp_path / "s"
    config = subprocess.run(
        ["ssh", "-G", "-F", str(folder / "ssh_config"), "login"], text=True, capture_output=True, check=True
    ).stdout
    settings = dict(line.partition(" ")[::2] for line in config.splitlines())
    assert settings["hostname"] == "i-login"
    assert settings["hostkeyalias"] == "login"
    assert settings["stricthostkeychecking"] in ("true", "yes")
    assert settings["proxycommand"].startswith("aws ssm start-session --target %h --document-name AWS-StartSSHSession")
    assert settings["proxycommand"].endswith(f"--region {REGION}")
    assert "login,10.0.0.11 ssh-ed25519 login\n" in (folder / "known_hosts").read_text()
    assert (folder / "id_ed25519").stat().st_mode & 0o777 == 0o600


def test_nodes_launched_by_name_have_a_known_host_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    AccessProvider().create(props(spec()))
    result = subprocess.run(
        ["ssh-keygen", "-F", "h200-2", "-f", str(tmp_path / "s" / "known_hosts")], text=True, capture_output=True
    )
    assert "h200-2 ssh-ed25519 h200-2" in result.stdout.splitlines()


def test_missing_files_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    provider, inputs = AccessProvider(), props(spec())
    created = dict(provider.create(inputs).outs)
    assert not provider.diff("id", created, inputs).changes
    (tmp_path / "s" / "ssh_config").unlink()
    result = dict(provider.read("id", created).outs)
    assert result["stale"] == ["ssh_config"]
    assert provider.diff("id", result, inputs).changes
    assert provider.update("id", result, inputs).outs["stale"] == []


def test_a_script_runs_through_systems_manager(aws: Moto) -> None:
    ec2 = aws.client("ec2")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    instance = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    answer = run_command.run(REGION, instance, "true", 30)
    assert answer.code == 0
    assert [call.action for call in aws.calls if call.service == "ssm"] == ["SendCommand", "GetCommandInvocation"]


def test_the_gate_tests_the_static_nodes() -> None:
    cluster_spec = spec()
    result = add_static_nodes("h200.muster.internal", inventory_of(cluster_spec))
    assert static_names(plan(cluster_spec)) == ["h200-1", "h200-2"]
    assert [(n.name, n.address, n.gpus.count, n.fabric, n.host_key) for n in result.compute] == [
        ("h200-1", "h200-1.h200.muster.internal", 8, "efa", "ssh-ed25519 h200-1"),
        ("h200-2", "h200-2.h200.muster.internal", 8, "efa", "ssh-ed25519 h200-2"),
    ]


def test_without_static_nodes_the_gate_tests_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Completed:
        raise AssertionError("no command may be run")

    monkeypatch.setattr(run_command, "run", refuse)
    gate_inputs = {
        "inventory": inventory_of(spec("aws-p5-autoscaled")).model_dump_json(),
        "environment": "/shared/env/x",
    }
    outs = gate.AwsGateProvider().create({**gate_inputs, "user": "muster", "applied": "1", "region": REGION}).outs
    assert (outs["ready"]["nodes"], outs["ready"]["tested"]) == ([], [])


def test_the_gate_runs_on_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_spec = spec()
    result = add_static_nodes("d", inventory_of(cluster_spec))
    instances: list[str] = []

    def answer(region: str, instance: str, script: str, timeout_s: float) -> Completed:
        instances.append(instance)
        return Completed(1, "slurm_load_node error: Unable to contact slurm controller", "")

    monkeypatch.setattr(run_command, "run", answer)
    gate_inputs = {
        "inventory": result.model_dump_json(),
        "environment": "/shared/env/x",
        "user": "muster",
        "applied": "1",
    }
    with pytest.raises(Exception, match="Unable to contact slurm controller"):
        gate.AwsGateProvider().create({**gate_inputs, "region": REGION})
    assert set(instances) == {"i-controller"}


def test_the_gates_job_may_take_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first import of torch reads gigabytes from a cold network filesystem."""
    controller, timeouts_s = Controller(memory_mb=2_000_000), list[float]()

    def answer(region: str, instance: str, script: str, timeout_s: float) -> Completed:
        timeouts_s.append(timeout_s)
        given = controller(script)
        return Completed(given.code, given.out, "")

    monkeypatch.setattr(run_command, "run", answer)
    inventory = add_static_nodes("d", inventory_of(spec())).model_dump_json()
    inputs = {"inventory": inventory, "environment": "/shared/env/x", "user": "muster", "applied": "1"}
    gate.AwsGateProvider().create({**inputs, "region": REGION})
    (job,) = controller.jobs
    deadline_s = float(job[job.index("timeout") + 2])
    assert deadline_s >= 300
    assert min(timeouts_s) > deadline_s + 60, "Run Command ends later, so that the gate can name the node"
