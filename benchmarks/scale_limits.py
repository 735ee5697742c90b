"""What a cluster of a given number of nodes needs of each limit: computed, without a machine.

    python -m benchmarks.scale_limits [--nodes 1000,5000] [--write]

Lengths come from the functions that render and condense, for nodes of a group with a long name.
docs/scale.md has the table, which `--write` renews; a test compares them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale_cluster import make_inventory
from cluster import names
from cluster.inventory import NodeSet
from cluster.spec import ClusterSpec
from cluster.spec.slurm_options import NODE_TIMEOUT_S
from infra.targets.aws.launcher.node_names import MAX_PER_CALL
from slurm.config.render import MAX_JOBS, render_files
from slurm.control.condense import condense_nodes, condense_ranks
from slurm.control.condensed import show_free_nodes
from slurm.control.nodes import PROBE_S, PROBES_AT_ONCE, probe_nodes
from slurm.gate import PROBED_AT_A_TIME, RANK_CPUS, RANK_MB, limit_job_s

RUN_COMMAND_CHARACTERS = 24_000
"""Output that Systems Manager returns (infra/targets/aws/run_command.py)."""
COMMAND_CHARACTERS = 64_000
"""Length of a command of Systems Manager (infra/targets/aws/run_command_transport.py)."""
# SLURM_DEFAULT_LISTEN_BACKLOG of Slurm 24.11 and 26.05, and Linux's net.core.somaxconn since 5.4.
LISTEN_BACKLOG = 4096
# AGENT_THREAD_COUNT of slurmctld: messages that it sends at the same time for one purpose.
AGENT_THREADS = 10
# TCPTimeout of Slurm: how long slurmctld tries to connect to a node that is gone.
CONNECT_S = 2
# Parameter Store answers this many requests per second, unless the account pays for more.
PARAMETER_REQUESTS_PER_S = 40
SECRETS_PER_NODE = 2
"""The Slurm key and the host key (infra/targets/aws/node/cluster_secrets.py)."""
LONGEST_RUN_S = 172_800
"""Longest executionTimeout of AWS-RunShellScript."""
GROUP = "p5en-capacity-block"
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- limits: written by `python -m benchmarks.scale_limits --write` -->", "<!-- end of limits -->"
_DEAD_PERCENT = 5


@dataclass(frozen=True)
class Limit:
    """What a cluster needs, and what there is."""

    what: str
    needs: float
    unit: str
    limit: float | None
    note: str = ""
    """What happens beyond the limit, or what keeps it away."""

    @property
    def fits(self) -> bool:
        return self.limit is None or self.needs <= self.limit


def compute_limits(nodes: int) -> list[Limit]:
    """Return all limits for a cluster with so many always-on nodes of one group."""
    members = names.members(GROUP, nodes)
    mixed = "".join(_show_node(name, busy=not n % 7) for n, name in enumerate(members))
    passed = "".join(_report_rank(name, rank, nodes) for rank, name in enumerate(members))
    lost = "".join(_report_rank(name, rank, 0) for rank, name in enumerate(members) if rank % 7)
    probe = probe_nodes(dict.fromkeys(members[:PROBED_AT_A_TIME], "10.255.255.255"))
    dead = math.ceil(nodes * _DEAD_PERCENT / 100)
    return [
        Limit("states of nodes, every seventh busy", len(condense_nodes(mixed, RANK_CPUS, RANK_MB)), "characters",
              RUN_COMMAND_CHARACTERS, "`scontrol` alone prints " f"{len(mixed):,}"),
        Limit("reports of the gate's ranks, all pass", len(condense_ranks(passed)), "characters",
              RUN_COMMAND_CHARACTERS, f"the ranks print {len(passed):,}"),
        Limit("the same, every seventh is silent", len(condense_ranks(lost)), "characters", RUN_COMMAND_CHARACTERS),
        Limit("command that asks for the states", len(show_free_nodes(members, RANK_CPUS, RANK_MB)), "characters",
              COMMAND_CHARACTERS),
        Limit(f"probe of {PROBED_AT_A_TIME} nodes that may be silent", len(probe), "characters", COMMAND_CHARACTERS,
              "more nodes are probed by several commands"),
        Limit("probe if none answers", math.ceil(nodes / PROBES_AT_ONCE) * PROBE_S, "s", None,
              f"{PROBES_AT_ONCE} at a time"),
        Limit("deadline of the gate's job on AWS", limit_job_s(nodes, 300.0), "s", LONGEST_RUN_S),
        Limit("messages that slurmctld sends in a round", nodes, "messages", None,
              f"autoscaled nodes have TreeWidth 65533, so none is forwarded; {AGENT_THREADS} at a time"),
        Limit(f"such a round while {_DEAD_PERCENT} % of the nodes are gone",
              math.ceil(dead / AGENT_THREADS) * CONNECT_S, "s", NODE_TIMEOUT_S / 2,
              "beyond half of SlurmdTimeout, nodes that are there would count as silent"),
        Limit("nodes that connect to slurmctld at once", nodes, "connections", LISTEN_BACKLOG,
              "the others connect again a second later; set SlurmctldPort to a range to avoid it"),
        Limit("slurm.conf of autoscaled nodes, sent to each of them", _measure_conf(nodes), "characters", None,
              "one line for all nodes of a group"),
        Limit("slurm.conf of nodes with addresses", _measure_static_conf(nodes), "characters", None,
              f"{_measure_static_conf(nodes) * nodes / 1e6:,.0f} MB for all nodes after a change"),
        Limit("jobs in the queue, 10 for each node", 10 * nodes, "jobs", MAX_JOBS),
        Limit("RunInstances calls to start all nodes", math.ceil(nodes / MAX_PER_CALL), "calls", None),
        Limit("Route 53 calls to publish their names", math.ceil(nodes / 500), "calls", None),
        Limit("DescribeInstanceTopology calls", math.ceil(nodes / 100), "calls", None, "once for each machine"),
        Limit("secrets that booting nodes read at once", nodes * SECRETS_PER_NODE / PARAMETER_REQUESTS_PER_S, "s", 60,
              f"Parameter Store answers {PARAMETER_REQUESTS_PER_S} requests per second; nodes try again meanwhile"),
        Limit("a sweep's requests for the reports of starting nodes",
              math.ceil(nodes / 10) / PARAMETER_REQUESTS_PER_S, "s", 60),
    ]  # fmt: skip


def render_table(sizes: Sequence[int]) -> str:
    """Return the Markdown table of docs/scale.md."""
    columns = [compute_limits(size) for size in sizes]
    heads = [f"{size:,} nodes" for size in sizes]
    lines = [f"| | {' | '.join(heads)} | limit | |", "|---|" + "---|" * (len(sizes) + 2)]
    for row in zip(*columns, strict=True):
        cells = [f"{limit.needs:,.0f}{'' if limit.fits else ' **over**'}" for limit in row]
        bound = f"{row[0].limit:,.0f} {row[0].unit}" if row[0].limit is not None else row[0].unit
        lines.append(f"| {row[0].what} | {' | '.join(cells)} | {bound} | {row[-1].note} |")
    return "\n".join(lines)


def renew_page(text: str, sizes: Sequence[int]) -> str:
    """Return the page with the present table."""
    head, _, remainder = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{render_table(sizes)}\n\n{END}{remainder.partition(END)[2]}"


def main() -> int:
    """Print the table, or write it to the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", default="1000,5000", help="sizes, separated by commas")
    parser.add_argument("--write", action="store_true", help=f"renew the table in docs/{PAGE.name}")
    options = parser.parse_args()
    sizes = [int(size) for size in options.nodes.split(",")]
    if options.write:
        PAGE.write_text(renew_page(PAGE.read_text(encoding="utf-8"), sizes), encoding="utf-8")
    else:
        print(render_table(sizes))
    return 0


