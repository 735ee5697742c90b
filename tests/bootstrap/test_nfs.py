"""NFS served by one of the nodes: what the server and the others do, and what the server allows to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.plan import plan_steps
from bootstrap.steps.nfs import CLIENT_PACKAGES, PACKAGES, choose_server, name_mount_unit, render_exports
from cluster.inventory import ServedFilesystem
from tests.bootstrap.clusters import bare, titles
from tests.bootstrap.test_adopted import adopted

SHARED = ServedFilesystem(mount="/shared", node="controller", folder="/srv/muster/shared")
DATA = ServedFilesystem(mount="/mnt/my-data", node="controller", folder="/srv/muster/data")
INSTALLED = dict.fromkeys((*PACKAGES["kernel"], *PACKAGES["ganesha"], *CLIENT_PACKAGES), "1")


def serving(*served: ServedFilesystem) -> Desired:
    """Return a cluster of machines that exist already, whose controller serves filesystems."""
    target = adopted()
    mounts = tuple(each.mount for each in served)
    return replace(target, inventory=target.inventory.model_copy(update={"served": served, "mounts": mounts}))


def plan(target: Desired, name: str, **facts: object) -> list[str]:
    """Return the titles of a node's actions; the packages are installed and the kernel can serve."""
    member = next(node for node in target.inventory.nodes if node.name == name)
    read = replace(bare(member), mounts={}, container=False, software={"nfsd": "yes"}, **facts)  # type: ignore[arg-type]
    read = replace(read, packages={**read.packages, **INSTALLED})
    return titles(plan_steps({name: read}, target), name, "storage")


def test_the_server_exports_a_folder_and_has_it_at_the_mount_point_too() -> None:
    assert plan(serving(SHARED), "controller") == [
        "create /srv/muster/shared",
        "write /etc/systemd/system/shared.mount",
        "mount /shared",
        "write /etc/exports.d/muster.exports",
        "start nfs-server",
    ]


def test_the_others_mount_it_and_nothing_else() -> None:
    assert plan(serving(SHARED), "gpu-1") == ["write /etc/systemd/system/shared.mount", "mount /shared"]
    assert plan(adopted(), "gpu-1") == ["use /shared"]


def test_missing_packages_are_installed_first() -> None:
    target = serving(SHARED)
    assert plan_one(target, "gpu-1")[0] == "install nfs-common"
    assert plan_one(target, "controller")[0] == "install nfs-ganesha nfs-ganesha-vfs"


def plan_one(target: Desired, name: str) -> list[str]:
    """Return the titles of the actions of a container without any package for NFS."""
    member = next(node for node in target.inventory.nodes if node.name == name)
    return titles(plan_steps({name: replace(bare(member), mounts={})}, target), name, "storage")


def test_every_node_that_is_not_adopted_is_left_alone() -> None:
    target = serving(SHARED)
    created = tuple(node.model_copy(update={"adopted": None}) for node in target.inventory.nodes)
    target = replace(target, inventory=target.inventory.model_copy(update={"nodes": created}))
    assert plan(target, "controller") == []


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (Facts(software={"nfsd": "yes"}), "kernel"),
        (Facts(software={"nfsd": "no"}), "ganesha"),
        (Facts(software={"nfsd": "yes"}, container=True), "ganesha"),
    ],
)
def test_the_kernels_server_is_preferred(facts: Facts, kind: str) -> None:
    assert choose_server(facts) == kind


def test_only_the_nodes_may_connect() -> None:
    path, text = render_exports("kernel", [SHARED, DATA], ["10.1.0.11", "10.1.0.21"])
    options = "(rw,sync,no_root_squash,no_subtree_check)"
    assert path == "/etc/exports.d/muster.exports"
    assert text.splitlines() == [
        f"/srv/muster/shared 10.1.0.11{options} 10.1.0.21{options}",
        f"/srv/muster/data 10.1.0.11{options} 10.1.0.21{options}",
    ]
    path, text = render_exports("ganesha", [SHARED, DATA], ["10.1.0.11", "10.1.0.21"])
    assert path == "/etc/ganesha/ganesha.conf"
    assert text.count("CLIENT { Clients = 10.1.0.11, 10.1.0.21; Access_Type = RW; }") == 2
    assert text.count("Access_Type = None") == text.count("PrivilegedPort = true") == 2
    assert "Export_Id = 2; Path = /srv/muster/data; Pseudo = /srv/muster/data;" in text


def test_a_mount_point_has_the_unit_that_systemd_requires() -> None:
    assert name_mount_unit("/shared") == "shared.mount"
    assert name_mount_unit("/mnt/my-data") == r"mnt-my\x2ddata.mount"


def test_folders_are_recorded_from_the_top_down() -> None:
    target = serving(DATA)
    member = target.inventory.nodes[2]
    planned = plan_steps({member.name: replace(bare(member), mounts={})}, target)[member.name]["storage"]
    changes = planned.actions[-1].changes
    assert changes is not None
    assert changes.folders == ("/mnt", "/mnt/my-data")
    assert changes.units == (r"mnt-my\x2ddata.mount",)
