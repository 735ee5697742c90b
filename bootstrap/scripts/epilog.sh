#!/bin/sh
# Slurm's Epilog: kills the processes that the user of an ended job has left on this node. Slurm ends those of the job
# itself, and those that belong to other jobs are spared: they are in the cgroup of a job, or, where Slurm uses no cgroups,
# some of the user's processes descend from slurmstepd. Admins may be logged in without a job.
# Always succeeds: Slurm would drain the node.
set -u
ADMINS=${ADMINS:-/etc/muster/admins}
FIRST_UID=1000
ROUNDS=10

is_in_job() {
  while read -r line; do
    # A user who has a systemd of their own can create groups of any name below it.
    case $line in */user@*) ;; */job_[0-9]*) return 0 ;; esac
  done <"/proc/$1/cgroup"
  return 1
}

descends_from_slurmstepd() {
  pid=$1
  while [ "$pid" -gt 1 ]; do
    pid=$(awk '$1 == "PPid:" { print $2 }' "/proc/$pid/status") || return 1
    read -r name <"/proc/${pid:-0}/comm" || return 1
    # Only root's: a user can give any process this name.
    if [ "$name" = slurmstepd ] && [ -O "/proc/$pid" ]; then return 0; fi
  done
  return 1
}

# Prints the processes to kill; none while another job of the user runs without cgroups.
list_leftovers() {
  leftovers=""
  for candidate in $(pgrep -U "$SLURM_JOB_UID"); do
    if is_in_job "$candidate"; then continue; fi
    if descends_from_slurmstepd "$candidate"; then return; fi
    leftovers="$leftovers $candidate"
  done
  echo "$leftovers"
}

kill_leftovers() {
  case ${SLURM_JOB_UID:-} in '' | *[!0-9]*) return ;; esac
  if [ "$SLURM_JOB_UID" -lt "$FIRST_UID" ] || grep -qsxF "${SLURM_JOB_USER:-}" "$ADMINS"; then return; fi
  round=0
  # A process may start another one before it is killed.
  while [ $round -lt $ROUNDS ]; do
    pids=$(list_leftovers)
    if [ -z "${pids## }" ]; then return; fi
    # shellcheck disable=SC2086  # a list
    kill -KILL $pids
    logger -t muster-epilog "killed after job ${SLURM_JOB_ID:-} of ${SLURM_JOB_USER:-}:$pids"
    round=$((round + 1))
    sleep 0.1
  done
}

kill_leftovers 2>/dev/null
