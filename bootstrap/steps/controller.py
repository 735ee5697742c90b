"""controller: configuration, who may use the cluster, slurmctld; a change on a running cluster is a reconfigure."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.slurm_key import key, last_words, restart, restart_digest
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.control import accounting, config

CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm/gres.conf", "/etc/slurm/cgroup.conf")
ACCOUNT = "muster"
LOG = "/var/log/slurm/slurmctld.log"
START_S = 60.0

WAIT_FOR_DBD = f"""\
tries=0
until {accounting.DATABASE_ANSWERS}; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ]; then {last_words("slurmdbd")}; exit 1; fi
  sleep 0.1
done
"""
# systemd hears "ready" before slurmctld answers, and a slurmd that asks too early sleeps for 10 s.
WAIT_FOR_CONTROLLER = f"""\
tries=0
until timeout 5 {config.PING} 2>&1; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ]; then {last_words("slurmctld")}; exit 1; fi
  sleep 0.1
done
"""


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    files = [a for path in CONFS for a in write(facts, path, desired.slurm_files[path].content)]
    return [*key(facts, desired), *files, *_people(facts, desired), *_daemon(facts, desired, bool(files))]


def _people(facts: Facts, desired: Desired) -> list[Action]:
    cluster, users = desired.inventory.cluster, desired.spec.users
    known = {user for c, account, user in facts.associations if (c, account) == (cluster, ACCOUNT) and user}
    changes: list[str] = []
    if (cluster, ACCOUNT, "") not in facts.associations:
        changes += accounting.add_account(cluster, ACCOUNT)
    if added := [u for u in users if u not in known]:
        changes.append(accounting.add_users(cluster, ACCOUNT, added))
    for user in users:
        if users[user].admin != (user in facts.admins):
            changes.append(accounting.set_admin(user, admin=users[user].admin))
    for user in sorted(known - set(users)):
        changes += accounting.delete_user(cluster, ACCOUNT, user)
    if not changes:
        return []
    script = WAIT_FOR_DBD + accounting.run_all(changes)
    return [Action("update accounts", script, timeout=START_S, log="/var/log/slurm/slurmdbd.log")]


def _daemon(facts: Facts, desired: Desired, changed: bool) -> list[Action]:
    conf = digest(*(desired.slurm_files[path].content for path in CONFS))
    remember = mark("slurm.conf", conf)
    running = "slurmctld" in facts.active and "slurmctld" in facts.enabled
    if not running or facts.markers.get("slurmctld") != restart_digest(desired):
        start = f"{restart('slurmctld', desired)}\n{WAIT_FOR_CONTROLLER}{remember}"
        return [Action("start slurmctld", start, timeout=START_S, log=LOG)]
    if changed or facts.markers.get("slurm.conf") != conf:
        return [Action("reconfigure Slurm", f"{shlex.join(config.RECONFIGURE)}\n{remember}", timeout=START_S, log=LOG)]
    return []


STEP = Step("controller", "slurm.conf, accounts, slurmctld", actions, roles=("controller",))
