"""Rules on a cluster of hosts: who they are, which role each has, and how they prove who they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from ipaddress import IPv4Address

from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.plan import node_count
from infra.targets.hosts.assign import assign_hosts, format_names, list_claims, match_groups, match_hosts
from infra.targets.hosts.login import find_jump_cycle, resolve_address, resolve_user
from infra.targets.hosts.nfs import check_nfs
from infra.targets.hosts.spec import DEFAULT_PORT, EXAMPLE_FINGERPRINT, Host, Hosts, hosts_section
from infra.targets.hosts.switches import check_switch_hosts, check_switch_names

_Rule = Callable[[ClusterSpec, Hosts], Iterator[Issue]]


def validate_hosts(spec: ClusterSpec) -> Iterator[Issue]:
    """Yield every issue of the section `hosts`, and of what other sections say about its machines."""
    section = hosts_section(spec)
    if section is None:
        fix = "add `hosts:` with `machines`, `controller` and `groups`; docs/hosts.md has an example"
        yield error("no_hosts", "hosts", f"required for target {spec.target}, but missing", fix)
        return
    for rule in RULES:
        yield from rule(spec, section)


def find_unreachable_logins(section: Hosts) -> Iterator[Issue]:
    """Yield an error for each setting with which a host can be checked, but not set up yet."""
    if section.jump or any(host.jump for host in section.machines.values()):
        message = "hosts behind a jump host can be checked, but not set up yet"
        yield error("host_jump", "hosts.jump", message, "run muster on a machine that reaches the hosts directly")
    for name, host in section.machines.items():
        port = host.port or section.port or DEFAULT_PORT
        if port != DEFAULT_PORT:
            message = f"{port}: the host can be checked, but not set up yet: nodes connect to each other on port 22"
            yield error("host_ssh_port", f"hosts.machines.{name}.port", message, "let sshd listen on port 22, too")
        if host.cluster_address and not _is_ipv4(host.cluster_address):
            message = f"'{host.cluster_address}' is a name: the host can be checked, but not set up yet"
            where = f"hosts.machines.{name}.cluster_address"
            yield error("host_cluster_address", where, message, "write the IPv4 address")


def find_moved_hosts(old: ClusterSpec, new: ClusterSpec) -> Iterator[Issue]:
    """Yield an error for each host that a change would make another node while the cluster runs."""
    before, after = hosts_section(old), hosts_section(new)
    if before is None or after is None:
        return
    nodes = {entry.host: entry.node for entry in assign_hosts(before)}
    for entry in assign_hosts(after):
        node = nodes.get(entry.host, entry.node)
        if node != entry.node:
            message = f"host '{entry.host}' is node {node} and cannot become {entry.node} while the cluster runs"
            fix = "remove hosts only from the end of a group, in the natural order of their names; or tear down first"
            yield error("host_moved", f"hosts.machines.{entry.host}", message, fix)


def check_same_address(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a machine that is listed twice: both nodes would be configured on it."""
    for field, seen_at in (("address", _locate_login), ("cluster_address", _locate_in_cluster)):
        first: dict[object, str] = {}
        for name, host in section.machines.items():
            place = seen_at(section, host)
            if place in first and (field == "address" or host.cluster_address):
                message = f"'{getattr(host, field)}' is already the address of host '{first[place]}'"
                fix = "remove one of the two, or correct the address"
                yield error("host_twice", f"hosts.machines.{name}.{field}", message, fix)
            first.setdefault(place, name)


