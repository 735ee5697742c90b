#!/bin/sh
# Puts the queue, the accounts and what the power programs remember on the volume that outlives this machine.
# Formats it only where it is blank; what a controller before this one left on it is taken over.
set -eu
volume=@VOLUME@
label=muster-state
where=/state

fail() {
  echo "$*" >&2
  exit 1
}

# NVMe disks carry the volume's id, without its dash, as serial number.
find_disk() {
  for disk in /sys/block/nvme*; do
    if [ "$(tr -d ' ' <"$disk/device/serial" 2>/dev/null)" = "$(echo "$volume" | tr -d -)" ]; then
      echo "/dev/${disk##*/}"
      return
    fi
  done
}

# blkid: 0 something is on it, 2 nothing; anything else is no answer, and then nothing is formatted.
format_blank() {
  code=0
  found=$(blkid -p -o value -s TYPE "$1") || code=$?
  case $code in
    0) [ "$found" = ext4 ] || fail "$1 ($volume) holds ${found:-a partition table}, not ext4: it is not the cluster's; attach the right volume" ;;
    2) mkfs.ext4 -q -L "$label" "$1" ;;
    *) fail "$1 ($volume) cannot be read (blkid says $code)" ;;
  esac
}

# What the package has put on the root disk goes along the first time only.
keep() {
  if mountpoint -q "$1"; then return; fi
  mkdir -p "$1"
  if [ ! -d "$where/$2" ]; then
    rm -rf "$where/$2.new"
    cp -a "$1" "$where/$2.new"
    # Under its last name only when it is on the disk: a machine that loses power now would leave empty files.
    sync -f "$where"
    mv -T "$where/$2.new" "$where/$2"
  fi
  # Another image may number these users otherwise.
  chown -R "$3" "$where/$2"
  mount --bind "$where/$2" "$1"
}

if ! mountpoint -q "$where"; then
  tries=0
  until disk=$(find_disk) && [ -n "$disk" ]; do
    tries=$((tries + 1))
    [ $tries -le 300 ] || fail "volume $volume is not attached after 5 minutes"
    sleep 1
  done
  format_blank "$disk"
  mkdir -p "$where"
  # Not all of Slurm's and MariaDB's files are flushed by them. Without delayed allocation every file is whole on the disk as
  # soon as the journal is written: after 5 s, or with the next file that is flushed (Linux Documentation/filesystems/ext4).
  mount -o noatime,nodelalloc "$disk" "$where"
fi
# A database that runs writes. At boot none of them does, and to stop one that is only to start would keep it from that.
if ! mountpoint -q /var/lib/mysql; then
  for unit in slurmctld slurmdbd mariadb; do
    if systemctl -q is-active "$unit"; then systemctl stop "$unit"; fi
  done
fi
keep /var/lib/mysql mysql mysql:mysql
keep /var/lib/slurm/slurmctld slurmctld slurm:slurm
keep /var/lib/muster/power power slurm:slurm
sync -f "$where"
