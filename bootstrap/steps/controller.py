"""controller: configuration, who may use the cluster, slurmctld; a change on a running cluster is a reconfigure."""

from __future__ import annotations

from bootstrap.action import Action, digest, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.slurm_key import key, last_words, restart, restart_digest
from bootstrap.steps.step import Step
from cluster.inventory import Node

CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm/gres.conf", "/etc/slurm/cgroup.conf")
ACCOUNT = "muster"
LOG = "/var/log/slurm/slurmctld.log"
START_S = 60.0

# sacctmgr exits with 1 when there was nothing to do: on a new controller with the accounts of the one before it.
SACCTMGR = """\
mgr() {
  if ! said=$(sacctmgr -i "$@" 2>&1); then
    case $said in *Nothing*|*[Aa]"lready exist"*) ;; *) echo "sacctmgr: $said" | tail -n 1 >&2; return 1 ;; esac
  fi
}
"""
WAIT_FOR_DBD = f"""\
tries=0
until sacctmgr -n show cluster >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ]; then {last_words("slurmdbd")}; exit 1; fi
  sleep 0.1
done
"""
# systemd hears "ready" before slurmctld answers, and a slurmd that asks too early sleeps for 10 s.
WAIT_FOR_CONTROLLER = f"""\
tries=0
until timeout 5 scontrol ping >/dev/null 2>&1; do
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
    script = ""
    if (cluster, ACCOUNT, "") not in facts.associations:
        script += f"mgr add cluster {cluster}\nmgr add account {ACCOUNT} cluster={cluster}\n"
    if added := [u for u in users if u not in known]:
        script += f"mgr add user {','.join(added)} account={ACCOUNT} cluster={cluster}\n"
    for user in users:
        if users[user].admin != (user in facts.admins):
            script += f"mgr modify user {user} set adminlevel={'administrator' if users[user].admin else 'none'}\n"
    for user in sorted(known - set(users)):
        script += f"scancel -u {user} || true\nmgr delete user {user} account={ACCOUNT} cluster={cluster}\n"
    if not script:
        return []
    return [
        Action("update accounts", WAIT_FOR_DBD + SACCTMGR + script, timeout=START_S, log="/var/log/slurm/slurmdbd.log")
    ]


def _daemon(facts: Facts, desired: Desired, changed: bool) -> list[Action]:
    conf = digest(*(desired.slurm_files[path].content for path in CONFS))
    remember = mark("slurm.conf", conf)
    running = "slurmctld" in facts.active and "slurmctld" in facts.enabled
    if not running or facts.markers.get("slurmctld") != restart_digest(desired):
        start = f"{restart('slurmctld', desired)}\n{WAIT_FOR_CONTROLLER}{remember}"
        return [Action("start slurmctld", start, timeout=START_S, log=LOG)]
    if changed or facts.markers.get("slurm.conf") != conf:
        return [Action("reconfigure Slurm", f"scontrol reconfigure\n{remember}", timeout=START_S, log=LOG)]
    return []


STEP = Step("controller", "slurm.conf, accounts, slurmctld", actions, roles=("controller",))
