#!/bin/sh
# The part of journal.sh that restores a machine; that file has the functions and names that are used here.
RECEIPT=$RECORD/receipt
# Packages of muster's that stay, and with them the accounts that they have added.
STAYING=$RECORD/packages-staying
RELOAD=$RECORD/reload
NOLOGIN=${MUSTER_NOLOGIN:-/run/nologin}
SSHD_PID=${MUSTER_SSHD_PID:-/run/sshd.pid}
LOCK_TIMEOUT_S=300

# A receipt is a file until the end: if the connection breaks, the next attempt continues and prints all of it.
say() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" >>"$RECEIPT"; }

# Calls a command with kind, what and entry of each entry of the given kinds, those inside a folder before the folder.
for_each() {
  command=$1
  shift
  for each in "$@"; do
    for entry in "$ENTRIES"/*; do
      if [ -d "$entry" ] && split "$(cat "$entry/subject")" && [ "$kind" = "$each" ]; then
        printf '%s\t%s\n' "$what" "$entry"
      fi
    done | sort -r | while IFS=$TAB read -r what entry; do
      "$command" "$each" "$what" "$entry" </dev/null
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

# Fails if the unit does not start, or does not accept its settings.
activate() {
  if output=$(systemctl reload-or-restart "$1" 2>&1); then
    say restored unit "$1" active
  else
    say left unit "$1" "was active, and does not start: $(echo "$output" | tail -n 1)"
    return 1
  fi
}

start_unit() {
  if [ "$(cat "$3/before")" = active ]; then activate "$2" || true; fi
  rm -rf "$3"
}

# sshd closes its port while it reads its settings, and writes its process id when it listens again. If it does not accept
# them, it runs on as before, and keeps the file with its process id.
start_ssh() {
  case $2 in ssh | sshd) ;; *) return ;; esac
  if [ "$(cat "$3/before")" != active ] || [ ! -e "$SSHD_PID" ]; then
    start_unit "$@"
    return
  fi
  mv "$SSHD_PID" "$SSHD_PID.muster-old"
  if activate "$2"; then
    for _ in $(seq 500); do
      if [ -s "$SSHD_PID" ]; then break; fi
      sleep 0.02
    done
  elif [ ! -e "$SSHD_PID" ] && kill -0 "$(cat "$SSHD_PID.muster-old")" 2>/dev/null; then
    mv "$SSHD_PID.muster-old" "$SSHD_PID"
  fi
  rm -rf "$SSHD_PID.muster-old" "$3"
}

end_processes() {
  if [ "$(cat "$3/before")" = absent ]; then pkill -KILL -u "$2" 2>/dev/null || true; fi
}

undo() {
  if output=$(sh -c "$2" 2>&1); then say undone command "$2"; else say left command "$2" "$(echo "$output" | tail -n 1)"; fi
  rm -rf "$3"
}

# Tells whether somebody has changed what muster left in a file.
is_changed() {
  if [ -e "$2/touched" ]; then return 0; fi
  [ -e "$2/after" ] && [ ! -e "$2/ours" ] && [ "$(describe "$1")" != "$(cat "$2/after")" ]
}

put_back() {
  kind=$1 what=$2 entry=$3
  before=$(cat "$entry/before")
  current=$(describe "$what")
  # Left by a write that was killed.
  rm -f "$what.muster-new"
  if [ "$current" = "$before" ]; then
    : # somebody, or an earlier attempt, has done it
  elif [ "$kind" != access ] && is_changed "$what" "$entry"; then
    leave "$what" "$entry" "changed since"
  else
    # With muster's rules for logins and without what they refer to, nobody could log in.
    remark=
    if [ -s "$entry/touched" ]; then remark="changed since; that version is $(paste -sd ' ' "$entry/touched")"; fi
    if [ "$current" = absent ] || { [ -e "$entry/after" ] && [ "$current" = "$(cat "$entry/after")" ]; }; then
      :
    elif is_changed "$what" "$entry"; then
      remark="changed since; that version is $(save "$what" "$what")"
    elif [ ! -e "$entry/ours" ]; then
      remark="was being changed; that version is $(save "$what" "$what")"
    fi
    if [ "$before" != absent ]; then
      replace "$what" "$entry/content"
      say restored "$kind" "$what" "$remark"
    elif [ "$current" != absent ]; then
      rm -rf "$what"
      say removed "$kind" "$what" "$remark"
    fi
  fi
  rm -rf "$entry"
}

# What stays as it is; the original is stored, so that nothing is lost.
leave() {
  remark="$3; muster created it"
  if [ -e "$2/content" ]; then remark="$3; the original is $(save "$2/content" "$1")"; fi
  if [ -s "$2/touched" ]; then remark="$remark; versions in between are $(paste -sd ' ' "$2/touched")"; fi
  say left file "$1" "$remark"
}

replace() {
  rm -rf "$1.muster-old"
  cp -a "$2" "$1.muster-old"
  # What is a mount point can only be written in place.
  if ! mv -fT "$1.muster-old" "$1" 2>/dev/null; then
    if [ -d "$2" ]; then cp -a "$2/." "$1/"; else cat "$2" >"$1"; fi
    rm -rf "$1.muster-old"
  fi
}

# Takes muster's lines out and restores those that it has replaced (merge-hosts.sh); the others belong to the owner.
remove_block() {
  what=$2 entry=$3
  current=$(describe "$what")
  original=/dev/null
  if [ -e "$entry/content" ]; then original=$entry/content; fi
  if [ "$current" = "$(cat "$entry/before")" ]; then
    :
  elif [ ! -f "$what" ] || ! grep -qx '# muster begin' "$what" || ! grep -qx '# muster end' "$what"; then
    leave "$what" "$entry" "changed since"
  else
    awk '
      $0 == "# muster begin" { inside = 1 }
      !inside { sub(/^# muster replaced: /, ""); print }
      $0 == "# muster end" { inside = 0 }
    ' "$what" >"$entry/unblocked"
    if awk 1 "$original" | cmp -s - "$entry/unblocked"; then
      remark=
      cp "$original" "$entry/unblocked"
    else
      remark="without muster's lines; the changes since stay"
    fi
    if [ "$original" = /dev/null ] && [ ! -s "$entry/unblocked" ]; then
      rm -f "$what"
      say removed file "$what"
    else
      # It may be a mount point.
      cat "$entry/unblocked" >"$what"
      say restored file "$what" "$remark"
    fi
  fi
  rm -rf "$entry"
}

list_tree() { (cd "$1" && find . -printf '%p %y %m %U:%G %l\n' | sort); }

# Nobody can tell whose data a daemon's folder has now, so it is moved away and not deleted.
put_back_tree() {
  what=$2 entry=$3
  split "$(cat "$entry/subject")"
  # shellcheck disable=SC2086,SC2154  # a list, which `split` sets
  active=$(find_active $daemons)
  remark=
  if [ -n "$active" ]; then
    if [ -d "$what" ]; then leave "$what" "$entry" "$active runs"; fi
  elif [ -d "$entry/content" ] && [ -d "$what" ] && [ "$(list_tree "$what")" = "$(list_tree "$entry/content")" ] &&
    diff -rq --no-dereference "$what" "$entry/content" >/dev/null; then
    :
  elif [ -d "$entry/content" ] || [ -e "$what" ]; then
    if [ -e "$what" ]; then
      if [ -n "$(find "$what" ! -type d -print -quit)" ]; then
        place=$(find_place "$what")
        # A folder that is a mount point can only be emptied.
        mv -T "$what" "$place" 2>/dev/null || { cp -a "$what" "$place" && find "$what" -mindepth 1 -delete; }
        remark="what was there is $place"
      else
        rm -rf "$what"
      fi
    fi
    if [ -d "$entry/content" ]; then
      replace "$what" "$entry/content"
      say restored tree "$what" "$remark"
    else
      say removed tree "$what" "$remark"
    fi
  fi
  rm -rf "$entry"
}

remove_folder() {
  if [ -d "$2" ] && [ "$(cat "$3/before")" = absent ]; then
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

# Packages remove their own accounts, so what is there afterwards says nothing about others.
mark_unchanged() {
  if [ ! -e "$3/touched" ] && [ -e "$3/after" ] && [ "$(describe "$2")" = "$(cat "$3/after")" ]; then : >"$3/ours"; fi
}

note_unchanged() {
  if [ -e "$3/ours" ]; then
    note_file "$2" "$3"
    rm -f "$3/ours"
  fi
}

# The copies with a hyphen are of the version before, and change with every change.
print_changed() {
  case $2 in *-) ;; *) if is_changed "$2" "$3"; then echo "$2"; fi ;; esac
}

leave_registry() {
  case $2 in *-) ;; *) if [ "$(describe "$2")" != "$(cat "$3/before")" ]; then leave "$2" "$3" "$reason"; fi ;; esac
  rm -rf "$3"
}

# The files of accounts refer to each other, so either all are replaced, or in all only muster's accounts are removed.
restore_accounts() {
  reason=
  if [ -e "$STAYING" ]; then reason="packages that stay need their accounts"; fi
  if [ -n "$(for_each print_changed registry)" ]; then reason="accounts changed since"; fi
  if [ -z "$reason" ]; then for_each put_back registry; fi
  for_each remove_account account
  for_each leave_registry registry
}

# Prints what apt would remove with some packages; dpkg names some packages with their architecture, apt does not.
list_removed() {
  apt-get -s purge "$@" | awk '$1 == "Purg" || $1 == "Remv" { sub(/:.*/, "", $2); print $2 }' | sort -u
}

