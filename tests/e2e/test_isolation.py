"""Users of one node neither see nor reach each other's jobs, and reach the node itself only through a job of their own.

alice is attacked, carol attacks, bob is an admin.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from infra.targets import facts
from slurm.config.render import PRIVATE_FOLDERS
from slurm.control.named_jobs import LIST_RUNNING, parse_running
from slurm.control.snapshot import TAKE, parse_snapshot
from tests.harness import Stack, wait_until

NODE = "gpu-1"
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
SHELL = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"
# Everyone may read the files, so that only the place protects them.
SECRETS = f"""umask 0
for folder in {" ".join(FOLDERS)}; do echo secret >$folder/of-alice; done
echo $$ >~/isolation.pid
exec sleep 600"""


@dataclass(frozen=True)
class Victim:
    """A running job of alice's."""

    stack: Stack
    job: str
    pid: str

    def attack(self, script: str) -> str:
        """Run a script in a job of carol's on the same node, and return all its output."""
        return run_job(self.stack, "carol", script)

    def end(self) -> None:
        self.stack.ssh("login", f"scancel {self.job}", user="alice")
        wait_for_end(self.stack, self.job)


@pytest.fixture
def victim(cluster: Stack) -> Iterator[Victim]:
    submit = f"sbatch --parsable -p gpu -w {NODE} -n1 -o /dev/null <<'JOB'\n#!/bin/bash\n{SECRETS}\nJOB"
    job = cluster.ssh("login", f"rm -f ~/isolation.pid; {submit}", user="alice")
    read_pid = "cat ~/isolation.pid 2>/dev/null || true"
    wait_until(lambda: cluster.ssh("login", read_pid, user="alice") != "", f"job {job} runs")
    running = Victim(cluster, job, cluster.ssh("login", read_pid, user="alice"))
    yield running
    running.end()


def run_job(stack: Stack, user: str, script: str, *options: str) -> str:
    # On a busy machine, srun would also print that it waits for the node.
    return stack.ssh(
        "login", f"srun -Q -p gpu -w {NODE} -n1 {' '.join(options)} bash <<'JOB' 2>&1 || true\n{script}\nJOB", user=user
    )


def wait_for_end(stack: Stack, job: str) -> None:
    listed = f"squeue -h -j {job} 2>/dev/null || true"
    wait_until(lambda: stack.ssh("controller", listed, user="root") == "", f"job {job} has ended")


@pytest.mark.attack(3)
def test_files_in_temporary_folders_are_visible_in_their_own_job_only(victim: Victim) -> None:
    assert victim.attack(f"ls -A {' '.join(FOLDERS)}").split() == [f"{folder}:" for folder in sorted(FOLDERS)]
    assert "of-alice" not in victim.attack(
        f"find {PRIVATE_FOLDERS} /proc/{victim.pid}/root/tmp /proc/{victim.pid}/cwd/"
    )
    find = f"find {PRIVATE_FOLDERS} -name of-alice"
    # On disk are those of /tmp and /var/tmp; /dev/shm is in memory.
    assert len(victim.stack.ssh(NODE, find, user="root").splitlines()) == 2
    own = f"srun --jobid={victim.job} --overlap cat {' '.join(f'{folder}/of-alice' for folder in FOLDERS)}"
    assert victim.stack.ssh("login", own, user="alice").split() == ["secret"] * 3
    victim.end()
    wait_until(lambda: victim.stack.ssh(NODE, find, user="root") == "", "the files are removed")


