#!/bin/sh
# Removes what belongs to the machine that built an image: its names, keys, logs and code. Runs last, before the machine is
# stopped. What the packages and their configuration need to work stays.
set -eu
# Packages enable their daemons; set-up starts those of the role when they are configured.
for unit in slurmctld slurmdbd slurmd sackd mariadb; do
  rm -f "/etc/systemd/system/multi-user.target.wants/$unit.service"
done
rm -f /etc/ssh/ssh_host_* /etc/ssh/ssh_known_hosts /root/.ssh/* /home/*/.ssh/authorized_keys /root/.bash_history
rm -rf /etc/muster
for marker in /var/lib/muster/*; do
  case ${marker##*/} in held | slurm_archive) ;; *) rm -rf "$marker" ;; esac
done
# The bundle and the link to it; the pinned Python, the environments, the packages and the record of the image stay.
rm -rf /opt/muster/current /opt/muster/user-data.sh /opt/muster/[0-9a-f]*[0-9a-f] /opt/muster/*.tar
for unit in muster-continue muster-cluster-end; do
  rm -f "/etc/systemd/system/$unit.service" "/etc/systemd/system/multi-user.target.wants/$unit.service"
done
# cloud-init runs the user data of a new machine only if it has no memory of another one.
if [ -d /var/lib/cloud ]; then find /var/lib/cloud -mindepth 1 -maxdepth 1 ! -name seed -exec rm -rf {} +; fi
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed
rm -rf /var/log/muster /var/log/cloud-init*.log /var/log/journal/* /tmp/* /var/tmp/*
# A controller that starts from the image shares the archive of Slurm's packages with nodes that do not.
if [ -d /var/cache/muster-slurm ]; then find /var/cache/muster-slurm -mindepth 1 -maxdepth 1 ! -name '*.tar' -exec rm -rf {} +; fi
find /var/log -type f -exec truncate -s 0 {} +
rm -f /var/cache/apt/archives/*.deb
# A stopped machine keeps only what is on its disk.
sync