# Prints those of the packages that are only needed by each other.
list_removable() {
  # shellcheck disable=SC2086  # a list
  if ! list_removed $1 | grep -qvxF "$1"; then echo "$1" && return; fi
  for name in $1; do
    if ! list_removed "$name" | grep -qvxF "$1"; then echo "$name"; fi
  done
}

purge() {
  # Scripts of packages expect signals as usual, and write files that everybody must be able to read.
  trap - PIPE
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  umask 022
  # An installation may have been interrupted.
  if [ -n "$(dpkg --audit)" ]; then dpkg --configure -a; fi
  # shellcheck disable=SC2086  # a list
  apt-get -q -y -o DPkg::Lock::Timeout=$LOCK_TIMEOUT_S purge $1
}

# Removes the packages that muster has installed, unless others that were installed since need them.
remove_packages() {
  note_packages
  if [ ! -s "$ADDED" ]; then return; fi
  installed=$(list_packages | cut -f 1)
  ours=$(sed -n "s/^added$TAB//p" "$ADDED" | cut -f 1 | grep -xF "$installed" | sed 's/:.*//' | sort -u || true)
  if [ -n "$ours" ]; then
    removable=$(list_removable "$ours")
    needed=$(echo "$ours" | grep -vxF "$removable" || true)
    list=$(echo "$removable" | paste -sd ' ')
    if [ -z "$removable" ]; then
      :
    elif output=$(purge "$removable" 2>&1); then
      say removed packages "$list"
    elif echo "$output" | grep -Eq 'Could not get lock|Unable to (acquire|lock)|locked by another process'; then
      echo "journal: packages cannot be removed now: $(echo "$output" | grep -m 1 -i lock)" >&2
      exit 1
    else
      say left packages "$list" "$(echo "$output" | tail -n 1)"
      : >"$STAYING"
    fi
    if [ -n "$needed" ]; then
      # shellcheck disable=SC2086  # a list
      others=$(list_removed $needed | grep -vxF "$ours" | paste -sd ' ')
      say left packages "$(echo "$needed" | paste -sd ' ')" "needed by $others"
      : >"$STAYING"
    fi
  fi
  sed -n "s/^\(removed\|changed\)$TAB//p" "$ADDED" | while IFS=$TAB read -r name version; do
    if [ "$(dpkg-query -W -f "\${Version}" "$name" 2>/dev/null)" != "$version" ]; then
      say left package "$name" "was $version before; \`apt-get install $name=$version\` brings it back"
    fi
  done
  rm -f "$ADDED"
}

