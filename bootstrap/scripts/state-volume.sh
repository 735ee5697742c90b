#!/bin/sh
# Puts the queue, the accounting database and the state of the power programs on the volume that outlives this machine.
# Formats the volume only if it is blank; data of an earlier controller is adopted.
set -eu
volume=@VOLUME@
label=muster-state
where=/state

fail() {
  echo "$*" >&2
  exit 1
}

# The serial number of the NVMe disk is the volume's id without its dash.
find_disk() {
  for disk in /sys/block/nvme*; do
    if [ "$(tr -d ' ' <"$disk/device/serial" 2>/dev/null)" = "$(echo "$volume" | tr -d -)" ]; then
      echo "/dev/${disk##*/}"
      return
    fi
  done
}

# blkid exits with 0 if the disk has content and 2 if it is blank; on any other code nothing is formatted.
format_blank() {
  code=0
  type=$(blkid -p -o value -s TYPE "$1") || code=$?
  case $code in
    0) [ "$type" = ext4 ] || fail "$1 ($volume) holds ${type:-a partition table}, not ext4: this is not the cluster's volume; attach the right one" ;;
    2) mkfs.ext4 -q -L "$label" "$1" ;;
    *) fail "$1 ($volume) cannot be read (blkid exits with $code)" ;;
  esac
}

# Moves a folder to the volume, with the files that the package created if the volume does not have the folder yet.
move_to_volume() {
  if mountpoint -q "$1"; then return; fi
  mkdir -p "$1"
  if [ ! -d "$where/$2" ]; then
    rm -rf "$where/$2.new"
    cp -a "$1" "$where/$2.new"
    # The copy is synced before it gets its final name, because a power failure now would leave empty files.
    sync -f "$where"
    mv -T "$where/$2.new" "$where/$2"
  fi
  # The uids of these users may differ in another image.
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
  # Slurm and MariaDB do not sync all of their files. Without delayed allocation, every file is complete on disk once the
  # journal is written: after 5 s, or with the next file that is synced (Linux Documentation/filesystems/ext4).
  mount -o noatime,nodelalloc "$disk" "$where"
fi
# A running database writes to its files. At boot none is running, and `stop` would cancel the start that systemd has queued.
if ! mountpoint -q /var/lib/mysql; then
  for unit in slurmctld slurmdbd mariadb; do
    if systemctl -q is-active "$unit"; then systemctl stop "$unit"; fi
  done
fi
move_to_volume /var/lib/mysql mysql mysql:mysql
move_to_volume /var/lib/slurm/slurmctld slurmctld slurm:slurm
move_to_volume /var/lib/muster/power power slurm:slurm
sync -f "$where"
