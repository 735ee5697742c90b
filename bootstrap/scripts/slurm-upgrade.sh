#!/bin/sh
# One step of `muster upgrade` on a node; each step can be repeated.
# Set by the caller: STEP (a function below), FROM and TO (releases), BACKUPS (folder), STATE (slurmctld's
# StateSaveLocation), ETC (folder of Slurm's configuration), PACKAGES (folder with a folder per release), SUMS
# (sha256sum's output for the files of TO), CLIENT (package whose version is the installed release), INSTALLER (dpkg
# or apt), NAMES (packages to install; all if empty), UNIT (daemon to restart, if any), WAIT_S, and the commands
# DATABASE_ANSWERS and CONTROLLER_ANSWERS.
set -eu
backup=$BACKUPS/slurm-$FROM
COPY=${COPY:-/var/cache/muster-upgrade}

fail() {
  echo "$*" >&2
  exit 1
}

installed() {
  dpkg-query -W -f '${Version}' "$CLIENT" 2>/dev/null || echo none
}

show_errors() {
  journalctl -u "$1" --since -10min -o cat --no-pager 2>/dev/null | grep -aiE 'fatal|error' | tail -n 2 | paste -sd ';' >&2
}

# Waits until a command succeeds; a daemon that stops meanwhile ends the wait.
wait_for() {
  daemon=$1 command=$2 tries=0
  until sh -c "$command" >/dev/null 2>&1; do
    tries=$((tries + 1))
    systemctl -q is-active "$daemon" || { show_errors "$daemon"; fail "$daemon stopped"; }
    [ $tries -le $((WAIT_S * 5)) ] || { show_errors "$daemon"; fail "$daemon does not answer after $WAIT_S s"; }
    sleep 0.2
  done
}

start() {
  systemctl reset-failed "$1" 2>/dev/null || true
  systemctl restart "$1" || { show_errors "$1"; fail "$1 did not start"; }
}

# The daemons are stopped, so that database and queue belong together. As soon as the new release is installed, the backup is
# never overwritten: from then on both are in the new format.
do_backup() {
  case $(installed) in
    "$TO".*) [ -e "$backup/complete" ] || fail "Slurm $TO is installed, but there is no backup of $FROM"; return ;;
    "$FROM".*) ;;
    *) fail "package $CLIENT: version $(installed) is installed, expected $FROM" ;;
  esac
  systemctl stop slurmctld slurmdbd
  rm -rf "$backup"
  (umask 077 && mkdir -p "$backup")
  mariadb-dump --single-transaction slurm_acct_db >"$backup/accounting.sql"
  gzip -1 "$backup/accounting.sql"
  tar -C "${STATE%/*}" -czf "$backup/state.tar.gz" "${STATE##*/}"
  # The new release gets settings that the old one does not know, and ends when it finds one.
  mkdir "$backup/etc"
  cp -p "$ETC"/*.conf "$backup/etc"
  sync
  touch "$backup/complete"
}

# Prints the names of the files to install.
list_files() {
  if [ -z "$NAMES" ]; then
    echo "$SUMS" | awk '{ print $2 }' | grep .
  else
    for name in $NAMES; do echo "$SUMS" | awk '{ print $2 }' | grep "^${name}_" || return 1; done
  fi
}

# Copies files to this machine and compares the copies with SUMS: on the shared filesystem, a user may have changed them.
copy_files() {
  rm -rf "$COPY"
  mkdir -m 700 "$COPY"
  for file in "$@"; do
    cp "$PACKAGES/$TO/$file" "$COPY" || fail "$PACKAGES/$TO/$file cannot be read"
    sum=$(sha256sum <"$COPY/$file")
    echo "$SUMS" | grep -qxF "${sum%% *}  $file" ||
      fail "$PACKAGES/$TO/$file was changed: its SHA-256 is ${sum%% *}. Nothing was installed; find out who changed it"
  done
}

install_files() {
  export DEBIAN_FRONTEND=noninteractive
  if [ "$INSTALLER" = dpkg ]; then
    dpkg -i --force-confold "$@"
    return
  fi
  # Set-up holds these packages, so that no other installation changes their release.
  apt-get -q update &&
    apt-get -q install -y --no-install-recommends --allow-change-held-packages --allow-downgrades \
      -o Dpkg::Options::=--force-confold "$@" &&
    echo "$NAMES" | xargs apt-mark hold
}

do_install() {
  files=$(list_files) || fail "Slurm $TO has no packages for this node"
  # shellcheck disable=SC2086  # a list of names without blanks
  copy_files $files
  # The daemons are restarted by their own steps.
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
  trap 'rm -rf /usr/sbin/policy-rc.d "$COPY"' EXIT
  install_files "$COPY"/*.deb >/var/log/muster-upgrade.log 2>&1 ||
    fail "$INSTALLER failed: $(tail -n 2 /var/log/muster-upgrade.log | paste -sd ' ')"
  case $(installed) in "$TO".*) ;; *) fail "package $CLIENT: version $(installed) is installed, expected $TO" ;; esac
  systemctl daemon-reload
}

do_slurmdbd() {
  start slurmdbd
  wait_for slurmdbd "$DATABASE_ANSWERS"
}

do_slurmctld() {
  start slurmctld
  wait_for slurmctld "$CONTROLLER_ANSWERS"
}

do_node() {
  do_install
  start "$UNIT"
}

# Returns database, queue and configuration to the state of the backup. What happened since is lost.
do_restore() {
  [ -e "$backup/complete" ] || fail "there is no backup in $backup"
  systemctl stop slurmctld slurmdbd
  {
    echo "drop database if exists slurm_acct_db; create database slurm_acct_db; use slurm_acct_db;"
    gzip -dc "$backup/accounting.sql.gz"
  } | mariadb
  # The folder itself may be where a volume is mounted.
  find "$STATE" -mindepth 1 -delete
  tar -C "${STATE%/*}" -xzf "$backup/state.tar.gz"
  cp -p "$backup/etc"/*.conf "$ETC"
}

"do_$STEP"
