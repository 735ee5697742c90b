#!/bin/sh
# Builds the Python training environment of a lock file, once: training-env.sh LOCK DEST [ARCHIVES]
#
# Each line of the file ARCHIVES is `machine sha256 address` of a relocatable Python. The one for this machine becomes part of
# DEST: on a shared filesystem every node then has the same interpreter, with its headers. Without ARCHIVES the environment
# uses the distribution's Python.
#
# DEST/.complete exists only when everything is in place, so a program that sees it can use DEST without further checks.
# Safe to run on several nodes at once and after a kill at any point: one run builds, the others wait for it.
set -eu
umask 022

[ $# -eq 2 ] || [ $# -eq 3 ] || { echo "usage: training-env.sh LOCK DEST [ARCHIVES]" >&2; exit 2; }
lock=$1
dest=$2
archives=${3:-}
log=
pip=
# Not urlretrieve, which has no timeout.
DOWNLOAD='
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
'
began=$(date +%s)

say() { echo "training-env: $*"; }

fail() {
  echo "training-env: $*" >&2
  exit 1
}

clean_up() {
  [ -z "$pip" ] || kill "$pip" 2>/dev/null || true
  [ -z "$log" ] || rm -rf "$(dirname "$log")"
  if [ ! -e "$dest/.complete" ]; then rm -rf "$dest"; fi
}

# Prints pip's last error in one line, with a fix for the two usual causes: a full disk and no network.
explain() {
  free=$(df -Pm "$(dirname "$dest")" | awk 'NR==2 {print $4}')
  if grep -qi 'no space left\|disk quota' "$log" || [ "$free" -lt 32 ]; then
    fail "disk full: $(dirname "$dest") has $free MB left; free space (torch needs about 6 GB) and run again"
  fi
  if grep -qi 'name resolution\|NewConnectionError\|unreachable\|ConnectTimeout\|Connection refused\|Connection timed out' "$log"; then
    fail "no network: $(hostname) cannot reach the Python package index; fill the cache with \`make setup\`, or set network.egress to true"
  fi
  reason=$(grep -i 'error' "$log" | tail -n 1)
  fail "$1 failed: ${reason:-$(tail -n 1 "$log")}"
}

# Shows pip's downloads and its final install as progress, because these take longest.
install() {
  mkfifo "$(dirname "$log")/pipe"
  tee "$log" <"$(dirname "$log")/pipe" |
    sed -un 's/^ *Downloading \(.*\)$/training-env: downloading \1/p; s/^Installing collected packages:.*/training-env: installing/p' &
  shown=$!
  # Wheels are unpacked in DEST, because /tmp is in memory on many nodes.
  TMPDIR="$dest/.tmp" "$dest/bin/python" -m pip install --no-cache-dir --require-hashes --no-compile --disable-pip-version-check \
    --progress-bar off --retries 2 --timeout 60 -r "$lock" >"$(dirname "$log")/pipe" 2>&1 &
  pip=$!
  code=0
  wait "$pip" || code=$?
  pip=
  wait "$shown" || true
  return "$code"
}

# The lock file needs Python 3.11 or newer; distributions whose own Python is older have a second one.
find_python() {
  for python in python3 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  fail "no Python 3.11 or newer; install one, with its package python3-venv"
}

# Copies the pinned Python of this machine into DEST and prints its path. The machine keeps a copy named by its checksum, so
# that an image made from it needs no network.
copy_python() {
  line=$(grep "^$(uname -m) " "$archives") ||
    fail "no pinned Python for $(uname -m); allowed: $(cut -d ' ' -f 1 "$archives" | paste -sd ' ')"
  sha256=$(echo "$line" | cut -d ' ' -f 2)
  copy=/opt/muster/python/$sha256
  [ -e "$copy/bin/python3" ] || fetch_python "$(echo "$line" | cut -d ' ' -f 3)"
  cp -a "$copy" "$dest/python" 2>"$log" || explain "copying Python"
  echo "$dest/python/bin/python3"
}

# Downloads, checks and unpacks a Python to `copy`.
fetch_python() { # ADDRESS
  archive=$dest/.tmp/python.tar.gz
  for pause in 2 10 30 0; do
    if python3 -c "$DOWNLOAD" "$1" "$archive" >"$log" 2>&1; then break; fi
    [ "$pause" != 0 ] || fail "cannot fetch $1: $(tail -n 1 "$log"); set network.egress to true, or use an image that has $copy"
    sleep "$pause"
  done
  actual=$(sha256sum <"$archive" | cut -d ' ' -f 1)
  [ "$actual" = "$sha256" ] || fail "$1 has sha256 $actual, expected $sha256"
  rm -rf "$copy.new"
  { mkdir -p "$copy.new" && tar -x -z -f "$archive" -C "$copy.new" --strip-components 1 --no-same-owner; } >"$log" 2>&1 ||
    explain "unpacking Python"
  mv -T "$copy.new" "$copy"
  rm -f "$archive"
}

[ -r "$lock" ] || fail "cannot read lock file $lock"
if [ -e "$dest/.complete" ]; then
  say "reused $dest"
  exit 0
fi
mkdir -p "$(dirname "$dest")" || fail "cannot create $(dirname "$dest")"

# Children inherit the lock: if this shell is killed, the next run still waits until an orphaned pip has ended.
exec 9>"$dest.lock"
flock -n 9 || { say "another run is building $dest, waiting for it"; flock 9; }
if [ -e "$dest/.complete" ]; then
  say "reused $dest"
  exit 0
fi

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
log=$(mktemp -d)/log
if [ -e "$dest" ]; then
  say "removing the remains of an interrupted run in $dest"
  rm -rf "$dest"
fi

say "building $dest"
mkdir "$dest" "$dest/.tmp" 2>"$log" || explain "mkdir"
if [ -n "$archives" ]; then
  python=$(copy_python)
else
  python=$(find_python)
fi
"$python" -m venv "$dest" >"$log" 2>&1 || explain "$python -m venv"
install || explain "pip install"
# Bytecode is compiled now, on all cores, because users cannot write it here and first imports would be slow.
say "compiling"
"$dest/bin/python" -m compileall -q -j 0 "$dest/lib" ${archives:+"$dest/python/lib"} >"$log" 2>&1 || ! grep -qi 'no space left' "$log" || explain "compiling"
rm -rf "$dest/.tmp"
chmod -R go-w,a+rX "$dest"
sync -f "$dest"
{ : >"$dest/.complete"; } 2>>"$log" || explain "writing .complete"
say "ready: $dest, $(du -sm "$dest" | cut -f1) MB in $(($(date +%s) - began)) s"
