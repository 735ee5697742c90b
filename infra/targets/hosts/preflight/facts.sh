#!/bin/sh
# Prints the facts of a host that its future role depends on, one JSON list of texts per line. Changes nothing, and needs
# neither root nor Python: what only root can read is read with sudo where that needs no password.
# Set by the caller: the lists MOUNTS, ACCOUNTS (names and uids of users) and NAMES (those that the cluster will give its
# nodes), PEERS (one line per connection to try: host, address, port), NEIGHBORS (which tool to ask about switches: subnet,
# lldp, or empty), FOLDERS (whose free space matters, even if they do not exist yet), and the function read_rdma (slurm/rdma/sysfs.py).
set -u
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
tab=$(printf '\t')
PEER_TIMEOUT_S=${PEER_TIMEOUT_S:-3}
PEERS_AT_ONCE=64
NAMES_AT_ONCE=8
# A resolver that works answers within milliseconds, also that a name does not exist.
RESOLVER_TIMEOUT_S=1
started=0
# A mount whose server is gone blocks whoever looks at it.
MOUNT_TIMEOUT_S=5
# A subnet of thousands of nodes takes seconds; one whose switches do not answer, a timeout for each of them.
NEIGHBORS_TIMEOUT_S=20

# Not echo, which gives backslashes a meaning; one write per line, because several processes print.
fact() {
  text=$1
  shift
  for value in "$@"; do text=$text$tab$value; done
  printf '%s\n' "$text"
}

# What waits for the network runs at the same time, but not for a thousand hosts at once.
start() {
  started=$((started + 1))
  if [ $((started % PEERS_AT_ONCE)) = 0 ]; then wait; fi
  "$@" &
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

read_system() {
  # shellcheck source=/dev/null
  (. /etc/os-release 2>/dev/null && fact os "${ID:-}" "${VERSION_ID:-}" "${PRETTY_NAME:-}")
  fact arch "$(uname -m)"
  fact init "$(cat /proc/1/comm)"
  fact hostname "$(cat /proc/sys/kernel/hostname)"
  # Two addresses of one machine show the same pair: containers share the first, machines never do.
  fact machine "$(cat /proc/sys/kernel/random/boot_id)" "$(readlink /proc/self/ns/net)"
  fact cpus "$(getconf _NPROCESSORS_ONLN)"
  awk -v OFS='\t' '/^MemTotal:/ { print "memory_mb", int($2 / 1024) }' /proc/meminfo
  # Not a program, which would start the whole interpreter.
  python=$(python3 -V 2>/dev/null)
  fact python "${python#Python }"
  # Not print, which writes large numbers with an exponent.
  df -Pk / | awk 'NR == 2 { printf "disk\t/\t%.0f\n", $4 / 1024 }'
}

read_rights() {
  if [ "$(id -u)" = 0 ]; then
    fact root yes ""
  elif message=$(sudo -n true 2>&1); then
    fact root yes ""
  else
    fact root no "$(echo "$message" | tail -n 1)"
  fi
}

read_services() {
  units="slurmctld slurmdbd slurmd sackd munge mariadb mysql nfs-server nfs-ganesha firewalld ufw nftables"
  # One call for all, which prints a line for each.
  # shellcheck disable=SC2086  # a list
  systemctl is-active $units 2>/dev/null | {
    for unit in $units; do
      if read -r state && [ "$state" = active ]; then fact active "$unit"; fi
    done
  }
  if as_root test -s /etc/slurm/slurm.conf 2>/dev/null; then fact file /etc/slurm/slurm.conf; fi
  for program in slurmctld slurmd srun; do
    if path=$(command -v $program) && version=$($path -V 2>/dev/null); then
      fact slurm "${version#* }"
      break
    fi
  done
  # Without it, sshd would not accept the cluster's key. It is a fact only if the file can be read.
  if settings=$(as_root cat /etc/ssh/sshd_config 2>/dev/null) &&
    ! echo "$settings" | grep -Eiq '^[[:space:]]*Include[[:space:]].*/etc/ssh/sshd_config\.d/'; then fact no_include; fi
  if [ -e /etc/muster ]; then fact muster /etc/muster; fi
  if claim=$(cat /var/lib/muster/record/claim 2>/dev/null); then fact claim "$claim"; fi
  # ufw's service is active even if its rules are not, and rules may be loaded without any service.
  if as_root nft list ruleset 2>/dev/null | grep -Eq 'hook input .*policy drop'; then fact filter nftables; fi
  if as_root iptables -S INPUT 2>/dev/null | grep -Eq -- '-P INPUT DROP|-j (DROP|REJECT)'; then fact filter iptables; fi
}

read_ports() {
  awk -v OFS='\t' '$4 == "0A" { sub(/.*:/, "", $2); print "listens", $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

read_users() {
  for account in $ACCOUNTS; do
    getent passwd "$account" | awk -F: -v OFS='\t' -v account="$account" '{ print "account", account, $1, $3, $5 }'
  done
}

read_mounts() {
  for mount in $MOUNTS; do
    # The last line counts: a mount may cover an earlier one.
    awk -v OFS='\t' -v path="$mount" \
      '$2 == path { line = "mount" OFS path OFS $1 OFS $3 OFS ($4 ~ /(^|,)ro(,|$)/ ? "ro" : "rw") } END { if (line) print line }' \
      /proc/mounts
    if free=$(timeout "$MOUNT_TIMEOUT_S" df -Pk "$mount" 2>/dev/null); then
      echo "$free" | awk -v path="$mount" 'NR == 2 { printf "disk\t%s\t%.0f\n", path, $4 / 1024 }'
    elif [ $? = 124 ]; then
      fact hangs "$mount"
    fi
  done
}

# A folder that does not exist yet will be on the disk of the first one above it that does.
read_folders() {
  for folder in $FOLDERS; do
    existing=$folder
    until [ -d "$existing" ]; do
      existing=${existing%/*}
      existing=${existing:-/}
    done
    df -Pk "$existing" | awk -v path="$folder" 'NR == 2 { printf "disk\t%s\t%.0f\n", path, $4 / 1024 }'
  done
  if grep -qw nfs4 /proc/filesystems || modprobe -n -q nfsv4 2>/dev/null; then fact nfs yes; fi
}

read_gpus() {
  for device in /sys/bus/pci/devices/*; do
    if [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ]; then
      case $(cat "$device/class") in 0x0300* | 0x0302*) fact gpu "${device##*/}" ;; esac
    fi
  done
  for gpu in /proc/driver/nvidia/gpus/*/information; do
    if [ -r "$gpu" ]; then fact gpu_model "$(sed -n 's/^Model:[[:space:]]*//p' "$gpu")"; fi
  done
  if [ -r /proc/driver/nvidia/version ]; then fact driver "$(head -n 1 /proc/driver/nvidia/version)"; fi
  if [ -d /sys/module/nouveau ]; then fact module nouveau; fi
}

# Prints each line of a tool's output as a fact, or else the last line of its errors.
print_answer() {
  name=$1
  shift
  errors=$(mktemp) || return
  if answer=$(as_root timeout "$NEIGHBORS_TIMEOUT_S" "$@" 2>"$errors"); then
    printf '%s\n' "$answer" | sed "s/^/$name$tab/"
  else
    fact neighbors_error "$1: $(tail -n 1 "$errors" | grep . || echo 'no answer')"
  fi
  rm -f "$errors"
}

# Rails may be subnets of their own, so every port asks whose device no earlier answer has.
read_subnets() {
  answers=
  cd "${SYSFS:-/sys}/class/infiniband" 2>/dev/null || return
  for port in */ports/*; do
    if ! grep -qs ACTIVE "$port/state" || ! grep -qs InfiniBand "$port/link_layer"; then continue; fi
    device=${port%%/*}
    guid=$(tr -d : <"$device/node_guid")
    case $answers in *"$guid"*) continue ;; esac
    answer=$(print_answer subnet ibnetdiscover -C "$device" -P "${port##*/}")
    printf '%s\n' "$answer"
    answers=$answers$answer
  done
}

read_neighbors() {
  case $NEIGHBORS in
    subnet) tool=ibnetdiscover ;;
    lldp) tool=lldpctl ;;
    *) return ;;
  esac
  if ! command -v $tool >/dev/null; then
    fact neighbors_error "$tool is not installed"
  elif [ "$tool" = lldpctl ]; then
    print_answer lldp lldpctl -f json
  else
    (read_subnets)
  fi
}

