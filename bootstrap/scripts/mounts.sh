#!/bin/sh
# Mounts the shared filesystems, patiently; what is mounted stays. Not by fstab: its `_netdev` does not wait for Lustre's network.
set -eu

attach() { # KIND OPTIONS SOURCE WHERE
  if mountpoint -q "$4"; then return; fi
  mkdir -p "$4"
  for pause in 1 2 5 10 20 30 30 30 30 30 30 30 0; do
    if mount -t "$1" -o "$2" "$3" "$4"; then return; fi
    sleep "$pause"
  done
  echo "$3 cannot be mounted at $4" >&2
  exit 1
}

@MOUNTS@
