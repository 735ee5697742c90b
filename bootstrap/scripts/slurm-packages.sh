#!/bin/sh
# Slurm as packages, for a distribution that has no release of its own that fits. The controller builds them once, with the
# packaging that comes with the source, and leaves them where the others find them; the others wait for that.
# Set by the caller: DO (build or wait), KEY (of source, distribution and machine), SOURCES (addresses), SHA256 (of the source),
# STORE (folder on the shared filesystem), NAMES (packages to install), SLURM_UID, and OBJECTS, a command that fetches and
# stores `KEY.tar` in the cluster's bucket.
set -eu
export DEBIAN_FRONTEND=noninteractive
archive=$STORE/$KEY.tar
work=/var/cache/muster-slurm
WAIT_TRIES=${WAIT_TRIES:-360}

say() { echo "slurm: $*"; }

fail() {
  echo "slurm: $*" >&2
  exit 1
}

there() { [ -e "$archive" ] || { $OBJECTS fetch "$archive.$$" 2>/dev/null && mv -f "$archive.$$" "$archive"; }; }

fetch_source() {
  for address in $SOURCES; do
    say "fetching $address"
    if python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$address" "$work/source.tar.gz"; then
      if [ "$(sha256sum <"$work/source.tar.gz")" = "$SHA256  -" ]; then return; fi
      say "$address is not the release that was pinned"
    fi
  done
  fail "no source with sha256 $SHA256; give the controller a way out (network.egress), or an image that has Slurm"
}

build() {
  rm -rf "$work"
  mkdir -p "$work/source"
  fetch_source
  tar -x -f "$work/source.tar.gz" -C "$work/source" --strip-components 1
  say "installing what it is built with"
  apt-get -q update
  apt-get -q install -y --no-install-recommends build-essential fakeroot devscripts equivs
  cd "$work/source"
  mk-build-deps --install --remove --tool 'apt-get -q -y --no-install-recommends' debian/control
  say "building; this takes minutes, once per cluster"
  DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)" debuild -b -uc -us >"$work/build.log" 2>&1 ||
    fail "the build failed: $(grep -i error "$work/build.log" | tail -n 1) (all of it: $work/build.log)"
  mkdir "$work/built"
  mv "$work"/*.deb "$work/built"
  tar -c -f "$archive.new" -C "$work/built" .
  mv -f "$archive.new" "$archive"
  $OBJECTS store "$archive" || say "kept on $STORE only: the bucket did not take it"
}

mkdir -p "$STORE"
tries=0
until there; do
  if [ "$DO" = build ]; then
    build
    break
  fi
  tries=$((tries + 1))
  [ $tries -le "$WAIT_TRIES" ] || fail "the controller has not built Slurm's packages; its own report says why"
  [ $((tries % 12)) -ne 1 ] || say "waiting for the controller to build Slurm's packages"
  sleep 5
done

# The packages make no user; the same number as in Debian's, so that files on shared disks stay readable.
getent group slurm >/dev/null || groupadd -g "$SLURM_UID" slurm
getent passwd slurm >/dev/null || useradd -r -u "$SLURM_UID" -g slurm -d /var/lib/slurm -s /usr/sbin/nologin slurm
install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm /etc/slurm
rm -rf "$work/install"
mkdir -p "$work/install"
tar -x -f "$archive" -C "$work/install"
# A daemon that starts unconfigured would hold up the installation.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
trap 'rm -f /usr/sbin/policy-rc.d' EXIT
files=
for name in $NAMES; do files="$files $(ls "$work/install/${name}_"*.deb)"; done
apt-get -q update
# shellcheck disable=SC2086  # lists
apt-get -q install -y --no-install-recommends $files
# shellcheck disable=SC2086
apt-mark hold $NAMES
rm -rf "$work/install"
