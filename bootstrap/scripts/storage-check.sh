#!/bin/sh
# Checks a shared filesystem from one of the nodes that mount it, in two rounds that all nodes run at the same time:
#   write   creates files, measures, and leaves a file for the other nodes
#   watch   reads the files of the others; meanwhile one node replaces a file again and again by renaming. Runs only if the
#           server's clock is right.
# Set by the caller: ROUND, MOUNT, FOLDER (of this check, on the filesystem), TOKEN, NODE, WRITER (the node that renames),
# OTHERS (all other nodes), SIZE_MB, SEEN_S (how long files of others may take to appear, and then the last rename). Prints
# lines of fields separated by tabs: a fact and its values, or `error`, what was tried, and the message.
set -u
export LC_ALL=C
RENAMING_S=1
LINES=4096

fact() {
  text=$1
  shift
  for value in "$@"; do text="$text	$value"; done
  printf '%s\n' "$text"
}

# Runs a command; if it fails, nothing that follows makes sense.
try() {
  what=$1
  shift
  if ! message=$("$@" 2>&1); then
    fact error "$what" "$(echo "$message" | tail -n 1)"
    exit 0
  fi
}

now() { date +%s.%N; }

create() { : >"$1"; }

start_waiting() { deadline=$(($(date +%s) + SEEN_S)); }

is_over() { [ "$(date +%s)" -ge "$deadline" ]; }

# Folders of checks that were killed. Only after the first round, because their age depends on the server's clock.
remove_old_folders() {
  find "$MOUNT" -maxdepth 1 -name '.muster-check-*' ! -path "$FOLDER" -mmin +60 -exec rm -rf {} + 2>/dev/null
}

# A file of equal lines, so that a mixture of two versions is recognized.
replace_pointer() {
  yes "$1" | head -n $LINES >"$FOLDER/pointer.new" && mv -f "$FOLDER/pointer.new" "$FOLDER/pointer"
}

write() {
  try "create a folder" mkdir -p "$FOLDER"
  before=$(now)
  try "create a file" create "$FOLDER/$NODE.data"
  fact clock "$before" "$(stat -c %.9Y "$FOLDER/$NODE.data")" "$(now)"
  began=$(now)
  try "write $SIZE_MB MB and fsync" dd if=/dev/zero of="$FOLDER/$NODE.data" bs=1M count="$SIZE_MB" conv=fsync status=none
  fact wrote "$began" "$(now)"
  rm -f "$FOLDER/$NODE.data"
  if [ "$NODE" = "$WRITER" ]; then try "rename a file" replace_pointer 0; fi
  echo "$TOKEN $NODE" >"$FOLDER/$NODE.new"
  try "fsync a file" sync "$FOLDER/$NODE.new"
  try "give a file to another user" chown 1:1 "$FOLDER/$NODE.new"
  fact owner "$(stat -c %u "$FOLDER/$NODE.new")"
  try "rename a file" mv -f "$FOLDER/$NODE.new" "$FOLDER/$NODE.here"
  fact written "$NODE"
}

watch_others() {
  start_waiting
  for other in $OTHERS; do
    until [ "$(cat "$FOLDER/$other.here" 2>/dev/null)" = "$TOKEN $other" ]; do
      if is_over; then
        fact unseen "$other"
        break
      fi
      sleep 0.1
    done
  done
}

replace_often() {
  last=$(($(date +%s) + RENAMING_S))
  number=0
  while [ "$(date +%s)" -le "$last" ]; do
    number=$((number + 1))
    try "rename a file" replace_pointer $number
  done
  try "rename a file" replace_pointer end
}

# A file that was replaced while it was read may be stale on NFS: a program that opens it again gets the new one.
read_pointer() {
  start_waiting
  torn=0
  missing=0
  while :; do
    text=$(uniq -c "$FOLDER/pointer" 2>&1)
    # shellcheck disable=SC2086  # a count and a line
    set -- $text
    case $text in
      *"No such file"*) missing=$((missing + 1)) ;;
      *[Ss]tale*) ;;
      *) if [ $# != 2 ] || [ "$1" != $LINES ]; then torn=$((torn + 1)); elif [ "$2" = end ]; then break; fi ;;
    esac
    if is_over; then
      fact old "$(echo "$text" | tail -n 1)"
      break
    fi
    # Without a pause, readers that share a machine with the writer would keep it from writing.
    sleep 0.02
  done
  fact renames "$torn" "$missing"
}

if [ "$ROUND" = write ]; then
  fact source "$(awk -v path="$MOUNT" '$2 == path { source = $1 " (" $3 ")" } END { print source }' /proc/self/mounts)"
  write
elif [ "$NODE" = "$WRITER" ]; then
  replace_often
  watch_others
  remove_old_folders
  fact watched "$NODE"
else
  watch_others
  read_pointer
  remove_old_folders
  fact watched "$NODE"
fi
