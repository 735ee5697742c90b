#!/bin/sh
# The journal of a machine that its owner gets back: what was there before muster changed it, and how to restore that.
#
#   journal before SUBJECT...     record each subject, before it is changed; the first record of a subject stays
#   journal after SUBJECT...      note what muster has left there, by which a change by somebody else is recognized
#   journal installs ARGUMENT...  note which packages `apt-get install ARGUMENT...` is about to change
#   journal restore               put everything back, then print a line per subject: result, kind, subject, remark
#
# A subject is
#   file:PATH           a file
#   folder:PATH         a folder that is removed if it was missing before and is empty then
#   access:PATH         a file that decides who can log in, which is restored even if somebody has changed it since
#   block:PATH          a file in which only the lines between muster's markers belong to muster
#   registry:PATH       a file of accounts, which packages change too
#   tree:UNIT,...:PATH  a folder whose content belongs to a daemon, and the units that may be this daemon
#   unit:NAME, account:NAME, packages:, undo:COMMAND
# An entry is written next to its place and moved there when it is complete. A subject without a note of what muster left
# was being changed when the connection broke, so it counts as changed by muster.
# Needs no Python: bootstrap installs it later.
set -eu
export LC_ALL=C
RECORD=${MUSTER_RECORD:-/var/lib/muster/record}
BACKUPS=${MUSTER_BACKUPS:-/var/backups/muster}
ENTRIES=$RECORD/entries
ADDED=$RECORD/packages-added
PENDING=$RECORD/packages-pending
PLANNED=$RECORD/packages-planned
TAB=$(printf '\t')

locate() {
  sum=$(printf '%s' "$1" | sha256sum)
  echo "$ENTRIES/${sum%% *}"
}

# Sets kind, what and, for the folder of a daemon, its units.
split() {
  kind=${1%%:*}
  what=${1#*:}
  daemons=
  if [ "$kind" = tree ]; then
    daemons=$(echo "${what%%:*}" | tr , ' ')
    what=${what#*:}
  fi
}

# Prints in one line what is at a path: content, mode and owner, not times.
describe() {
  if [ -L "$1" ]; then
    echo "link $(readlink "$1")"
  elif [ -f "$1" ]; then
    sum=$(sha256sum <"$1")
    echo "file ${sum%% *} $(stat -c '%a %u:%g' "$1")"
  elif [ -d "$1" ]; then
    echo "folder $(stat -c '%a %u:%g' "$1")"
  elif [ -e "$1" ]; then
    echo "special $(stat -c '%F %a %u:%g' "$1")"
  else
    echo absent
  fi
}

# Prints a path among the backups at which nothing is yet.
find_place() {
  place=$BACKUPS$1
  number=1
  while [ -e "$place" ] || [ -L "$place" ]; do
    number=$((number + 1))
    place=$BACKUPS$1.$number
  done
  mkdir -p "${place%/*}"
  echo "$place"
}

# Copies a file to the backups, as that of the given path, and prints where it is.
save() {
  place=$(find_place "$2")
  cp -a "$1" "$place"
  echo "$place"
}

# Prints the first unit of those given that runs.
find_active() {
  for unit in "$@"; do
    if systemctl -q is-active "$unit"; then echo "$unit" && return; fi
  done
}

# Prints every package that has files here, however far its installation came.
list_packages() {
  dpkg-query -W -f "\${db:Status-Status}$TAB\${binary:Package}$TAB\${Version}\n" |
    sed "/^not-installed$TAB/d; /^config-files$TAB/d; s/^[^$TAB]*$TAB//" | sort
}

# Keeps an entry that exists: it is what was there before the first change.
record() {
  split "$1"
  entry=$(locate "$1")
  if [ -d "$entry" ]; then
    case $kind in file | access | registry) notice_change ;; esac
    rm -f "$entry/after" "$entry/ours"
    return
  fi
  case $kind in
    file | access | block | registry | tree)
      record_parents "$what"
      split "$1"
      entry=$(locate "$1")
      ;;
  esac
  case $kind in
    file | access | block | registry | tree | folder) before=$(describe "$what") ;;
    unit) before=$(systemctl is-active "$what" || true) ;;
    account) before=$(getent passwd "$what" || echo absent) ;;
    undo) before=$what ;;
    packages)
      if [ ! -e "$PENDING" ]; then
        list_packages >"$PENDING.new"
        mv "$PENDING.new" "$PENDING"
      fi
      return
      ;;
    *) echo "journal: unknown subject $1" >&2 && exit 2 ;;
  esac
  check_kind
  new=$ENTRIES/.new-$$
  rm -rf "$new"
  mkdir -p "$new"
  printf '%s' "$1" >"$new/subject"
  echo "$before" >"$new/before"
  case $kind,$before in
    undo,* | unit,* | account,* | folder,* | *,absent) ;;
    *) cp -a "$what" "$new/content" ;;
  esac
  sync "$new/subject" "$new/before" "$new"
  if [ -f "$new/content" ]; then sync "$new/content"; fi
  # Two connections may record the same subject at the same time.
  if ! mv -T "$new" "$entry" 2>/dev/null; then
    rm -rf "$new"
    test -d "$entry"
  fi
}

