#!/bin/sh
# The journal of a machine that its owner gets back: what was there before muster changed it, and how to restore that.
#
#   journal before SUBJECT...   record each subject, before it is changed; the first record of a subject stays
#   journal after SUBJECT...    note what muster has left there, by which a later change by somebody else is recognized
#   journal restore             put everything back and print a line per subject: result, kind, subject, remark
#
# A subject is `file:PATH`, `access:PATH` (a file that decides who can log in, which is restored even if somebody has
# changed it since), `registry:PATH` (a file of accounts, which packages change too), `tree:PATH` (a folder whose content
# belongs to a daemon), `unit:NAME`, `account:NAME`, `packages:` or `undo:COMMAND`. An entry is written next to its place and moved there when it is complete. A subject
# without a note of what muster left was being changed when the connection broke, so it counts as changed by muster.
# Needs no Python: bootstrap installs it later.
set -eu
export LC_ALL=C
RECORD=${MUSTER_RECORD:-/var/lib/muster/record}
BACKUPS=${MUSTER_BACKUPS:-/var/backups/muster}
ENTRIES=$RECORD/entries
ADDED=$RECORD/packages-added
PENDING=$RECORD/packages-pending
tab=$(printf '\t')

say() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}"; }

locate() {
  sum=$(printf '%s' "$1" | sha256sum)
  echo "$ENTRIES/${sum%% *}"
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

list_packages() {
  dpkg-query -W -f "\${db:Status-Status}$tab\${binary:Package}$tab\${Version}\n" | sed -n "s/^installed$tab//p" | sort
}

# Keeps an entry that exists: it is what was there before the first change.
record() {
  kind=${1%%:*}
  what=${1#*:}
  entry=$(locate "$1")
  if [ -d "$entry" ]; then
    rm -f "$entry/after" "$entry/ours"
    return
  fi
  case $kind in
    file | access | registry | tree)
      record_parents "$what"
      kind=${1%%:*} what=${1#*:} entry=$(locate "$1")
      ;;
  esac
  case $kind in
    file | access | registry | tree | folder) before=$(describe "$what") ;;
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
  if [ "$kind" != tree ] && [ "$kind" != folder ] && [ "${before%% *}" = folder ]; then
    echo "journal: $what is a folder, not a file" >&2
    exit 1
  fi
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
  kind=${1%%:*}
  what=${1#*:}
  case $kind in
    file | access | registry)
      entry=$(locate "$1")
      describe "$what" >"$entry/after.new"
      mv "$entry/after.new" "$entry/after"
      ;;
    packages) note_packages ;;
  esac
}

# Compares the packages before an installation with those after it, so that what others install is not counted.
note_packages() {
  if [ ! -e "$PENDING" ]; then return; fi
  list_packages >"$PENDING.now"
  awk -F "$tab" -v OFS="$tab" 'NR == FNR { before[$1] = $2; next } { now[$1] = $2 }
    END {
      for (name in now) if (!(name in before)) print "added", name, now[name]
      for (name in before) if (!(name in now)) print "removed", name, before[name]
      for (name in now) if (name in before && now[name] != before[name]) print "changed", name, before[name]
    }' "$PENDING" "$PENDING.now" | sort >>"$ADDED"
  rm -f "$PENDING.now" "$PENDING"
}

