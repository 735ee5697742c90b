#!/usr/bin/env bash
# Stop the ranks when Slurm sends a signal: they save, and the job is requeued or ends.
# shellcheck disable=SC2034,SC2154  # all files share their variables

# Slurm sends USR1 early enough to save: before the time limit, and before preemption if slurm.conf has
# preempt_send_user_signal and the job's QOS or partition has a GraceTime. In a job of a few minutes, the warning of the
# time limit is too early to be useful: the ranks watch the clock themselves.
# shellcheck disable=SC2317,SC2329  # called by trap
on_warning() {
  now=$(date +%s)
  if is_preempted || [ -z "${SLURM_JOB_END_TIME:-}" ] || [ "$now" -lt $((SLURM_JOB_END_TIME - 240)) ]; then
    stop "preempted"
  elif [ $((now - ${SLURM_JOB_START_TIME:-0})) -lt $((SLURM_JOB_END_TIME - now)) ]; then
    say "warned of the time limit with more than half of the time left: the ranks stop when it is near"
  else
    stop "time limit"
  fi
}

# In a short job, the time cannot distinguish the two warnings, and a preempted job that does not stop holds its nodes for
# all of GraceTime. Slurm's PreemptTime decides.
is_preempted() {
  case $(job_field "$SLURM_JOB_ID" PreemptTime) in [0-9]*) ;; *) return 1 ;; esac
}

# Slurm sends TERM to this shell when it ends the job: cancelled, out of time, or requeued by Slurm itself. A cancelled
# job must not be requeued. If Slurm still reports the job as running, it is being preempted.
# shellcheck disable=SC2317,SC2329  # called by trap
on_term() {
  if [ "$(job_state "$SLURM_JOB_ID")" = RUNNING ]; then
    stop "preempted"
  else
    ended_by_slurm=yes
    stop "cancelled"
  fi
}

# shellcheck disable=SC2317,SC2329  # called by on_warning and on_term
stop() {
  say "stopping ($1): the ranks save and exit"
  # A stop file that a person wrote takes precedence.
  [ -z "$run" ] || [ -e "$run/stop" ] || { echo "$1" >"$run/.stop.part" && mv "$run/.stop.part" "$run/stop"; } || say "cannot write $run/stop"
}
