"""Restored jobs: a killed slurmctld starts again, and jobs that ended unseen do not stay in state RUNNING."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write_file
from bootstrap.changes import UNRECORDED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm import control

NAME = "muster-restored-jobs"
PROGRAM = "/etc/muster/check-restored-jobs"
SCRIPT = (Path(control.__file__).parent / "check_restored_jobs.sh").read_text()
UNIT = f"""\
[Unit]
Description=muster: find jobs that ended before slurmctld started
After=slurmctld.service
PartOf=slurmctld.service

[Service]
ExecStart={PROGRAM}
"""
DROP_IN = f"/etc/systemd/system/slurmctld.service.d/{NAME}.conf"
STATE = "/var/lib/slurm/slurmctld"
# slurmctld saves its whole state only every five minutes, and when it stops. If it is killed before the first time,
# slurmctld 26.05 finds its file `clustername`, but not the usage of accounts, and refuses to start. Without that file
# it restores the others that there are, and gets the id of the cluster from slurmdbd.
FORGET_FIRST_START = f"test -e {STATE}/assoc_usage || test -e {STATE}/assoc_usage.old || rm -f {STATE}/clustername"
COMPLETE = "/etc/muster/complete-state"
# slurmctld saves a file of its state as X.new, renames X to X.old, and then X.new to X. If it is killed in between,
# there is no X, and slurmctld 26.05 refuses to start. X.new is complete then: it was written before.
COMPLETE_SCRIPT = f"""\
#!/bin/sh
for new in {STATE}/*.new; do
  file=${{new%.new}}
  if [ -e "$new" ] && [ ! -e "$file" ] && [ -e "$file.old" ]; then mv "$new" "$file"; fi
done
"""
UNITS = {
    f"/etc/systemd/system/{NAME}.service": UNIT,
    DROP_IN: f"[Unit]\nWants={NAME}.service\n\n[Service]\nExecStartPre=/bin/sh -c '{FORGET_FIRST_START}'\n"
    f"ExecStartPre={COMPLETE}\n",
}
# Without the file, the next run writes it again and repeats the reload.
_RELOAD = f"systemctl daemon-reload || {{ rm -f {DROP_IN}; exit 1; }}"


def plan_restored_jobs(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the program and its unit, which slurmctld's unit starts."""
    todo = [*write_file(facts, PROGRAM, SCRIPT, 0o755), *write_file(facts, COMPLETE, COMPLETE_SCRIPT, 0o755)]
    units = [action for path, text in UNITS.items() for action in write_file(facts, path, text)]
    if units:
        # Other units may have made systemd load that of slurmctld, even if it has never been started.
        units.append(Action("reload the units of slurmctld", _RELOAD, changes=UNRECORDED))
    return todo + units


STEP = Step("restored-jobs", "jobs that ended unseen", plan_restored_jobs, roles=("controller",), units=("slurmctld",))
