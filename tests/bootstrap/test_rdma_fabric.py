"""The environment of jobs on InfiniBand and RoCE, from what a node's sysfs shows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.facts.parse import parse_facts
from bootstrap.steps import fabric, health, packages
from cluster.inventory import Node, NodeGpus
from cluster.spec import Fabric
from tests.bootstrap.clusters import desired
from tests.slurm.rdma_trees import GIDS, ROCE, add_device, make_dgx_h100


def node_with(kind: Fabric) -> Node:
    return Node(name="gpu-1", role="compute", group="gpu", address="10.0.0.9", host_key="", machine_id="i-1", cpus=192,
                memory_mb=2_000_000, gpus=NodeGpus(count=8, kind="real"), fabric=kind)  # fmt: skip


def read_facts(sysfs: Path, kind: Fabric) -> Facts:
    script = f"SYSFS={sysfs}\n{fabric.print_ports(node_with(kind), desired())}"
    return parse_facts(subprocess.run(["sh", "-euc", script], check=True, capture_output=True, text=True).stdout)


def test_jobs_get_the_ports_next_to_gpus_and_the_checks_expect_them(tmp_path: Path) -> None:
    facts, node = read_facts(make_dgx_h100(tmp_path), "infiniband"), node_with("infiniband")
    assert fabric.list_variables(facts, node) == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1",
    }
    expected = json.loads(health.describe_expected(facts, node, desired()))
    assert expected["fabric"] == "infiniband"
    assert expected["rdma"] == {f"mlx5_{number}:1": 400.0 for number in (0, 3, 4, 5, 6, 9, 10, 11)}


def test_roce_uses_the_gid_with_an_ipv4_address(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_bond_0", ["0000:16:00.0"], {1: ROCE | GIDS})
    variables = fabric.list_variables(read_facts(tmp_path, "roce"), node_with("roce"))
    assert variables == {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_bond_0:1", "NCCL_IB_GID_INDEX": "3"}


def test_a_node_without_ports_is_refused() -> None:
    with pytest.raises(BootstrapError) as raised:
        fabric.plan_fabric(Facts(), node_with("infiniband"), desired())
    assert str(raised.value).startswith(
        "node gpu-1, step fabric: fabric infiniband: has no RDMA device with link layer InfiniBand. Fix: load "
    )


def test_other_fabrics_read_no_ports() -> None:
    assert fabric.print_ports(node_with("tcp"), desired()) == ""
    assert fabric.print_ports(node_with("efa"), desired()) == ""
    assert not {"perftest", "rdma-core"} & set(packages.list_packages(node_with("tcp")))
    assert {"perftest", "infiniband-diags"} <= set(packages.list_packages(node_with("infiniband")))


def test_the_exact_names_of_ports_reach_the_tasks(tmp_path: Path) -> None:
    variables = tmp_path / "fabric.env"
    variables.write_text("NCCL_NET=IB\nNCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n")
    script = fabric.TASK_PROLOG.replace("/etc/muster/fabric.env", str(variables))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stdout.splitlines()[:2] == ["export NCCL_NET=IB", "export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"]