def check_role_hosts(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a controller or login node that is not among the machines."""
    for role in ("controller", "login"):
        name = getattr(section, role)
        if name is not None and name not in section.machines:
            message = f"'{name}' is not a host; allowed: {format_names(section.machines)}"
            yield error("no_such_host", f"hosts.{role}", message, _suggest(role, name, section.machines))


def check_login_host(spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Require a host for the login node exactly if there is one."""
    if spec.login.enabled and section.login is None:
        message = "true needs a host for the login node, but `hosts.login` names none"
        fix = "name a host with `login: HOST` under `hosts:`, or write `login: {enabled: false}`"
        yield error("no_login_host", "login.enabled", message, fix)
    if not spec.login.enabled and section.login is not None:
        message = f"false leaves '{section.login}', which `hosts.login` names, without a use"
        yield error("login_disabled", "login.enabled", message, "write `enabled: true`, or remove `hosts.login`")


def check_groups(spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Require hosts for each node group, and no hosts for groups that do not exist."""
    for name in section.groups:
        if name not in spec.groups:
            message = f"'{name}' is not a node group; allowed: {format_names(spec.groups)}"
            fix = _rename(name, spec.groups) or f"add it under `groups:`, for example `{name}: {{count: 2}}`"
            yield error("no_such_group", f"hosts.groups.{name}", message, fix)
    for name in spec.groups:
        if name not in section.groups:
            message = f"node group '{name}' has no hosts"
            fix = f"add `{name}: {{match: [PATTERN]}}` under `hosts.groups`"
            yield error("no_such_group", "hosts.groups", message, fix)


def check_patterns(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a pattern that matches no host."""
    for group, described in section.groups.items():
        for number, pattern in enumerate(described.match):
            if not match_hosts([pattern], section.machines):
                message = f"'{pattern}' matches none of the hosts {format_names(section.machines)}"
                near = get_close_matches(pattern, section.machines, n=1)
                fix = f"write `{near[0]}`, or a pattern such as `{near[0][:-1]}*`" if near else "correct or remove it"
                yield error("empty_pattern", f"hosts.groups.{group}.match[{number}]", message, fix)


def check_counts(spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Require as many hosts as the group has nodes, so that a pattern that matches too much is noticed."""
    for group, hosts in match_groups(section).items():
        described = spec.groups.get(group)
        if described is None or described.count is None or not hosts:
            continue
        if len(hosts) != node_count(described):
            matching = format_count(len(hosts), "matching host")
            message = f"{format_count(described.count, 'node')}, but {matching}: {format_names(hosts)}"
            fix = f"write `count: {len(hosts)}`, or change `hosts.groups.{group}.match`"
            yield error("host_count", f"groups.{group}.count", message, fix)


def check_claims(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a host with two roles, and warn about a host with none."""
    claims = list_claims(section)
    for name in section.machines:
        claimed_by = claims.get(name, ())
        where = f"hosts.machines.{name}"
        if len(claimed_by) > 1:
            message = f"has more than one role: {' and '.join(claimed_by)} claim it; allowed: one"
            fix = "narrow the patterns, or name another host: a host is the controller, the login node or in one group"
            yield error("host_claimed_twice", where, message, fix)
        elif not claimed_by:
            message = "has no role, so it is not used: no pattern matches it"
            yield warning("host_unused", where, message, "remove it, or add it to a group's `match`")


def check_host_keys(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Require a way to recognize every machine: no key is trusted on first use unless the spec says so."""
    if section.trust_first_use:
        message = "true: somebody between here and a machine can pose as it and get root on the others"
        fix = "write the fingerprints that `muster check` prints, then remove it"
        yield warning("trust_first_use", "hosts.trust_first_use", message, fix)
        return
    if section.known_hosts:
        return
    for kind, hosts in (("machines", section.machines), ("jump_hosts", section.jump_hosts)):
        missing = [name for name, host in hosts.items() if host.fingerprint is None]
        if missing:
            where = f"hosts.{kind}.{missing[0]}.fingerprint" if len(missing) == 1 else f"hosts.{kind}"
            what = "required, but missing" if len(missing) == 1 else f"{format_names(missing)} have no `fingerprint`"
            fix = (
                "on the machine, run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` and write for example "
                f"`fingerprint: {EXAMPLE_FINGERPRINT}`; or name a file with its key: `known_hosts: ~/.ssh/known_hosts`"
            )
            yield error("no_fingerprint", where, f"{what}: nothing says which host key is the right one", fix)


def check_jumps(_spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a jump host that is not described, and jump hosts that lead to each other."""
    named = {"hosts.jump": section.jump}
    named |= {f"hosts.machines.{name}.jump": host.jump for name, host in section.machines.items()}
    named |= {f"hosts.jump_hosts.{name}.jump": host.jump for name, host in section.jump_hosts.items()}
    for where, jump in named.items():
        if jump is not None and jump not in section.jump_hosts:
            message = f"'{jump}' is not a jump host; allowed: {format_names(section.jump_hosts) or 'none'}"
            fix = _rename(jump, section.jump_hosts) or f"add `{jump}: {{address: ...}}` under `hosts.jump_hosts`"
            yield error("no_such_jump_host", where, message, fix)
    if cycle := find_jump_cycle(section):
        message = f"{' -> '.join(cycle)} never ends"
        yield error("jump_cycle", f"hosts.jump_hosts.{cycle[0]}.jump", message, "remove one `jump` of the circle")


def check_login_users(spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a cluster's user who is the owner's login on a host: muster would take over that account."""
    for name in spec.users:
        hosts = [host for host in section.machines if resolve_user(section, section.machines[host]) == name]
        if hosts:
            message = f"'{name}' is the user as whom muster logs in to {format_names(hosts)}; allowed: another name"
            fix = "rename one of them: the accounts of the cluster's users are added by muster, and removed by teardown"
            yield error("host_login_user", f"users.{name}", message, fix)


def check_network(spec: ClusterSpec, _section: Hosts) -> Iterator[Issue]:
    """Refuse settings of the network, which belongs to the owner of the machines."""
    if spec.login.ssh_port is not None:
        message = f"{spec.login.ssh_port} cannot be published: the login node has its own address"
        yield error("host_network", "login.ssh_port", message, "remove it, and connect to the address of the host")
    if spec.network.cidr is not None:
        message = f"'{spec.network.cidr}' has no effect: hosts have the addresses under `hosts.machines`"
        yield error("host_network", "network.cidr", message, "remove it")
    if not spec.network.egress:
        message = "false has no effect: muster does not change the network of machines that exist"
        yield error("host_network", "network.egress", message, "remove it, and block the traffic in your network")


RULES: tuple[_Rule, ...] = (
    check_same_address,
    check_role_hosts,
    check_login_host,
    check_groups,
    check_patterns,
    check_counts,
    check_claims,
    check_host_keys,
    check_jumps,
    check_login_users,
    check_network,
    check_nfs,
    check_switch_names,
    check_switch_hosts,
)


def _is_ipv4(address: str) -> bool:
    try:
        IPv4Address(address)
    except ValueError:
        return False
    return True


def _locate_login(section: Hosts, host: Host) -> object:
    # Behind different jump hosts, the same private address may be two machines.
    return host.address.lower(), host.port or section.port or DEFAULT_PORT, host.jump or section.jump


def _locate_in_cluster(_section: Hosts, host: Host) -> object:
    return resolve_address(host).lower()


def _suggest(field: str, name: str, allowed: Iterable[str]) -> str:
    near = get_close_matches(name, list(allowed), n=1)
    return f"write `{field}: {near[0]}`" if near else "add it under `hosts.machines`, or name one of them"


def _rename(name: str, allowed: Iterable[str]) -> str:
    near = get_close_matches(name, list(allowed), n=1)
    return f"rename it to `{near[0]}`" if near else ""
