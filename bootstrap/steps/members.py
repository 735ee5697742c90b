"""The daemons of login and compute nodes, sackd and slurmd, which fetch Slurm's configuration from the controller."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, write_file
from bootstrap.changes import SLURM_STATE, change_units
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.daemon import START_TIMEOUT_S, restart, restart_digest, write_key
from bootstrap.steps.step import Step
from cluster.inventory import Node

SLURMCTLD_PORT = 6817
CONNECT_TIMEOUT_S = 5
# sackd and slurmd do not notify systemd before they have the configuration: without slurmctld, `systemctl restart`
# blocks until it is killed.
WAIT_FOR_SLURMCTLD = """\
began=$(date +%s)
reported=-1
until timeout {connect_s} bash -c {connect} 2>/dev/null; do
  waited=$(($(date +%s) - began))
  if [ $waited -ge {limit_s} ]; then
    echo "slurmctld does not answer at {address} after $waited s" >&2
    exit 1
  fi
  if [ $((waited / 60)) -gt $reported ]; then
    reported=$((waited / 60))
    echo "waiting for slurmctld at {address}, $waited s so far"
  fi
  sleep 1
done
"""

# slurmctld ignores the registration of a node that booted before the cloud was asked to start it, and waits for another
# boot until ResumeTimeout. A job can ask for a static node while its machine sets itself up, so the first start of
# slurmd counts as the boot. No other start may: slurmctld ends the jobs of a node that boots.
FIRST_START = "/etc/systemd/system/slurmd.service.d/muster-first-start.conf"
_STARTED = "/run/muster/slurmd-started"
FIRST_START_UNIT = f"""\
[Service]
ExecStart=
ExecStart=/bin/sh -c '[ -e {_STARTED} ] || boot=-b; exec /usr/sbin/slurmd --systemd $$boot $$SLURMD_OPTIONS'
ExecStartPost=/bin/mkdir -p {_STARTED}
"""
_LOAD_FIRST_START = f"""\
systemctl daemon-reload
if systemctl -q is-active slurmd; then mkdir -p {_STARTED}; fi"""


def plan_login(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Start sackd, which authenticates the users of sbatch, squeue and the other commands."""
    options = f'SACKD_OPTIONS="{_conf_server(desired)}"\n'
    return _plan_daemon(facts, desired, "sackd", options, log="journalctl -u sackd")


def plan_compute(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Start slurmd, which runs the jobs."""
    # The host name of a cloud machine, or of one that exists already, may differ from its node name.
    name = f"-N {node.name} " if desired.cloud or node.adopted else ""
    options = f'SLURMD_OPTIONS="{name}{_conf_server(desired)}"\n'
    todo = write_file(facts, FIRST_START, FIRST_START_UNIT) if desired.cloud else []
    if todo:
        todo.append(Action("load slurmd's unit", _LOAD_FIRST_START))
    return todo + _plan_daemon(facts, desired, "slurmd", options, log="/var/log/slurm/slurmd.log")


def wait_for_slurmctld(host: str, limit_s: float, port: int = SLURMCTLD_PORT) -> Action:
    """Return the action that waits until slurmctld accepts connections, and prints its progress every minute."""
    script = WAIT_FOR_SLURMCTLD.format(
        connect_s=CONNECT_TIMEOUT_S,
        connect=shlex.quote(f"</dev/tcp/{host}/{port}"),
        limit_s=int(limit_s),
        address=f"{host}:{port}",
    )
    fix = f"find out why {host} has not started slurmctld (`journalctl -u slurmctld` there), then run `muster up` again"
    return Action("wait for slurmctld", script, timeout=limit_s + 2 * START_TIMEOUT_S, fix=fix, slow=True)


def _conf_server(desired: Desired) -> str:
    return f"--conf-server {desired.inventory.controller.name}:{SLURMCTLD_PORT}"


def _plan_daemon(facts: Facts, desired: Desired, unit: str, options: str, log: str) -> list[Action]:
    todo = [*write_key(facts, desired), *write_file(facts, f"/etc/default/{unit}", options)]
    running = unit in facts.active and unit in facts.enabled
    if todo or not running or facts.markers.get(unit) != restart_digest(desired, options):
        # A machine that sets itself up does not know how far the controller is.
        if desired.cloud:
            todo.append(wait_for_slurmctld(desired.inventory.controller.name, desired.cloud.controller_timeout_s))
        start = restart(unit, desired, options)
        changes = change_units(unit, trees=(SLURM_STATE,))
        todo.append(Action(f"start {unit}", start, timeout=START_TIMEOUT_S, log=log, changes=changes))
    return todo


LOGIN_STEP = Step("login", "sackd for sbatch and squeue", plan_login, roles=("login",), units=("sackd",))
COMPUTE_STEP = Step("compute", "slurmd", plan_compute, roles=("compute",), units=("slurmd",))
