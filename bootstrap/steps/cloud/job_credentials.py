"""Credentials for the users' programs, which root fetches at intervals: users cannot reach the metadata service."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, write_file
from bootstrap.bundle import INSTALLED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import JobCredentials, Node

UNIT = "muster-job-credentials"
TIMEOUT_S = 400.0
SERVICE = """\
[Unit]
Description=Credentials for the programs of users
After=network.target

[Service]
Type=oneshot
SyslogIdentifier=muster-job-credentials
WorkingDirectory={folder}
ExecStart={command}
"""
TIMER = """\
[Unit]
Description=Renewal of the credentials for the programs of users

[Timer]
OnBootSec=1
OnUnitActiveSec={interval_s}
AccuracySec=10

[Install]
WantedBy=timers.target
"""
_START = f"""systemctl daemon-reload
systemctl enable -q --now {UNIT}.timer
systemctl start {UNIT}.service || {{
  journalctl -u {UNIT} --since -1h -o cat --no-pager -t {UNIT} | tail -n 1 | grep . >&2 || echo '{UNIT} failed' >&2
  exit 1
}}"""
PROFILE = "/etc/profile.d/muster-job-credentials.sh"


def plan_job_credentials(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Install the service and its timer, fetch the first credentials, and tell login shells where they are."""
    job_credentials = _job_credentials(desired)
    if job_credentials is None:
        return []
    command = shlex.join(job_credentials.command)
    service = SERVICE.format(folder=INSTALLED, command=command)
    todo = [
        *write_file(facts, f"/etc/systemd/system/{UNIT}.service", service),
        *write_file(facts, f"/etc/systemd/system/{UNIT}.timer", TIMER.format(interval_s=job_credentials.interval_s)),
    ]
    if todo or f"{UNIT}.timer" not in facts.active:
        fix = "check the policies of the machine's role and of the role of jobs, then run `muster up` again"
        log = f"journalctl -u {UNIT}"
        todo.append(Action(f"start {UNIT}", _START, timeout=TIMEOUT_S, log=log, fix=fix, slow=True))
    if node.role == "login":
        lines = [f'export {name}="${{{name}:-{value}}}"\n' for name, value in job_credentials.environment.items()]
        todo += write_file(facts, PROFILE, "".join(lines))
    return todo


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clusters whose jobs get no credentials."""
    return "" if _job_credentials(desired) else "jobs get no credentials"


def _job_credentials(desired: Desired) -> JobCredentials | None:
    return desired.cloud.job_credentials if desired.cloud else None


STEP = Step(
    "job-credentials",
    "credentials for the programs of users",
    plan_job_credentials,
    roles=("login", "compute"),
    skip=skip,
    units=(f"{UNIT}.timer",),
)
