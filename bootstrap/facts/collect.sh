#!/bin/sh
# Prints every fact that steps depend on, one per line, fields separated by tabs. Changes nothing.
# Set by the caller: SHARED, HOMES, ENVIRONMENT, PACKAGES, UNITS, and CONTROLLER and MACHINE (yes or no), see Probe in
# collect.py; the commands SHOW_NODES, LIST_ASSOCIATIONS and LIST_USERS.
# Starts as few processes as it can: they are most of what a second `up` costs a node.
set -u
tab='	'

set --
for file in /etc/muster/* /etc/muster/keys/* /etc/muster/power/* /etc/slurm/*.key /etc/slurm/*.jwks /etc/slurm/*.conf /etc/default/slurmd /etc/default/sackd \
  /etc/systemd/system/muster-* /etc/systemd/system/*.service.d/muster*.conf /etc/ssh/ssh_known_hosts \
  /etc/ssh/sshd_config.d/*.conf /etc/pam.d/sshd /etc/security/limits.d/*.conf /etc/sudoers.d/muster /etc/mysql/mariadb.conf.d/90-muster.cnf \
  /etc/ssh/ssh_host_ed25519_key /etc/sysctl.d/*muster.conf /etc/modprobe.d/muster.conf /etc/apt/apt.conf.d/*muster \
  /etc/needrestart/conf.d/muster.conf /etc/systemd/resolved.conf.d/muster.conf /etc/chrony/sources.d/muster.sources \
  /etc/systemd/system/*.mount /etc/exports.d/muster.exports /etc/ganesha/ganesha.conf; do
  if [ -f "$file" ]; then set -- "$@" "$file"; fi
done
if [ $# -gt 0 ]; then
  stat -c "stat$tab%n$tab%a$tab%U:%G" "$@"
  # sha256sum marks a line with a backslash if it has doubled those in the name: mount units have names such as
  # mnt-my\x2ddata.mount.
  sha256sum "$@" | sed '/^\\/ { s/^.//; s/\\\\/\\/g; }
s/^\([0-9a-f]*\)  /sha256\t\1\t/'
fi

for marker in /var/lib/muster/*; do
  if [ -f "$marker" ]; then
    value=
    read -r value <"$marker" || true
    echo "marker$tab${marker##*/}$tab$value"
  fi
done

# shellcheck disable=SC2086  # lists
for unit in $UNITS; do
  enabled=no
  if [ -e "/etc/systemd/system/multi-user.target.wants/$unit.service" ]; then enabled=yes; fi
  echo "enabled$tab$unit$tab$enabled"
done
# shellcheck disable=SC2086
systemctl is-active $UNITS | { for unit in $UNITS; do read -r state; echo "active$tab$unit$tab$state"; done; }

# shellcheck disable=SC2086
dpkg-query -W -f "package$tab\${Package}$tab\${Version}$tab\${db:Status-Status}\n" $PACKAGES 2>/dev/null

awk -v OFS='\t' -v "first=$FIRST_UID" -v "last=$LAST_UID" '
  FILENAME == "/proc/mounts" { print "mount", $2, $3, $1; next }
  { split($0, user, ":") }
  user[3] >= first && user[3] <= last { print "user", user[1], user[3], user[5], user[6], user[7] }
' /etc/passwd /proc/mounts

kind=none
# This file is in the root of cgroups v2 only.
controllers=
if [ -r /sys/fs/cgroup/cgroup.controllers ]; then read -r controllers </sys/fs/cgroup/cgroup.controllers; fi
if [ -d /run/cgv1/memory ]; then
  kind=v1
else
  case " $controllers " in *' memory '*) kind=v2 ;; esac
fi
echo "cgroup$tab$kind"
network=
if [ -r /run/muster/job-network ]; then read -r network </run/muster/job-network; fi
if [ "$network" = closed ] && ! nft list table inet muster_jobs >/dev/null 2>&1; then network=; fi
echo "job_network$tab$network"
read -r name </proc/sys/kernel/hostname
echo "hostname$tab$name"
container=no
if [ -e /run/systemd/container ] || [ -e /.dockerenv ]; then container=yes; fi
echo "container$tab$container"
hosts=stale
if [ -x /etc/muster/merge-hosts ] && /etc/muster/merge-hosts --check; then hosts=merged; fi
echo "hosts$tab$hosts"

if [ "$CONTROLLER" = yes ]; then
  echo "environment$tab$(if [ -e "$ENVIRONMENT/.complete" ]; then echo complete; else echo missing; fi)"
  echo "bundle$tab$(readlink "$SHARED/muster" | sed 's,.*/,,')"
  for home in "$HOMES"/*; do
    if [ -d "$home" ]; then
      trusted=no
      key=$home/.ssh/id_ed25519.pub
      list=$home/.ssh/authorized_keys
      # Only plain files are read: the owner of the home could have created a pipe, and reading it would block.
      if [ -f "$key" ] && [ -f "$list" ] && grep -qsxFf "$key" "$list"; then trusted=yes; fi
      echo "home$tab${home##*/}$tab$(stat -c %u "$home")$tab$trusted"
    fi
  done
  # shellcheck disable=SC2086  # commands with their arguments
  if systemctl -q is-active slurmctld && systemctl -q is-active slurmdbd; then
    timeout 10 $SHOW_NODES 2>/dev/null | sed "s/^/node$tab/"
    timeout 10 $LIST_ASSOCIATIONS 2>/dev/null | sed "s/^/assoc$tab/"
    timeout 10 $LIST_USERS 2>/dev/null | sed "s/^/admin$tab/"
  fi
fi
if [ "$MACHINE" = yes ]; then
  # shellcheck source=/dev/null
  (. /etc/os-release && echo "distribution$tab$ID $VERSION_ID")
  echo "kernel$tab$(uname -r)"
  for disk in /sys/block/nvme*; do
    if read -r serial <"$disk/device/serial" && read -r model <"$disk/device/model"; then
      echo "disk$tab/dev/${disk##*/}$tab$serial$tab$model"
    fi 2>/dev/null
  done
fi
echo "clock$tab$(date +%s.%N)"
