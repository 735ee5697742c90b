#!/usr/bin/env bash
# Choose the folder of the run and lock it, so that no other job trains in it.
# shellcheck disable=SC2034,SC2154  # all files share their variables

# A folder given as an override takes precedence over the default.
pick_run_folder() {
  default_run=$SLURM_SUBMIT_DIR/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID
  run=${RUN_FOLDER:-$default_run}
  for argument in "$@"; do
    case $argument in run.folder=*) run=${argument#run.folder=} ;; esac
  done
  # The shell that ran sbatch leaves ~ as it is inside of an argument.
  case $run in \~ | \~/*) run=$HOME${run#\~} ;; esac
  case $run in
    *[{}]*) die "run.folder=$run: a job needs a folder without placeholders, set RUN_FOLDER" ;;
    /*) ;;
    *) run=$SLURM_SUBMIT_DIR/$run ;;
  esac
}

# Slurm shows jobs of other users only to admins: for anyone else, one that is not shown may still be running.
refuse_hidden_job() {
  read -r uid user < <(stat -c '%u %U' "$run/job") || true
  [ "$uid" != "$EUID" ] || return 0
  level=$(timeout 20 sacctmgr -nP show user "$(id -un)" format=adminlevel 2>/dev/null) || level=None
  case "$level: $(timeout 20 scontrol show job "$1" 2>&1)" in
    Administrator:*"Invalid job id"* | Operator:*"Invalid job id"*) return 0 ;;
  esac
  die "job $1 of $user may be training in $run, or may be over: Slurm does not show it to you." \
    "Ask $user, and delete $run/job if it is over, or set another RUN_FOLDER"
}

# Job ids start at 1 again on a new cluster, whose storage may be that of an earlier one. If the default folder was used
# before this job was submitted, it belongs to another job of the same id, which this one must not continue. Only a first
# start asks, because a requeue changes the time of submission. A minute allows for clocks that differ.
refuse_folder_of_earlier_cluster() {
  [ "$run" = "$default_run" ] && [ -z "${RUN_FOLDER:-}" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || return 0
  used=$(stat -c %Y "$run/job" 2>/dev/null) || return 0
  submitted=$(SLURM_TIME_FORMAT=standard timeout 20 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%V 2>/dev/null) || return 0
  [ -n "$submitted" ] && submitted=$(date -d "$submitted" +%s 2>/dev/null) || return 0
  [ "$((used + 60))" -lt "$submitted" ] || return 0
  die "$run is the folder of an earlier job $SLURM_JOB_ID: the ids of this cluster have started at 1 again." \
    "Set RUN_FOLDER=$run to continue that run, or another RUN_FOLDER for a new one"
}

# Locks the folder before anything in it changes. The lock decides, also if scontrol does not answer; Slurm's word that
# the last job has ended only saves the time of watching whether it still runs. The ranks take the lock over.
claim_run_folder() {
  refuse_folder_of_earlier_cluster
  mkdir -p "$run" 2>/dev/null || die "cannot write to $run: submit from your home directory, or set RUN_FOLDER"
  owner=$(cat "$run/job" 2>/dev/null) || owner=""
  joined="$run/.joined-$attempt"
  ended=()
  if [ -n "$owner" ] && [ "$owner" != "$SLURM_JOB_ID" ]; then
    case $(job_state "$owner") in
      RUNNING | COMPLETING | SUSPENDED) die "job $owner is training in $run: wait for it, or set another RUN_FOLDER" ;;
      "") refuse_hidden_job "$owner" ;;
      COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | PREEMPTED | BOOT_FAIL | OUT_OF_MEMORY | DEADLINE) ended=("$owner") ;;
    esac
  fi
  claim=$(PYTHONPATH=$MUSTER_ROOT "$MUSTER_ROOT/env/bin/python" -S -m trainer.checkpoint.claim "$run" $$ "${ended[@]}") ||
    die "${claim:-cannot lock $run}; or set another RUN_FOLDER"
  trap release_run_folder EXIT
  rm -rf "$run"/.joined-*
  mkdir -p "$joined" 2>/dev/null || die "cannot write to $run: submit from your home directory, or set RUN_FOLDER"
  echo "$SLURM_JOB_ID" >"$run/job"
  # The outcome and the stop request of the last attempt do not apply to this one. A person's stop file stays.
  set_outcome_aside
  case $(cat "$run/stop" 2>/dev/null) in "time limit" | preempted | cancelled) rm -f "$run/stop" ;; esac
}

# A run that has ended keeps its outcome if this start is refused or ends before the trainer has accepted it: until then
# the outcome waits in another file, which the trainer removes.
set_outcome_aside() {
  case $(read_outcome '\1') in
    finished | stopped | broken) mv -f "$run/outcome.json" "$run/.outcome-before.json" ;;
    *) rm -f "$run/outcome.json" ;;
  esac
}

# The holder of the lock has ended if the ranks have taken it over, and its number may be that of another process now.
# shellcheck disable=SC2317,SC2329  # called by trap
release_run_folder() {
  rm -rf "$joined"
  if [ -e "$run/.outcome-before.json" ] && [ ! -e "$run/outcome.json" ]; then
    mv -f "$run/.outcome-before.json" "$run/outcome.json"
  fi
  is_claimed && kill "$claim" 2>/dev/null || return 0
  for _ in {1..50}; do
    is_claimed || return 0
    sleep 0.1
  done
}

# A process that has ended has no command line, also while its parent, which is not this script, has not waited for it:
# `kill -0` would still find that one, for as long as it takes the parent.
# shellcheck disable=SC2317,SC2329  # called by trap
is_claimed() {
  case $(tr '\0' ' ' 2>/dev/null <"/proc/$claim/cmdline") in
    *" trainer.checkpoint.claim $run "*) ;;
    *) return 1 ;;
  esac
}
