"""The fault matrix: 38 faults of a GPU cluster, and what must be shown about each. Data only.

A test says which rows it proves by `@pytest.mark.fault(row)`; docs/faults.md is generated from both (page.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Place = Literal[
    "local cluster",
    "virtual machines",
    "AWS rehearsal",
    "real engine",
    "simulated AWS",
    "real processes",
    "unit",
]
"""Where a test runs: containers with systemd and Slurm; virtual machines; the rehearsal of AWS with real machines; the
real Pulumi engine without Slurm; programs of ours against moto's server; processes on one machine; functions."""

CLUSTER: tuple[Place, ...] = ("local cluster", "virtual machines", "AWS rehearsal")
CLOUD: tuple[Place, ...] = ("AWS rehearsal", "real engine", "simulated AWS")
ENGINE: tuple[Place, ...] = (*CLUSTER, "real engine")
PROCESSES: tuple[Place, ...] = (*CLUSTER, "real processes")
ANYWHERE: tuple[Place, ...] = get_args(Place)


@dataclass(frozen=True)
class Row:
    """A fault, and what is shown about it."""

    fault: str
    must_show: str
    needs: tuple[Place, ...]
    """Places whose tests count: a test elsewhere is listed, but does not prove the row."""
    happens: str = ""
    """What happens, as far as tests show it; empty if nothing is shown."""
    lost: str = ""
    """What is lost, as far as tests show it."""
    missing: str = ""
    """What is not shown yet; empty if the row is shown in full."""
    untimed: str = ""
    """Why there is no time to measure; empty if tests of the row should measure one."""


