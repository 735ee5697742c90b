#!/bin/sh
# Unpacks the files of an image from standard input. Whether all of them arrived is not known here: the caller publishes
# them if so. The caller sets STORE (folder of the image's versions) and ATTEMPT, and puts bundle-store.sh first.
set -eu
mkdir -p "$STORE"
# An image of many GB may take hours to arrive.
delete_leftovers 1440
new="$STORE/.new.$ATTEMPT"
mkdir -m 755 "$new" "$new/rootfs"
# The image's users do not exist here. Devices are the node's; without --anchored, the files of every folder called `dev`
# would be left out.
if ! tar -x -C "$new/rootfs" --no-same-owner --no-same-permissions --anchored --exclude='dev/*' --exclude='./dev/*' -f -; then
  rm -rf "$new"
  exit 1
fi
# A container runs as its job's user, who must be able to read what the image's users can.
find "$new/rootfs" \( -type d ! -perm -555 -o -type f ! -perm -444 -o -type f -perm /100 ! -perm -111 \) -exec chmod a+rX {} +
