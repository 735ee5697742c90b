"""Metadata: only root may reach the service that hands out the machine's credentials and user data.

Slurm's user may, too, on a controller that launches nodes.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.cloud.at_boot import DAEMONS, LOGINS, run_at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Node

SCRIPT = (Path(__file__).parents[1] / "scripts" / "metadata.sh").read_text()
PACKAGE = "nftables"
# The rules are loaded before anything that runs other users' programs: logins, cron and at.
BEFORE = f"{DAEMONS} {LOGINS} cron.service atd.service"
# The rules are loaded again before each start of slurmd, which fails without them, so that no job can run.
LOAD_BEFORE_SLURMD = "[Service]\nExecStartPre=/etc/muster/metadata\n"

# Older kernels do not show the owner of multipath TCP connections: without an owner, none is opened.
VERDICTS = (
    "meta skuid { $allowed } accept",
    "meta skuid != { $allowed } reject",
    "tcp flags & (fin | syn | rst | ack) == syn reject",
)


def plan_metadata(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Load firewall rules that reject other users, now, at every boot, and before every start of slurmd."""
    # Slurm runs the programs that launch nodes as its own user, on clouds whose machines set themselves up.
    users = "root slurm" if node.role == "controller" and desired.cloud else "root"
    rules = run_at_boot(
        facts,
        "metadata",
        "Metadata service for root only",
        SCRIPT.replace("@USERS@", users).replace("@RULES@", _render_rules(desired)),
        done="muster-metadata" in facts.active,
        before=BEFORE,
        required_for_logins=True,
        fix="compare with `nft list ruleset` on that machine, then run again",
    )
    drop_in = "/etc/systemd/system/slurmd.service.d/muster-metadata.conf"
    return [
        *(write_file(facts, drop_in, LOAD_BEFORE_SLURMD) if node.role == "compute" else []),
        *rules,
    ]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip machines without a metadata service."""
    return "" if desired.inventory.metadata_addresses else "the machines have no metadata service"


def _render_rules(desired: Desired) -> str:
    families = {4: "ip", 6: "ip6"}
    addresses = desired.inventory.metadata_addresses
    matches = [f"{families[ip_address(address).version]} daddr {address}" for address in addresses]
    return "\n".join(f"    {match} {verdict}" for match in matches for verdict in VERDICTS)


def _list_packages(node: Node) -> tuple[str, ...]:
    return (PACKAGE,)


STEP = Step(
    "metadata",
    "credentials and user data of the machine for root only",
    plan_metadata,
    skip=skip,
    units=("muster-metadata",),
    packages=_list_packages,
)
