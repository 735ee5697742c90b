#!/bin/sh
# The first process of a node: prepares a writable cgroup2 tree for systemd, then becomes systemd, in a mount namespace in
# which slurmd can create namespaces for jobs (mount-namespace.py).
set -eu
set -- python3 -IS /usr/local/lib/muster/mount-namespace.py /sbin/init

if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
  # Plain cgroup v2: systemd must create groups in the node's tree, but Docker mounts it read-only by default.
  [ -w /sys/fs/cgroup ] || mount -o remount,rw /sys/fs/cgroup || true
  if [ ! -w /sys/fs/cgroup ]; then
    echo "muster-entry: /sys/fs/cgroup cannot be mounted writable, so systemd cannot start. Fix: allow the mount" \
      "(SYS_ADMIN, apparmor=unconfined, label=disable), or use Docker 28 or newer, which mounts it writable" >&2
    exit 1
  fi
  exec "$@"
fi

# Hybrid v1: Docker provides cgroup v1, but systemd 257 requires cgroup2. So the node gets its own group in the host's
# cgroup2 tree for systemd. The v1 controllers of its Docker group are mounted at /run/cgv1 for Slurm's cgroup/v1 plugin.
group="muster/${MUSTER_CLUSTER:-none}/$(hostname)"
mkdir -p /run/cg
mount -t cgroup2 none /run/cg
mkdir -p "/run/cg/$group"
echo 0 > "/run/cg/$group/cgroup.procs"
umount /run/cg
rmdir /run/cg
# shellcheck disable=SC2016  # expanded by the inner shell
exec unshare --cgroup --mount sh -euc '
  # Controllers that the host mounts together (cpu,cpuacct) can only be mounted together: mount them in one directory and
  # link each name to it.
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
  exec "$@"' sh "$@"
