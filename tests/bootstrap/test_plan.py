"""Planned actions for given facts: of a bare node, of a finished node, and after each kind of deviation."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts, FileFact, UserFact
from bootstrap.plan import choose_cgroup, list_deviations, plan_steps
from bootstrap.steps import registry, restored_jobs
from cluster.spec import ClusterSpec
from tests.bootstrap.clusters import bare_all, desired, done_all, node, titles

Facts_ = dict[str, Facts]
OTHER = UserFact(2007, "muster", "/shared/home/bob", "/bin/bash")


def changed(facts: Facts_, name: str, **fields: Any) -> Facts_:
    return facts | {name: replace(facts[name], **fields)}


def without_file(facts: Facts_, name: str, path: str) -> Facts_:
    return changed(facts, name, files={p: f for p, f in facts[name].files.items() if p != path})


def other_file(facts: Facts_, name: str, path: str, **fields: Any) -> Facts_:
    return changed(facts, name, files={**facts[name].files, path: replace(facts[name].files[path], **fields)})


def test_a_finished_cluster_needs_nothing() -> None:
    target = desired()
    assert list(list_deviations(plan_steps(done_all(target), target))) == []


def test_a_bare_cluster_needs_every_step_but_packages() -> None:
    planned = plan_steps(bare_all(desired()), desired())
    busy = {step for steps in planned.values() for step, planned_step in steps.items() if planned_step.actions}
    assert busy == {step.name for step in registry.ALL} - {"storage", "packages", "metadata", "time", "alerts"}
    assert planned["gpu-1"]["metadata"].skipped == "the machines have no metadata service"
    assert planned["gpu-1"]["time"].skipped == "a container uses the clock of its host"


@pytest.mark.parametrize(
    ("deviate", "where", "step", "expected"),
    [
        (lambda f: changed(f, "gpu-1", hosts_merged=False), "gpu-1", "hosts", ["merge the names into /etc/hosts"]),
        (lambda f: changed(f, "gpu-1", hostname="debian"), "gpu-1", "hosts", ["set the host name to gpu-1"]),
        (lambda f: changed(f, "gpu-1", users={}), "gpu-1", "users", ["add user muster"]),
        (
            lambda f: changed(f, "gpu-1", users={"muster": UserFact(2000, "muster", "/shared/home/muster", "/bin/sh")}),
            "gpu-1",
            "users",
            ["correct user muster"],
        ),
        (
            lambda f: changed(f, "login", users={**f["login"].users, "bob": OTHER}),
            "login",
            "users",
            ["lock out bob"],
        ),
        (
            lambda f: changed(f, "login", users={**f["login"].users, "debian": UserFact(1000, "", "/h", "/bin/bash")}),
            "login",
            "users",
            [],
        ),
        (lambda f: changed(f, "controller", homes={}), "controller", "users", ["create the home of muster"]),
        (
            lambda f: changed(f, "controller", homes={}),
            "controller",
            "ssh",
            ["create the key of muster for SSH between nodes"],
        ),
        (
            lambda f: without_file(f, "gpu-2", "/etc/ssh/ssh_known_hosts"),
            "gpu-2",
            "ssh",
            ["write /etc/ssh/ssh_known_hosts"],
        ),
        (
            lambda f: without_file(f, "gpu-2", "/etc/ssh/sshd_config.d/10-muster.conf"),
            "gpu-2",
            "ssh",
            ["write /etc/ssh/sshd_config.d/10-muster.conf", "reload sshd"],
        ),
        (lambda f: changed(f, "gpu-2", markers={}), "gpu-2", "ssh", ["reload sshd"]),
        (
            lambda f: changed(
                f, "gpu-2", files={**f["gpu-2"].files, "/etc/muster/keys/gone": FileFact("", 0o644, "root:root")}
            ),
            "gpu-2",
            "ssh",
            ["remove /etc/muster/keys/gone"],
        ),
        (
            lambda f: other_file(f, "gpu-1", "/etc/muster/fabric.env", sha256="0"),
            "gpu-1",
            "fabric",
            ["write /etc/muster/fabric.env"],
        ),
        (
            lambda f: other_file(f, "gpu-1", "/etc/slurm/slurm.key", mode=0o644),
            "gpu-1",
            "compute",
            ["write /etc/slurm/slurm.key", "start slurmd"],
        ),
        (lambda f: changed(f, "gpu-1", active=frozenset()), "gpu-1", "compute", ["start slurmd"]),
        (lambda f: changed(f, "gpu-1", enabled=frozenset()), "gpu-1", "compute", ["start slurmd"]),
        (lambda f: changed(f, "login", active=frozenset()), "login", "login", ["start sackd"]),
        (
            lambda f: other_file(f, "controller", "/etc/slurm/gres.conf", sha256="0"),
            "controller",
            "controller",
            ["write /etc/slurm/gres.conf", "reconfigure Slurm"],
        ),
        (
            lambda f: changed(f, "controller", markers={**f["controller"].markers, "slurm.conf": "old"}),
            "controller",
            "controller",
            ["reconfigure Slurm"],
        ),
        (
            lambda f: changed(f, "controller", active=f["controller"].active - {"slurmctld"}),
            "controller",
            "controller",
            ["start slurmctld"],
        ),
        (lambda f: changed(f, "controller", associations=frozenset()), "controller", "controller", ["update accounts"]),
        (
            lambda f: changed(f, "controller", admins=frozenset({"muster"})),
            "controller",
            "controller",
            ["update accounts"],
        ),
        (
            lambda f: changed(f, "controller", active=f["controller"].active - {"slurmdbd"}),
            "controller",
            "accounting",
            ["enable MariaDB and slurmdbd", "create the accounting database", "start slurmdbd"],
        ),
    ],
)
def test_deviations(deviate: Callable[[Facts_], Facts_], where: str, step: str, expected: list[str]) -> None:
    target = desired()
    assert titles(plan_steps(deviate(done_all(target)), target), where, step) == expected


def test_shared_files_are_identified_by_content() -> None:
    target = desired()
    facts = changed(done_all(target), "controller", bundle="old", environment_complete=False)
    planned = plan_steps(facts, target)
    assert titles(planned, "controller", "bundle") == [f"ship bundle {target.bundle.digest}"]
    assert titles(planned, "controller", "environment") == [f"build {target.environment}"]


def test_adding_a_node_changes_names_keys_and_configuration_but_restarts_no_daemon() -> None:
    facts = done_all(desired())
    grown = desired(node("gpu-3", "compute", 23, group="gpu"))
    planned = plan_steps(facts, grown)
    assert {(p.step, p.what) for p in list_deviations({n: planned[n] for n in ("gpu-1", "gpu-2", "login")})} == {
        ("hosts", "write /etc/muster/hosts"),
        ("hosts", "merge the names into /etc/hosts"),
        ("ssh", "write /etc/ssh/ssh_known_hosts"),
    }
    assert titles(planned, "controller", "controller") == [
        "write /etc/slurm/slurm.conf",
        "reconfigure Slurm",
    ]


def test_the_topology_is_written_changed_and_removed_with_one_reconfiguration() -> None:
    def place(switch: str) -> Desired:
        flat = desired()
        nodes = [n.model_copy(update={"place": (switch,)}) if n.group and switch else n for n in flat.inventory.nodes]
        return replace(flat, inventory=flat.inventory.model_copy(update={"nodes": tuple(nodes)}))

    def plan_change(before: Desired, after: Desired) -> list[str]:
        return titles(plan_steps(done_all(before), after), "controller", "controller")

    conf, topology = "write /etc/slurm/slurm.conf", "write /etc/slurm/topology.conf"
    assert plan_change(place(""), place("leaf1")) == [conf, topology, "reconfigure Slurm"]
    assert plan_change(place("leaf1"), place("leaf1")) == []
    assert plan_change(place("leaf1"), place("leaf2")) == [topology, "reconfigure Slurm"]
    assert plan_change(place("leaf1"), place("")) == [conf, "remove /etc/slurm/topology.conf", "reconfigure Slurm"]


def test_slurmctld_starts_the_check_of_restored_jobs() -> None:
    planned = plan_steps(bare_all(desired()), desired())["controller"]
    assert [action.title for action in planned["restored-jobs"].actions] == [
        *(f"write {path}" for path in (restored_jobs.PROGRAM, restored_jobs.COMPLETE, *restored_jobs.UNITS)),
        "reload the units of slurmctld",
    ]
    assert list(planned).index("restored-jobs") < list(planned).index("controller"), "slurmctld starts afterwards"


def test_a_reload_that_failed_is_repeated(tmp_path: Path) -> None:
    planned = plan_steps(bare_all(desired()), desired())["controller"]
    reload = planned["restored-jobs"].actions[-1]
    drop_in = tmp_path / "muster.conf"
    drop_in.touch()
    script = reload.script.replace(restored_jobs.DROP_IN, str(drop_in))
    for stub, code in (("true", 0), ("false", 1)):
        assert drop_in.exists()
        assert subprocess.run(["sh", "-ec", f"systemctl() {{ {stub}; }}\n{script}"]).returncode == code
    assert not drop_in.exists(), "the next run writes it again, and reloads"


def test_a_new_key_restarts_the_daemons() -> None:
    target = desired()
    rekeyed = replace(target, secrets=replace(target.secrets, slurm_key=b"x" * 1024))
    planned = plan_steps(done_all(target), rekeyed)
    assert titles(planned, "gpu-1", "compute") == ["write /etc/slurm/slurm.key", "start slurmd"]
    assert "start slurmctld" in titles(planned, "controller", "controller")


def test_an_added_user_reaches_every_node_and_the_accounts() -> None:
    facts = done_all(desired())
    planned = plan_steps(facts, desired(users={"muster": {"uid": 2000}, "carol": {"uid": 2003, "admin": True}}))
    for name in facts:
        assert "add user carol" in titles(planned, name, "users")
        assert "write /etc/sudoers.d/muster" in titles(planned, name, "users")
    # Slurm is not reconfigured, because that would restart every slurmd for no reason.
    assert titles(planned, "controller", "controller") == ["update accounts"]
    accounts = planned["controller"]["controller"].actions[0]
    assert "mgr add user carol account=muster cluster=toy" in accounts.script
    assert "mgr modify user carol set adminlevel=administrator" in accounts.script
    assert titles(planned, "gpu-1", "compute") == []


def test_homes_are_on_the_storage_named_home() -> None:
    target = desired(storage={"shared": {}, "home": {"mount": "/users"}})
    planned = plan_steps(bare_all(target), target)
    assert "-d /users/muster " in planned["gpu-1"]["users"].actions[0].script
    (home,) = [
        action for action in planned["controller"]["users"].actions if action.title == "create the home of muster"
    ]
    assert "mkdir -p /users/muster\n" in home.script
    assert any("/users/muster/.ssh" in action.script for action in planned["controller"]["ssh"].actions)
    assert not any(
        "/shared/home" in action.script for step in planned["controller"].values() for action in step.actions
    )


def test_a_removed_user_is_locked_out_and_loses_the_account_but_not_the_home() -> None:
    both = desired(users={"muster": {"uid": 2000}, "carol": {"uid": 2003}})
    planned = plan_steps(done_all(both), desired())
    assert titles(planned, "gpu-1", "users") == ["lock out carol"]
    assert "mgr delete user carol" in planned["controller"]["controller"].actions[0].script
    assert not any("/shared/home" in a.script for p in planned["controller"].values() for a in p.actions)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"muster": UserFact(2001, "", "/h", "/bin/bash")}, "muster has uid 2001, not 2000"),
        ({"other": UserFact(2000, "", "/h", "/bin/bash")}, "uid 2000 belongs to other"),
    ],
)
def test_a_uid_conflict_is_an_error(users: dict[str, UserFact], message: str) -> None:
    with pytest.raises(
        BootstrapError, match=f"node gpu-1, step users: {message}. Fix: give users.muster.uid another value"
    ):
        plan_steps(changed(bare_all(desired()), "gpu-1", users=users), desired())


def test_missing_packages_are_installed_and_another_release_of_slurm_is_an_error() -> None:
    facts = bare_all(desired())
    some = {k: v for k, v in facts["gpu-1"].packages.items() if k not in ("slurmd", "sudo")}
    planned = plan_steps(changed(facts, "gpu-1", packages=some), desired())
    assert titles(planned, "gpu-1", "packages") == ["install sudo slurmd"]
    old = changed(facts, "gpu-1", packages={**facts["gpu-1"].packages, "slurm-client": "22.05.8-4"})
    with pytest.raises(BootstrapError, match=r"Slurm 22.05.8-4 is installed, but software.slurm is 26.05"):
        plan_steps(old, desired())


def test_limits_are_not_raised_in_containers() -> None:
    facts = bare_all(desired())
    assert "write /etc/security/limits.d/muster.conf" not in titles(plan_steps(facts, desired()), "gpu-1", "limits")
    metal = plan_steps(changed(facts, "gpu-1", container=False), desired())
    assert "write /etc/security/limits.d/muster.conf" in titles(metal, "gpu-1", "limits")


@pytest.mark.fault(15)
def test_chrony_is_started_on_machines_and_not_in_containers() -> None:
    facts = bare_all(desired())
    assert titles(plan_steps(facts, desired()), "gpu-1", "time") == []
    metal = changed(facts, "gpu-1", container=False)
    assert titles(plan_steps(metal, desired()), "gpu-1", "time") == ["start chrony"]
    running = changed(metal, "gpu-1", active=frozenset({"chrony"}), enabled=frozenset({"chrony"}))
    assert titles(plan_steps(running, desired()), "gpu-1", "time") == []


def test_chrony_is_installed_with_package_lists_only_if_it_is_missing(tmp_path: Path) -> None:
    """A machine that has its packages from the controller's archive has no lists."""
    facts = changed(bare_all(desired()), "gpu-1", container=False)
    (action,) = plan_steps(facts, desired())["gpu-1"]["time"].actions
    script = action.script.replace("/run/", f"{tmp_path}/run/").replace("/etc/", f"{tmp_path}/etc/")
    calls, unit = tmp_path / "calls", tmp_path / "etc/systemd/system/chrony.service"
    unit.parent.mkdir(parents=True)
    unit.touch()

    def run() -> list[str]:
        calls.write_text("")
        subprocess.run(["/bin/sh", "-e", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
        return [line.split()[-1] for line in calls.read_text().splitlines()]

    for program in ("apt-get", "systemctl"):
        (tmp_path / program).write_text(f'#!/bin/sh\necho "$0 $*" >>{calls}\n')
        (tmp_path / program).chmod(0o755)
    assert run() == ["update", "chrony", "chrony"]
    (tmp_path / "chronyd").write_text("#!/bin/sh\n")
    (tmp_path / "chronyd").chmod(0o755)
    assert run() == ["chrony"]


def test_only_slurmd_is_killed_soon_if_it_does_not_stop() -> None:
    """While a job ends, slurmd and the job wait for each other; slurmctld and slurmdbd must be able to save."""
    planned = plan_steps(bare_all(desired()), desired())
    policies = {
        action.title: action.data.decode()
        for name in ("gpu-1", "controller")
        for action in planned[name]["limits"].actions
        if ".service.d/" in action.title
    }
    assert {title.split("/")[4] for title, text in policies.items() if "\nTimeoutStopSec=10\n" in text} == {
        "slurmd.service.d"
    }
    assert len(policies) > 1


def with_cgroups(*kinds: str) -> Facts_:
    facts = bare_all(desired())
    return facts | {
        f"gpu-{number}": replace(facts[f"gpu-{number}"], cgroup=kind) for number, kind in enumerate(kinds, 1)
    }


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_slurm_uses_the_cgroups_that_all_nodes_have(kind: str) -> None:
    assert choose_cgroup(with_cgroups(kind, kind), desired()).cgroup == kind


@pytest.mark.attack(10)
@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("v1", "v2"), "node gpu-2, step cgroups: .* one version of cgroups on all nodes: gpu-2 has v2, gpu-1 has v1"),
        (("v2", "none"), "node gpu-2, step cgroups: .*the kernel offers no cgroups with a memory controller"),
        (("none", "none"), "node gpu-1, step cgroups: .*the kernel offers no cgroups with a memory controller"),
    ],
)
def test_jobs_run_without_limits_only_if_the_spec_says_so(kinds: tuple[str, str], message: str) -> None:
    facts = with_cgroups(*kinds)
    with pytest.raises(BootstrapError, match=f"{message}.*Fix: .*`slurm.cgroups: none`"):
        plan_steps(facts, desired())
    unlimited = replace(desired(), spec=load_unlimited())
    assert choose_cgroup(facts, unlimited).cgroup == "none"


@pytest.mark.attack(10)
def test_a_marker_of_an_earlier_release_does_not_lift_the_limits() -> None:
    facts = changed(with_cgroups("v2", "v2"), "controller", markers={"cgroup": "none"})
    assert choose_cgroup(facts, desired()).cgroup == "v2"


def load_unlimited() -> ClusterSpec:
    spec = desired().spec
    return spec.model_copy(update={"slurm": spec.slurm.model_copy(update={"cgroups": "none"})})
