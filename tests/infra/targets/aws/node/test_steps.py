"""Actions of the steps on AWS: what a new machine needs, and that nothing is left to do afterwards."""

from __future__ import annotations

import re
import socket
import time as clock
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from bootstrap.action import Action, digest, install_packages
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts, FileFact
from bootstrap.plan import choose_cgroup, plan_steps
from bootstrap.steps import controller, fabric, members, packages, registry, ssh, time
from bootstrap.steps.cloud import (
    disks,
    interruption,
    job_credentials,
    logs,
    lustre_client,
    metadata,
    mounts,
    names,
    power,
    slurm_packages,
    system,
)
from bootstrap.steps.daemon import DAEMONS
from bootstrap.steps.step import Step
from bootstrap.transport.local import LocalTransport
from cluster.inventory import Node
from cluster.spec.model import Software
from infra.targets.aws.node import set_up
from infra.targets.aws.node.identity import add_node, find_node
from tests.bootstrap.clusters import desired as local
from tests.infra.targets.aws.node.clusters import (
    EFS,
    KERNEL,
    LUSTRE,
    NFS,
    STORE,
    cloud,
    desired,
    fixed,
    inventory,
    ubuntu,
)

CONTROLLER = fixed("controller", "controller", 10)
LOGIN = fixed("login", "login", 11)
ATTACH = "attach lustre noatime,flock,lazystatfs fs-01.fsx.us-east-1.amazonaws.com@tcp:/abcdef /shared"
GPU = find_node(inventory(), "gpu-3", "i-3", "10.0.1.3")


def titles(step: Step, facts: Facts, node: Node, target: Desired) -> list[str]:
    assert step.skip(facts, node, target) == ""
    return [action.title for action in step.actions(facts, node, target)]


def after(facts: Facts, actions: Iterable[Action]) -> Facts:
    """Return the facts after these actions have written their files and enabled their units."""
    files, enabled, markers = dict(facts.files), set(facts.enabled), dict(facts.markers)
    for action in actions:
        if action.title.startswith("write "):
            mode = 0o755 if "chmod 755" in action.script else 0o600 if "umask 077" in action.script else 0o644
            owner = "slurm:slurm" if "chown slurm" in action.script else "root:root"
            files[action.title.removeprefix("write ")] = FileFact(sha256(action.data).hexdigest(), mode, owner)
        if action.title.startswith("enable "):
            enabled.add(action.title.removeprefix("enable "))
        markers |= {name: value for value, name in re.findall(r"echo (\w+) > /var/lib/muster/(\w+)", action.script)}
    return replace(facts, files=files, enabled=frozenset(enabled), markers=markers)


@pytest.mark.parametrize(
    ("step", "node", "facts", "target", "done"),
    [
        (system.UPDATES_STEP, GPU, ubuntu(), desired(), {}),
        (names.RESOLVER_STEP, GPU, ubuntu(), desired(), {}),
        (names.HOST_KEY_STEP, GPU, ubuntu(), desired(), {}),
        (system.SYSCTL_STEP, GPU, ubuntu(), desired(), {}),
        (metadata.STEP, GPU, ubuntu(), desired(), {"active": frozenset({"muster-metadata"})}),
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
        (time.STEP, GPU, ubuntu(), desired(), {"active": frozenset({"chrony"}), "enabled": frozenset({"chrony"})}),
        (disks.SCRATCH_STEP, GPU, ubuntu(disks=(STORE,)), desired(), {"mounts": {"/local": "xfs"}}),
        (
            mounts.STEP,
            GPU,
            ubuntu(),
            desired(LUSTRE, EFS),
            {
                "mounts": {"/shared": "lustre", "/users": "nfs4"},
                "packages": {"nfs-common": "1", "stunnel4": "1"},
            },
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
            {"packages": dict.fromkeys(slurm_packages.NAMES["compute"], "24.11.5-1")},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Step) else "",
)
def test_a_step_acts_once(step: Step, node: Node, facts: Facts, target: Desired, done: dict[str, Any]) -> None:
    todo = step.actions(facts, node, target)
    assert todo
    assert [a.title for a in step.actions(replace(after(facts, todo), **done), node, target)] == []


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
        (slurm_packages.STEP, ubuntu(distribution="debian 13"), desired(), "the distribution has this release"),
    ],
    ids=lambda value: value.name if isinstance(value, Step) else "",
)
def test_a_step_gives_the_reason_for_skipping(step: Step, facts: Facts, target: Desired, reason: str) -> None:
    assert step.skip(facts, CONTROLLER, target) == reason


