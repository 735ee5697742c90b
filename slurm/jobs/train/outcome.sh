#!/usr/bin/env bash
# Decide what follows the end of the ranks: the end of the job, or another attempt without the nodes that failed.
# shellcheck disable=SC2034,SC2154  # all files share their variables

# Names the nodes that did not join or that Slurm has taken out of service, and remembers them in lost_nodes.
report_lost_nodes() {
  for host in $hosts; do
    [ -e "$joined/$host" ] || { say "$host did not join: it never reached $head at $head_addr" && lost_nodes+="$host "; }
  done
  while read -r host state; do
    [ -z "$host" ] || { say "$host is $state" && lost_nodes+="$host "; }
  done < <(timeout 20 sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,fail,drain --format="%N %T" 2>/dev/null | sort -u)
}

# Treats a node whose GPU failed, or that computed wrong results, as lost: Slurm may consider it healthy, and the next
# attempt would fail on it again.
report_failed_device() {
  read -r failed_cause failed_host < <(sed -n 's/.*"failure": {"cause": "\(device\|corruption\)", "rank": [0-9]*, "host": "\([^"]*\)".*/\1 \2/p' "$run/outcome.json" 2>/dev/null) || true
  for host in $hosts; do
    [ "$host" = "$failed_host" ] || continue
    if [ "$failed_cause" = device ]; then say "a GPU of $host failed"; else say "$host computed wrong results"; fi
    lost_nodes+="$host "
  done
}

# Excludes the lost nodes from the next attempt: Slurm may still consider a node that did not join healthy. Slurm accepts
# this only for a pending job, so it is done after the requeue. The file holds the exclusions that the user asked for.
exclude_lost_nodes() {
  file=$run/.exclude-$SLURM_JOB_ID
  [ -n "$lost_nodes" ] || [ -e "$file" ] || return 0
  [ -e "$file" ] || job_field "$SLURM_JOB_ID" ExcNodeList | sed 's/(null)//' >"$file" || return 0
  excluded=$(tr -d '\n' <"$file")
  if [ -n "$lost_nodes" ] && [ "$(count_other_nodes)" -ge "$SLURM_NNODES" ]; then
    # shellcheck disable=SC2086  # a list of names
    excluded+=${excluded:+,}$(printf '%s\n' $lost_nodes | sort -u | paste -sd,)
    say "the next attempt excludes $excluded"
  elif [ -n "$lost_nodes" ]; then
    say "the partition has too few other nodes in service to exclude ${lost_nodes% }"
  fi
  timeout 20 scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$excluded" || say "cannot exclude nodes: scontrol update failed"
}

# Prints how many nodes of the partition could run the job without the lost ones.
count_other_nodes() {
  timeout 20 sinfo --noheader --Node --partition="${SLURM_JOB_PARTITION:-}" --format="%N %t" 2>/dev/null |
    awk -v lost=" $lost_nodes" '$2 !~ /down|drain|drng|fail|inval|unk|maint|\*/ && !index(lost, " " $1 " ") {print $1}' | sort -u | wc -l
}

# Reads the line that the trainer writes: {"outcome": "...", "reason": "...", "step": N, ...
read_outcome() {
  sed -n 's/^{"outcome": "\([a-z_]*\)", "reason": "\(.*\)", "step": \([0-9]*\),.*/'"$1"'/p' "$run/outcome.json" 2>/dev/null || true
}

newest_checkpoint() {
  newest=none
  for folder in "$run"/checkpoints/step-*[0-9]; do
    [ -d "$folder" ] && newest=${folder##*/step-}
  done
  echo "$newest"
}

# scontrol requeue also ends this script, after KillWait: only what takes seconds may follow it.
requeue() {
  step=$(newest_checkpoint)
  count=${SLURM_RESTART_COUNT:-0}
  [ "$count" -lt "$MAX_REQUEUES" ] || broken "$1; not requeued: already requeued $count times (MAX_REQUEUES=$MAX_REQUEUES)"
  # Slurm sends only one warning: if that was for the time limit, a later preemption ends the step with TERM.
  reason=$1
  if [[ $reason != preempted* ]] && is_preempted; then reason="preempted: $reason"; fi
  # A preemption before the next checkpoint is not the job's fault and does not count as lack of progress.
  if [[ $reason != preempted* ]]; then
    stalled=$(sed -n "/:[0-9]* preempted/d; s/^$SLURM_JOB_ID step=\([a-z0-9]*\) .*/\1/p" "$run/requeues" 2>/dev/null | grep -cx "$step") || true
    [ "$stalled" -lt "$MAX_STALLED_REQUEUES" ] ||
      broken "$reason; not requeued: no newer checkpoint than $step in $stalled requeues (MAX_STALLED_REQUEUES=$MAX_STALLED_REQUEUES)"
  fi
  state=$(job_state "$SLURM_JOB_ID")
  if [ "$state" != RUNNING ]; then
    say "$reason; not requeued: Slurm is already ending the job (${state:-no answer})"
    exit "$STOPPED"
  fi
  echo "$SLURM_JOB_ID step=$step requeue=$((count + 1)) $(date +%FT%T) $reason" >>"$run/requeues"
  say "$reason; newest checkpoint: $step; requeue $((count + 1)) of at most $MAX_REQUEUES"
  if is_preempted && slurm_requeues_preempted; then exit 0; fi
  trap '' TERM USR1
  scontrol requeue "$SLURM_JOB_ID" || broken "scontrol requeue failed; continue with RUN_FOLDER=$run sbatch ..."
  exclude_lost_nodes
  exit 0
}

# Slurm requeues a preempted job that exits by itself. If this script requeued it as well, Slurm older than 26.05 would
# start it once more after it has finished (its ticket 25682, testsuite of github.com/SchedMD/slurm).
slurm_requeues_preempted() {
  case $(timeout 20 scontrol show partition "${SLURM_JOB_PARTITION:-}" --oneliner 2>/dev/null) in
    *" PreemptMode=REQUEUE"*) ;;
    *) return 1 ;;
  esac
}

broken() {
  echo "train: BROKEN: $*" >&2
  exit "$BROKEN"
}

refuse() {
  echo "train: FAILED $(read_outcome 'at step \3: \2')" >&2
  # The trap of the exit gives the outcome from before back.
  [ ! -e "$run/.outcome-before.json" ] || rm -f "$run/outcome.json"
  exit "$BAD_INPUT"
}

decide() {
  outcome=$(read_outcome '\1')
  reason=$(read_outcome '\2 at step \3')
  if [ -n "$ended_by_slurm" ] && [ "$outcome" != finished ]; then
    say "Slurm ended the job; not requeued by this script. Newest checkpoint: $(newest_checkpoint)"
    exit "$STOPPED"
  fi
  case $outcome in
    finished) say "finished: $reason" ;;
    stopped) say "stopped: $reason. Continue with RUN_FOLDER=$run sbatch ..." && exit "$STOPPED" ;;
    requeue | terminated) report_failed_device && requeue "$reason" ;;
    bad_input) refuse ;;
    broken) broken "$reason" ;;
    failed) report_lost_nodes && report_failed_device && requeue "$reason" ;;
    "") [ -z "$CONTAINER" ] || [ "$rc" != "$CANNOT_START" ] || is_requeued || die "CONTAINER=$CONTAINER does not start on all nodes: the output of the step says why" ;;&
    *) report_lost_nodes && requeue "the step ended with $rc and no outcome: a rank or a node was lost" ;;
  esac
}
