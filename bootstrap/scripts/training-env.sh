#!/bin/sh
# Builds the Python training environment of a lock file, once: training-env.sh LOCK DEST
#
# DEST/.complete exists only when everything is in place, so a program that sees it can use DEST without further checks.
# Safe to run on several nodes at once and after a kill at any point: one run builds, the others wait for it.
set -eu
umask 022

[ $# -eq 2 ] || { echo "usage: training-env.sh LOCK DEST" >&2; exit 2; }
lock=$1
dest=$2
log=
pip=
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
  fail "no Python 3.11 or newer; install one (Ubuntu 22.04: python3.11 and python3.11-venv)"
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
python=$(find_python)
{ mkdir "$dest" "$dest/.tmp" && "$python" -m venv "$dest"; } >"$log" 2>&1 || explain "$python -m venv"
install || explain "pip install"
# Bytecode is compiled now, on all cores, because users cannot write it here and first imports would be slow.
say "compiling"
"$dest/bin/python" -m compileall -q -j 0 "$dest/lib" >"$log" 2>&1 || ! grep -qi 'no space left' "$log" || explain "compiling"
rm -rf "$dest/.tmp"
chmod -R go-w,a+rX "$dest"
sync -f "$dest"
{ : >"$dest/.complete"; } 2>>"$log" || explain "writing .complete"
say "ready: $dest, $(du -sm "$dest" | cut -f1) MB in $(($(date +%s) - began)) s"