@pytest.mark.attack(3)
def test_jobs_accounts_and_usage_are_visible_to_their_owner_and_admins_only(victim: Victim) -> None:
    queries = (
        "squeue -h -o %u",
        f"scontrol show job {victim.job} --oneliner 2>&1 | grep -o 'UserId=[a-z]*' | cut -d= -f2",
        "sacct -n -P -X -a -S now-10minutes -o User",
        "sacctmgr -n -P show associations format=User",
        "sshare -n -P -a -o User",
        # Shows the present hour only if it starts there.
        "sreport -n -P user topusage start=$(date +%FT%H:00:00) format=Login -t seconds",
    )

    def list_users(user: str) -> list[bool]:
        return ["alice" in victim.stack.ssh("login", f"{query} || true", user=user).split() for query in queries]

    wait_until(lambda: list_users("alice")[:5] == [True] * 5, "slurmdbd has recorded the job")
    # By itself, slurmdbd adds up usage when an hour is over.
    hours = "$(date -d '-1 hour' +%FT%H:00:00) $(date -d '+1 hour' +%FT%H:00:00)"
    victim.stack.ssh("controller", f"sacctmgr -i roll {hours}", user="root")
    assert list_users("alice") == [True] * len(queries)
    assert list_users("bob") == [True] * len(queries)
    assert list_users("carol") == [False] * len(queries)


@pytest.mark.attack(3)
def test_the_name_of_a_job_forges_nothing_in_what_admins_see(victim: Victim) -> None:
    stack = victim.stack
    forged = "999|alice|forged\n998|2000|gpu|RUNNING|2026-11-16T19:00:00|None|forged\n== total\n7\n---muster---"
    name = shlex.quote(f"x\n{forged}\n\x1b[2J\t\\n|end")
    submit = f"sbatch --parsable -p gpu -w {NODE} -n1 -o /dev/null -J {name} --wrap 'sleep 600'"
    job = stack.ssh("login", submit, user="carol")

    def as_root(script: str) -> str:
        return stack.ssh("controller", script, user="root")

    try:
        wait_until(lambda: as_root(f"squeue -h -j {job} -o %T") == "RUNNING", f"job {job} runs")
        assert "\n999|alice|forged\n" in as_root("squeue -h -o %j"), "Slurm prints the name as it is"
        slurm = facts.parse(as_root(facts.SCRIPT))
        assert slurm.problem == ""
        snapshot = parse_snapshot(as_root(TAKE))
        assert snapshot.total > 7
        names = {
            "running": {listed.id: listed.name for listed in parse_running(as_root(LIST_RUNNING)).listed},
            "status": {listed.id: listed.name for listed in slurm.jobs},
            "snapshot": {listed.id: listed.name for listed in snapshot.queue.values()},
        }
        for place, listed in names.items():
            assert {victim.job, job} <= listed.keys(), place
            assert not {"998", "999"} & listed.keys(), place
            assert listed[job] == f"x?{forged}??[2J?\\n|end".replace("\n", "?"), place
    finally:
        stack.ssh("login", f"scancel {job}", user="carol")
        wait_for_end(stack, job)


@pytest.mark.attack(3)
def test_processes_and_jobs_of_others_cannot_be_ended_or_joined(victim: Victim) -> None:
    out = victim.attack(f"kill -KILL {victim.pid}; scancel {victim.job}; srun --jobid={victim.job} --overlap id -un")
    assert "Operation not permitted" in out
    assert "Access/permission denied" in out
    assert "alice" not in out.split()
    assert victim.stack.ssh(NODE, f"ps -o user= -p {victim.pid}", user="root") == "alice"


@pytest.mark.attack(3)
def test_a_user_without_a_job_cannot_log_in_to_a_compute_node(victim: Victim) -> None:
    refused = victim.stack.ssh("login", f"{SHELL} {NODE} id -un 2>&1 || true", user="carol")
    assert "pam_slurm_adopt" in refused
    assert "carol" not in refused.split()
    # A job on one node opens no other.
    elsewhere = victim.stack.ssh("login", f"{SHELL} gpu-2 id -un 2>&1 || true", user="alice")
    assert "pam_slurm_adopt" in elsewhere
    assert victim.stack.ssh("login", f"{SHELL} {NODE} id -un", user="bob") == "bob", "admins need no job"


