"""slurmctld is killed while jobs wait and are submitted, and uses the id of a job that still runs here again."""

from __future__ import annotations

import time

import pytest

from tests.faults.test_controller_outage import read_state
from tests.faults.test_cut_off_node import read_node
from tests.harness import Stack, wait_until

# slurmctld saves its state at most 5 s after a change (SAVE_MAX_WAIT of its source), checked every second.
SAVED_S = 7.0
SUBMITTED = 100
KILLS = 3
KILL = "systemctl kill -s KILL slurmctld"
# Each line: when sbatch began, when it had answered, and the name of the job that it accepted.
SUBMIT = f"""cd ~ && rm -f accepted && for number in $(seq {SUBMITTED}); do
    began=$(date +%s.%N)
    sbatch --hold --parsable -p gpu -N1 -J crash-$number --wrap true >/dev/null 2>&1 &&
      echo "$began $(date +%s.%N) crash-$number" >>accepted
    sleep 0.1
  done"""
KILL_MEANWHILE = f"""for kill in $(seq {KILLS}); do
    sleep 8
    began=$(date +%s.%N)
    {KILL}
    echo "$began $(date +%s.%N)" >>/tmp/kills
  done"""
NODE = "gpu-1"
STATE = "/var/lib/slurm/slurmctld"
SAVE = f"rm -rf /root/state && cp -a {STATE} /root/state"
# Stopped and not killed: systemd would start it again at once, with the newer state.
FORGET = (
    f"""systemctl stop slurmctld && rm -rf {STATE}/* && cp -a /root/state/. {STATE}/ && systemctl start slurmctld"""
)
RESUBMIT = f"""cd ~; for try in $(seq 100); do
    sbatch --parsable -p gpu -w {NODE} -N1 -o again.out --wrap hostname 2>/dev/null && exit 0; sleep 0.1
  done; exit 1"""
ATTEMPTS = 5
# A node ends a forgotten job as soon as slurmctld answers; its step must be slow to end, or nothing is left of it.
STEPS = "pgrep -f '^slurmstepd: .{job}[.]'"
BATCH_STEP = "pgrep -f '^slurmstepd: .{job}[.]batch' || true"


@pytest.mark.nightly
@pytest.mark.fault(3)
def test_jobs_that_sbatch_accepted_survive_a_crash_except_those_of_the_last_seconds(healthy: Stack) -> None:
    waiting = healthy.ssh("controller", "cd ~ && sbatch --hold --parsable -p gpu -N1 -J waiting --wrap true")
    time.sleep(SAVED_S)
    healthy.ssh("controller", f"rm -f /tmp/kills; ({KILL_MEANWHILE}) >/dev/null 2>&1 </dev/null &", user="root")
    healthy.ssh("controller", SUBMIT)
    wait_until(
        lambda: healthy.ssh("controller", "wc -l </tmp/kills", user="root") == str(KILLS), "slurmctld was killed"
    )
    wait_until(lambda: healthy.ssh("controller", "scontrol ping | grep -c UP || true") == "1", "slurmctld is back")
    kills = [line.split() for line in healthy.ssh("controller", "cat /tmp/kills", user="root").splitlines()]
    accepted = [line.split() for line in healthy.ssh("controller", "cat ~/accepted").splitlines()]
    queued = set(healthy.ssh("controller", "squeue -h -t all -o %j").split())
    state = read_state(healthy, waiting)
    healthy.ssh("controller", "squeue -h -t PD -o '%A %j' | awk '/ crash-| waiting/ { print $1 }' | xargs -r scancel")
    lost = [(float(began), float(ended), name) for began, ended, name in accepted if name not in queued]
    unexplained = [
        name
        for began, ended, name in lost
        if not any(float(first) - SAVED_S <= ended and began <= float(last) for first, last in kills)
    ]
    print(f"{len(accepted)} of {SUBMITTED} accepted, {len(lost)} lost in {KILLS} kills")
    assert state == "PENDING"
    assert len(accepted) >= SUBMITTED // 2
    assert unexplained == []


@pytest.mark.nightly
@pytest.mark.fault(3)
def test_a_node_that_slurm_drained_for_a_duplicate_id_returns_by_itself(healthy: Stack) -> None:
    """After a crash, slurmctld has forgotten a job, and gives its id to the next one while the node still runs it."""
    # A round of the node itself may already have returned it, so the reason is that of the moment of the drain.
    reasons = (cause_duplicate(healthy) for _ in range(ATTEMPTS))
    assert next(filter(None, reasons), "") == "Duplicate jobid"
    # A node looks every five minutes whether Slurm has drained it, and slurmd starts a round every minute.
    healthy.ssh(NODE, "rm -f /run/muster/drain-looked-up; for round in 1 2 3; do /etc/muster/health; done", user="root")
    wait_until(lambda: not read_node(healthy, NODE).out_of_service, "the node is back")
    wait_until(lambda: healthy.ssh("controller", "cat ~/again.out 2>/dev/null || true") == NODE, "the new job has run")
    assert healthy.ssh(NODE, "pgrep -f 'sleep 3333' || true", user="root") == ""


def cause_duplicate(stack: Stack) -> str:
    """Let slurmctld forget a running job and use its id again; return the reason if it drains the node."""
    stack.ssh("controller", "rm -f ~/again.out")
    time.sleep(SAVED_S)
    stack.ssh("controller", SAVE, user="root")
    job = stack.ssh("controller", f"cd ~ && sbatch --parsable -p gpu -w {NODE} -N1 --wrap 'sleep 3333'")
    wait_until(lambda: read_state(stack, job) == "RUNNING", "the job runs")
    # Slurm says so before the node has started the step.
    wait_until(lambda: bool(stack.ssh(NODE, BATCH_STEP.format(job=job), user="root")), "its step runs")
    reason = ""

    def is_decided() -> bool:
        nonlocal reason
        reason = read_node(stack, NODE).reason
        return bool(reason) or bool(stack.ssh("controller", "cat ~/again.out 2>/dev/null || true"))

    try:
        stack.ssh(NODE, f"kill -STOP $({STEPS.format(job=job)})", user="root")
        stack.ssh("controller", FORGET, user="root")
        assert stack.ssh("controller", RESUBMIT) == job
        wait_until(is_decided, "the node has run or refused the new job")
    finally:
        stack.ssh(NODE, f"kill -CONT $({STEPS.format(job=job)}) || true", user="root")
    return reason
