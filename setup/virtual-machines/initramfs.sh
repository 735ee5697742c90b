#!/bin/sh
# Runs in the root of a new machine: writes an initramfs that mounts the disk, and nothing else.
set -eu
kernel=$1
folder=$(mktemp -d)
mkdir "$folder/bin" "$folder/dev" "$folder/proc" "$folder/sys" "$folder/new" "$folder/modules"
cp /usr/bin/busybox "$folder/bin/busybox"
ln -s busybox "$folder/bin/sh"
modprobe --set-version "$kernel" --all --show-depends virtio_pci virtio_blk ext4 |
  awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >/tmp/order
while read -r module; do
  cp "$module" "$folder/modules"
  echo "${module##*/}" >>"$folder/order"
done </tmp/order
cp /init "$folder/init"
chmod 755 "$folder/init"
(cd "$folder" && find . | cpio --quiet -oH newc | gzip -1) >/boot/initramfs
rm -r "$folder" /tmp/order /init
