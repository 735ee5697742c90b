"""Verify a cluster on the nodes themselves: daemons, configuration, clock, names, accounting, SSH."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from hashlib import sha256

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.collect import collect_facts
from bootstrap.plan import choose_cgroup
from bootstrap.sessions import Connect, Sessions, wait_for_all
from bootstrap.steps.daemon import DAEMONS
from bootstrap.steps.registry import build_probe
from bootstrap.transport.base import Transport
from cluster.inventory import Node
from slurm.control.accounting import CHECK_ACCOUNTING
from slurm.control.nodes import ABSENT, NodeState, parse_nodes, probe_nodes, show_nodes

STEP = "verify"
TIMEOUT_S = 60.0
MAX_CLOCK_OFFSET_S = 1.0
# A new configuration reaches the nodes shortly after `scontrol reconfigure` returns.
RETRY_FOR_S = 10.0
PAUSE_S = 0.3
CONF = "/etc/slurm/slurm.conf"
FETCHED_CONF = "/run/slurm/conf/slurm.conf"
FIXES = {
    "slurmd": "see `systemctl status slurmd` on that node, then run again",
    "daemon": "see `journalctl -u` for the daemon on that node, then run again",
    "configuration": "run again, or run `scontrol reconfigure` on the controller: both distribute the configuration",
    "names": "run /etc/muster/merge-hosts on that node: it restores the names",
    "accounting": "check slurmdbd and mariadb on the controller",
    "ssh": "check the user's ~/.ssh and /etc/ssh/ssh_known_hosts on both nodes",
    "clock": "check chrony on that node",
    "state": "see `scontrol show node` on the controller for the reason",
}


@dataclass(frozen=True)
class FailedCheck:
    """A check that failed on a node."""

    node: str
    check: str
    line: str
    fix: str = ""

    def error(self) -> BootstrapError:
        """Return the failure as an error that can be raised."""
        return BootstrapError(self.node, STEP, f"{self.check}: {self.line}", fix=self.fix)


@dataclass(frozen=True)
class _NodeResult:
    node: Node
    failures: list[FailedCheck]
    clock_offset_s: float
    """The node's clock minus this machine's, in seconds."""
    slurm: dict[str, NodeState]


def verify(desired: Desired, connect: Connect, retry_for_s: float = RETRY_FOR_S) -> tuple[FailedCheck, ...]:
    """Return the checks that still fail after retries; empty if the cluster is in order."""
    deadline = time.monotonic() + retry_for_s
    desired = _choose_cgroup(desired, connect)
    while failures := _verify_once(desired, connect):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    return failures


def _choose_cgroup(desired: Desired, connect: Connect) -> Desired:
    """Return the desired state with the kind of cgroup that `apply` chooses for these nodes."""
    nodes = [desired.inventory.controller, *desired.inventory.compute]
    with Sessions(connect) as sessions:
        futures = [
            sessions.submit(lambda n: collect_facts(sessions.open(n), n.name, build_probe(n, desired)), n)
            for n in nodes
        ]
        facts = dict(zip((n.name for n in nodes), wait_for_all(futures), strict=True))
    return choose_cgroup(facts, desired)


def _verify_once(desired: Desired, connect: Connect) -> tuple[FailedCheck, ...]:
    with Sessions(connect) as sessions:
        conf_sha256 = sha256(desired.slurm_files[CONF].content.encode()).hexdigest()
        futures = [
            sessions.submit(lambda n: _check_node(sessions.open(n), n, desired, conf_sha256), n)
            for n in desired.inventory.nodes
        ]
        results = wait_for_all(futures)
    failures = [failure for result in results for failure in result.failures]
    return tuple(failures + _check_clocks(results) + _check_states(desired, results))


def render_checks(node: Node, desired: Desired, conf_sha256: str) -> str:
    """Return a script that prints `fail<tab>check<tab>message` for each check that fails, and the names it resolves."""
    nodes = desired.inventory.nodes
    units = (*DAEMONS[node.role], *(("mariadb",) if node.role == "controller" else ()))
    login = desired.inventory.login
    user = next(iter(desired.spec.users), "")
    checks = [f'systemctl -q is-active {u} || fail daemon "{u} is $(systemctl is-active {u})"' for u in units]
    path = CONF if node.role == "controller" else FETCHED_CONF
    checks.append(
        f'[ "$(sha256sum < {path})" = "{conf_sha256}  -" ] || fail configuration "{path} is not the cluster\'s"'
    )
    checks.append(
        f"getent ahostsv4 {' '.join(n.name for n in nodes)} | sed -n 's/ *STREAM */\\t/p' | sed 's/^/name\\t/'"
    )
    checks.append(f"getent hosts {' '.join(n.address for n in nodes)} | sed 's/  */\\t/; s/^/address\\t/'")
    if node.role == "controller":
        checks.append(f'out=$(timeout 20 {CHECK_ACCOUNTING} 2>&1 >/dev/null) || fail accounting "sacct: $out"')
    # Other nodes admit a user only with a job there.
    if user and node != login:
        hop = shlex.join(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", login.name, "true"])
        checks.append(f'out=$(runuser -u {user} -- {hop} 2>&1) || fail ssh "{user} cannot reach {login.name}: $out"')
    return 'fail() { printf \'fail\\t%s\\t%s\\n\' "$1" "$(echo "$2" | tail -n 1)"; }\n' + "\n".join(checks) + "\n"


def _check_node(transport: Transport, node: Node, desired: Desired, conf_sha256: str) -> _NodeResult:
    before = time.time()
    clock = float(transport.run("date +%s.%N", timeout=15).out or 0)
    clock_offset_s = clock - (before + time.time()) / 2
    script = render_checks(node, desired, conf_sha256)
    if node.role == "controller":
        script += _render_controller_checks(desired)
    out = transport.run(script, timeout=TIMEOUT_S).out
    rows = [row.split("\t", 2) for row in out.splitlines() if row.count("\t") == 2]  # noqa: PLR2004
    failures = [FailedCheck(node.name, name, line, FIXES.get(name, "")) for kind, name, line in rows if kind == "fail"]
    failures += _check_names(node, desired, rows)
    failures += [FailedCheck(name, "slurmd", line, FIXES["slurmd"]) for kind, name, line in rows if kind == "silent"]
    return _NodeResult(node, failures, clock_offset_s, parse_nodes(out))


def _render_controller_checks(desired: Desired) -> str:
    # slurmd restarts itself to load a new configuration; until it listens again, jobs cannot reach it.
    silent = "sed 's/$/\\tdoes not answer on its port/; s/^/silent\\t/'"
    probe = probe_nodes({node.name: node.address for node in desired.inventory.compute})
    return f"{show_nodes()}\n{{ {probe}\n}} | {silent}\n"


def _check_names(node: Node, desired: Desired, rows: list[list[str]]) -> list[FailedCheck]:
    forward = {name.strip(): address for kind, address, name in rows if kind == "name"}
    reverse = {address: name.split()[0] for kind, address, name in rows if kind == "address"}
    nodes = desired.inventory.nodes
    lines = [f"{n.name} does not resolve to {n.address}" for n in nodes if forward.get(n.name) != n.address]
    lines += [f"{n.address} does not resolve to {n.name}" for n in nodes if reverse.get(n.address) != n.name]
    return [FailedCheck(node.name, "names", line, FIXES["names"]) for line in lines]


def _check_clocks(results: list[_NodeResult]) -> list[FailedCheck]:
    reference = next(r.clock_offset_s for r in results if r.node.role == "controller")
    offsets = {r.node.name: r.clock_offset_s - reference for r in results}
    return [
        FailedCheck(name, "clock", f"{offset:+.1f} s off the controller's", FIXES["clock"])
        for name, offset in offsets.items()
        if abs(offset) > MAX_CLOCK_OFFSET_S
    ]


def _check_states(desired: Desired, results: list[_NodeResult]) -> list[FailedCheck]:
    by_name = next(r.slurm for r in results if r.node.role == "controller")
    states = [(n.name, by_name.get(n.name, ABSENT)) for n in desired.inventory.compute]
    return [FailedCheck(name, "state", f"{s} {s.reason}".strip(), FIXES["state"]) for name, s in states if not s.usable]
