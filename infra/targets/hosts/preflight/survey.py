"""Read the facts of all hosts over SSH, several at a time, and report every problem at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bootstrap.transport.base import TransportError
from bootstrap.transport.host_connection import HostConnection, HostConnections
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.login import resolve_login
from infra.targets.hosts.preflight.across import build_probe, judge_across
from infra.targets.hosts.preflight.facts import FactsError, MachineFacts, Probe, parse_facts, render_script
from infra.targets.hosts.preflight.judge import Problem, Subject, judge_host
from infra.targets.hosts.preflight.nfs import check_nfs
from infra.targets.hosts.preflight.rdma import check_rdma, judge_ports
from infra.targets.hosts.preflight.topology import judge_topology
from infra.targets.hosts.spec import Hosts

HOSTS_AT_ONCE = 16
# A mount that does not answer and ports that drop packets take seconds each; a machine may also be slow.
SCRIPT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """The facts of a host, or why there are none."""

    host: str
    asked_at: float
    answered_at: float
    facts: MachineFacts | None = None
    host_key: str = ""
    fingerprint: str = ""
    first_use: bool = False
    problem: Problem | None = None


def survey_hosts(spec: ClusterSpec, section: Hosts, report: Callable[[str], None]) -> list[Answer]:
    """Ask every host that has a role; return the answers in the order of the nodes."""
    assigned = assign_hosts(section)
    connections = HostConnections()
    waiting = {entry.host for entry in assigned}

    def ask(host: str) -> Answer:
        answer = _ask(connections, section, host, build_probe(spec, section, assigned, host))
        waiting.discard(host)
        report(f"asking {format_count(len(assigned), 'host')} over SSH, {len(waiting)} to go")
        return answer

    try:
        with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
            return list(pool.map(ask, [entry.host for entry in assigned]))
    finally:
        connections.close()


def judge_answers(
    spec: ClusterSpec,
    section: Hosts,
    answers: list[Answer],
    is_ours: Callable[[MachineFacts], bool] = lambda _facts: False,
) -> list[tuple[str, Problem]]:
    """Return host and problem of everything that is wrong, in the order of the nodes.

    `is_ours` tells whether a host belongs to this cluster already.
    """
    assigned = {entry.host: entry for entry in assign_hosts(section)}
    problems: list[tuple[str, Problem]] = []
    for answer in answers:
        if answer.problem:
            problems.append((answer.host, answer.problem))
        if answer.first_use:
            problems.append((answer.host, _report_first_use(answer.fingerprint)))
        if answer.facts:
            times = (answer.asked_at, answer.answered_at)
            subject = Subject(spec, assigned[answer.host], answer.facts, *times, ours=is_ours(answer.facts))
            problems += [(answer.host, problem) for problem in _judge_one(subject)]
    facts = {answer.host: answer.facts for answer in answers if answer.facts}
    nodes = tuple(assigned.values())
    across = (*judge_across(section, nodes, facts), *judge_ports(spec, nodes, facts))
    return [*problems, *across, *judge_topology(spec, section, nodes, facts)]


def _judge_one(subject: Subject) -> tuple[Problem, ...]:
    return (*judge_host(subject), *check_nfs(subject), *check_rdma(subject))


def _ask(connections: HostConnections, section: Hosts, host: str, probe: Probe) -> Answer:
    started = time.time()
    try:
        with connections.open(resolve_login(section, host)) as connection:
            return _read(connection, host, probe)
    except TransportError as error:
        problem = Problem("error", "host_unreachable", error.line, error.fix or "run it again")
        return Answer(host, started, time.time(), problem=problem)


def _read(connection: HostConnection, host: str, probe: Probe) -> Answer:
    asked_at = time.time()
    completed = connection.transport.run(render_script(probe), timeout=SCRIPT_TIMEOUT_S)
    answered_at = time.time()
    facts, problem = None, None
    try:
        facts = parse_facts(completed.out)
    except FactsError as error:
        last = (completed.err.strip().splitlines() or [f"exit code {completed.code}"])[-1]
        message = f"could not be read: {error} ({last})"
        fix = "log in as the same user and run `sh -c 'uname; id'`: the login shell must run commands"
        problem = Problem("error", "host_unreadable", message, fix)
    return Answer(
        host, asked_at, answered_at, facts, connection.host_key, connection.fingerprint, connection.first_use, problem
    )


def _report_first_use(fingerprint: str) -> Problem:
    message = f"its host key {fingerprint} was trusted without a comparison"
    fix = f"compare it on the console of the machine, then write `fingerprint: {fingerprint}`"
    return Problem("warning", "host_key_trusted", message, fix)
