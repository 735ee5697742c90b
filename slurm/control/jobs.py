"""Jobs: which jobs run on which nodes, and how nodes are drained, emptied and resumed while jobs are running."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm.hostlist import expand, hostlist

_POLL_S = 0.5
_REQUEUED_AT_ONCE = 8
MAX_LISTED_CHARS = 16_000
"""Length of a list of jobs, of which Systems Manager returns 24,000 characters; what is longer is cut off."""
LEAVING = "muster: leaving"
"""Reason of nodes that a change is about to remove or replace; the sweep returns them to service afterwards."""
EMPTYING = "image refresh: its jobs end first"
"""Reason of nodes that take no more jobs, because they will be replaced; the sweep leaves them as they are."""


# State and start time of every job that is not finished. Without a list of states, squeue includes suspended and
# completing jobs.
LIST_STARTS = "squeue -h -o '%T|%S'"


@dataclass(frozen=True)
class WaitingJob:
    """A pending job."""

    id: str
    partition: str
    """Several names, separated by commas, if the job may start in any of them."""
    reason: str


LIST_WAITING = ("squeue", "--noheader", "--states", "PD", "--format", "%i|%P|%r")


def parse_waiting(text: str) -> tuple[WaitingJob, ...]:
    """Parse LIST_WAITING; skip lines of another form."""
    return tuple(WaitingJob(*line.split("|", 2)) for line in text.splitlines() if line.count("|") > 1)


# Nodes unknown to Slurm (a login node, or one that never joined) have no jobs and cannot be drained. Every output
# is assigned to a variable first, because `set -e` ignores a command that fails in a pipeline or in a `for` list.
# Slurm is asked once for all nodes: a command for each of a thousand nodes would take longer than the script may.
_SELECT = """set -e
all=$(sinfo -h -N -o %N)
requested=$(scontrol show hostnames {nodes})
members=$(printf '%s\\n' "$all" -- "$requested" |
  awk 'BEGIN {{ ORS = " " }} $1 == "--" {{ second = 1; next }} !second {{ all[$1] = 1; next }} $1 in all')
[ -n "$members" ] || exit 0
list=$(echo $members | tr ' ' ,)
"""
CUT_ROWS = f"""awk 'NR == 1 || total + length($0) < {MAX_LISTED_CHARS} {{ print; total += length($0) + 1 }}'"""
"""Filter that prints rows until they are too long; the first is always there, so that no queue looks empty."""
_LIST_ON_NODES = f"""jobs=$(squeue -h -t R,S,CF -w "$list" -o '%i %N')
[ -z "$jobs" ] || printf '%s\\n' "$jobs" | {CUT_ROWS}"""
# A node that someone else drained keeps its reason and is not resumed later; one that an earlier run drained is. A node
# that is leaving is drained again, because the sweep compares the time of the drain with the launch of its machine.
_DRAIN = f"""shown=$(scontrol -o show node "$list")
ours= fresh=
while IFS= read -r node; do
  name=${{node#NodeName=}} name=${{name%% *}} state=${{node#* State=}}
  case "$node" in NodeName=*) ;; *) continue ;; esac
  case "${{state%% *}}" in
    *DRAIN*)
      case "$node" in
        *"Reason={LEAVING}"*) ours="$ours $name" fresh="$fresh,$name" ;;
        *"Reason=@REASON@"*) ours="$ours $name" ;;
        *"Reason={EMPTYING}"*) ours="$ours $name" fresh="$fresh,$name" ;;
      esac
      ;;
    *) ours="$ours $name" fresh="$fresh,$name" ;;
  esac
done <<END
$shown
END
[ -z "$fresh" ] || scontrol update nodename="${{fresh#,}}" state=drain reason="@REASON@"
ours=$(echo $ours | tr ' ' ,)
[ -z "$ours" ] || scontrol show hostlist "$ours"
"""
# A node that is out of service already keeps its reason.
_SET_ASIDE = """aside() {
  case " $members " in *" $1 "*) ;; *) return 0 ;; esac
  shown=$(scontrol -o show node "$1")
  state=${shown#* State=}
  case "${state%% *}" in *DRAIN* | *DOWN*) return 0 ;; esac
  scontrol update nodename="$1" state=drain reason="$2"
  echo "$1"
}
"""
# Slurm itself would end the jobs of a removed node as NODE_FAIL and not rerun them. A job that cannot be requeued
# is cancelled. The nodes must be empty before they are removed, or the ending job would hold its other nodes.
_REQUEUE = """jobs=$(squeue -h -t R,S,CF -w "$list" -o %A)
printf '%s\\n' $jobs | sort -un |
  xargs -r -n 1 -P {at_once} sh -c 'scontrol requeue "$1" 2>/dev/null || scancel "$1"' requeue || true
for try in $(seq {tries}); do
  left=$(squeue -h -t R,S,CF,CG -w "$list" -o %A)
  [ -n "$left" ] || exit 0
  sleep {poll_s}
