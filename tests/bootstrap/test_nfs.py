"""NFS served by one of the nodes: what the server and the others do, and what the server allows to whom."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.desired import Desired
from bootstrap.facts.collect import SCRIPT
from bootstrap.facts.model import Facts, FileFact
from bootstrap.facts.parse import parse_facts
from bootstrap.plan import plan_steps
from bootstrap.steps.nfs import (
    CLIENT_PACKAGES,
    EXPORTS,
    GANESHA_CONF,
    PACKAGES,
    choose_server,
    name_mount_unit,
    plan_client,
    render_exports,
)
from cluster.inventory import Node, ServedFilesystem
from tests.bootstrap.clusters import bare, titles
from tests.bootstrap.test_adopted import adopted

SHARED = ServedFilesystem(mount="/shared", node="controller", folder="/srv/muster/shared")
DATA = ServedFilesystem(mount="/mnt/my-data", node="controller", folder="/srv/muster/data")
INSTALLED = dict.fromkeys((*PACKAGES["kernel"], *PACKAGES["ganesha"], *CLIENT_PACKAGES), "1")


def files(*paths: str) -> dict[str, FileFact]:
    return {path: FileFact("", 0o644, "root:root") for path in paths}


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


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        # A kernel that serves since its last update, and one that no longer shows that it can.
        (Facts(software={"nfsd": "yes"}, files=files(GANESHA_CONF), loaded=frozenset({"nfs-ganesha"})), "ganesha"),
        (Facts(software={"nfsd": "no"}, files=files(EXPORTS)), "kernel"),
        # The package is installed, but was never used.
        (Facts(software={"nfsd": "yes"}, files=files(GANESHA_CONF)), "kernel"),
    ],
)
def test_the_server_that_is_in_use_stays(facts: Facts, kind: str) -> None:
    assert choose_server(facts) == kind


def test_a_new_client_does_not_restart_a_server() -> None:
    """The kernel's server and nfs-ganesha read their exports again; files of other clients stay open."""
    for kind, unit, call in (("yes", "nfs-server", "exportfs -ra"), ("no", "nfs-ganesha", "reload nfs-ganesha")):
        script = start_script(active=frozenset({unit}), loaded=frozenset({unit}), software={"nfsd": kind})
        assert call in script
        assert "restart" not in script
        assert f"systemctl start {unit}" in start_script(software={"nfsd": kind})


def start_script(**facts: Any) -> str:
    """Return the script that starts the server of a node with these facts."""
    target = serving(SHARED)
    controller = target.inventory.controller
    read = replace(bare(controller), mounts={}, container=False, **facts)
    actions = plan_steps({controller.name: read}, target)[controller.name]["storage"].actions
    return next(action.script for action in actions if action.title.startswith("start "))


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


def test_a_cluster_of_one_node_serves_nothing() -> None:
    """In the kernel's file, a folder without clients is there for everybody."""
    assert render_exports("kernel", [SHARED], []) == ("/etc/exports.d/muster.exports", "")
    _, text = render_exports("ganesha", [SHARED], [])
    assert "NFSv4" in text
    assert "EXPORT {" not in text


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


def test_a_second_plan_with_a_hyphen_in_the_mount_point_is_empty(tmp_path: Path) -> None:
    r"""The name of the unit has a backslash: mnt-my\x2ddata.mount."""
    target = serving(DATA)
    member = target.inventory.compute[0]
    source = {"/mnt/my-data": f"{target.inventory.controller.address}:/srv/muster/data"}
    facts = read_client(tmp_path, target, member, source)
    assert list(facts.files) == [r"/etc/systemd/system/mnt-my\x2ddata.mount"]
    assert plan_client(facts, member, target.inventory) == []


@pytest.mark.parametrize("jobs", [True, False])
def test_a_filesystem_is_mounted_again_if_its_server_has_another_address_and_no_job_runs(
    tmp_path: Path, jobs: bool
) -> None:
    target = serving(SHARED)
    member, server = target.inventory.compute[0], target.inventory.controller
    before, after = (f"{address}:/srv/muster/shared" for address in (server.address, "10.1.0.99"))
    facts = read_client(tmp_path, target, member, {"/shared": before})
    nodes = tuple(
        node.model_copy(update={"address": "10.1.0.99"}) if node == server else node for node in target.inventory.nodes
    )
    write, mount = plan_client(facts, member, target.inventory.model_copy(update={"nodes": nodes}))
    assert (write.title, mount.title) == ("write /etc/systemd/system/shared.mount", f"mount /shared from {after}")
    programs = {"pgrep": f"exit {0 if jobs else 1}", "timeout": "", "systemctl": "echo systemctl $*"}
    done = run(tmp_path, f"set -e\n{mount.script}", **programs)
    if jobs:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"/shared moves to {after}: cancel or requeue the jobs that run here and use {before}\n"
    else:
        assert (done.returncode, done.stdout) == (0, "systemctl daemon-reload\nsystemctl restart shared.mount\n")


def test_a_mount_that_was_refused_is_tried_again(tmp_path: Path) -> None:
    target = serving(SHARED)
    member, server = target.inventory.compute[0], target.inventory.controller
    facts = read_client(tmp_path, target, member, {"/shared": "10.9.9.9:/srv/muster/shared"})
    actions = plan_client(facts, member, target.inventory)
    assert [action.title for action in actions] == [f"mount /shared from {server.address}:/srv/muster/shared"]


def test_what_muster_has_not_mounted_stays() -> None:
    target = serving(SHARED)
    member = target.inventory.compute[0]
    facts = Facts(mounts={"/shared": "nfs4"}, mount_sources={"/shared": "nas:/export"}, packages=INSTALLED)
    assert "restart" not in plan_client(facts, member, target.inventory)[-1].script


def read_client(folder: Path, target: Desired, member: Node, sources: dict[str, str]) -> Facts:
    """Write below a folder what a node writes at first; read it back with the script that reads the facts of nodes."""
    for action in plan_client(Facts(packages=INSTALLED), member, target.inventory):
        if action.data:
            path = folder / action.title.removeprefix("write /")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(action.data)
    values = "SHARED=/shared HOMES=/home ENVIRONMENT=/env PACKAGES= UNITS= CONTROLLER=no MACHINE=no\n"
    facts = parse_facts(
        run(folder, values + SCRIPT, systemctl="", **{"dpkg-query": ""}).stdout.replace(str(folder), "")
    )
    written = {path: replace(fact, owner="root:root") for path, fact in facts.files.items()}
    mounts = dict.fromkeys(sources, "nfs4")
    return Facts(files=written, mounts=mounts, mount_sources=sources, packages=INSTALLED)


def run(folder: Path, script: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a folder in place of /etc, and with stand-ins for some programs."""
    stage = folder / "bin"
    stage.mkdir(exist_ok=True)
    for name, body in programs.items():
        (stage / name).write_text(f"#!/bin/sh\n{body}\n")
        (stage / name).chmod(0o755)
    moved = re.sub(r"(?<=[ '])/etc/", f"{folder}/etc/", script)
    environment = {"PATH": f"{stage}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", moved], env=environment, capture_output=True, text=True, check=False)
