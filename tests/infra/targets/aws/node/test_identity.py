"""A machine on AWS finds its node by name, and plans its steps alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.plan import choose_cgroup, plan_steps
from bootstrap.steps import ssh
from infra.targets.aws.node.identity import add_node, find_node
from tests.infra.targets.aws.node.clusters import LUSTRE, desired, inventory, ubuntu
from tests.infra.targets.aws.node.step_actions import GPU


@pytest.mark.parametrize(
    ("name", "text"), [("gpu-5", "no node gpu-5"), ("cpu-1", "no node cpu-1"), ("gpu-01", "gpu-01")]
)
def test_a_machine_of_another_cluster_is_an_error(name: str, text: str) -> None:
    with pytest.raises(BootstrapError, match=rf"{text}.*must be one of: controller, login, gpu-1 to -4"):
        find_node(inventory(), name, "i-1", "10.0.0.1")


def test_a_machine_replaces_the_one_that_had_its_name() -> None:
    me = find_node(inventory(), "controller", "i-9", "10.0.0.10")
    assert [n.machine_id for n in add_node(inventory(), me).nodes] == ["i-9", "eni-login"]


def test_one_machine_can_be_planned_alone() -> None:
    target = replace(desired(LUSTRE), inventory=add_node(inventory(), GPU))
    planned = plan_steps({GPU.name: ubuntu()}, target)
    assert list(planned) == ["gpu-3"]
    assert planned["gpu-3"]["hosts"].actions[0].data.decode().endswith("10.0.1.3 gpu-3\n")


def test_a_controller_without_nodes_yet_uses_its_own_kind_of_cgroup() -> None:
    assert choose_cgroup({"controller": ubuntu(cgroup="v1")}, desired()).cgroup == "v1"


def test_nodes_that_do_not_exist_yet_are_in_known_hosts() -> None:
    lines = ssh.render_known_hosts(inventory()).splitlines()[-4:]
    assert lines == [f"gpu-{number} ssh-ed25519 AAAAgpu{number}" for number in range(1, 5)]


def test_an_inventory_of_an_older_version_has_a_key_for_all_nodes_of_a_set() -> None:
    shared = inventory().sets[0].model_copy(update={"host_keys": (), "host_key": "ssh-ed25519 AAAA"})
    assert shared.known_hosts == {"gpu-*": "ssh-ed25519 AAAA"}
    assert shared.find_host_key("gpu-3") == "ssh-ed25519 AAAA"
    assert inventory().sets[0].find_host_key("gpu-3") == "ssh-ed25519 AAAAgpu3"