@pytest.mark.attack(3)
def test_a_login_becomes_part_of_the_job_and_ends_with_it(victim: Victim) -> None:
    login = f"{SHELL} {NODE} 'cat /proc/self/cgroup; echo memory; cat /tmp/of-alice'"
    groups, _, secret = victim.stack.ssh("login", login, user="alice").partition("memory\n")
    assert re.search(rf"/job_{victim.job}/", groups)
    assert secret == "secret"
    victim.stack.ssh("login", f"nohup {SHELL} {NODE} sleep 4321 >/dev/null 2>&1 </dev/null &", user="alice")
    count = "pgrep -cxf 'sleep 4321' || true"
    wait_until(lambda: victim.stack.ssh(NODE, count, user="root") == "1", "the login runs")
    victim.end()
    wait_until(lambda: victim.stack.ssh(NODE, count, user="root") == "0", "the login has ended")


@pytest.mark.attack(3)
def test_only_admins_can_log_in_to_the_controller(cluster: Stack) -> None:
    for node in ("login", NODE):
        script = f"{SHELL} controller id -un 2>&1 || true"
        out = cluster.ssh("login", script, user="carol") if node == "login" else run_job(cluster, "carol", script)
        assert "Permission denied" in out
        assert "carol" not in out.split()
    assert cluster.ssh("login", f"{SHELL} controller id -un", user="bob") == "bob"


@pytest.mark.attack(3)
@pytest.mark.fault(34)
def test_what_a_user_left_outside_of_jobs_is_killed_when_their_job_ends(victim: Victim) -> None:
    """Processes that escape from their job are imitated by root: an ordinary user has no way out of a cgroup."""
    stack = victim.stack
    for user in ("alice", "bob", "carol"):
        stack.ssh(NODE, f"runuser -u {user} -- setsid sleep 9876 >/dev/null 2>&1 </dev/null &", user="root")

    def list_owners() -> list[str]:
        return sorted(stack.ssh(NODE, "ps -o user= -p $(pgrep -xf 'sleep 9876' | paste -sd,)", user="root").split())

    try:
        wait_until(lambda: list_owners() == ["alice", "bob", "carol"], "all run")
        assert run_job(stack, "carol", "echo ended") == "ended"
        wait_until(lambda: list_owners() == ["alice", "bob"], "carol's is killed")
        # alice has another job on the node: it goes on.
        assert run_job(stack, "alice", "echo ended") == "ended"
        wait_until(lambda: list_owners() == ["bob"], "alice's is killed")
        assert run_job(stack, "bob", "echo ended") == "ended"
        assert stack.ssh(NODE, f"ps -o user= -p {victim.pid}", user="root") == "alice"
        assert list_owners() == ["bob"], "admins may work on a node without a job"
        state = f"sinfo -h -n {NODE} -p gpu -o %T"
        wait_until(lambda: stack.ssh("login", state) == "mixed", "no epilog has drained the node")
    finally:
        stack.ssh(NODE, "pkill -xf 'sleep 9876' || true", user="root")


def test_ranks_and_steps_of_a_job_share_its_folders(cluster: Stack) -> None:
    script = """#!/bin/bash
set -e
echo from-batch >/tmp/file
sbcast ~/isolation.txt "$TMPDIR/broadcast"
srun -n2 bash -c 'cd /dev/shm; echo $SLURM_PROCID >$SLURM_PROCID; until [ -e 0 ] && [ -e 1 ]; do sleep 0.1; done'
srun -n1 --overlap cat /tmp/file /dev/shm/0 /dev/shm/1 "$TMPDIR/broadcast" >~/isolation.out
touch ~/isolation.checkpoint
"""
    submit = f"sbatch -W -p gpu -N1 -n2 -o /dev/null <<'JOB'\n{script}JOB"
    cluster.ssh("login", f"echo broadcast >~/isolation.txt; {submit}", user="alice")
    shared = "cat ~/isolation.out && ls ~/isolation.checkpoint && rm ~/isolation.*"
    assert cluster.ssh("login", shared, user="alice").split() == [
        "from-batch",
        "0",
        "1",
        "broadcast",
        "/shared/home/alice/isolation.checkpoint",
    ]
