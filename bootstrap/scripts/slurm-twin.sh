#!/bin/sh
# Copies the controller's database, queue and configuration (STEP=copy, on the controller, whose daemons keep running), and
# starts Slurm from the copy on a machine that reaches no node (STEP=start).
# Set by the caller: STEP, ARCHIVE (path of the copy), NAME and ADDRESS of the controller, WAIT_S, DATABASE_ANSWERS and
# CONTROLLER_ANSWERS (commands).
set -eu
state=/var/lib/slurm/slurmctld

fail() {
  journalctl -u "$1" -o cat --no-pager 2>/dev/null | grep -aiE 'fatal|error' | tail -n 2 | paste -sd ';' >&2
  echo "$1 of the twin does not answer" >&2
  exit 1
}

wait_for() {
  tries=0
  until sh -c "$2" >/dev/null 2>&1; do
    tries=$((tries + 1))
    systemctl -q is-active "$1" || fail "$1"
    [ $tries -le $((WAIT_S * 5)) ] || fail "$1"
    sleep 0.2
  done
}

do_copy() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mariadb-dump --single-transaction slurm_acct_db >"$work/accounting.sql"
  # slurmctld replaces its files while they are read; tar reports that with exit code 1.
  tar -C "${state%/*}" -cf "$work/state.tar" "${state##*/}" || [ $? = 1 ]
  cp -a /etc/slurm "$work/etc"
  cp -a /etc/mysql/mariadb.conf.d/90-muster.cnf "$work"
  (umask 077 && tar -C "$work" -czf "$ARCHIVE" .)
}

do_start() {
  work=$(mktemp -d)
  tar -C "$work" -xzf "$ARCHIVE"
  echo "$ADDRESS $NAME" >>/etc/hosts
  ip address add "$ADDRESS/32" dev lo
  cp -a "$work/etc/." /etc/slurm
  cp -a "$work/90-muster.cnf" /etc/mysql/mariadb.conf.d
  # No node answers here, and none must be lost because of it; nothing may be started or stopped either.
  programs='ResumeProgram|SuspendProgram|ResumeFailProgram|PrologSlurmctld'
  sed -i -E "s/^SlurmdTimeout=.*/SlurmdTimeout=65000/; /^($programs)=/d" /etc/slurm/slurm.conf
  tar -C "${state%/*}" -xf "$work/state.tar"
  systemctl start mariadb
  password=$(sed -n 's/^StoragePass=//p' /etc/slurm/slurmdbd.conf)
  {
    echo "create database slurm_acct_db; create user slurm@localhost identified by '$password';"
    echo "grant all on slurm_acct_db.* to slurm@localhost; use slurm_acct_db;"
    cat "$work/accounting.sql"
  } | mariadb
  systemctl start slurmdbd || fail slurmdbd
  wait_for slurmdbd "$DATABASE_ANSWERS"
  # A young cluster has not saved the usage of its accounts yet, without which slurmctld starts only with this option.
  [ -e "$state/assoc_usage" ] || echo 'SLURMCTLD_OPTIONS="-i"' >/etc/default/slurmctld
  systemctl start slurmctld || fail slurmctld
  wait_for slurmctld "$CONTROLLER_ANSWERS"
}

"do_$STEP"
