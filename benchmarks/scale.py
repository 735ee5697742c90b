"""Run muster's own queries against a Slurm cluster of a thousand nodes, without a thousand machines.

    python -m benchmarks.scale [--nodes 1000] [--job-nodes 200] [--jobs 10000] [--slurm 26.05] [--json FILE]

One container has slurmctld, slurmdbd and a slurmd for each node, with the configuration that muster renders. Each line
of the table is a query or program of muster: its time and its output beside the limits that it has on AWS.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from benchmarks.bringup import parse_positive, print_progress
from benchmarks.scale_cluster import GROUP, USER, EmulatedCluster, emulated_cluster
from benchmarks.scale_limits import COMMAND_CHARACTERS, RUN_COMMAND_CHARACTERS
from cluster import names
from cluster.spec.model import Software
from infra.resources.job_queue import QUERY_TIMEOUT_S, SlurmQueue
from infra.targets import facts
from slurm.alerts.conditions import View, list_conditions
from slurm.config.topology import check_topology, fit_topology, render_topology
from slurm.control import config, jobs, named_jobs, nodes
from slurm.control.condensed import condense_ranks, show_free_nodes
from slurm.fabric.pairs import MIN_NODES, PairSpeed, blame_nodes, plan_rounds
from slurm.fabric.verdict import ExpectedFabric
from slurm.gate import RANK_CPUS, RANK_MB
from slurm.gate_verdict import judge_job
from slurm.health.drain import decide_drain
from slurm.hostlist import hostlist
from slurm.power.requests import group_by_job
from trainer.table import table

ANSWER_S = 5.0
"""How long slurmctld may take to answer while jobs are submitted."""
START_S = 900.0
SUBMITTERS = 16
JOB_NODES = 200
"""Nodes of a job, each with two slurmstepd: on two cores, 200 took 15 s, 400 took 201 s, 1,000 over 400 s."""
PER_NODE_QUERIES = 20
# What the gate's ranks print; a thousand Python interpreters do not fit on this machine.
_RANK = """\
report() { echo "muster-gate {\\"host\\": \\"$SLURMD_NODENAME\\", \\"rank\\": $SLURM_PROCID, $1}"; }
report '"stage": "started"'
report '"stage": "passed", "sum": SUM'
"""


@dataclass(frozen=True)
class Row:
    """A measured query or program; a limit of 0 is none."""

    what: str
    count: int
    seconds: float
    characters: int = 0
    limit_s: float = 0.0
    limit_characters: int = 0

    @property
    def verdict(self) -> str:
        if not (self.limit_s or self.limit_characters):
            return ""
        is_late = bool(self.limit_s) and self.seconds > self.limit_s
        is_long = bool(self.limit_characters) and self.characters >= self.limit_characters
        return "FAIL" if is_late or is_long else "pass"


def main() -> int:
    """Measure, print the table and return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=parse_positive, default=1000)
    parser.add_argument("--job-nodes", type=parse_positive, default=JOB_NODES, help="nodes of a job, at most")
    parser.add_argument("--jobs", type=parse_positive, default=10_000, help="jobs that are submitted at once")
    parser.add_argument("--slurm", default=Software().slurm, help="release of Slurm, whose image exists")
    parser.add_argument("--start-s", type=float, default=START_S, help="seconds until all nodes must have registered")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    with emulated_cluster(options.nodes, names.image(options.slurm)) as cluster:
        rows = measure(cluster, options.jobs, options.start_s, options.job_nodes)
    print(render(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]))
    return int(any(row.verdict == "FAIL" for row in rows))


def measure(
    cluster: EmulatedCluster, job_count: int, start_s: float = START_S, job_nodes: int = JOB_NODES
) -> list[Row]:
    """Measure everything, in an order in which later parts need earlier ones."""
    parts = (
        measure_start(cluster, start_s),
        measure_nodes(cluster),
        measure_job(cluster, job_nodes),
        measure_changes(cluster),
        measure_topology_and_power(cluster),
        measure_queue(cluster, job_count),
    )
    rows = []
    for row in chain.from_iterable(parts):
        print_progress(f"{row.what}: {row.seconds:.2f} s, {row.characters:,} characters")
        rows.append(row)
    return rows


def measure_start(cluster: EmulatedCluster, start_s: float) -> Iterator[Row]:
    """Start the nodes and wait until slurmctld has all of them as idle."""
    began = time.monotonic()
    cluster.call("nodes", 1, len(cluster.nodes))
    wait_for_nodes(cluster, start_s)
    yield Row("all slurmd started and registered", len(cluster.nodes), time.monotonic() - began)
    for line in cluster.call("memory").out.splitlines():
        daemon, count, kilobytes = line.split()
        print_progress(f"{count} {daemon}: {int(kilobytes) / 1024:.0f} MB")


