#!/bin/bash
# The parts of `python -m benchmarks.scale` that run in its container:
#
#     scale.sh controller             start MariaDB, slurmdbd and slurmctld
#     scale.sh nodes FIRST LAST       start a slurmd for each of these nodes of the group gpu
#     scale.sh submit JOBS AT_ONCE    submit jobs as the user alice, and print the id of each
#     scale.sh per-node NODES         ask for the jobs of each of these nodes; print the seconds
#     scale.sh sample FILE            ask slurmctld twice a second; write how long each answer took, until FILE.stop exists
#     scale.sh logs                   print the ends of the daemons' logs
#     scale.sh memory                 print the memory of slurmctld and of all slurmd, in KB
set -euo pipefail
shopt -s inherit_errexit

controller() {
  # Without an address that is not 127.*, getaddrinfo finds no address to listen on.
  ip address add 10.255.255.1/32 dev lo
  cat /muster/hosts >>/etc/hosts
  cp -r /muster/etc/. /etc/
  id -u alice >/dev/null 2>&1 || useradd --create-home --uid 2001 alice
  chown -R slurm:slurm /etc/slurm
  chmod 600 /etc/slurm/slurm.key /etc/slurm/slurmdbd.conf
  chmod 755 /etc/muster/*
  mkdir -p /var/log/slurm /run/slurmdbd /run/mysqld /var/lib/slurm/slurmctld
  chown -R slurm:slurm /var/log/slurm /var/lib/slurm /run/slurmdbd
  chown mysql:mysql /run/mysqld
  setsid mariadbd --user=mysql >/var/log/mariadbd.log 2>&1 &
  wait_for mariadb-admin ping
  mariadb </muster/accounting.sql
  setsid slurmdbd -D >/var/log/slurmdbd.out 2>&1 &
  wait_for sacctmgr -n show cluster
  sh /muster/accounts.sh
  setsid slurmctld -D >/var/log/slurmctld.out 2>&1 &
  wait_for scontrol ping
}

wait_for() {
  local tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -gt 240 ]; then
      echo "no answer: $*" >&2
      tail -n 5 /var/log/*.out /var/log/mariadbd.log >&2
      return 1
    fi
    sleep 0.5
  done
}

nodes() {
  local number
  for number in $(seq "$1" "$2"); do
    mkdir -p "/scale/gpu-$number/log"
    setsid unshare --mount --uts "$0" node "gpu-$number" >"/scale/gpu-$number/out" 2>&1 &
    # All at once, they would compete for the two cores of this machine, and not for slurmctld.
    sleep 0.05
  done
}

# Own folders and an own name: slurmd listens only on the address of its machine's name (NoInAddrAny).
node() {
  mount -t tmpfs -o size=1m tmpfs /run
  mkdir -p /run/slurm
  mount --bind "/scale/$1" /var/lib/slurm/slurmd
  mount --bind "/scale/$1/log" /var/log/slurm
  hostname "$1"
  exec slurmd -D -N "$1" --conf-server controller:6817
}

submit() {
  cd /home/alice
  seq "$1" | runuser -u alice -- xargs -P "$2" -I {} sbatch --parsable --job-name=job-{} --output=/dev/null --wrap=true
}

per-node() {
  local number began=$EPOCHREALTIME
  for number in $(seq "$1"); do squeue -h -t R,S,CF -w "gpu-$number" -o %i; done
  echo "$EPOCHREALTIME $began" | awk '{ print $1 - $2 }'
}

sample() {
  local began
  : >"$1"
  while [ ! -e "$1.stop" ]; do
    began=$EPOCHREALTIME
    sinfo -h -o %N >/dev/null 2>&1 && echo "$began $EPOCHREALTIME" >>"$1" || echo "$began failed" >>"$1"
    sleep 0.5
  done
}

logs() {
  tail -n 8 /var/log/slurm/slurmctld.log /var/log/slurmctld.out /scale/gpu-1/out /scale/gpu-1/log/slurmd.log 2>&1 || true
}

memory() {
  local name
  for name in slurmctld slurmd; do
    # Pss counts pages that processes share only once.
    for pid in $(pgrep -x "$name"); do sed -n 's/^Pss: *//p' "/proc/$pid/smaps_rollup" 2>/dev/null || true; done |
      awk -v name="$name" '{ sum += $1; n += 1 } END { print name, n + 0, sum + 0 }'
  done
}

"$@"