def test_debian_13_builds_a_release_that_it_does_not_have() -> None:
    newer = replace(desired(), spec=desired().spec.model_copy(update={"software": Software(slurm="26.05")}))
    debian = ubuntu(distribution="debian 13")
    assert slurm_packages.STEP.skip(debian, GPU, newer) == ""
    assert [a.title for a in slurm_packages.STEP.actions(debian, GPU, newer)] == ["install Slurm 26.05.5"]
    image = replace(debian, packages={"slurm-client": "26.05.5-1"})
    assert slurm_packages.STEP.skip(image, GPU, newer) == "the distribution has this release"
    assert "slurmd" not in str(packages.STEP.actions(replace(debian, packages={}), GPU, newer)[0].title)


def test_jobs_and_login_shells_get_the_variables_of_the_credentials() -> None:
    target = desired(jobs_role="arn:aws:iam::123456789012:role/muster-toy-jobs")
    variables = next(a for a in fabric.STEP.actions(ubuntu(), GPU, target) if a.title == "write /etc/muster/fabric.env")
    assert b"\nAWS_CONFIG_FILE=/run/muster-jobs/config\n" in variables.data
    (profile,) = (a for a in job_credentials.STEP.actions(ubuntu(), LOGIN, target) if "profile.d" in a.title)
    assert profile.data == b'export AWS_CONFIG_FILE="${AWS_CONFIG_FILE:-/run/muster-jobs/config}"\n'
    assert not [a for a in job_credentials.STEP.actions(ubuntu(), GPU, target) if "profile.d" in a.title]


def test_cloud_steps_run_only_on_cloud_machines() -> None:
    assert registry.select_steps(local()) == registry.ALL
    assert {step.name for step in registry.select_steps(desired())} == {step.name for step in registry.EVERY}


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
    assert sorted(through) == sorted(step.name for step in registry.EVERY if node.role in step.roles)


def test_apt_fails_if_it_cannot_fetch_a_package_list() -> None:
    """Its default is a warning and exit status 0: the installation after it fails with a misleading message."""
    assert registry.KERNEL[0] == system.UPDATES_STEP, "its file configures apt for all later steps"
    conf = _written(system.UPDATES_STEP.actions(ubuntu(), GPU, desired()), "/etc/apt/apt.conf.d/99muster")
    assert {'APT::Update::Error-Mode "any";', 'Acquire::Retries "5";'} <= set(conf.splitlines())
    # Machines that are set up from outside do not have this file.
    assert "-o APT::Update::Error-Mode=any -o Acquire::Retries=5" in install_packages(["sudo"]).script


def test_the_lustre_client_matches_the_running_kernel_and_is_tuned() -> None:
    assert titles(lustre_client.STEP, ubuntu(), GPU, desired(LUSTRE)) == [
        "write /etc/modprobe.d/muster.conf",
        f"install lustre-client-modules-{KERNEL}",
    ]
    script = _written(mounts.STEP.actions(ubuntu(), GPU, desired(LUSTRE)), "/etc/muster/mounts")
    assert ATTACH in script.splitlines()
    assert "lctl set_param -n osc.*.max_rpcs_in_flight=64" in script
    other = ubuntu(packages={"lustre-client-modules-6.8.0-1020-aws": "1"})
    assert f"install lustre-client-modules-{KERNEL}" in titles(lustre_client.STEP, other, GPU, desired(LUSTRE))
    with pytest.raises(BootstrapError, match="there is no Lustre client for debian 13"):
        lustre_client.STEP.skip(ubuntu(distribution="debian 13"), GPU, desired(LUSTRE))


def test_lustre_uses_efa_if_filesystem_and_machine_have_it() -> None:
    over_efa = desired(LUSTRE.model_copy(update={"efa": True}))

    def lines(node: Node, target: Desired) -> list[str]:
        return _written(mounts.STEP.actions(ubuntu(), node, target), "/etc/muster/mounts").splitlines()

    assert lines(GPU, over_efa).index("use_efa") < lines(GPU, over_efa).index(ATTACH)
    assert "use_efa" not in lines(LOGIN, over_efa)
    assert "use_efa" not in lines(GPU, desired(LUSTRE))


def test_efs_is_mounted_through_tls_with_a_verified_certificate() -> None:
    todo = mounts.STEP.actions(ubuntu(), GPU, desired(NFS, EFS))
    conf = _written(todo, "/etc/muster/efs-0.conf")
    assert f"checkHost = {EFS.host}\n" in conf
    assert "verifyChain = yes\n" in conf
    script = _written(todo, "/etc/muster/mounts")
    assert f"port={mounts.FIRST_TUNNEL_PORT} 127.0.0.1:/ /users\n" in script
    assert "10.0.0.9:/vol /archive\n" in script


