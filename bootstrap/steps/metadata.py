"""metadata: only root, and Slurm's own user where it launches nodes, may ask who the machine is; jobs may not."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.at_boot import DAEMONS, at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Node

SCRIPT = (Path(__file__).parent.parent / "scripts" / "metadata.sh").read_text()
NEEDED = "nftables"
INSTALL_S = 300.0
# Before anybody who is not root can run anything: logins, and what runs by the clock.
BEFORE = f"{DAEMONS} systemd-user-sessions.service cron.service atd.service"
# No job on a node whose rules cannot be loaded, or were taken away since.
FIRST = "[Service]\nExecStartPre=/etc/muster/metadata\n"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    # Slurm runs the programs that launch nodes as its own user.
    users = "root slurm" if node.role == "controller" else "root"
    first = write(facts, "/etc/systemd/system/slurmd.service.d/muster-metadata.conf", FIRST)
    made = at_boot(
        facts,
        "metadata",
        "The metadata service is root's",
        SCRIPT.replace("@USERS@", users),
        done="muster-metadata" in facts.active,
        before=BEFORE,
        fix="`nft list ruleset` on that machine says what it has; then run again",
    )
    missing = made and NEEDED not in facts.packages
    return [*(_install() if missing else []), *(first if node.role == "compute" else []), *made]


def _install() -> list[Action]:
    script = f"export DEBIAN_FRONTEND=noninteractive\napt-get -q install -y --no-install-recommends {NEEDED}"
    return [Action(f"install {NEEDED}", script, timeout=INSTALL_S, log="/var/log/apt/term.log", slow=True)]


STEP = Step("metadata", "the machine's role is root's alone", actions)
