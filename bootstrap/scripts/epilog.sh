#!/bin/sh
# Slurm's Epilog: kills the processes that the user of an ended job has left on this node. Slurm ends those of the job
# itself, and those that belong to other jobs are spared: they are in the cgroup of a job, or, where Slurm uses no cgroups,
# some of the user's processes descend from slurmstepd. Admins may be logged in without a job.
# Always succeeds: Slurm would drain the node.
set -u
ADMINS=@ADMINS@
# The patterns of slurm/health/job_processes.py.
USERS_GROUP='@USERS_GROUP@'
JOB_GROUP='@JOB_GROUP@'
FIRST_UID=@FIRST_UID@
ROUNDS=10
# The packages install links to the programs.
SLURMD=$(readlink -f /usr/sbin/slurmd)
SLURMSTEPD=$(readlink -f /usr/sbin/slurmstepd)

is_in_job() {
  awk -v "users=$USERS_GROUP" -v "job=$JOB_GROUP" \
    '{ path = $0 "/" } path !~ users && path ~ job { found = 1 } END { exit !found }' "/proc/$1/cgroup"
}

# Prints a value of a process: the parent's id (PPid), or the real user id (Uid).
read_status() {
  awk -v "name=$2:" '$1 == name { print $2 }' "/proc/$1/status"
}

# Tells whether root runs this program as the process. A user can choose the name of a process, and can start a program of
# root's that changes its effective user.
is_daemon() {
  program=$(readlink "/proc/$1/exe") || return 1
  # An upgrade of Slurm replaces the files of running daemons.
  [ "${program% (deleted)}" = "$2" ] && [ "$(read_status "$1" Uid)" = 0 ]
}

# slurmd acts as the user for a moment, for example to receive a file from sbcast.
is_helper_of_slurmd() {
  parent=$(read_status "$1" PPid)
  [ -n "$parent" ] && is_daemon "$parent" "$SLURMD"
}

descends_from_slurmstepd() {
  ancestor=$1
  while [ "$ancestor" -gt 1 ]; do
    ancestor=$(read_status "$ancestor" PPid)
    if [ -z "$ancestor" ]; then return 1; fi
    if is_daemon "$ancestor" "$SLURMSTEPD"; then return 0; fi
  done
  return 1
}

# Prints the processes to kill; none while another job of the user runs without cgroups.
list_leftovers() {
  leftovers=""
  for candidate in $(pgrep -U "$SLURM_JOB_UID"); do
    if is_in_job "$candidate" || is_helper_of_slurmd "$candidate"; then continue; fi
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