ROWS: dict[int, Row] = {
    1: Row(
        "a node dies during a training step",
        "the job is requeued without a person and resumes from the last complete checkpoint, loses at most one "
        "checkpoint interval, and ends with the same losses; its downtime has a bound",
        CLUSTER,
        "Slurm misses the node and requeues the job; the run resumes from a checkpoint and ends with the same losses "
        "and weights, bit for bit, as a run without a fault. With synchronous saves it repeats at most the steps of "
        "one checkpoint interval. Slurm misses the node within 4/3 of `slurmd_timeout_s` and 30 s, and the run trains "
        "again at most 310 s later if nodes are free. A node that starts again before Slurm misses it says so, and the "
        "job is requeued at once; a run of which 20 nodes are killed has the losses of a run without a fault. A job "
        "with a spare node is not even requeued",
        "the steps since the last checkpoint, which are computed again",
    ),
    2: Row(
        "slurmd is killed, its node lives",
        "the job is not lost, and the node returns without a person",
        CLUSTER,
        "systemd starts slurmd again; the job's steps run on and are not requeued",
        "nothing",
    ),
    3: Row(
        "slurmctld is killed, also while jobs are submitted",
        "running jobs and the queue survive; systemd starts it again, within a limit",
        CLUSTER,
        "systemd starts slurmctld again, running jobs run on and are not requeued, and waiting jobs wait on. Of 100 "
        "jobs submitted during three kills, all that sbatch had accepted more than 7 s before one are still there. If "
        "slurmctld uses the id of a forgotten job again that a node still runs, Slurm drains the node, which returns "
        "by itself",
        "what changed in the last 5 s: slurmctld saves its state that often, and no setting of it changes that",
    ),
    4: Row(
        "slurmdbd or its database is down",
        "jobs start and end as usual, people are told, and the records arrive later",
        CLUSTER,
        "jobs run; slurmctld stores their records and sends them when the database is back. After two minutes without "
        "an answer, an alert says so",
        "nothing",
    ),
    5: Row(
        "one node is cut off from the network, briefly or for long",
        "a short cut changes nothing or ends in a clear error; after a long one no old step runs beside its successor, "
        "and the node takes jobs again only when it is healthy",
        CLUSTER,
        "a job on two nodes does not notice that one of them is cut off for 10 s. After a longer cut, the node has "
        "stopped the job before Slurm starts it on another; when it is reachable again, it kills the old step and "
        "registers at once, after its checks. This holds for one node: nodes that are cut off together, such as a "
        "rack, reach each other and stop nothing, so their old steps run on beside the successors",
        "the steps since the last checkpoint, after a long cut",
    ),
    6: Row(
        "a link is slow or loses packets",
        "training names the rank and node behind it within a number of steps",
        CLUSTER,
        "once steps have become longer, the hosts of a run exchange messages in pairs, and at most 70 steps after the "
        "fault the run names rank and node whose messages are slow to every partner, or whose packets are lost: in the "
        "test, every tenth that arrives. `muster fabric` measures pairs of nodes before a run, names the node behind "
        "the slow link and drains it",
        "nothing",
    ),
    7: Row(
        "the filesystem of checkpoints is full",
        "a failed save is reported, the checkpoint before it stays intact and `latest` is never a partial one; the run "
        "continues, or stops with an exit code of its own",
        CLUSTER,
        "a failed save is reported with its cause and costs one checkpoint; the run trains on and saves again when "
        "there is space. If even the last state cannot be saved, the run does not count as finished",
        "the checkpoint that had no space",
    ),
    8: Row(
        "the shared filesystem hangs",
        "the node is drained within one interval with the cause, and the check does not hang itself",
        CLUSTER,
        "a node whose mount does not answer is drained with the mount and its server, in the next round of checks; as "
        "many nodes of a group as the limit on drains allows, the others stay in service with a comment that says so. "
        "`status` and `up` answer meanwhile, and `up` names the mount. Jobs wait in the kernel and go on when the "
        "server is back, and the nodes return by themselves. What hangs is the kernel's NFS on virtual machines, and "
        "FUSE on the local cluster; that a training run goes on is not tested",
        "nothing",
    ),
    9: Row(
        "the local disk of a node is full",
        "the node is drained with the cause within one interval, and returns by itself",
        CLUSTER,
        "the next round of checks drains the node and says how much space is left; three good rounds return it",
        "nothing",
    ),
    10: Row(
        "a checkpoint is truncated, corrupted, or half-written at a kill",
        "it is refused by name, and the last complete one is loaded, whatever was being written at the kill",
        PROCESSES,
        "every file has a size and a checksum in a manifest that is written last; a checkpoint that does not match is "
        "named and skipped. A kill before any file operation of a save leaves a complete checkpoint",
        "the damaged checkpoint",
        untimed="the checkpoint is judged when a run loads it, and until then nothing waits for it",
    ),
    11: Row(
        "two jobs use the same run folder",
        "the second one is refused and names the job that owns it",
        CLUSTER,
        "the second job ends at once with the number of the job that trains there; the first one is not disturbed",
        "nothing",
    ),
    12: Row(
        "preemption or time limit",
        "the run saves within the time that Slurm gives it, is requeued, and is recorded as preempted",
        CLUSTER,
        "the ranks save and exit before the urgent job begins or the limit is reached; the job is requeued and resumes "
        "at the step that it saved",
        "nothing",
    ),
    13: Row(
        "a spot instance is reclaimed",
        "the run saves within the notice of two minutes and continues on another machine",
        CLOUD,
        "the node is drained, its training job saves and is requeued, and continues on a new machine; a node that is "
        "still being set up is given up at once",
        "nothing",
    ),
    14: Row(
        "a job fails again and again",
        "requeues stop at a limit; the last error and the way on are printed",
        CLUSTER,
        "after `MAX_STALLED_REQUEUES` requeues without a newer checkpoint the job ends, and its log says why",
        "nothing",
    ),
    15: Row(
        "the clock of a node is wrong",
        "the node and its offset in seconds are reported before Slurm fails because of it; chrony is configured",
        CLUSTER,
        "a round of checks drains the node with its offset to the controller's clock and what sets it, no other node; "
        "`status` says the same. On a virtual machine whose clock jumps by half a minute, slurmd's own checks do that "
        "while Slurm's messages are still accepted and its job ends well; chrony, set up by bootstrap, sets the clock "
        "with the command of the reason, and the node returns. What Slurm does at an hour is not tested",
        "nothing",
    ),
    16: Row(
        "a node has another authentication key",
        "the node is named, and no key is printed",
        CLUSTER,
        "the node does not register; `doctor` names the node and the file that differs, without its content, and the "
        "next `up` repairs it",
        "nothing",
    ),
    17: Row(
        "two machines have the same name",
        "refused at validation, or noticed at registration with both addresses",
        CLOUD,
        "names come from the spec, so that it cannot name two machines alike. On AWS the machine that Slurm does not "
        "use is terminated after a minute, and the log of the power programs has the addresses of both; instances that "
        "are listed late are not launched twice. Pre-flight of your own hosts refuses a machine that has the name of "
        "another node, or that is listed twice, with both addresses",
        "nothing",
    ),
    18: Row(
        "the Slurm configuration of a node differs",
        "there is a single source of it, or differences are found by their checksums",
        CLUSTER,
        "nodes fetch the configuration from slurmctld (configless); a copy that differs is named by `doctor`, and the "
        "next restart of slurmd replaces it",
        "nothing",
    ),
    19: Row(
        "bootstrap fails or hangs",
        "the failing step, its last line and its log reach the terminal within a limit; no machine is left unnoticed",
        CLUSTER,
        "`up` fails with node, step, command and cause; a node that stops answering is named within its time limit. On "
        "AWS the report of the machine has step, line and log. `teardown` removes what exists",
        "nothing",
    ),
    20: Row(
        "SSH is refused, slow or cut during a copy",
        "retries end at a deadline, the error tells the cases apart, and no half-copied file is used",
        ANYWHERE,
        "connecting is retried until its deadline; refused, silent and lost connections have messages of their own; "
        "a file is written under another name, and renamed only if all of it has arrived",
        "nothing",
    ),
    21: Row(
        "the SSH host key of a node has changed",
        "refused, with both fingerprints and what to do",
        CLUSTER,
        "`up` refuses the connection, names the node, shows both fingerprints and the fix",
        "nothing",
        untimed="the connection is refused, and nothing goes on meanwhile",
    ),
    22: Row(
        "`up` is interrupted or killed",
        "the next `up` completes it, creates nothing twice, and leaves no process",
        ENGINE,
        "every process of the killed command ends; the next `up` adopts what exists and completes the cluster, also if "
        "the state file is lost",
        "nothing",
    ),
    23: Row(
        "`teardown` is interrupted or fails in part",
        "the next one completes it, missing things count as removed, and what is left is reported",
        ENGINE,
        "the next `teardown` removes what is left. On AWS, errors at every call of `up` and `teardown` in turn leave "
        "nothing behind, whatever the receipt says",
        "nothing",
    ),
    24: Row(
        "a resource is deleted behind muster's back",
        "the next `up` notices it and creates it again, and touches nothing else",
        ENGINE,
        "a refresh notices the missing machine; `up` creates it again with the same address and keeps the others",
        "what was on its disk",
    ),
    25: Row(
        "AWS throttles calls",
        "retries are bounded, and the whole wait is printed",
        CLOUD,
        "calls of muster are repeated with growing pauses within two minutes; a cluster comes up and runs a job while "
        "15 % of all calls are rejected. `up` prints how many calls of muster were repeated, their codes, and how long "
        "the retries took in all. Pulumi's AWS plugin, which creates most resources, repeats calls in silence, so `up` "
        "prints each resource that takes longer than a minute, and in the end how long it took. HashiCorp's provider "
        "5.100, whose code the plugin has, makes a call 8 times at most (`max_retries`), which takes about 200 s, and "
        "names the code of the error; the plugin itself ran in no test",
        "nothing",
    ),
    26: Row(
        "AWS has no capacity",
        "zones and types are listed at once, not after an hour of retries; all machines of a job are launched or none",
        CLOUD,
        "progress names each zone, type and purchase option that has none, and so does the error after "
        "`capacity.retry_s` (600 s by default); a job's nodes are launched completely or not at all, and the job runs "
        "once there is capacity",
        "nothing",
    ),
    27: Row(
        "a quota of AWS is too low",
        "the need is compared with the quota before anything is created, with the code of the quota",
        CLOUD,
        "pre-flight compares vCPUs, VPCs and addresses with the quotas and what others use, and prints the command "
        "that requests a higher one; an error of pre-flight creates nothing",
        "nothing",
        untimed="it is refused before anything is created",
    ),
    28: Row(
        "a subnet has too few addresses",
        "computed from nodes and interfaces, and refused before anything is created",
        ANYWHERE,
        "validation refuses a range that is too small for the nodes; pre-flight counts the free addresses of existing "
        "subnets against every interface",
        "nothing",
        untimed="it is refused before anything is created",
    ),
    29: Row(
        "a filesystem or security group cannot be deleted yet",
        "removal is ordered and bounded in time, and the message names what holds the resource",
        CLOUD,
        "what uses a resource is removed before it; removal is retried while it is in use and ends with an error that "
        "names the resource and the network interfaces that hold it",
        "nothing",
    ),
    30: Row(
        "the loss becomes NaN or jumps",
        "the run stops, skips or rolls back as its settings say, keeps the diagnosis, and is not requeued",
        CLUSTER,
        "updates that are not finite are skipped up to a limit, jumps are rolled back and their data skipped; a run "
        "that ends because of it says why and is not requeued",
        "the skipped updates",
    ),
    31: Row(
        "a rank hangs before a collective",
        "noticed within its limit, with the stack of the hung rank, and the job is requeued",
        CLUSTER,
        "the other ranks notice it at the limit, name rank, node and phase, and write the stack of every rank; the job "
        "is requeued and resumes",
        "the steps since the last checkpoint, which are computed again",
    ),
    32: Row(
        "a rank is slow",
        "rank, node and the ratio to the others are reported",
        CLUSTER,
        "at most 54 steps after the next profile (`metrics.profile_every`) the run names rank, node and how much "
        "longer its own work takes than that of the others; nothing is killed, and the usual speed returns with the "
        "rank's",
        "nothing",
    ),
    33: Row(
        "memory runs out, of a GPU or of the host",
        "an exit code of its own, advice, and no endless requeues",
        CLUSTER,
        "a lack of GPU memory is recorded with advice, and the same lack at the same step ends the run. A rank that "
        "the kernel kills for lack of host memory is named with its node, its memory, the limit and advice; Slurm "
        "records OUT_OF_MEMORY; without a newer checkpoint the job is requeued three times at most, and other jobs "
        "train on",
        "the steps since the last checkpoint",
    ),
    34: Row(
        "a GPU fails, reports an Xid, or is used by a process that was left",
        "the node is drained with who is to blame, and no job starts there",
        CLUSTER,
        "the prolog drains the node with the check's name, and Slurm requeues the job, which runs after the node was "
        "reset, rebooted or replaced. What a user left on a node is killed when their last job ends; if it still uses "
        "a GPU, the next check drains the node and names process and user, and jobs run there again once it is gone. "
        "No test has a GPU that fails: all imitate `nvidia-smi` and the kernel's log, which the checks read",
        "nothing",
    ),
    35: Row(
        "a prolog or health check fails or hangs",
        "the node is drained with the name of the check, and slurmd is not blocked",
        CLUSTER,
        "a prolog that finds a problem drains the node under the name of the check, and Slurm requeues the job. A "
        "check that hangs is killed at its limit and drains the node by name, while slurmd answers and jobs run on. A "
        "node stays in service if the check blames users",
        "nothing",
    ),
    36: Row(
        "a step cannot be killed",
        "the node is drained with a reason that says what hangs",
        CLUSTER,
        "a process that SIGKILL has been waiting for in two rounds of checks drains the node; the reason names job, "
        "process, state, function of the kernel and filesystem. The node returns when it is gone",
        "nothing but the job",
    ),
    37: Row(
        "a file of training data is missing or short",
        "the error names shard and position, and the resumed run continues with the same sample",
        PROCESSES,
        "the run ends with the file, what is wrong with it and the position of the sample, also if the file becomes "
        "short while the run reads it, and is not requeued; after the repair, the resumed run neither skips nor "
        "repeats a sample",
        "nothing",
        untimed="the run ends when it reads the file, and until then nothing goes wrong",
    ),
    38: Row(
        "credentials are missing or expired",
        "missing or expired ones are errors before anything is created; a denied check is a warning",
        CLOUD,
        "`up` and `check` stop before any other call and name the fix; a check that the account denies is a warning",
        "nothing",
        untimed="it is refused before anything is created",
    ),
}
