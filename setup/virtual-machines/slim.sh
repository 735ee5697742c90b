#!/bin/sh
# Runs in the root of a new machine, whose processor is emulated: leaves out what makes it start slowly.
set -eu
kernel=$1
for generator in debug gpt-auto hibernate-resume rc-local run ssh system-update sysv tpm2 getty; do
  mkdir -p /etc/systemd/system-generators
  ln -sf /dev/null "/etc/systemd/system-generators/systemd-$generator-generator"
done
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
  fstrim.timer getty.target serial-getty@.service modprobe@configfs.service modprobe@drm.service \
  modprobe@efi_pstore.service modprobe@fuse.service proc-sys-fs-binfmt_misc.automount sshd-keygen.service \
  sys-fs-fuse-connections.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
  systemd-ask-password-console.path systemd-ask-password-wall.path systemd-binfmt.service \
  systemd-growfs-root.service systemd-hibernate-clear.service systemd-hwdb-update.service \
  systemd-journal-catalog-update.service systemd-machine-id-commit.service systemd-pcrmachine.service \
  systemd-pcrphase-sysinit.service systemd-pcrphase.service systemd-pstore.service \
  systemd-quotacheck-root.service systemd-random-seed.service systemd-remount-fs.service \
  systemd-rfkill.socket systemd-timesyncd.service systemd-tpm2-setup-early.service systemd-tpm2-setup.service \
  systemd-update-done.service; do
  ln -sf /dev/null "/etc/systemd/system/$unit"
done
systemctl -q disable e2scrub_reap.service fstrim.timer 2>/dev/null || true
systemctl -q set-default multi-user.target
systemctl -q enable ssh.service test-machine.service test-machine-access.service
touch -r /usr /etc/.updated /var/.updated
# Compressed modules take seconds to load, and each that is there makes finding devices slower.
folder=/usr/lib/modules/$kernel
kept=$(mktemp -d)
while read -r name; do
  modprobe --set-version "$kernel" --show-depends "$name" || exit 1
done </modules.txt | awk '$1 == "insmod" { print $2 }' | sort -u >/tmp/kept
while read -r module; do
  target=$kept/${module#*"$kernel"/}
  mkdir -p "${target%/*}"
  case $module in
    *.xz) xz -dc "$module" >"${target%.xz}" ;;
    *) cp "$module" "$target" ;;
  esac
done </tmp/kept
rm -rf "$folder/kernel" /tmp/kept /modules.txt
mv "$kept/kernel" "$folder/kernel"
rmdir "$kept"
depmod "$kernel"