def test_the_state_volume_is_found_by_id_and_required_by_daemons() -> None:
    todo = disks.STATE_STEP.actions(ubuntu(), CONTROLLER, desired(state_volume="vol-0123"))
    assert "volume=vol-0123\n" in _written(todo, "/etc/muster/state")
    for unit in ("mariadb", "slurmctld"):
        assert "Requires=muster-state.service" in _written(
            todo, f"/etc/systemd/system/{unit}.service.d/muster-state.conf"
        )
    unit = _written(todo, "/etc/systemd/system/muster-state.service")
    assert "Before=mariadb.service slurmdbd.service slurmctld.service slurmd.service\n" in unit
    assert disks.STATE_STEP.roles == ("controller",)


def test_only_root_reads_metadata_and_slurm_on_the_controller() -> None:
    """The step runs before users can log in and before slurmd starts."""

    def allowed(node: Node) -> str:
        script = _written(metadata.STEP.actions(ubuntu(), node, desired()), "/etc/muster/metadata")
        return next(line for line in script.splitlines() if line.startswith("users="))

    assert [allowed(node) for node in (CONTROLLER, LOGIN, GPU)] == [
        'users="root slurm"',
        'users="root"',
        'users="root"',
    ]
    there = ubuntu(packages={"nftables": "1.0.2"})
    assert "install nftables" in titles(metadata.STEP, ubuntu(), GPU, desired())
    assert "install nftables" not in titles(metadata.STEP, there, GPU, desired())
    unit = _written(metadata.STEP.actions(there, LOGIN, desired()), "/etc/systemd/system/muster-metadata.service")
    assert "systemd-user-sessions.service" in unit.partition("Before=")[2].splitlines()[0]
    first = "write /etc/systemd/system/slurmd.service.d/muster-metadata.conf"
    assert [first in titles(metadata.STEP, there, node, desired()) for node in (CONTROLLER, LOGIN, GPU)] == [
        False,
        False,
        True,
    ]


def test_the_controller_builds_slurm_and_the_others_wait() -> None:
    (build,) = slurm_packages.STEP.actions(ubuntu(), CONTROLLER, desired())
    (wait,) = slurm_packages.STEP.actions(ubuntu(), GPU, desired())
    assert "MODE=build\n" in build.script
    assert "MODE=wait\n" in wait.script
    assert "NAMES='slurm-smd slurm-smd-client slurm-smd-slurmd'\n" in wait.script
    assert "FOLDER=/shared/.packages\n" in wait.script
    assert _value(build, "KEY") == _value(wait, "KEY")
    (other,) = slurm_packages.STEP.actions(ubuntu(distribution="ubuntu 24.04"), GPU, desired())
    assert _value(other, "KEY") != _value(wait, "KEY")
    assert packages.SLURM.isdisjoint(_install(ubuntu(), CONTROLLER))
    assert "g++" in _install(ubuntu(), CONTROLLER)
    debian = set(_install(ubuntu(distribution="debian 13"), CONTROLLER))
    assert debian == {*packages.list_packages(CONTROLLER), "g++"}


def test_slurmd_gets_its_node_name_and_does_not_report_a_reboot() -> None:
    target = replace(desired(), inventory=add_node(inventory(), GPU))
    options = _written(members.COMPUTE_STEP.actions(ubuntu(), GPU, target), "/etc/default/slurmd")
    assert options == 'SLURMD_OPTIONS="-N gpu-3 --conf-server controller:6817"\n'


@pytest.mark.parametrize(("step", "node"), [(members.LOGIN_STEP, LOGIN), (members.COMPUTE_STEP, GPU)])
def test_a_daemon_starts_after_slurmctld_answers(step: Step, node: Node) -> None:
    """The machines of a new cluster start at the same time, and the controller takes minutes longer."""
    target = replace(desired(), inventory=add_node(inventory(), node))
    *_, wait, start = step.actions(ubuntu(), node, target)
    assert (wait.title, start.title) == ("wait for slurmctld", f"start {DAEMONS[node.role][0]}")
    assert "/dev/tcp/controller/6817" in wait.script
    assert wait.slow, "its progress is shown"
    assert wait.timeout > 1800


def test_a_machine_waits_until_slurmctld_listens() -> None:
    transport, lines = LocalTransport(), list[str]()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        wait = members.wait_for_slurmctld("127.0.0.1", 20.0, listener.getsockname()[1])
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(transport.run, wait.script, timeout=30.0, on_line=lines.append)
            while not lines:
                clock.sleep(0.05)
            assert not result.done()
            listener.listen()
            assert result.result().code == 0
    assert re.fullmatch(r"waiting for slurmctld at 127\.0\.0\.1:\d+, \d s so far", lines[0])


