#!/bin/sh
# Mounts the machine's own disks at /local, striped. They are blank after the machine was stopped, so this runs at every boot.
set -eu
where=/local
label=muster-local
array=/dev/md/muster-local

fail() {
  echo "$*" >&2
  exit 1
}

open_to_all() { chmod 1777 "$where"; }

if mountpoint -q "$where"; then
  open_to_all
  exit 0
fi
mkdir -p "$where"

# Deep learning AMIs stripe and mount these disks themselves; a second stripe would destroy the first.
if systemctl cat dlami-nvme.service >/dev/null 2>&1; then
  systemctl start dlami-nvme.service || true
  if mountpoint -q /opt/dlami/nvme; then
    mount --bind /opt/dlami/nvme "$where"
    open_to_all
    exit 0
  fi
fi

disks=
count=0
for disk in /sys/block/nvme*; do
  if grep -qF '@MODEL@' "$disk/device/model" 2>/dev/null; then
    disks="$disks /dev/${disk##*/}"
    count=$((count + 1))
  fi
done
[ $count -gt 0 ] || fail "no disk of model @MODEL@ on this machine"

if ! blkid -L "$label" >/dev/null; then
  device=$disks
  if [ $count -gt 1 ]; then
    mdadm --assemble --scan >/dev/null 2>&1 || true
    # shellcheck disable=SC2086  # a list
    [ -e "$array" ] || mdadm --create "$array" --run --force --level=0 --raid-devices=$count --homehost=any $disks
    device=$array
  fi
  # shellcheck disable=SC2086  # no spaces inside
  blkid -L "$label" >/dev/null || mkfs.xfs -q -f -L "$label" $device
fi
mount -o noatime,nodiscard "$(blkid -L "$label")" "$where"
open_to_all
