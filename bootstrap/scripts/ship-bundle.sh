#!/bin/sh
# Unpacks a bundle from standard input, points the link to it, and deletes old bundles that no job can be using. The
# caller sets STORE (folder of all bundles), LINK, DIGEST, SIZE (bytes of the archive), RETAINED (number of bundles that
# always stay) and LIST_STARTS (a command that prints `state|start time` for each job).
set -eu

# Prints when the first of the jobs that hold nodes was started, in seconds since the epoch; nothing without such jobs.
# Fails if any start is unknown.
find_earliest_start() {
  jobs=$(timeout 10 sh -c "$LIST_STARTS" 2>/dev/null) || return 1
  earliest=
  while IFS='|' read -r state start; do
    case $state in '' | PENDING) continue ;; esac
    [ -n "$start" ] || return 1
    seconds=$(date -d "$start" +%s 2>/dev/null) || return 1
    if [ -z "$earliest" ] || [ "$seconds" -lt "$earliest" ]; then earliest=$seconds; fi
  done <<LIST
$jobs
LIST
  echo "$earliest"
}

# A job uses the bundle that the link led to when it started, so a bundle is unused if every job was started after it had
# been replaced. That was when the next bundle was linked, at most a minute after the time of change of its folder.
delete_unused() {
  # shellcheck disable=SC2012  # the names are digests
  old=$(ls -1dt "$STORE"/*/ | tail -n +"$RETAINED")
  [ "$(printf '%s\n' "$old" | wc -l)" -gt 1 ] || return 0
  if ! earliest=$(find_earliest_start); then
    echo "old bundles stay in $STORE: the jobs that may use them cannot be listed"
    return 0
  fi
  replaced=
  for bundle in $old; do
    if [ -n "$replaced" ] && { [ -z "$earliest" ] || [ "$earliest" -gt $((replaced + 60)) ]; }; then
      # Renamed first: a folder with the name of a digest is always complete.
      deleted=$(mktemp -d "$STORE/.deleted.XXXXXX")
      mv -T "$bundle" "$deleted"
      rm -rf "$deleted"
    else
      replaced=$(stat -c %Y "$bundle")
    fi
  done
}

mkdir -p "$STORE"
# Left by calls that were killed: none takes longer than a minute.
find "$STORE" -mindepth 1 -maxdepth 1 \( -name '.new.*' -o -name '.deleted.*' \) -mmin +10 -exec rm -rf {} +
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
