#!/bin/sh
# Mounts the shared filesystems that are not mounted yet, with retries. fstab is not used, because its option `_netdev` does not
# wait for Lustre's network.
set -eu

attach() { # KIND OPTIONS SOURCE WHERE
  if mountpoint -q "$4"; then return; fi
  mkdir -p "$4"
  for pause in 1 2 5 10 20 30 30 30 30 30 30 30 0; do
    if mount -t "$1" -o "$2" "$3" "$4"; then return; fi
    sleep "$pause"
  done
  echo "cannot mount $3 at $4" >&2
  exit 1
}

# Waits until a tunnel listens at a port of this machine, because mount.nfs4 pauses for at least a second after a refused
# connection. If the tunnel does not start, the attempts to mount show the error.
await_tunnel() { # PORT
  listening=$(printf ':%04X 00000000:0000 0A ' "$1")
  for _ in $(seq 100); do
    if grep -q "$listening" /proc/net/tcp; then return; fi
    sleep 0.05
  done
}

# Adds EFA to Lustre's network, preferred over TCP; must run before anything is mounted. At most eight cards are used: more
# would exceed the machine's PCI lanes (https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html).
use_efa() {
  if lnetctl net show --net efa 2>/dev/null | grep -q '@efa'; then return; fi
  interface=$(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
  modprobe lnet
  modprobe kefalnd ipif_name="$interface"
  modprobe ksocklnd
  lnetctl lnet configure
  lnetctl net show --net tcp | grep -q '@tcp' || lnetctl net add --net tcp --if "$interface"
  devices=$(for path in /sys/class/infiniband/*; do echo "${path##*/}"; done | sort -V)
  every=$((($(echo "$devices" | wc -l) + 7) / 8))
  for device in $(echo "$devices" | awk -v every=$every 'NR % every == 1 || every == 1'); do
    lnetctl net add --net efa --if "$device" --peer-credits 32
  done
  lnetctl set discovery 1
  lnetctl udsp add --src efa --priority 0
}

@MOUNTS@
