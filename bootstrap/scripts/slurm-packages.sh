#!/bin/sh
# Installs Slurm from our own packages, on distributions without a matching release. The controller builds them once, with the
# packaging in Slurm's source, and puts them where the other nodes wait for them.
# Set by the caller: MODE (build or wait), KEY (digest of source, distribution and this script), SOURCES (addresses), SHA256 (of
# the source), FOLDER (on the shared filesystem), NAMES (packages to install), SLURM_UID, and STORE, a command that shares the
# archive between nodes: `$STORE fetch|store PATH`.
set -eu
export DEBIAN_FRONTEND=noninteractive
archive=$FOLDER/$KEY.tar
work=/var/cache/muster-slurm
WAIT_TRIES=${WAIT_TRIES:-360}

say() { echo "slurm: $*"; }

fail() {
  echo "slurm: $*" >&2
  exit 1
}

is_there() { [ -e "$archive" ] || { $STORE fetch "$archive.$$" 2>/dev/null && mv -f "$archive.$$" "$archive"; }; }

fetch_source() {
  for address in $SOURCES; do
    say "fetching $address"
    if python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$address" "$work/source.tar.gz"; then
      if [ "$(sha256sum <"$work/source.tar.gz")" = "$SHA256  -" ]; then return; fi
      say "$address does not have the pinned SHA-256"
    fi
  done
  fail "no source with sha256 $SHA256; give the controller access to the internet (network.egress), or use an image with Slurm"
}

build() {
  rm -rf "$work"
  mkdir -p "$work/source"
  fetch_source
  tar -x -f "$work/source.tar.gz" -C "$work/source" --strip-components 1
  say "installing build dependencies"
  apt-get -q update
  apt-get -q install -y --no-install-recommends build-essential fakeroot devscripts equivs
  cd "$work/source"
  mk-build-deps --install --remove --tool 'apt-get -q -y --no-install-recommends' debian/control
  say "building; this takes minutes, once per cluster"
  DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)" debuild -b -uc -us >"$work/build.log" 2>&1 ||
    fail "the build failed: $(grep -i error "$work/build.log" | tail -n 1) (full log: $work/build.log)"
  mkdir "$work/built"
  mv "$work"/*.deb "$work/built"
  tar -c -f "$archive.new" -C "$work/built" .
  mv -f "$archive.new" "$archive"
  $STORE store "$archive" || say "the archive is only in $FOLDER: uploading it failed"
}

mkdir -p "$FOLDER"
tries=0
until is_there; do
  if [ "$MODE" = build ]; then
    build
    break
  fi
  tries=$((tries + 1))
  [ $tries -le "$WAIT_TRIES" ] || fail "the controller has not built Slurm's packages; see its report"
  [ $((tries % 12)) -ne 1 ] || say "waiting for the controller to build Slurm's packages"
  sleep 5
done

# The packages create no user; the uid is Debian's, so that files on shared disks have the same owner.
getent group slurm >/dev/null || groupadd -g "$SLURM_UID" slurm
getent passwd slurm >/dev/null || useradd -r -u "$SLURM_UID" -g slurm -d /var/lib/slurm -s /usr/sbin/nologin slurm
install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm /etc/slurm
rm -rf "$work/install"
mkdir -p "$work/install"
tar -x -f "$archive" -C "$work/install"
# Starting a daemon that is not configured yet would block the installation.
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
