#!/bin/sh
# Makes a container of the node image look like a machine of EC2 before its user data runs. Runs at every boot.
set -eu
# Docker writes this file at each start. The image has no systemd-resolved, so the cluster's domain is searched from here.
printf 'nameserver 169.254.169.253\nsearch %s ec2.internal\n' "$(cat /usr/lib/rehearsal/domain)" >/etc/resolv.conf
# Docker mounts this file, so that it cannot be replaced; `hostnamectl` replaces it.
if mountpoint -q /etc/hostname; then
  umount /etc/hostname
  hostname >/etc/hostname
fi
if [ ! -e /usr/local/share/ca-certificates/.installed ]; then
  update-ca-certificates >/dev/null 2>&1
  touch /usr/local/share/ca-certificates/.installed
fi
# Ubuntu has no package of this Slurm: set-up builds and installs it as if the node image did not contain it.
if [ ! -e /var/lib/dpkg/.slurm-hidden ]; then
  awk -v RS= -v ORS='\n\n' '!/^Package: (slurm|sackd)/' /var/lib/dpkg/status >/var/lib/dpkg/status.new
  mv /var/lib/dpkg/status.new /var/lib/dpkg/status
  touch /var/lib/dpkg/.slurm-hidden
fi
if [ -e /usr/lib/rehearsal/next-kernel ]; then mv /usr/lib/rehearsal/next-kernel /usr/lib/rehearsal/kernel; fi
# A restart removes the devices: disks that are attached appear again.
for disk in /sys/block/nvme*; do
  if [ ! -e "$disk/dev" ] || [ -e "/dev/${disk##*/}" ]; then continue; fi
  number=$(cat "$disk/dev")
  mknod "/dev/${disk##*/}" b "${number%:*}" "${number#*:}"
done
index=0
while [ $index -lt "$(cat /usr/lib/rehearsal/gpus)" ]; do
  [ -e "/dev/nvidia$index" ] || mknod -m 666 "/dev/nvidia$index" c 195 $index
  index=$((index + 1))
done
hardware=/usr/lib/rehearsal/hardware
if [ ! -d "$hardware" ]; then exit 0; fi
# A container has the /proc and /sys of its host: cover the parts that show a machine's hardware.
mount -t tmpfs none /proc/driver
mount -t tmpfs none /sys/module
mkdir -p /run/rehearsal-class/net
mount --bind /sys/class/net /run/rehearsal-class/net
mount --rbind /run/rehearsal-class /sys/class
(cd "$hardware" && find . -type f -exec sh -c 'install -D -m "$(stat -c %a "$1")" "$1" "/$1"' _ {} \;)
# The driver offers IMEX channels; the prolog creates the device of one.
if [ -e "$hardware/usr/bin/nvidia-imex" ] && ! grep -q imex-channels /proc/devices; then
  sed 's/^Character devices:$/&\n511 nvidia-caps-imex-channels/' /proc/devices >/run/rehearsal-devices
  mount --bind /run/rehearsal-devices /proc/devices
fi
# The loader lists only real libraries, by the name inside: one of libc's is renamed.
if [ -d /opt/amazon/ofi-nccl ]; then
  mkdir -p /opt/amazon/ofi-nccl/lib
  { LC_ALL=C sed 's/libpthread\.so\.0\x00/libnccl-net.so\x00\x00/' /lib/*-linux-gnu/libpthread.so.0; cat /opt/amazon/ofi-nccl/banner; } \
    >/opt/amazon/ofi-nccl/lib/libnccl-net.so
  echo /opt/amazon/ofi-nccl/lib >/etc/ld.so.conf.d/100_ofinccl.conf
fi
ldconfig