done"""
_RESUME = 'scontrol update nodename="$(echo $members | tr " " ,)" state=resume'


def list_hostnames(job: str) -> str:
    """Return a shell command that prints the nodes of a job, one per line."""
    return f"scontrol show hostnames $(squeue -h -o %N -j {job})"


def show_state(job: str) -> str:
    """Return the command that prints the state of a job in the queue, and nothing if it is not there."""
    return f"squeue -h -o %T -j {shlex.quote(job)} 2>/dev/null || true"


def list_steps(job: str) -> str:
    """Return the command that prints the ids of the running steps of a job (`7.batch`, `7.0`), one per line."""
    return f"squeue -h -s -o %i -j {shlex.quote(job)} 2>/dev/null || true"


def explain_waiting(job: str) -> str:
    """Return the command that prints why a job waits, and why nodes are out of service."""
    return f"squeue -h -o '%T %r' -j {shlex.quote(job)} 2>/dev/null; sinfo -N -l -R 2>/dev/null || true"


def show_result(job: str) -> str:
    """Return a shell command that prints `state|exit code|nodes` of a job, also after it has ended."""
    return f"sacct -X -n -P -j {job} -o State,ExitCode,NodeList"


SAVES_ON_USR1 = "saves-on-usr1"
"""Word in the comment of a job (`sbatch --comment`) that saves and requeues itself if its batch script gets USR1."""


@dataclass(frozen=True)
class NodeJob:
    """A job that holds a node; an element of an array, or a component of a heterogeneous job, is a job."""

    id: str
    state: str
    time: str
    """How long it has been running."""


def list_on_node(node: str) -> list[str]:
    """Return the command that prints `job|state|elapsed time` for every job on a node; `parse_on_node` reads it.

    It prints nothing that a user chooses: a line break in a name or a comment would forge the row of another job.
    """
    return ["squeue", "-h", "-t", "R,S,CF", "-w", node, "-o", "%i|%T|%M"]


def parse_on_node(text: str) -> tuple[NodeJob, ...]:
    """Parse the output of `list_on_node`; skip lines of another form."""
    rows = [re.fullmatch(r"([0-9]+(?:[_+][0-9]+)?)\|([A-Z_]+)\|([0-9A-Z:-]+)", line) for line in text.splitlines()]
    return tuple(NodeJob(*row.groups()) for row in rows if row)


def list_all_on_node(node: str) -> list[str]:
    """Return the command that prints `id|state` for every job on a node, also for those that are ending.

    Elements of arrays have their own ids here, as in the titles of slurmstepd and the names of cgroups.
    """
    return ["squeue", "-h", "-w", node, "-o", "%A|%T"]


def parse_states(text: str) -> dict[str, str]:
    """Return the states of jobs by id, from `list_all_on_node`; skip lines of another form."""
    return dict(line.split("|", 1) for line in text.splitlines() if "|" in line)


def show_comment(job: str) -> list[str]:
    """Return the command that prints the comment of a job, and nothing else; no line if the job has ended."""
    return ["squeue", "-h", "-t", "R,S,CF", "-j", job, "-o", "%k"]


def warn_batch_script(job: str) -> list[str]:
    """Return the command that sends USR1 to the batch script of a job."""
    return ["scancel", "--signal=USR1", "--batch", job]


def requeue_job(job: str) -> list[str]:
    """Return the command that ends a job and puts it back into the queue."""
    return ["scontrol", "requeue", job]


def comment_job(job: str, text: str) -> list[str]:
    """Return the command that replaces the comment of a job."""
    return ["scontrol", "update", f"jobid={job}", f"comment={text}"]


# squeue lists the jobs of all users, because it prints nothing at all for a user whom the controller does not know.
_LIST_BY_USER = f"""set -e
jobs=$(squeue -h -t R,S,CF -o '%u %i')
printf '%s\\n' "$jobs" |
  awk 'BEGIN {{ split("@USERS@", names); for (i in names) users[names[i]] = 1 }} $1 in users' | {CUT_ROWS}"""


def list_by_user(users: Sequence[str]) -> str:
    """Return a script that prints `user job` for the jobs of these users; `parse_pairs` reads it."""
    return _LIST_BY_USER.replace("@USERS@", " ".join(users))


def list_on_nodes(nodes: Sequence[str]) -> str:
    """Return a script that prints `job hostlist` for the jobs on these nodes; `parse_on_nodes` reads it."""
    return _select(nodes) + _LIST_ON_NODES


def parse_on_nodes(text: str, nodes: Sequence[str]) -> dict[str, list[str]]:
    """Parse the output of `list_on_nodes`; return the job ids by node."""
    jobs: dict[str, list[str]] = {node: [] for node in nodes}
    for line in text.splitlines():
        job, hosts = line.split()
        for node in jobs.keys() & set(expand(hosts)):
            jobs[node].append(job)
    return {node: ids for node, ids in jobs.items() if ids}


def drain(nodes: Sequence[str], reason: str = LEAVING) -> str:
    """Return a script that drains nodes that will be removed or replaced, and prints a hostlist of muster's drains."""
    return _select(nodes) + _DRAIN.replace("@REASON@", reason)


def set_aside(reasons: Mapping[str, str]) -> str:
    """Return a script that drains each node with its reason, and prints those that were in service."""
    calls = "\n".join(shlex.join(["aside", node, reason]) for node, reason in reasons.items())
    return _select(list(reasons)) + _SET_ASIDE + calls


def requeue(nodes: Sequence[str], wait_s: float) -> str:
    """Return a script that requeues the jobs on nodes and waits until the nodes are empty."""
    return _select(nodes) + _REQUEUE.format(tries=int(wait_s / _POLL_S), poll_s=_POLL_S, at_once=_REQUEUED_AT_ONCE)


def resume(nodes: Sequence[str]) -> str:
    """Return a script that returns drained nodes to service."""
    return _select(nodes) + _RESUME


def parse_pairs(text: str) -> dict[str, list[str]]:
    """Parse lines with a node or user and the id of a job; return the job ids by node or user."""
    jobs: dict[str, list[str]] = {}
    for line in text.splitlines():
        owner, job = line.split()
        jobs.setdefault(owner, []).append(job)
    return jobs


def _select(nodes: Sequence[str]) -> str:
    """Return the lines that set `members` (with blanks) and `list` (with commas) to the nodes that Slurm knows.

    They exit if there are none.
    """
    return _SELECT.format(nodes=shlex.quote(hostlist(nodes))) if nodes else "exit 0\n"
