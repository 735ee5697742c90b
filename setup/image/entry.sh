#!/bin/sh
# PID 1 of a node: gives systemd a writable cgroup2 tree, then becomes systemd.
set -eu

if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
  # Plain cgroup v2: the engine mounts the node's own tree read-only unless told otherwise; systemd must create groups in it.
  [ -w /sys/fs/cgroup ] || mount -o remount,rw /sys/fs/cgroup || true
  if [ ! -w /sys/fs/cgroup ]; then
    echo "muster-entry: /sys/fs/cgroup stays read-only, systemd cannot start. Fix: allow the mount (SYS_ADMIN," \
      "apparmor=unconfined, label=disable), or use Docker 28, which gives a writable tree" >&2
    exit 1
  fi
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
rmdir /run/cg
# shellcheck disable=SC2016  # expanded by the inner shell
exec unshare --cgroup --mount sh -euc '
  # Controllers that the host has mounted together (cpu,cpuacct) can only be mounted together: one directory, a link for each.
  while IFS=: read -r _ controllers _; do
    case ",$controllers," in
      *,freezer,* | *,cpuset,* | *,cpu,* | *,cpuacct,* | *,memory,* | *,devices,*) ;;
      *) continue ;;
    esac
    mkdir -p "/run/cgv1/$controllers"
    mount -t cgroup -o "$controllers" none "/run/cgv1/$controllers"
    for controller in $(echo "$controllers" | tr , " "); do
      [ -e "/run/cgv1/$controller" ] || ln -s "$controllers" "/run/cgv1/$controller"
    done
  done < /proc/self/cgroup
  umount -R /sys/fs/cgroup
  mount -t cgroup2 none /sys/fs/cgroup
  exec /sbin/init'
