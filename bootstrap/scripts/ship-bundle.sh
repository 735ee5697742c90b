#!/bin/sh
# Unpacks a bundle from standard input, points the link to it, and deletes old bundles that no job can be using. The
# caller sets LINK, DIGEST, SIZE (bytes of the archive) and what bundle-store.sh needs, which comes first.
set -eu

mkdir -p "$STORE"
# No call takes longer than a minute.
delete_leftovers 10
# A bundle that is there already may be in use: it is linked again, not replaced.
if [ -d "$STORE/$DIGEST" ]; then
  head -c "$SIZE" >/dev/null
else
  new=$(mktemp -d "$STORE/.new.XXXXXX")
  trap 'rm -rf "$new" "$new.tar"' EXIT
  # mktemp lets only root read it.
  chmod 755 "$new"
  # A connection that is cut looks like the end of the archive, and tar accepts one that ends between two files.
  head -c "$SIZE" >"$new.tar"
  if [ "$(stat -c %s "$new.tar")" != "$SIZE" ]; then
    echo "the connection was cut before all $SIZE bytes had arrived" >&2
    exit 1
  fi
  tar -x -f "$new.tar" -C "$new" --no-same-owner
  mv -T "$new" "$STORE/$DIGEST"
fi
# Also before the link is moved: if this call is killed in between, the bundle is not taken for an old one.
touch "$STORE/$DIGEST"
ln -sfn "$STORE/$DIGEST" "$LINK.new"
mv -fT "$LINK.new" "$LINK"
touch "$STORE/$DIGEST"
# Users cannot write bytecode here, so every rank would compile at every start. Nothing waits for this.
nice python3 -m compileall -q "$STORE/$DIGEST/trainer" >/dev/null 2>&1 </dev/null &
delete_unused