def test_a_machine_does_not_wait_for_ever() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        wait = members.wait_for_slurmctld("127.0.0.1", 1.0, unused.getsockname()[1])
        completed = LocalTransport().run(wait.script, timeout=30.0)
    assert completed.code == 1
    assert re.search(r"slurmctld does not answer at 127\.0\.0\.1:\d+ after [12] s\n$", completed.err)


@pytest.mark.parametrize(
    ("node", "end"),
    [(CONTROLLER, ["check", registry.CHECKED]), (LOGIN, ["check"]), (GPU, ["check"])],
    ids=["controller", "login", "compute"],
)
def test_the_sweep_starts_after_the_check(node: Node, end: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """It launches nodes that are missing, which would be billed although the set-up of the controller failed."""
    order: list[object] = []
    monkeypatch.setattr(set_up, "_run_stage", lambda *arguments: order.append(arguments[3]))
    monkeypatch.setattr(set_up, "check_machine", lambda *_: order.append("check"))
    monkeypatch.setattr("bootstrap.restart.read_request", lambda _: "")
    monkeypatch.setattr(set_up.Reporter, "report", lambda *_: None)
    assert set_up.set_up(node, desired(), cloud(), set_up.Reporter("", "", "")) == ""
    assert order == [registry.KERNEL, registry.MACHINE, registry.select_after_machine(node.role), *end]
    assert power.SWEEP_STEP in registry.CHECKED


def test_the_timer_of_the_sweep_is_started_by_its_own_step() -> None:
    assert "start muster-sweep.timer" not in titles(power.STEP, ubuntu(), CONTROLLER, desired())
    assert titles(power.SWEEP_STEP, ubuntu(), CONTROLLER, desired())[-1] == "start muster-sweep.timer"


def test_nodes_that_do_not_exist_yet_are_in_known_hosts() -> None:
    assert ssh.render_known_hosts(inventory()).splitlines()[-1] == "gpu-* ssh-ed25519 AAAAgpu"


def test_only_the_first_topology_is_written() -> None:
    path = "/etc/slurm/topology.conf"
    assert f"write {path}" in titles(power.STEP, ubuntu(), CONTROLLER, desired())
    files = {path: FileFact("another", 0o644, "slurm:slurm")}
    adapt = "adapt topology.conf to the nodes"
    assert f"write {path}" not in titles(power.STEP, ubuntu(files=files), CONTROLLER, desired())
    same = ubuntu(files=files, markers={"topology": digest("gpu-[1-4]")})
    assert adapt not in titles(power.STEP, same, CONTROLLER, desired())
    # If a group has grown, Slurm reads both files together, right after this step.
    fewer = ubuntu(files=files, markers={"topology": digest("gpu-[1-3]")})
    (action,) = [a for a in power.STEP.actions(fewer, CONTROLLER, desired()) if a.title == adapt]
    assert "-m slurm.power.topology 'gpu-[1-4]'" in action.script
    steps = registry.select_after_machine("controller")
    assert steps.index(power.STEP) < steps.index(controller.STEP)


def test_a_controller_without_nodes_yet_uses_its_own_kind_of_cgroup() -> None:
    assert choose_cgroup({"controller": ubuntu(cgroup="v1")}, desired()).cgroup == "v1"


def test_one_machine_can_be_planned_alone() -> None:
    target = replace(desired(LUSTRE), inventory=add_node(inventory(), GPU))
    planned = plan_steps({GPU.name: ubuntu()}, target)
    assert list(planned) == ["gpu-3"]
    assert planned["gpu-3"]["hosts"].actions[0].data.decode().endswith("10.0.1.3 gpu-3\n")


@pytest.mark.parametrize(
    ("name", "text"), [("gpu-5", "no node gpu-5"), ("cpu-1", "no node cpu-1"), ("gpu-01", "gpu-01")]
)
def test_a_machine_of_another_cluster_is_an_error(name: str, text: str) -> None:
    with pytest.raises(BootstrapError, match=rf"{text}.*must be one of: controller, login, gpu-1 to -4"):
        find_node(inventory(), name, "i-1", "10.0.0.1")


def test_a_machine_replaces_the_one_that_had_its_name() -> None:
    me = find_node(inventory(), "controller", "i-9", "10.0.0.10")
    assert [n.machine_id for n in add_node(inventory(), me).nodes] == ["i-9", "eni-login"]


def _written(actions: Iterable[Action], path: str) -> str:
    return next(a.data.decode() for a in actions if a.title == f"write {path}")


def _value(action: Action, name: str) -> str:
    return next(line for line in action.script.splitlines() if line.startswith(f"{name}="))


def _install(facts: Facts, node: Node) -> list[str]:
    (action,) = packages.STEP.actions(facts, node, desired())
    return action.title.split()[1:]
