"""Job network: programs of one user cannot connect to those of another, on compute nodes and between nodes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from ipaddress import IPv4Network, collapse_addresses
from pathlib import Path

from bootstrap.action import Action, enable_unit, remove_file, write_file
from bootstrap.changes import WANTS, Changes, change_files
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.cloud.at_boot import DAEMONS, LOGINS, REQUIRED_FOR_LOGINS, UNIT
from bootstrap.steps.step import Step
from cluster.inventory import Node

SCRIPT = (Path(__file__).parent.parent / "scripts" / "job-network.sh").read_text()
PATH = "/etc/muster/job-network"
UNIT_NAME = "muster-job-network"
# The rules are loaded again before each start of slurmd, which fails without them, so that no job can run.
LOAD_BEFORE_SLURMD = f"[Service]\nExecStartPre={PATH}\n"
LOGIN_DROP_IN = f"/etc/systemd/system/{LOGINS}.d/{UNIT_NAME}.conf"
# Without the rules on a login node, its users could pretend to be others towards compute nodes. So, after a boot that
# could not load them, only root can log in; as soon as they are loaded, users can, too.
ADMIT_USERS = f"if [ -e /run/nologin ]; then systemctl start --no-block {LOGINS}; fi"
OPEN = "open"
"""How the state of a node begins on which the rules cannot be loaded."""
OPEN_BY_SPEC = f"{OPEN}: slurm.connections is all"
UNLOAD = f"""#!/bin/sh
# Lets users' programs accept connections from everyone, because slurm.connections is `all`.
set -eu
if nft list table inet muster_jobs >/dev/null 2>&1; then nft delete table inet muster_jobs; fi
mkdir -p /run/muster
echo "{OPEN_BY_SPEC}" >/run/muster/job-network
"""
UNDO = (
    "rm -rf /run/muster; if nft list table inet muster_jobs >/dev/null 2>&1; then nft delete table inet muster_jobs; fi"
)
SYSTEM = 1
"""Number of connections that root or a system user opens; those of other users have their uid."""
# Addresses that a machine of a cluster may have; clouds launch machines whose addresses nobody knows before.
PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4")
# Connections by address and port of both ends, for a few seconds, in IPv4 and IPv6.
_ENDS = "{kind} . inet_service . {kind} . inet_service"
_SET = f"  set {{name}} {{{{ type {_ENDS}; flags dynamic,timeout; timeout 10s; size 65535; }}}}"
_OPENED = "{ip} saddr . tcp sport . {ip} daddr . tcp dport"
_ANSWERED = "{ip} daddr . tcp dport . {ip} saddr . tcp sport"
_FAMILIES = {"ip": ("ipv4_addr", "id", ""), "ip6": ("ipv6_addr", "flowlabel", "6")}
_SYN = "tcp flags & (fin | syn | rst | ack) == syn"
_SYN_ACK = "tcp flags & (fin | syn | rst | ack) == (syn | ack)"


def plan_job_network(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Load the firewall rules now, at every boot, and before every start of slurmd; unload them if the spec says so.

    After a boot that could not load them, users cannot log in.
    """
    unit = UNIT.format(
        description="Users' programs cannot connect to those of others",
        after="local-fs.target",
        before=f"{DAEMONS} {LOGINS}",
        name="job-network",
    )
    connects_all = desired.spec.slurm.connections == "all"
    script = write_file(facts, PATH, UNLOAD if connects_all else render_script(node, desired), 0o755)
    units = write_file(facts, f"/etc/systemd/system/{UNIT_NAME}.service", unit)
    if node.root_maintains:
        units += write_file(facts, LOGIN_DROP_IN, REQUIRED_FOR_LOGINS.format(name="job-network"))
    else:
        # Nobody could log in to repair a machine on which muster itself, or its owner, is an ordinary user.
        units += remove_file(facts, LOGIN_DROP_IN)
    if node.role == "compute":
        units += write_file(facts, f"/etc/systemd/system/slurmd.service.d/{UNIT_NAME}.conf", LOAD_BEFORE_SLURMD)
    todo = [*script, *units]
    if units or UNIT_NAME not in facts.enabled:
        reload = "\nsystemctl daemon-reload" if {"slurmd", "muster-hosts", UNIT_NAME} & facts.loaded else ""
        enable = f"{enable_unit(UNIT_NAME)}{reload}"
        # The unit itself is not recorded, so that it is never stopped: systemd would stop what lets users log in too.
        enables = change_files(f"{WANTS}/{UNIT_NAME}.service")
        todo.append(Action(f"enable {UNIT_NAME}", enable, changes=enables))
    if script or not facts.job_network:
        fix = "compare with `nft list ruleset` on that machine, then run again"
        load, loads = f"{PATH}\n{ADMIT_USERS}", Changes(undo=UNDO)
        todo.append(Action("load the rules for connections between users", load, fix=fix, changes=loads))
    return todo


