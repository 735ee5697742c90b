"""Isolation: users reach a compute node only through a job there, and leave nothing behind when it ends."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write_access_file, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import health
from bootstrap.steps.cloud import imex
from bootstrap.steps.step import Step
from cluster.inventory import Node
from cluster.spec import ClusterSpec
from cluster.user_ids import FIRST_UID
from slurm.health.admins import ADMINS_FILE
from slurm.health.job_processes import JOB_GROUP, USERS_GROUP

PAM_SSHD = "/etc/pam.d/sshd"
# pam_slurm_adopt denies users without a job here, and moves the sessions of those who have one into it. pam_systemd
# (in common-session) would move them out again. pam_listfile comes first, so that admins stay outside of their jobs.
PAM = """\
# Written by muster: users log in only with a job on this node.
@include common-auth
account  required    pam_nologin.so
@include common-account
account  sufficient  pam_listfile.so item=user sense=allow file={admins} onerr=fail quiet
account  required    pam_slurm_adopt.so nodename={node} action_adopt_failure=deny action_generic_failure=deny
session  required    pam_loginuid.so
session  optional    pam_keyinit.so force revoke
session  required    pam_unix.so
session  required    pam_limits.so
session  optional    pam_umask.so
session  required    pam_env.so
session  required    pam_env.so envfile=/etc/default/locale
@include common-password
"""
_EPILOG_VALUES = {
    "@ADMINS@": ADMINS_FILE,
    "@USERS_GROUP@": USERS_GROUP,
    "@JOB_GROUP@": JOB_GROUP,
    "@FIRST_UID@": str(FIRST_UID),
}


def list_admins(spec: ClusterSpec, node: Node) -> list[str]:
    """Return the users who may log in to a node at any time, with those as whom muster logs in."""
    admins = (name for name, user in spec.users.items() if user.admin)
    owner = [node.adopted.user] if node.adopted else []
    return list(dict.fromkeys(["root", *admins, node.ssh_user, *owner]))


def render_epilog(*, gpus: bool) -> str:
    """Return the program that Slurm runs after a job; with real GPUs it also stops IMEX, and checks them."""
    script = (Path(__file__).parent.parent / "scripts" / "epilog.sh").read_text()
    for placeholder, value in _EPILOG_VALUES.items():
        script = script.replace(placeholder, value)
    return script + (health.render_exec_line("epilog") if gpus else "exit 0\n")


def plan_isolation(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the list of admins, the rules for logins, and the epilog."""
    gpus = (node.gpus.count > 0 and node.gpus.kind == "real") or not imex.skip(facts, node, desired)
    return [
        *write_file(facts, ADMINS_FILE, "".join(f"{name}\n" for name in list_admins(desired.spec, node))),
        *write_access_file(facts, PAM_SSHD, PAM.format(admins=ADMINS_FILE, node=node.name)),
        *write_file(facts, f"{health.ETC}/epilog", render_epilog(gpus=gpus), 0o755),
    ]


STEP = Step("isolation", "logins with a job only, no leftovers of jobs", plan_isolation, roles=("compute",))