def _show_node(name: str, *, busy: bool) -> str:
    """Return the line that scontrol prints for a machine with eight GPUs."""
    state, cpus, memory = ("ALLOCATED+CLOUD", 192, 1900000) if busy else ("IDLE+CLOUD", 0, 0)
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=48 CPUAlloc={cpus} CPUEfctv=192 CPUTot=192 CPULoad=0.50 "
        f"AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:h200:8 NodeAddr={name} NodeHostName={name} "
        f"Version=26.05.5 OS=Linux 6.12.0 RealMemory=1992294 AllocMem={memory} FreeMem=1900000 Sockets=2 Boards=1 "
        f"State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={GROUP} "
        "BootTime=2026-11-18T03:00:00 SlurmdStartTime=2026-11-18T03:01:00 LastBusyTime=2026-11-18T03:02:00\n"
    )


def _report_rank(host: str, rank: int, total: int) -> str:
    """Return the reports of a rank; one of a job that passes, or of one that waits for others (`total` 0)."""
    stages: list[dict[str, object]] = [{"stage": stage} for stage in ("started", "imported", "joined")]
    stages += [{"stage": "passed", "sum": total * (total + 1) / 2}] if total else []
    return "".join(f"muster-gate {json.dumps({'host': host, 'rank': rank, **stage})}\n" for stage in stages)


def _measure_conf(nodes: int) -> int:
    controller = make_inventory(0)
    nodes_of_group = NodeSet(group=GROUP, count=nodes, static=nodes, cpus=192, memory_mb=2097152)
    inventory = controller.model_copy(update={"sets": (nodes_of_group,)})
    spec = ClusterSpec.model_validate({"name": "scale", "target": "aws", "groups": {GROUP: {"min": 0, "max": 1}}})
    files = render_files(inventory, spec, cgroup="v2", db_password="")
    return len(files["/etc/slurm/slurm.conf"].content)


def _measure_static_conf(nodes: int) -> int:
    spec = ClusterSpec.model_validate({"name": "scale", "target": "local", "groups": {"gpu": {"count": 1}}})
    files = render_files(make_inventory(nodes), spec, cgroup="v2", db_password="")
    return len(files["/etc/slurm/slurm.conf"].content)


if __name__ == "__main__":
    sys.exit(main())