def wait_for_nodes(cluster: EmulatedCluster, limit_s: float) -> float:
    """Wait until every node can take a job; return the seconds."""
    began, query = time.monotonic(), show_free_nodes(cluster.nodes, RANK_CPUS, RANK_MB)
    while True:
        states = nodes.parse_nodes(cluster.run(query).out)
        working = sum(state.can_take(RANK_MB) for state in states.values())
        if working == len(cluster.nodes):
            return time.monotonic() - began
        if time.monotonic() > began + limit_s:
            problem = f"{working} of {len(cluster.nodes)} nodes work after {limit_s:.0f} s"
            raise RuntimeError(f"{problem}\n{cluster.call('logs').out}")
        print_progress(f"{working} of {len(cluster.nodes)} nodes work")
        time.sleep(1)


def measure_nodes(cluster: EmulatedCluster) -> Iterator[Row]:
    """Measure what reads the nodes: gate, status, health and alerts."""
    count = len(cluster.nodes)
    raw = cluster.run(nodes.show_nodes())
    yield Row("all that Slurm shows of nodes, for power and alerts", count, raw.seconds, len(raw.out), 30)
    query = show_free_nodes(cluster.nodes, RANK_CPUS, RANK_MB)
    lean = cluster.run(query)
    _check(len(nodes.parse_nodes(lean.out)) == count, f"the gate reads {lean.out[:500]}")
    yield _limited("states of nodes for the ready gate", count, lean.seconds, lean.out)
    yield Row("  the command that asks for them", count, 0.0, len(query), 0, COMMAND_CHARACTERS)
    status = cluster.run(facts.SCRIPT)
    _check(len(facts.parse(status.out).nodes) == count, f"status reads {status.out[:500]}")
    yield _limited("status", count, status.seconds, status.out)
    group = cluster.run(shlex.join(nodes.list_group(GROUP)))
    began = time.monotonic()
    listed = nodes.parse_group(group.out)
    _check(len(listed) == count, f"the health check reads {group.out[:500]}{group.err}")
    decide_drain(cluster.nodes[-1], listed, 10)
    yield Row("health: may this node be drained?", count, group.seconds + time.monotonic() - began, len(group.out), 10)
    began = time.monotonic()
    list_conditions(View(nodes.parse_nodes(raw.out)), 600)
    yield Row("alerts: conditions of all nodes", count, time.monotonic() - began, 0, 15)


def measure_job(cluster: EmulatedCluster, at_most: int) -> Iterator[Row]:
    """Run a job across nodes whose ranks report as those of the ready gate do."""
    count = min(len(cluster.nodes), at_most)
    rank = _RANK.replace("SUM", str(count * (count + 1) / 2))
    srun = [
        "srun",
        f"--partition={GROUP}",
        f"--nodelist={hostlist(cluster.nodes[:count])}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--chdir=/tmp",
    ]
    command = ["runuser", "-u", USER, "--", "timeout", "400", *srun, "--mem=512M", "sh", "-c", rank]
    answer = cluster.run(condense_ranks(command) + " </dev/null 2>&1")
    problem = judge_job(cluster.nodes[:count], answer.code, answer.out, 400)
    _check(problem is None, f"{problem}\n{answer.out[-1500:]}")
    yield _limited("a job across nodes, its ranks' reports", count, answer.seconds, answer.out, limit_s=0)


def measure_changes(cluster: EmulatedCluster) -> Iterator[Row]:
    """Measure what a change of the cluster does: look for jobs, drain, resume, reload the configuration."""
    queue, everything = SlurmQueue(lambda: cluster), cluster.nodes
    count = len(everything)
    yield _timed("jobs on all nodes, before a change", count, lambda: _check(queue.jobs(everything) == {}, "jobs"))
    yield _timed("drain all nodes", count, lambda: _check(set(queue.drain(everything)) == set(everything), "drain"))
    yield _timed("resume all nodes", count, lambda: queue.resume(everything))
    probe = cluster.run(nodes.probe_nodes({node.name: node.address for node in cluster.inventory.compute}))
    # There is no sshd here: every node counts as silent.
    _check(len(probe.out.split()) == count, f"{len(probe.out.split())} nodes were probed")
    yield Row("probe of all nodes, 64 at a time", count, probe.seconds)
    reload = cluster.run(shlex.join(config.RECONFIGURE))
    _check(reload.code == 0, reload.err)
    yield Row("reconfigure", count, reload.seconds, 0, 60)
    answer = cluster.run(config.PING)
    yield Row("slurmctld answers after it", count, answer.seconds, 0, ANSWER_S)
    yield Row("all nodes work after it", count, wait_for_nodes(cluster, START_S))


