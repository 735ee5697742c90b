"""Packages of a cloud machine: all in one transaction, and Slurm's own built once and stored for the other nodes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.restart import REQUEST
from bootstrap.steps import packages, registry
from bootstrap.steps.cloud import lustre_client, slurm_packages
from cluster.inventory import Node
from infra.targets.aws.node.identity import find_node
from tests.infra.targets.aws.node.clusters import EFS, LUSTRE, STORE, cloud, desired, fixed, inventory, ubuntu

CONTROLLER = fixed("controller", "controller", 10)
GPU = find_node(inventory(), "gpu-3", "i-3", "10.0.1.3")
SLURM = dict.fromkeys(slurm_packages.NAMES["compute"], "26.05.5-1")


def test_one_transaction_installs_what_all_steps_of_a_machine_need() -> None:
    (action,) = packages.STEP.actions(ubuntu(disks=(STORE,)), GPU, desired(LUSTRE, EFS))
    names = action.title.split()
    assert {"g++", "mdadm", "xfsprogs", "nfs-common", "stunnel4", "nftables", "slurm-smd-slurmd"} <= set(names)
    assert action.script.count("apt-get") == 2, "an update and an installation"
    client = f"lustre-client-modules-{ubuntu().kernel}"
    assert client in names
    assert f"apt-mark hold {client}\nmodprobe lustre\n" in action.script
    assert " /var/cache/muster-slurm/packages/slurm-smd-slurmd_*.deb" in action.script
    assert "apt-mark hold slurm-smd slurm-smd-client slurm-smd-slurmd slurm-smd-libpam-slurm-adopt\n" in action.script
    steps = [step for step in registry.MACHINE if step not in (packages.STEP, slurm_packages.STEP)]
    facts, target = ubuntu(disks=(STORE,)), desired(LUSTRE, EFS)
    others = [
        action for step in steps if not step.skip(facts, GPU, target) for action in step.actions(facts, GPU, target)
    ]
    assert [action.title for action in others if "apt-get" in action.script] == []


def test_another_kernel_is_installed_in_the_same_transaction_and_the_machine_restarts() -> None:
    """Under that kernel, only the steps after the packages have something to do."""
    other = "6.8.0-1041-aws"
    facts = ubuntu(disks=(STORE,), software={**ubuntu().software, "lustre_kernel": other})
    (action,) = packages.STEP.actions(facts, GPU, desired(LUSTRE, EFS))
    client = f"lustre-client-modules-{other}"
    assert {f"linux-image-{other}", f"linux-headers-{other}", client, "g++", "slurm-smd-slurmd"} <= set(
        action.title.split()
    )
    assert action.script.count("apt-get") == 2, "an update and an installation"
    assert f"lustre-client-modules-{facts.kernel}" not in action.script
    assert "modprobe" not in action.script
    assert "rm -f /etc/systemd/system/multi-user.target.wants/slurmd.service\n" in action.script
    assert f"KERNEL={other}\nRUNNING={facts.kernel}\nRESTART={REQUEST}\n" in action.script
    installed = dict.fromkeys(action.title.split(), "1") | SLURM
    after = ubuntu(disks=(STORE,), kernel=other, packages=installed)
    for step in registry.WITH_KERNEL:
        assert step.actions(after, GPU, desired(LUSTRE, EFS)) == []


@pytest.mark.parametrize(
    ("node", "software", "postponed"),
    [
        (GPU, {}, True),
        # Its installer brings packages of its own, and comes first.
        (GPU, {"efa_installer": ""}, False),
        # MariaDB would start before its settings and its disk are there.
        (CONTROLLER, {}, False),
    ],
)
def test_which_machines_leave_another_kernel_to_the_packages(
    node: Node, software: dict[str, str], postponed: bool
) -> None:
    facts = ubuntu(software={**ubuntu().software, **software})
    find = lustre_client.STEP.actions(facts, node, desired(LUSTRE))[-1]
    assert (f"CHOSEN={lustre_client.CHOSEN}\n" in find.script) == postponed
    assert ("CHOSEN=''\n" in find.script) != postponed


def test_packages_come_before_the_steps_that_need_them() -> None:
    names = [step.name for step in registry.MACHINE]
    assert (
        names.index("slurm") < names.index("packages") < min(names.index(n) for n in ("scratch", "mounts", "metadata"))
    )


@pytest.mark.parametrize(
    ("filesystems", "clients"), [((), set()), ((LUSTRE,), set()), ((EFS,), {"nfs-common", "stunnel4"})]
)
def test_only_clients_of_the_cluster_s_filesystems_are_installed(
    filesystems: tuple[object, ...], clients: set[str]
) -> None:
    (action,) = packages.STEP.actions(ubuntu(), GPU, desired(*filesystems))
    assert set(action.title.split()) & {"nfs-common", "stunnel4", "mdadm"} == clients


def test_a_machine_that_has_slurm_installs_only_what_is_missing() -> None:
    present = dict.fromkeys([*packages.COMMON, "g++", "nftables", "crun"], "1") | SLURM
    present.pop("slurm-client")
    assert packages.STEP.actions(ubuntu(packages=present), GPU, desired()) == []
    assert slurm_packages.STEP.actions(ubuntu(packages=present), GPU, desired()) == []
    (action,) = packages.STEP.actions(ubuntu(packages={**present, "slurm-smd": "23.02.1"}), GPU, desired())
    assert action.title == "install slurm-smd slurm-smd-client slurm-smd-slurmd slurm-smd-libpam-slurm-adopt"


def test_a_cloud_without_a_store_is_an_error_with_a_fix() -> None:
    target = replace(desired(), cloud=cloud().model_copy(update={"package_store": ()}))
    with pytest.raises(BootstrapError, match="this cloud cannot store packages"):
        slurm_packages.STEP.actions(ubuntu(), GPU, target)


class Site:
    """Two machines that run the script, with a folder as the store and stubs in place of what changes a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.stored = folder, folder / "bin", folder / "stored.tar"
        self.bin.mkdir()
        source = folder / "slurm-1.0"
        source.mkdir()
        (source / "README").touch()
        subprocess.run(["tar", "-czf", folder / "source.tar.gz", "-C", folder, "slurm-1.0"], check=True)
        for name in ("apt-get", "mk-build-deps", "getent", "groupadd", "useradd", "install"):
            self.stub(name, "exit 0")
        names = "smd smd-client smd-slurmd other"
        self.stub(
            "debuild", f'echo built >>"$0.count"; for n in {names}; do echo $n >../slurm-${{n}}_1.0_all.deb; done'
        )
        # Like a module of Python, it is found only in the folder from which the script is started.
        check = f"[ $PWD = {folder} ] || exit 1"
        self.stub("store", f'{check}; [ $1 = fetch ] && exec cp {self.stored} "$2"; exec cp "$2" {self.stored}')

    def stub(self, name: str, line: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.bin / name).chmod(0o755)

    def run(self, machine: str, mode: str) -> subprocess.CompletedProcess[str]:
        work = self.folder / machine
        values = {
            "MODE": mode, "KEY": "key", "SOURCES": f"file://{self.folder / 'source.tar.gz'}", "WAIT_TRIES": "0",
            "FETCH_LISTS": "apt-get update",
            "SHA256": sha256((self.folder / "source.tar.gz").read_bytes()).hexdigest(), "SLURM_UID": "64030",
            "WORK": str(work), "PACKAGES": str(work / "packages"), "NAMES": "slurm-smd slurm-smd-slurmd",
            "STORE": str(self.bin / "store"), "PATH": f"{self.bin}:{os.environ['PATH']}",
        }  # fmt: skip
        return subprocess.run(
            ["sh", "-c", slurm_packages.SCRIPT],
            env=values,
            cwd=self.folder,
            text=True,
            capture_output=True,
            check=False,
        )

    def list_packages(self, machine: str) -> list[str]:
        return sorted(path.name for path in (self.folder / machine / "packages").iterdir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_other_nodes_fetch_what_the_controller_has_built(site: Site) -> None:
    assert "has not built Slurm's packages" in site.run("gpu-1", "wait").stderr
    built = site.run("controller", "build")
    assert built.returncode == 0, built.stderr
    assert site.run("gpu-1", "wait").returncode == 0
    assert site.list_packages("gpu-1") == ["slurm-smd-slurmd_1.0_all.deb", "slurm-smd_1.0_all.deb"]


def test_a_machine_that_builds_an_image_stores_nothing(site: Site) -> None:
    """Its role may only read what is stored."""
    baked = site.run("image", "bake")
    assert baked.returncode == 0, baked.stderr
    assert site.list_packages("image") == ["slurm-smd-slurmd_1.0_all.deb", "slurm-smd_1.0_all.deb"]
    assert not site.stored.exists()


def test_a_new_controller_builds_nothing_that_is_stored(site: Site) -> None:
    site.run("controller", "build")
    assert site.run("new-controller", "build").returncode == 0
    assert site.list_packages("new-controller") == site.list_packages("controller")
    assert (site.bin / "debuild.count").read_text() == "built\n"


def test_packages_that_could_not_be_stored_are_stored_by_the_next_run_without_a_build(site: Site) -> None:
    store = (site.bin / "store").read_text()
    site.stub("store", "exit 1")
    failed = site.run("controller", "build")
    assert failed.returncode == 1
    assert "storing them for the other nodes failed" in failed.stderr
    (site.bin / "store").write_text(store)
    assert site.run("controller", "build").returncode == 0
    assert site.stored.exists()
    assert (site.bin / "debuild.count").read_text() == "built\n"


def test_a_source_with_another_checksum_is_refused(site: Site) -> None:
    site.stub("sha256sum", "echo '0000  -'")
    failed = site.run("controller", "build")
    assert failed.returncode == 1
    assert "does not have the pinned SHA-256" in failed.stdout
    assert "no source with sha256" in failed.stderr
