"""Judge the InfiniBand and RoCE ports of hosts, by the fabric of their group and by each other. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cluster.plural import format_count
from cluster.spec import ClusterSpec
from infra.targets.hosts.assign import Assignment
from infra.targets.hosts.preflight.facts import MachineFacts
from infra.targets.hosts.preflight.judge import Problem, Subject
from slurm.rdma.ports import LINK_LAYERS, RdmaError, build_environment, select_ports
from slurm.rdma.sysfs import RdmaFacts, RdmaPort

_REPAIR = "check the cable and the port of the switch"


def check_rdma(subject: Subject) -> Iterator[Problem]:
    """Require ports that the fabric can use, and name ports that no job would use."""
    facts, group = subject.facts.rdma, subject.assigned.group
    fabric = subject.spec.groups[group].fabric if group else ""
    if fabric in LINK_LAYERS:
        try:
            build_environment(select_ports(facts, fabric), fabric)
        except RdmaError as error:
            yield Problem("error", "host_rdma", f"{error} (groups.{group}.fabric is {fabric})", error.fix)
    elif unused := [port for port in facts.ports if group and port.active and port.link_layer == "InfiniBand"]:
        speed = max(port.gbps for port in unused)
        ports = format_count(len(unused), "active InfiniBand port")
        message = f"has {ports} at {speed:g} Gb/s that jobs would not use: groups.{group}.fabric is {fabric}"
        yield Problem("warning", "host_rdma_unused", message, "write `fabric: infiniband`")


def judge_ports(
    spec: ClusterSpec, assigned: tuple[Assignment, ...], facts: Mapping[str, MachineFacts]
) -> Iterator[tuple[str, Problem]]:
    """Yield host and problem for ports that are missing, down or slower than those of other hosts of the group."""
    for name, group in spec.groups.items():
        if group.fabric not in LINK_LAYERS:
            continue
        members = {e.host: facts[e.host].rdma for e in assigned if e.group == name and e.host in facts}
        chosen = {host: ports for host, read in members.items() if (ports := _choose(read, group.fabric))}
        if not chosen:
            continue
        most = max(len(ports) for ports in chosen.values())
        model = next(host for host, ports in chosen.items() if len(ports) == most)
        fastest = _find_fastest(chosen)
        for host, ports in chosen.items():
            problems = list(_compare(members[host], model, chosen[model], fastest))
            if not problems and len(ports) < most:
                message = f"has {format_count(len(ports), 'usable RDMA port')}; '{model}' has {most}"
                problems.append(Problem("error", "host_rdma_port", message, "make a group of its own for it"))
            yield from ((host, problem) for problem in problems)


def _choose(facts: RdmaFacts, fabric: str) -> tuple[RdmaPort, ...]:
    """Return the ports that jobs would use, none if the host has none: that is reported for it alone."""
    try:
        return select_ports(facts, fabric)
    except RdmaError:
        return ()


def _find_fastest(chosen: Mapping[str, tuple[RdmaPort, ...]]) -> dict[str, tuple[float, str]]:
    """Return, by port, the highest rate within the group and a host that has it."""
    fastest: dict[str, tuple[float, str]] = {}
    for host, ports in chosen.items():
        for port in ports:
            if port.name not in fastest or port.gbps > fastest[port.name][0]:
                fastest[port.name] = (port.gbps, host)
    return fastest


def _compare(
    facts: RdmaFacts, model: str, of_model: tuple[RdmaPort, ...], fastest: Mapping[str, tuple[float, str]]
) -> Iterator[Problem]:
    """Yield what is wrong with the ports that the host with the most ports uses."""
    own = {port.name: port for port in facts.ports}
    # On another kind of machine, devices have other names, and only their number can be compared.
    if not any(port.name in own for port in of_model):
        return
    for port in of_model:
        if port.name not in own:
            message = f"has no RDMA port {port.name}, which '{model}' has"
            yield Problem("error", "host_rdma_port", message, "check that the driver lists it (`ibv_devices`, `lspci`)")
        elif not own[port.name].active:
            message = f"RDMA port {port.name} is {own[port.name].describe_state()}; on '{model}' it is active"
            yield Problem("error", "host_rdma_port", message, _REPAIR)
        else:
            gbps, host = fastest[port.name]
            if own[port.name].gbps < gbps:
                message = f"RDMA port {port.name} runs at {own[port.name].gbps:g} Gb/s, on '{host}' at {gbps:g}"
                fix = "check its cable, and the rate of the switch's port"
                yield Problem("warning", "host_rdma_slow", message, fix)
