#!/usr/bin/env bash
# The floor: start the same containers and daemons with nothing but docker and a shell. No users, no accounting rules,
# no environment, no checks: the shortest script after which `srun` runs on all compute nodes.
#
#   floor.sh CLUSTER COMPUTE_NODES MEMORY_MB_OF_EACH
set -euo pipefail
cluster=$1
count=$2
memory=$3
image=muster-node:26.05

net=10.87.77
declare -A address=([controller]=$net.2 [login]=$net.3)
for n in $(seq "$count"); do address[gpu-$n]=$net.$((n + 3)); done
# Slurm's daemons resolve 0.0.0.0; on an internal network the lookup of an address missing in /etc/hosts takes 10 s to fail.
hosts=(--add-host "any:0.0.0.0")
for node in "${!address[@]}"; do hosts+=(--add-host "$node:${address[$node]}"); done
label=(--label "muster.cluster=$cluster")
cgroup=v2 cgroupns=private
if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ]; then cgroup=v1 cgroupns=host; fi
key=$(head -c 768 /dev/urandom | base64 -w0)

start() {
  docker run -d --name "muster-$cluster-$1" --hostname "$1" --network "muster-$cluster" --ip "${address[$1]}" "${hosts[@]}" "${label[@]}" \
    --cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYSLOG --cap-add AUDIT_CONTROL --cap-add AUDIT_READ \
    --cap-add SYS_NICE --cap-add SYS_PTRACE --cap-add IPC_LOCK --cgroupns="$cgroupns" \
    --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt label=disable \
    --cpus 2 --memory "${2}m" --memory-swap "${2}m" --tmpfs /run:exec --tmpfs /tmp:exec --shm-size=1g \
    --device /dev/null:/dev/fakegpu0 --device /dev/null:/dev/fakegpu1 \
    -v "muster-$cluster-shared:/shared" -v muster-cache-env:/shared/env \
    -e container=docker -e MUSTER_CLUSTER="$cluster" --stop-signal SIGRTMIN+3 "$image" >/dev/null
}

# Run a script in a node as soon as systemd is ready.
inside() {
  docker exec -i "muster-$cluster-$1" bash -euc 'until systemctl is-system-running 2>/dev/null | grep -q "running\|degraded"; do
    sleep 0.05; done; source /dev/stdin'
}

compute() {
  start "$1" "$memory"
  inside "$1" <<SH
(umask 077; echo "$key" | base64 -d >/etc/slurm/slurm.key; chown slurm:slurm /etc/slurm/slurm.key)
echo 'SLURMD_OPTIONS="--conf-server controller:6817"' >/etc/default/slurmd
until timeout 1 bash -c '</dev/tcp/controller/6817' 2>/dev/null; do sleep 0.1; done
systemctl start slurmd
SH
}

login() {
  start login 1024
  inside login <<SH
(umask 077; echo "$key" | base64 -d >/etc/slurm/slurm.key; chown slurm:slurm /etc/slurm/slurm.key)
echo 'SACKD_OPTIONS="--conf-server controller:6817"' >/etc/default/sackd
until timeout 1 bash -c '</dev/tcp/controller/6817' 2>/dev/null; do sleep 0.1; done
systemctl start sackd
SH
}

controller() {
  start controller 2048
  inside controller <<SH
cd /etc/slurm
(umask 077; echo "$key" | base64 -d >slurm.key; printf '%s\n' AuthType=auth/slurm DbdHost=controller SlurmUser=slurm \
  StorageType=accounting_storage/mysql StorageLoc=slurm_acct_db StorageUser=slurm StoragePass=floor >slurmdbd.conf
 chown slurm:slurm slurm.key slurmdbd.conf)
printf '%s\n' CgroupPlugin=cgroup/$cgroup ConstrainCores=yes ConstrainRAMSpace=yes >cgroup.conf
[ $cgroup != v1 ] || echo CgroupMountpoint=/run/cgv1 >>cgroup.conf
echo 'NodeName=gpu-[1-$count] Name=gpu Type=h100 File=/dev/fakegpu[0-1]' >gres.conf
cat >slurm.conf <<CONF
ClusterName=$cluster
SlurmctldHost=controller
SlurmUser=slurm
AuthType=auth/slurm
CredType=cred/slurm
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=controller
GresTypes=gpu
MailProg=/bin/true
NodeName=gpu-[1-$count] CPUs=2 RealMemory=$((memory - 128)) Gres=gpu:h100:2
PartitionName=gpu Nodes=ALL Default=YES DefMemPerCPU=$((memory / 3))
CONF
systemctl start mariadb
mariadb -e "create database slurm_acct_db; create user slurm@localhost identified by 'floor'; grant all on slurm_acct_db.* to slurm@localhost"
systemctl start slurmdbd
until sacctmgr -n ping 2>/dev/null | grep -q UP; do sleep 0.05; done
sacctmgr -i add cluster "$cluster" >/dev/null
systemctl start slurmctld
SH
}

docker network create --internal --subnet "$net.0/24" "${label[@]}" "muster-$cluster" >/dev/null
docker volume create "${label[@]}" "muster-$cluster-shared" >/dev/null
controller &
login &
for n in $(seq "$count"); do compute "gpu-$n" & done
until docker exec "muster-$cluster-controller" sh -c "[ \$(timeout 1 sinfo -h -t idle -o %D) -eq $count ]" 2>/dev/null; do sleep 0.1; done
docker exec "muster-$cluster-controller" srun "-N$count" hostname >/dev/null