read_name() {
  if line=$(timeout "$PEER_TIMEOUT_S" getent ahostsv4 "$1"); then fact resolves "$1" "${line%% *}"; fi
}

# With thousands of nodes, most of the time would go to starting processes. On a machine that is no node yet, usually no
# name can be resolved, which one process finds out for several.
read_names() {
  # shellcheck disable=SC2068  # names have no spaces
  if [ -n "$(timeout "$RESOLVER_TIMEOUT_S" getent ahostsv4 $@ || [ $? != 124 ] || echo slow)" ]; then
    for name in "$@"; do read_name "$name" & done
    wait
  fi
}

# A closed port answers too, with a reset: only silence or an ICMP message is a firewall or a missing route.
try_peer() {
  message=$(timeout "$PEER_TIMEOUT_S" bash -c "exec 3<>/dev/tcp/$2/$3" 2>&1)
  code=$?
  case $code,$message in
    0,*) result=open ;;
    124,*) result=silent ;;
    *refused*) result=closed ;;
    *resolve* | *"not known"* | *"Invalid argument"*) result=unresolved ;;
    *) result=unreachable ;;
  esac
  fact peer "$1" "$2" "$3" "$result"
}

{
  fact clock "$(date +%s.%N)"
  read_system
  read_rights
  read_services
  read_ports
  read_users
  read_mounts
  read_folders
  read_gpus
  read_rdma
  read_neighbors
  # shellcheck disable=SC2086  # a list
  set -- $NAMES
  while [ $# -gt $NAMES_AT_ONCE ]; do
    start read_names "$1" "$2" "$3" "$4" "$5" "$6" "$7" "$8"
    shift $NAMES_AT_ONCE
  done
  if [ $# -gt 0 ]; then start read_names "$@"; fi
  wait
  echo "$PEERS" | {
    while read -r host address port; do
      if [ -n "$host" ]; then start try_peer "$host" "$address" "$port"; fi
    done
    wait
  }
  # Once more: the script may have taken long, and each reading bounds the clock in one direction.
  fact clock_at_end "$(date +%s.%N)"
  fact end
} | awk -F "$tab" '{
  line = ""
  for (i = 1; i <= NF; i++) {
    gsub(/[\\"]/, "\\\\&", $i)
    gsub(/[[:cntrl:]]/, "", $i)
    line = line (i > 1 ? ", " : "") "\"" $i "\""
  }
  print "[" line "]"
}'
