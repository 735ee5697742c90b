"""Which host is under which leaf switch, by the field `hosts.switches`, and the rules on it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.hosts.assign import assign_hosts, format_names, match_hosts
from infra.targets.hosts.spec import Hosts
from slurm.config.topology import ROOT, UNPLACED


def place_nodes(section: Hosts) -> dict[str, tuple[str, ...]]:
    """Return the switches above each compute node, from the top down; nodes under none are not in it."""
    leaves = map_leaves(section)
    spines = {name: switch.spine for name, switch in section.switches.items()}
    return {
        entry.node: tuple(name for name in (spines[leaf], leaf) if name)
        for entry in assign_hosts(section)
        if entry.role == "compute" and (leaf := leaves.get(entry.host))
    }


def map_leaves(section: Hosts) -> dict[str, str]:
    """Return the leaf switch of each compute host; hosts under none are not in it, and of two, the first counts."""
    leaves: dict[str, str] = {}
    for name, hosts in _match_switches(section).items():
        for host in hosts:
            leaves.setdefault(host, name)
    return leaves


def check_switch_names(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse names with another meaning in Slurm's topology, and a switch that has both hosts and other switches."""
    named = {f"hosts.switches.{name}": name for name in section.switches}
    spines = {f"hosts.switches.{name}.spine": switch.spine for name, switch in section.switches.items()}
    for where, name in (named | spines).items():
        if name in (ROOT, UNPLACED):
            message = f"'{name}' is the switch above all others, or that of hosts without one; allowed: another name"
            yield error("switch_name", where, message, f"rename it, for example to `{name}-1`")
    for where, spine in spines.items():
        if spine in section.switches:
            message = f"'{spine}' is a leaf switch with hosts of its own; allowed: a name that is not in `switches`"
            yield error("switch_name", where, message, f"rename one of the two, for example to `spine: spine-{spine}`")


def check_switch_hosts(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse patterns without compute hosts and hosts under two switches, and warn about hosts under none."""
    if not section.switches:
        return
    compute = _list_compute(section)
    above: dict[str, list[str]] = {host: [] for host in compute}
    for name, switch in section.switches.items():
        for number, pattern in enumerate(switch.match):
            if not match_hosts([pattern], compute):
                message = f"'{pattern}' matches none of the compute hosts {format_names(compute)}"
                near = get_close_matches(pattern, compute, n=1)
                fix = f"write `{near[0]}`, or remove it" if near else "correct or remove it"
                yield error("empty_pattern", f"hosts.switches.{name}.match[{number}]", message, fix)
        for host in match_hosts(switch.match, compute):
            above[host].append(name)
    for host, names in above.items():
        if len(names) > 1:
            message = f"is under more than one leaf switch: {' and '.join(names)}; allowed: one"
            fix = "narrow the patterns of `hosts.switches`; hosts with ports on the same switches are one entry"
            yield error("host_switches", f"hosts.machines.{host}", message, fix)
    if unplaced := [host for host, names in above.items() if not names]:
        what = f"no switch is given for {format_names(unplaced)}"
        message = f"{what}, so jobs that also use other hosts count as crossing switches"
        yield warning("host_unplaced", "hosts.switches", message, "add a switch whose `match` has them")


def _match_switches(section: Hosts) -> Mapping[str, tuple[str, ...]]:
    compute = _list_compute(section)
    return {name: match_hosts(switch.match, compute) for name, switch in section.switches.items()}


def _list_compute(section: Hosts) -> list[str]:
    return list(dict.fromkeys(entry.host for entry in assign_hosts(section) if entry.role == "compute"))