def render_script(node: Node, desired: Desired) -> str:
    """Return the script that loads the rules; only compute nodes, which run the jobs, check connections to them."""
    uids = tuple(sorted(user.uid for user in desired.spec.users.values()))
    addresses = tuple(each.address for each in desired.inventory.nodes)
    return render_rules(uids, addresses, check=node.role == "compute")


@cache  # The same on all nodes of a role, and merging the addresses takes longer the more nodes there are.
def render_rules(uids: tuple[int, ...], addresses: tuple[str, ...], *, check: bool) -> str:
    """Return the script for a cluster's users and addresses; with `check`, it checks connections to the node."""
    hook = f"  chain in {{\n    type filter hook input priority mangle\n    {_SYN} jump note\n  }}"
    parts = {
        "USERS": ", ".join(map(str, uids)),
        "PRIVATE": ", ".join(map(str, list_private(addresses))),
        "SYSTEM": str(SYSTEM),
        "SETS": _render_sets((SYSTEM, *uids)),
        "CHECK_ANSWERS": f"    {_SYN_ACK} jump answer" if check else "",
        "INPUT": hook if check else "",
        "SIGN": "\n".join(_render_sign(uids)),
        "FORGET": _per_opener((SYSTEM, *uids), "delete @from{suffix}_{number} {{ " + _OPENED + " }}"),
        "NOTE": _per_opener((SYSTEM, *uids), "{ip} {field} {number} add @from{suffix}_{number} {{ " + _OPENED + " }}"),
        "ANSWER": _per_opener((SYSTEM,), f"{_ANSWERED} @from{{suffix}}_{{number}} return")
        + "\n"
        + _per_opener(uids, f"meta skuid {{number}} {_ANSWERED} @from{{suffix}}_{{number}} return"),
    }
    text = SCRIPT
    for name, value in parts.items():
        text = text.replace(f"@{name}@", value)
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() or line == "\n")


def list_private(addresses: Iterable[str]) -> list[IPv4Network]:
    """Return the networks in which machines of a cluster may be, with the addresses of its nodes."""
    networks = [IPv4Network(network) for network in PRIVATE]
    for address in addresses:
        try:
            networks.append(IPv4Network(address))
        except ValueError:
            # A name: the addresses of cloud machines change.
            continue
    return list(collapse_addresses(networks))


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip nodes whose kernel cannot load the rules; `muster status` shows it too."""
    if not facts.job_network.startswith(OPEN) or facts.job_network == OPEN_BY_SPEC:
        return ""
    return f"users' jobs can connect to each other: the kernel lacks nftables ({facts.job_network})"


def _render_sets(numbers: Iterable[int]) -> str:
    return "\n".join(
        _SET.format(name=f"from{suffix}_{number}", kind=kind)
        for number in numbers
        for kind, _, suffix in _FAMILIES.values()
    )


def _render_sign(uids: Iterable[int]) -> list[str]:
    return [f"    meta skuid {uid} {ip} {field} set {uid}" for uid in uids for ip, (_, field, _) in _FAMILIES.items()]


def _per_opener(numbers: Iterable[int], rule: str) -> str:
    """Return a rule for each of those who open connections, in IPv4 and in IPv6."""
    return "\n".join(
        "    " + rule.format(ip=ip, field=field, suffix=suffix, number=number)
        for number in numbers
        for ip, (_, field, suffix) in _FAMILIES.items()
    )


STEP = Step(
    "job-network",
    "no connections between programs of different users",
    plan_job_network,
    skip=skip,
    units=(UNIT_NAME,),
)
