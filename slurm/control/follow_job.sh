# shellcheck shell=bash
# Prints a job's state whenever it changes and its log as it grows, until the job ends. Runs on the login node. Lines
# that begin with the ASCII record separator are for the caller; all others are the job's own output.
job=$1 offset=$2 last='' log='' reported_log=''
report() { printf '\036%s\n' "$1"; }
print_log() {
  [ -n "$log" ] && [ -r "$log" ] || return 0
  size=$(stat -c %s "$log") || return 0
  if [ "$size" -gt "$offset" ]; then
    tail -c +$((offset + 1)) "$log" | head -c $((size - offset))
    offset=$size
    report "offset|$offset"
  fi
}
while :; do
  # Not by scontrol: in its output, the name of the job may contain all that other fields do, and line breaks.
  listed=$(squeue -h -t all -j "$job" -o '%T|%r|%N' 2>/dev/null | head -n 1)
  IFS='|' read -r state reason nodes <<<"$listed"
  if [ -z "$listed" ]; then
    state=$(sacct -X -n -P -j "$job" -o State 2>/dev/null | head -n 1 | cut -d' ' -f1)
    now="state|${state:-UNKNOWN}|||"
  else
    # squeue does not replace the patterns in the path of the log. Paths and names may contain blanks, so that only the
    # end of a line ends a field; the last line counts, because the name of the job comes first.
    info=$(scontrol show job "$job" 2>/dev/null)
    log=$(printf '%s\n' "$info" | sed -n 's/^ *StdOut=//p' | tail -n 1)
    code=$(printf '%s\n' "$info" | sed -n 's/^ *Requeue=.* ExitCode=//p' | tail -n 1)
    now="state|$state|${reason%% *}|$nodes|$code"
  fi
  if [ "$now" != "$last" ]; then
    report "$now"
    [ "$log" = "$reported_log" ] || { report "log|$log"; reported_log=$log; }
    last=$now
  fi
  print_log
  case $state in
    PENDING | CONFIGURING | RUNNING | COMPLETING | SUSPENDED | REQUEUED | REQUEUE_HOLD | REQUEUE_FED | RESIZING | SIGNALING | STAGE_OUT | STOPPED | SPECIAL_EXIT) sleep 0.3 ;;
    *) break ;;
  esac
done
print_log