# Calls a command with kind, what and entry of each entry of the given kinds, those inside a folder before the folder.
for_each() {
  command=$1
  shift
  for kind in "$@"; do
    for entry in "$ENTRIES"/*; do
      if [ -d "$entry" ] && subject=$(cat "$entry/subject") && [ "${subject%%:*}" = "$kind" ]; then
        printf '%s\t%s\n' "${subject#*:}" "$entry"
      fi
    done | sort -r | while IFS=$tab read -r what entry; do
      "$command" "$kind" "$what" "$entry" </dev/null
    done
  done
}

stop_unit() {
  if [ "$(cat "$3/before")" != active ] && systemctl -q is-active "$2"; then
    if output=$(systemctl stop "$2" 2>&1); then
      say stopped unit "$2"
    else
      say left unit "$2" "was not active, and does not stop: $(echo "$output" | tail -n 1)"
    fi
  fi
}

end_processes() {
  if [ "$(cat "$3/before")" = absent ]; then pkill -KILL -u "$2" 2>/dev/null || true; fi
}

undo() {
  if output=$(sh -c "$2" 2>&1); then say undone command "$2"; else say left command "$2" "$(echo "$output" | tail -n 1)"; fi
  rm -rf "$3"
}

# Packages remove their own accounts, so what is there afterwards says nothing about others.
mark_unchanged() {
  if [ -e "$3/after" ] && [ "$(describe "$2")" = "$(cat "$3/after")" ]; then : >"$3/ours"; fi
}

put_back() {
  kind=$1 what=$2 entry=$3
  before=$(cat "$entry/before")
  current=$(describe "$what")
  remark=
  changed=no
  if [ -e "$entry/after" ] && [ ! -e "$entry/ours" ] && [ "$current" != "$(cat "$entry/after")" ]; then changed=yes; fi
  # With muster's rules and without what they refer to, nobody could log in.
  if [ "$kind,$changed" = access,yes ] && [ "$current" != absent ] && [ "$current" != "$before" ]; then
    save "$what" "$what"
    remark="changed since; that version is $BACKUPS$what"
  fi
  if [ "$kind" != tree ] && [ "$current" = "$before" ]; then
    : # somebody, or an earlier attempt, has done it
  elif [ "$kind" != access ] && [ $changed = yes ]; then
    leave "$what" "$entry"
  elif [ "$before" = absent ]; then
    if [ "$current" != absent ]; then
      rm -rf "$what"
      say removed "$kind" "$what" "$remark"
    fi
  else
    replace "$what" "$entry/content"
    say restored "$kind" "$what" "$remark"
  fi
  rm -rf "$entry"
}

# What somebody has changed since stays as it is; the original is stored, so that nothing is lost.
leave() {
  if [ -e "$2/content" ]; then
    save "$2/content" "$1"
    say left file "$1" "changed since; the original is $BACKUPS$1"
  else
    say left file "$1" "changed since; muster created it"
  fi
}

save() {
  mkdir -p "$BACKUPS${2%/*}"
  cp -a "$1" "$BACKUPS$2"
}

replace() {
  rm -rf "$1.muster-old"
  cp -a "$2" "$1.muster-old"
  if [ -d "$2" ]; then rm -rf "$1"; fi
  # A file that is a mount point, as /etc/hosts in a container, can only be written in place.
  if ! mv -fT "$1.muster-old" "$1" 2>/dev/null; then
    cat "$2" >"$1"
    rm -f "$1.muster-old"
  fi
}

remove_folder() {
  if [ -d "$2" ]; then
    if rmdir "$2" 2>/dev/null; then
      say removed folder "$2"
    else
      say left folder "$2" "not empty: $(find "$2" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | head -n 3 | paste -sd ' ')"
    fi
  fi
  rm -rf "$3"
}

remove_account() {
  if [ "$(cat "$3/before")" = absent ] && getent passwd "$2" >/dev/null; then
    if output=$(userdel "$2" 2>&1); then say removed account "$2"; else say left account "$2" "$(echo "$output" | tail -n 1)"; fi
  fi
  rm -rf "$3"
}

start_unit() {
  if [ "$(cat "$3/before")" = active ]; then
    if output=$(systemctl reload-or-restart "$2" 2>&1); then
      say restored unit "$2" active
    else
      say left unit "$2" "was active, and does not start: $(echo "$output" | tail -n 1)"
    fi
  fi
  rm -rf "$3"
}

purge() {
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  # The scripts of packages write files that everybody must be able to read.
  umask 022
  # shellcheck disable=SC2086  # a list
  apt-get -q -y purge $1
}

# Removes the packages that muster has installed, unless others that were installed since need them.
remove_packages() {
  note_packages
  if [ ! -s "$ADDED" ]; then return; fi
  installed=$(list_packages | cut -f 1)
  ours=$(sed -n "s/^added$tab//p" "$ADDED" | cut -f 1 | sort -u | grep -xF "$installed" || true)
  if [ -n "$ours" ]; then
    # dpkg names some packages with their architecture, apt does not.
    plain=$(echo "$ours" | sed 's/:.*//')
    # shellcheck disable=SC2086  # a list
    removes=$(apt-get -s purge $ours | awk '$1 == "Purg" || $1 == "Remv" { sub(/:.*/, "", $2); print $2 }' | sort -u)
    others=$(echo "$removes" | grep -vxF "$plain" || true)
    list=$(echo "$plain" | paste -sd ' ')
    if [ -n "$others" ]; then
      say left packages "$list" "needed by $(echo "$others" | paste -sd ' ')"
    elif output=$(purge "$ours" 2>&1); then
      say removed packages "$list"
    else
      say left packages "$list" "$(echo "$output" | tail -n 1)"
    fi
  fi
  sed -n "s/^\(removed\|changed\)$tab//p" "$ADDED" | while IFS=$tab read -r name version; do
    if [ "$(dpkg-query -W -f "\${Version}" "$name" 2>/dev/null)" != "$version" ]; then
      say left package "$name" "was $version before; \`apt-get install $name=$version\` brings it back"
    fi
  done
  rm -f "$ADDED"
}

restore() {
  for_each stop_unit unit
  for_each end_processes account
  for_each undo undo
  # Packages come after the files: their own versions of these are then in place, and are removed with them.
  for_each put_back file access tree
  for_each mark_unchanged registry
  remove_packages
  # dpkg fails if a file belongs to a user whom it cannot find.
  for_each put_back registry
  for_each remove_folder folder
  for_each remove_account account
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
  for_each start_unit unit
  rm -rf "$ENTRIES"
}

umask 077
mkdir -p "$ENTRIES"
action=${1:-}
shift || true
case $action in
  before) for subject in "$@"; do record "$subject"; done ;;
  after) for subject in "$@"; do note "$subject"; done ;;
  restore) restore ;;
  *) echo "usage: journal before|after SUBJECT... | journal restore" >&2 && exit 2 ;;
esac
