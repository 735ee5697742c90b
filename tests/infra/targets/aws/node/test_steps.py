"""All steps on AWS: they act once, give the reason for skipping, and run on the machines of their roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bootstrap.action import install_packages
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts, FileFact
from bootstrap.steps import hosts, metadata, registry, time
from bootstrap.steps.cloud import (
    disks,
    interruption,
    job_credentials,
    logs,
    lustre_client,
    mounts,
    names,
    nfs_access,
    node_packages,
    power,
    slurm_packages,
    system,
)
from bootstrap.steps.step import Step
from cluster.inventory import Node
from tests.bootstrap.clusters import desired as local
from tests.infra.targets.aws.node.clusters import EFS, KERNEL, LUSTRE, NFS, STORE, desired, ubuntu, with_release
from tests.infra.targets.aws.node.step_actions import CONTROLLER, GPU, LOGIN, apply_actions, written


@pytest.mark.parametrize(
    ("step", "node", "facts", "target", "done"),
    [
        (system.UPDATES_STEP, GPU, ubuntu(), desired(), {}),
        (names.RESOLVER_STEP, GPU, ubuntu(), desired(), {}),
        (names.HOST_KEY_STEP, GPU, ubuntu(), desired(), {}),
        (system.SYSCTL_STEP, GPU, ubuntu(), desired(), {}),
        (metadata.STEP, GPU, ubuntu(), desired(), {"active": frozenset({"muster-metadata"})}),
        (nfs_access.STEP, GPU, ubuntu(), desired(EFS), {"active": frozenset({"muster-nfs-access"})}),
        (
            job_credentials.STEP,
            LOGIN,
            ubuntu(),
            desired(jobs_role="arn:aws:iam::123456789012:role/muster-toy-jobs"),
            {"active": frozenset({"muster-job-credentials.timer"})},
        ),
        (logs.STEP, GPU, ubuntu(), desired(), {"active": frozenset({"muster-logs.timer", "muster-logs-at-stop"})}),
        (interruption.STEP, GPU, ubuntu(), desired(), {}),
        (power.STEP, CONTROLLER, ubuntu(), desired(), {}),
        (power.SWEEP_STEP, CONTROLLER, ubuntu(), desired(), {}),
        (
            node_packages.STEP,
            CONTROLLER,
            ubuntu(),
            desired(),
            {"active": frozenset({"muster-node-packages.timer"})},
        ),
        (time.STEP, GPU, ubuntu(), desired(), {"active": frozenset({"chrony"}), "enabled": frozenset({"chrony"})}),
        (disks.SCRATCH_STEP, GPU, ubuntu(disks=(STORE,)), desired(), {"mounts": {"/local": "xfs"}}),
        (
            mounts.STEP,
            GPU,
            ubuntu(),
            desired(LUSTRE, EFS),
            {"mounts": {"/shared": "lustre", "/users": "nfs4"}},
        ),
        (lustre_client.STEP, GPU, ubuntu(), desired(LUSTRE), {"packages": {f"lustre-client-modules-{KERNEL}": "1"}}),
        (
            disks.STATE_STEP,
            CONTROLLER,
            ubuntu(),
            desired(state_volume="vol-01"),
            {"mounts": dict.fromkeys(disks.STATE_MOUNTS, "ext4")},
        ),
        (
            slurm_packages.STEP,
            GPU,
            ubuntu(),
            desired(),
            {"packages": dict.fromkeys(slurm_packages.NAMES["compute"], "26.05.5-1")},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Step) else "",
)
def test_a_step_acts_once(step: Step, node: Node, facts: Facts, target: Desired, done: dict[str, Any]) -> None:
    todo = step.actions(facts, node, target)
    assert todo
    assert [a.title for a in step.actions(replace(apply_actions(facts, todo), **done), node, target)] == []


@pytest.mark.parametrize(
    ("step", "target", "first_reloads"),
    [
        (mounts.STEP, desired(LUSTRE, EFS), 0),
        (interruption.STEP, desired(), 0),
        (logs.STEP, desired(), 0),
        (metadata.STEP, desired(), 1),
        (nfs_access.STEP, desired(EFS), 1),
    ],
    ids=lambda value: value.name if isinstance(value, Step) else "",
)
def test_systemd_reads_all_units_again_only_if_it_may_have_read_one_of_them(
    step: Step, target: Desired, first_reloads: int
) -> None:
    """At the first boot, only the steps with drop-ins for other units need a reload."""
    todo = step.actions(ubuntu(), GPU, target)
    assert sum(action.script.count("daemon-reload") for action in todo) == first_reloads
    applied = apply_actions(ubuntu(), todo)
    old = {
        path: FileFact("0" * 64, 0o644, "root:root") if path.startswith("/etc/systemd/system/") else fact
        for path, fact in applied.files.items()
    }
    again = step.actions(replace(applied, files=old), GPU, target)
    assert "daemon-reload" in "".join(action.script for action in again)


@pytest.mark.parametrize(
    ("step", "facts", "target", "reason"),
    [
        (disks.SCRATCH_STEP, ubuntu(), desired(), "the machine has no disks of its own"),
        (lustre_client.STEP, ubuntu(), desired(EFS), "the cluster has no Lustre filesystem"),
        (mounts.STEP, ubuntu(), desired(), "the cluster has no shared filesystem to mount"),
        (mounts.STEP, ubuntu(mounts={"/archive": "nfs4"}), desired(NFS), "already mounted"),
        (names.RESOLVER_STEP, ubuntu(active=frozenset()), desired(), "the image does not use systemd-resolved"),
        (system.SYSCTL_STEP, ubuntu(container=True), desired(), "a container uses the kernel of its host"),
        (disks.STATE_STEP, ubuntu(), desired(), "the cluster has no state volume"),
        (job_credentials.STEP, ubuntu(), desired(), "jobs get no credentials"),
        (interruption.STEP, ubuntu(), local(), "the cloud announces nothing"),
        (power.STEP, ubuntu(), desired(fleet=b""), "the cluster launches no nodes"),
        (node_packages.STEP, ubuntu(), local(), "this cloud cannot store packages"),
        (node_packages.STEP, ubuntu(), desired(LUSTRE), "machines need package lists to find a Lustre client"),
        (
            slurm_packages.STEP,
            ubuntu(distribution="debian 13"),
            with_release("24.11"),
            "the distribution has this release",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Step) else "",
)
def test_a_step_gives_the_reason_for_skipping(step: Step, facts: Facts, target: Desired, reason: str) -> None:
    assert step.skip(facts, CONTROLLER, target) == reason


def test_a_notice_names_the_node_although_set_up_has_not_changed_the_host_name_yet() -> None:
    machine = registry.MACHINE.index(interruption.STEP)
    assert hosts.STEP not in registry.MACHINE[:machine], "otherwise the host name would do"
    facts = ubuntu(hostname="ip-10-0-1-7")
    script = written(interruption.STEP.actions(facts, GPU, desired()), interruption.PROGRAM)
    assert f' -m slurm.power.interruption {GPU.name} "$notice"' in script


def test_cloud_steps_run_only_on_cloud_machines() -> None:
    assert registry.select_steps(local()) == registry.ALL
    assert {step.name for step in registry.select_steps(desired())} == {step.name for step in registry.ON_CLOUD}


@pytest.mark.parametrize("node", [CONTROLLER, LOGIN, GPU], ids=lambda node: node.role)
def test_a_machine_goes_through_every_step_of_its_role_once(node: Node) -> None:
    through = [
        step.name
        for step in (
            *registry.KERNEL,
            *registry.MACHINE,
            *registry.select_after_machine(node.role),
            *registry.CHECKED,
        )
        if node.role in step.roles
    ]
    assert sorted(through) == sorted(step.name for step in registry.ON_CLOUD if node.role in step.roles)


def test_apt_fails_if_it_cannot_fetch_a_package_list() -> None:
    """Its default is a warning and exit status 0: the installation after it fails with a misleading message."""
    assert registry.KERNEL[0] == system.UPDATES_STEP, "its file configures apt for all later steps"
    conf = written(system.UPDATES_STEP.actions(ubuntu(), GPU, desired()), "/etc/apt/apt.conf.d/99muster")
    assert {'APT::Update::Error-Mode "any";', 'Acquire::Retries "5";'} <= set(conf.splitlines())
    # Machines that are set up from outside do not have this file.
    assert "-o APT::Update::Error-Mode=any -o Acquire::Retries=5" in install_packages(["sudo"]).script
