"""Check a machine that has booted, with the rules of the hosts target that concern what an image brings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bootstrap.transport.base import Transport
from cluster.spec import ClusterSpec
from infra.targets.hosts.assign import Assignment
from infra.targets.hosts.preflight.facts import MachineFacts, Probe, parse_facts, render_script
from infra.targets.hosts.preflight.judge import (
    Problem,
    Subject,
    check_clock,
    check_gpus,
    check_python,
    check_slurm,
    check_system,
)
from infra.targets.hosts.preflight.rdma import check_rdma

SCRIPT_TIMEOUT_S = 60.0
RULES: tuple[Callable[[Subject], Iterator[Problem]], ...] = (
    check_system,
    check_python,
    check_clock,
    check_slurm,
    check_gpus,
    check_rdma,
)


def read_subject(transport: Transport, spec: ClusterSpec, assigned: Assignment) -> Subject:
    """Return the facts of a machine; raise FactsError if it does not give them."""
    asked_at = time.time()
    answer = transport.run(render_script(Probe()), timeout=SCRIPT_TIMEOUT_S)
    facts: MachineFacts = parse_facts(answer.out)
    # The machine is the cluster's own, so what muster has put there is no problem.
    return Subject(spec, assigned, facts, asked_at, time.time(), ours=bool(facts.muster))


def find_errors(subject: Subject) -> list[Problem]:
    """Return what stops bootstrap on a machine, or would waste it: another system, no Slurm, no driver, no fabric."""
    return [problem for rule in RULES for problem in rule(subject) if problem.level == "error"]
