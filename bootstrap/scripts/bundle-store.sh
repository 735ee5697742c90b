#!/bin/sh
# Functions for a folder of bundles that a link leads into one after the other. The caller sets STORE (folder of all bundles)
# and, for delete_unused, RETAINED (number of bundles that always stay) and LIST_STARTS (a command that prints
# `state|start time` for each job).
set -eu

# Deletes what calls that were killed have left, given the number of minutes after which a call cannot be running still.
delete_leftovers() {
  find "$STORE" -mindepth 1 -maxdepth 1 \( -name '.new.*' -o -name '.deleted.*' \) -mmin +"$1" -exec rm -rf {} +
}

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
