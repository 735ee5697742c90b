#!/bin/sh
# PID 1 of a node: gives systemd a writable cgroup2 tree, then becomes systemd.
set -eu

if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
  # Plain cgroup v2: the engine mounts the node's own tree read-only; systemd must create groups in it.
  mount -o remount,rw /sys/fs/cgroup 2>/dev/null || true
  exec /sbin/init
fi

# Hybrid v1: systemd 257 wants cgroup2, the engine gives v1. The node gets a group of its own in the host's cgroup2 tree,
# and the v1 controllers at /run/cgv1, where Slurm's cgroup/v1 plugin uses them inside the node's Docker group.
group="muster/${MUSTER_CLUSTER:-none}/$(hostname)"
mkdir -p /run/cg
mount -t cgroup2 none /run/cg
mkdir -p "/run/cg/$group"
echo 0 > "/run/cg/$group/cgroup.procs"
umount /run/cg
# shellcheck disable=SC2016  # expanded by the inner shell
exec unshare --cgroup --mount sh -c '
  for controller in freezer cpuset cpu cpuacct memory devices; do
    mkdir -p "/run/cgv1/$controller"
    mount -t cgroup -o "$controller" none "/run/cgv1/$controller"
  done
  umount -R /sys/fs/cgroup
  mount -t cgroup2 none /sys/fs/cgroup
  exec /sbin/init'
