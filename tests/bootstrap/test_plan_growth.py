"""The work of a plan and its input grow with the number of nodes, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bootstrap import program
from bootstrap.desired import Desired
from bootstrap.plan import plan_steps
from bootstrap.steps import job_network, registry
from cluster.inventory import Adopted
from tests.bootstrap.clusters import desired, done_all, node

# Some files on each node list every node: /etc/hosts, known_hosts, the addresses in the rules for connections. A node
# also looks at each line of slurm.conf, to tell whether its daemon has to restart.
MAX_CALLS_PER_PAIR = 6.0


def adopted_cluster(nodes: int) -> Desired:
    def adopt(name: str, role: Any, number: int, **more: Any) -> Any:
        return node(name, role, number, adopted=Adopted(hostname=f"host-{number}", user="ops"), **more)

    controller = adopt("controller", "controller", 1)
    members = [adopt(f"gpu-{number}", "compute", number, group="gpu") for number in range(2, nodes + 1)]
    target = desired()
    return replace(target, inventory=target.inventory.model_copy(update={"nodes": (controller, *members)}))


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions run, in Python or in C: the same at every run, unlike times."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def plan_finished_cluster(nodes: int) -> int:
    target = adopted_cluster(nodes)
    facts = done_all(target)
    # Nothing of it is left from the plan before.
    target = replace(target)
    program.pack_program.cache_clear()
    job_network.render_rules.cache_clear()
    return count_calls(lambda: plan_steps(facts, target))


def probe_cluster(nodes: int) -> int:
    target = adopted_cluster(nodes)
    return count_calls(lambda: [registry.build_probe(member, target) for member in target.inventory.nodes])


@pytest.mark.parametrize(("work", "limit"), [(plan_finished_cluster, MAX_CALLS_PER_PAIR), (probe_cluster, 0.0)])
def test_the_work_hardly_grows_with_the_square_of_the_nodes(work: Callable[[int], int], limit: float) -> None:
    work(4)  # What Python does only once, such as compiling regular expressions, is not counted.
    few, more, many = work(4), work(32), work(64)
    # Of a + b n + c n^2, the difference of the two slopes is 60 c.
    assert ((many - more) / 32 - (more - few) / 28) / 60 <= limit


def test_nodes_share_what_is_the_same_for_all() -> None:
    plan_finished_cluster(4)
    # 1,029 calls; 12,469 before programs and rules were made once.
    assert (plan_finished_cluster(32) - plan_finished_cluster(4)) / 28 <= 2000
