"""Slurm's accounting: whether slurmdbd answers, accounts and users that may use the cluster, records of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CHECK_ACCOUNTING = "sacct -a -n -X"
"""Shell command that fails if slurmdbd does not answer."""
SHOW_CLUSTERS = ("sacctmgr", "-n", "show", "cluster")
"""Command that fails if slurmdbd or its database does not answer."""
DATABASE_ANSWERS = f"{' '.join(SHOW_CLUSTERS)} >/dev/null 2>&1"
"""Shell command that succeeds once slurmdbd answers."""

LIST_ASSOCIATIONS = "sacctmgr -nP list assoc format=cluster,account,user"
"""Command that prints `cluster|account|user` lines; the user is empty for the account itself."""
LIST_USERS = "sacctmgr -nP list user format=user,adminlevel"
"""Command that prints `user|level` lines."""

LIST_RECORDS = "sacct -X -n -P -D -S now-1days -o JobID,JobName,State"
"""Command that prints `id|name|state` lines of the caller's jobs of the last day, one for each attempt."""


@dataclass(frozen=True)
class JobRecord:
    """An attempt of a job, or of a task of an array, in accounting."""

    name: str
    task: int
    """Number in the array; 0 if the job is none."""
    state: str


def parse_records(text: str) -> list[JobRecord]:
    """Parse LIST_RECORDS; skip array tasks that have not been started, which share a line."""
    records = []
    for line in text.splitlines():
        job, _, others = line.partition("|")
        name, _, state = others.rpartition("|")
        task = job.partition("_")[2] or "0"
        if state and task.isdigit():
            records.append(JobRecord(name, int(task), state.split()[0]))
    return records


# sacctmgr exits with 1 if there is nothing to do, e.g. on a new controller that has the accounts of the previous one.
_DEFINE = """\
mgr() {
  if ! answer=$(sacctmgr -i "$@" 2>&1); then
    case $answer in *Nothing*|*[Aa]"lready exist"*) ;; *) echo "sacctmgr: $answer" | tail -n 1 >&2; return 1 ;; esac
  fi
}
"""


def run_all(changes: Iterable[str]) -> str:
    """Return a shell script that makes these changes and stops at the first error."""
    return _DEFINE + "".join(f"{change}\n" for change in changes)


def add_account(cluster: str, account: str) -> list[str]:
    """Return the changes that add a cluster and an account in it."""
    return [f"mgr add cluster {cluster}", f"mgr add account {account} cluster={cluster}"]


def add_users(cluster: str, account: str, users: Sequence[str]) -> str:
    """Return the change that lets users run jobs under an account."""
    return f"mgr add user {','.join(users)} account={account} cluster={cluster}"


def set_admin(user: str, *, admin: bool) -> str:
    """Return the change that grants or revokes a user's administrator level."""
    return f"mgr modify user {user} set adminlevel={'administrator' if admin else 'none'}"


def delete_user(cluster: str, account: str, user: str) -> list[str]:
    """Return the changes that cancel a user's jobs and remove the user from an account."""
    return [f"scancel -u {user} || true", f"mgr delete user {user} account={account} cluster={cluster}"]
