#!/bin/sh
# Slurm's TaskProlog: what it prints as `export NAME=value` becomes part of the task's environment.
# What the job has set itself stays.
set -u

offer() {
  eval "found=\${$1+set}"
  # shellcheck disable=SC2154  # assigned by the eval above
  if [ -z "$found" ]; then echo "export $1=$2"; fi
}

while IFS='=' read -r name value; do
  offer "$name" "$value"
done </etc/muster/fabric.env

# By address, not by name: after a network fault the interface may come back as eth1.
address=$(awk -v node="${SLURMD_NODENAME:-$(hostname)}" '$2 == node { print $1 }' /etc/muster/hosts)
interface=$(ip -o -4 addr show | awk -v address="$address" 'address != "" && index($4, address "/") == 1 { print $2; exit }')
if [ -n "$interface" ]; then
  offer GLOO_SOCKET_IFNAME "$interface"
  offer NCCL_SOCKET_IFNAME "$interface"
fi
