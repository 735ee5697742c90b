#!/bin/sh
# Saves the queue and the accounting of a controller in a folder (STEP=save), or loads them from there (STEP=load).
# Set by the caller: STEP, WORK (the folder), STATE (slurmctld's StateSaveLocation), WAIT_S, DATABASE_ANSWERS and
# CONTROLLER_ANSWERS (commands).
set -eu

fail() {
  journalctl -u "$1" -o cat --no-pager 2>/dev/null | grep -aiE 'fatal|error' | tail -n 2 | paste -sd ';' >&2
  echo "$1 $2" >&2
  exit 1
}

start() {
  systemctl reset-failed "$1" 2>/dev/null || true
  systemctl start "$1" || fail "$1" "did not start"
  tries=0
  until sh -c "$2" >/dev/null 2>&1; do
    tries=$((tries + 1))
    systemctl -q is-active "$1" || fail "$1" "stopped"
    [ $tries -le $((WAIT_S * 5)) ] || fail "$1" "does not answer after $WAIT_S s"
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
do_load() {
  tar -tf "$WORK/queue.tar" >/dev/null
  tail -n 1 "$WORK/accounting.sql" | grep -q 'Dump completed' || { echo "accounting.sql is incomplete" >&2; exit 1; }
  trap 'systemctl start slurmdbd slurmctld' EXIT
  trap 'exit 1' HUP INT TERM
  systemctl stop slurmctld slurmdbd
  {
    echo "drop database if exists slurm_acct_db; create database slurm_acct_db; use slurm_acct_db;"
    cat "$WORK/accounting.sql"
  } | mariadb
  find "$STATE" -mindepth 1 ! -name 'node_state*' -delete
  tar -C "$STATE" -xpf "$WORK/queue.tar" --exclude='./node_state*'
  start slurmdbd "$DATABASE_ANSWERS"
  start slurmctld "$CONTROLLER_ANSWERS"
  rm -rf "$WORK"
}

"do_$STEP"
