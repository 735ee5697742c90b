#!/bin/sh
# Slurm's TaskProlog: each `export NAME=value` that it prints is added to the task's environment.
# Variables that the job has set are not changed.
set -u

set_default() {
  eval "current=\${$1+set}"
  # shellcheck disable=SC2154  # assigned by the eval above
  if [ -z "$current" ]; then echo "export $1=$2"; fi
}

while IFS='=' read -r name value; do
  set_default "$name" "$value"
done </etc/muster/fabric.env

# The interface is looked up by address, because after a network fault it may come back under another name.
address=$(awk -v node="${SLURMD_NODENAME:-$(hostname)}" '$2 == node { print $1 }' /etc/muster/hosts)
interface=$(ip -o -4 addr show | awk -v address="$address" 'address != "" && index($4, address "/") == 1 { print $2; exit }')
if [ -n "$interface" ]; then
  set_default GLOO_SOCKET_IFNAME "$interface"
  set_default NCCL_SOCKET_IFNAME "$interface"
fi
