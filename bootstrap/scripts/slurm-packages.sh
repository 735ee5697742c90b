#!/bin/sh
# Puts Slurm's packages of a role into PACKAGES, on distributions without a matching release; the step `packages`
# installs them. The controller builds the packages of all roles once, with the packaging in Slurm's source, and
# stores them where the other nodes wait for them.
# Set by the caller: MODE (build; wait; publish: build, and unpack all packages for an upgrade; bake: build for an
# image, and store nothing), KEY (digest of source and distribution), SOURCES (addresses), SHA256 (of the source),
# WORK (a folder of this machine), PACKAGES, PUBLISHED (folder on the shared filesystem), SUMS (file for the sums of
# what is published), NAMES (packages of the role), SLURM_UID, FETCH_LISTS (script that fetches package lists), and STORE,
# a command that shares the archive between nodes: `$STORE fetch|store PATH`.
set -eu
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
archive=$WORK/$KEY.tar
WAIT_TRIES=${WAIT_TRIES:-360}

say() { echo "slurm: $*"; }

fail() {
  echo "slurm: $*" >&2
  exit 1
}

is_there() {
  [ -e "$archive" ] || {
    $STORE fetch "$archive.$$" 2>/dev/null && mv -f "$archive.$$" "$archive" && : >"$archive.stored"
  }
}

fetch_source() {
  for address in $SOURCES; do
    say "fetching $address"
    if python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$address" "$WORK/source.tar.gz"; then
      if [ "$(sha256sum <"$WORK/source.tar.gz")" = "$SHA256  -" ]; then return; fi
      say "$address does not have the pinned SHA-256"
    fi
  done
  fail "no source with sha256 $SHA256; give the controller access to the internet (network.egress), or use an image with Slurm"
}

build() {
  rm -rf "$WORK"
  mkdir -p "$WORK/source"
  fetch_source
  tar -x -f "$WORK/source.tar.gz" -C "$WORK/source" --strip-components 1
  say "installing build dependencies"
  sh -e -c "$FETCH_LISTS"
  apt-get -q install -y --no-install-recommends build-essential fakeroot devscripts equivs
  # In a shell of its own: STORE finds its program in the folder from which this script was started.
  (cd "$WORK/source" && mk-build-deps --install --remove --tool 'apt-get -q -y --no-install-recommends' debian/control)
  say "building; this takes minutes, once per cluster"
  # An upgrade builds while slurmctld runs. Ubuntu optimizes at link time, which takes several times as long; nobody installs
  # debug symbols.
  options="nocheck noautodbgsym optimize=-lto parallel=$(nproc)"
  (cd "$WORK/source" && DEB_BUILD_OPTIONS=$options DEB_CFLAGS_STRIP=-g nice debuild -b -uc -us) >"$WORK/build.log" 2>&1 ||
    fail "the build failed: $(grep -i error "$WORK/build.log" | tail -n 1) (full log: $WORK/build.log)"
  mkdir "$WORK/built"
  mv "$WORK"/*.deb "$WORK/built"
  tar -c -f "$archive.new" -C "$WORK/built" .
  mv -f "$archive.new" "$archive"
}

publish() {
  rm -rf "$PUBLISHED.new" "$WORK/unpacked"
  mkdir -p "$PUBLISHED.new" "$WORK/unpacked"
  tar -x -f "$archive" -C "$WORK/unpacked"
  # Nodes compare the packages with these sums, because users may be able to change the shared filesystem.
  (cd "$WORK/unpacked" && sha256sum -- *.deb) >"$SUMS"
  cp "$WORK/unpacked"/*.deb "$PUBLISHED.new"
  rm -rf "$WORK/unpacked"
  rm -rf "$PUBLISHED"
  mv "$PUBLISHED.new" "$PUBLISHED"
}

mkdir -p "$WORK"
if [ "$MODE" != wait ]; then
  is_there || build
  if [ "$MODE" != bake ] && [ ! -e "$archive.stored" ]; then
    $STORE store "$archive" || fail "Slurm's packages are built, but storing them for the other nodes failed; run again to store them"
    : >"$archive.stored"
  fi
else
  tries=0
  until is_there; do
    tries=$((tries + 1))
    [ $tries -le "$WAIT_TRIES" ] || fail "the controller has not built Slurm's packages; see its report"
    [ $((tries % 12)) -ne 1 ] || say "waiting for the controller to build Slurm's packages"
    sleep 5
  done
fi

if [ "$MODE" = publish ]; then
  publish
  exit
fi

# The packages create no user; the uid is Debian's, so that files on shared disks have the same owner.
getent group slurm >/dev/null || groupadd -g "$SLURM_UID" slurm
getent passwd slurm >/dev/null || useradd -r -u "$SLURM_UID" -g slurm -d /var/lib/slurm -s /usr/sbin/nologin slurm
install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm /etc/slurm
rm -rf "$PACKAGES"
mkdir -p "$PACKAGES"
for name in $NAMES; do tar -x -f "$archive" -C "$PACKAGES" --wildcards "*/${name}_*.deb"; done
