#!/bin/sh
# Lets this machine start a kernel that was installed with its Lustre client, and requests a restart.
# Set by the caller: KERNEL, RUNNING (the kernel without a client), and RESTART, the file that requests a restart.
attempted=/var/lib/muster/kernel
# Kernels and clients that are installed once never change by themselves.
apt-mark hold "linux-image-$KERNEL" "linux-headers-$KERNEL" "lustre-client-modules-$KERNEL" >/dev/null
# GRUB starts the newest kernel by default, which is the one without a client.
mkdir -p /etc/default/grub.d
echo "GRUB_DEFAULT='Advanced options for Ubuntu>Ubuntu, with Linux $KERNEL'" >/etc/default/grub.d/90-muster.cfg
update-grub
mkdir -p "$(dirname "$attempted")" "$(dirname "$RESTART")"
echo "$KERNEL $(cat /proc/sys/kernel/random/boot_id)" >"$attempted"
echo "restart with kernel $KERNEL, which has a Lustre client; $RUNNING has none" >"$RESTART"