restore() {
  # A connection that breaks must not end this halfway.
  trap '' HUP PIPE
  : >>"$RECEIPT"
  if cat "$ENTRIES"/*/subject 2>/dev/null | grep -aEq 'unit:|:/etc/systemd/'; then : >"$RELOAD"; fi
  # First of all who can log in: whatever fails later, the owner can look at it.
  for_each put_back access
  for_each start_ssh unit
  for_each stop_unit unit
  for_each end_processes account
  for_each undo undo
  # Packages come after the files: their own versions of these are then in place, and are removed with them.
  for_each put_back file
  for_each remove_block block
  for_each put_back_tree tree
  for_each mark_unchanged registry
  remove_packages
  for_each note_unchanged registry
  # dpkg fails if a file belongs to a user whom it cannot find, so accounts come after packages.
  restore_accounts
  for_each remove_folder folder
  if [ -e "$RELOAD" ]; then systemctl daemon-reload || say left unit systemd "could not be reloaded"; fi
  for_each start_unit unit
  # Units that logins required are gone, and with them the unit that lets users log in may have stopped.
  if [ -e "$NOLOGIN" ]; then
    systemctl start systemd-user-sessions || say left unit systemd-user-sessions "does not start: only root can log in"
  fi
  rm -rf "$ENTRIES" "$RELOAD" "$STAYING"
  cat "$RECEIPT"
  rm -f "$RECEIPT"
}
