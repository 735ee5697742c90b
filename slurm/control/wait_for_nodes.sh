#!/bin/bash
# PrologSlurmctld: wait until the nodes of a job have started, at most LIMIT_S seconds.
#
#     wait_for_nodes.sh LIMIT_S FOLDER
#
# slurmctld itself checks only every 30 s whether the nodes of a job have started, but it starts the job as soon as this
# program ends. So the program ends whenever it is in doubt: slurmctld's own check remains. It always exits with 0,
# because slurmctld requeues a job whose program fails. slurmctld kills it if the job is cancelled, but not if the job is
# requeued: then the nodes become idle or down, and the program ends by itself.
#
# Programs that wait at the same time share the answers of slurmctld in FOLDER, so that it is asked about once a second,
# and they sleep without starting a process. Each needs 1 MB; if more than MAX_WAITING of them wait, further jobs are left
# to slurmctld's own check.

export PATH
exec 2>/dev/null
limit_s=$1 list=$2/starting-nodes
MAX_WAITING=1000
MAX_AGE_US=1000000
PAUSE_S=1.
# Without an answer of slurmctld for so long, the program ends. Until the first answer, the nodes may all be up: then
# the job would wait for nothing.
FIRST_ANSWER_S=5
SILENCE_S=60

# Print a time, how many of these programs run, and the nodes that hold a job and have not started.
list_starting() {
  local states names
  states=$(timeout "$ask_s" sinfo --all --noheader --Node --format='%T %N') || return
  # `#` marks a node that is starting, `~` one that slurmctld has not requested yet.
  mapfile -t names < <(sed -n -E 's/^(allocated|mixed|draining|completing)[#~] //p' <<<"$states")
  printf '%s ' "$1" "$(pgrep --count --full "^bash $0 ")" "${names[@]}"
}

# Read the list into `waiting` and `starting`; fail if it was made before a time in microseconds.
read_list() {
  local time
  read -r time waiting starting <"$list"
  (( ${time:-0} >= $1 && time <= ${EPOCHREALTIME/./} ))
}

# Read a list that was not made before a time; fail if another program is just asking slurmctld for it.
update_list() {
  local lock result
  read_list "$1" && return
  exec {lock}>"$list.lock"
  flock --nonblock "$lock" &&
    { read_list "$1" || { list_starting "${EPOCHREALTIME/./}" >"$list.new" && mv "$list.new" "$list" && read_list "$1"; }; }
  result=$?
  exec {lock}>&-
  return $result
}

is_starting() {
  local node
  for node in "${nodes[@]}"; do
    [[ " $starting " == *" $node "* ]] && return
  done
  return 1
}

[[ $SLURM_JOB_NODELIST ]] || exit 0
nodes=("$SLURM_JOB_NODELIST")
[[ $SLURM_JOB_NODELIST != *[\[,]* ]] || mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# Reading from a pipe that nobody writes to is a way to sleep without starting a process.
exec {pipe}<> <(:)
# A list that was made before the nodes were allocated to this job would show them as idle.
oldest=${EPOCHREALTIME/./} pause=0.2 answered=0 ask_s=$FIRST_ANSWER_S silence_s=$FIRST_ANSWER_S waits=
while (( SECONDS < limit_s && SECONDS - answered < silence_s )); do
  if update_list "$oldest"; then
    is_starting || break
    [[ $waits ]] || (( waiting <= MAX_WAITING )) || break
    waits=yes pause=$PAUSE_S answered=$SECONDS ask_s=10 silence_s=$SILENCE_S
  fi
  # The random digit keeps programs that started together from acting at the same moments.
  read -r -t "$pause$(( RANDOM % 10 ))" -u "$pipe"
  [[ ! $waits ]] || oldest=$(( ${EPOCHREALTIME/./} - MAX_AGE_US ))
done
exit 0