# Refuses what could not be restored.
check_kind() {
  case $kind,${before%% *} in
    tree,folder | tree,absent)
      # A copy of files that a daemon writes to is worth nothing, and the daemon is not muster's.
      # shellcheck disable=SC2086  # a list
      active=$(find_active $daemons)
      if [ -n "$active" ]; then
        echo "journal: $active is active, and muster would change its data in $what:" \
          "stop it and move that folder away, or leave the machine out" >&2
        exit 1
      fi
      ;;
    tree,*) echo "journal: $what is not a folder" >&2 && exit 1 ;;
    folder,*) ;;
    *,folder) echo "journal: $what is a folder, not a file" >&2 && exit 1 ;;
  esac
}

# What somebody has changed since the last note is stored before muster changes it again, and stays on record.
notice_change() {
  if [ ! -e "$entry/after" ]; then return; fi
  current=$(describe "$what")
  if [ "$current" = "$(cat "$entry/after")" ] || [ "$current" = "$(cat "$entry/before")" ]; then return; fi
  if [ "$current" = absent ]; then : >>"$entry/touched"; else save "$what" "$what" >>"$entry/touched"; fi
}

# Folders that are created for a file are removed with it.
record_parents() {
  parent=${1%/*}
  while [ -n "$parent" ] && [ ! -e "$parent" ]; do
    missing=$parent
    parent=${parent%/*}
    record "folder:$missing"
  done
}

note() {
  split "$1"
  case $kind in
    file | access | registry) note_file "$what" "$(locate "$1")" ;;
    packages) note_packages ;;
  esac
}

note_file() {
  describe "$1" >"$2/after.new"
  mv "$2/after.new" "$2/after"
}

# Others may install packages at the same time, so only those count that apt-get has announced.
plan_packages() {
  apt-get -s install "$@" | awk '$1 == "Inst" || $1 == "Remv" { sub(/:.*/, "", $2); print $2 }' >>"$PLANNED"
}

# Compares the packages before an installation with those after it.
note_packages() {
  if [ ! -e "$PENDING" ]; then return; fi
  list_packages >"$PENDING.now"
  : >>"$PLANNED"
  awk -F "$TAB" -v OFS="$TAB" '
    FILENAME == ARGV[1] { planned[$1] = 1; next }
    FILENAME == ARGV[2] { before[$1] = $2; next }
    { now[$1] = $2 }
    function is_planned(name) { sub(/:.*/, "", name); return name in planned }
    END {
      for (name in now) if (is_planned(name) && !(name in before)) print "added", name, now[name]
      for (name in before) if (is_planned(name) && !(name in now)) print "removed", name, before[name]
      for (name in now)
        if (is_planned(name) && name in before && now[name] != before[name]) print "changed", name, before[name]
    }' "$PLANNED" "$PENDING" "$PENDING.now" | sort >>"$ADDED"
  rm -f "$PENDING.now" "$PENDING" "$PLANNED"
}

# @RESTORE@

umask 077
mkdir -p "$ENTRIES"
action=${1:-}
shift || true
case $action in
  before) for subject in "$@"; do record "$subject"; done ;;
  after) for subject in "$@"; do note "$subject"; done ;;
  installs) plan_packages "$@" ;;
  restore) restore ;;
  *) echo "usage: journal before|after SUBJECT... | installs ARGUMENT... | restore" >&2 && exit 2 ;;
esac
