#!/bin/sh
# Stands in for update-grub: the next boot uses the kernel that GRUB_DEFAULT names, if it is installed.
set -eu
for file in /etc/default/grub.d/*.cfg; do
  # shellcheck source=/dev/null
  . "$file"
done
kernel=${GRUB_DEFAULT##*with Linux }
[ -e "/boot/vmlinuz-$kernel" ] || { echo "update-grub: kernel $kernel is not installed" >&2; exit 1; }
echo "$kernel" >/usr/lib/rehearsal/next-kernel
