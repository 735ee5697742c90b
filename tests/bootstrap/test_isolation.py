"""Who may log in where, and what Slurm runs after a job."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import isolation
from bootstrap.steps.ssh import render_sshd
from cluster.user_ids import FIRST_UID
from slurm.health.admins import ADMINS_FILE
from tests.bootstrap.clusters import desired
from tests.slurm.job_groups import JOBS_OF_GROUPS
from tests.slurm.proc_tree import add_process

USERS = {"alice": {"uid": 2001}, "bob": {"uid": 2002, "admin": True}}


def without_login_node() -> Desired:
    target = desired(users=USERS, login={"enabled": False})
    nodes = tuple(node for node in target.inventory.nodes if node.role != "login")
    return replace(target, inventory=target.inventory.model_copy(update={"nodes": nodes}))


@pytest.mark.parametrize(
    ("target", "restricted"),
    [(desired(users=USERS), {"controller": "AllowUsers root bob"}), (without_login_node(), {})],
)
def test_only_admins_log_in_to_a_controller_that_is_not_the_login_node(
    target: Desired, restricted: dict[str, str]
) -> None:
    lines = {node.name: render_sshd(node, target).splitlines() for node in target.inventory.nodes}
    assert {name: line for name in lines for line in lines[name] if line.startswith("AllowUsers")} == restricted
    assert all("UsePAM yes" in each for each in lines.values())


def test_the_user_as_whom_muster_logs_in_is_an_admin_of_every_node() -> None:
    target = desired(users=USERS)
    for node in (target.inventory.controller, target.inventory.compute[0]):
        ubuntu = node.model_copy(update={"ssh_user": "ubuntu"})
        assert isolation.list_admins(target.spec, ubuntu) == ["root", "bob", "ubuntu"]
        if node.role == "controller":
            assert "AllowUsers root bob ubuntu" in render_sshd(ubuntu, target).splitlines()
        else:
            titles = {action.title: action.data for action in isolation.plan_isolation(Facts(), ubuntu, target)}
            assert titles[f"write {ADMINS_FILE}"] == b"root\nbob\nubuntu\n"


def test_a_login_needs_a_job_unless_the_user_is_an_admin() -> None:
    target = desired(users=USERS)
    node = target.inventory.compute[1]
    written = {action.title: action.data.decode() for action in isolation.plan_isolation(Facts(), node, target)}
    assert written[f"write {ADMINS_FILE}"] == "root\nbob\n"
    rules = [line.split() for line in written[f"write {isolation.PAM_SSHD}"].splitlines() if not line.startswith("#")]
    accounts = [rule[1:] for rule in rules if rule[0] == "account"]
    assert accounts[0] == ["required", "pam_nologin.so"]
    assert [rule[:2] for rule in accounts[1:]] == [
        ["sufficient", "pam_listfile.so"],
        ["required", "pam_slurm_adopt.so"],
    ]
    # By default, an error of the module lets the user in.
    assert {"action_adopt_failure=deny", "action_generic_failure=deny", f"nodename={node.name}"} <= set(accounts[2])
    assert ["@include", "common-session"] not in rules
    assert "pam_systemd.so" not in [rule[-1] for rule in rules]


def test_the_epilog_runs_the_health_program_only_with_real_gpus() -> None:
    plain, checked = (isolation.render_epilog(gpus=value) for value in (False, True))
    assert f"ADMINS={ADMINS_FILE}" in plain.splitlines()
    assert f"FIRST_UID={FIRST_UID}" in plain.splitlines()
    assert not re.search("@[A-Z_]+@", plain)
    assert plain.splitlines()[-1] == "exit 0"
    assert checked.splitlines()[-1] == 'exec python3 /etc/muster/health.pyz epilog "$@"'


def test_the_epilog_finds_the_same_jobs_as_the_health_checks(tmp_path: Path) -> None:
    """tests/engine/test_epilog.py plays complete epilogs with real processes."""
    pids = dict(enumerate(JOBS_OF_GROUPS, 11))
    for pid, group in pids.items():
        add_process(tmp_path, pid, group=group)
    functions = isolation.render_epilog(gpus=False).partition("\nkill_leftovers ")[0].replace("/proc/", f"{tmp_path}/")
    script = f"{functions}\nfor pid in {' '.join(map(str, pids))} 99; do if is_in_job $pid; then echo $pid; fi; done"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    in_jobs = [str(pid) for pid, group in pids.items() if JOBS_OF_GROUPS[group]]
    # The last one has ended meanwhile.
    assert done.stdout.split() == in_jobs
