"""verify: after apply, on the nodes themselves, does it hold? Daemons, configuration, clock, names, accounting, SSH."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from hashlib import sha256

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.collect import collect
from bootstrap.plan import fit
from bootstrap.sessions import Connect, Sessions, finish
from bootstrap.steps.limits import DAEMONS
from bootstrap.transport.base import Transport
from cluster.inventory import Node
from slurm.control.accounting import CHECK_ACCOUNTING
from slurm.control.nodes import ABSENT, NodeState, parse_nodes, probe_nodes, show_nodes

STEP = "verify"
TIMEOUT_S = 60.0
CLOCK_S = 1.0
# A new configuration reaches the nodes a moment after `scontrol reconfigure` returns.
PATIENCE_S = 10.0
PAUSE_S = 0.3
CONF = "/etc/slurm/slurm.conf"
FETCHED = "/run/slurm/conf/slurm.conf"


@dataclass(frozen=True)
class Failed:
    node: str
    check: str
    line: str
    fix: str = ""

    def error(self) -> BootstrapError:
        return BootstrapError(self.node, STEP, f"{self.check}: {self.line}", fix=self.fix)


@dataclass(frozen=True)
class _Seen:
    node: Node
    failures: list[Failed]
    offset: float
    """The node's clock less ours."""
    slurm: dict[str, NodeState]


def verify(desired: Desired, connect: Connect, patience_s: float = PATIENCE_S) -> tuple[Failed, ...]:
    """All that does not hold, also on a second look; empty when the cluster is as it should be."""
    deadline = time.monotonic() + patience_s
    while failures := _verify(desired, connect):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    return failures


def _verify(desired: Desired, connect: Connect) -> tuple[Failed, ...]:
    with Sessions(connect) as sessions:
        controller = desired.inventory.controller
        facts = collect(sessions.open(controller), controller, desired)
        fitted = fit({controller.name: facts, **{n.name: facts for n in desired.inventory.compute}}, desired)
        conf = sha256(fitted.slurm_files[CONF].content.encode()).hexdigest()
        futures = [
            sessions.submit(lambda n: _look(sessions.open(n), n, desired, conf), n) for n in desired.inventory.nodes
        ]
        seen = finish(futures)
    failures = [f for s in seen for f in s.failures]
    return tuple(failures + _clocks(seen) + _states(desired, seen))


def check_script(node: Node, desired: Desired, conf: str) -> str:
    """Prints `name<tab>complaint` for each check that fails."""
    nodes = desired.inventory.nodes
    units = (*DAEMONS[node.role], *(("mariadb",) if node.role == "controller" else ()))
    peer = nodes[(nodes.index(node) + 1) % len(nodes)]
    user = next(iter(desired.spec.users), "")
    checks = [f'systemctl -q is-active {u} || say daemon "{u} is $(systemctl is-active {u})"' for u in units]
    path = CONF if node.role == "controller" else FETCHED
    checks.append(f'[ "$(sha256sum < {path})" = "{conf}  -" ] || say configuration "{path} is not the cluster\'s"')
    checks.append(
        f"getent ahostsv4 {' '.join(n.name for n in nodes)} | sed -n 's/ *STREAM */\\t/p' | sed 's/^/name\\t/'"
    )
    checks.append(f"getent hosts {' '.join(n.address for n in nodes)} | sed 's/  */\\t/; s/^/address\\t/'")
    if node.role == "controller":
        checks.append(f'out=$(timeout 20 {CHECK_ACCOUNTING} 2>&1 >/dev/null) || say accounting "sacct: $out"')
    if user and peer != node:
        hop = shlex.join(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", peer.name, "true"])
        checks.append(f'out=$(runuser -u {user} -- {hop} 2>&1) || say ssh "{user} cannot reach {peer.name}: $out"')
    return 'say() { printf \'fail\\t%s\\t%s\\n\' "$1" "$(echo "$2" | tail -n 1)"; }\n' + "\n".join(checks) + "\n"


def _look(transport: Transport, node: Node, desired: Desired, conf: str) -> _Seen:
    before = time.time()
    clock = float(transport.run("date +%s.%N", timeout=15).out or 0)
    offset = clock - (before + time.time()) / 2
    script = check_script(node, desired, conf) + (_from_controller(desired) if node.role == "controller" else "")
    out = transport.run(script, timeout=TIMEOUT_S).out
    rows = [row.split("\t", 2) for row in out.splitlines() if row.count("\t") == 2]  # noqa: PLR2004
    failures = [Failed(node.name, name, line, FIXES.get(name, "")) for kind, name, line in rows if kind == "fail"]
    failures += _names(node, desired, rows)
    failures += [Failed(name, "slurmd", line, FIXES["slurmd"]) for kind, name, line in rows if kind == "silent"]
    return _Seen(node, failures, offset, parse_nodes(out))


def _from_controller(desired: Desired) -> str:
    # slurmd renews itself to take over a new configuration; until it listens again a job would find nobody.
    silent = "sed 's/$/\\tdoes not answer on its port/; s/^/silent\\t/'"
    probe = probe_nodes({node.name: node.address for node in desired.inventory.compute})
    return f"{show_nodes()}\n{{ {probe}\n}} | {silent}\n"


FIXES = {
    "slurmd": "`systemctl status slurmd` on that node; then run again",
    "daemon": "`journalctl -u` for the daemon on that node says why; then run again",
    "configuration": "`scontrol reconfigure` on the controller sends it out; running again does that",
    "names": "/etc/muster/merge-hosts on that node puts the names back",
    "accounting": "look at slurmdbd and mariadb on the controller",
    "ssh": "the user's ~/.ssh and /etc/ssh/ssh_known_hosts on both nodes",
    "clock": "look at chrony on that node",
    "state": "`scontrol show node` on the controller has the reason",
}


def _names(node: Node, desired: Desired, rows: list[list[str]]) -> list[Failed]:
    forward = {name.strip(): address for kind, address, name in rows if kind == "name"}
    reverse = {address: name.split()[0] for kind, address, name in rows if kind == "address"}
    wrong = [
        f"{n.name} does not resolve to {n.address}" for n in desired.inventory.nodes if forward.get(n.name) != n.address
    ]
    wrong += [
        f"{n.address} does not resolve to {n.name}" for n in desired.inventory.nodes if reverse.get(n.address) != n.name
    ]
    return [Failed(node.name, "names", line, FIXES["names"]) for line in wrong]


def _clocks(seen: list[_Seen]) -> list[Failed]:
    reference = next(s.offset for s in seen if s.node.role == "controller")
    return [
        Failed(s.node.name, "clock", f"{s.offset - reference:+.1f} s off the controller's", FIXES["clock"])
        for s in seen
        if abs(s.offset - reference) > CLOCK_S
    ]


def _states(desired: Desired, seen: list[_Seen]) -> list[Failed]:
    states = next(s.slurm for s in seen if s.node.role == "controller")
    found = [(n.name, states.get(n.name, ABSENT)) for n in desired.inventory.compute]
    return [Failed(name, "state", f"{s} {s.reason}".strip(), FIXES["state"]) for name, s in found if not s.usable]