def measure_topology_and_power(cluster: EmulatedCluster) -> Iterator[Row]:
    """Measure what the controller computes for all nodes."""
    everything = cluster.nodes
    count = len(everything)
    places = {name: (f"nn-{n // 256}", f"nn-a{n // 32}", f"nn-b{n // 8}") for n, name in enumerate(everything)}
    began = time.monotonic()
    text = render_topology(everything, places)
    _check(check_topology(fit_topology(text, everything), everything) == [], "topology")
    yield Row("topology.conf: render, fit and check", count, time.monotonic() - began, len(text), 5)
    pairs = [
        PairSpeed(pair, {2**30: 100.0 if everything[-1] in pair else 300.0})
        for pairs in plan_rounds(everything)
        for pair in pairs
    ]
    began = time.monotonic()
    blame = blame_nodes([], pairs, ExpectedFabric("efa", 16, {2**30: 310.0}))
    _check(count < MIN_NODES or list(blame.reasons) == [everything[-1]], "fabric")
    yield Row("fabric: the slow node among all pairs", count, time.monotonic() - began, 0, 5)
    requested = [{"job_id": n, "nodes_resume": name, "nodes_alloc": name} for n, name in enumerate(everything)]
    began = time.monotonic()
    requests = group_by_job(everything, requested, {})
    _check(len(requests) == count, "requests")
    yield Row("resume program: group nodes by job", count, time.monotonic() - began, len(hostlist(everything)), 5)


def measure_queue(cluster: EmulatedCluster, count: int) -> Iterator[Row]:
    """Submit jobs at once to drained nodes, so that all of them wait; measure what reads them."""
    queue = SlurmQueue(lambda: cluster)
    queue.drain(cluster.nodes)
    cluster.run("rm -f /tmp/answers*; setsid /muster/scale.sh sample /tmp/answers >/dev/null 2>&1 &")
    submitted = cluster.call("submit", count, SUBMITTERS, timeout=3600)
    sampled = [line.split() for line in cluster.run("touch /tmp/answers.stop; cat /tmp/answers").out.splitlines()]
    ids = set(submitted.out.split())
    _check(len(ids) == count, f"{len(ids)} of {count} jobs were accepted: {submitted.err[-500:]}")
    yield Row(f"submit jobs, {SUBMITTERS} at a time", count, submitted.seconds)
    slowest = max((float(end) - float(began) for began, end in sampled if end != "failed"), default=0.0)
    _check(bool(sampled) and all(end != "failed" for _, end in sampled), "slurmctld did not answer meanwhile")
    yield Row(f"slowest of {len(sampled)} answers meanwhile", count, slowest, 0, ANSWER_S)
    listed = cluster.run(named_jobs.LIST_JOBS)
    lost = ids - {job.id for job in named_jobs.parse_jobs(named_jobs.split_rows(listed.out))}
    _check(not lost, f"lost jobs: {sorted(lost)[:10]}")
    yield Row("list of all jobs", count, listed.seconds, len(listed.out), 10)
    status = cluster.run(facts.SCRIPT)
    _check(facts.parse(status.out).more_jobs == count - len(facts.parse(status.out).jobs), status.out[-300:])
    yield _limited("status with them", count, status.seconds, status.out)
    waiting = cluster.run(shlex.join(jobs.LIST_WAITING))
    _check(len(jobs.parse_waiting(waiting.out)) == count, waiting.err)
    yield Row("alerts: jobs that wait", count, waiting.seconds, len(waiting.out), 15)
    yield _timed("jobs on all nodes with them", count, lambda: _check(queue.jobs(cluster.nodes) == {}, "jobs"))
    queries = min(PER_NODE_QUERIES, len(cluster.nodes))
    each = float(cluster.call("per-node", queries).out) / queries
    what = f"  by a query per node ({queries} were measured)"
    yield Row(what, len(cluster.nodes), each * len(cluster.nodes))


def render(rows: list[Row]) -> str:
    """Return the table."""
    lines = []
    for row in rows:
        limit_s = f"{row.limit_s:g}" if row.limit_s else ""
        limit_characters = f"{row.limit_characters:,}" if row.limit_characters else ""
        characters = f"{row.characters:,}" if row.characters else ""
        seconds = f"{row.seconds:.2f}"
        lines.append((row.what, f"{row.count:,}", seconds, limit_s, characters, limit_characters, row.verdict))
    return table(["what", "N", "seconds", "limit", "characters", "limit", ""], lines)


def _limited(what: str, count: int, seconds: float, text: str, limit_s: float = QUERY_TIMEOUT_S) -> Row:
    """Return the row of a query that must fit into Run Command."""
    return Row(what, count, seconds, len(text), limit_s if seconds else 0, RUN_COMMAND_CHARACTERS)


def _timed(what: str, count: int, act: Callable[[], object]) -> Row:
    began = time.monotonic()
    act()
    return Row(what, count, time.monotonic() - began, 0, QUERY_TIMEOUT_S)


def _check(right: bool, problem: str) -> None:
    if not right:
        raise RuntimeError(problem)


if __name__ == "__main__":
    sys.exit(main())
