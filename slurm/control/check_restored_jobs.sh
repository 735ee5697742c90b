#!/bin/bash
# Let slurmctld end the jobs that it restored as running although they ended before it started.
#
# slurmctld saves its state every five seconds. If it is killed, a job that ended since then is restored as running.
# slurmctld learns that from the registration of the job's first node: it requeues the job if the node does not have it.
# But it does not judge a job in the first BatchStartTimeout plus ten seconds after its own start, and nodes that are up
# register again only after 20 pings, which is 33 minutes with SlurmdTimeout=300. So this program waits until slurmctld
# judges, and makes the first node of every running job register: UNDRAIN does that, and nothing else, on a node that is
# not drained. Nodes that are drained, down or starting are left alone.

ASK_S=30
# The ten seconds of slurmctld, and two more.
LATER_S=12

# Print a value of slurmctld's configuration, without its unit.
value() {
  sed -n -E "s/^$1 += ([^ ]*).*/\1/p" <<<"$config"
}

# `scontrol reconfigure` starts slurmctld anew, too: it then waits as long again. BOOT_TIME itself tells too little,
# because slurmctld may take long to restore its state after that time.
started=
while sleep 1; do
  config=$(timeout "$ASK_S" scontrol show config) || continue
  [ "$(value BOOT_TIME)" != "$started" ] || break
  started=$(value BOOT_TIME)
  sleep $(( $(value BatchStartTimeout) + LATER_S ))
done

failed=0
for node in $(squeue --noheader --states=running,suspended --format=%B | sort -u); do
  # UNDRAIN would return a drained node to service, so read its state right before. A short window remains: a person who
  # drains the node between these two commands has to do so again.
  # The last character of a state marks nodes that do not answer or are being started, stopped or rebooted.
  state=$(sinfo --all --noheader --Node --nodes="$node" --format=%T | head -n 1)
  [[ $state && ! $state =~ ^(drain|down|fail|unknown|power)|[*~#!%^@]$ ]] || continue
  echo "asking $node which jobs it has"
  scontrol update "NodeName=$node" State=UNDRAIN || failed=1
done
exit "$failed"
