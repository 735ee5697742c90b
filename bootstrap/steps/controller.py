"""Controller: Slurm's configuration and accounts, and slurmctld, which a change on a running cluster reconfigures."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, remove_file, write_file, write_marker
from bootstrap.changes import SLURM_STATE, UNRECORDED, change_units
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.daemon import START_TIMEOUT_S, print_errors, restart, restart_digest, write_key
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config import topology
from slurm.control import accounting, config

CONFS = tuple(f"/etc/slurm/{name}.conf" for name in ("slurm", "gres", "cgroup", "job_container", "oci"))
TOPOLOGY = f"/etc/slurm/{topology.NAME}"
ACCOUNT = "muster"
LOG = "/var/log/slurm/slurmctld.log"

WAIT_FOR_DBD = f"""\
tries=0
until {accounting.DATABASE_ANSWERS}; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ]; then {print_errors("slurmdbd")}; exit 1; fi
  sleep 0.1
done
"""
# slurmctld notifies systemd before it answers requests, and a slurmd that asks too early sleeps for 10 s.
WAIT_FOR_CONTROLLER = f"""\
tries=0
until timeout 5 {config.PING} 2>&1; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ]; then {print_errors("slurmctld")}; exit 1; fi
  sleep 0.1
done
"""


def plan_controller(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the configuration, update the accounts, then start or reconfigure slurmctld."""
    files = [a for path in _list_files(desired) for a in write_file(facts, path, desired.slurm_files[path].content)]
    if not desired.fleet and TOPOLOGY not in desired.slurm_files:
        files += remove_file(facts, TOPOLOGY)
    return [
        *write_key(facts, desired),
        *files,
        *_plan_accounts(facts, desired),
        *_plan_slurmctld(facts, desired, bool(files)),
    ]


def _list_files(desired: Desired) -> list[str]:
    """Return the paths of the files to write; where Slurm launches nodes, step `power` maintains the topology."""
    topologies = [] if desired.fleet or TOPOLOGY not in desired.slurm_files else [TOPOLOGY]
    return [*CONFS, *topologies]


def _plan_accounts(facts: Facts, desired: Desired) -> list[Action]:
    cluster, users = desired.inventory.cluster, desired.spec.users
    members = {user for c, account, user in facts.associations if (c, account) == (cluster, ACCOUNT) and user}
    changes: list[str] = []
    if (cluster, ACCOUNT, "") not in facts.associations:
        changes += accounting.add_account(cluster, ACCOUNT)
    if added := [u for u in users if u not in members]:
        changes.append(accounting.add_users(cluster, ACCOUNT, added))
    for user in users:
        if users[user].admin != (user in facts.admins):
            changes.append(accounting.set_admin(user, admin=users[user].admin))
    for user in sorted(members - set(users)):
        changes += accounting.delete_user(cluster, ACCOUNT, user)
    if not changes:
        return []
    script = WAIT_FOR_DBD + accounting.run_all(changes)
    log = "/var/log/slurm/slurmdbd.log"
    return [Action("update accounts", script, timeout=START_TIMEOUT_S, log=log, changes=UNRECORDED)]


def _plan_slurmctld(facts: Facts, desired: Desired, changed: bool) -> list[Action]:
    conf_digest = digest(*(desired.slurm_files[path].content for path in _list_files(desired)))
    marker = write_marker("slurm.conf", conf_digest)
    running = "slurmctld" in facts.active and "slurmctld" in facts.enabled
    if not running or facts.markers.get("slurmctld") != restart_digest(desired):
        start = f"{restart('slurmctld', desired)}\n{WAIT_FOR_CONTROLLER}{marker}"
        changes = change_units("slurmctld", trees=(SLURM_STATE,))
        return [Action("start slurmctld", start, timeout=START_TIMEOUT_S, log=LOG, changes=changes)]
    if changed or facts.markers.get("slurm.conf") != conf_digest:
        reconfigure = f"{shlex.join(config.RECONFIGURE)}\n{marker}"
        return [Action("reconfigure Slurm", reconfigure, timeout=START_TIMEOUT_S, log=LOG, changes=UNRECORDED)]
    return []


STEP = Step(
    "controller", "slurm.conf, accounts, slurmctld", plan_controller, roles=("controller",), units=("slurmctld",)
)
