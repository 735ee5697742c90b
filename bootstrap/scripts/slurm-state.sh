#!/bin/sh
# Saves the queue and the accounting of a controller in a folder (STEP=save), or loads them from there (STEP=load).
# Set by the caller: STEP, WORK (the folder), STATE (slurmctld's StateSaveLocation), WAIT_S, PROBE_S (the longest time of
# one of the commands), DATABASE_ANSWERS and CONTROLLER_ANSWERS (commands).
set -eu

FORMER=$WORK.former

fail() {
  journalctl -u "$1" -o cat --no-pager 2>/dev/null | grep -aiE 'fatal|error' | tail -n 2 | paste -sd ';' >&2
  echo "$1 $2" >&2
  exit 1
}

start() {
  systemctl reset-failed "$1" 2>/dev/null || true
  systemctl start "$1" || fail "$1" "did not start"
  deadline=$(($(date +%s) + WAIT_S))
  # A daemon that accepts connections and does not answer would block the command for minutes.
  until timeout "$PROBE_S" sh -c "$2" >/dev/null 2>&1; do
    systemctl -q is-active "$1" || fail "$1" "stopped"
    [ "$(date +%s)" -lt "$deadline" ] || fail "$1" "does not answer after $WAIT_S s"
    sleep 0.2
  done
}

# An orderly end makes slurmctld write its whole state and send what the accounting lacks: both then belong together.
# Jobs keep running. Only slurmctld writes to slurmdbd, apart from sacctmgr, so that may run.
do_save() {
  rm -rf "$WORK"
  (umask 077 && mkdir -p "$WORK")
  trap 'systemctl start slurmctld' EXIT
  trap 'exit 1' HUP INT TERM
  systemctl stop slurmctld
  mariadb-dump --single-transaction slurm_acct_db >"$WORK/accounting.sql"
  tar -C "$STATE" -cf "$WORK/queue.tar" .
  start slurmctld "$CONTROLLER_ANSWERS"
}

# The states of nodes stay: those in the backup are of other machines, which may have been drained or down.
replace_by() {
  {
    echo "drop database if exists slurm_acct_db; create database slurm_acct_db; use slurm_acct_db;"
    cat "$1/accounting.sql"
  } | mariadb
  find "$STATE" -mindepth 1 ! -name 'node_state*' -delete
  tar -C "$STATE" -xpf "$1/queue.tar" --exclude='./node_state*'
}

set_former_aside() {
  rm -rf "$FORMER"
  (umask 077 && mkdir -p "$FORMER")
  tar -C "$STATE" -cf "$FORMER/queue.tar" .
  # An accounting that was never used has no database.
  if [ -n "$(mariadb -N -e "show databases like 'slurm_acct_db'")" ]; then
    mariadb-dump --single-transaction slurm_acct_db >"$FORMER/accounting.sql"
  else
    : >"$FORMER/accounting.sql"
  fi
}

put_former_back() {
  trap '' HUP INT TERM
  set +e
  systemctl stop slurmctld slurmdbd
  # In a condition, `set -e` would have no effect.
  (set -e; replace_by "$FORMER")
  failed=$?
  systemctl start slurmdbd slurmctld
  if [ "$failed" = 0 ]; then
    rm -rf "$FORMER"
    echo "the former queue and accounting are back" >&2
  else
    echo "the former queue and accounting are in $FORMER on the controller" >&2
  fi
}

do_load() {
  tar -tf "$WORK/queue.tar" >/dev/null
  tail -n 1 "$WORK/accounting.sql" | grep -q 'Dump completed' || { echo "accounting.sql is incomplete" >&2; exit 1; }
  trap 'systemctl start slurmdbd slurmctld' EXIT
  trap 'exit 1' HUP INT TERM
  systemctl stop slurmctld slurmdbd
  set_former_aside
  trap put_former_back EXIT
  replace_by "$WORK"
  start slurmdbd "$DATABASE_ANSWERS"
  start slurmctld "$CONTROLLER_ANSWERS"
  trap - EXIT
  rm -rf "$WORK" "$FORMER"
}

"do_$STEP"
