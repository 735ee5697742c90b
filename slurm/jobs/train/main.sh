#!/usr/bin/env bash
# The training job: claim the folder of the run, start the ranks, and decide what follows their end.
# train.sbatch reads this file; the functions are in the files next to it.
# shellcheck disable=SC2034,SC2154  # all files share their variables

BROKEN=1 BAD_INPUT=2 STOPPED=77
# The status of a container that did not start (slurm/containers).
CANNOT_START=125
ended_by_slurm=""
run=""
lost_nodes=""

say() {
  echo "train: $*"
}

die() {
  echo "train: FAILED: $*" >&2
  exit "$BAD_INPUT"
}

# Records an event of the job among those of its ranks, so that a report can show where the time of a recovery went.
note() {
  LC_ALL=C printf '{"time": %.3f, "event": "%s", "attempt": %d}\n' "$EPOCHREALTIME" "$1" "${SLURM_RESTART_COUNT:-0}" >>"$run/events.jsonl" || true
}

job_state() {
  job_field "$1" JobState
}

job_field() {
  timeout 20 scontrol show job "$1" --oneliner 2>/dev/null | sed -n "s/.* $2=\([^ ]*\).*/\1/p" || true
}

for part in signals folder ranks outcome; do
  # shellcheck source=/dev/null  # checked on their own
  . "$MUSTER_ROOT/slurm/jobs/train/$part.sh"
done
trap on_warning USR1
trap on_term TERM

: "${MAX_RESTARTS:=3}"
: "${MAX_REQUEUES:=100}"
: "${MAX_STALLED_REQUEUES:=3}"
: "${NODES_MAX:=$SLURM_NNODES}"
: "${NODES_MIN:=$NODES_MAX}"
: "${JOIN_TIMEOUT_S:=300}"
[ "${SLURM_GPUS_ON_NODE:-0}" = 0 ] || : "${RANKS_PER_NODE:=$SLURM_GPUS_ON_NODE}"
: "${RANKS_PER_NODE:=2}"
[ -x "$MUSTER_ROOT/env/bin/python" ] || die "no training environment at $MUSTER_ROOT/env"
python=$MUSTER_ROOT/env/bin/python
: "${CONTAINER:=}"
if [ -n "$CONTAINER" ]; then
  [ -f "$CONTAINER/config.json" ] || die "CONTAINER=$CONTAINER is not an image: it has no config.json. \`muster image job\` creates images in /shared/images"
  # A name of an image is a link to its newest version: all ranks use the one that the job started with.
  CONTAINER=$(readlink -m "$CONTAINER")
  python=python
fi
attempt=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
check_nodes
pick_run_folder "$@"
claim_run_folder
find_head

# A lost node leaves the rendezvous after 3 x 3 s; an elastic rendezvous waits 5 s for more nodes once it has enough.
rendezvous=last_call_timeout=5,keep_alive_interval=3,keep_alive_max_attempt=3
export RANKS_PER_NODE MAX_RESTARTS NODES_MIN NODES_MAX JOIN_TIMEOUT_S MUSTER_ROOT CONTAINER python
export head head_addr port joined attempt rendezvous run
export MUSTER_OUTCOME_FILE="$run/outcome.json"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONPATH="$MUSTER_ROOT${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# A store shared with torchrun keeps its address when the first node changes after a restart, and the keys of dead ranks,
# so each start of the ranks gets its own (RendezvousHandler of torch.distributed.elastic, 2.11 to 2.15).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Time for a save after torchrun received a signal; 30 s if torch is older than 2.12.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}"
# Without this, a lost connection prints forty stack frames around its message.
export TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-FATAL}"
export -f start_node

# An exclusive job owns the GPUs of its nodes, but a step gets only those it requests.
options=()
[ "${SLURM_GPUS_ON_NODE:-0}" = 0 ] || options+=(--gpus-per-node="$SLURM_GPUS_ON_NODE")
[ -z "$CONTAINER" ] || options+=(--container="$CONTAINER")
if [ "$NODES_MIN" -lt "$SLURM_NNODES" ]; then
  options+=(--no-kill --kill-on-bad-exit=0)
else
  options+=(--kill-on-bad-exit=1)
fi

nodes="$SLURM_NNODES node$([ "$SLURM_NNODES" = 1 ] || echo s)"
[ "$NODES_MIN" = "$SLURM_NNODES" ] || nodes="$NODES_MIN to $NODES_MAX of $nodes"
say "job $SLURM_JOB_ID, attempt $((${SLURM_RESTART_COUNT:-0} + 1)), $nodes x $RANKS_PER_NODE ranks," \
  "rendezvous at $head ($head_addr), run folder $run, newest checkpoint: $(newest_checkpoint)"
note job_started
check_image
# In the background, because bash runs a trap only between commands, and a signal ends `wait`.
srun --export=ALL --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" "${options[@]}" \
  bash -c 'start_node "$@"' train "$@" &
wait_for_step $!
note job_step_ended
decide
