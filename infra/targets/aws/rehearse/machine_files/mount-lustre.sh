#!/bin/bash
# Stands in for mount.lustre: needs the client's module, the filesystem's address and its mount name, and binds the folder
# that stands for it. mount -t lustre calls it with: HOST@tcp:/NAME FOLDER -o OPTIONS
set -euo pipefail
source=$1 folder=$2
host=${source%%@*} name=${source##*:/}
id=${host%%.*}

fail() {
  echo "mount.lustre: mount $source at $folder failed: $1" >&2
  exit "$2"
}

/usr/local/sbin/modprobe lustre || fail "No such device. Are the lustre modules loaded?" 19
getent ahostsv4 "$host" >/dev/null || fail "Can't parse NID '$host@tcp'" 22
if [ ! -d "/rehearsal/storage/$id" ]; then fail "Connection timed out" 110; fi
if [ "$name" != "${id:3:8}" ]; then fail "No such file or directory. Is the MGS specification correct?" 2; fi
mount --bind "/rehearsal/storage/$id" "$folder"
