#!/usr/bin/env bash
# Start the ranks on all nodes, in an image or outside of one, and wait for them.
# shellcheck disable=SC2034,SC2154  # all files share their variables

# Runs once per node, under srun. Each node passes its own address on the route to the head node: by default torchrun
# advertises a name that others may not resolve, or loopback (https://github.com/pytorch/pytorch/issues/150532).
# shellcheck disable=SC2317,SC2329  # called by srun
start_node() {
  for program in ip ss; do
    command -v "$program" >/dev/null || { echo "train: FAILED: ${CONTAINER:-$SLURMD_NODENAME} lacks $program: install iproute2 there" >&2 && exit 1; }
  done
  local_addr=$(ip -4 route get "$head_addr" | sed -n 's/.* src \([0-9.]*\).*/\1/p')
  case $local_addr in
    "" | 127.*)
      echo "train: FAILED: $SLURMD_NODENAME has no address towards $head_addr (found '${local_addr:-none}')" >&2
      exit 1
      ;;
  esac
  # By name: SLURM_NODEID may follow the switches instead of the names.
  is_host=false
  [ "$SLURMD_NODENAME" != "$head" ] || is_host=true
  # A node with a connection to the rendezvous has joined. This is recorded on the shared filesystem, because the output
  # of a node that is cut off does not arrive.
  (
    while [ -d "$joined" ]; do
      case $(ss -Htn state established dst "$head_addr") in *:"$port"*) break ;; esac
      sleep 0.5
    done
    : >"$joined/$SLURMD_NODENAME"
  ) >/dev/null 2>&1 &
  # A signal that torchrun does not handle kills it and leaves its ranks running.
  exec "$python" -m trainer.torchrun \
    --nnodes="$NODES_MIN:$NODES_MAX" --nproc-per-node="$RANKS_PER_NODE" --max-restarts="$MAX_RESTARTS" \
    --monitor-interval=0.5 --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 \
    --rdzv-backend=c10d --local-addr="$local_addr" \
    --rdzv-conf="is_host=$is_host,join_timeout=$JOIN_TIMEOUT_S,read_timeout=$JOIN_TIMEOUT_S,$rendezvous" \
    -m trainer "$@" "run.folder=$run"
}

find_head() {
  hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || die "scontrol cannot expand $SLURM_JOB_NODELIST"
  head=${hosts%%$'\n'*}
  node_addr=$(scontrol show node "$head" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  head_addr=$(getent ahostsv4 "$node_addr" | awk 'NR == 1 {print $1}') || true
  case $head_addr in
    "" | 127.*) die "the head node $head has no address others can reach (NodeAddr=$node_addr, resolved to '${head_addr:-nothing}')" ;;
  esac
  # Nobody outside of the job can guess the id, and in the environment only the job's user can read it; on a command
  # line all users of the node could. The port is visible on the node, to `ss` for example. It is below those that kernels
  # choose for outgoing connections.
  until port=$((20000 + SRANDOM % 10000)) && [[ $(ss -Hltn) != *:"$port"* ]]; do :; done
  read -r PET_RDZV_ID </proc/sys/kernel/random/uuid
  export PET_RDZV_ID PET_RDZV_ENDPOINT="$head_addr:$port"
}

# Refuses an image that cannot be started or lacks what the ranks need: they would end without an outcome, as after the
# loss of a node, and the job would be requeued. Looking for torch takes milliseconds, importing it many seconds.
check_image() {
  [ -n "$CONTAINER" ] || return 0
  # Without SLURM_GPUS, which srun would take for the number of GPUs of this step, on one node.
  # shellcheck disable=SC2016  # expanded in the image
  answer=$(timeout "$JOIN_TIMEOUT_S" env -u SLURM_GPUS srun --export=ALL --overlap --nodelist="$head" --nodes=1 --ntasks=1 --ntasks-per-node=1 \
    --container="$CONTAINER" sh -c 'for name; do command -v "$name" >/dev/null || echo "lacks $name"; done
      ! command -v python >/dev/null || python -c "import importlib.util as find; print(\"lacks torch\" * (find.find_spec(\"torch\") is None))"
      true' check bash python ip ss sed 2>&1) && started=0 || started=$?
  [ "$started" != "$CANNOT_START" ] || is_requeued || refuse_image "$(sed -n 's/^.*muster: //p' <<<"$answer" | head -n 1)"
  lacking=$(sed -n 's/^lacks \([a-z]*\)$/\1/p' <<<"$answer" | paste -sd,)
  # The container runtime's words.
  [[ $answer != *"executable file "?sh?" not found"* ]] || lacking="sh"
  [ -z "$lacking" ] || die "CONTAINER=$CONTAINER lacks ${lacking//,/, }: install bash, sed, iproute2 and python with torch in the image"
}

# An earlier attempt of the job has started its image: then a node is to blame, such as one with a full /tmp, and another
# attempt may get other nodes. MAX_STALLED_REQUEUES ends it if none starts.
is_requeued() {
  [ "${SLURM_RESTART_COUNT:-0}" != 0 ]
}

# Another start would end in the same way. If the reason is a single node, a person can leave it out.
refuse_image() {
  die "CONTAINER=$CONTAINER does not start on $head: ${1:-see the output of the step}. If only this node is to blame, sbatch --exclude=$head"
}

check_nodes() {
  if [ "$NODES_MIN" -lt 1 ] || [ "$NODES_MIN" -gt "$NODES_MAX" ] || [ "$NODES_MAX" -gt "$SLURM_NNODES" ]; then
    die "NODES_MIN=$NODES_MIN, NODES_MAX=$NODES_MAX: must be 1 <= NODES_MIN <= NODES_MAX <= $SLURM_NNODES, the nodes of the job"
  fi
}

# A signal ends `wait` early while the step continues.
wait_for_step() {
  while true; do
    rc=0
    wait "$1" || rc=$?
    if [ "$rc" -le 128 ] || ! kill -0 "$1" 2>/dev/null; then break; fi
  done
  # The signal may have arrived when the step ended: the second wait returns the status of the step.
  [ "$rc" -le 128 ] || { rc=0 && wait "$1" || rc=$?; }
}
