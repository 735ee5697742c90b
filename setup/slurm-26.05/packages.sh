#!/bin/sh
# Installs Slurm 26.05 from Debian forky. The packages of both releases stay in /opt/muster/slurm: `muster upgrade` installs
# them on running nodes, which may have no access to a mirror, and a cluster that has to go back needs the old ones.
set -eu
store=/opt/muster/slurm
slurm="slurmctld slurmd slurmdbd slurm-client sackd slurm-wlm-basic-plugins slurm-wlm-jwt-plugin slurm-wlm-mysql-plugin libpam-slurm-adopt"
libraries="libhwloc15 libhwloc-plugins libze1 libllhttp9.4"
trixie=/etc/apt/sources.list.d/debian.sources

download() {
  rm -f /var/cache/apt/archives/*.deb
  # shellcheck disable=SC2086  # lists
  apt-get -q install -y --no-install-recommends --download-only "$@"
  mkdir -p "$store/$release"
  mv /var/cache/apt/archives/*.deb "$store/$release"
}

apt-get -q -o Acquire::Languages=none update
release=24.11
# shellcheck disable=SC2086
download --reinstall $slurm libhwloc15 libhwloc-plugins libze1

# The mirror of trixie has forky too. Its index may be past its date on a mirror that is updated rarely; the signature is
# still checked. Only Slurm and its libraries are taken from forky.
cat >/etc/apt/sources.list.d/muster-slurm.sources <<EOF
Types: deb
URIs: $(sed -n 's/^URIs: *//p' $trixie | head -n 1)
Suites: forky
Components: main
Signed-By: $(sed -n 's/^Signed-By: *//p' $trixie | head -n 1)
Check-Valid-Until: no
EOF
cat >/etc/apt/preferences.d/muster-slurm <<EOF
Package: *
Pin: release n=forky
Pin-Priority: 1

Package: src:slurm-wlm
Pin: version 26.05.*
Pin-Priority: 990

Package: $libraries
Pin: release n=forky
Pin-Priority: 990
EOF
apt-get -q -o Acquire::Languages=none update
release=26.05
# shellcheck disable=SC2086
download $slurm

# The daemons must not start while the image is built.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
dpkg -i --force-confold "$store/26.05"/*.deb
rm -f /usr/sbin/policy-rc.d
systemctl disable slurmd slurmctld slurmdbd sackd
# shellcheck disable=SC2086
dpkg-query -W -f '${Package} ${Version}\n' $slurm >"$store/installed.txt"
grep -q '^slurmctld 26\.05\.' "$store/installed.txt"
rm -f /etc/apt/sources.list.d/muster-slurm.sources /etc/apt/preferences.d/muster-slurm
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*.log /var/log/apt
ldconfig
touch -r /usr /etc/.updated /var/.updated
