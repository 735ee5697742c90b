"""Steps on machines that their owners get back: what they leave alone, and what they declare for the journal."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.action import KEEP_DAEMONS_STOPPED, MARKERS, POLICY, Action, record_changes
from bootstrap.changes import DATABASE_STATE, JOURNAL, SLURM_STATE
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Home, UserFact
from bootstrap.plan import plan_steps
from bootstrap.steps import registry
from bootstrap.steps.hosts import render_hosts
from bootstrap.steps.isolation import list_admins
from bootstrap.steps.job_network import UNDO
from cluster.inventory import Adopted
from tests.bootstrap.clusters import bare_all, desired, titles

HOSTNAMES = {"controller": "head", "login": "front", "gpu-1": "rack1-1", "gpu-2": "rack1-2.example.com"}


def adopted(**spec: object) -> Desired:
    """Return the small cluster on machines that keep their host names."""
    target = desired(**spec)
    nodes = tuple(
        node.model_copy(update={"adopted": Adopted(hostname=HOSTNAMES[node.name], user="ops")})
        for node in target.inventory.nodes
    )
    return replace(target, inventory=target.inventory.model_copy(update={"nodes": nodes}))


def test_every_action_of_every_step_is_recorded() -> None:
    # The facts of a machine on which nothing is right, so that every step has something to do.
    target = adopted(alerts={"webhook": "https://example.com/hook"})
    target = replace(target, secrets=replace(target.secrets, webhook="https://example.com/hook"))
    facts = {name: replace(each, packages={}, container=False, mounts={}) for name, each in bare_all(target).items()}
    planned = plan_steps(facts, target)
    busy = {step for steps in planned.values() for step, planned_step in steps.items() if planned_step.actions}
    # Their time service is the owner's, and they have no metadata service.
    assert busy == {step.name for step in registry.ALL} - {"time", "metadata"}
    for steps in planned.values():
        for step in steps.values():
            for action in step.actions:
                assert action.changes is not None, action.title
                assert action.script.startswith(f"{JOURNAL} before ") == bool(action.changes.subjects), action.title


# What does not outlive a restart, or belongs to muster.
VOLATILE = ("/dev/", "/run/", "/tmp/", f"{MARKERS}/")


def test_every_file_that_a_script_writes_to_is_declared() -> None:
    target = adopted(alerts={"webhook": "https://example.com/hook"})
    target = replace(target, secrets=replace(target.secrets, webhook="https://example.com/hook"))
    facts = {name: replace(each, packages={}, container=False) for name, each in bare_all(target).items()}
    written: set[str] = set()
    for steps in plan_steps(facts, target).values():
        for action in (action for step in steps.values() for action in step.actions):
            assert action.changes is not None
            redirections = re.findall(r">\s*(/[\w./-]+)", action.script)
            paths = {path.removesuffix(".muster-new") for path in redirections if not path.startswith(VOLATILE)}
            assert paths <= {*action.changes.files, *action.changes.access}, action.title
            written |= paths
    # The check sees what packages need, and ordinary files.
    assert {POLICY, "/etc/muster/hosts", "/etc/pam.d/sshd"} <= written


def test_an_owners_policy_for_daemons_is_put_back(tmp_path: Path) -> None:
    policy, aside = tmp_path / "policy-rc.d", tmp_path / "policy-rc.d.muster-old"
    script = KEEP_DAEMONS_STOPPED.replace(POLICY, str(policy))
    seen = f"cat {policy}\n{policy} ; echo code $?"
    policy.write_text("#!/bin/sh\nexit 0\n")
    for _ in range(2):
        done = subprocess.run(["sh", "-c", f"{script}\n{seen}"], capture_output=True, text=True, check=True)
        assert done.stdout == "#!/bin/sh\n# muster\nexit 101\ncode 101\n"
        assert policy.read_text() == "#!/bin/sh\nexit 0\n"
        # An installation that is killed leaves both, and the next one puts the owner's back.
        subprocess.run(["sh", "-c", f"{script}\nkill -KILL $$"], check=False)
        assert "# muster" in policy.read_text()
        assert aside.read_text() == "#!/bin/sh\nexit 0\n"
    subprocess.run(["sh", "-c", script], check=True)
    assert not aside.exists()
    policy.unlink()
    subprocess.run(["sh", "-c", script], check=True)
    assert list(tmp_path.iterdir()) == []


def test_only_the_controller_declares_the_data_of_a_database() -> None:
    target = adopted()
    planned = plan_steps({name: replace(each, packages={}) for name, each in bare_all(target).items()}, target)
    for name, steps in planned.items():
        declared = [action.changes for step in steps.values() for action in step.actions if action.changes]
        trees = {tree for changes in declared for tree in changes.trees}
        files = {path for changes in declared for path in changes.files if path.startswith("/etc/mysql/")}
        assert trees == ({SLURM_STATE, DATABASE_STATE} if name == "controller" else {SLURM_STATE}), name
        assert bool(files) == (name == "controller")


def test_the_unit_that_logins_wait_for_is_never_stopped() -> None:
    target = adopted()
    for steps in plan_steps(bare_all(target), target).values():
        subjects = [s for step in steps.values() for a in step.actions if a.changes for s in a.changes.subjects]
        assert "unit:muster-job-network" not in subjects
        assert f"undo:{UNDO}" in subjects


def test_an_account_of_the_owner_is_not_taken_over() -> None:
    own = UserFact(2000, "Me,,,", "/home/muster", "/bin/zsh")
    target = adopted()
    facts = {name: replace(each, users={"muster": own}) for name, each in bare_all(target).items()}
    with pytest.raises(BootstrapError, match="step users: the account muster exists already and is not muster's"):
        plan_steps(facts, target)
    facts = {name: replace(each, users={"muster": replace(own, comment="muster")}) for name, each in facts.items()}
    assert "correct user muster" in titles(plan_steps(facts, target), "gpu-1", "users")


def test_a_home_of_somebody_else_is_not_taken_over() -> None:
    target = adopted()
    facts = bare_all(target)
    facts["controller"] = replace(facts["controller"], homes={"muster": Home(1000, False)})
    with pytest.raises(BootstrapError) as refused:
        plan_steps(facts, target)
    assert str(refused.value) == (
        "node controller, step users: /shared/home/muster exists already and belongs to uid 1000, not 2000. "
        "Fix: write `users: {muster: {uid: 1000}}`, choose another name, or move that folder away."
    )
    # On machines of ours, the user may have got another uid.
    assert "create the home of muster" in titles(plan_steps(facts, desired()), "controller", "users")


@pytest.mark.parametrize(
    ("ssh_user", "owner", "root_maintains"),
    [("root", None, True), ("ubuntu", None, False), ("root", "root", True), ("root", "ops", False)],
)
def test_who_repairs_a_machine(ssh_user: str, owner: str | None, root_maintains: bool) -> None:
    owned = Adopted(hostname="head", user=owner) if owner else None
    machine = desired().inventory.controller.model_copy(update={"ssh_user": ssh_user, "adopted": owned})
    assert machine.root_maintains == root_maintains


def test_the_owner_keeps_host_name_and_clock() -> None:
    target = adopted()
    facts = {name: replace(each, hostname=HOSTNAMES[name], container=False) for name, each in bare_all(target).items()}
    planned = plan_steps(facts, target)
    for name in HOSTNAMES:
        assert not [title for title in titles(planned, name, "hosts") if title.startswith("set the host name")]
        assert planned[name]["time"].skipped == "the machine's owner sets its clock"


def test_host_names_resolve_to_the_address_that_other_nodes_use() -> None:
    inventory = adopted().inventory
    lines = render_hosts(inventory, inventory.compute[0]).splitlines()
    assert lines[-2:] == ["10.1.0.22 gpu-2", "10.1.0.21 rack1-1"]
    named_alike = inventory.compute[0].model_copy(update={"adopted": Adopted(hostname="gpu-1", user="ops")})
    assert render_hosts(inventory, named_alike).splitlines() == lines[:-1]


def test_slurm_starts_on_the_host_name_of_the_controller() -> None:
    files = adopted().slurm_files
    conf = files["/etc/slurm/slurm.conf"].content
    assert "SlurmctldHost=head(10.1.0.10)\n" in conf
    assert "NodeName=gpu-1 NodeAddr=10.1.0.21 " in conf
    assert "DbdHost=head\n" in files["/etc/slurm/slurmdbd.conf"].content
    assert "AccountingStorageHost=controller\n" in conf


def test_slurmd_runs_as_the_node_and_the_owner_may_log_in() -> None:
    target = adopted()
    planned = plan_steps(bare_all(target), target)
    [options] = [a for a in planned["gpu-1"]["compute"].actions if a.title == "write /etc/default/slurmd"]
    assert options.data == b'SLURMD_OPTIONS="-N gpu-1 --conf-server controller:6817"\n'
    assert list_admins(target.spec, target.inventory.compute[0]) == ["root", "ops"]


def test_an_action_that_declares_nothing_does_not_run_on_an_adopted_machine() -> None:
    with pytest.raises(ValueError, match="the action 'change something' does not declare what it changes"):
        record_changes(Action("change something", "true"))
