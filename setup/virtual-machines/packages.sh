#!/bin/sh
# Runs in the root of a new Debian: installs packages, and fetches those that bootstrap will install into a repository
# on the machine's own disk: machines of tests reach no network.
set -eu
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
# Machines that are thrown away need not survive a crash in the middle of an installation, and nobody reads manuals.
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/unsafe-io
printf 'path-exclude=/usr/share/%s/*\n' doc man locale >/etc/dpkg/dpkg.cfg.d/no-documentation
# The machines boot with an initramfs of their own, which is much smaller.
dpkg-divert --local --rename --add /usr/sbin/update-initramfs
ln -s /bin/true /usr/sbin/update-initramfs
get="apt-get -q -y -o APT::Install-Recommends=false"
$get update
# shellcheck disable=SC2086  # lists
$get install $INSTALLED
# shellcheck disable=SC2086
$get install --download-only $OFFERED
mkdir -p /opt/packages
mv /var/cache/apt/archives/*.deb /opt/packages
# As after an installation by bootstrap, which starts the daemons that a node needs.
systemctl -q disable slurmd slurmctld slurmdbd sackd mariadb munge nfs-server nfs-blkmap rpcbind.service rpcbind.socket \
  nftables
rm -f /usr/sbin/policy-rc.d /etc/ssh/ssh_host_* /etc/munge/munge.key
# The user that the owner logs in as.
useradd --create-home --shell /bin/sh ops
echo 'ops ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops
chmod 440 /etc/sudoers.d/ops
