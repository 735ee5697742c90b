"""scratch: the machine's own NVMe disks as one filesystem at /local; gone with the machine, and fast."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.at_boot import at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Node

SCRIPT = (Path(__file__).parent.parent / "scripts" / "scratch.sh").read_text()
WHERE = "/local"
MODEL = "Amazon EC2 NVMe Instance Storage"
NEEDED = ("mdadm", "xfsprogs")
MAKE_S = 300.0


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    missing = " ".join(name for name in NEEDED if name not in facts.packages)
    install = f"export DEBIAN_FRONTEND=noninteractive\napt-get -q install -y --no-install-recommends {missing}"
    todo = [Action(f"install {missing}", install, timeout=MAKE_S, log="/var/log/apt/term.log", slow=True)]
    made = at_boot(
        facts, "scratch", "Stripe over the machine's own disks", SCRIPT, done=WHERE in facts.mounts, timeout=MAKE_S
    )
    return [*(todo if missing and made else []), *made]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if any(disk.model == MODEL for disk in facts.disks) else "the machine has no disks of its own"


STEP = Step("scratch", "the machine's own disks at /local", actions, skip=skip)
