"""Put the problems of all hosts into one list: equal problems of several hosts are one row. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cluster.plural import format_count
from cluster.spec.issue import Issue
from infra.targets.hosts.preflight.facts import MachineFacts
from infra.targets.hosts.preflight.judge import Problem

MAX_LISTED = 16


def list_issues(problems: Iterable[tuple[str, Problem]]) -> list[Issue]:
    """Return an issue per problem, which names every host that has it."""
    hosts: dict[Problem, dict[str, None]] = {}
    for host, problem in problems:
        hosts.setdefault(problem, {})[host] = None
    return [Issue(p.level, p.code, _locate(list(having)), p.message, p.fix) for p, having in hosts.items()]


def describe_hosts(facts: Mapping[str, MachineFacts]) -> Iterator[str]:
    """Yield a line about each kind of host: names, system, size, GPUs and RDMA."""
    kinds: dict[str, list[str]] = {}
    for host, read in facts.items():
        kinds.setdefault(_describe(read), []).append(host)
    for description, hosts in kinds.items():
        yield f"{_join(hosts)}: {description}"


def _describe(facts: MachineFacts) -> str:
    parts = [facts.os or "unknown system", format_count(facts.cpus, "CPU"), f"{facts.memory_mb / 1024:.0f} GiB"]
    if facts.gpus:
        model = facts.gpu_models[0] if facts.gpu_models else "NVIDIA GPUs without a driver"
        parts.append(f"{facts.gpus} x {model}")
    ports = facts.rdma.ports
    active = [port for port in ports if port.active]
    if ports:
        speed = f" at {max(port.gbps for port in active):g} Gb/s" if active else ""
        parts.append(f"{len(active)} of {len(ports)} RDMA ports active{speed}")
    if services := sorted(facts.active):
        parts.append(f"active: {', '.join(services)}")
    return ", ".join(parts)


def _locate(hosts: list[str]) -> str:
    return f"hosts.machines.{hosts[0]}" if len(hosts) == 1 else f"hosts.machines: {_join(hosts)}"


def _join(hosts: list[str]) -> str:
    more = f" and {len(hosts) - MAX_LISTED} more" if len(hosts) > MAX_LISTED else ""
    return ", ".join(hosts[:MAX_LISTED]) + more
